/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_rmsnorm_gated_backward: with r = 1 / sqrt(mean x^2 + eps) and e = dout weight act(z), the
 * gradient of x r, a row has
 *
 *     dx = r e - r^3 x mean(e x)     dz = dout x r weight act'(z)     dweight += dout x r act(z)
 *
 * Long rows pass through in pieces, as in ops/norm.c. An item is a block of rows, over which it
 * adds up dweight; blocks are then added in their order.
 */
#include <math.h>
#include <string.h>

#include "calls/norm.h"
#include "cuda/driver/backend.h"
#include "ops/entry.h"
#include "ops/op_table.h"

enum { DEVICE_ROWS = 64 }; /* of a block, at least; on a CPU gdn_rows_per_item() */

struct rmsnorm_backward {
    gdn_rmsnorm_gated_backward_args args;
    const struct gdn_kernels       *kr;
    int64_t                         n_rows, D, rows, n_blocks; /* rows of a block */
    float                          *sums;  /* [block][D], or NULL */
    size_t                          bytes; /* of sums */
    bool                            sigmoid, adds;
};

/* ---- Descriptors ------------------------------------------------------------------------- */

static gdn_status check_fields(gdn_ctx *ctx, const gdn_rmsnorm_gated_backward_args *a)
{
    if (a->flags & ~(uint32_t)GDN_ACCUMULATE)
        return gdn_fail(ctx, GDN_E_ARG, "flags: 0x%x, wanted 0 or GDN_ACCUMULATE",
                        (unsigned)a->flags);
    TRY(gdn_norm_check_activation(ctx, a->activation));
    return gdn_norm_check_eps(ctx, a->eps);
}

static gdn_status check_present(gdn_ctx *ctx, const gdn_rmsnorm_gated_backward_args *a)
{
    if (!a->dx.data && !a->dz.data && !a->dweight.data)
        return gdn_fail(ctx, GDN_E_ARG, "dx: absent, and every other gradient too, wanted one");
    if (!a->dout.data) return gdn_fail(ctx, GDN_E_ARG, "dout: absent");
    if (a->dz.data && !a->z.data) return gdn_fail(ctx, GDN_E_ARG, "z: absent, wanted for dz");
    return GDN_OK;
}

/* What is written overlaps nothing else, nor itself. */
static gdn_status check_overlaps(gdn_ctx *ctx, const gdn_rmsnorm_gated_backward_args *a)
{
    enum { N = 7, FIRST = 4 }; /* the first that is written */
    const struct {
        const gdn_tensor *t;
        const char       *name;
    } all[N] = { { &a->x, "x" },   { &a->z, "z" },   { &a->weight, "weight" }, { &a->dout, "dout" },
                 { &a->dx, "dx" }, { &a->dz, "dz" }, { &a->dweight, "dweight" } };
    for (int i = FIRST; i < N; i++) {
        if (!all[i].t->data) continue;
        TRY(gdn_check_injective(ctx, all[i].t, all[i].name));
        for (int j = 0; j < i; j++)
            TRY(gdn_check_no_overlap(ctx, all[i].t, all[i].name, all[j].t, all[j].name, false));
    }
    return GDN_OK;
}

static gdn_status check_tensors(gdn_ctx *ctx, const gdn_rmsnorm_gated_backward_args *a)
{
    const int64_t D = a->x.size[a->x.ndim - 1];
    TRY(gdn_norm_check_like(ctx, &a->x, &a->z, "z"));
    TRY(gdn_norm_check_like(ctx, &a->x, &a->dout, "dout"));
    TRY(gdn_norm_check_like(ctx, &a->x, &a->dx, "dx"));
    TRY(gdn_norm_check_like(ctx, &a->x, &a->dz, "dz"));
    TRY(gdn_norm_check_weight(ctx, &a->weight, "weight", GDN_FLOATS, D));
    TRY(gdn_norm_check_weight(ctx, &a->dweight, "dweight", 1 << GDN_F32, D));
    return check_overlaps(ctx, a);
}

static gdn_status describe(gdn_ctx *ctx, const void *args, void *call)
{
    struct rmsnorm_backward         *s = call;
    gdn_rmsnorm_gated_backward_args *a = &s->args;
    *s                                 = (struct rmsnorm_backward){ .kr = ctx->kr };
    TRY(gdn_copy_args(ctx, a, sizeof *a, args, "gdn_rmsnorm_gated_backward_args"));
    TRY(check_fields(ctx, a));
    TRY(check_present(ctx, a));
    TRY(gdn_norm_check_rows(ctx, &a->x));
    TRY(check_tensors(ctx, a));
    if (a->eps == 0) a->eps = 1e-6f;
    s->D        = a->x.size[a->x.ndim - 1];
    s->n_rows   = gdn_n_rows(&a->x);
    s->rows     = gdn_rows_per_block(s->n_rows, ctx->cuda ? DEVICE_ROWS : gdn_rows_per_item(s->D));
    s->n_blocks = (s->n_rows + s->rows - 1) / s->rows;
    s->sigmoid  = a->activation == GDN_ACT_SIGMOID;
    s->adds     = a->flags & GDN_ACCUMULATE;
    if (a->dweight.data) s->bytes = (size_t)(s->n_blocks * s->D) * sizeof(float);
    return GDN_OK;
}

