/* SPDX-License-Identifier: Apache-2.0 */
/* The ops that take rows by themselves: gates, L2 norm, gated RMSNorm; some rows are judged. */
#include <stdlib.h>

#include "cases/cases.h"
#include "cli.h"
#include "oracle.h"

enum { CHECKED_ROWS = 64, CHECKED = 16384, WIDEST = 4096 }; /* rows, elements; a row */

static gdn_tensor like(struct rows_case *c, int32_t dtype, int64_t heads, int64_t D, double low,
                       double high)
{
    const int64_t size[] = { c->n_rows, heads, D };
    return case_tensor(&c->memory, dtype, D ? 3 : 2, size, low, high);
}

static void make_gates(struct rows_case *c)
{
    gdn_gates_args *a = c->args;
    const int64_t H = c->dims.Hv;
    *a = gdn_gates_args_init();
    a->a = like(c, c->dims.dtype, H, 0, -1, 1);
    a->b = like(c, c->dims.dtype, H, 0, -3, 3);
    a->g = like(c, GDN_F32, H, 0, 0, 0);
    a->beta = like(c, GDN_F32, H, 0, 0, 0);
    a->A_log = case_tensor(&c->memory, GDN_F32, 1, &H, 0, 2.7);
    a->dt_bias = case_tensor(&c->memory, GDN_F32, 1, &H, -7, -2);
    c->tensors[0] = a->a;
    c->tensors[1] = a->b;
    c->tensors[2] = a->g;
    c->tensors[3] = a->beta;
    c->n_tensors = 4;
}

static void make_gates_backward(struct rows_case *c)
{
    gdn_gates_backward_args *a = c->args;
    const int64_t H = c->dims.Hv;
    *a = gdn_gates_backward_args_init();
    c->tensors[0] = a->a = like(c, c->dims.dtype, H, 0, -1, 1);
    c->tensors[1] = a->b = like(c, c->dims.dtype, H, 0, -3, 3);
    c->tensors[2] = a->dg = like(c, GDN_F32, H, 0, -1, 1);
    c->tensors[3] = a->dbeta = like(c, GDN_F32, H, 0, -1, 1);
    c->tensors[4] = a->da = like(c, GDN_F32, H, 0, 0, 0);
    c->tensors[5] = a->db = like(c, GDN_F32, H, 0, 0, 0);
    c->n_tensors = 6;
    a->A_log = case_tensor(&c->memory, GDN_F32, 1, &H, 0, 2.7);
    a->dt_bias = case_tensor(&c->memory, GDN_F32, 1, &H, -7, -2);
    a->dA_log = case_tensor(&c->memory, GDN_F32, 1, &H, 0, 0);
    a->ddt_bias = case_tensor(&c->memory, GDN_F32, 1, &H, 0, 0);
}

/* Sets x and out, the only tensors of l2norm. */
static void make_norm(struct rows_case *c)
{
    const bool l2 = c->op == GDN_OP_L2NORM;
    const int64_t H = l2 ? c->dims.Hq : c->dims.Hv, D = l2 ? c->dims.K : c->dims.V;
    gdn_l2norm_args *l = c->args;
    gdn_rmsnorm_gated_args *r = c->args;
    c->tensors[0] = like(c, c->dims.dtype, H, D, -1, 1);
    c->tensors[1] = like(c, c->dims.dtype, H, D, 0, 0);
    c->n_tensors = 2;
    if (l2) {
        *l = gdn_l2norm_args_init();
        l->x = c->tensors[0], l->out = c->tensors[1];
        return;
    }
    c->tensors[c->n_tensors++] = like(c, c->dims.dtype, H, D, -2, 2);
    *r = gdn_rmsnorm_gated_args_init();
    r->x = c->tensors[0], r->out = c->tensors[1], r->z = c->tensors[2];
    r->weight = case_tensor(&c->memory, GDN_F32, 1, &D, 0.5, 1.5);
}

static void make_l2norm_backward(struct rows_case *c)
{
    const int64_t H = c->dims.Hq, D = c->dims.K;
    gdn_l2norm_backward_args *a = c->args;
    *a = gdn_l2norm_backward_args_init();
    c->tensors[0] = a->x = like(c, c->dims.dtype, H, D, -1, 1);
    c->tensors[1] = a->dout = like(c, c->dims.dtype, H, D, -1, 1);
    c->tensors[2] = a->dx = like(c, c->dims.dtype, H, D, 0, 0);
    c->n_tensors = 3;
}

