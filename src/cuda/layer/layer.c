/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layer on a device: cuBLAS for the projections, the kernels of the ops for what is between,
 *
 *     project -> split -> conv + SiLU -> rule (L2 norm, gates) -> gated RMSNorm -> project
 *
 * all tokens at once, through buffers in the workspace that hold the activations' dtype. Views of
 * them take the place of copies; the rule writes o over v, the norm over o.
 */
#include "calls/layer.h"
#include "calls/op_backends.h"
#include "core/tensor_check.h"
#include "cuda/conv/conv.h"
#include "cuda/decode/decode.h"
#include "cuda/driver/blas.h"
#include "cuda/driver/choice.h"
#include "cuda/driver/contents.h"
#include "cuda/driver/lines.h"
#include "cuda/layer/args.h"
#include "cuda/prefill/prefill.h"
#include "cuda/rowwise/rowwise.h"

enum { TILE = 64, THREADS = 256 }; /* of layer.cu */

/* ---- Memory -------------------------------------------------------------------------------- */

/* The workspace of a call. */
struct buffers {
    char *projected; /* [N] q, k, v, z of all heads; if rows are woven, q, k, v, z of one key
                        head after the other */
    float *woven;    /* [N] b, a of one key head after the other */
    float *gates;    /* [N] b of all heads, a of all */
    char *low;       /* [N] between two projections of low rank */
    char *conv;      /* [N] q, k, v of all heads; then o and its norm in place of v */
    char *out;       /* [N][hidden], if padding keeps its output */
    char *rule;      /* memory of gdn_cuda_prefill_run() */
    char *blas;      /* scratch of cuBLAS */
};

/* Returns why rows of Qwen3-Next cannot stay in the order of their projection, or NULL: the
 * convolution reads eight channels at once from there. If they cannot stay, each head's rows are
 * projected to their place. */
static const char *why_not_woven(const struct gdn_block *b)
{
    if (b->projections != GDN_FUSED) return "in_proj_qkvz is not given";
    if (b->K % 8) return "key_head_dim is not a multiple of 8";
    return b->Hv / b->Hk * b->V % 8 ? "a key head's values are not a multiple of 8" : NULL;
}

static bool is_woven(const struct gdn_block *b) { return !why_not_woven(b); }

static bool spares_padding(const struct gdn_block *b)
{
    return b->plan->batch.pad_policy == GDN_PAD_KEEP;
}

/* Returns true if decode takes the sequences: if T says that none is long, or if they have one
 * token on average. The lengths are in the device's memory. The mean depends on the batch, so it
 * does not count with GDN_BATCH_INVARIANT. */
static bool are_short(const struct gdn_block *b)
{
    if (b->args->flags & GDN_BATCH_INVARIANT) return false;
    return b->tokens->T <= GDN_SHORT_SEQUENCE || b->n_tokens <= b->plan->B;
}

/* Returns the columns of b and a. */
static int64_t n_gates(const struct gdn_block *b) { return b->columns.all - b->columns.b; }

/* Returns tokens in a buffer of rows of `columns`, from column `first` on. A head has `head`
 * elements. */
static struct gdn_rows rows_of(const struct gdn_block *b, void *buffer, int32_t dtype,
                               int64_t columns, int64_t first, int64_t head)
{
    const int64_t unit = (int64_t)gdn_dtype_bytes(dtype), token = columns * unit;
    return (struct gdn_rows){ .data = buffer ? (char *)buffer + first * unit : NULL,
                              .dtype = dtype,
                              .batch = b->tokens->padded ? b->tokens->T * token : 0,
                              .token = token,
                              .head = head * unit };
}

static struct gdn_rows projected_rows(const struct gdn_block *b, const struct buffers *m,
                                      int64_t first)
{
    return rows_of(b, m->projected, b->in.dtype, b->columns.b, first, 0);
}

static struct gdn_rows conv_rows(const struct gdn_block *b, const struct buffers *m, int64_t first,
                                 int64_t head)
{
    return rows_of(b, m->conv, b->in.dtype, b->columns.z, first, head);
}

static struct gdn_rows gate_rows(const struct gdn_block *b, float *buffer, int64_t first)
{
    return rows_of(b, buffer, GDN_F32, n_gates(b), first, 1);
}

