/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_l2norm_backward: a row's gradient is a sum of two rows, dout and x, whose factors follow from
 * the sums of x x and of x dout. Long rows pass through in pieces, as in cpu/norm.c.
 */
#include <math.h>

#include "calls/norm.h"
#include "calls/op_backends.h"
#include "cpu/rows.h"

/* dx = of_dout dout + of_x x. */
struct factors {
    float of_dout, of_x;
};

static struct factors find_factors(const gdn_l2norm_backward_args *a, double xx, double xd)
{
    const double eps = (double)a->eps, length = sqrt(xx);
    double scale, slope; /* slope x: the gradient of the divisor */
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

/* The part of a row in work. */
struct piece {
    float x[GDN_PIECE], dout[GDN_PIECE];
};

static void load(const struct gdn_l2norm_backward *s, float *to, const gdn_tensor *t, int64_t row,
                 int64_t first, size_t n)
{
    s->kr->load_row[t->dtype](to, gdn_row_at(t, row, first), n);
}

static size_t piece_size(const struct gdn_l2norm_backward *s, int64_t first)
{
    return (size_t)(s->D - first < GDN_PIECE ? s->D - first : GDN_PIECE);
}

static struct factors load_sums(const struct gdn_l2norm_backward *s, int64_t row, struct piece *p)
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

static void write_row(const struct gdn_l2norm_backward *s, int64_t row, struct factors f,
                      struct piece *p)
{
    for (int64_t first = 0; first < s->D; first += GDN_PIECE) {
        const size_t n = piece_size(s, first);
        float *dx = p->dout;
        if (s->D > GDN_PIECE) { /* else they are there */
            load(s, p->x, &s->args.x, row, first, n);
            load(s, p->dout, &s->args.dout, row, first, n);
        }
        s->kr->add_outer(dx, 1, (int)n, f.of_dout, &f.of_x, p->x);
        gdn_store_gradient(s->kr, &s->args.dx, row, first, dx, n, s->args.flags & GDN_ACCUMULATE);
    }
}

static void run_l2norm_backward_item(void *arg, int64_t item, int thread)
{
    (void)thread;
    const struct gdn_l2norm_backward *s = arg;
    const int64_t first = item * s->rows_per_item;
    const int64_t end = first + s->rows_per_item;
    struct piece p;
    for (int64_t row = first; row < end && row < s->n_rows; row++)
        write_row(s, row, load_sums(s, row, &p), &p);
}

static gdn_status run_l2norm_backward(gdn_ctx *ctx, void *call, void *memory)
{
    struct gdn_l2norm_backward *s = call;
    (void)memory;
    s->kr = ctx->kr;
    gdn_parallel_for(ctx->threads, (s->n_rows + s->rows_per_item - 1) / s->rows_per_item,
                     run_l2norm_backward_item, s);
    return gdn_note_kernel(ctx, s->base.op, "dot add_outer");
}

const struct gdn_op_backend gdn_cpu_op_l2norm_backward = { .run = run_l2norm_backward };
