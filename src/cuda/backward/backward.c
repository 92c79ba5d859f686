/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_prefill_backward: windows, memory and launches; see general/general.cu and sm90/run.cuh. */
#include <math.h>

#include "calls/backward.h"
#include "calls/op_backends.h"
#include "cuda/backward/channels/channels.h"
#include "cuda/backward/select.h"
#include "cuda/backward/windows.h"
#include "cuda/decode/decode.h"
#include "cuda/driver/contents.h"
#include "cuda/prefill/prefill.h"

/* STRIP: columns of a state of a block (stages.cuh). On tensor cores, DEEP is the most of K and V
 * at a time, and LEAST_WINDOW the least chunks of a window, even if these take more memory than
 * wanted. */
enum { STRIP = 32, DEEP = 128, LEAST_WINDOW = 128, TILE = GDN_CU_BACKWARD_TILE };

/* The decisions about a call. */
struct planned {
    enum gdn_backward_form form;
    union {
        struct gdn_cu_backward_channels channels; /* if the form is one of the family */
        struct {
            struct gdn_cu_backward args;
            struct gdn_cuda_cut_options options;
            struct gdn_cuda_chunks first; /* if gdn_prefill's kernels compute the states before
                                             windows */
            struct gdn_range_cut walk;    /* if args.cut.first is not 0 */
        };
    };
};
_Static_assert(sizeof(struct planned) <= GDN_PLAN_ROOM, "a plan has room");

/* Returns the rows of all chunks' tokens in memory: n_heads heads of n numbers. */
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

/* Returns how many tiles in memory so many keys, or columns of V, have. */
static int64_t n_tiles(int64_t n) { return n > DEEP ? 2 * ceil_of(n, DEEP) : ceil_of(n, DEEP / 2); }

static bool is_deep(const struct gdn_cu_backward *a) { return a->rule.K > DEEP; }
static bool is_wide(const struct gdn_cu_backward *a) { return is_deep(a) || a->rule.V > DEEP; }

static bool is_portable(const struct gdn_cu_backward *a) { return a->walk_bytes != 0; }

/* Returns true if the walk in reverse and the gradients are one kernel. */
static bool is_fused(const struct gdn_cu_backward *a) { return a->segments != 0; }

/* Returns the call of gdn_prefill's kernels that computes the states before each window. */
static struct gdn_cu_rule first_pass(const struct gdn_cu_backward *a)
{
    struct gdn_cu_rule r = a->rule;
    r.q = a->q;
    r.k = a->k;
    r.out = (struct gdn_rows){ .data = NULL };
    r.to = (struct gdn_pool_view){ .data = NULL };
    r.checkpoints = a->starts;
    r.batch.read_pool = r.from.data ? r.batch.B : -1;
    r.batch.write_pool = -1;
    r.batch.checkpoint_pool = r.batch.n_checkpoints = gdn_windows_starts(a);
    r.batch.checkpoint_every = a->window_chunks * GDN_CU_BACKWARD_CHUNK;
    if (!gdn_windows_go_through(a)) return r;
    const int64_t W = a->n_windows, starts = 2 * (W + 1), positions = starts + r.batch.B + 1;
    const struct gdn_cu_array list = { .data = a->plan, .stride = { 1, 0 }, .dtype = GDN_I64 };
    r.batch.checkpoint_starts = r.batch.checkpoint_positions = r.batch.token_count = list;
    if (!a->plan) return r;
    r.batch.checkpoint_starts.data = a->plan + starts;
    r.batch.checkpoint_positions.data = a->plan + positions;
    r.batch.token_count.data = a->plan + positions + W;
    return r;
}

static bool has_sums(const struct gdn_cu_backward *a) { return a->dA_log.data || a->ddt_bias.data; }

/* Returns true if the gradient of the initial states is the only one. It needs no states. */
static bool wants_state_alone(const struct gdn_cu_backward *a)
{
    return !a->dq.data && !a->dk.data && !a->dv.data && !a->dg.data && !a->dbeta.data &&
           !has_sums(a);
}

/* Returns the walk to dstate. Its maps are of keys as the caller gave them. */
static struct gdn_cuda_summary walk_of(const struct planned *p)
{
    struct gdn_cuda_summary s = { .rule = p->args.rule,
                                  .batch_invariant = p->options.whole,
                                  .every_token = p->options.every_token,
                                  .back = true };
    s.rule.q = s.rule.k = p->args.k;
    s.rule.v.data = s.rule.from.data = NULL;
    return s;
}

