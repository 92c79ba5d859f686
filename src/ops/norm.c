/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_l2norm and gdn_rmsnorm_gated: both scale a row by a number made of its sum of squares
 * and multiply it by what they have of weight and gate. Long rows pass through in pieces; the
 * sums of the pieces are added in float64, in an order that depends on D alone.
 */
#include <math.h>

#include "calls/norm.h"
#include "cuda/driver/backend.h"
#include "ops/entry.h"
#include "ops/op_table.h"

enum { MAX_D = 65536 };

/* ---- Descriptors ------------------------------------------------------------------------- */

gdn_status gdn_norm_check_rows(gdn_ctx *ctx, const gdn_tensor *x)
{
    if (!x->data) return gdn_fail(ctx, GDN_E_ARG, "x: absent");
    TRY(gdn_norm_check_like(ctx, x, x, "x"));
    const int64_t D = x->size[x->ndim - 1];
    if (D < 1 || D > MAX_D)
        return gdn_fail(ctx, D < 1 ? GDN_E_SHAPE : GDN_E_UNSUPPORTED,
                        "x: rows of %lld, wanted 1 to %d", (long long)D, MAX_D);
    return GDN_OK;
}

gdn_status gdn_norm_check_like(gdn_ctx *ctx, const gdn_tensor *x, const gdn_tensor *t,
                               const char *name)
{
    if (!t->data) return GDN_OK;
    TRY(gdn_check_tensor(ctx, t, name));
    TRY(gdn_check_dtype(ctx, t, name, GDN_FLOATS));
    TRY(gdn_check_shape(ctx, t, name, x->ndim, x->size));
    return gdn_check_dense(ctx, t, name);
}

gdn_status gdn_norm_check_eps(gdn_ctx *ctx, float eps)
{
    if (!(eps >= 0) || !isfinite(eps))
        return gdn_fail(ctx, GDN_E_ARG, "eps: %g, wanted at least 0", (double)eps);
    return GDN_OK;
}

gdn_status gdn_norm_check_formula(gdn_ctx *ctx, int32_t norm)
{
    if (norm < GDN_NORM_NONE || norm > GDN_NORM_L2_MAX)
        return gdn_fail(ctx, GDN_E_ARG, "norm: %d, wanted 0 to 3", (int)norm);
    return GDN_OK;
}

gdn_status gdn_norm_check_activation(gdn_ctx *ctx, int32_t activation)
{
    if (activation < GDN_ACT_NONE || activation > GDN_ACT_SIGMOID)
        return gdn_fail(ctx, GDN_E_ARG, "activation: %d, wanted 0 to 2", (int)activation);
    return GDN_OK;
}

gdn_status gdn_norm_check_weight(gdn_ctx *ctx, const gdn_tensor *t, const char *name,
                                 unsigned dtypes, int64_t D)
{
    if (!t->data) return GDN_OK;
    TRY(gdn_check_tensor(ctx, t, name));
    TRY(gdn_check_dtype(ctx, t, name, dtypes));
    return gdn_check_shape(ctx, t, name, 1, &D);
}

static gdn_status check_tensors(gdn_ctx *ctx, struct gdn_norm_job *s)
{
    TRY(gdn_norm_check_rows(ctx, &s->x));
    if (!s->out.data) return gdn_fail(ctx, GDN_E_ARG, "out: absent");
    TRY(gdn_norm_check_like(ctx, &s->x, &s->z, "z"));
    TRY(gdn_norm_check_like(ctx, &s->x, &s->out, "out"));
    s->D             = s->x.size[s->x.ndim - 1];
    s->n_rows        = gdn_n_rows(&s->x);
    s->rows_per_item = gdn_rows_per_item(s->D);
    TRY(gdn_norm_check_weight(ctx, &s->weight, "weight", GDN_FLOATS, s->D));
    TRY(gdn_check_injective(ctx, &s->out, "out"));
    TRY(gdn_check_no_overlap(ctx, &s->out, "out", &s->x, "x", true));
    TRY(gdn_check_no_overlap(ctx, &s->out, "out", &s->z, "z", true));
    return gdn_check_no_overlap(ctx, &s->out, "out", &s->weight, "weight", false);
}

