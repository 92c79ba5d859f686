/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_prefill_backward: windows, memory and launches; see backward.cu. */
#include "cuda/driver/backend.h"

/* Columns of a state that a block has (stages.cuh); chunks of a window, at least; windows, at
 * most: each is several launches. */
enum { STRIP = 32, LEAST_CHUNKS = 8, MOST_WINDOWS = 32 };

static int64_t ceil_of(int64_t x, int64_t n) { return x / n + (x % n != 0); }

/*
 * Chunks are numbered by sequence, window_chunks for each; or, where that would be more than the
 * tensors have, by where a sequence begins (backward.cuh), and the only window is everything.
 */
static void cut_windows(struct gdn_cu_backward *a)
{
    const struct gdn_cu_batch *b = &a->rule.batch;
    const bool    packed = b->cu_seqlens.data != NULL;
    const int64_t most   = ceil_of(packed ? b->N : b->T, GDN_CU_BACKWARD_CHUNK);
    const int64_t wanted = ceil_of(most, MOST_WINDOWS);
    a->window_chunks     = wanted > LEAST_CHUNKS ? wanted : LEAST_CHUNKS;
    if (a->window_chunks > most) a->window_chunks = most > 1 ? most : 1;
    a->n_chunks  = b->B * a->window_chunks;
    a->n_windows = most ? ceil_of(most, a->window_chunks) : 1;
    if (!packed || a->n_chunks <= b->N / GDN_CU_BACKWARD_CHUNK + b->B) return;
    a->window_chunks = 0;
    a->n_chunks      = b->N / GDN_CU_BACKWARD_CHUNK + b->B;
    a->n_windows     = 1;
}

/* Rows of n numbers of the chunks' tokens and n_heads heads. */
static struct gdn_rows chunk_rows(int64_t n_heads, int64_t n)
{
    return (struct gdn_rows){ .dtype = GDN_F32, .token = n_heads * n * 4, .head = n * 4 };
}

static struct gdn_pool_view states(const struct gdn_cu_rule *r)
{
    const int64_t head = (int64_t)r->K * r->V;
    return (struct gdn_pool_view){
        .dtype = GDN_F32, .k_first = true, .slot = r->H * head, .head = head, .ld = r->V
    };
}

static struct gdn_cu_backward args_of(const struct gdn_backward_call *c)
{
    const struct gdn_backward       *w     = &c->work;
    const gdn_prefill_backward_args *args  = &c->args;
    const gdn_rule_args              gates = { .A_log = args->A_log, .dt_bias = args->dt_bias };
    const struct gdn_rule           *r     = &w->rule;
    struct gdn_cu_backward a = {
        .rule       = gdn_cuda_rule_args(r, &gates, &c->plan, &c->tokens, &c->pools),
        .q          = r->q,
        .k          = r->k,
        .dout       = w->dout,
        .dq         = w->dq,
        .dk         = w->dk,
        .dv         = w->dv,
        .dg         = w->dg,
        .dbeta      = w->dbeta,
        .dA_log     = gdn_cuda_array(&args->dA_log),
        .ddt_bias   = gdn_cuda_array(&args->ddt_bias),
        .dstate_out = w->dstate_out,
        .n_strips   = (r->V + STRIP - 1) / STRIP,
        .n_tokens   = c->tokens.padded ? c->plan.B * c->tokens.T : c->tokens.N,
        .adds       = w->adds,
    };
    a.rule.to = w->dstate;
    a.rule.q = chunk_rows(r->Hq, r->K), a.rule.k = chunk_rows(r->Hk, r->K);
    a.u = a.z = chunk_rows(r->H, r->V);
    a.head_dq = a.head_dk = chunk_rows(r->H, r->K);
    a.starts = a.carry = a.S = a.J = states(&a.rule);
    cut_windows(&a);
    return a;
}

static bool has_sums(const struct gdn_cu_backward *a)
{
    return a->dA_log.data || a->ddt_bias.data;
}

static size_t lay_out(struct gdn_cu_backward *a, char *memory)
{
    const struct gdn_cu_rule *r = &a->rule;
    const size_t chunks = (size_t)a->n_chunks, B = (size_t)r->batch.B, H = (size_t)r->H;
    const size_t rows = 4 * chunks * GDN_CU_BACKWARD_CHUNK, state = 4 * (size_t)a->S.slot;
    const size_t K = (size_t)r->K, V = (size_t)r->V, between = a->n_windows > 1 ? B * state : 0;
    const struct gdn_room rooms[] = {
        { &a->rule.q.data, rows * (size_t)r->Hq * K },
        { &a->rule.k.data, rows * (size_t)r->Hk * K },
        { &a->u.data, rows * H * V },
        { &a->z.data, rows * H * V },
        { &a->head_dq.data, rows * H * K },
        { &a->head_dk.data, rows * H * K },
        { &a->S.data, chunks * state },
        { &a->J.data, chunks * state },
        { &a->carry.data, between },
        { &a->starts.data, (size_t)a->n_windows * between },
        { &a->sums, has_sums(a) ? chunks * H * 2 * sizeof(double) : 0 },
    };
    const size_t bytes = gdn_lay_out_rooms(rooms, sizeof rooms / sizeof *rooms, memory);
    if (!has_sums(a)) a->sums = NULL;
    return bytes;
}