/* Plans the parts and the stops of the walk to dstate, which must not add to dstate. */
static void cut_walk(const gdn_ctx *ctx, struct planned *p)
{
    const struct gdn_cuda_summary s = walk_of(p);
    p->args.record_bytes = GDN_CU_BACKWARD_SQUARES;
    if (p->args.adds || gdn_cuda_summary_sm90_why_not(ctx, &s)) return;
    p->walk = gdn_cuda_summary_sm90_cut(ctx, &s);
    gdn_cuda_walk_cut(&s, &p->walk, &p->args.cut, NULL);
}

static size_t walk_bytes(struct planned *p, char *memory)
{
    const struct gdn_cuda_summary s = walk_of(p);
    return p->args.cut.first ? gdn_cuda_walk_cut(&s, &p->walk, &p->args.cut, memory) : 0;
}

/* Plans the first pass: gdn_prefill's kernels compute the states before windows. Their cut depends
 * on the batch, so GDN_BATCH_INVARIANT does without them. */
static void cut_first_pass(gdn_ctx *ctx, struct planned *p)
{
    struct gdn_cu_backward *a = &p->args;
    if (gdn_windows_have_checkpoints(a)) return;
    const struct gdn_cu_rule first = first_pass(a);
    a->starts.k_first = false;
    a->starts.ld = a->rule.K;
    if (!gdn_windows_have_states(a) || p->options.whole || is_portable(a) ||
        gdn_cuda_prefill_sm90_why_not(ctx, &first))
        return;
    a->starts_every = (int32_t)(max_of(a->window_chunks, 1) * GDN_CU_BACKWARD_CHUNK);
    p->first = (struct gdn_cuda_chunks){ .options = p->options };
    gdn_cuda_prefill_sm90_plan(ctx, &first, &p->first);
}

static bool is_by_prefill(const struct gdn_cu_backward *a)
{
    return a->starts_every && !gdn_windows_have_checkpoints(a);
}

/* Returns true if rows of q and k are loaded from the tensors: in bf16 they are factors as they are
 * (tiles.cuh). */
static bool has_key_maps(const struct gdn_cu_backward *a)
{
    const struct gdn_cu_rule *r = &a->rule;
    return a->q.dtype == GDN_BF16 && !is_portable(a) && !is_deep(a) &&
           gdn_cuda_is_mapped(&a->q, &r->batch, r->Hq) &&
           gdn_cuda_is_mapped(&a->k, &r->batch, r->Hk);
}

/* Finds the bytes of a chunk in memory: tiles of 64 keys or columns. */
static void size_records(struct gdn_cu_backward *a)
{
    const int32_t K = (int32_t)n_tiles(a->rule.K), V = (int32_t)n_tiles(a->rule.V);
    a->record_bytes = GDN_CU_BACKWARD_SQUARES + (is_fused(a) ? 1 : 2) * TILE * V * (1 + K);
    a->key_bytes = GDN_CU_BACKWARD_NORMS + (has_key_maps(a) ? 0 : 2 * TILE * K);
}

/* Returns the largest power of two that is not above the scale of q. bf16 has the range of float32
 * and needs none (tiles.cuh). */
static float drop_of(const struct gdn_cu_backward *a)
{
    const float scale = fabsf(a->rule.scale);
    int power = 0;
    if (a->q.dtype != GDN_F16 || !(scale > 0x1p-60f && scale < 0x1p60f)) return 1;
    frexpf(scale, &power);
    return ldexpf(1, power - 1);
}

/* Returns how many blocks share the columns of a walk of n_heads. If K is above DEEP, or if the
 * device has multiprocessors for so many blocks, each has 64 columns; else 128. */
static int32_t find_strips(const struct gdn_cu_backward *a, int64_t n_heads)
{
    const int64_t n = n_tiles(a->rule.V);
    const int64_t walks = wants_state_alone(a) || a->segments == 1 ? 1 : 2;
    return (int32_t)(is_deep(a) || walks * n * n_heads <= a->n_blocks ? n : ceil_of(n, 2));
}

/* Gives the kernels by mma.sync as much shared memory as they use and the device has. A walk has 64
 * columns. */
