/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_gates_backward: rows of H heads, as in cpu/gates.c. An item is a block of rows, over which it
 * adds up what A_log and dt_bias get; blocks are then added in their order.
 */
#include <math.h>

#include "calls/gates.h"
#include "calls/op_backends.h"
#include "cpu/rows.h"

/* Some heads of some rows. */
struct piece {
    int64_t row, end, first; /* rows row..end-1, heads from first on */
    size_t n;
};

/* The vectors of some heads; A: exp(A_log). */
struct decay {
    float A[GDN_PIECE], minus_A[GDN_PIECE], dt[GDN_PIECE];
    float dA_log[GDN_PIECE], ddt_bias[GDN_PIECE];
};

/* Values of some heads in one row: x = a + dt_bias; slope: dg / da of the log gate g; dg becomes
 * da. */
struct row {
    float x[GDN_PIECE], g[GDN_PIECE], slope[GDN_PIECE], dg[GDN_PIECE];
};

/* Returns a product in which a gradient of zero stays zero although its factor is infinite. */
static float times(float gradient, float x) { return gradient == 0 && isinf(x) ? 0 : gradient * x; }

static void find_slope(const struct gdn_gates_backward_call *s, const struct decay *d,
                       struct row *r, size_t n)
{
    const float bound = s->args.gate_lower_bound;
    if (bound < 0) { /* g = bound sigmoid(A x), of which the slope is A g sigmoid(-A x) */
        float *y = r->slope;
        for (size_t h = 0; h < n; h++) r->x[h] += d->dt[h];
        for (size_t h = 0; h < n; h++) y[h] = d->A[h] * r->x[h];
        s->kr->sigmoid_row(r->g, y, bound, n);
        for (size_t h = 0; h < n; h++) y[h] = -y[h];
        s->kr->sigmoid_row(y, y, 1, n);
        for (size_t h = 0; h < n; h++) r->slope[h] = d->A[h] * (r->g[h] * y[h]);
    } else { /* g = -A softplus(x) */
        s->kr->gate_row(r->g, r->x, d->minus_A, d->dt, n);
        for (size_t h = 0; h < n; h++) r->x[h] += d->dt[h];
        s->kr->sigmoid_row(r->slope, r->x, 1, n);
        for (size_t h = 0; h < n; h++) r->slope[h] *= d->minus_A[h];
    }
}

static void gate_row(const struct gdn_gates_backward_call *s, struct decay *d, struct row *r,
                     size_t n)
{
    const bool is_bounded = s->args.gate_lower_bound < 0;
    find_slope(s, d, r, n);
    if (s->args.gate == GDN_GATE_LINEAR) {
        float alpha[GDN_PIECE];
        s->kr->exp_row(alpha, r->g, n);
        for (size_t h = 0; h < n; h++) r->dg[h] *= alpha[h];
    }
    for (size_t h = 0; h < n; h++) {
        const float dg = r->dg[h], da = times(dg, r->slope[h]);
        d->dA_log[h] += is_bounded ? times(da, r->x[h]) : times(dg, r->g[h]);
        d->ddt_bias[h] += da;
        r->dg[h] = da;
    }
}

/* Adds n numbers of a row, from element `first` on, to d's sums, and stores their da. */
static void write_row(const struct gdn_gates_backward_call *s, struct decay *d, struct row *r,
                      int64_t row, int64_t first, size_t n)
{
    const gdn_gates_backward_args *a = &s->args;
    gdn_load_part(s->kr, r->x, &a->a, row, first, n);
    gdn_load_part(s->kr, r->dg, &a->dg, row, first, n);
    gate_row(s, d, r, n);
    if (a->da.data) gdn_store_gradient(s->kr, &a->da, row, first, r->dg, n, s->adds);
}

static void write_da(const struct gdn_gates_backward_call *s, const struct piece *p, float *sums)
{
    const gdn_gates_backward_args *a = &s->args;
    struct decay d = { { 0 }, { 0 }, { 0 }, { 0 }, { 0 } };
    struct row r;
    gdn_load_piece(d.A, &a->A_log, p->first, (int64_t)p->n, 0);
    gdn_load_piece(d.dt, &a->dt_bias, p->first, (int64_t)p->n, 0);
    for (size_t h = 0; h < p->n; h++) d.A[h] = expf(d.A[h]), d.minus_A[h] = -d.A[h];
    for (int64_t row = p->row; row < p->end; row++) write_row(s, &d, &r, row, p->first, p->n);
    if (!sums) return;
    memcpy(sums + p->first, d.dA_log, p->n * sizeof *sums);
    memcpy(sums + s->H + p->first, d.ddt_bias, p->n * sizeof *sums);
}