static void make_rmsnorm_backward(struct rows_case *c)
{
    const int64_t H = c->dims.Hv, D = c->dims.V;
    gdn_rmsnorm_gated_backward_args *a = c->args;
    *a = gdn_rmsnorm_gated_backward_args_init();
    c->tensors[0] = a->x = like(c, c->dims.dtype, H, D, -1, 1);
    c->tensors[1] = a->z = like(c, c->dims.dtype, H, D, -2, 2);
    c->tensors[2] = a->dout = like(c, c->dims.dtype, H, D, -1, 1);
    c->tensors[3] = a->dx = like(c, c->dims.dtype, H, D, 0, 0);
    c->tensors[4] = a->dz = like(c, c->dims.dtype, H, D, 0, 0);
    c->n_tensors = 5;
    a->weight = case_tensor(&c->memory, GDN_F32, 1, &D, 0.5, 1.5);
    a->dweight = case_tensor(&c->memory, GDN_F32, 1, &D, 0, 0);
}

/* Loads the first elements of a tensor as doubles. */
static void load(double *to, const gdn_tensor *t, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = oracle_load(t->data, t->dtype, i);
}

/* Writes n elements of `want` and of `got`, the op's results. Returns n. */
static int64_t judge_gates(const struct rows_case *c, double *want, double *got)
{
    const gdn_gates_args *a = c->args;
    const int64_t H = c->dims.Hv, n = H; /* one token */
    for (int64_t h = 0; h < n; h++) {
        want[h] = oracle_gate(oracle_load(a->a.data, a->a.dtype, h),
                              oracle_load(a->A_log.data, GDN_F32, h),
                              oracle_load(a->dt_bias.data, GDN_F32, h), 0);
        want[n + h] = oracle_sigmoid(oracle_load(a->b.data, a->b.dtype, h));
    }
    load(got, &a->g, n);
    load(got + n, &a->beta, n);
    return 2 * n;
}

/* Writes da and db of one token. Returns how many elements. */
static int64_t judge_gates_backward(const struct rows_case *c, double *want, double *got)
{
    const gdn_gates_backward_args *a = c->args;
    const int64_t n = c->dims.Hv;
    for (int64_t h = 0; h < n; h++) {
        const double b = oracle_load(a->b.data, a->b.dtype, h);
        double none;
        want[h] = oracle_load(a->dg.data, GDN_F32, h) *
                  oracle_gate_slope(oracle_load(a->a.data, a->a.dtype, h),
                                    oracle_load(a->A_log.data, GDN_F32, h),
                                    oracle_load(a->dt_bias.data, GDN_F32, h), 0, &none);
        want[n + h] =
            oracle_load(a->dbeta.data, GDN_F32, h) * oracle_sigmoid(b) * oracle_sigmoid(-b);
    }
    load(got, &a->da, n);
    load(got + n, &a->db, n);
    return 2 * n;
}

static int64_t judge_norm(const struct rows_case *c, double *want, double *got)
{
    const gdn_l2norm_args *l = c->args;
    const gdn_rmsnorm_gated_args *r = c->args;
    const bool l2 = c->op == GDN_OP_L2NORM;
    const int64_t D = l2 ? c->dims.K : c->dims.V;
    const int64_t most = D * CHECKED_ROWS < CHECKED ? CHECKED_ROWS : CHECKED / D;
    const int64_t all = c->n_rows * (l2 ? c->dims.Hq : c->dims.Hv);
    const int64_t rows = all < most ? all : most;
    static double z[WIDEST], weight[WIDEST];
    load(want, l2 ? &l->x : &r->x, rows * D);
    if (!l2) load(weight, &r->weight, D);
    for (int64_t row = 0; row < rows; row++) {
        double *y = want + row * D;
        if (l2) {
            oracle_l2norm(y, y, D, GDN_NORM_L2, 1e-6);
            continue;
        }
        for (int64_t i = 0; i < D; i++) z[i] = oracle_load(r->z.data, r->z.dtype, row * D + i);
        oracle_rmsnorm_gated(y, y, weight, z, false, 1e-6, D);
    }
    load(got, l2 ? &l->out : &r->out, rows * D);
    return rows * D;
}

static int64_t judge_l2norm_backward(const struct rows_case *c, double *want, double *got)
{
    const gdn_l2norm_backward_args *a = c->args;
    const int64_t D = c->dims.K, most = CHECKED / D, all = c->n_rows * c->dims.Hq;
    const int64_t rows = all < most ? all : most;
    static double x[WIDEST], dout[WIDEST];
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < D; i++) {
            x[i] = oracle_load(a->x.data, a->x.dtype, row * D + i);
            dout[i] = oracle_load(a->dout.data, a->dout.dtype, row * D + i);
        }
        oracle_l2norm_backward(want + row * D, x, dout, D, GDN_NORM_L2, 1e-6);
    }
    load(got, &a->dx, rows * D);
    return rows * D;
}