static void size_portable(const gdn_ctx *ctx, struct gdn_cu_backward *a)
{
    const int most = ctx->cuda->shared_most;
    a->n_strips = (int32_t)ceil_of(a->rule.V, DEEP / 2);
    a->walk_bytes = most >= GDN_CU_PORTABLE_WALK_BYTES ? GDN_CU_PORTABLE_WALK_BYTES
                                                       : GDN_CU_PORTABLE_WALK_LEAST;
    a->heads_bytes = most >= GDN_CU_PORTABLE_HEADS_BYTES ? GDN_CU_PORTABLE_HEADS_BYTES
                                                         : GDN_CU_PORTABLE_HEADS_LEAST;
}

/* Returns the arguments that every form has. */
static struct gdn_cu_backward base_of(const struct gdn_backward_call *c)
{
    const struct gdn_backward *w = &c->work;
    const gdn_prefill_backward_args *args = &c->args;
    const struct gdn_rule *r = &w->rule;
    struct gdn_cu_backward a = {
        .q = r->q,
        .k = r->k,
        .dout = w->dout,
        .dq = w->dq,
        .dk = w->dk,
        .dv = w->dv,
        .dg = w->dg,
        .dbeta = w->dbeta,
        .dA_log = gdn_cuda_array(&args->dA_log),
        .ddt_bias = gdn_cuda_array(&args->ddt_bias),
        .dstate_out = w->dstate_out,
        .n_strips = (r->V + STRIP - 1) / STRIP,
        .n_tokens = c->tokens.padded ? c->plan.B * c->tokens.T : c->tokens.N,
        .adds = w->adds,
    };
    gdn_cuda_fill_rule(&a.rule, r, &args->A_log, &args->dt_bias, &c->plan, &c->tokens, &c->pools);
    a.rule.to = w->dstate;
    return a;
}

/*
 * Cuts the batch into windows. On Hopper one kernel takes the place of the walk in reverse and of
 * the gradients if its segments keep all multiprocessors busy. Its records are smaller, so its
 * windows are fewer.
 */
static void cut_windows(const gdn_ctx *ctx, struct planned *p, uint32_t mib)
{
    const struct gdn_windows_limits limits = { LEAST_WINDOW, mib };
    struct gdn_cu_backward *a = &p->args, one = *a;
    gdn_windows_cut(ctx, a, limits);
    if (p->form != GDN_BACKWARD_SM90 || wants_state_alone(a) || !gdn_cuda_backward_can_fuse(ctx, a))
        return;
    one.segments = 1;
    size_records(&one);
    gdn_windows_cut(ctx, &one, limits);
    if (gdn_windows_cut_segments(ctx, &one)) *a = one;
}

/* Plans a form of Gated DeltaNet. p->args are set for every form. */
static void plan_gdn(gdn_ctx *ctx, const struct gdn_backward_call *c, struct planned *p)
{
    const struct gdn_rule *r = &c->work.rule;
    struct gdn_cu_backward *a = &p->args;
    a->rule.q = chunk_rows(r->Hq, r->K), a->rule.k = chunk_rows(r->Hk, r->K);
    a->u = a->z = chunk_rows(r->H, r->V);
    a->head_dq = a->head_dk = chunk_rows(r->H, r->K);
    a->starts = a->carry = a->S = a->J = states(&a->rule);
    if (p->form != GDN_BACKWARD_GENERAL) {
        a->n_blocks = ctx->cuda->sm_count;
        a->walk_bytes = p->form == GDN_BACKWARD_PORTABLE ? GDN_CU_PORTABLE_WALK_LEAST : 0;
        size_records(a);
        a->drop = drop_of(a);
        a->rule.scale /= a->drop;
        a->J.k_first = false;
        a->J.ld = r->K;
        if (wants_state_alone(a)) cut_walk(ctx, p);
    }
    if (p->options.whole) a->rule.batch.checkpoint_pool = -1;
    cut_windows(ctx, p, c->work.window_mib);
    if (gdn_windows_have_checkpoints(a)) a->starts = c->work.checkpoints;
    if (!a->n_blocks) return;
    const int64_t n_rows = gdn_windows_rows(a);
    const int64_t n_heads = (a->cut.units ? a->cut.units : n_rows) * a->rule.H;
    a->n_strips = find_strips(a, n_heads);
    if (is_portable(a)) size_portable(ctx, a);
    if (!wants_state_alone(a)) cut_first_pass(ctx, p);
}

