/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/conv/conv.h"

#include "calls/op_backends.h"
#include "core/tensor_check.h"
#include "cuda/driver/choice.h"
#include "cuda/driver/contents.h"

/* CHANNELS: of a warp; twice as many if they have 16 bits and move by 16 bytes. WARPS: of a block.
 * Both are as in conv_walk.cuh. TYPED_TAPS: the most taps of kernels of one dtype. */
enum { CHANNELS = 128, WARPS = 4, TYPED_TAPS = 8 };

/* Blocks that a multiprocessor has at once, as in conv.cu. */
enum { BUSY_TILE = 4 };

enum {
    SHORT = 16,  /* the most tokens of a sequence that one warp walks; tiles would have too few
                    tokens */
    MOST = 1024, /* tokens of a tile */
    LEAST = 8,
    MOST_ROWS = 1 << 30, /* tokens and sequences, which kernels count in 32 bits */
    MOST_GRID = 32768,   /* blocks in the second dimension of a grid */
    LEAST_OWN = 32,      /* tokens of a tile in place, where each tile has edges in memory */
    TURNED = 16,    /* channels of a warp whose lanes have a token each, as in conv_turned.cuh */
    LEAST_LANES = 8 /* tokens of a row; with fewer, lanes would idle */
};

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t chunks_of(const struct gdn_cu_conv *c) { return divide_up(c->D, CHANNELS); }

/* Returns the chunks of channels of kernels for one dtype. Such a kernel moves 16 bytes of x at
 * once. */
static int64_t wide_chunks_of(const struct gdn_cu_conv *c, int32_t dtype)
{
    return divide_up(c->D, dtype == GDN_F32 ? CHANNELS : 2 * CHANNELS);
}

/* Returns the warps that the device runs at once, with `busy` blocks for each multiprocessor. */
static int64_t warps_of(const gdn_ctx *ctx, int busy)
{
    return (int64_t)ctx->cuda->sm_count * busy * WARPS;
}

static bool is_in_place(const struct gdn_cu_conv *c)
{
    return c->out.data && c->out.data == c->x.data;
}

/* Returns true if outputs are computed in tiles. Of packed sequences only the mean length is in
 * descriptors. If sequences are short, a tile would look up many of them. */
static bool has_tiles(const struct gdn_cu_conv *c)
{
    const struct gdn_cu_batch *b = &c->batch;
    if (!c->out.data || b->N == 0 || (b->parents.data && !b->path.data)) return false;
    return b->T > SHORT && (b->padded || b->N >= SHORT / 2 * b->B);
}

static bool is_aligned(const char *data) { return (uint64_t)(uintptr_t)data % 16 == 0; }

static bool is_near(const struct gdn_rows *r)
{
    return r->token >= INT32_MIN && r->token <= INT32_MAX;
}

/* Returns true if a lane may move four channels of x and of out, and the four taps of each. */
static bool has_fours(const struct gdn_cu_conv *c)
{
    const struct gdn_conv_view *w = &c->weight, *bias = &c->bias;
    if (!c->access || c->W != 4) return false;
    if (c->batch.N > MOST_ROWS || c->batch.B > MOST_ROWS || c->D > MOST_ROWS) return false;
    if (!is_near(&c->x) || !is_near(&c->out)) return false;
    return w->entry == 1 && w->channel == 4 && is_aligned(w->data) &&
           (!bias->data || (bias->channel == 1 && is_aligned(bias->data)));
}

/* A function why_not_... returns why a form does not take a call, as text for the log; NULL: it
 * does. */

/* Form `rows` has tiles of few tokens. Nothing may overwrite x. */
static const char *why_not_rows(const struct gdn_cu_conv *c)
{
    if (!has_fours(c)) return "channels or their four taps are not in aligned fours";
    return is_in_place(c) ? "out is x" : NULL;
}

/* Returns the tokens of a tile of form `rows`, as conv_tiles.cuh has them. */
static int64_t rows_of(const struct gdn_cu_conv *c) { return c->x.dtype == GDN_F32 ? 8 : 16; }