static gdn_status check_fields(gdn_ctx *ctx, uint32_t flags, float eps)
{
    if (flags) return gdn_fail(ctx, GDN_E_ARG, "flags: 0x%x, wanted 0", (unsigned)flags);
    return gdn_norm_check_eps(ctx, eps);
}

/* ---- Running ----------------------------------------------------------------------------- */

static size_t piece_size(const struct gdn_norm_job *s, int64_t first)
{
    return (size_t)(s->D - first < GDN_PIECE ? s->D - first : GDN_PIECE);
}

/* Leaves the last piece in x: the whole row if D is at most GDN_PIECE. */
static double sum_of_squares(const struct gdn_norm_job *s, int64_t row, float *x)
{
    double sum = 0;
    for (int64_t first = 0; first < s->D; first += GDN_PIECE) {
        const size_t n = piece_size(s, first);
        s->kr->load_row[s->x.dtype](x, gdn_row_at(&s->x, row, first), n);
        sum += (double)s->kr->dot(x, x, n);
    }
    return sum;
}

static float row_scale(const struct gdn_norm_job *s, double sum)
{
    const double eps = (double)s->eps;
    switch (s->formula) {
    case GDN_NORM_L2: return (float)(1 / sqrt(sum + eps));
    case GDN_NORM_L2_ADD: return (float)(1 / (sqrt(sum) + eps));
    case GDN_NORM_L2_MAX: return (float)(1 / fmax(sqrt(sum), eps));
    default: return (float)(1 / sqrt(sum / (double)s->D + eps));
    }
}

static void scale_row(const struct gdn_norm_job *s, int64_t row, float scale, float *x,
                      float *weight)
{
    float z[GDN_PIECE];
    for (int64_t first = 0; first < s->D; first += GDN_PIECE) {
        const size_t n = piece_size(s, first);
        if (s->D > GDN_PIECE) {
            s->kr->load_row[s->x.dtype](x, gdn_row_at(&s->x, row, first), n);
            if (s->weight.data) gdn_load_piece(weight, &s->weight, first, (int64_t)n, 1);
        }
        if (s->z.data) s->kr->load_row[s->z.dtype](z, gdn_row_at(&s->z, row, first), n);
        s->kr->norm_row(x, x, scale, s->weight.data ? weight : NULL, s->z.data ? z : NULL,
                        s->sigmoid, n);
        s->kr->store_row[s->out.dtype](gdn_row_at(&s->out, row, first), x, n);
    }
}

void gdn_norm_rows(const struct gdn_norm_job *s, int64_t first, int64_t end)
{
    float x[GDN_PIECE], weight[GDN_PIECE];
    if (s->weight.data && s->D <= GDN_PIECE) gdn_load_piece(weight, &s->weight, 0, s->D, 1);
    for (int64_t row = first; row < end; row++) {
        const float scale = row_scale(s, sum_of_squares(s, row, x));
        scale_row(s, row, scale, x, weight);
    }
}

static void run_item(void *arg, int64_t item, int thread)
{
    (void)thread;
    const struct gdn_norm_job *s     = arg;
    const int64_t          first = item * s->rows_per_item, end = first + s->rows_per_item;
    gdn_norm_rows(s, first, end < s->n_rows ? end : s->n_rows);
}

/* A checked call of either op. */
struct call {
    struct gdn_norm_job job;
    const char         *op;
    void               *workspace, *stream;
    size_t              workspace_bytes, bytes; /* bytes: 0, no workspace */
};

struct gdn_cu_norm gdn_cuda_norm_args(const struct gdn_norm_job *s)
{
    struct gdn_cu_norm args = {
        .weight      = gdn_cuda_line(&s->weight),
        .weight_step = s->D > 1 ? s->weight.stride[0] : 1,
        .n_lines     = s->n_rows,
        .D           = s->D,
        .formula     = s->formula,
        .sigmoid     = s->sigmoid,
        .eps         = s->eps,
    };
    gdn_cuda_lines((const gdn_tensor *const[]){ &s->x, &s->z, &s->out }, 3, &args.leads,
                   (struct gdn_cu_lines *const[]){ &args.x, &args.z, &args.out });
    return args;
}

