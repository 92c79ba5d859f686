/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_l2norm_backward: a row's gradient is a sum of two rows, dout and x, whose factors follow from
 * the sums of x x and of x dout. Long rows pass through in pieces, as in ops/norm.c.
 */
#include <math.h>

#include "calls/norm.h"
#include "cuda/driver/backend.h"
#include "ops/entry.h"
#include "ops/op_table.h"

struct l2norm_backward {
    gdn_l2norm_backward_args  args;
    const struct gdn_kernels *kr;
    int64_t                   n_rows, D, rows_per_item;
    size_t                    bytes; /* 0: no workspace */
};

/* ---- Descriptors ------------------------------------------------------------------------- */

static gdn_status check_fields(gdn_ctx *ctx, const gdn_l2norm_backward_args *a)
{
    if (a->flags & ~(uint32_t)GDN_ACCUMULATE)
        return gdn_fail(ctx, GDN_E_ARG, "flags: 0x%x, wanted 0 or GDN_ACCUMULATE",
                        (unsigned)a->flags);
    TRY(gdn_norm_check_eps(ctx, a->eps));
    return gdn_norm_check_formula(ctx, a->norm);
}

static gdn_status check_tensors(gdn_ctx *ctx, const gdn_l2norm_backward_args *a)
{
    TRY(gdn_norm_check_rows(ctx, &a->x));
    if (!a->dout.data) return gdn_fail(ctx, GDN_E_ARG, "dout: absent");
    if (!a->dx.data) return gdn_fail(ctx, GDN_E_ARG, "dx: absent");
    TRY(gdn_norm_check_like(ctx, &a->x, &a->dout, "dout"));
    TRY(gdn_norm_check_like(ctx, &a->x, &a->dx, "dx"));
    TRY(gdn_check_injective(ctx, &a->dx, "dx"));
    TRY(gdn_check_no_overlap(ctx, &a->dx, "dx", &a->x, "x", false));
    return gdn_check_no_overlap(ctx, &a->dx, "dx", &a->dout, "dout", false);
}

static gdn_status describe(gdn_ctx *ctx, const void *args, void *call)
{
    struct l2norm_backward   *s = call;
    gdn_l2norm_backward_args *a = &s->args;
    *s                          = (struct l2norm_backward){ .kr = ctx->kr };
    TRY(gdn_copy_args(ctx, a, sizeof *a, args, "gdn_l2norm_backward_args"));
    TRY(check_fields(ctx, a));
    TRY(check_tensors(ctx, a));
    if (a->norm == GDN_NORM_NONE) a->norm = GDN_NORM_L2;
    if (a->eps == 0) a->eps = 1e-6f;
    s->D             = a->x.size[a->x.ndim - 1];
    s->n_rows        = gdn_n_rows(&a->x);
    s->rows_per_item = gdn_rows_per_item(s->D);
    return GDN_OK;
}

/* ---- Running ----------------------------------------------------------------------------- */

/* dx = of_dout dout + of_x x. */
struct factors {
    float of_dout, of_x;
};

static struct factors find_factors(const gdn_l2norm_backward_args *a, double xx, double xd)
{
    const double eps = (double)a->eps, length = sqrt(xx);
    double       scale, slope; /* slope x: the gradient of the divisor */
    if (a->norm == GDN_NORM_L2_ADD) {
        scale = 1 / (length + eps);
        slope = length > 0 ? 1 / length : 0;
    } else if (a->norm == GDN_NORM_L2_MAX) {
        scale = 1 / fmax(length, eps);
        slope = length >= eps ? scale : 0;
    } else {
        scale = 1 / sqrt(xx + eps);
        slope = scale;
    }
    return (struct factors){ (float)scale, (float)(-(scale * xd) * (scale * slope)) };
}

/* What is in work of a row. */
struct piece {
    float x[GDN_PIECE], dout[GDN_PIECE], dx[GDN_PIECE];
};