/* Form `turned` has tokens that lie side by side in x, while channels do not. Nothing may overwrite
 * x. */
static const char *why_not_turned(const struct gdn_cu_conv *c)
{
    const struct gdn_cu_batch *b = &c->batch;
    const int64_t unit = (int64_t)gdn_dtype_bytes(c->x.dtype);
    if (!c->out.data || is_in_place(c)) return "out is absent or x";
    if (c->x.head == unit) return "channels lie side by side";
    if (c->x.token != unit) return "tokens do not lie side by side";
    if (b->N <= 0 || b->T < LEAST_LANES) return "rows are shorter than 8 tokens";
    return b->parents.data || b->path.data ? "tokens are a tree" : NULL;
}

/* Returns true if the pool has a slot for each sequence. A sequence without one is padding. */
static bool has_slots(const struct gdn_cu_batch *b, int64_t pool)
{
    return pool < 0 || b->B <= pool;
}

static enum gdn_cu_conv_valid valid_of(const struct gdn_cu_batch *b)
{
    if (b->read_slots.data || b->write_slots.data || b->token_start.data || b->token_count.data ||
        b->parents.data || b->path.data)
        return GDN_CU_CONV_ASK;
    if (!has_slots(b, b->read_pool) || !has_slots(b, b->write_pool)) return GDN_CU_CONV_ASK;
    return b->cu_seqlens.data ? GDN_CU_CONV_BOUNDED : GDN_CU_CONV_ALL;
}

/* Returns true if channels do not lie side by side. */
static bool is_apart(const struct gdn_cu_conv *c)
{
    const int64_t unit = (int64_t)gdn_dtype_bytes(c->x.dtype);
    return c->D > 1 && (c->x.head != unit || (c->out.data && c->out.head != unit));
}

/* Returns true if only the kernels for any strides and any number of taps take the call. */
static bool is_any(const struct gdn_cu_conv *c) { return c->W > 8 || is_apart(c); }

/* Returns true if a kernel of tiles for the dtype of x alone takes the call. */
static bool is_typed(const struct gdn_cu_conv *c) { return c->access == 16 && c->W <= TYPED_TAPS; }

static int64_t tile_chunks_of(const struct gdn_cu_conv *c)
{
    return is_typed(c) ? wide_chunks_of(c, c->x.dtype) : chunks_of(c);
}

/* Chooses the tokens of a tile: there are as many tiles as warps that run at once and do not
 * walk. If rows do not share these warps evenly, there are four times as many. */
static void choose_tiles(const gdn_ctx *ctx, struct gdn_cu_conv *c)
{
    const int64_t rows = c->batch.padded ? c->batch.B : 1, T = c->batch.T;
    const bool turned = !why_not_turned(c);
    if (c->D == 0 || (!turned && !has_tiles(c))) return;
    const int64_t least = is_in_place(c) ? LEAST_OWN : LEAST;
    const int64_t warps = warps_of(ctx, BUSY_TILE), walks = c->batch.B * chunks_of(c);
    const int64_t slots = (warps - (walks < warps / 8 ? walks : warps / 8)) / tile_chunks_of(c);
    int64_t n = slots / rows; /* tiles of a row */
    if (n * rows < slots * 7 / 8) n = divide_up(4 * slots, rows);
    c->tile = divide_up(T, n > 0 ? n : 1);
    if (c->tile > MOST) c->tile = MOST;
    if (c->tile < least) c->tile = least;
    if (!why_not_rows(c)) c->tile = rows_of(c);
    if (turned) c->tile = 32;
    c->row_tiles = divide_up(T, c->tile);
    c->n_tiles = rows * c->row_tiles;
}