static gdn_status enqueue(gdn_ctx *ctx, void *call)
{
    const struct call *c = call;
    struct gdn_cu_norm args;
    void              *none;
    TRY(gdn_get_workspace(ctx, c->workspace, c->workspace_bytes, 0, &none));
    args = gdn_cuda_norm_args(&c->job);
    return gdn_cuda_norm(ctx, c->op, &args, c->stream);
}

static gdn_status run(gdn_ctx *ctx, void *call)
{
    struct call         *c = call;
    struct gdn_norm_job *s = &c->job;
    void                *none;
    TRY(gdn_get_workspace(ctx, c->workspace, c->workspace_bytes, 0, &none));
    gdn_parallel_for(ctx->pool, (s->n_rows + s->rows_per_item - 1) / s->rows_per_item, run_item, s);
    return GDN_OK;
}

/* ---- L2 norm ----------------------------------------------------------------------------- */

static gdn_status describe_l2norm(gdn_ctx *ctx, const void *args, void *call)
{
    struct call         *c = call;
    struct gdn_norm_job *s = &c->job;
    gdn_l2norm_args      own, *a = &own;
    TRY(gdn_copy_args(ctx, a, sizeof *a, args, "gdn_l2norm_args"));
    TRY(check_fields(ctx, a->flags, a->eps));
    TRY(gdn_norm_check_formula(ctx, a->norm));
    *c = (struct call){ .op = "l2norm", .workspace = a->workspace, .stream = a->stream,
                        .workspace_bytes = a->workspace_bytes };
    *s = (struct gdn_norm_job){ .x = a->x, .out = a->out, .kr = ctx->kr };
    s->formula = a->norm == GDN_NORM_NONE ? GDN_NORM_L2 : a->norm;
    s->eps     = a->eps > 0 ? a->eps : 1e-6f;
    return check_tensors(ctx, s);
}

static const struct gdn_frame l2norm = {
    .describe = describe_l2norm,
    .run      = run,
    .enqueue  = enqueue,
    .bytes_at = offsetof(struct call, bytes),
    .loops    = "dot norm_row",
};
GDN_OP_ENTRY(l2norm, gdn_l2norm_args, l2norm, struct call)

/* ---- Gated RMSNorm ------------------------------------------------------------------------- */

static gdn_status describe_rmsnorm(gdn_ctx *ctx, const void *args, void *call)
{
    struct call           *c = call;
    struct gdn_norm_job   *s = &c->job;
    gdn_rmsnorm_gated_args own, *a = &own;
    TRY(gdn_copy_args(ctx, a, sizeof *a, args, "gdn_rmsnorm_gated_args"));
    TRY(check_fields(ctx, a->flags, a->eps));
    TRY(gdn_norm_check_activation(ctx, a->activation));
    *c = (struct call){ .op = "rmsnorm_gated", .workspace = a->workspace, .stream = a->stream,
                        .workspace_bytes = a->workspace_bytes };
    *s = (struct gdn_norm_job){ .x = a->x, .z = a->z, .weight = a->weight, .out = a->out,
                                .kr = ctx->kr };
    s->formula = GDN_NORM_NONE;
    s->sigmoid = a->activation == GDN_ACT_SIGMOID;
    s->eps     = a->eps > 0 ? a->eps : 1e-6f;
    return check_tensors(ctx, s);
}

static const struct gdn_frame rmsnorm_gated = {
    .describe = describe_rmsnorm,
    .run      = run,
    .enqueue  = enqueue,
    .bytes_at = offsetof(struct call, bytes),
    .loops    = "dot norm_row",
};
GDN_OP_ENTRY(rmsnorm_gated, gdn_rmsnorm_gated_args, rmsnorm_gated, struct call)