static size_t scratch_bytes(struct planned *p)
{
    if (wants_state_alone(&p->args)) return walk_bytes(p, NULL);
    return is_by_prefill(&p->args) ? p->first.bytes : 0;
}

static size_t lay_out(struct planned *p, char *memory)
{
    struct gdn_cu_backward *a = &p->args;
    const struct gdn_cu_rule *r = &a->rule;
    const size_t all = wants_state_alone(a) ? 0 : 1;
    const size_t chunks = (size_t)a->n_chunks, H = (size_t)r->H;
    const size_t rows = 4 * chunks * GDN_CU_BACKWARD_CHUNK, state = 4 * (size_t)a->S.slot;
    const size_t K = (size_t)r->K, V = (size_t)r->V;
    const size_t starts = all * (size_t)gdn_windows_starts(a) * state;
    const size_t between = (size_t)gdn_windows_carried(a) * state;
    void *const checkpoints = gdn_windows_have_checkpoints(a) ? a->starts.data : NULL;
    const struct gdn_room rooms[] = {
        { &a->rule.q.data, rows * (size_t)r->Hq * K },
        { &a->rule.k.data, rows * (size_t)r->Hk * K },
        { &a->u.data, all * rows * H * V },
        { &a->z.data, rows * H * V },
        { &a->head_dq.data, all * rows * H * K },
        { &a->head_dk.data, all * rows * H * K },
        { &a->S.data, all * chunks * state },
        { &a->J.data, chunks * state },
        { &a->carry.data, between },
        { &a->starts.data, starts },
        { &a->sums, has_sums(a) ? chunks * H * 2 * sizeof(double) : 0 },
    };
    const struct gdn_room mma_rooms[] = {
        { &a->records, chunks * H * (size_t)a->record_bytes },
        { &a->keys, chunks * (size_t)r->Hk * (size_t)a->key_bytes },
        { &a->places, chunks * sizeof *a->places },
        { &a->plan, (size_t)gdn_windows_planned(a) * sizeof *a->plan },
        { &a->carry.data, between },
        { &a->starts.data, starts },
        { &a->scratch, scratch_bytes(p) },
        { &a->ends, (size_t)gdn_windows_ends(a) * H * GDN_CU_BACKWARD_END },
        { &a->sums, has_sums(a) ? chunks * H * 2 * sizeof(double) : 0 },
    };
    const size_t bytes =
        a->n_blocks ? gdn_lay_out_rooms(mma_rooms, sizeof mma_rooms / sizeof *mma_rooms, memory)
                    : gdn_lay_out_rooms(rooms, sizeof rooms / sizeof *rooms, memory);
    if (checkpoints) a->starts.data = checkpoints;
    if (!has_sums(a)) a->sums = NULL;
    if (!gdn_windows_go_through(a)) a->plan = NULL;
    if (memory && a->cut.first) walk_bytes(p, a->scratch);
    if (memory && a->n_blocks) a->J.data = (char *)a->cut.states;
    return bytes;
}

static gdn_status launch(gdn_ctx *ctx, const struct gdn_cu_backward *a, enum gdn_kernel_id kernel,
                         int64_t n_blocks, size_t shared_bytes, void *stream)
{
    const struct gdn_cuda_call call = {
        .kernel = kernel,
        .grid = { n_blocks, 1, 1 },
        .shared_bytes = shared_bytes,
        .stream = stream,
        .args = a,
    };
    return gdn_cuda_launch(ctx, &call);
}

enum mma_kernel {
    PREPARE,
    PREPARE_DEEP,
    HALF,
    WHOLE,
    DEEP_WALK,
    HALF_ALONE,
    WHOLE_ALONE,
    DEEP_ALONE,
    HEADS,
    HEADS_WIDE,
    FUSED,
    HALF_ENDS,
    WHOLE_ENDS
};

