/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_gates: rows of H heads. An item takes some rows, GDN_PIECE heads at a time, so that the
 * decays of these heads are computed once.
 */
#include <math.h>

#include "calls/gates.h"
#include "cuda/driver/backend.h"
#include "ops/entry.h"
#include "ops/op_table.h"

struct gates {
    gdn_gates_args            args;
    const struct gdn_kernels *kr;
    int64_t                   n_rows, H, rows_per_item;
    size_t                    bytes; /* 0: no workspace */
};

/* ---- Descriptors ------------------------------------------------------------------------- */

/* An input and its output: both or neither, of one shape [...][H]. */
static gdn_status check_pair(gdn_ctx *ctx, const gdn_tensor *in, const char *in_name,
                             const gdn_tensor *out, const char *out_name)
{
    if (!in->data != !out->data)
        return gdn_fail(ctx, GDN_E_ARG, "%s: absent, but %s is given",
                        in->data ? out_name : in_name, in->data ? in_name : out_name);
    if (!in->data) return GDN_OK;
    TRY(gdn_check_tensor(ctx, in, in_name));
    TRY(gdn_check_tensor(ctx, out, out_name));
    TRY(gdn_check_dtype(ctx, in, in_name, GDN_FLOATS));
    TRY(gdn_check_dtype(ctx, out, out_name, GDN_FLOATS));
    if (in->ndim < 2)
        return gdn_fail(ctx, GDN_E_SHAPE, "%s: 1 dimension, wanted 2 to %d", in_name, GDN_MAX_DIMS);
    TRY(gdn_check_shape(ctx, out, out_name, in->ndim, in->size));
    TRY(gdn_check_dense(ctx, in, in_name));
    TRY(gdn_check_dense(ctx, out, out_name));
    return gdn_check_injective(ctx, out, out_name);
}

gdn_status gdn_gates_check_vector(gdn_ctx *ctx, const gdn_tensor *t, const char *name,
                                  unsigned dtypes, int64_t H)
{
    TRY(gdn_check_tensor(ctx, t, name));
    TRY(gdn_check_dtype(ctx, t, name, dtypes));
    return gdn_check_shape(ctx, t, name, 1, &H);
}

/* What is written overlaps nothing but its own input. */
static gdn_status check_overlaps(gdn_ctx *ctx, const gdn_gates_args *a, const gdn_tensor *out,
                                 const char *name, const gdn_tensor *own)
{
    const struct {
        const gdn_tensor *t;
        const char       *name;
    } others[] = { { &a->a, "a" },         { &a->b, "b" },
                   { &a->A_log, "A_log" }, { &a->dt_bias, "dt_bias" },
                   { &a->g, "g" },         { &a->beta, "beta" } };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i].t != out)
            TRY(gdn_check_no_overlap(ctx, out, name, others[i].t, others[i].name,
                                     others[i].t == own));
    return GDN_OK;
}

gdn_status gdn_gates_check_formula(gdn_ctx *ctx, int32_t gate, int32_t beta_kind, float bound)
{
    if (gate != GDN_GATE_LOG && gate != GDN_GATE_LINEAR)
        return gdn_fail(ctx, GDN_E_ARG, "gate: %d, wanted 0 (log) or 1 (linear)", (int)gate);
    if (beta_kind < GDN_BETA_GIVEN || beta_kind > GDN_BETA_TWICE_SIGMOID)
        return gdn_fail(ctx, GDN_E_ARG, "beta_kind: %d, wanted 0 to 2", (int)beta_kind);
    if (!(bound <= 0) || !isfinite(bound))
        return gdn_fail(ctx, GDN_E_ARG, "gate_lower_bound: %g, wanted at most 0", (double)bound);
    return GDN_OK;
}

static gdn_status check_fields(gdn_ctx *ctx, const gdn_gates_args *a)
{
    if (a->flags) return gdn_fail(ctx, GDN_E_ARG, "flags: 0x%x, wanted 0", (unsigned)a->flags);
    if (a->reserved) return gdn_fail(ctx, GDN_E_ARG, "reserved: %d, wanted 0", (int)a->reserved);
    TRY(gdn_gates_check_formula(ctx, a->gate, a->beta_kind, a->gate_lower_bound));
    if (!a->a.data && !a->b.data)
        return gdn_fail(ctx, GDN_E_ARG, "a: absent, and b too, wanted at least one");
    return GDN_OK;
}

static gdn_status describe(gdn_ctx *ctx, const void *args, void *call)
{
    struct gates *s = call;
    const gdn_gates_args *a = &s->args;
    *s                      = (struct gates){ .kr = ctx->kr };
    TRY(gdn_copy_args(ctx, &s->args, sizeof s->args, args, "gdn_gates_args"));
    TRY(check_fields(ctx, a));
    TRY(check_pair(ctx, &a->a, "a", &a->g, "g"));
    TRY(check_pair(ctx, &a->b, "b", &a->beta, "beta"));
    if (a->a.data) TRY(gdn_check_shape(ctx, &a->b, "b", a->a.ndim, a->a.size));

    const gdn_tensor *like = a->a.data ? &a->a : &a->b;
    s->H                   = like->size[like->ndim - 1];
    s->n_rows              = gdn_n_rows(like);
    s->rows_per_item       = gdn_rows_per_item(s->H);
    if (a->a.data && !a->A_log.data) return gdn_fail(ctx, GDN_E_ARG, "A_log: absent, wanted for a");
    if (a->A_log.data) TRY(gdn_gates_check_vector(ctx, &a->A_log, "A_log", GDN_FLOATS, s->H));
    if (a->dt_bias.data)
        TRY(gdn_gates_check_vector(ctx, &a->dt_bias, "dt_bias", GDN_FLOATS, s->H));
    TRY(check_overlaps(ctx, a, &a->g, "g", &a->a));
    return check_overlaps(ctx, a, &a->beta, "beta", &a->b);
}

