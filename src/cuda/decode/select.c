/* SPDX-License-Identifier: Apache-2.0 */
#include "batch/tree.h"
#include "cuda/decode/select.h"

enum {
    COLUMNS = 32, /* of V: a block's part of a state (general_tokens.cuh) */
    TREE_TOKEN_BYTES = 6 * 4 + 8 /* a node and a visit (tree.cuh) */
};

int gdn_cuda_size(int K) { return K <= 64 ? 0 : K <= 128 ? 1 : 2; }

/* Can the pool, if there is one, be read and written in chunks of four by a kernel for states
 * k-first or not? */
static bool is_wide_pool(const struct gdn_pool_view *view, bool k_first, int columns)
{
    const int64_t chunk = 4 * (int64_t)gdn_dtype_bytes(view->dtype);
    if (!view->data) return true;
    return view->k_first == k_first && (uintptr_t)view->data % (uintptr_t)chunk == 0 &&
           columns % 4 == 0 && view->slot % 4 == 0 && view->head % 4 == 0 && view->ld % 4 == 0;
}

/* The same of rows of q or k. */
static bool are_wide_rows(const struct gdn_rows *rows, int K)
{
    const int64_t chunk = 4 * (int64_t)gdn_dtype_bytes(rows->dtype);
    return K % 4 == 0 && (uintptr_t)rows->data % (uintptr_t)chunk == 0 &&
           rows->batch % chunk == 0 && rows->token % chunk == 0 && rows->head % chunk == 0;
}

/* GDN_CU_WIDE_... of a call whose states are as `like` lies. */
static int what_is_wide(const struct gdn_cu_rule *r, const struct gdn_pool_view *like)
{
    const bool k_first = like->k_first;
    const int  columns = k_first ? r->V : r->K;
    return (is_wide_pool(&r->from, k_first, columns) ? GDN_CU_WIDE_FROM : 0) |
           (is_wide_pool(&r->to, k_first, columns) ? GDN_CU_WIDE_TO : 0) |
           (is_wide_pool(&r->checkpoints, k_first, columns) ? GDN_CU_WIDE_CHECKPOINTS : 0) |
           (are_wide_rows(&r->q, r->K) && are_wide_rows(&r->k, r->K) ? GDN_CU_WIDE_ROWS : 0);
}

static bool is_simple(const struct gdn_cu_batch *b)
{
    return !b->has_initial_state.data && !b->num_accepted_tokens.data && !b->token_start.data &&
           !b->token_count.data && b->checkpoint_pool < 0 && b->pad_policy != GDN_PAD_SINK;
}

const struct gdn_pool_view *gdn_cuda_like(const struct gdn_cu_rule *r)
{
    return r->to.data ? &r->to : &r->from;
}

static struct gdn_cu_decode decode_args(const struct gdn_cu_rule *r)
{
    return (struct gdn_cu_decode){
        .rule     = *r,
        .n_parts  = (r->V + COLUMNS - 1) / COLUMNS,
        .rounding = r->exact ? gdn_cuda_like(r)->dtype : GDN_F32,
        .simple   = is_simple(&r->batch),
    };
}

int64_t gdn_cuda_sequences(const struct gdn_cu_rule *r)
{
    return r->batch.B + (r->out.data && r->batch.cu_seqlens.data);
}

/* ---- Walks (walk.cuh) --------------------------------------------------------------- */

static bool is_walked(const struct gdn_cu_rule *r)
{
    return r->batch.parents.data || r->record_k.data || gdn_is_eight(r->from.dtype) ||
           gdn_is_eight(r->to.dtype) || gdn_is_eight(r->checkpoints.dtype);
}

static enum gdn_kernel_id walk_of(bool k_first, int K)
{
    static const enum gdn_kernel_id kernels[2][3] = { { SIZES(GDN_CU_decode_walk_vk) },
                                                      { SIZES(GDN_CU_decode_walk_kv) } };
    return kernels[k_first][gdn_cuda_size(K)];
}

