/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_gates_backward: rows of H heads, as in ops/gates.c. An item is a block of rows, over which it
 * adds up what A_log and dt_bias get; blocks are then added in their order.
 */
#include <math.h>

#include "calls/gates.h"
#include "cuda/driver/backend.h"
#include "ops/entry.h"
#include "ops/op_table.h"

enum { DEVICE_ROWS = 32 }; /* of a block, at least; on a CPU gdn_rows_per_item() */

struct gates_backward {
    gdn_gates_backward_args   args;
    const struct gdn_kernels *kr;
    int64_t                   n_rows, H, rows, n_blocks; /* rows of a block */
    float                    *sums;  /* [block][2][H]: dA_log, ddt_bias; or NULL */
    size_t                    bytes; /* of sums */
    bool                      adds;
};

/* ---- Descriptors ------------------------------------------------------------------------- */

static bool wants_a(const gdn_gates_backward_args *a)
{
    return a->da.data || a->dA_log.data || a->ddt_bias.data;
}

static gdn_status check_fields(gdn_ctx *ctx, const gdn_gates_backward_args *a)
{
    if (a->flags & ~(uint32_t)GDN_ACCUMULATE)
        return gdn_fail(ctx, GDN_E_ARG, "flags: 0x%x, wanted 0 or GDN_ACCUMULATE",
                        (unsigned)a->flags);
    if (a->reserved) return gdn_fail(ctx, GDN_E_ARG, "reserved: %d, wanted 0", (int)a->reserved);
    return gdn_gates_check_formula(ctx, a->gate, a->beta_kind, a->gate_lower_bound);
}

/* Gradients have what they are made of. */
static gdn_status check_present(gdn_ctx *ctx, const gdn_gates_backward_args *a)
{
    const struct {
        const gdn_tensor *t;
        const char       *name;
        bool              wanted;
        const char       *by;
    } inputs[] = { { &a->a, "a", wants_a(a), "da, dA_log and ddt_bias" },
                   { &a->A_log, "A_log", wants_a(a), "da, dA_log and ddt_bias" },
                   { &a->dg, "dg", wants_a(a), "da, dA_log and ddt_bias" },
                   { &a->b, "b", a->db.data, "db" },
                   { &a->dbeta, "dbeta", a->db.data, "db" } };
    if (!wants_a(a) && !a->db.data)
        return gdn_fail(ctx, GDN_E_ARG, "da: absent, and every other gradient too, wanted one");
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        if (inputs[i].wanted && !inputs[i].t->data)
            return gdn_fail(ctx, GDN_E_ARG, "%s: absent, wanted for %s", inputs[i].name,
                            inputs[i].by);
    return GDN_OK;
}

static gdn_status check_rows(gdn_ctx *ctx, const gdn_tensor *like, const gdn_tensor *t,
                             const char *name)
{
    if (!t->data) return GDN_OK;
    TRY(gdn_check_tensor(ctx, t, name));
    TRY(gdn_check_dtype(ctx, t, name, GDN_FLOATS));
    if (t->ndim < 2)
        return gdn_fail(ctx, GDN_E_SHAPE, "%s: 1 dimension, wanted 2 to %d", name, GDN_MAX_DIMS);
    TRY(gdn_check_shape(ctx, t, name, like->ndim, like->size));
    return gdn_check_dense(ctx, t, name);
}

static gdn_status check_vector(gdn_ctx *ctx, const gdn_tensor *t, const char *name, unsigned dtypes,
                               int64_t H)
{
    return t->data ? gdn_gates_check_vector(ctx, t, name, dtypes, H) : GDN_OK;
}

/* What is written overlaps nothing else, nor itself. */
static gdn_status check_overlaps(gdn_ctx *ctx, const gdn_gates_backward_args *a)
{
    enum { N = 10, FIRST = 6 }; /* the first that is written */
    const struct {
        const gdn_tensor *t;
        const char       *name;
    } all[N] = { { &a->a, "a" },           { &a->b, "b" },   { &a->A_log, "A_log" },
                 { &a->dt_bias, "dt_bias" }, { &a->dg, "dg" }, { &a->dbeta, "dbeta" },
                 { &a->da, "da" },         { &a->db, "db" }, { &a->dA_log, "dA_log" },
                 { &a->ddt_bias, "ddt_bias" } };
    for (int i = FIRST; i < N; i++) {
        if (!all[i].t->data) continue;
        TRY(gdn_check_injective(ctx, all[i].t, all[i].name));
        for (int j = 0; j < i; j++)
            TRY(gdn_check_no_overlap(ctx, all[i].t, all[i].name, all[j].t, all[j].name, false));
    }
    return GDN_OK;
}