/* Returns how many bytes of rows may move at once: at least four elements. 0: fewer than four. */
static int32_t access_of(const struct gdn_rows *r, int64_t D)
{
    const uint64_t all = (uint64_t)(uintptr_t)r->data | (uint64_t)r->token | (uint64_t)r->batch;
    const uint64_t line = (uint64_t)D * gdn_dtype_bytes(r->dtype);
    if (!r->data) return 16;
    for (int32_t n = 16; n >= 4 * (int32_t)gdn_dtype_bytes(r->dtype); n /= 2)
        if ((all | line) % (uint64_t)n == 0) return n;
    return 0;
}

/* Returns true if the n entries of each channel lie side by side, or if the channels of each entry
 * do, both aligned to 16 bytes. */
static bool is_quads(const struct gdn_conv_view *v, int n)
{
    const uint64_t unit = gdn_dtype_bytes(v->dtype), at = (uint64_t)(uintptr_t)v->data;
    if (!v->data) return true;
    if (v->length != n || (at | (uint64_t)v->slot * unit) % 16 != 0) return false;
    return (v->entry == 1 && v->channel == n) ||
           (v->channel == 1 && (uint64_t)v->entry * unit % 16 == 0);
}

/* Returns true if each sequence stores only its final state, and a lane can move n quads of it. */
static bool has_quads(const struct gdn_cu_conv *c, int n)
{
    return !c->checkpoints.data && c->batch.write != GDN_WRITE_EACH && is_quads(&c->from, n) &&
           is_quads(&c->to, n);
}

/* Form `one token` has sequences of at most one token. */
static const char *why_not_one(const struct gdn_cu_conv *c)
{
    const struct gdn_cu_batch *b = &c->batch;
    if (b->B == 0 || b->T != 1 || b->cu_seqlens.data) return "rows are not of one token";
    if (b->parents.data || b->path.data) return "tokens are a tree";
    if (!c->out.data) return "out is absent";
    if (!has_fours(c)) return "channels or their four taps are not in aligned fours";
    return has_quads(c, 3) || has_quads(c, 4) ? NULL
                                              : "states are not of three or four entries in "
                                                "aligned fours, one of a sequence";
}

void gdn_cuda_fill_conv(struct gdn_cu_conv *c, const struct gdn_conv *conv,
                        const struct gdn_plan *plan, const struct gdn_tokens *tokens,
                        const struct gdn_plan_pools *pools)
{
    memset(c, 0, sizeof *c);
    gdn_cuda_fill_batch(&c->batch, plan, tokens, pools);
    c->x = conv->x;
    c->out = conv->out;
    c->weight = conv->weight;
    c->bias = conv->bias;
    c->from = conv->from;
    c->to = conv->to;
    c->checkpoints = conv->checkpoints;
    c->D = conv->D;
    c->W = conv->W;
    c->silu = conv->silu;
    c->kept = conv->W - 1;
    const struct gdn_conv_view *state = c->from.data ? &c->from
                                        : c->to.data ? &c->to
                                                     : &c->checkpoints;
    const int64_t kept = c->W <= 8 ? 8 : 16; /* the most entries of a state in shared memory */
    if (state->data) c->kept = (int32_t)(state->length < kept ? state->length : kept);
    const int32_t x_access = access_of(&c->x, c->D), out_access = access_of(&c->out, c->D);
    c->access = x_access < out_access ? x_access : out_access;
    if (conv->strided)
        c->access = 0;
    else
        c->x.head = c->out.head = (int64_t)gdn_dtype_bytes(c->x.dtype);
}

static size_t edge_bytes(const struct gdn_cu_conv *c)
{
    if (!c->tile || !is_in_place(c)) return 0;
    return gdn_align64((size_t)((c->n_tiles + c->batch.B) * (c->W - 1) * c->D) * sizeof(float));
}

