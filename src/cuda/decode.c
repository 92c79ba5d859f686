/* SPDX-License-Identifier: Apache-2.0 */
#include "ops.h"
#include "tree.h"

enum {
    COLUMNS   = 32,   /* of V: a block's part of a state (decode_tokens.cuh) */
    MOST_ROWS = 65535, /* of a grid, in its second dimension */
    TREE_TOKEN_BYTES = 6 * 4 + 8 /* a node and a visit (tree.cuh) */
};

/* A place in tables of kernels by the largest K. */
static int size_of(int K) { return K <= 64 ? 0 : K <= 128 ? 1 : 2; }

#define SIZES(name) name##_64, name##_128, name##_256

/* The kernel for the layout, a dtype or (wide false) any, and the size of K. */
static enum gdn_kernel_id kernel_of(bool k_first, int dtype, bool wide, int K)
{
#define DTYPES(name)                                                                          \
    { { SIZES(name##_F32) }, { SIZES(name##_BF16) }, { SIZES(name##_F16) }, { SIZES(name##_ANY) } }
    static const enum gdn_kernel_id kernels[2][4][3] = { DTYPES(GDN_CU_decode_vk),
                                                         DTYPES(GDN_CU_decode_kv) };
    return kernels[k_first][wide ? dtype : 3][size_of(K)];
}

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

/* All is, and the pools are of one dtype. */
static bool is_wide(const struct gdn_cu_rule *r, const struct gdn_pool_view *like)
{
    const bool other = (r->from.data && r->from.dtype != like->dtype) ||
                       (r->checkpoints.data && r->checkpoints.dtype != like->dtype);
    return !other && what_is_wide(r, like) == GDN_CU_WIDE_ALL;
}

static bool is_simple(const struct gdn_cu_batch *b)
{
    return !b->has_initial_state.data && !b->num_accepted_tokens.data && !b->token_start.data &&
           !b->token_count.data && b->checkpoint_pool < 0 && b->pad_policy != GDN_PAD_SINK;
}

/* The view that a state is rounded as; absent ones are as if of float32, with rows of v. */
static const struct gdn_pool_view *like_of(const struct gdn_cu_rule *r)
{
    return r->to.data ? &r->to : &r->from;
}

static struct gdn_cu_decode decode_args(const struct gdn_cu_rule *r)
{
    return (struct gdn_cu_decode){
        .rule     = *r,
        .n_parts  = (r->V + COLUMNS - 1) / COLUMNS,
        .rounding = r->exact ? like_of(r)->dtype : GDN_F32,
        .simple   = is_simple(&r->batch),
    };
}

/* Sequences; one more zeroes what is behind the last one. */
static int64_t n_sequences(const struct gdn_cu_rule *r)
{
    return r->batch.B + (r->out.data && r->batch.cu_seqlens.data);
}

/* ---- Walks (decode_walk.cuh) --------------------------------------------------------------- */

static bool is_walked(const struct gdn_cu_rule *r)
{
    return r->batch.parents.data || r->record_k.data || gdn_is_eight(r->from.dtype) ||
           gdn_is_eight(r->to.dtype) || gdn_is_eight(r->checkpoints.dtype);
}

static enum gdn_kernel_id walk_of(bool k_first, int K)
{
    static const enum gdn_kernel_id kernels[2][3] = { { SIZES(GDN_CU_decode_walk_vk) },
                                                      { SIZES(GDN_CU_decode_walk_kv) } };
    return kernels[k_first][size_of(K)];
}

/* What blocks need of a tree: as many tokens as a sequence may have, and their states. */
static void plan_tree(const gdn_ctx *ctx, struct gdn_cu_walk *a, int64_t *n_blocks)
{
    const struct gdn_cu_rule *r    = &a->decode.rule;
    const int64_t             T    = r->batch.cu_seqlens.data ? r->batch.N : r->batch.T;
    const int64_t             most = 4 * (int64_t)ctx->cuda->sm_count; /* at a time, at most */
    const int64_t             tile = (int64_t)sizeof(float) * COLUMNS * (64 << size_of(r->K));
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
    struct gdn_cu_walk a = { .decode = decode_args(r), .wide = what_is_wide(r, like_of(r)) };
    a.n_pieces = n_sequences(r) * r->H * a.decode.n_parts;
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
        .kernel   = walk_of(like_of(r)->k_first, r->K),
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

/* ---- Decode -------------------------------------------------------------------------------- */

gdn_status gdn_cuda_decode(gdn_ctx *ctx, const char *op, const struct gdn_cu_rule *args,
                           void *memory, void *stream)
{
    const struct gdn_pool_view *like = like_of(args);
    if (is_walked(args)) {
        int64_t            n_blocks;
        struct gdn_cu_walk w = walk_args(ctx, args, &n_blocks);
        w.memory             = memory;
        return walk(ctx, op, &w, n_blocks, stream);
    }
    const struct gdn_cu_decode a = decode_args(args);
    const int64_t              n = n_sequences(args), rows = n < MOST_ROWS ? n : MOST_ROWS;
    const struct gdn_cuda_call call = {
        .kernel   = kernel_of(like->k_first, like->dtype, is_wide(args, like), args->K),
        .grid     = { (int64_t)args->H * a.n_parts, rows, rows ? (n + rows - 1) / rows : 0 },
        .stream   = stream,
        .args     = &a,
        .overlaps = true,
    };
    TRY(gdn_cuda_launch(ctx, &call));
    return gdn_cuda_note(ctx, op, call.kernel);
}