/* Does the same for a block of rows with gates per channel. */
static void write_da_channels(const struct gdn_gates_backward_call *s, int64_t first, int64_t end,
                              float *sums)
{
    const gdn_gates_backward_args *a = &s->args;
    const size_t K = (size_t)s->K;
    struct decay d;
    struct row r;
    if (sums) memset(sums, 0, (size_t)gdn_gates_sums(s) * sizeof *sums);
    for (int64_t row = first; row < end; row++) {
        const int64_t h = row % s->H;
        memset(&d, 0, sizeof d);
        gdn_load_piece(d.A, &a->A_log, h, 1, 0);
        gdn_load_part(s->kr, d.dt, &a->dt_bias, h, 0, K);
        d.A[0] = expf(d.A[0]);
        for (size_t x = 0; x < K; x++) d.A[x] = d.A[0], d.minus_A[x] = -d.A[0];
        write_row(s, &d, &r, row, 0, K);
        for (size_t x = 0; sums && x < K; x++) {
            sums[h] += d.dA_log[x];
            sums[s->H + h * s->K + (int64_t)x] += d.ddt_bias[x];
        }
    }
}

static void write_db(const struct gdn_gates_backward_call *s, const struct piece *p)
{
    const gdn_gates_backward_args *a = &s->args;
    const float factor = a->beta_kind == GDN_BETA_TWICE_SIGMOID ? 2.0f : 1.0f;
    float b[GDN_PIECE], beta[GDN_PIECE], db[GDN_PIECE];
    for (int64_t row = p->row; row < p->end; row++) {
        gdn_load_part(s->kr, b, &a->b, row, p->first, p->n);
        gdn_load_part(s->kr, db, &a->dbeta, row, p->first, p->n);
        s->kr->sigmoid_row(beta, b, factor, p->n);
        for (size_t h = 0; h < p->n; h++) b[h] = -b[h];
        s->kr->sigmoid_row(b, b, 1, p->n);
        for (size_t h = 0; h < p->n; h++) db[h] *= beta[h] * b[h];
        gdn_store_gradient(s->kr, &a->db, row, p->first, db, p->n, s->adds);
    }
}

static void run_gates_backward_item(void *arg, int64_t block, int thread)
{
    (void)thread;
    const struct gdn_gates_backward_call *s = arg;
    float *sums = s->sums ? s->sums + block * gdn_gates_sums(s) : NULL;
    struct piece p = { .row = block * s->rows };
    p.end = s->n_rows - p.row < s->rows ? s->n_rows : p.row + s->rows;
    if (s->K && s->wants_a) write_da_channels(s, p.row, p.end, sums);
    for (p.first = 0; s->wants_a && !s->K && p.first < s->H; p.first += GDN_PIECE) {
        p.n = (size_t)(s->H - p.first < GDN_PIECE ? s->H - p.first : GDN_PIECE);
        write_da(s, &p, sums);
    }
    if (p.end > s->b_rows) p.end = s->b_rows; /* as many as a has, or one for H of them */
    for (p.first = 0; s->args.db.data && p.first < s->b_size; p.first += GDN_PIECE) {
        p.n = (size_t)(s->b_size - p.first < GDN_PIECE ? s->b_size - p.first : GDN_PIECE);
        write_db(s, &p);
    }
}

/* Stores the sums of ddt_bias [H][K], head by head. */
static void store_bias(const struct gdn_gates_backward_call *s)
{
    const gdn_tensor *t = &s->args.ddt_bias;
    for (int64_t h = 0; t->data && h < s->H; h++) {
        gdn_tensor row = *t;
        row.data = gdn_at(t, h * t->stride[0]);
        row.stride[0] = t->stride[1];
        gdn_store_sums(&row, s->sums + s->H + h * s->K, s->n_blocks, gdn_gates_sums(s), s->K,
                       s->adds);
    }
}

static gdn_status plan_gates_backward(gdn_ctx *ctx, void *call)
{
    struct gdn_gates_backward_call *s = call;
    s->kr = ctx->kr;
    gdn_gates_cut(s, gdn_rows_per_item(s->K ? s->K : s->H));
    return GDN_OK;
}

static gdn_status run_gates_backward(gdn_ctx *ctx, void *call, void *memory)
{
    struct gdn_gates_backward_call *s = call;
    s->sums = s->base.bytes ? memory : NULL;
    gdn_parallel_for(ctx->threads, s->n_blocks, run_gates_backward_item, s);
    gdn_store_sums(&s->args.dA_log, s->sums, s->n_blocks, gdn_gates_sums(s), s->H, s->adds);
    if (s->K)
        store_bias(s);
    else
        gdn_store_sums(&s->args.ddt_bias, s->sums ? s->sums + s->H : NULL, s->n_blocks, 2 * s->H,
                       s->H, s->adds);
    return gdn_note_kernel(ctx, s->base.op,
                           !s->wants_a || s->args.gate_lower_bound < 0 ? "sigmoid_row"
                                                                       : "gate_row sigmoid_row");
}

const struct gdn_op_backend gdn_cpu_op_gates_backward = { plan_gates_backward, run_gates_backward };
