/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_prefill_backward of the family: windows, memory and launches, of both forms; see channels.cu
 * and chunks/run.cuh. */
#include "cuda/backward/channels/channels.h"

#include "cuda/backward/chunks/args.h"
#include "cuda/backward/windows.h"

/* LEAST_WINDOW: the least chunks of a window, even if these take more memory than wanted, because
 * all windows but one are walked through twice. */
enum { LEAST_WINDOW = 64, WIDE = 64, DEEP = 128 };

/* Returns true if the call goes by chunks on tensor cores. most_keys() then returns the most of
 * K. */
static bool is_by_chunks(const struct gdn_cu_backward_channels *a)
{
    return a->base.walk_bytes != 0;
}
static int deep_of(const struct gdn_cu_backward_channels *a)
{
    return a->base.rule.K <= DEEP / 2 ? DEEP / 2 : DEEP;
}

/* Return the pieces of a chunk, and the bytes of their states. */
static int64_t pieces(const struct gdn_cu_backward_channels *a)
{
    return GDN_CU_BACKWARD_CHUNK / a->tokens;
}
static int64_t state_bytes(const struct gdn_cu_backward_channels *a)
{
    const int V = a->base.rule.V;
    if (is_by_chunks(a)) return (int64_t)deep_of(a) * GDN_CHUNKS_COLUMNS(V) * 4;
    return (int64_t)a->ld * V * 4;
}

/* Returns rows in memory: n_heads heads of n numbers. */
static struct gdn_rows rows(int64_t n_heads, int64_t n)
{
    return (struct gdn_rows){ .dtype = GDN_F32, .token = n_heads * n * 4, .head = n * 4 };
}

/* Returns how many numbers of dt_bias a head has. */
static int64_t channels(const struct gdn_cu_backward_channels *a)
{
    return a->base.rule.family.g_rows ? a->base.rule.K : 1;
}

/* Returns the tokens of a piece: a power of two, at least 2. */
static int piece_tokens(int n_updates)
{
    int tokens = GDN_CU_PIECE;
    while (tokens * n_updates > GDN_CU_PIECE) tokens /= 2;
    return tokens;
}

static bool has_sums(const struct gdn_cu_backward_channels *a)
{
    return a->base.dA_log.data || a->base.ddt_bias.data;
}

/* Returns true if the gradient of the initial states is the only one. It needs no states. */
static bool wants_state_alone(const struct gdn_cu_backward_channels *a)
{
    const struct gdn_cu_backward *b = &a->base;
    return !b->dq.data && !b->dk.data && !b->dv.data && !b->dg.data && !b->dbeta.data &&
           !a->dwrite.data && !has_sums(a);
}

/* Returns the bytes of a record of chunks. */
static int32_t record_bytes(const struct gdn_cu_backward_channels *a)
{
    const struct gdn_cu_rule *r = &a->base.rule;
    return GDN_CHUNKS_BYTES(deep_of(a), r->V, r->family.write.data != NULL);
}

/* Finds the bytes of a chunk: of a state head, and of a head of k and q. */
static void size_chunk(struct gdn_cu_backward_channels *a)
{
    const struct gdn_cu_rule *r = &a->base.rule;
    const int64_t tokens = GDN_CU_BACKWARD_CHUNK, n = tokens * a->n_updates, row = 4 * a->ld;
    if (is_by_chunks(a)) {
        a->base.record_bytes = record_bytes(a) + (int32_t)(4 * tokens * row + tokens * 4 * r->V);
        return;
    }
    a->base.record_bytes =
        (int32_t)(2 * pieces(a) * state_bytes(a) + 2 * (tokens + n) * row + 2 * n * 4 * r->V);
    a->base.key_bytes = (int32_t)((n + tokens * r->Hq / r->Hk) * row);
}

/* Gives chunks as much shared memory as walks use and the device has. Sets the form of rows in
 * memory. */