static enum gdn_kernel_id mma_kernel(const struct gdn_cu_backward *a, enum mma_kernel which)
{
    static const enum gdn_kernel_id all[][2] = {
        { GDN_CU_backward_sm90_prepare_BF16, GDN_CU_backward_sm90_prepare_F16 },
        { GDN_CU_backward_sm90_prepare_deep_BF16, GDN_CU_backward_sm90_prepare_deep_F16 },
        { GDN_CU_backward_sm90_half_BF16, GDN_CU_backward_sm90_half_F16 },
        { GDN_CU_backward_sm90_whole_BF16, GDN_CU_backward_sm90_whole_F16 },
        { GDN_CU_backward_sm90_deep_BF16, GDN_CU_backward_sm90_deep_F16 },
        { GDN_CU_backward_sm90_half_alone_BF16, GDN_CU_backward_sm90_half_alone_F16 },
        { GDN_CU_backward_sm90_whole_alone_BF16, GDN_CU_backward_sm90_whole_alone_F16 },
        { GDN_CU_backward_sm90_deep_alone_BF16, GDN_CU_backward_sm90_deep_alone_F16 },
        { GDN_CU_backward_sm90_heads_BF16, GDN_CU_backward_sm90_heads_F16 },
        { GDN_CU_backward_sm90_heads_wide_BF16, GDN_CU_backward_sm90_heads_wide_F16 },
        { GDN_CU_backward_sm90_fused_BF16, GDN_CU_backward_sm90_fused_F16 },
        { GDN_CU_backward_sm90_half_ends_BF16, GDN_CU_backward_sm90_half_ends_F16 },
        { GDN_CU_backward_sm90_whole_ends_BF16, GDN_CU_backward_sm90_whole_ends_F16 },
    };
    return all[which][a->q.dtype == GDN_F16];
}

enum portable_kernel { PORTABLE_PREPARE, PORTABLE_WALKS, PORTABLE_ALONE, PORTABLE_HEADS };

static enum gdn_kernel_id portable_kernel(const struct gdn_cu_backward *a,
                                          enum portable_kernel which)
{
    static const enum gdn_kernel_id all[][2] = {
        { GDN_CU_backward_portable_prepare_BF16, GDN_CU_backward_portable_prepare_F16 },
        { GDN_CU_backward_portable_walks_BF16, GDN_CU_backward_portable_walks_F16 },
        { GDN_CU_backward_portable_alone_BF16, GDN_CU_backward_portable_alone_F16 },
        { GDN_CU_backward_portable_heads_BF16, GDN_CU_backward_portable_heads_F16 },
    };
    return all[which][a->q.dtype == GDN_F16];
}

static enum gdn_kernel_id mma_prepare(const struct gdn_cu_backward *a)
{
    if (is_portable(a)) return portable_kernel(a, PORTABLE_PREPARE);
    return mma_kernel(a, is_deep(a) ? PREPARE_DEEP : PREPARE);
}
/* Returns the walk. If all blocks together have V in tiles of 64 columns, it is a `half`. */
static enum gdn_kernel_id mma_walks(const struct gdn_cu_backward *a)
{
    const bool alone = wants_state_alone(a), half = a->n_strips == n_tiles(a->rule.V);
    if (is_portable(a)) return portable_kernel(a, alone ? PORTABLE_ALONE : PORTABLE_WALKS);
    if (is_deep(a)) return mma_kernel(a, alone ? DEEP_ALONE : DEEP_WALK);
    if (is_fused(a)) return mma_kernel(a, half ? HALF_ENDS : WHOLE_ENDS);
    if (half) return mma_kernel(a, alone ? HALF_ALONE : HALF);
    return mma_kernel(a, alone ? WHOLE_ALONE : WHOLE);
}
static enum gdn_kernel_id mma_heads(const struct gdn_cu_backward *a)
{
    if (is_portable(a)) return portable_kernel(a, PORTABLE_HEADS);
    if (is_fused(a)) return mma_kernel(a, FUSED);
    return mma_kernel(a, is_wide(a) ? HEADS_WIDE : HEADS);
}

static size_t walk_shared(const struct gdn_cu_backward *a)
{
    return is_portable(a) ? (size_t)a->walk_bytes : GDN_CU_WALK_BYTES;
}