/* Returns the rule. Its rows are in the buffers. */
static struct gdn_rule rule_of(const struct gdn_block *b, const struct buffers *m)
{
    struct gdn_rule rule = b->rule;
    rule.q = conv_rows(b, m, 0, b->K);
    rule.k = conv_rows(b, m, b->columns.k, b->K);
    rule.v = conv_rows(b, m, b->columns.v, b->V);
    rule.beta = gate_rows(b, m->gates, 0);
    rule.g = gate_rows(b, m->gates, b->Hv);
    rule.g.head *= b->channels;
    rule.out = rule.v;
    return rule;
}

/* Lays out all buffers. Those for the rule and for cuBLAS, of the given bytes, come last. memory
 * NULL: only counts the bytes. */
static size_t lay_out(struct buffers *m, const struct gdn_block *b, size_t rule, size_t blas,
                      char *memory)
{
    const size_t N = (size_t)b->n_tokens, unit = gdn_dtype_bytes(b->in.dtype);
    const size_t gates = N * (size_t)n_gates(b) * sizeof(float);
    const struct gdn_room rooms[] = {
        { &m->projected, N * (size_t)b->columns.b * unit },
        { &m->woven, is_woven(b) ? gates : 0 },
        { &m->gates, gates },
        { &m->low, N * (size_t)b->rank * unit },
        { &m->conv, N * (size_t)b->columns.z * unit },
        { &m->out, spares_padding(b) ? N * (size_t)b->hidden * unit : 0 },
        { &m->rule, rule },
        { &m->blas, blas },
    };
    return gdn_lay_out_rooms(rooms, sizeof rooms / sizeof *rooms, memory);
}

/* ---- Projections --------------------------------------------------------------------------- */

/* Rows [row, row + n) of a weight. */
struct product {
    const gdn_tensor *weight;
    int64_t row, n;
    struct gdn_rows x, out;
};

/* Returns how often all products but the last are repeated: one time for each key head whose rows
 * are projected to their place. */
static int64_t n_repeats(const struct gdn_block *b)
{
    return b->projections == GDN_FUSED && !is_woven(b) ? b->Hk : 1;
}

static int n_segments(const struct gdn_block *b)
{
    return is_woven(b) ? 2 : (int)(gdn_block_n_segments(b) / n_repeats(b));
}

/* Returns the products, of one key head if they are repeated. The output is the last product, those
 * of low ranks come before it. */
static int n_products(const struct gdn_block *b)
{
    return n_segments(b) + 2 * gdn_block_n_low_ranks(b) + 1;
}

static struct product segment_product(const struct gdn_block *b, const struct buffers *m,
                                      const struct gdn_segment *s)
{
    const int64_t gates = b->columns.b;
    return (struct product){ s->weight, s->row, s->n, b->in,
                             s->column < gates ? projected_rows(b, m, s->column)
                                               : gate_rows(b, m->gates, s->column - gates) };
}

/* Returns product i of low ranks: of each low rank `down`, then `up`. */
static struct product low_product(const struct gdn_block *b, const struct buffers *m, int i)
{
    const struct gdn_low_rank low = gdn_block_low_rank(b, i / 2);
    const struct gdn_rows rows = rows_of(b, m->low, b->in.dtype, low.down.n, 0, 0);
    struct product p = segment_product(b, m, i % 2 ? &low.up : &low.down);
    *(i % 2 ? &p.x : &p.out) = rows;
    return p;
}

static struct product output_product(const struct gdn_block *b, const struct buffers *m)
{
    struct product p = { &b->args->out_proj, 0, b->hidden, conv_rows(b, m, b->columns.v, 0),
                         b->out };
    if (spares_padding(b)) p.out = rows_of(b, m->out, b->in.dtype, b->hidden, 0, 0);
    return p;
}

static struct product woven_product(const struct gdn_block *b, const struct buffers *m, int i)
{
    const gdn_block_args *a = b->args;
    if (i)
        return (struct product){ &a->in_proj_ba, 0, n_gates(b), b->in, gate_rows(b, m->woven, 0) };
    return (struct product){ &a->in_proj_qkvz, 0, b->columns.b, b->in, projected_rows(b, m, 0) };
}