/* What blocks need of a tree: as many tokens as a sequence may have, and their states. */
static void plan_tree(const gdn_ctx *ctx, struct gdn_cu_walk *a, int64_t *n_blocks)
{
    const struct gdn_cu_rule *r    = &a->decode.rule;
    const int64_t             T    = r->batch.cu_seqlens.data ? r->batch.N : r->batch.T;
    const int64_t             most = 4 * (int64_t)ctx->cuda->sm_count; /* at a time, at most */
    const int64_t             tile = (int64_t)sizeof(float) * COLUMNS * (64 << gdn_cuda_size(r->K));
    a->most_tokens = T < r->batch.parents.n_columns ? T : r->batch.parents.n_columns;
    a->n_levels    = gdn_tree_levels(a->most_tokens) - 1;
    a->block_bytes = a->n_levels * tile;
    if (a->most_tokens > GDN_CU_TREE_ON_CHIP)
        a->block_bytes += (int64_t)gdn_align64((size_t)(a->most_tokens + 1) * TREE_TOKEN_BYTES);
    if (*n_blocks > most) *n_blocks = most;
}

static struct gdn_cu_walk walk_args(const gdn_ctx *ctx, const struct gdn_cu_rule *r,
                                    int64_t *n_blocks)
{
    struct gdn_cu_walk a = { .decode = decode_args(r), .wide = what_is_wide(r, gdn_cuda_like(r)) };
    a.n_pieces = gdn_cuda_sequences(r) * r->H * a.decode.n_parts;
    *n_blocks  = a.n_pieces < INT32_MAX ? a.n_pieces : INT32_MAX;
    if (r->batch.parents.data) plan_tree(ctx, &a, n_blocks);
    return a;
}

size_t gdn_cuda_decode_bytes(const gdn_ctx *ctx, const struct gdn_cu_rule *args)
{
    int64_t n_blocks;
    if (!args->batch.parents.data) return 0;
    const struct gdn_cu_walk a = walk_args(ctx, args, &n_blocks);
    return (size_t)(a.block_bytes * n_blocks);
}

static gdn_status walk(gdn_ctx *ctx, const char *op, const struct gdn_cu_walk *a, int64_t n_blocks,
                       void *stream)
{
    const struct gdn_cu_rule  *r    = &a->decode.rule;
    const struct gdn_cuda_call call = {
        .kernel   = walk_of(gdn_cuda_like(r)->k_first, r->K),
        .grid     = { n_blocks, 1, 1 },
        .stream   = stream,
        .args     = a,
        .overlaps = true,
    };
    TRY(gdn_cuda_launch(ctx, &call));
    return gdn_cuda_note(ctx, op, call.kernel);
}

gdn_status gdn_cuda_fold(gdn_ctx *ctx, const struct gdn_cu_rule *args, void *stream)
{
    int64_t            n_blocks;
    struct gdn_cu_walk a = walk_args(ctx, args, &n_blocks);
    a.fold               = true;
    return walk(ctx, "record_fold", &a, n_blocks, stream);
}

/* ---- Warps (warp.cuh) --------------------------------------------------------------- */

enum { MOST_WARPS = 4, /* of a block */
       FEW_COLUMNS = 64, FEW_ROWS = 32 };

/* Can a warp read and write states and rows in whole, aligned pieces, of one dtype and layout? */
static bool is_even_pool(const struct gdn_pool_view *view, const struct gdn_pool_view *like,
                         const struct gdn_cu_rule *r)
{
    const int64_t bytes = (int64_t)gdn_dtype_bytes(like->dtype);
    const int64_t piece = like->k_first ? 16 / bytes : 4;
    if (!view->data) return true;
    return view->dtype == like->dtype && view->k_first == like->k_first &&
           (uintptr_t)view->data % (uintptr_t)(piece * bytes) == 0 && view->slot % piece == 0 &&
           view->head % piece == 0 && view->ld % piece == 0 &&
           (like->k_first ? r->V : r->K) % piece == 0;
}

bool gdn_cuda_is_near(int64_t step, int64_t n)
{
    return step >= INT32_MIN / n && step <= INT32_MAX / n;
}

bool gdn_cuda_are_near(const struct gdn_rows *r)
{
    return !r->data || (gdn_cuda_is_near(r->batch, 1) && gdn_cuda_is_near(r->token, 1) &&
                        gdn_cuda_is_near(r->head, 1));
}