static gdn_status check_tensors(gdn_ctx *ctx, const gdn_gates_backward_args *a,
                                const gdn_tensor *like)
{
    const int64_t H = like->size[like->ndim - 1];
    TRY(check_rows(ctx, like, &a->b, "b"));
    TRY(check_rows(ctx, like, &a->dg, "dg"));
    TRY(check_rows(ctx, like, &a->dbeta, "dbeta"));
    TRY(check_rows(ctx, like, &a->da, "da"));
    TRY(check_rows(ctx, like, &a->db, "db"));
    TRY(check_vector(ctx, &a->A_log, "A_log", GDN_FLOATS, H));
    TRY(check_vector(ctx, &a->dt_bias, "dt_bias", GDN_FLOATS, H));
    TRY(check_vector(ctx, &a->dA_log, "dA_log", 1 << GDN_F32, H));
    TRY(check_vector(ctx, &a->ddt_bias, "ddt_bias", 1 << GDN_F32, H));
    return check_overlaps(ctx, a);
}

static gdn_status describe(gdn_ctx *ctx, const void *args, void *call)
{
    struct gates_backward         *s = call;
    const gdn_gates_backward_args *a = &s->args;
    *s                               = (struct gates_backward){ .kr = ctx->kr };
    TRY(gdn_copy_args(ctx, &s->args, sizeof s->args, args, "gdn_gates_backward_args"));
    TRY(check_fields(ctx, a));
    TRY(check_present(ctx, a));
    const gdn_tensor *like = a->a.data ? &a->a : &a->b;
    TRY(check_rows(ctx, like, like, a->a.data ? "a" : "b"));
    TRY(check_tensors(ctx, a, like));
    s->H        = like->size[like->ndim - 1];
    s->n_rows   = gdn_n_rows(like);
    s->rows     = gdn_rows_per_block(s->n_rows, ctx->cuda ? DEVICE_ROWS : gdn_rows_per_item(s->H));
    s->n_blocks = (s->n_rows + s->rows - 1) / s->rows;
    s->adds     = a->flags & GDN_ACCUMULATE;
    if (a->dA_log.data || a->ddt_bias.data)
        s->bytes = (size_t)(s->n_blocks * 2 * s->H) * sizeof(float);
    return GDN_OK;
}

/* ---- Running ----------------------------------------------------------------------------- */

/* Some heads of a block's rows. */
struct piece {
    int64_t row, end, first; /* rows row..end-1, heads from first on */
    size_t  n;
};

/* Of some heads; A: exp(A_log). */
struct decay {
    float A[GDN_PIECE], minus_A[GDN_PIECE], dt[GDN_PIECE];
    float dA_log[GDN_PIECE], ddt_bias[GDN_PIECE];
};

/* Of some heads in one row: x = a + dt_bias; slope: dg / da of the log gate g; dg becomes da. */
struct row {
    float x[GDN_PIECE], g[GDN_PIECE], slope[GDN_PIECE], dg[GDN_PIECE];
};

/* A gradient of zero stays zero where its factor is infinite. */
static float times(float gradient, float x)
{
    return gradient == 0 && isinf(x) ? 0 : gradient * x;
}

static void find_slope(const struct gates_backward *s, const struct decay *d, struct row *r,
                       size_t n)
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

static void gate_row(const struct gates_backward *s, struct decay *d, struct row *r, size_t n)
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

static void write_da(const struct gates_backward *s, const struct piece *p, float *sums)
{
    const gdn_gates_backward_args *a = &s->args;
    struct decay                   d = { { 0 }, { 0 }, { 0 }, { 0 }, { 0 } };
    struct row                     r;
    gdn_load_piece(d.A, &a->A_log, p->first, (int64_t)p->n, 0);
    gdn_load_piece(d.dt, &a->dt_bias, p->first, (int64_t)p->n, 0);
    for (size_t h = 0; h < p->n; h++) d.A[h] = expf(d.A[h]), d.minus_A[h] = -d.A[h];
    for (int64_t row = p->row; row < p->end; row++) {
        s->kr->load_row[a->a.dtype](r.x, gdn_row_at(&a->a, row, p->first), p->n);
        s->kr->load_row[a->dg.dtype](r.dg, gdn_row_at(&a->dg, row, p->first), p->n);
        gate_row(s, &d, &r, p->n);
        if (a->da.data) gdn_store_gradient(s->kr, &a->da, row, p->first, r.dg, p->n, s->adds);
    }
    if (!sums) return;
    memcpy(sums + p->first, d.dA_log, p->n * sizeof *sums);
    memcpy(sums + s->H + p->first, d.ddt_bias, p->n * sizeof *sums);
}