/* ---- Running ----------------------------------------------------------------------------- */

/* What is in work of a row, from element `first` on. e: the gradient of x r. */
struct piece {
    int64_t row, first;
    size_t  n;
    float   x[GDN_PIECE], z[GDN_PIECE], dout[GDN_PIECE], e[GDN_PIECE], weight[GDN_PIECE];
};

/* dx = of_e e + of_x x; of_e is r. */
struct factors {
    float of_e, of_x;
};

static void load_row(const struct rmsnorm_backward *s, const struct piece *p, const gdn_tensor *t,
                     float *to)
{
    s->kr->load_row[t->dtype](to, gdn_row_at(t, p->row, p->first), p->n);
}

static void load_weight(const struct rmsnorm_backward *s, struct piece *p, int64_t first)
{
    p->first = first;
    p->n     = (size_t)(s->D - first < GDN_PIECE ? s->D - first : GDN_PIECE);
    gdn_load_piece(p->weight, &s->args.weight, first, (int64_t)p->n, 1);
}

static const float *gate_of(const struct rmsnorm_backward *s, const struct piece *p)
{
    return s->args.z.data ? p->z : NULL;
}

/* The weights of a row in one piece are there already. */
static void load(const struct rmsnorm_backward *s, struct piece *p, int64_t first)
{
    if (s->D > GDN_PIECE) load_weight(s, p, first);
    load_row(s, p, &s->args.x, p->x);
    load_row(s, p, &s->args.dout, p->dout);
    if (s->args.z.data) load_row(s, p, &s->args.z, p->z);
    s->kr->norm_row(p->e, p->dout, 1, p->weight, gate_of(s, p), s->sigmoid, p->n);
}

static struct factors load_sums(const struct rmsnorm_backward *s, struct piece *p)
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

static void add_weights(const struct rmsnorm_backward *s, const struct piece *p, float r,
                        float *sums)
{
    float d[GDN_PIECE];
    s->kr->norm_row(d, p->dout, r, p->x, gate_of(s, p), s->sigmoid, p->n);
    for (size_t i = 0; i < p->n; i++) sums[i] += d[i];
}

/* The slope of z sigmoid(z) is sigmoid(z) (1 + z sigmoid(-z)). */
static void write_dz(const struct rmsnorm_backward *s, const struct piece *p, float r)
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

static void write_row(const struct rmsnorm_backward *s, struct piece *p, struct factors f,
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
    const struct rmsnorm_backward *s    = arg;
    float                         *sums = s->sums ? s->sums + block * s->D : NULL;
    const int64_t                  row = block * s->rows, left = s->n_rows - row;
    struct piece                   p;
    load_weight(s, &p, 0);
    if (sums) memset(sums, 0, (size_t)s->D * sizeof *sums);
    for (p.row = row; p.row < row + (left < s->rows ? left : s->rows); p.row++)
        write_row(s, &p, load_sums(s, &p), sums);
}

static gdn_status run(gdn_ctx *ctx, void *call)
{
    struct rmsnorm_backward *s = call;
    void                    *memory;
    TRY(gdn_get_workspace(ctx, s->args.workspace, s->args.workspace_bytes, s->bytes, &memory));
    s->sums = s->bytes ? memory : NULL;
    gdn_parallel_for(ctx->pool, s->n_blocks, run_item, s);
    gdn_store_sums(&s->args.dweight, s->sums, s->n_blocks, s->D, s->D, s->adds);
    return GDN_OK;
}

static gdn_status enqueue(gdn_ctx *ctx, void *call)
{
    const struct rmsnorm_backward         *s = call;
    const gdn_rmsnorm_gated_backward_args *a = &s->args;
    void                                  *memory;
    TRY(gdn_cuda_get_workspace(ctx, a->workspace, a->workspace_bytes, s->bytes, &memory));
    struct gdn_cu_rmsnorm_backward args = {
        .weight   = gdn_cuda_array(&a->weight),
        .dweight  = gdn_cuda_array(&a->dweight),
        .sums     = s->bytes ? memory : NULL,
        .n_lines  = s->n_rows,
        .D        = s->D,
        .rows     = s->rows,
        .n_blocks = s->n_blocks,
        .eps      = a->eps,
        .sigmoid  = s->sigmoid,
        .adds     = s->adds,
    };
    gdn_cuda_lines((const gdn_tensor *const[]){ &a->x, &a->z, &a->dout, &a->dx, &a->dz }, 5,
                   &args.leads,
                   (struct gdn_cu_lines *const[]){ &args.x, &args.z, &args.dout, &args.dx,
                                                   &args.dz });
    return gdn_cuda_rmsnorm_backward(ctx, &args, a->stream);
}

static const struct gdn_frame frame = {
    .describe = describe,
    .run      = run,
    .enqueue  = enqueue,
    .bytes_at = offsetof(struct rmsnorm_backward, bytes),
    .loops    = "dot norm_row add_outer sigmoid_row",
};
GDN_OP_ENTRY(rmsnorm_gated_backward, gdn_rmsnorm_gated_backward_args, frame,
             struct rmsnorm_backward)