/* Returns product i, the one of a key head if products are repeated. */
static struct product product_of(const struct gdn_block *b, const struct buffers *m, int i,
                                 int head)
{
    const int n = n_segments(b);
    if (i == n_products(b) - 1) return output_product(b, m);
    if (i >= n) return low_product(b, m, i - n);
    if (is_woven(b)) return woven_product(b, m, i);
    const struct gdn_segment s = gdn_block_segment(b, head * n + i);
    return segment_product(b, m, &s);
}

/* Tokens as cuBLAS takes them: n matrices of n_rows. */
struct shape {
    int64_t n, n_rows;
};

static struct gdn_blas_matrix matrix_of(const struct gdn_rows *r, struct shape s, int64_t T,
                                        int64_t columns)
{
    const int64_t unit = (int64_t)gdn_dtype_bytes(r->dtype), step = T == 1 ? r->batch : r->token;
    return (struct gdn_blas_matrix){ r->data, r->dtype, s.n_rows == 1 ? columns : step / unit,
                                     r->batch / unit };
}

/* Describes a product to cuBLAS. */
static struct gdn_blas_projection blas_projection_of(const struct gdn_block *b,
                                                     const struct product *p)
{
    const int64_t T = b->tokens->T, B = b->tokens->padded ? b->tokens->B : 1;
    const int64_t n_in = p->weight->size[1];
    const bool joined =
        B == 1 || T == 1 || (p->x.batch == T * p->x.token && p->out.batch == T * p->out.token);
    const struct shape s = joined ? (struct shape){ 1, b->n_tokens } : (struct shape){ B, T };
    return (struct gdn_blas_projection){
        .out = matrix_of(&p->out, s, T, p->n),
        .x = matrix_of(&p->x, s, T, n_in),
        .weight = { gdn_at(p->weight, p->row * p->weight->stride[0]), p->weight->dtype,
                    p->n == 1 ? n_in : p->weight->stride[0], 0 },
        .n = s.n,
        .n_rows = s.n_rows,
        .n_out = p->n,
        .n_in = n_in,
    };
}

/* Returns why cuBLAS does not compute a product in an order of summation that is the same for every
 * number of tokens; NULL: it does. */
static const char *why_not_blas(const struct gdn_block *b, const struct gdn_blas_projection *p)
{
    if (b->rule.exact) return "GDN_EXACT is set";
    if (p->weight.dtype != p->x.dtype) return "a weight has another dtype than hidden";
    if (p->out.ld < p->n_out || p->x.ld < p->n_in || p->weight.ld < p->n_in || p->out.batch < 0 ||
        p->x.batch < 0)
        return "rows overlap or go backwards";
    return gdn_blas_counts(p) ? NULL : "a size or stride does not fit 32 bits";
}

/* Describes a product to layer_project. */
static struct gdn_cu_layer_project own_projection_of(const struct gdn_block *b,
                                                     const struct product *p)
{
    const int64_t step = gdn_step_bytes(p->weight, 0);
    return (struct gdn_cu_layer_project){
        .x = p->x,
        .weight = { .data = (char *)p->weight->data + p->row * step,
                    .dtype = p->weight->dtype,
                    .token = step },
        .out = p->out,
        .T = b->tokens->T,
        .n_rows = b->n_tokens,
        .n_out = p->n,
        .n_in = p->weight->size[1],
        .x_step = 1,
        .weight_step = 1,
    };
}

/* ---- The plan ------------------------------------------------------------------------------ */

/* A product as cuBLAS or as layer_project computes it. */
struct planned_product {
    bool by_blas;
    int64_t weight_step, out_step; /* in bytes, from one key head to the next; 0: not repeated */
    union {
        struct gdn_blas_projection blas;
        struct gdn_cu_layer_project own;
    };
};
enum { MOST_PRODUCTS = 9 }; /* q, k, v, b; z and a of low rank, two each; the output */