static gdn_status launch(gdn_ctx *ctx, const struct gdn_cu_backward *a, enum gdn_kernel_id kernel,
                         int64_t n_blocks, size_t shared_bytes, void *stream)
{
    const struct gdn_cuda_call call = {
        .kernel       = kernel,
        .grid         = { n_blocks, 1, 1 },
        .shared_bytes = shared_bytes,
        .stream       = stream,
        .args         = a,
    };
    return gdn_cuda_launch(ctx, &call);
}

/* Chunks of a window: their rows of q and k, states and u; and the state after the window. */
static gdn_status forward(gdn_ctx *ctx, struct gdn_cu_backward *a, int64_t window, void *stream)
{
    const struct gdn_cu_rule *r = &a->rule;
    a->window = window;
    TRY(launch(ctx, a, GDN_CU_backward_load, a->n_chunks * (r->Hq + r->Hk), 0, stream));
    return launch(ctx, a, GDN_CU_backward_forward, r->batch.B * r->H * a->n_strips,
                  GDN_CU_STRIP_BYTES, stream);
}

static gdn_status backward(gdn_ctx *ctx, const struct gdn_cu_backward *a, void *stream)
{
    const struct gdn_cu_rule *r = &a->rule;
    TRY(launch(ctx, a, GDN_CU_backward_reverse, r->batch.B * r->H * a->n_strips,
               GDN_CU_REVERSE_BYTES, stream));
    TRY(launch(ctx, a, GDN_CU_backward_chunk, a->n_chunks * r->H, GDN_CU_GRADIENTS_BYTES, stream));
    return launch(ctx, a, GDN_CU_backward_store, a->n_chunks * (r->Hq + r->Hk + r->Hv), 0, stream);
}

/* May there be tokens that do not count, whose gradients are zero? */
static bool has_rest(const struct gdn_cu_backward *a)
{
    const struct gdn_cu_batch *b = &a->rule.batch;
    return !a->adds && (b->cu_seqlens.data || b->token_start.data || b->token_count.data);
}

static gdn_status launch_all(gdn_ctx *ctx, struct gdn_cu_backward *a, void *stream)
{
    enum { WARPS = 8 };
    struct gdn_cuda_ran ran = { 5, { GDN_CU_backward_load, GDN_CU_backward_forward,
                                     GDN_CU_backward_reverse, GDN_CU_backward_chunk,
                                     GDN_CU_backward_store } };
    for (int64_t i = 0; i + 1 < a->n_windows; i++) TRY(forward(ctx, a, i, stream));
    for (int64_t i = a->n_windows - 1; i >= 0; i--) {
        TRY(forward(ctx, a, i, stream));
        TRY(backward(ctx, a, stream));
    }
    if (has_rest(a)) {
        ran.kernels[ran.n++] = GDN_CU_backward_rest;
        TRY(launch(ctx, a, GDN_CU_backward_rest, ceil_of(a->n_tokens, WARPS), 0, stream));
    }
    if (has_sums(a)) {
        ran.kernels[ran.n++] = GDN_CU_backward_sums;
        TRY(launch(ctx, a, GDN_CU_backward_sums, a->rule.H, 0, stream));
    }
    return gdn_cuda_note_all(ctx, "prefill_backward", ran.kernels, ran.n);
}

_Static_assert(sizeof(struct gdn_cu_backward) <= GDN_PLAN_ROOM, "a plan has room");

static gdn_status plan(gdn_ctx *ctx, void *call)
{
    struct gdn_backward_call *c    = call;
    struct gdn_cu_backward   *args = GDN_PLANNED(struct gdn_cu_backward, &c->base);
    (void)ctx;
    *args                       = args_of(c);
    struct gdn_cu_backward copy = *args;
    c->base.bytes               = lay_out(&copy, NULL);
    return GDN_OK;
}

static gdn_status run(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_backward_call *c    = call;
    struct gdn_cu_backward         *args = GDN_PLANNED(struct gdn_cu_backward, &c->base);
    static const struct gdn_plan_pools none = { -1, -1, -1, false, false };
    TRY(gdn_cuda_check_batch(ctx, &c->plan, &c->tokens, &none, c->base.stream));
    lay_out(args, memory);
    return launch_all(ctx, args, c->base.stream);
}

const struct gdn_op_backend gdn_cuda_op_prefill_backward = { plan, run };