static gdn_status launch_prepare(gdn_ctx *ctx, const struct gdn_cu_backward *a, void *stream)
{
    return launch(ctx, a, mma_prepare(a), a->n_chunks * a->rule.Hk,
                  is_deep(a) ? GDN_CU_PREPARE_DEEP_BYTES : GDN_CU_PREPARE_BYTES, stream);
}
/* Launches the gradients of a window. Two blocks share the keys of deep heads. */
static gdn_status launch_heads(gdn_ctx *ctx, const struct gdn_cu_backward *a, void *stream)
{
    const int64_t share = is_deep(a) ? 2 : 1;
    const int64_t items = a->n_chunks * a->rule.Hk, most = a->n_blocks / share;
    const struct gdn_cuda_call call = {
        .kernel = mma_heads(a),
        .grid = { share * (items < most ? items : most), 1, 1 },
        .cluster = (int)share,
        .shared_bytes = is_portable(a) ? (size_t)a->heads_bytes
                        : is_wide(a)   ? GDN_CU_HEADS_WIDE_BYTES
                                       : GDN_CU_HEADS_BYTES,
        .stream = stream,
        .args = a,
    };
    return gdn_cuda_launch(ctx, &call);
}

/* Launches the gradients of a window with the walk in reverse. Heads of a key are a cluster. */
static gdn_status launch_fused(gdn_ctx *ctx, const struct gdn_cu_backward *a, void *stream)
{
    const struct gdn_cuda_call call = {
        .kernel = mma_heads(a),
        .grid = { gdn_windows_segments(a) * a->rule.H, 1, 1 },
        .cluster = a->rule.H / a->rule.Hk,
        .shared_bytes = GDN_CU_FUSED_BYTES,
        .stream = stream,
        .args = a,
    };
    return gdn_cuda_launch(ctx, &call);
}

/* Returns the walks of the launch before the gradients, as bits. */
static int32_t walks_before(const struct gdn_cu_backward *a)
{
    if (!is_fused(a)) return GDN_CU_WALK_FORWARD | GDN_CU_WALK_REVERSE;
    return GDN_CU_WALK_FORWARD | GDN_CU_WALK_GRADIENTS |
           (a->segments > 1 ? GDN_CU_WALK_REVERSE : 0);
}

/* Launches a window on tensor cores. `reverse`: also the walk that makes J, and the gradients. */
static gdn_status launch_mma(gdn_ctx *ctx, struct gdn_cu_backward *a, bool reverse, void *stream)
{
    a->walks = reverse ? walks_before(a) : GDN_CU_WALK_FORWARD;
    const int64_t n = a->n_parts * a->rule.H * a->n_strips;
    TRY(launch_prepare(ctx, a, stream));
    TRY(launch(ctx, a, mma_walks(a), (a->walks & GDN_CU_WALK_REVERSE ? 2 : 1) * n, walk_shared(a),
               stream));
    if (!reverse) return GDN_OK;
    return is_fused(a) ? launch_fused(ctx, a, stream) : launch_heads(ctx, a, stream);
}

/* Launches a window: rows of q and k, states and u of its chunks, and the state after it.
 * `reverse`: also their gradients. */
static gdn_status launch_window(gdn_ctx *ctx, struct gdn_cu_backward *a, int64_t window,
                                bool reverse, void *stream)
{
    const struct gdn_cu_rule *r = &a->rule;
    const int64_t n_walks = r->batch.B * r->H * a->n_strips;
    a->window = window;
    if (a->n_blocks) return launch_mma(ctx, a, reverse, stream);
    TRY(launch(ctx, a, GDN_CU_backward_general_load, a->n_chunks * (r->Hq + r->Hk), 0, stream));
    TRY(launch(ctx, a, GDN_CU_backward_general_forward, n_walks, GDN_CU_STRIP_BYTES, stream));
    if (!reverse) return GDN_OK;
    TRY(launch(ctx, a, GDN_CU_backward_general_reverse, n_walks, GDN_CU_REVERSE_BYTES, stream));
    TRY(launch(ctx, a, GDN_CU_backward_general_chunk, a->n_chunks * r->H, GDN_CU_GRADIENTS_BYTES,
               stream));
    return launch(ctx, a, GDN_CU_backward_general_store, a->n_chunks * (r->Hq + r->Hk + r->Hv), 0,
                  stream);
}

/* Returns true if there may be masked tokens, whose gradients are zero. */
static bool has_rest(const struct gdn_cu_backward *a)
{
    const struct gdn_cu_batch *b = &a->rule.batch;
    return !a->adds && (b->cu_seqlens.data || b->token_start.data || b->token_count.data);
}