/* The decisions about a call. Products that are repeated for each key head are there once. */
struct planned {
    const char *why_not_woven; /* why rows are not woven: projections write them in order; NULL:
                                  they are woven */
    const char *why_not_blas;  /* the reason that cuBLAS does not compute some product; NULL: it
                                  computes all */
    int n_products, n_repeats; /* all but the last are repeated */
    struct planned_product products[MOST_PRODUCTS];
    size_t blas_bytes; /* of workspace for cuBLAS; 0: it computes none */
    size_t rule_bytes;
    struct gdn_cuda_conv_plan conv;
    struct gdn_cu_rule rule;
    bool by_tokens; /* the rule goes token by token */
    union {
        struct gdn_cuda_decode_plan decode;
        struct gdn_cuda_prefill_plan prefill;
    };
    struct gdn_cuda_norm_plan norm;
};
_Static_assert(sizeof(struct planned) <= GDN_PLAN_ROOM, "a plan has room");

/* Returns why cuBLAS does not compute product i, or NULL. */
static const char *plan_product(const struct gdn_block *b, const struct buffers *m, int i,
                                bool repeated, struct planned_product *plan)
{
    const struct product p = product_of(b, m, i, 0), next = product_of(b, m, i, repeated);
    const struct gdn_blas_projection blas = blas_projection_of(b, &p);
    const char *why = why_not_blas(b, &blas);
    *plan = (struct planned_product){
        .by_blas = !why,
        .weight_step = (next.row - p.row) * gdn_step_bytes(p.weight, 0),
        .out_step = (char *)next.out.data - (char *)p.out.data,
    };
    if (why)
        plan->own = own_projection_of(b, &p);
    else
        plan->blas = blas;
    return why;
}

/* Decides which products cuBLAS computes. The bytes for it include room to align its scratch. */
static void plan_products(gdn_ctx *ctx, const struct gdn_block *b, const struct buffers *m,
                          struct planned *p)
{
    bool by_blas = false;
    p->why_not_woven = why_not_woven(b);
    p->why_not_blas = NULL;
    p->n_products = n_products(b);
    p->n_repeats = (int)n_repeats(b);
    for (int i = 0; i < p->n_products; i++) {
        const char *why = plan_product(b, m, i, p->n_repeats > 1, &p->products[i]);
        if (!p->why_not_blas) p->why_not_blas = why;
        by_blas |= !why;
    }
    p->blas_bytes = by_blas ? gdn_blas_scratch(ctx) + GDN_BLAS_ALIGN : 0;
}

/* Replaces GDN_PAD_KEEP: rows of padding in buffers before the output are zero, and have nothing to
 * keep. */
static void drop_keep(struct gdn_cu_batch *batch)
{
    if (batch->pad_policy == GDN_PAD_KEEP) batch->pad_policy = GDN_PAD_ZERO;
}

/* The convolution copies the projected rows, which may be woven, to channels in order. */
static void plan_conv(gdn_ctx *ctx, const struct gdn_block *b, const struct buffers *m,
                      struct gdn_cuda_conv_plan *plan)
{
    const gdn_block_args *args = b->args;
    const struct gdn_plan_pools pools =
        gdn_plan_pools_of(&args->conv_state, &args->conv_state, &args->conv_checkpoints);
    struct gdn_conv conv = b->conv;
    struct gdn_cu_conv *a = &plan->args;
    conv.x = projected_rows(b, m, 0);
    conv.out = conv_rows(b, m, 0, 0);
    gdn_cuda_fill_conv(a, &conv, b->plan, b->tokens, &pools);
    if (is_woven(b)) {
        a->key_head = (int32_t)(b->columns.b / b->Hk);
        a->Hk = (int32_t)b->Hk, a->K = (int32_t)b->K, a->V = (int32_t)(b->Hv / b->Hk * b->V);
    }
    drop_keep(&a->batch);
    gdn_cuda_conv_plan(ctx, plan);
}

static void plan_rule(gdn_ctx *ctx, const struct gdn_block *b, const struct buffers *m,
                      struct planned *p)
{
    const gdn_block_args *args = b->args;
    const struct gdn_plan_pools pools =
        gdn_plan_pools_of(&args->state, &args->state, &args->checkpoints);
    const struct gdn_rule rule = rule_of(b, m);
    gdn_cuda_fill_rule(&p->rule, &rule, &args->A_log, &args->dt_bias, b->plan, b->tokens, &pools);
    drop_keep(&p->rule.batch);
    p->by_tokens = rule.exact || are_short(b);
    p->rule.record_k.data = NULL; /* its rows are in the states when the tokens begin */
    p->rule_bytes = 0;
    if (p->by_tokens) {
        gdn_cuda_decode_plan(ctx, "block", &p->rule, &p->decode);
    } else {
        gdn_cuda_prefill_plan(ctx, &p->rule, gdn_cuda_cut_options_of(args->flags, &b->plan->batch),
                              &p->prefill);
        p->rule_bytes = p->prefill.bytes;
    }
}

