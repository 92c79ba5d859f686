/* SPDX-License-Identifier: Apache-2.0 */
#include "ops.h"

#include "tensor.h"

/* A warp's channels, warps of a block, entries of a state in shared memory; as in conv.cu. */
enum { CHANNELS = 128, WARPS = 4, KEPT = 8 };

enum {
    SHORT     = 16, /* tokens that a warp walks alone: not worth a second kernel */
    MOST      = 128, /* tokens of a tile */
    LEAST     = 8,
    LEAST_OWN = 32 /* in place: every tile has edges in memory */
};

static int64_t chunks_of(const struct gdn_cu_conv *c) { return (c->D + CHANNELS - 1) / CHANNELS; }

static bool is_in_place(const struct gdn_cu_conv *c)
{
    return c->out.data && c->out.data == c->x.data;
}

/* May outputs be computed in tiles of tokens? Of packed sequences no lengths are known, but their
 * mean is: where they are short, tiles would begin many of them. */
static bool has_tiles(const struct gdn_cu_conv *c)
{
    const struct gdn_cu_batch *b = &c->batch;
    if (!c->out.data || b->N == 0 || (b->parents.data && !b->path.data)) return false;
    if (b->T <= SHORT || b->N <= b->B) return false;
    return !is_in_place(c) || b->padded || b->N >= 8 * b->B;
}

static int64_t tiles_of(const struct gdn_cu_conv *c, int64_t tile)
{
    const int64_t n = (c->batch.T + tile - 1) / tile;
    return c->batch.padded ? n * c->batch.B : n;
}

/* The longest tiles of which there are enough to keep the device busy. */
static void choose_tiles(const gdn_ctx *ctx, struct gdn_cu_conv *c)
{
    const int64_t enough = 64 * (int64_t)ctx->cuda->sm_count;
    if (!has_tiles(c)) return;
    c->tile = is_in_place(c) ? LEAST_OWN : LEAST;
    while (c->tile < MOST && tiles_of(c, 2 * c->tile) * chunks_of(c) >= enough) c->tile *= 2;
    c->n_tiles   = tiles_of(c, c->tile);
    c->row_tiles = (c->batch.T + c->tile - 1) / c->tile;
}

/* May four channels be moved at once? */
static bool is_wide(const struct gdn_rows *r, int64_t D)
{
    const uint64_t all = (uint64_t)(uintptr_t)r->data | (uint64_t)r->token | (uint64_t)r->batch;
    return !r->data || (D % 4 == 0 && all % (4 * gdn_dtype_bytes(r->dtype)) == 0);
}

/* Do the rows of three entries of a state, or its channels, lie side by side, whole quads? */
static bool is_step_view(const struct gdn_conv_view *v, int32_t dtype)
{
    const uint64_t at = (uint64_t)(uintptr_t)v->data;
    if (!v->data) return true;
    if (v->dtype != dtype || v->length != 3 || v->slot % 4 != 0) return false;
    return at % (4 * gdn_dtype_bytes(dtype)) == 0 &&
           ((v->entry == 1 && v->channel == 3) || (v->channel == 1 && v->entry % 4 == 0));
}

/* One token for each sequence: how many of these a warp takes, enough warps left; 0: no steps. */
static int64_t steps_of(const gdn_ctx *ctx, const struct gdn_cu_conv *c)
{
    const struct gdn_cu_batch  *b = &c->batch;
    const struct gdn_conv_view *w = &c->weight;
    const int64_t enough = 32 * (int64_t)ctx->cuda->sm_count;
    int64_t       n      = 1;
    if (b->T != 1 || b->cu_seqlens.data || b->parents.data || b->path.data) return 0;
    if (!c->out.data || !c->access || c->W != 4 || c->out.dtype != c->x.dtype) return 0;
    if (w->entry != 1 || w->channel % 4 != 0) return 0;
    if ((uintptr_t)w->data % (4 * gdn_dtype_bytes(w->dtype)) != 0) return 0;
    if (c->checkpoints.data || b->write == GDN_WRITE_EACH) return 0;
    if (!is_step_view(&c->from, c->x.dtype) || !is_step_view(&c->to, c->x.dtype)) return 0;
    while (n < 8 && b->B / (2 * n) * chunks_of(c) >= enough) n *= 2;
    return n;
}

struct gdn_cu_conv gdn_cuda_conv_args(const gdn_ctx *ctx, const struct gdn_conv *conv,
                                      const struct gdn_plan *plan, const struct gdn_tokens *tokens,
                                      const struct gdn_plan_pools *pools)
{
    struct gdn_cu_conv c = {
        .batch       = gdn_cuda_batch(plan, tokens, pools),
        .x           = conv->x,
        .out         = conv->out,
        .weight      = conv->weight,
        .bias        = conv->bias,
        .from        = conv->from,
        .to          = conv->to,
        .checkpoints = conv->checkpoints,
        .D           = conv->D,
        .W           = conv->W,
        .silu        = conv->silu,
        .kept        = conv->W - 1,
    };
    const struct gdn_conv_view *state = c.from.data ? &c.from : c.to.data ? &c.to : &c.checkpoints;
    if (state->data) c.kept = state->length < KEPT ? (int32_t)state->length : KEPT;
    c.access = is_wide(&c.x, c.D) && is_wide(&c.out, c.D);
    choose_tiles(ctx, &c);
    if (!c.tile) c.n_steps = steps_of(ctx, &c);
    return c;
}

