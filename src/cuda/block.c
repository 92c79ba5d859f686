/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layer on a device: cuBLAS for the projections, the kernels of the ops for what is between,
 *
 *     project -> split -> conv + SiLU -> rule (L2 norm, gates) -> gated RMSNorm -> project
 *
 * all tokens at once, through buffers in the workspace that hold the activations' dtype. Views of
 * them take the place of copies; the rule writes o over v, the norm over o.
 */
#include "block.h"

#include <stdio.h>

#include "blas.h"
#include "ops.h"
#include "tensor.h"

enum { TILE = 64, THREADS = 256 }; /* of block.cu */

/* ---- Memory -------------------------------------------------------------------------------- */

/* What a call keeps in the workspace. */
struct buffers {
    char  *projected; /* [N] q k v z of each key head; or q, k, v of all */
    char  *z;         /* [N][Hv V], if not among them */
    float *ba;        /* [N] b, a of each key head */
    float *gates;     /* [N][2][Hv] b of all, a of all */
    char  *conv;      /* [N][2 Hk K + Hv V] q, k, v of all; then o and its norm, in place of v */
    char  *out;       /* [N][hidden], where padding keeps its output */
    char  *blas;      /* what cuBLAS wants for itself */
};

static bool spares_padding(const struct gdn_block *b)
{
    return b->plan->batch.pad_policy == GDN_PAD_KEEP;
}

/* All of it, with so many bytes for cuBLAS; memory NULL: only their number. */
static size_t lay_out(struct buffers *m, const struct gdn_block *b, size_t blas, char *memory)
{
    const size_t N = (size_t)b->n_tokens, unit = gdn_dtype_bytes(b->in.dtype);
    const size_t D = (size_t)b->columns.z, VV = (size_t)(b->Hv * b->V), Hv = (size_t)b->Hv;
    const struct {
        void  *at;
        size_t bytes;
    } parts[] = {
        { &m->projected, N * (b->fused ? D + VV : D) * unit },
        { &m->z, b->fused ? 0 : N * VV * unit },
        { &m->ba, b->fused ? N * 2 * Hv * sizeof(float) : 0 },
        { &m->gates, N * 2 * Hv * sizeof(float) },
        { &m->conv, N * D * unit },
        { &m->out, spares_padding(b) ? N * (size_t)b->hidden * unit : 0 },
        { &m->blas, blas },
    };
    size_t bytes = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char *at = memory ? memory + bytes : NULL;
        memcpy(parts[i].at, &at, sizeof at);
        bytes += gdn_align64(parts[i].bytes);
    }
    return bytes;
}

/* Tokens of a buffer, so many elements each, `head` to a head. */
static struct gdn_rows rows_of(const struct gdn_block *b, void *data, int32_t dtype,
                               int64_t columns, int64_t head)
{
    const int64_t unit = (int64_t)gdn_dtype_bytes(dtype), token = columns * unit;
    return (struct gdn_rows){ .data  = data,
                              .dtype = dtype,
                              .batch = b->tokens->padded ? b->tokens->T * token : 0,
                              .token = token,
                              .head  = head * unit };
}

/* Channel c of the convolution's buffer. */
static char *channel(const struct gdn_block *b, const struct buffers *m, int64_t c)
{
    return m->conv ? m->conv + c * (int64_t)gdn_dtype_bytes(b->in.dtype) : NULL;
}

/* ---- Projections --------------------------------------------------------------------------- */

struct product {
    const gdn_tensor *weight; /* [outputs][inputs] */
    struct gdn_rows   x, out;
};

enum { MAX_PRODUCTS = 5 };