/* Returns a view [N][Hk][value heads of a key head][V] of a buffer's rows. A key head has `head`
 * elements. */
static gdn_tensor values_of(const struct gdn_block *b, const struct gdn_rows *rows, int64_t head)
{
    gdn_tensor t = gdn_dense(rows->data, rows->dtype, 4, b->n_tokens, b->Hk, b->Hv / b->Hk, b->V);
    t.stride[0] = rows->token / (int64_t)gdn_dtype_bytes(rows->dtype);
    t.stride[1] = head;
    return t;
}

static struct gdn_rows z_rows(const struct gdn_block *b, const struct buffers *m)
{
    const int64_t woven = 2 * b->K + b->Hv / b->Hk * b->V;
    return projected_rows(b, m, is_woven(b) ? woven : b->columns.z);
}

/* The norm computes o <- o / rms(o) norm_weight act(z), head by head. Tokens that are not valid
 * have o = 0, and any z. Their o stays zero, and so does its projection. */
static void plan_norm(const struct gdn_block *b, const struct buffers *m,
                      struct gdn_cuda_norm_plan *plan)
{
    const int64_t rV = b->Hv / b->Hk * b->V;
    const struct gdn_rows o = conv_rows(b, m, b->columns.v, 0), z = z_rows(b, m);
    const gdn_tensor values = values_of(b, &o, rV);
    const struct gdn_norm_job job = {
        .x = values,
        .z = values_of(b, &z, is_woven(b) ? 2 * b->K + 2 * rV : rV),
        .weight = b->args->norm_weight,
        .out = values,
        .formula = GDN_NO_NORM,
        .sigmoid = b->sigmoid,
        .eps = b->rms_eps,
        .n_rows = b->n_tokens * b->Hv,
        .D = b->V,
    };
    gdn_cuda_fill_norm(&plan->args, &job);
    plan->args.zeros = true;
    gdn_cuda_norm_plan(plan);
}

/* Plans the call. cuBLAS is opened here, if the layer needs it. */
static gdn_status plan_block(gdn_ctx *ctx, void *call)
{
    struct gdn_block_call *c = call;
    const struct gdn_block *b = &c->block;
    struct planned *p = GDN_PLANNED(struct planned, &c->base);
    struct buffers m;
    if (b->n_tokens > INT32_MAX)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "hidden: %lld tokens, on a device at most 2^31 - 1",
                        (long long)b->n_tokens);
    TRY(gdn_cuda_check_channels(ctx, b->rule.record));
    lay_out(&m, b, 0, 0, GDN_CUDA_NOWHERE);
    plan_products(ctx, b, &m, p);
    plan_conv(ctx, b, &m, &p->conv);
    plan_rule(ctx, b, &m, p);
    plan_norm(b, &m, &p->norm);
    c->base.bytes = lay_out(&m, b, p->rule_bytes, p->blas_bytes, NULL);
    return p->blas_bytes ? gdn_blas_open(ctx) : GDN_OK;
}

static void move_products(const struct gdn_block *b, const struct buffers *m, struct planned *p)
{
    for (int i = 0; i < p->n_products; i++) {
        const struct product at = product_of(b, m, i, 0);
        struct planned_product *plan = &p->products[i];
        if (plan->by_blas)
            plan->blas.x.data = at.x.data, plan->blas.out.data = at.out.data;
        else
            plan->own.x.data = at.x.data, plan->own.out.data = at.out.data;
    }
}