static void begin_chunks(const gdn_ctx *ctx, struct gdn_cu_backward_channels *a)
{
    const int most = deep_of(a) == DEEP ? GDN_CU_WALKS_128 : GDN_CU_WALKS_64;
    const int least = GDN_CHUNKS_WAY_BYTES + GDN_CHUNKS_STAGE_BYTES(deep_of(a));
    a->base.walk_bytes = ctx->cuda->shared_most >= most ? most : least;
    a->base.n_strips = (int32_t)ceil_of(a->base.rule.V, WIDE);
}

static struct gdn_cu_backward_channels args_of(const gdn_ctx *ctx, const struct gdn_backward *w,
                                               const struct gdn_cu_backward *base, bool chunks)
{
    struct gdn_cu_backward_channels a = {
        .base = *base,
        .dwrite = w->dwrite,
        .dk_update = w->dk_update,
        .dv_update = w->dv_update,
        .dbeta_update = w->dbeta_update,
        .dwrite_update = w->dwrite_update,
        .dg_channel = w->dg_channel,
        .dbeta_channel = w->dbeta_channel,
        .ld = (w->rule.K + 3) / 4 * 4,
        .n_updates = gdn_rule_updates(&w->rule),
    };
    struct gdn_cu_rule *r = &a.base.rule;
    a.tokens = piece_tokens(a.n_updates);
    a.base.q = r->q, a.base.k = r->k;
    if (chunks)
        begin_chunks(ctx, &a);
    else
        r->q = rows(r->Hq, a.ld), r->k = rows(r->Hk, a.ld);
    a.base.u = a.base.z = rows(r->H, r->V);
    a.base.head_dq = a.base.head_dk = a.a = a.e = rows(r->H, a.ld);
    r->batch.checkpoint_pool = -1;
    a.base.n_blocks = ctx->cuda->sm_count;
    size_chunk(&a);
    gdn_windows_cut(ctx, &a.base, (struct gdn_windows_limits){ LEAST_WINDOW, w->window_mib });
    if (chunks) a.base.record_bytes = record_bytes(&a);
    return a;
}

static size_t lay_out(struct gdn_cu_backward_channels *a, char *memory)
{
    struct gdn_cu_backward *b = &a->base;
    const struct gdn_cu_rule *r = &b->rule;
    const size_t chunks = (size_t)b->n_chunks, H = (size_t)r->H, V = (size_t)r->V;
    const size_t tokens = chunks * GDN_CU_BACKWARD_CHUNK, n = tokens * (size_t)a->n_updates;
    const size_t row = 4 * (size_t)a->ld, state = H * (size_t)state_bytes(a);
    const size_t states = chunks * (size_t)pieces(a) * state;
    const size_t sums = chunks * H * (size_t)(1 + channels(a)) * sizeof *b->sums;
    const struct gdn_room rooms[] = {
        { &b->rule.q.data, tokens * (size_t)r->Hq * row },
        { &b->rule.k.data, n * (size_t)r->Hk * row },
        { &a->a.data, tokens * H * row },
        { &a->e.data, n * H * row },
        { &a->flags, n * H * sizeof *a->flags },
        { &b->u.data, 4 * n * H * V },
        { &b->z.data, 4 * n * H * V },
        { &b->head_dq.data, tokens * H * row },
        { &b->head_dk.data, n * H * row },
        { &b->S.data, states },
        { &b->J.data, states },
        { &b->starts.data, (size_t)gdn_windows_starts(b) * state },
        { &b->carry.data, (size_t)gdn_windows_carried(b) * state },
        { &b->plan, (size_t)gdn_windows_planned(b) * sizeof *b->plan },
        { &b->sums, has_sums(a) ? sums : 0 },
    };
    const size_t all = wants_state_alone(a) ? 0 : 1;
    const struct gdn_room chunk_rooms[] = {
        { &b->records, chunks * H * (size_t)b->record_bytes },
        { &a->a.data, all * tokens * H * row },
        { &a->e.data, all * tokens * H * row },
        { &b->z.data, all * 4 * tokens * H * V },
        { &b->head_dq.data, all * tokens * H * row },
        { &b->head_dk.data, all * tokens * H * row },
        { &b->starts.data, (size_t)gdn_windows_starts(b) * state },
        { &b->carry.data, (size_t)gdn_windows_carried(b) * state },
        { &b->plan, (size_t)gdn_windows_planned(b) * sizeof *b->plan },
        { &b->sums, has_sums(a) ? sums : 0 },
    };
    const size_t bytes =
        is_by_chunks(a)
            ? gdn_lay_out_rooms(chunk_rooms, sizeof chunk_rooms / sizeof *chunk_rooms, memory)
            : gdn_lay_out_rooms(rooms, sizeof rooms / sizeof *rooms, memory);
    if (is_by_chunks(a) && !all) b->z.data = NULL;
    if (!has_sums(a)) b->sums = NULL;
    if (!gdn_windows_go_through(b)) b->plan = NULL;
    return bytes;
}