bool gdn_cuda_is_near_vector(const struct gdn_cu_array *a)
{
    return !a->data || gdn_cuda_is_near(a->stride[0], 4);
}

/* Kernels go from line to line of a state by 32 bits. */
static bool is_near_pool(const struct gdn_pool_view *p)
{
    return !p->data || (gdn_cuda_is_near(p->slot, 4) && gdn_cuda_is_near(p->head, 4) &&
                        gdn_cuda_is_near(p->ld, 4 * MOST_LINES));
}

static bool are_near(const struct gdn_cu_rule *r)
{
    return gdn_cuda_are_near(&r->q) && gdn_cuda_are_near(&r->k) && gdn_cuda_are_near(&r->v) &&
           gdn_cuda_are_near(&r->g) && gdn_cuda_are_near(&r->beta) &&
           gdn_cuda_are_near(&r->out) && is_near_pool(&r->from) && is_near_pool(&r->to) &&
           gdn_cuda_is_near_vector(&r->A_log) && gdn_cuda_is_near_vector(&r->dt_bias);
}

bool gdn_cuda_takes_warps(const struct gdn_cu_rule *r)
{
    const struct gdn_cu_batch  *b    = &r->batch;
    const struct gdn_pool_view *like = gdn_cuda_like(r);
    return is_even_pool(&r->from, like, r) && is_even_pool(&r->to, like, r) &&
           !gdn_is_eight(like->dtype) && !b->token_start.data && !b->token_count.data &&
           b->checkpoint_pool < 0 && b->pad_policy != GDN_PAD_SINK && !b->parents.data &&
           !r->record_k.data && r->head_map == GDN_HEADS_GROUPED && b->B < INT32_MAX &&
           b->N <= INT32_MAX && b->T <= INT32_MAX && r->H <= 1024 && r->V <= 256 &&
           b->read_pool < INT32_MAX && b->write_pool < INT32_MAX && are_near(r);
}

struct gdn_cu_near gdn_cuda_near(const struct gdn_rows *r, const struct gdn_cu_batch *b)
{
    const int64_t row = b->cu_seqlens.data ? 0 : b->single ? r->token : b->padded ? r->batch : 0;
    return (struct gdn_cu_near){ r->data, r->dtype, (int32_t)row, (int32_t)r->token,
                                 (int32_t)r->head };
}

static struct gdn_cu_pool pool_of(const struct gdn_pool_view *p)
{
    const int64_t bytes = p->data ? (int64_t)gdn_dtype_bytes(p->dtype) : 0;
    return (struct gdn_cu_pool){ p->data, (int32_t)(p->slot * bytes), (int32_t)(p->head * bytes),
                                 (int32_t)(p->ld * bytes), 0 };
}

uint32_t gdn_cuda_inverse(int n) { return n == 1 ? 0 : (uint32_t)(((1ull << 32) + n - 1) / n); }

bool gdn_cuda_has_slots(const struct gdn_cu_warp *a)
{
    return a->B <= a->read_pool && (a->each || a->B <= a->write_pool);
}

/* Can rows be read in pieces of 16 bytes? */
static bool are_pieces(const struct gdn_cu_near *r)
{
    return (uintptr_t)r->data % 16 == 0 && r->row % 16 == 0 && r->token % 16 == 0 &&
           r->head % 16 == 0;
}

static bool is_pieces(const struct gdn_cu_pool *p)
{
    return (uintptr_t)p->data % 16 == 0 && p->slot % 16 == 0 && p->head % 16 == 0 &&
           p->row % 16 == 0;
}

/* Can all be read in whole tiles of such pieces, if q and k can? */
static bool is_whole(const struct gdn_cu_rule *r, const struct gdn_cu_warp *a)
{
    return !r->exact && (r->K == 64 || r->K == 128 || r->K == 256) &&
           r->V % WARP_COLUMNS == 0 && is_pieces(&a->from) && is_pieces(&a->to);
}

static bool are_bf16(const struct gdn_cu_rule *r)
{
    return r->k.dtype == GDN_BF16 && r->v.dtype == GDN_BF16;
}

