/* SPDX-License-Identifier: Apache-2.0 */
/* Launches the walk (walk.cuh): gdn_decode of trees, records and states of 8 bits, and
 * gdn_record_fold. The family has kernels of its own. */
#include "batch/tree.h"
#include "cuda/decode/select.h"

enum {
    TREE_TOKEN_BYTES = 6 * 4 + 8, /* a node and a visit (tree.cuh) */
    BLOCKS = 4                    /* of a multiprocessor at a time, at most */
};

/* Plans a tree: the most tokens of a sequence, and the memory for its states. */
static void plan_tree(const gdn_ctx *ctx, struct gdn_cu_walk *a, int64_t *n_blocks)
{
    const struct gdn_cu_rule *r = &a->decode.rule;
    const int64_t T = r->batch.cu_seqlens.data ? r->batch.N : r->batch.T;
    const int64_t most = BLOCKS * (int64_t)ctx->cuda->sm_count;
    const int64_t tile = (int64_t)sizeof(float) * GENERAL_COLUMNS * (64 << gdn_decode_size(r->K));
    a->most_tokens = T < r->batch.parents.n_columns ? T : r->batch.parents.n_columns;
    a->n_levels = gdn_tree_levels(a->most_tokens) - 1;
    a->block_bytes = a->n_levels * tile;
    if (a->most_tokens > GDN_CU_TREE_ON_CHIP)
        a->block_bytes += (int64_t)gdn_align64((size_t)(a->most_tokens + 1) * TREE_TOKEN_BYTES);
    if (*n_blocks > most) *n_blocks = most;
}

static struct gdn_cu_walk walk_args(const gdn_ctx *ctx, const struct gdn_cu_rule *r,
                                    int64_t *n_blocks)
{
    struct gdn_cu_walk a = { .decode = gdn_decode_general_args(r) };
    a.n_pieces = gdn_decode_sequences(r) * r->H * a.decode.n_parts;
    *n_blocks = a.n_pieces < INT32_MAX ? a.n_pieces : INT32_MAX;
    if (r->batch.parents.data) plan_tree(ctx, &a, n_blocks);
    return a;
}

size_t gdn_decode_walk_bytes(const gdn_ctx *ctx, const struct gdn_cu_rule *args)
{
    int64_t n_blocks;
    if (!args->batch.parents.data) return 0;
    const struct gdn_cu_walk a = walk_args(ctx, args, &n_blocks);
    return (size_t)(a.block_bytes * n_blocks);
}

static enum gdn_kernel_id kernel_of(const struct gdn_cu_rule *r)
{
    static const enum gdn_kernel_id kernels[2][2][3] = {
        { { SIZES(GDN_CU_decode_walk_vk) }, { SIZES(GDN_CU_decode_walk_kv) } },
        { { SIZES(GDN_CU_decode_channels_walk_vk) }, { SIZES(GDN_CU_decode_channels_walk_kv) } },
    };
    return kernels[r->family.is][gdn_decode_pool(r)->k_first][gdn_decode_size(r->K)];
}

static gdn_status launch(gdn_ctx *ctx, const char *op, const struct gdn_cu_walk *a,
                         int64_t n_blocks, void *stream)
{
    const struct gdn_cuda_call call = {
        .kernel = kernel_of(&a->decode.rule),
        .grid = { n_blocks, 1, 1 },
        .stream = stream,
        .args = a,
        .overlaps = true,
    };
    TRY(gdn_cuda_launch(ctx, &call));
    return gdn_cuda_note(ctx, op, call.kernel);
}

gdn_status gdn_decode_launch_walk(const struct gdn_decode_call *c)
{
    int64_t n_blocks;
    struct gdn_cu_walk a = walk_args(c->ctx, c->rule, &n_blocks);
    a.memory = c->memory;
    return launch(c->ctx, c->op, &a, n_blocks, c->stream);
}

gdn_status gdn_cuda_fold(gdn_ctx *ctx, const struct gdn_cu_rule *args, void *stream)
{
    int64_t n_blocks;
    struct gdn_cu_walk a = walk_args(ctx, args, &n_blocks);
    const int64_t most = BLOCKS * (int64_t)ctx->cuda->sm_count;
    a.fold = true;
    return launch(ctx, "record_fold", &a, n_blocks < most ? n_blocks : most, stream);
}