/* Sets the addresses of rows in buffers. */
static void move(gdn_ctx *ctx, const struct gdn_block *b, const struct buffers *m,
                 struct planned *p)
{
    const struct gdn_rule rule = rule_of(b, m);
    move_products(b, m, p);
    p->conv.args.x.data = m->projected;
    p->conv.args.out.data = m->conv;
    p->rule.q.data = rule.q.data;
    p->rule.k.data = rule.k.data;
    p->rule.v.data = rule.v.data;
    p->rule.g.data = rule.g.data;
    p->rule.beta.data = rule.beta.data;
    p->rule.out.data = rule.out.data;
    p->norm.args.x.data = p->norm.args.out.data = rule.out.data;
    p->norm.args.z.data = z_rows(b, m).data;
    if (p->by_tokens)
        gdn_cuda_decode_move(&p->decode);
    else
        gdn_cuda_prefill_move(ctx, &p->rule, &p->prefill);
}

/* ---- The call ------------------------------------------------------------------------------ */

/* Logs how rows are projected, and why cuBLAS does not compute a product, if there is one. */
static void log_forms(gdn_ctx *ctx, const struct planned *p)
{
    const struct gdn_cuda_form rows[] = { { "woven rows", p->why_not_woven },
                                          { "rows of each head", NULL } };
    const struct gdn_cuda_form products[] = { { "cublas", p->why_not_blas },
                                              { "layer_project", NULL } };
    gdn_cuda_log_forms(ctx, GDN_CUDA_BLOCK_CHOICE, "block", rows);
    gdn_cuda_log_forms(ctx, GDN_CUDA_PROJECTION_CHOICE, "block projections", products);
}

struct layer {
    gdn_ctx *ctx;
    const struct gdn_block *b;
    struct planned *p;
    struct buffers m;
    void *stream;
    bool checkpoint_in_write; /* checkpoints are in the pool of the states */
};

static gdn_status launch(struct layer *l, enum gdn_kernel_id kernel, int64_t n_blocks,
                         const void *args)
{
    const struct gdn_cuda_call call = {
        .kernel = kernel, .grid = { n_blocks, 1, 1 }, .stream = l->stream, .args = args
    };
    TRY(gdn_cuda_launch(l->ctx, &call));
    return gdn_cuda_note(l->ctx, "block", kernel);
}

/* Computes a product of a key head, from 0. */
static gdn_status project(struct layer *l, const struct planned_product *p, int head)
{
    const int64_t weight = head * p->weight_step, out = head * p->out_step;
    if (p->by_blas) {
        struct gdn_blas_projection a = p->blas;
        a.weight.data = (const char *)a.weight.data + weight;
        a.out.data = (const char *)a.out.data + out;
        TRY(gdn_blas_project(l->ctx, &a));
        return gdn_cuda_note(l->ctx, "block", GDN_CU_cublas);
    }
    struct gdn_cu_layer_project a = p->own;
    const int64_t row_tiles = (a.n_rows + TILE - 1) / TILE, out_tiles = (a.n_out + TILE - 1) / TILE;
    a.weight.data += weight;
    a.out.data += out;
    return launch(l, GDN_CU_layer_project, row_tiles * out_tiles, &a);
}

static gdn_status project_hidden(struct layer *l)
{
    const struct planned *p = l->p;
    for (int head = 0; head < p->n_repeats; head++)
        for (int i = 0; i < p->n_products - 1; i++) TRY(project(l, &p->products[i], head));
    return GDN_OK;
}

/* Splits the rows of b and a. They hold one key head after the other, and become b of all heads,
 * then a of all heads. */
static gdn_status split(struct layer *l)
{
    const struct gdn_block *b = l->b;
    const int32_t group = (int32_t)(b->Hv / b->Hk);
    const int64_t row = 2 * b->Hv * (int64_t)sizeof(float);
    const struct gdn_cu_layer_weave a = { .from = { .data = (char *)l->m.woven, .token = row },
                                          .to = { .data = (char *)l->m.gates, .token = row },
                                          .n = b->n_tokens * 2 * b->Hv,
                                          .heads = (int32_t)b->Hk,
                                          .part = { group, group, 0, 0 } };
    return launch(l, GDN_CU_layer_weave, (a.n + THREADS - 1) / THREADS, &a);
}