static size_t edge_bytes(const struct gdn_cu_conv *c)
{
    if (!c->tile || !is_in_place(c)) return 0;
    return gdn_align64((size_t)((c->n_tiles + c->batch.B) * (c->W - 1) * c->D) * sizeof(float));
}

size_t gdn_cuda_conv_bytes(const struct gdn_cu_conv *args) { return edge_bytes(args); }

/* Does the call leave states? */
static bool has_states(const struct gdn_cu_conv *c)
{
    return (c->to.data && c->batch.write != GDN_WRITE_NONE) ||
           (c->checkpoints.data && c->batch.checkpoint_pool >= 0);
}

static enum gdn_kernel_id tile_kernel(const struct gdn_cu_conv *c)
{
    static const enum gdn_kernel_id kernels[2][3] = {
        { GDN_CU_conv_tile_f32_8, GDN_CU_conv_tile_bf16_8, GDN_CU_conv_tile_f16_8 },
        { GDN_CU_conv_tile_f32_4, GDN_CU_conv_tile_bf16_4, GDN_CU_conv_tile_f16_4 },
    };
    return c->access ? kernels[c->W == 4][c->x.dtype] : GDN_CU_conv_tile_floats_8;
}

/* rows: sequences, tiles or edges. */
static gdn_status launch(gdn_ctx *ctx, const struct gdn_cu_conv *args, enum gdn_kernel_id kernel,
                         int64_t rows, size_t shared_bytes, void *stream)
{
    struct gdn_cu_conv c = *args;
    c.n_items            = rows * chunks_of(args);
    const struct gdn_cuda_call call = {
        .kernel       = kernel,
        .grid         = { (c.n_items + WARPS - 1) / WARPS, 1, 1 },
        .shared_bytes = shared_bytes,
        .stream       = stream,
        .args         = &c,
    };
    return gdn_cuda_launch(ctx, &call);
}

static enum gdn_kernel_id walk_kernel(const struct gdn_cu_conv *c)
{
    return c->W == 4 ? GDN_CU_conv_walk_floats_4 : GDN_CU_conv_walk_floats_8;
}

static gdn_status walk(gdn_ctx *ctx, const struct gdn_cu_conv *args, bool has_out, void *stream)
{
    const size_t       bytes = (size_t)(WARPS * 2 * CHANNELS * args->kept) * sizeof(float);
    struct gdn_cu_conv c     = *args;
    if (!has_out) c.out.data = NULL;
    return launch(ctx, &c, walk_kernel(args),
                  c.batch.B + (c.out.data && c.batch.cu_seqlens.data), bytes, stream);
}

/* In tiles: the states are written when no tile needs the old ones any more, or in place when x is
 * still there and what tiles need of both is saved. */
static gdn_status tiles(gdn_ctx *ctx, const struct gdn_cu_conv *args, void *stream)
{
    const bool own = args->edges, has = has_states(args);
    const enum gdn_kernel_id kernels[] = { tile_kernel(args), walk_kernel(args),
                                           GDN_CU_conv_edge_floats_8 };
    const enum gdn_kernel_id stateless[] = { kernels[0], kernels[2] };
    if (own) TRY(launch(ctx, args, kernels[2], args->n_tiles + args->batch.B, 0, stream));
    if (own && has) TRY(walk(ctx, args, false, stream));
    TRY(launch(ctx, args, kernels[0], args->n_tiles, 0, stream));
    if (!own && has) TRY(walk(ctx, args, false, stream));
    return gdn_cuda_note_all(ctx, "conv1d", has ? kernels : stateless, 1 + has + own);
}

static gdn_status step(gdn_ctx *ctx, const struct gdn_cu_conv *args, void *stream)
{
    static const enum gdn_kernel_id kernels[] = {
        [GDN_F32]  = GDN_CU_conv_step_f32_4,
        [GDN_BF16] = GDN_CU_conv_step_bf16_4,
        [GDN_F16]  = GDN_CU_conv_step_f16_4,
    };
    const enum gdn_kernel_id kernel = kernels[args->x.dtype];
    const size_t bytes = WARPS * 3 * CHANNELS * gdn_dtype_bytes(args->x.dtype);
    TRY(launch(ctx, args, kernel, (args->batch.B + args->n_steps - 1) / args->n_steps, bytes,
               stream));
    return gdn_cuda_note(ctx, "conv1d", kernel);
}

gdn_status gdn_cuda_conv(gdn_ctx *ctx, struct gdn_cu_conv *args, void *edges, void *stream)
{
    if (args->tile) {
        args->edges = is_in_place(args) ? edges : NULL;
        return tiles(ctx, args, stream);
    }
    if (args->n_steps) return step(ctx, args, stream);
    TRY(walk(ctx, args, true, stream));
    return gdn_cuda_note(ctx, "conv1d", walk_kernel(args));
}
