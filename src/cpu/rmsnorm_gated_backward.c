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

/* The part of a row in work, from element `first` on. e: the gradient of x r. */
struct piece {
    int64_t row, first;
    size_t  n;
    float   x[GDN_PIECE], z[GDN_PIECE], dout[GDN_PIECE], e[GDN_PIECE], weight[GDN_PIECE];
};

/* dx = of_e e + of_x x; of_e is r. */
struct factors {
    float of_e, of_x;
};

static void load_row(const struct gdn_rmsnorm_backward *s, const struct piece *p,
                     const gdn_tensor *t, float *to)
{
    s->kr->load_row[t->dtype](to, gdn_row_at(t, p->row, p->first), p->n);
}

static void load_weight(const struct gdn_rmsnorm_backward *s, struct piece *p, int64_t first)
{
    p->first = first;
    p->n     = (size_t)(s->D - first < GDN_PIECE ? s->D - first : GDN_PIECE);
    gdn_load_piece(p->weight, &s->args.weight, first, (int64_t)p->n, 1);
}

static const float *gate_of(const struct gdn_rmsnorm_backward *s, const struct piece *p)
{
    return s->args.z.data ? p->z : NULL;
}

/* The weights of a row in one piece are there already. */
static void load(const struct gdn_rmsnorm_backward *s, struct piece *p, int64_t first)
{
    if (s->D > GDN_PIECE) load_weight(s, p, first);
    load_row(s, p, &s->args.x, p->x);
    load_row(s, p, &s->args.dout, p->dout);
    if (s->args.z.data) load_row(s, p, &s->args.z, p->z);
    s->kr->norm_row(p->e, p->dout, 1, p->weight, gate_of(s, p), s->sigmoid, p->n);
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

static void add_weights(const struct gdn_rmsnorm_backward *s, const struct piece *p, float r,
                        float *sums)
{
    float d[GDN_PIECE];
    s->kr->norm_row(d, p->dout, r, p->x, gate_of(s, p), s->sigmoid, p->n);
    for (size_t i = 0; i < p->n; i++) sums[i] += d[i];
}

/* The slope of z sigmoid(z) is sigmoid(z) (1 + z sigmoid(-z)). */
static void write_dz(const struct gdn_rmsnorm_backward *s, const struct piece *p, float r)
{
    float dz[GDN_PIECE], y[GDN_PIECE], rest[GDN_PIECE];
    for (size_t i = 0; i < p->n; i++) rest[i] = -p->z[i];
    s->kr->norm_row(dz, p->dout, r, p->x, NULL, false, p->n);
    s->kr->sigmoid_row(y, p->z, 1, p->n);
    s->kr->sigmoid_row(rest, rest, 1, p->n);
    for (size_t i = 0; i < p->n; i++) {
        const float z     = p->z[i];
        const float slope = s->sigmoid ? y[i] * rest[i]
                            : isinf(z) ? (float)(z > 0)
                                       : y[i] * (1 + z * rest[i]);
        dz[i] *= p->weight[i] * slope;
    }
    gdn_store_gradient(s->kr, &s->args.dz, p->row, p->first, dz, p->n, s->adds);
}

static void write_row(const struct gdn_rmsnorm_backward *s, struct piece *p, struct factors f,
                      float *sums)
{
    for (int64_t first = 0; first < s->D; first += GDN_PIECE) {
        if (s->D > GDN_PIECE) load(s, p, first); /* else it is there */
        if (sums) add_weights(s, p, f.of_e, sums + first);
        if (s->args.dz.data) write_dz(s, p, f.of_e);
        if (!s->args.dx.data) continue;
        s->kr->add_outer(p->e, 1, (int)p->n, f.of_e, &f.of_x, p->x);
        gdn_store_gradient(s->kr, &s->args.dx, p->row, first, p->e, p->n, s->adds);
    }
}

static void run_item(void *arg, int64_t block, int thread)
{
    (void)thread;
    const struct gdn_rmsnorm_backward *s    = arg;
    float                         *sums = s->sums ? s->sums + block * s->D : NULL;
    const int64_t                  row = block * s->rows, left = s->n_rows - row;
    struct piece                   p;
    load_weight(s, &p, 0);
    if (sums) memset(sums, 0, (size_t)s->D * sizeof *sums);
    for (p.row = row; p.row < row + (left < s->rows ? left : s->rows); p.row++)
        write_row(s, &p, load_sums(s, &p), sums);
}

static gdn_status plan(gdn_ctx *ctx, void *call)
{
    struct gdn_rmsnorm_backward *s = call;
    (void)ctx;
    gdn_rmsnorm_backward_cut(s, gdn_rows_per_item(s->D));
    return GDN_OK;
}

static gdn_status run(gdn_ctx *ctx, void *call, void *memory)
{
    struct gdn_rmsnorm_backward *s = call;
    s->sums = s->base.bytes ? memory : NULL;
    gdn_parallel_for(ctx->threads, s->n_blocks, run_item, s);
    gdn_store_sums(&s->args.dweight, s->sums, s->n_blocks, s->D, s->D, s->adds);
    return gdn_note_kernel(ctx, s->base.op, "dot norm_row add_outer sigmoid_row");
}

const struct gdn_op_backend gdn_cpu_op_rmsnorm_gated_backward = { plan, run };