static enum gdn_kernel_id tile_kernel(const struct gdn_cu_conv *c)
{
    static const enum gdn_kernel_id kernels[2][3] = {
        { GDN_CU_conv_tile_f32_8, GDN_CU_conv_tile_bf16_8, GDN_CU_conv_tile_f16_8 },
        { GDN_CU_conv_tile_f32_4, GDN_CU_conv_tile_bf16_4, GDN_CU_conv_tile_f16_4 },
    };
    if (is_typed(c)) return kernels[c->W == 4][c->x.dtype];
    return is_any(c) ? GDN_CU_conv_tile_apart_16 : GDN_CU_conv_tile_floats_8;
}

static enum gdn_kernel_id walk_kernel(const struct gdn_cu_conv *c)
{
    if (is_any(c)) return GDN_CU_conv_walk_apart_16;
    return c->W == 4 ? GDN_CU_conv_walk_floats_4 : GDN_CU_conv_walk_floats_8;
}

static size_t walk_bytes(const struct gdn_cu_conv *c)
{
    return (size_t)(WARPS * 2 * CHANNELS * c->kept) * sizeof(float);
}

/* Launches n_walks items that walk, and `others` behind these in the grid. */
static gdn_status launch(gdn_ctx *ctx, struct gdn_cu_conv *args, enum gdn_kernel_id kernel,
                         int64_t n_walks, int64_t others, size_t shared_bytes, void *stream)
{
    args->n_walks = n_walks;
    args->n_items = n_walks + others;
    const struct gdn_cuda_call call = {
        .kernel = kernel,
        .grid = { divide_up(args->n_items, WARPS), 1, 1 },
        .shared_bytes = shared_bytes,
        .stream = stream,
        .args = args,
    };
    return gdn_cuda_launch(ctx, &call);
}

static gdn_status walk(gdn_ctx *ctx, struct gdn_cu_conv *args, void *stream)
{
    const bool rest = args->out.data && args->batch.cu_seqlens.data; /* outputs behind the last
                                                                        sequence */
    TRY(launch(ctx, args, walk_kernel(args), (args->batch.B + rest) * chunks_of(args), 0,
               walk_bytes(args), stream));
    return gdn_cuda_note(ctx, "conv1d", walk_kernel(args));
}

/* Launches tiles behind the items that walk, which take longest to begin. */
static gdn_status tiles(gdn_ctx *ctx, struct gdn_cu_conv *args, void *stream)
{
    const enum gdn_kernel_id kernel = tile_kernel(args);
    TRY(launch(ctx, args, kernel, args->batch.B * chunks_of(args),
               args->n_tiles * tile_chunks_of(args), walk_bytes(args), stream));
    return gdn_cuda_note(ctx, "conv1d", kernel);
}

/* Returns true if the blocks of form `rows` can start sequences, whose tokens follow each other. */
static bool can_start(const struct gdn_cu_conv *c)
{
    return !c->batch.parents.data && !c->batch.path.data && has_quads(c, 3);
}

/* Launches blocks that have all channels each: of a sequence that the block starts, or of a
 * tile. */
static gdn_status rows(gdn_ctx *ctx, struct gdn_cu_conv *args, void *stream)
{
    static const enum gdn_kernel_id kernels[] = { [GDN_F32] = GDN_CU_conv_rows_f32_4,
                                                  [GDN_BF16] = GDN_CU_conv_rows_bf16_4,
                                                  [GDN_F16] = GDN_CU_conv_rows_f16_4 };
    const enum gdn_kernel_id both[] = { kernels[args->x.dtype], walk_kernel(args) };
    const bool starts = can_start(args);
    const int64_t n = (starts ? args->batch.B : 0) + args->n_tiles;
    const int64_t high = n < MOST_GRID ? n : MOST_GRID;
    const struct gdn_cuda_call call = {
        .kernel = both[0],
        .grid = { divide_up(chunks_of(args), WARPS), high, divide_up(n, high) },
        .stream = stream,
        .args = args,
    };
    if (!starts)
        TRY(launch(ctx, args, both[1], args->batch.B * chunks_of(args), 0, walk_bytes(args),
                   stream));
    args->walk_blocks = starts ? (int32_t)args->batch.B : 0;
    args->valid = valid_of(&args->batch);
    TRY(gdn_cuda_launch(ctx, &call));
    return gdn_cuda_note_all(ctx, "conv1d", both, starts ? 1 : 2);
}