static void write_db(const struct gates_backward *s, const struct piece *p)
{
    const gdn_gates_backward_args *a      = &s->args;
    const float                    factor = a->beta_kind == GDN_BETA_TWICE_SIGMOID ? 2.0f : 1.0f;
    float                          b[GDN_PIECE], beta[GDN_PIECE], db[GDN_PIECE];
    for (int64_t row = p->row; row < p->end; row++) {
        s->kr->load_row[a->b.dtype](b, gdn_row_at(&a->b, row, p->first), p->n);
        s->kr->load_row[a->dbeta.dtype](db, gdn_row_at(&a->dbeta, row, p->first), p->n);
        s->kr->sigmoid_row(beta, b, factor, p->n);
        for (size_t h = 0; h < p->n; h++) b[h] = -b[h];
        s->kr->sigmoid_row(b, b, 1, p->n);
        for (size_t h = 0; h < p->n; h++) db[h] *= beta[h] * b[h];
        gdn_store_gradient(s->kr, &a->db, row, p->first, db, p->n, s->adds);
    }
}

static void run_item(void *arg, int64_t block, int thread)
{
    (void)thread;
    const struct gates_backward *s    = arg;
    float                       *sums = s->sums ? s->sums + block * 2 * s->H : NULL;
    struct piece                 p    = { .row = block * s->rows };
    p.end = s->n_rows - p.row < s->rows ? s->n_rows : p.row + s->rows;
    for (p.first = 0; p.first < s->H; p.first += GDN_PIECE) {
        p.n = (size_t)(s->H - p.first < GDN_PIECE ? s->H - p.first : GDN_PIECE);
        if (wants_a(&s->args)) write_da(s, &p, sums);
        if (s->args.db.data) write_db(s, &p);
    }
}

static gdn_status run(gdn_ctx *ctx, void *call)
{
    struct gates_backward *s = call;
    void                  *memory;
    TRY(gdn_get_workspace(ctx, s->args.workspace, s->args.workspace_bytes, s->bytes, &memory));
    s->sums = s->bytes ? memory : NULL;
    gdn_parallel_for(ctx->pool, s->n_blocks, run_item, s);
    gdn_store_sums(&s->args.dA_log, s->sums, s->n_blocks, 2 * s->H, s->H, s->adds);
    gdn_store_sums(&s->args.ddt_bias, s->sums + (s->sums ? s->H : 0), s->n_blocks, 2 * s->H, s->H,
                   s->adds);
    return GDN_OK;
}

static const char *find_loops(void *call, char text[GDN_LOOPS_BYTES])
{
    (void)text;
    const gdn_gates_backward_args *a = &((const struct gates_backward *)call)->args;
    return !wants_a(a) || a->gate_lower_bound < 0 ? "sigmoid_row" : "gate_row sigmoid_row";
}

static gdn_status enqueue(gdn_ctx *ctx, void *call)
{
    const struct gates_backward   *s = call;
    const gdn_gates_backward_args *a = &s->args;
    void                          *memory;
    TRY(gdn_cuda_get_workspace(ctx, a->workspace, a->workspace_bytes, s->bytes, &memory));
    struct gdn_cu_gates_backward args = {
        .A_log    = gdn_cuda_array(&a->A_log),
        .dt_bias  = gdn_cuda_array(&a->dt_bias),
        .dA_log   = gdn_cuda_array(&a->dA_log),
        .ddt_bias = gdn_cuda_array(&a->ddt_bias),
        .sums     = s->bytes ? memory : NULL,
        .n_lines  = s->n_rows,
        .H        = s->H,
        .rows     = s->rows,
        .n_blocks = s->n_blocks,
        .bound    = a->gate_lower_bound,
        .factor   = a->beta_kind == GDN_BETA_TWICE_SIGMOID ? 2.0f : 1.0f,
        .linear   = a->gate == GDN_GATE_LINEAR,
        .adds     = s->adds,
        .wants_a  = wants_a(a),
    };
    const gdn_tensor    *tensors[] = { &a->a, &a->b, &a->dg, &a->dbeta, &a->da, &a->db };
    struct gdn_cu_lines *lines[]   = { &args.a,     &args.b,  &args.dg,
                                       &args.dbeta, &args.da, &args.db };
    const int            first     = a->a.data ? 0 : 1; /* one that is there */
    gdn_cuda_lines(tensors + first, 6 - first, &args.leads, lines + first);
    return gdn_cuda_gates_backward(ctx, &args, a->stream);
}

static const struct gdn_frame frame = {
    .describe   = describe,
    .run        = run,
    .enqueue    = enqueue,
    .bytes_at   = offsetof(struct gates_backward, bytes),
    .find_loops = find_loops,
};
GDN_OP_ENTRY(gates_backward, gdn_gates_backward_args, frame, struct gates_backward)