/* Launches the plan of windows through the batch. */
static gdn_status launch_plan(gdn_ctx *ctx, const struct gdn_cu_backward *a,
                              struct gdn_cuda_ran *ran, void *stream)
{
    enum { THREADS = 256 };
    if (!a->plan) return GDN_OK;
    gdn_cuda_ran_add(ran, GDN_CU_backward_general_plan);
    return launch(ctx, a, GDN_CU_backward_general_plan, ceil_of(a->rule.batch.B, THREADS), 0,
                  stream);
}

/* Launches the walk to dstate, from the last window to the first, on tensor cores. */
static gdn_status launch_parts(gdn_ctx *ctx, struct planned *p, void *stream)
{
    struct gdn_cu_backward *a = &p->args;
    const struct gdn_cu_rule *r = &a->rule;
    const struct gdn_cuda_summary s = walk_of(p);
    const enum gdn_kernel_id walk = mma_walks(a);
    struct gdn_cuda_ran ran = { .n = 0 };
    if (a->cut.first) TRY(gdn_cuda_walk_maps(ctx, &s, &a->cut, &ran, stream));
    TRY(launch_plan(ctx, a, &ran, stream));
    gdn_cuda_ran_add(&ran, mma_prepare(a));
    gdn_cuda_ran_add(&ran, walk);
    for (a->window = a->n_windows - 1; a->window >= 0; a->window--) {
        TRY(launch_prepare(ctx, a, stream));
        TRY(launch(ctx, a, walk, a->n_parts * r->H * a->n_strips, walk_shared(a), stream));
    }
    if (a->cut.units) TRY(gdn_cuda_walk_join(ctx, &s, &p->walk, &a->cut, &ran, stream));
    return gdn_cuda_note_all(ctx, "prefill_backward", ran.kernels, ran.n);
}

static gdn_status launch_state_alone(gdn_ctx *ctx, struct gdn_cu_backward *a, void *stream)
{
    const enum gdn_kernel_id ran[] = { GDN_CU_backward_general_load,
                                       GDN_CU_backward_general_reverse };
    const struct gdn_cu_rule *r = &a->rule;
    for (a->window = a->n_windows - 1; a->window >= 0; a->window--) {
        TRY(launch(ctx, a, ran[0], a->n_chunks * (r->Hq + r->Hk), 0, stream));
        TRY(launch(ctx, a, ran[1], r->batch.B * r->H * a->n_strips, GDN_CU_REVERSE_BYTES, stream));
    }
    return gdn_cuda_note_all(ctx, "prefill_backward", ran, 2);
}

static gdn_status launch_all(gdn_ctx *ctx, struct planned *p, void *stream)
{
    enum { WARPS = 8 };
    struct gdn_cu_backward *a = &p->args;
    if (wants_state_alone(a))
        return a->n_blocks ? launch_parts(ctx, p, stream) : launch_state_alone(ctx, a, stream);
    struct gdn_cuda_ran ran = { .n = 5,
                                .kernels = {
                                    GDN_CU_backward_general_load, GDN_CU_backward_general_forward,
                                    GDN_CU_backward_general_reverse, GDN_CU_backward_general_chunk,
                                    GDN_CU_backward_general_store } };
    if (a->n_blocks)
        ran = (struct gdn_cuda_ran){ .n = 3,
                                     .kernels = { mma_prepare(a), mma_walks(a), mma_heads(a) } };
    TRY(launch_plan(ctx, a, &ran, stream));
    if (is_by_prefill(a)) {
        const struct gdn_cu_rule first = first_pass(a);
        p->first.memory = a->scratch;
        TRY(gdn_cuda_prefill_sm90(ctx, &first, &p->first, &ran, stream));
    }
    const int64_t n_first = gdn_windows_have_states(a) && !a->starts_every ? a->n_windows - 1 : 0;
    for (int64_t i = 0; i < n_first; i++) TRY(launch_window(ctx, a, i, false, stream));
    for (int64_t i = a->n_windows - 1; i >= 0; i--) TRY(launch_window(ctx, a, i, true, stream));
    if (has_rest(a)) {
        gdn_cuda_ran_add(&ran, GDN_CU_backward_general_rest);
        TRY(launch(ctx, a, GDN_CU_backward_general_rest, ceil_of(a->n_tokens, WARPS), 0, stream));
    }
    if (has_sums(a)) {
        gdn_cuda_ran_add(&ran, GDN_CU_backward_general_sums);
        TRY(launch(ctx, a, GDN_CU_backward_general_sums, a->rule.H, 0, stream));
    }
    return gdn_cuda_note_all(ctx, "prefill_backward", ran.kernels, ran.n);
}