/* Launches tiles in place. The kernel that saves the inputs before each tile comes first, then the
 * walks, which read x. */
static gdn_status tiles_in_place(gdn_ctx *ctx, struct gdn_cu_conv *args, void *stream)
{
    const enum gdn_kernel_id kernels[] = { is_any(args) ? GDN_CU_conv_edge_apart_16
                                                        : GDN_CU_conv_edge_floats_8,
                                           walk_kernel(args), tile_kernel(args) };
    TRY(launch(ctx, args, kernels[0], 0, args->n_tiles * chunks_of(args), 0, stream));
    TRY(launch(ctx, args, kernels[1], args->batch.B * chunks_of(args), 0, walk_bytes(args),
               stream));
    TRY(launch(ctx, args, kernels[2], 0, args->n_tiles * tile_chunks_of(args), 0, stream));
    return gdn_cuda_note_all(ctx, "conv1d", kernels, 3);
}

/* Returns true if all tensors have the dtype of x, and the batch has no arrays of indices but
 * slots. */
static bool is_alike(const struct gdn_cu_conv *c)
{
    const struct gdn_cu_batch *b = &c->batch;
    const struct gdn_conv_view *views[] = { &c->weight, &c->bias, &c->from, &c->to };
    for (int i = 0; i < 4; i++)
        if (views[i]->data && views[i]->dtype != c->x.dtype) return false;
    return c->x.dtype != GDN_F32 && !b->token_start.data && !b->token_count.data &&
           !b->has_initial_state.data && !b->num_accepted_tokens.data &&
           b->pad_policy != GDN_PAD_SINK;
}

/* Launches blocks that have all channels of one sequence of one token each. */
static gdn_status one(gdn_ctx *ctx, struct gdn_cu_conv *args, void *stream)
{
    static const enum gdn_kernel_id any[] = { [GDN_F32] = GDN_CU_conv_one_f32_4,
                                              [GDN_BF16] = GDN_CU_conv_one_bf16_4,
                                              [GDN_F16] = GDN_CU_conv_one_f16_4 };
    static const enum gdn_kernel_id alike[] = {
        [GDN_BF16] = GDN_CU_conv_one_alike_bf16_4, [GDN_F16] = GDN_CU_conv_one_alike_f16_4
    };
    static const enum gdn_kernel_id longer[] = { [GDN_F32] = GDN_CU_conv_one_longer_f32_4,
                                                 [GDN_BF16] = GDN_CU_conv_one_longer_bf16_4,
                                                 [GDN_F16] = GDN_CU_conv_one_longer_f16_4 };
    const enum gdn_kernel_id *kernels = !has_quads(args, 3) ? longer : is_alike(args) ? alike : any;
    const enum gdn_kernel_id kernel = kernels[args->x.dtype];
    const int64_t B = args->batch.B, high = B < MOST_GRID ? B : MOST_GRID;
    const struct gdn_cuda_call call = {
        .kernel = kernel,
        .grid = { divide_up(chunks_of(args), WARPS), high, divide_up(B, high) },
        .stream = stream,
        .args = args,
    };
    TRY(gdn_cuda_launch(ctx, &call));
    return gdn_cuda_note(ctx, "conv1d", kernel);
}

/* Launches the outputs and then the states. Outputs may start from states, so they come first. */
static gdn_status turned(gdn_ctx *ctx, struct gdn_cu_conv *args, void *stream)
{
    const enum gdn_kernel_id both[] = { GDN_CU_conv_turned_apart_16, walk_kernel(args) };
    const bool writes =
        args->checkpoints.data || (args->to.data && args->batch.write != GDN_WRITE_NONE);
    TRY(launch(ctx, args, both[0], 0, args->n_tiles * divide_up(args->D, TURNED), 0, stream));
    args->out.data = NULL;
    if (writes)
        TRY(launch(ctx, args, both[1], args->batch.B * chunks_of(args), 0, walk_bytes(args),
                   stream));
    return gdn_cuda_note_all(ctx, "conv1d", both, 1 + writes);
}