struct gdn_cu_warp gdn_cuda_warp_args(const struct gdn_cu_rule *r)
{
    const struct gdn_cu_batch *b = &r->batch;
    struct gdn_cu_warp         a = {
        .q                   = gdn_cuda_near(&r->q, b),
        .k                   = gdn_cuda_near(&r->k, b),
        .v                   = gdn_cuda_near(&r->v, b),
        .g                   = gdn_cuda_near(&r->g, b),
        .beta                = gdn_cuda_near(&r->beta, b),
        .out                 = gdn_cuda_near(&r->out, b),
        .from                = pool_of(&r->from),
        .to                  = pool_of(&r->to),
        .cu_seqlens          = b->cu_seqlens,
        .read_slots          = b->read_slots,
        .write_slots         = b->write_slots,
        .has_initial_state   = b->has_initial_state,
        .num_accepted_tokens = b->num_accepted_tokens,
        .A_log               = r->A_log,
        .dt_bias             = r->dt_bias,
        .N                   = (int32_t)(b->cu_seqlens.data ? b->N : b->T),
        .read_pool           = b->read_pool < 0 ? INT32_MAX : (int32_t)b->read_pool,
        .write_pool          = b->write_pool < 0 ? INT32_MAX : (int32_t)b->write_pool,
        .B                   = (int32_t)b->B,
        .T                   = (int32_t)b->T,
        .K                   = r->K,
        .V                   = r->V,
        .each                = b->write == GDN_WRITE_EACH,
        .keep                = b->pad_policy == GDN_PAD_KEEP,
        .rounds              = r->exact,
        .group_q             = gdn_cuda_inverse(r->H / r->Hq),
        .group_k             = gdn_cuda_inverse(r->H / r->Hk),
        .group_v             = gdn_cuda_inverse(r->H / r->Hv),
        .gate                = r->gate,
        .beta_kind           = r->beta_kind,
        .norm                = r->norm,
        .norm_eps            = r->norm_eps,
        .scale               = r->scale,
        .bound               = r->bound,
    };
    if (b->write == GDN_WRITE_NONE) { /* and nobody asks where to */
        a.to.data          = NULL;
        a.write_slots.data = NULL;
        a.write_pool       = INT32_MAX;
    }
    a.plain    = !a.cu_seqlens.data && !a.read_slots.data && !a.write_slots.data &&
              !a.has_initial_state.data && !a.num_accepted_tokens.data && gdn_cuda_has_slots(&a);
    a.whole    = !a.each && is_whole(r, &a);
    a.products = a.whole && are_bf16(r);
    return a;
}

#define DTYPES(name) { { SIZES(name##_F32) }, { SIZES(name##_BF16) }, { SIZES(name##_F16) } }

static enum gdn_kernel_id warp_kernel(const struct gdn_pool_view *like, int K)
{
    static const enum gdn_kernel_id kernels[2][3][3] = { DTYPES(GDN_CU_decode_vk),
                                                         DTYPES(GDN_CU_decode_kv) };
    return kernels[like->k_first][like->dtype][gdn_cuda_size(K)];
}

bool gdn_cuda_is_whole(const struct gdn_cu_rule *r, const struct gdn_cu_warp *a)
{
    return is_whole(r, a) && are_pieces(&a->q) && are_pieces(&a->k);
}

/* By windows of tokens, on rows of v where states are all kept (window_vk.cuh); else of padded
 * rows more than four tokens, or, where rows are k, whole blocks (window_kv.cuh)? */
static bool takes_windows(const struct gdn_cu_rule *r, const struct gdn_cu_warp *a,
                          const struct gdn_pool_view *like)
{
    if (like->dtype == GDN_F16 || !are_bf16(r) || !gdn_cuda_is_whole(r, a)) return false;
    if (a->each) return !like->k_first;
    return !a->cu_seqlens.data &&
           (like->k_first ? a->T > 0 && a->V % FEW_COLUMNS == 0 : a->T > FEW_TOKENS);
}

static enum gdn_kernel_id windows_kernel(const struct gdn_pool_view *like, int K)
{
    static const enum gdn_kernel_id kernels[2][2][3] = {
        { { SIZES(GDN_CU_decode_windows_F32) }, { SIZES(GDN_CU_decode_windows_BF16) } },
        { { SIZES(GDN_CU_decode_few_F32) }, { SIZES(GDN_CU_decode_few_BF16) } },
    };
    return kernels[like->k_first][like->dtype == GDN_BF16][gdn_cuda_size(K)];
}