/* Writes dx, then dz, of the first rows. Returns how many elements. */
static int64_t judge_rmsnorm_backward(const struct rows_case *c, double *want, double *got)
{
    const gdn_rmsnorm_gated_backward_args *a = c->args;
    const int64_t D = c->dims.V, most = CHECKED / 2 / D, all = c->n_rows * c->dims.Hv;
    const int64_t rows = all < most ? all : most;
    static double row_of[3][WIDEST], weight[WIDEST], dweight[WIDEST];
    const gdn_tensor *tensors[] = { &a->x, &a->z, &a->dout };
    load(weight, &a->weight, D);
    for (int64_t row = 0; row < rows; row++) {
        for (int t = 0; t < 3; t++)
            for (int64_t i = 0; i < D; i++)
                row_of[t][i] = oracle_load(tensors[t]->data, tensors[t]->dtype, row * D + i);
        const struct oracle_rmsnorm o = { row_of[0], weight, row_of[1], row_of[2], false, 1e-6, D };
        oracle_rmsnorm_backward(&o, want + row * D, want + (rows + row) * D, dweight);
    }
    load(got, &a->dx, rows * D);
    load(got + rows * D, &a->dz, rows * D);
    return 2 * rows * D;
}

/* The ops of these cases, and what a case of each op needs. */
static const struct kind {
    gdn_op op;
    const char *name;
    size_t bytes; /* of its struct */
    void (*make)(struct rows_case *c);
    int64_t (*judge)(const struct rows_case *c, double *want, double *got);
    bool is_f32; /* so are the results, in whatever dtype the case is */
} kinds[] = {
    { GDN_OP_GATES, "gates", sizeof(gdn_gates_args), make_gates, judge_gates, true },
    { GDN_OP_GATES_BACKWARD, "gates_backward", sizeof(gdn_gates_backward_args), make_gates_backward,
      judge_gates_backward, true },
    { GDN_OP_L2NORM, "l2norm", sizeof(gdn_l2norm_args), make_norm, judge_norm, false },
    { GDN_OP_L2NORM_BACKWARD, "l2norm_backward", sizeof(gdn_l2norm_backward_args),
      make_l2norm_backward, judge_l2norm_backward, false },
    { GDN_OP_RMSNORM_GATED, "rmsnorm", sizeof(gdn_rmsnorm_gated_args), make_norm, judge_norm,
      false },
    { GDN_OP_RMSNORM_GATED_BACKWARD, "rmsnorm_backward", sizeof(gdn_rmsnorm_gated_backward_args),
      make_rmsnorm_backward, judge_rmsnorm_backward, false },
};

static const struct kind *kind_of(gdn_op op)
{
    const struct kind *k = kinds;
    while (k->op != op) k++;
    return k;
}

const char *rows_case_op(int i, gdn_op *op)
{
    if (i == sizeof kinds / sizeof *kinds) return NULL;
    *op = kinds[i].op;
    return kinds[i].name;
}

int rows_case_make(struct rows_case *c, const struct case_dims *dims, gdn_op op, int64_t n_rows)
{
    const struct kind *k = kind_of(op);
    memset(c, 0, sizeof *c);
    c->dims = *dims;
    c->op = op;
    c->n_rows = n_rows;
    c->args = memory_get(&c->memory, k->bytes);
    if (c->args) k->make(c);
    bool made = c->args;
    for (int i = 0; i < c->n_tensors; i++) made &= c->tensors[i].data != NULL;
    return made ? CLI_OK : cli_bad("no memory for %lld rows", (long long)n_rows);
}

int rows_case_check(struct rows_case *c, gdn_ctx *ctx, struct comparison *found)
{
    static double want[CHECKED + 2048], got[CHECKED + 2048];
    const struct kind *k = kind_of(c->op);
    const gdn_status status = cli_call(ctx, c->op, c->args);
    if (status) return cli_failed(ctx, status);
    const int64_t n = k->judge(c, want, got);
    *found = compare_doubles(got, want, n, k->is_f32 ? GDN_F32 : c->dims.dtype);
    return CLI_OK;
}

double rows_case_bytes(const struct rows_case *c)
{
    double bytes = 0;
    for (int i = 0; i < c->n_tensors; i++) bytes += case_bytes(&c->tensors[i]);
    return bytes;
}