static void load(const struct l2norm_backward *s, float *to, const gdn_tensor *t, int64_t row,
                 int64_t first, size_t n)
{
    s->kr->load_row[t->dtype](to, gdn_row_at(t, row, first), n);
}

static size_t piece_size(const struct l2norm_backward *s, int64_t first)
{
    return (size_t)(s->D - first < GDN_PIECE ? s->D - first : GDN_PIECE);
}

static struct factors load_sums(const struct l2norm_backward *s, int64_t row, struct piece *p)
{
    double xx = 0, xd = 0;
    for (int64_t first = 0; first < s->D; first += GDN_PIECE) {
        const size_t n = piece_size(s, first);
        load(s, p->x, &s->args.x, row, first, n);
        load(s, p->dout, &s->args.dout, row, first, n);
        xx += (double)s->kr->dot(p->x, p->x, n);
        xd += (double)s->kr->dot(p->x, p->dout, n);
    }
    return find_factors(&s->args, xx, xd);
}

static void write_row(const struct l2norm_backward *s, int64_t row, struct factors f,
                      struct piece *p)
{
    const float one = 1;
    for (int64_t first = 0; first < s->D; first += GDN_PIECE) {
        const size_t n  = piece_size(s, first);
        float       *dx = p->dout;
        if (s->D > GDN_PIECE) { /* else they are there */
            load(s, p->x, &s->args.x, row, first, n);
            load(s, p->dout, &s->args.dout, row, first, n);
        }
        s->kr->add_outer(dx, 1, (int)n, f.of_dout, &f.of_x, p->x);
        if (s->args.flags & GDN_ACCUMULATE) {
            load(s, p->dx, &s->args.dx, row, first, n);
            s->kr->add_outer(p->dx, 1, (int)n, 1, &one, dx);
            dx = p->dx;
        }
        s->kr->store_row[s->args.dx.dtype](gdn_row_at(&s->args.dx, row, first), dx, n);
    }
}

static void run_item(void *arg, int64_t item, int thread)
{
    (void)thread;
    const struct l2norm_backward *s     = arg;
    const int64_t                 first = item * s->rows_per_item;
    const int64_t                 end   = first + s->rows_per_item;
    struct piece                  p;
    for (int64_t row = first; row < end && row < s->n_rows; row++)
        write_row(s, row, load_sums(s, row, &p), &p);
}

static gdn_status run(gdn_ctx *ctx, void *call)
{
    struct l2norm_backward *s = call;
    void                   *none;
    TRY(gdn_get_workspace(ctx, s->args.workspace, s->args.workspace_bytes, 0, &none));
    gdn_parallel_for(ctx->pool, (s->n_rows + s->rows_per_item - 1) / s->rows_per_item, run_item, s);
    return GDN_OK;
}

static gdn_status enqueue(gdn_ctx *ctx, void *call)
{
    const struct l2norm_backward   *s    = call;
    const gdn_l2norm_backward_args *a    = &s->args;
    struct gdn_cu_l2norm_backward   args = {
          .n_lines = s->n_rows,
          .D       = s->D,
          .formula = a->norm,
          .eps     = a->eps,
          .adds    = (a->flags & GDN_ACCUMULATE) != 0,
    };
    void *none;
    TRY(gdn_get_workspace(ctx, a->workspace, a->workspace_bytes, 0, &none));
    gdn_cuda_lines((const gdn_tensor *const[]){ &a->x, &a->dout, &a->dx }, 3, &args.leads,
                   (struct gdn_cu_lines *const[]){ &args.x, &args.dout, &args.dx });
    return gdn_cuda_l2norm_backward(ctx, &args, a->stream);
}

static const struct gdn_frame frame = {
    .describe = describe,
    .run      = run,
    .enqueue  = enqueue,
    .bytes_at = offsetof(struct l2norm_backward, bytes),
    .loops    = "dot add_outer",
};
GDN_OP_ENTRY(l2norm_backward, gdn_l2norm_backward_args, frame, struct l2norm_backward)