size_t gdn_cuda_channels_plan(const gdn_ctx *ctx, const struct gdn_backward *work,
                              const struct gdn_cu_backward *base, bool chunks,
                              struct gdn_cu_backward_channels *args)
{
    *args = args_of(ctx, work, base, chunks);
    return lay_out(args, NULL);
}

enum { WALK_BOTH = GDN_CU_WALK_FORWARD | GDN_CU_WALK_REVERSE };

/* ---- Launches ------------------------------------------------------------------------------ */

/* A call's launches. */
struct launches {
    gdn_ctx *ctx;
    struct gdn_cu_backward_channels *a;
    struct gdn_cuda_ran ran;
    void *stream;
};

static gdn_status launch_shared(struct launches *l, enum gdn_kernel_id kernel, int64_t n_blocks,
                                size_t shared_bytes)
{
    const struct gdn_cuda_call call = {
        .kernel = kernel,
        .grid = { n_blocks, 1, 1 },
        .shared_bytes = shared_bytes,
        .stream = l->stream,
        .args = l->a,
    };
    gdn_cuda_ran_add(&l->ran, kernel);
    return gdn_cuda_launch(l->ctx, &call);
}
static gdn_status launch(struct launches *l, enum gdn_kernel_id kernel, int64_t n_blocks)
{
    return launch_shared(l, kernel, n_blocks, 0);
}

static gdn_status launch_walk(struct launches *l, bool reverse)
{
    static const enum gdn_kernel_id walks[][2] = {
        { GDN_CU_backward_channels_walk_forward_128, GDN_CU_backward_channels_walk_reverse_128 },
        { GDN_CU_backward_channels_walk_forward_256, GDN_CU_backward_channels_walk_reverse_256 }
    };
    const struct gdn_cu_backward *b = &l->a->base;
    const bool deep = b->rule.K > DEEP;
    return launch_shared(l, walks[deep][reverse], b->n_parts * b->rule.H * b->n_strips,
                         deep ? GDN_CU_CHANNELS_DEEP_BYTES : GDN_CU_CHANNELS_WALK_BYTES);
}

static gdn_status launch_rows(struct launches *l)
{
    const struct gdn_cu_backward *b = &l->a->base;
    const int64_t blocks = b->n_chunks * GDN_CU_ROW_BLOCKS;
    TRY(launch(l, GDN_CU_backward_channels_load, blocks * (b->rule.Hq + b->rule.Hk)));
    return launch(l, GDN_CU_backward_channels_gates, blocks * b->rule.H);
}

/* Launches T, P and keys of a window, then its walks, all by chunks. */
static gdn_status launch_chunks(struct launches *l, int32_t walks)
{
    static const enum gdn_kernel_id kernels[][2] = {
        { GDN_CU_backward_chunks_prepare_BF16_64, GDN_CU_backward_chunks_walks_BF16_64 },
        { GDN_CU_backward_chunks_prepare_BF16_128, GDN_CU_backward_chunks_walks_BF16_128 }
    };
    struct gdn_cu_backward *b = &l->a->base;
    const bool deep = deep_of(l->a) == DEEP, both = walks == WALK_BOTH;
    const int64_t n_walks = b->n_parts * b->rule.H * b->n_strips;
    b->walks = walks;
    TRY(launch_shared(l, kernels[deep][0], b->n_chunks * b->rule.H,
                      deep ? GDN_CU_CHUNKS_128 : GDN_CU_CHUNKS_64));
    return launch_shared(l, kernels[deep][1], (both ? 2 : 1) * n_walks, (size_t)b->walk_bytes);
}

