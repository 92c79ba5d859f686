/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_rmsnorm_gated_backward: with r = 1 / sqrt(mean x^2 + eps) and e = dout weight act(z), the
 * gradient of x r, a row has
 *
 *     dx = r e - r^3 x mean(e x)     dz = dout x r weight act'(z)     dweight += dout x r act(z)
 *
 * Long rows pass through in pieces, as in cpu/norm.c. An item is a block of rows, over which it
 * adds up dweight; blocks are then added in their order.
 */
#include <math.h>
#include <string.h>

#include "calls/norm.h"
#include "calls/op_backends.h"
#include "cpu/rows.h"

/* The part of a row in work, from element `first` on. e: the gradient of x r. x_row, z_row and
 * dout_row hold rows that are not dense float32 in their tensors. */
struct piece {
    int64_t row, first;
    size_t n;
    const float *x, *dout;
    _Alignas(64) float x_row[GDN_PIECE], z_row[GDN_PIECE], dout_row[GDN_PIECE];
    _Alignas(64) float act[GDN_PIECE], slope[GDN_PIECE], e[GDN_PIECE], weight[GDN_PIECE];
};

/* dx = of_e e + of_x x; of_e is r. */
struct factors {
    float of_e, of_x;
};

static const float *row_of(const struct gdn_rmsnorm_backward *s, const struct piece *p,
                           const gdn_tensor *t, float *buffer)
{
    return gdn_row_floats(s->kr, t, p->row, p->first, p->n, buffer);
}

static void load_weight(const struct gdn_rmsnorm_backward *s, struct piece *p, int64_t first)
{
    p->first = first;
    p->n = (size_t)(s->D - first < GDN_PIECE ? s->D - first : GDN_PIECE);
    gdn_load_piece(p->weight, &s->args.weight, first, (int64_t)p->n, 1);
}

/* Loads a piece. The weights of a row in one piece are loaded before. */
static void load(const struct gdn_rmsnorm_backward *s, struct piece *p, int64_t first)
{
    const struct gdn_kernels *kr = s->kr;
    if (s->D > GDN_PIECE) load_weight(s, p, first);
    p->x = row_of(s, p, &s->args.x, p->x_row);
    p->dout = row_of(s, p, &s->args.dout, p->dout_row);
    kr->norm_row(p->e, p->dout, 1, p->weight, NULL, false, p->n);
    if (!s->args.z.data) return;
    kr->slope_row(p->act, s->args.dz.data ? p->slope : NULL, row_of(s, p, &s->args.z, p->z_row),
                  s->sigmoid, p->n);
    kr->norm_row(p->e, p->e, 1, p->act, NULL, false, p->n);
}

static struct factors load_sums(const struct gdn_rmsnorm_backward *s, struct piece *p)
{
    double xx = 0, xe = 0;
    for (int64_t first = 0; first < s->D; first += GDN_PIECE) {
        load(s, p, first);
        xx += (double)s->kr->dot(p->x, p->x, p->n);
        xe += (double)s->kr->dot(p->x, p->e, p->n);
    }
    const double D = (double)s->D, r = 1 / sqrt(xx / D + (double)s->args.eps);
    return (struct factors){ (float)r, (float)(-(r * xe / D) * (r * r)) };
}

/* Writes dz and adds to sums (may be NULL) what both have of dout x r. */
static void write_rest(const struct gdn_rmsnorm_backward *s, const struct piece *p, float r,
                       float *restrict sums)
{
    const struct gdn_kernels *kr = s->kr;
    const size_t n = p->n;
    _Alignas(64) float of_both[GDN_PIECE], d[GDN_PIECE];
    kr->norm_row(of_both, p->dout, r, p->x, NULL, false, n);
    if (sums) {
        kr->norm_row(d, of_both, 1, s->args.z.data ? p->act : NULL, NULL, false, n);
        for (size_t i = 0; i < n; i++) sums[i] += d[i];
    }
    if (!s->args.dz.data) return;
    kr->norm_row(d, of_both, 1, p->weight, NULL, false, n);
    kr->norm_row(d, d, 1, p->slope, NULL, false, n);
    gdn_store_gradient(kr, &s->args.dz, p->row, p->first, d, n, s->adds);
}

static void write_row(const struct gdn_rmsnorm_backward *s, struct piece *p, struct factors f,
                      float *sums)
{
    for (int64_t first = 0; first < s->D; first += GDN_PIECE) {
        if (s->D > GDN_PIECE) load(s, p, first); /* else it is there */
        if (sums || s->args.dz.data) write_rest(s, p, f.of_e, sums ? sums + first : NULL);
        if (!s->args.dx.data) continue;
        s->kr->add_outer(p->e, 1, (int)p->n, f.of_e, &f.of_x, p->x);
        gdn_store_gradient(s->kr, &s->args.dx, p->row, first, p->e, p->n, s->adds);
    }
}

static void run_rmsnorm_gated_backward_item(void *arg, int64_t block, int thread)
{
    (void)thread;
    const struct gdn_rmsnorm_backward *s = arg;
    float *sums = s->sums ? s->sums + block * s->D : NULL;
    const int64_t row = block * s->rows, left = s->n_rows - row;
    struct piece p;
    load_weight(s, &p, 0);
    if (sums) memset(sums, 0, (size_t)s->D * sizeof *sums);
    for (p.row = row; p.row < row + (left < s->rows ? left : s->rows); p.row++)
        write_row(s, &p, load_sums(s, &p), sums);
}

static gdn_status plan_rmsnorm_gated_backward(gdn_ctx *ctx, void *call)
{
    struct gdn_rmsnorm_backward *s = call;
    gdn_rmsnorm_gated_backward_args *a = &s->args;
    s->kr = ctx->kr;
    gdn_tensor *const rows[] = { &a->x, &a->dout, &a->z, &a->dx, &a->dz };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i]->data) gdn_merge_rows(rows[i]);
    gdn_rmsnorm_backward_cut(s, gdn_rows_per_item(s->D));
    return GDN_OK;
}

static gdn_status run_rmsnorm_gated_backward(gdn_ctx *ctx, void *call, void *memory)
{
    struct gdn_rmsnorm_backward *s = call;
    s->sums = s->base.bytes ? memory : NULL;
    gdn_parallel_for(ctx->threads, s->n_blocks, run_rmsnorm_gated_backward_item, s);
    gdn_store_sums(&s->args.dweight, s->sums, s->n_blocks, s->D, s->D, s->adds);
    return gdn_note_kernel(ctx, s->base.op, "dot norm_row add_outer slope_row");
}

const struct gdn_op_backend gdn_cpu_op_rmsnorm_gated_backward = { plan_rmsnorm_gated_backward,
                                                                  run_rmsnorm_gated_backward };