/* All of a call, that of the output last. */
static int list_products(const struct gdn_block *b, const struct buffers *m, struct product *p)
{
    const gdn_block_args *a = b->args;
    const int64_t         D = b->columns.z, VV = b->Hv * b->V, Hv = b->Hv;
    const int32_t         A = b->in.dtype, f32 = GDN_F32;
    int                   n = 0;
    const struct gdn_rows all  = rows_of(b, m->projected, A, b->fused ? D + VV : D, 0);
    const struct gdn_rows ba   = rows_of(b, m->ba, f32, 2 * Hv, 0);
    const struct gdn_rows z    = rows_of(b, m->z, A, VV, 0);
    const struct gdn_rows beta = rows_of(b, m->gates, f32, 2 * Hv, 0);
    const struct gdn_rows g    = rows_of(b, m->gates ? m->gates + Hv : NULL, f32, 2 * Hv, 0);
    const struct gdn_rows o    = rows_of(b, channel(b, m, b->columns.v), A, D, 0);
    const struct gdn_rows out  = rows_of(b, m->out, A, b->hidden, 0);
    if (b->fused) {
        p[n++] = (struct product){ &a->in_proj_qkvz, b->in, all };
        p[n++] = (struct product){ &a->in_proj_ba, b->in, ba };
    } else {
        p[n++] = (struct product){ &a->in_proj_qkv, b->in, all };
        p[n++] = (struct product){ &a->in_proj_z, b->in, z };
        p[n++] = (struct product){ &a->in_proj_b, b->in, beta };
        p[n++] = (struct product){ &a->in_proj_a, b->in, g };
    }
    p[n++] = (struct product){ &a->out_proj, o, spares_padding(b) ? out : b->out };
    return n;
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

/* The product as cuBLAS would compute it, m[] being out, x and weight. False: it cannot, or not
 * in an order of summation that is the same for every number of tokens. */
static bool by_blas(const struct gdn_block *b, const struct product *p, struct gdn_blas_matrix *m,
                    struct shape *s)
{
    const int64_t T = b->tokens->T, B = b->tokens->padded ? b->tokens->B : 1;
    const int64_t n_out = p->weight->size[0], n_in = p->weight->size[1];
    const bool    joined =
        B == 1 || T == 1 || (p->x.batch == T * p->x.token && p->out.batch == T * p->out.token);
    *s   = joined ? (struct shape){ 1, b->n_tokens } : (struct shape){ B, T };
    m[0] = matrix_of(&p->out, *s, T, n_out);
    m[1] = matrix_of(&p->x, *s, T, n_in);
    m[2] = (struct gdn_blas_matrix){ p->weight->data, p->weight->dtype,
                                     n_out == 1 ? n_in : p->weight->stride[0], 0 };
    return !b->rule.exact && p->weight->dtype == p->x.dtype && m[0].ld >= n_out &&
           m[1].ld >= n_in && m[2].ld >= n_in && m[0].batch >= 0 && m[1].batch >= 0;
}

static bool needs_blas(const struct gdn_block *b)
{
    const struct buffers   none = { 0 };
    struct product         p[MAX_PRODUCTS];
    struct gdn_blas_matrix m[3];
    struct shape           s;
    bool                   needs = false;
    for (int i = list_products(b, &none, p); i--;) needs |= by_blas(b, &p[i], m, &s);
    return needs;
}

/* ---- The call ------------------------------------------------------------------------------ */

struct layer {
    gdn_ctx                *ctx;
    const struct gdn_block *b;
    struct buffers          m;
    void                   *stream;
    char                    names[sizeof((gdn_ctx *)0)->kernel]; /* of all that ran */
};

/* Adds a name, once. */
static void add_name(struct layer *l, const char *name)
{
    const size_t used = strlen(l->names);
    if (!strstr(l->names, name))
        snprintf(l->names + used, sizeof l->names - used, "%s%s", used ? " " : "", name);
}

/* ... those that the op just called has noted, as "block: name". */
static void add_noted(struct layer *l) { add_name(l, strchr(l->ctx->kernel, ' ') + 1); }

static gdn_status launch(struct layer *l, enum gdn_kernel_id kernel, int64_t n_blocks,
                         const void *args)
{
    const struct gdn_cuda_call call = {
        .kernel = kernel, .grid = { n_blocks, 1, 1 }, .stream = l->stream, .args = args
    };
    add_name(l, gdn_cuda_kernel_name(kernel));
    return gdn_cuda_launch(l->ctx, &call);
}

static gdn_status project(struct layer *l, const struct product *p)
{
    const struct gdn_block *b     = l->b;
    const int64_t           n_out = p->weight->size[0], n_in = p->weight->size[1];
    struct gdn_blas_matrix  m[3];
    struct shape            s;
    if (by_blas(b, p, m, &s)) {
        add_name(l, "cublas");
        return gdn_blas_project(l->ctx, &m[0], &m[1], &m[2], s.n, s.n_rows, n_out, n_in);
    }
    const struct gdn_cu_block_project a = {
        .x      = p->x,
        .weight = { .data  = p->weight->data,
                    .dtype = p->weight->dtype,
                    .token = gdn_step_bytes(p->weight, 0) },
        .out    = p->out,
        .T      = b->tokens->T,
        .n_rows = b->n_tokens,
        .n_out  = n_out,
        .n_in   = n_in,
    };
    const int64_t row_tiles = (a.n_rows + TILE - 1) / TILE, out_tiles = (n_out + TILE - 1) / TILE;
    return launch(l, GDN_CU_BLOCK_project, row_tiles * out_tiles, &a);
}

/* Qwen3-Next's rows to the channels of the convolution, and its b and a apart. */
static gdn_status split(struct layer *l)
{
    const struct gdn_block *b    = l->b;
    const int64_t           unit = (int64_t)gdn_dtype_bytes(b->in.dtype);
    const int64_t           K = b->K * unit, V = b->Hv / b->Hk * b->V * unit;
    const int64_t           wide = K % 16 == 0 && V % 16 == 0 ? 16 : unit;
    const struct gdn_cu_block_split a = {
        .qkvz = l->m.projected, .qkv = l->m.conv, .ba = l->m.ba, .gates = l->m.gates,
        .Hk = (int32_t)b->Hk, .group = (int32_t)(b->Hv / b->Hk),
        .K = (int32_t)(K / wide), .V = (int32_t)(V / wide), .unit = (int32_t)wide,
    };
    return launch(l, GDN_CU_BLOCK_split, b->n_tokens, &a);
}

/* Slots of a pool that is read and written in place, and of its checkpoints. */
static struct gdn_plan_pools pools_of(const gdn_tensor *state, const gdn_tensor *checkpoints)
{
    const int64_t P = state->data ? state->size[0] : -1;
    return (struct gdn_plan_pools){
        .read = P, .write = P, .checkpoint = checkpoints->data ? checkpoints->size[0] : -1
    };
}

/* What comes before the output has no padding rows to keep: they are zero there. */
static void drop_keep(struct gdn_cu_batch *batch)
{
    if (batch->pad_policy == GDN_PAD_KEEP) batch->pad_policy = GDN_PAD_ZERO;
}

static gdn_status convolve(struct layer *l)
{
    const struct gdn_block     *b     = l->b;
    const struct gdn_plan_pools pools = pools_of(&b->args->conv_state, &b->args->conv_checkpoints);
    struct gdn_conv             conv  = b->conv;
    conv.out             = rows_of(b, l->m.conv, b->in.dtype, conv.D, 0);
    conv.x               = b->fused ? conv.out : rows_of(b, l->m.projected, b->in.dtype, conv.D, 0);
    struct gdn_cu_conv a = gdn_cuda_conv_args(&conv, b->plan, b->tokens, &pools);
    drop_keep(&a.batch);
    TRY(gdn_cuda_conv(l->ctx, "block", &a, l->stream));
    add_noted(l);
    return GDN_OK;
}

/* Lengths of sequences are known on the device alone; here, what none exceeds and their mean. */
static bool are_short(const struct gdn_block *b)
{
    return b->tokens->T <= GDN_SHORT_SEQUENCE || b->n_tokens <= b->plan->B;
}

static gdn_status run_rule(struct layer *l)
{
    const struct gdn_block     *b     = l->b;
    const gdn_block_args       *args  = b->args;
    const struct gdn_plan_pools pools = pools_of(&args->state, &args->checkpoints);
    const gdn_rule_args         decay = { .A_log = args->A_log, .dt_bias = args->dt_bias };
    const int64_t               D     = b->columns.z;
    const int32_t               A     = b->in.dtype;
    struct gdn_rule             rule  = b->rule;
    rule.q    = rows_of(b, l->m.conv, A, D, b->K);
    rule.k    = rows_of(b, channel(b, &l->m, b->columns.k), A, D, b->K);
    rule.v    = rows_of(b, channel(b, &l->m, b->columns.v), A, D, b->V);
    rule.beta = rows_of(b, l->m.gates, GDN_F32, 2 * b->Hv, 1);
    rule.g    = rows_of(b, l->m.gates + b->Hv, GDN_F32, 2 * b->Hv, 1);
    rule.out  = rule.v;
    struct gdn_cu_rule a = gdn_cuda_rule_args(&rule, &decay, b->plan, b->tokens, &pools);
    drop_keep(&a.batch);
    if (rule.exact || are_short(b))
        TRY(gdn_cuda_decode(l->ctx, "block", &a, l->stream));
    else
        TRY(gdn_cuda_prefill(l->ctx, &a, l->stream));
    add_noted(l);
    return GDN_OK;
}

/* A view [N][Hk][values of a key head][V] of rows with `token` and `head` elements between. */
static gdn_tensor values_of(const struct gdn_block *b, char *data, int64_t token, int64_t head)
{
    gdn_tensor t = gdn_dense(data, b->in.dtype, 4, b->n_tokens, b->Hk, b->Hv / b->Hk, b->V);
    t.stride[0]  = token;
    t.stride[1]  = head;
    return t;
}

/* o <- o / rms(o) norm_weight silu(z), head by head. Tokens that do not count have o = 0 and may
 * have any z; they stay zero, and so does what is projected from them. */
static gdn_status norm(struct layer *l)
{
    const struct gdn_block *b    = l->b;
    const int64_t           unit = (int64_t)gdn_dtype_bytes(b->in.dtype);
    const int64_t           rV   = b->Hv / b->Hk * b->V, VV = b->Hv * b->V, D = b->columns.z;
    const int64_t           head = 2 * b->K + 2 * rV;
    const gdn_tensor o = values_of(b, channel(b, &l->m, b->columns.v), D, rV);
    const gdn_tensor z = b->fused ? values_of(b, l->m.projected + (head - rV) * unit, D + VV, head)
                                  : values_of(b, l->m.z, VV, rV);
    const struct gdn_cu_norm a = {
        .x = o, .z = z, .weight = b->args->norm_weight, .out = o, .n_rows = b->n_tokens * b->Hv,
        .D = b->V, .formula = GDN_NORM_NONE, .eps = b->rms_eps, .zeros = true,
    };
    TRY(gdn_cuda_norm(l->ctx, "block", &a, l->stream));
    add_noted(l);
    return GDN_OK;
}

static gdn_status store(struct layer *l)
{
    enum { TOKENS = THREADS / 32 };
    const struct gdn_block         *b     = l->b;
    const gdn_tensor               *state = b->args->state.data ? &b->args->state
                                                                : &b->args->conv_state;
    const struct gdn_plan_pools     pools = pools_of(state, &(gdn_tensor){ 0 });
    const struct gdn_cu_block_store a     = {
            .batch = gdn_cuda_batch(b->plan, b->tokens, &pools),
            .out   = b->out,
            .from  = l->m.out,
            .n     = b->hidden,
    };
    return launch(l, GDN_CU_BLOCK_store, (b->n_tokens + TOKENS - 1) / TOKENS, &a);
}

static gdn_status run(struct layer *l)
{
    struct product p[MAX_PRODUCTS];
    const int      n = list_products(l->b, &l->m, p);
    for (int i = 0; i < n - 1; i++) TRY(project(l, &p[i]));
    if (l->b->fused) TRY(split(l));
    TRY(convolve(l));
    TRY(run_rule(l));
    TRY(norm(l));
    TRY(project(l, &p[n - 1]));
    if (spares_padding(l->b)) TRY(store(l));
    return gdn_note_line(l->ctx, "block", l->names);
}

/* With room to align what cuBLAS gets. */
static size_t blas_bytes(gdn_ctx *ctx, const struct gdn_block *b)
{
    return needs_blas(b) ? gdn_blas_scratch(ctx) + GDN_BLAS_ALIGN : 0;
}

gdn_status gdn_cuda_block_check(gdn_ctx *ctx, const struct gdn_block *b, size_t *bytes)
{
    struct buffers m;
    if (b->n_tokens > INT32_MAX)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "hidden: %lld tokens, on a device at most 2^31 - 1",
                        (long long)b->n_tokens);
    *bytes = lay_out(&m, b, blas_bytes(ctx, b), NULL);
    return needs_blas(b) ? gdn_blas_open(ctx) : GDN_OK;
}

gdn_status gdn_cuda_block(gdn_ctx *ctx, const struct gdn_block *b, void *memory)
{
    struct layer l = { .ctx = ctx, .b = b, .stream = b->args->stream };
    bool         pushed;
    if (b->n_tokens == 0) return gdn_note_line(ctx, "block", "none");
    lay_out(&l.m, b, blas_bytes(ctx, b), memory);
    TRY(gdn_cuda_enter(ctx, &pushed));
    gdn_status status = GDN_OK;
    if (needs_blas(b)) {
        const uintptr_t beyond = (uintptr_t)l.m.blas % GDN_BLAS_ALIGN;
        status = gdn_blas_begin(ctx, l.stream, l.m.blas + (beyond ? GDN_BLAS_ALIGN - beyond : 0),
                                gdn_blas_scratch(ctx));
    }
    if (status == GDN_OK) status = run(&l);
    gdn_cuda_leave(ctx, pushed);
    return status;
}