/* Sets o before the first sequence to zero, because its projection goes to out. */
static gdn_status clear_before(struct layer *l)
{
    enum { BLOCKS = 32 };
    const struct gdn_block *b = l->b;
    const struct gdn_plan_pools pools = { -1, -1, -1, false, false };
    struct gdn_cu_layer_rows a = { .rows = conv_rows(b, &l->m, b->columns.v, b->V),
                                   .n = b->Hv * b->V };
    if (!b->plan->batch.cu_seqlens.data) return GDN_OK;
    gdn_cuda_fill_batch(&a.batch, b->plan, b->tokens, &pools);
    return launch(l, GDN_CU_layer_clear, BLOCKS, &a);
}

static gdn_status store(struct layer *l)
{
    enum { TOKENS = THREADS / 32 };
    const struct gdn_block *b = l->b;
    const gdn_tensor *state = b->args->state.data ? &b->args->state : &b->args->conv_state;
    const struct gdn_plan_pools pools = gdn_plan_pools_of(state, state, &(gdn_tensor){ 0 });
    struct gdn_cu_layer_store a = {
        .out = b->out,
        .from = l->m.out,
        .n = b->hidden,
        .head = b->hidden,
    };
    gdn_cuda_fill_batch(&a.batch, b->plan, b->tokens, &pools);
    return launch(l, GDN_CU_layer_store, (b->n_tokens + TOKENS - 1) / TOKENS, &a);
}

static gdn_status fold(struct layer *l)
{
    struct gdn_cu_rule rule = l->p->rule;
    rule.record_k.data = l->b->rule.record->k.data;
    return gdn_cuda_fold_first(l->ctx, &rule, l->checkpoint_in_write, l->stream);
}

static gdn_status run_rule(struct layer *l)
{
    struct planned *p = l->p;
    if (l->b->rule.record) TRY(fold(l));
    return p->by_tokens ? gdn_cuda_decode_run(&p->decode, NULL, l->stream)
                        : gdn_cuda_prefill_run(l->ctx, &p->rule, &p->prefill, l->m.rule, l->stream);
}

static gdn_status run(struct layer *l)
{
    struct planned *p = l->p;
    TRY(project_hidden(l));
    if (!p->why_not_woven) TRY(split(l));
    TRY(gdn_cuda_conv_run(l->ctx, &p->conv, NULL, l->stream));
    TRY(run_rule(l));
    TRY(clear_before(l));
    TRY(gdn_cuda_norm_run(l->ctx, "block", &p->norm, l->stream));
    TRY(project(l, &p->products[p->n_products - 1], 0));
    return spares_padding(l->b) ? store(l) : GDN_OK;
}

static gdn_status launch_all(gdn_ctx *ctx, const struct gdn_block_call *c, void *memory)
{
    const struct gdn_block *b = &c->block;
    struct planned *const p = GDN_PLANNED(struct planned, &c->base);
    struct layer l = { .ctx = ctx,
                       .b = b,
                       .p = p,
                       .stream = b->args->stream,
                       .checkpoint_in_write = c->pools.checkpoint_in_write };
    struct gdn_cuda_ran ran;
    bool pushed;
    if (b->n_tokens == 0) return gdn_note_line(ctx, "block", "none");
    log_forms(ctx, p);
    lay_out(&l.m, b, p->rule_bytes, p->blas_bytes, memory);
    move(ctx, b, &l.m, p);
    TRY(gdn_cuda_enter(ctx, &pushed));
    gdn_status status = GDN_OK;
    if (p->blas_bytes) {
        const uintptr_t beyond = (uintptr_t)l.m.blas % GDN_BLAS_ALIGN;
        status = gdn_blas_begin(ctx, l.stream, l.m.blas + (beyond ? GDN_BLAS_ALIGN - beyond : 0),
                                gdn_blas_scratch(ctx));
    }
    gdn_cuda_gather(ctx, &ran);
    if (status == GDN_OK) status = run(&l);
    gdn_cuda_leave(ctx, pushed);
    return gdn_cuda_note_gathered(ctx, "block", status);
}

static gdn_status run_block(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_block_call *c = call;
    TRY(c->block.rule.record
            ? gdn_cuda_check_record(ctx, &c->plan, &c->tokens, &c->pools, &c->record,
                                    c->base.stream)
            : gdn_cuda_check_batch(ctx, &c->plan, &c->tokens, &c->pools, c->base.stream));
    return launch_all(ctx, c, memory);
}

const struct gdn_op_backend gdn_cuda_op_block = { plan_block, run_block };