/* ---- The choice ---------------------------------------------------------------------------- */

static const char *why_not_tiles(const struct gdn_cu_conv *c)
{
    if (!c->tile) return "out is absent, tokens are a tree, or there are few for each sequence";
    return NULL;
}
static const char *why_not_tiled_rows(const struct gdn_cu_conv *c)
{
    return why_not_tiles(c) ? why_not_tiles(c) : why_not_rows(c);
}
static const char *why_not_apart(const struct gdn_cu_conv *c)
{
    return why_not_tiles(c) ? why_not_tiles(c) : is_in_place(c) ? "out is x" : NULL;
}
static const char *why_not_walk(const struct gdn_cu_conv *c)
{
    (void)c;
    return NULL;
}

/* The forms of a call. The first form that has no reason against the call takes it. */
static const struct {
    const char *name;
    const char *(*why_not)(const struct gdn_cu_conv *c);
    gdn_status (*launch)(gdn_ctx *ctx, struct gdn_cu_conv *args, void *stream);
} forms[] = {
    { "turned", why_not_turned, turned },
    { "one token", why_not_one, one },
    { "rows", why_not_tiled_rows, rows },
    { "tiles", why_not_apart, tiles },
    { "tiles in place", why_not_tiles, tiles_in_place },
    { "walk", why_not_walk, walk },
};

enum { N_FORMS = sizeof forms / sizeof *forms };

static void log_choice(gdn_ctx *ctx, const struct gdn_cuda_conv_plan *p)
{
    struct gdn_cuda_form list[N_FORMS];
    if (!ctx->options.log) return;
    for (int i = 0; i <= p->form; i++)
        list[i] = (struct gdn_cuda_form){ forms[i].name, forms[i].why_not(&p->args) };
    gdn_cuda_log_forms(ctx, GDN_CUDA_CONV_CHOICE, "conv1d", list);
}

void gdn_cuda_conv_plan(const gdn_ctx *ctx, struct gdn_cuda_conv_plan *p)
{
    choose_tiles(ctx, &p->args);
    p->form = 0;
    while (forms[p->form].why_not(&p->args)) p->form++;
    p->bytes = edge_bytes(&p->args);
}

gdn_status gdn_cuda_conv_run(gdn_ctx *ctx, struct gdn_cuda_conv_plan *p, void *edges, void *stream)
{
    log_choice(ctx, p);
    p->args.edges = p->bytes ? edges : NULL;
    return forms[p->form].launch(ctx, &p->args, stream);
}

/* ---- gdn_conv1d ---------------------------------------------------------------------------- */

_Static_assert(sizeof(struct gdn_cuda_conv_plan) <= GDN_PLAN_ROOM, "a plan has room");

static gdn_status plan_conv1d(gdn_ctx *ctx, void *call)
{
    struct gdn_conv_call *c = call;
    struct gdn_cuda_conv_plan *p = GDN_PLANNED(struct gdn_cuda_conv_plan, &c->base);
    gdn_cuda_fill_conv(&p->args, &c->conv, &c->plan, &c->tokens, &c->pools);
    gdn_cuda_conv_plan(ctx, p);
    c->base.bytes = p->bytes;
    return GDN_OK;
}

static gdn_status run_conv1d(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_conv_call *c = call;
    TRY(gdn_cuda_check_batch(ctx, &c->plan, &c->tokens, &c->pools, c->base.stream));
    return gdn_cuda_conv_run(ctx, GDN_PLANNED(struct gdn_cuda_conv_plan, &c->base), memory,
                             c->base.stream);
}

const struct gdn_op_backend gdn_cuda_op_conv1d = { plan_conv1d, run_conv1d };