static bool is_family(enum gdn_backward_form form)
{
    return form == GDN_BACKWARD_CHUNKS || form == GDN_BACKWARD_CHANNELS;
}

static gdn_status plan_prefill_backward(gdn_ctx *ctx, void *call)
{
    struct gdn_backward_call *c = call;
    struct planned *p = GDN_PLANNED(struct planned, &c->base);
    const struct gdn_cu_backward base = base_of(c);
    p->form = gdn_cuda_backward_form(ctx, &base);
    if (is_family(p->form)) {
        const bool chunks = p->form == GDN_BACKWARD_CHUNKS;
        c->base.bytes = gdn_cuda_channels_plan(ctx, &c->work, &base, chunks, &p->channels);
        return GDN_OK;
    }
    p->args = base;
    p->options = gdn_cuda_cut_options_of(c->args.flags, &c->plan.batch);
    plan_gdn(ctx, c, p);
    c->base.bytes = lay_out(p, NULL);
    return GDN_OK;
}

/* Returns true if full chunks of a gradient may be stored by its map. */
static bool is_stored_by_map(const struct gdn_cu_backward *a, const struct gdn_rows *to)
{
    return to->data && to->dtype == a->q.dtype && !a->adds &&
           gdn_cuda_is_mapped(to, &a->rule.batch, a->rule.Hk);
}

/* Finds the maps of tensors on Hopper. */
static gdn_status find_maps(gdn_ctx *ctx, struct gdn_cu_backward *a)
{
    enum { V = GDN_CUDA_MAP_BACK, DOUT, DQ, DK };
    const struct gdn_cu_rule *r = &a->rule;
    const struct gdn_cu_batch *b = &r->batch;
    TRY(gdn_cuda_find_map(ctx, "v", V, &r->v, b, r->H, r->V, &a->v_map));
    TRY(gdn_cuda_find_map(ctx, "dout", DOUT, &a->dout, b, r->H, r->V, &a->dout_map));
    if (has_key_maps(a)) { /* as calls of gdn_prefill have them */
        TRY(gdn_cuda_find_map(ctx, "q", 0, &a->q, b, r->Hq, r->K, &a->q_map));
        TRY(gdn_cuda_find_map(ctx, "k", 1, &a->k, b, r->Hk, r->K, &a->k_map));
    }
    a->maps_out = 0;
    if (!is_fused(a)) return GDN_OK;
    if (is_stored_by_map(a, &a->dk)) {
        TRY(gdn_cuda_find_map(ctx, "dk", DK, &a->dk, b, r->Hk, r->K, &a->dk_map));
        a->maps_out |= 1;
    }
    if (is_stored_by_map(a, &a->dq)) {
        TRY(gdn_cuda_find_map(ctx, "dq", DQ, &a->dq, b, r->Hq, r->K, &a->dq_map));
        a->maps_out |= 2;
    }
    return GDN_OK;
}

static gdn_status run_gdn(gdn_ctx *ctx, struct planned *p, void *memory, void *stream)
{
    struct gdn_cu_backward *a = &p->args;
    lay_out(p, memory);
    if (p->form == GDN_BACKWARD_SM90) TRY(find_maps(ctx, a));
    return launch_all(ctx, p, stream);
}

static gdn_status run_prefill_backward(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_backward_call *c = call;
    struct planned *p = GDN_PLANNED(struct planned, &c->base);
    const struct gdn_plan_pools pools = { -1, -1, c->pools.checkpoint, false, false };
    const bool by_channels = is_family(p->form);
    TRY(gdn_cuda_check_batch(ctx, &c->plan, &c->tokens, &pools, c->base.stream));
    gdn_cuda_backward_log(ctx, by_channels ? &p->channels.base : &p->args, p->form);
    return by_channels ? gdn_cuda_channels_run(ctx, &p->channels, memory, c->base.stream)
                       : run_gdn(ctx, p, memory, c->base.stream);
}

const struct gdn_op_backend gdn_cuda_op_prefill_backward = { plan_prefill_backward,
                                                             run_prefill_backward };