/* Warps of a block, for each `*columns` of it, and none beyond V: who reads whole tiles does not
 * ask. Few of them are spread over the whole device. */
static int warps_of(const gdn_ctx *ctx, const struct gdn_cu_rule *r, bool few, int64_t n,
                    int *columns)
{
    const int64_t parts = (r->V + WARP_COLUMNS - 1) / WARP_COLUMNS;
    int           n_warps = MOST_WARPS;
    while (n_warps > 1 &&
           (parts % n_warps != 0 || n * r->H * parts < n_warps * ctx->cuda->sm_count))
        n_warps /= 2;
    *columns = few ? FEW_COLUMNS : n_warps * WARP_COLUMNS;
    return few ? r->K / FEW_ROWS : n_warps;
}

static gdn_status decode_warps(gdn_ctx *ctx, const char *op, const struct gdn_cu_rule *r,
                               struct gdn_cu_warp a, void *stream)
{
    const struct gdn_pool_view *like = gdn_cuda_like(r);
    const int64_t n = gdn_cuda_sequences(r), rows = n < MOST_ROWS ? n : MOST_ROWS;
    const bool windows = takes_windows(r, &a, like);
    int        columns;
    const int  n_warps = warps_of(ctx, r, windows && like->k_first, n, &columns);
    a.n_rows      = (int32_t)n;
    a.n_blocks    = (int32_t)((r->V + columns - 1) / columns);
    a.head_blocks = gdn_cuda_inverse(a.n_blocks);
    const struct gdn_cuda_call call = {
        .kernel    = windows ? windows_kernel(like, r->K) : warp_kernel(like, r->K),
        .grid      = { (int64_t)r->H * a.n_blocks, rows, rows ? (n + rows - 1) / rows : 0 },
        .n_threads = 32 * n_warps,
        .stream    = stream,
        .args      = &a,
        .overlaps  = true,
    };
    TRY(gdn_cuda_launch(ctx, &call));
    return gdn_cuda_note(ctx, op, call.kernel);
}

/* ---- Decode -------------------------------------------------------------------------------- */

static enum gdn_kernel_id any_of(bool k_first, int K)
{
    static const enum gdn_kernel_id kernels[2][3] = { { SIZES(GDN_CU_decode_any_vk) },
                                                      { SIZES(GDN_CU_decode_any_kv) } };
    return kernels[k_first][gdn_cuda_size(K)];
}

gdn_status gdn_cuda_decode(gdn_ctx *ctx, const char *op, const struct gdn_cu_rule *args,
                           void *memory, void *stream)
{
    const struct gdn_pool_view *like = gdn_cuda_like(args);
    if (is_walked(args)) {
        int64_t            n_blocks;
        struct gdn_cu_walk w = walk_args(ctx, args, &n_blocks);
        w.memory             = memory;
        return walk(ctx, op, &w, n_blocks, stream);
    }
    if (are_wide_rows(&args->q, args->K) && are_wide_rows(&args->k, args->K) &&
        gdn_cuda_takes_warps(args)) {
        struct gdn_cu_warp a = gdn_cuda_warp_args(args);
        if (!are_pieces(&a.q) || !are_pieces(&a.k)) a.whole = a.products = false;
        const enum gdn_cuda_few few = gdn_cuda_few_of(args, &a);
        if (few != GDN_CUDA_MANY) return gdn_cuda_decode_few(ctx, op, args, &a, few, stream);
        return decode_warps(ctx, op, args, a, stream);
    }
    const struct gdn_cu_decode a = decode_args(args);
    const int64_t              n = gdn_cuda_sequences(args), rows = n < MOST_ROWS ? n : MOST_ROWS;
    const struct gdn_cuda_call call = {
        .kernel   = any_of(like->k_first, args->K),
        .grid     = { (int64_t)args->H * a.n_parts, rows, rows ? (n + rows - 1) / rows : 0 },
        .stream   = stream,
        .args     = &a,
        .overlaps = true,
    };
    TRY(gdn_cuda_launch(ctx, &call));
    return gdn_cuda_note(ctx, op, call.kernel);
}