/* Launches a window up to the state after it. */
static gdn_status launch_forward(struct launches *l, int64_t window)
{
    l->a->base.window = window;
    if (is_by_chunks(l->a)) return launch_chunks(l, GDN_CU_WALK_FORWARD);
    TRY(launch_rows(l));
    return launch_walk(l, false);
}

/* Launch the gradients of each state head, as rows: by chunks, or token by token. */
static gdn_status launch_heads_by_chunks(struct launches *l, bool alone)
{
    const struct gdn_cu_backward *b = &l->a->base;
    const bool deep = deep_of(l->a) == DEEP;
    TRY(launch_chunks(l, alone ? GDN_CU_WALK_REVERSE : WALK_BOTH));
    if (alone) return GDN_OK;
    return launch_shared(
        l, deep ? GDN_CU_backward_chunks_heads_BF16_128 : GDN_CU_backward_chunks_heads_BF16_64,
        b->n_chunks * b->rule.H, deep ? GDN_CU_HEADS_128 : GDN_CU_HEADS_64);
}
static gdn_status launch_heads(struct launches *l, bool alone)
{
    const struct gdn_cu_backward_channels *a = l->a;
    const struct gdn_cu_rule *r = &a->base.rule;
    const int64_t slices = ceil_of(r->K, WIDE);
    TRY(launch_rows(l));
    if (!alone) TRY(launch_walk(l, false));
    TRY(launch_walk(l, true));
    if (alone) return GDN_OK;
    return launch(l, GDN_CU_backward_channels_pieces, a->base.n_chunks * pieces(a) * r->H * slices);
}

/* Launches the gradients of a window. */
static gdn_status launch_window(struct launches *l, int64_t window, bool alone)
{
    const struct gdn_cu_rule *r = &l->a->base.rule;
    const int64_t chunks = l->a->base.n_chunks;
    l->a->base.window = window;
    TRY(is_by_chunks(l->a) ? launch_heads_by_chunks(l, alone) : launch_heads(l, alone));
    if (alone) return GDN_OK;
    TRY(launch(l, GDN_CU_backward_channels_store, chunks * (r->Hq + r->Hk + r->Hv)));
    TRY(launch(l, GDN_CU_backward_channels_betas, chunks * r->H));
    return launch(l, GDN_CU_backward_channels_given, chunks * r->H);
}

/* Returns true if there may be masked tokens. Their gradients are zero. */
static bool has_rest(const struct gdn_cu_backward *a)
{
    const struct gdn_cu_batch *b = &a->rule.batch;
    return !a->adds && (b->cu_seqlens.data || b->token_start.data || b->token_count.data);
}

static gdn_status launch_all(struct launches *l)
{
    enum { THREADS = 256, WARPS = 8 };
    struct gdn_cu_backward *b = &l->a->base;
    const bool alone = wants_state_alone(l->a);
    const int64_t n_first = !alone && gdn_windows_have_states(b) ? b->n_windows - 1 : 0;
    if (b->plan) TRY(launch(l, GDN_CU_backward_general_plan, ceil_of(b->rule.batch.B, THREADS)));
    for (int64_t i = 0; i < n_first; i++) TRY(launch_forward(l, i));
    for (int64_t i = b->n_windows - 1; i >= 0; i--) TRY(launch_window(l, i, alone));
    if (has_rest(b) && !alone)
        TRY(launch(l, GDN_CU_backward_channels_rest, ceil_of(b->n_tokens, WARPS)));
    if (has_sums(l->a))
        TRY(launch(l, GDN_CU_backward_channels_sums, b->rule.H * (1 + channels(l->a))));
    return gdn_cuda_note_all(l->ctx, "prefill_backward", l->ran.kernels, l->ran.n);
}

gdn_status gdn_cuda_channels_run(gdn_ctx *ctx, struct gdn_cu_backward_channels *args, void *memory,
                                 void *stream)
{
    struct launches l = { .ctx = ctx, .a = args, .stream = stream };
    lay_out(args, memory);
    return launch_all(&l);
}