/* ---- Running ----------------------------------------------------------------------------- */

/* Some heads of some rows. */
struct piece {
    int64_t row, end, first; /* rows row..end-1, heads from first on */
    size_t  n;
};

static void write_g(const struct gates *s, const struct piece *p)
{
    const gdn_gates_args *a     = &s->args;
    const float           bound = a->gate_lower_bound;
    float                 A[GDN_PIECE], dt[GDN_PIECE], g[GDN_PIECE];
    gdn_load_piece(A, &a->A_log, p->first, (int64_t)p->n, 0);
    gdn_load_piece(dt, &a->dt_bias, p->first, (int64_t)p->n, 0);
    for (size_t h = 0; h < p->n; h++) A[h] = bound < 0 ? expf(A[h]) : -expf(A[h]);

    for (int64_t row = p->row; row < p->end; row++) {
        s->kr->load_row[a->a.dtype](g, gdn_row_at(&a->a, row, p->first), p->n);
        if (bound < 0) {
            for (size_t h = 0; h < p->n; h++) g[h] = A[h] * (g[h] + dt[h]);
            s->kr->sigmoid_row(g, g, bound, p->n);
        } else {
            s->kr->gate_row(g, g, A, dt, p->n);
        }
        if (a->gate == GDN_GATE_LINEAR) s->kr->exp_row(g, g, p->n);
        s->kr->store_row[a->g.dtype](gdn_row_at(&a->g, row, p->first), g, p->n);
    }
}

static void write_beta(const struct gates *s, const struct piece *p)
{
    const gdn_gates_args *a      = &s->args;
    const float           factor = a->beta_kind == GDN_BETA_TWICE_SIGMOID ? 2.0f : 1.0f;
    float                 beta[GDN_PIECE];
    for (int64_t row = p->row; row < p->end; row++) {
        s->kr->load_row[a->b.dtype](beta, gdn_row_at(&a->b, row, p->first), p->n);
        s->kr->sigmoid_row(beta, beta, factor, p->n);
        s->kr->store_row[a->beta.dtype](gdn_row_at(&a->beta, row, p->first), beta, p->n);
    }
}

static void run_item(void *arg, int64_t item, int thread)
{
    (void)thread;
    const struct gates *s = arg;
    struct piece        p = { .row = item * s->rows_per_item };
    p.end = s->n_rows - p.row < s->rows_per_item ? s->n_rows : p.row + s->rows_per_item;
    for (p.first = 0; p.first < s->H; p.first += GDN_PIECE) {
        p.n = (size_t)(s->H - p.first < GDN_PIECE ? s->H - p.first : GDN_PIECE);
        if (s->args.g.data) write_g(s, &p);
        if (s->args.beta.data) write_beta(s, &p);
    }
}

static const char *find_loops(void *call, char text[GDN_LOOPS_BYTES])
{
    (void)text;
    const gdn_gates_args *a = &((const struct gates *)call)->args;
    const bool sigmoid = a->gate_lower_bound < 0;
    if (!a->g.data) return "sigmoid_row";
    if (!a->beta.data) return sigmoid ? "sigmoid_row" : "gate_row";
    return sigmoid ? "sigmoid_row" : "gate_row sigmoid_row";
}

static gdn_status enqueue(gdn_ctx *ctx, void *call)
{
    const struct gates   *s    = call;
    const gdn_gates_args *a    = &s->args;
    struct gdn_cu_gates   args = {
          .A_log   = gdn_cuda_array(&a->A_log),
          .dt_bias = gdn_cuda_array(&a->dt_bias),
          .n_lines = s->n_rows,
          .H       = s->H,
          .bound   = a->gate_lower_bound,
          .factor  = a->beta_kind == GDN_BETA_TWICE_SIGMOID ? 2.0f : 1.0f,
          .linear  = a->gate == GDN_GATE_LINEAR,
    };
    void                *none;
    TRY(gdn_get_workspace(ctx, a->workspace, a->workspace_bytes, 0, &none));
    const gdn_tensor    *tensors[] = { &a->a, &a->b, &a->g, &a->beta };
    struct gdn_cu_lines *lines[]   = { &args.a, &args.b, &args.g, &args.beta };
    const int            first     = a->a.data ? 0 : 1; /* one that is there */
    gdn_cuda_lines(tensors + first, 4 - first, &args.leads, lines + first);
    return gdn_cuda_gates(ctx, &args, a->stream);
}

static gdn_status run(gdn_ctx *ctx, void *call)
{
    struct gates *s = call;
    void         *none;
    TRY(gdn_get_workspace(ctx, s->args.workspace, s->args.workspace_bytes, 0, &none));
    gdn_parallel_for(ctx->pool, (s->n_rows + s->rows_per_item - 1) / s->rows_per_item, run_item, s);
    return GDN_OK;
}

static const struct gdn_frame frame = {
    .describe   = describe,
    .run        = run,
    .enqueue    = enqueue,
    .bytes_at   = offsetof(struct gates, bytes),
    .find_loops = find_loops,
};
GDN_OP_ENTRY(gates, gdn_gates_args, frame, struct gates)
