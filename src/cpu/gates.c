/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_gates: rows of H heads. An item takes some rows, GDN_PIECE heads at a time, so that the
 * decays of these heads are computed once.
 */
#include "calls/gates.h"
#include "calls/op_backends.h"
#include "cpu/rows.h"

/* Some heads of some rows. */
struct piece {
    int64_t row, end, first; /* rows row..end-1, heads from first on */
    size_t n;
};

/* Computes n gates of a row, from element `first` on. */
static void write_row(const struct gdn_gates_call *s, int64_t row, int64_t first, const float *A,
                      const float *dt, size_t n)
{
    const gdn_gates_args *a = &s->args;
    _Alignas(64) float g[GDN_PIECE];
    gdn_load_part(s->kr, g, &a->a, row, first, n);
    gdn_raw_gates(s->kr, g, A, dt, a->gate_lower_bound, n);
    if (a->gate == GDN_GATE_LINEAR) s->kr->exp_row(g, g, n);
    gdn_store_part(s->kr, &a->g, row, first, g, n);
}

/* Rows of the channels of one head each. */
static void write_channels(const struct gdn_gates_call *s, const struct piece *p)
{
    const gdn_gates_args *a = &s->args;
    const size_t K = (size_t)s->K;
    _Alignas(64) float A[GDN_MAX_HEAD], dt[GDN_MAX_HEAD];
    for (int64_t row = p->row; row < p->end; row++) {
        gdn_load_piece(A, &a->A_log, row % s->H, 1, 0);
        A[0] = gdn_raw_factor(A[0], a->gate_lower_bound);
        for (size_t x = 1; x < K; x++) A[x] = A[0];
        gdn_load_part(s->kr, dt, &a->dt_bias, row % s->H, 0, K);
        write_row(s, row, 0, A, dt, K);
    }
}

static void write_g(const struct gdn_gates_call *s, const struct piece *p)
{
    const gdn_gates_args *a = &s->args;
    _Alignas(64) float A[GDN_PIECE], dt[GDN_PIECE];
    gdn_load_piece(A, &a->A_log, p->first, (int64_t)p->n, 0);
    gdn_load_piece(dt, &a->dt_bias, p->first, (int64_t)p->n, 0);
    for (size_t h = 0; h < p->n; h++) A[h] = gdn_raw_factor(A[h], a->gate_lower_bound);
    for (int64_t row = p->row; row < p->end; row++) write_row(s, row, p->first, A, dt, p->n);
}

static void write_beta(const struct gdn_gates_call *s, const struct piece *p)
{
    const gdn_gates_args *a = &s->args;
    const float factor = a->beta_kind == GDN_BETA_TWICE_SIGMOID ? 2.0f : 1.0f;
    _Alignas(64) float beta[GDN_PIECE];
    for (int64_t row = p->row; row < p->end; row++) {
        gdn_load_part(s->kr, beta, &a->b, row, p->first, p->n);
        s->kr->sigmoid_row(beta, beta, factor, p->n);
        gdn_store_part(s->kr, &a->beta, row, p->first, beta, p->n);
    }
}

static void run_gates_item(void *arg, int64_t item, int thread)
{
    (void)thread;
    const struct gdn_gates_call *s = arg;
    struct piece p = { .row = item * s->rows_per_item };
    p.end = s->n_rows - p.row < s->rows_per_item ? s->n_rows : p.row + s->rows_per_item;
    if (s->K) write_channels(s, &p);
    for (p.first = 0; s->args.g.data && !s->K && p.first < s->H; p.first += GDN_PIECE) {
        p.n = (size_t)(s->H - p.first < GDN_PIECE ? s->H - p.first : GDN_PIECE);
        write_g(s, &p);
    }
    if (p.end > s->b_rows) p.end = s->b_rows; /* b has as many rows as a, or one for H of them */
    for (p.first = 0; p.first < s->b_size; p.first += GDN_PIECE) {
        p.n = (size_t)(s->b_size - p.first < GDN_PIECE ? s->b_size - p.first : GDN_PIECE);
        write_beta(s, &p);
    }
}

static const char *loops_of(const gdn_gates_args *a)
{
    const bool sigmoid = a->gate_lower_bound < 0;
    if (!a->g.data) return "sigmoid_row";
    if (!a->beta.data) return sigmoid ? "sigmoid_row" : "gate_row";
    return sigmoid ? "sigmoid_row" : "gate_row sigmoid_row";
}

static gdn_status run_gates(gdn_ctx *ctx, void *call, void *memory)
{
    struct gdn_gates_call *s = call;
    (void)memory;
    s->kr = ctx->kr;
    gdn_parallel_for(ctx->threads, (s->n_rows + s->rows_per_item - 1) / s->rows_per_item,
                     run_gates_item, s);
    return gdn_note_kernel(ctx, s->base.op, loops_of(&s->args));
}

const struct gdn_op_backend gdn_cpu_op_gates = { .run = run_gates };
