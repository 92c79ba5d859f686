/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients through what stands before the rule: the norm of q and k, gates and betas. */
#include <math.h>

#include "core/tensor_check.h"
#include "cpu/backward.h"

void gdn_backward_store(const struct gdn_kernels *kr, void *row, int32_t dtype, bool adds, float *x,
                        int n)
{
    float held[GDN_MAX_VALUE];
    if (adds) {
        kr->load_row[dtype](held, row, (size_t)n);
        for (int i = 0; i < n; i++) x[i] += held[i];
    }
    kr->store_row[dtype](row, x, (size_t)n);
}

/*
 * With y = r x, r of the length |x|, and c below, dx = r (dy - c y (y . dy)):
 *
 *     r = 1 / sqrt(x . x + eps)     c = 1
 *     r = 1 / (|x| + eps)           c = (|x| + eps) / |x|
 *     r = 1 / max(|x|, eps)         c = 1 where |x| > eps, else 0
 */
void gdn_backward_norm(const struct gdn_rule *r, const struct gdn_kernels *kr, const void *x,
                       int32_t dtype, float *dy, float *y)
{
    const size_t K = (size_t)r->K;
    if (r->norm == GDN_NO_NORM) return;
    kr->load_row[dtype](y, x, K);
    const float squares = kr->dot(y, y, K), length = sqrtf(squares);
    const float inverse = gdn_rule_inverse_length(squares, r->norm, r->norm_eps);
    float c = 1;
    if (r->norm == GDN_NORM_L2_ADD) c = length > 0 ? (length + r->norm_eps) / length : 0;
    if (r->norm == GDN_NORM_L2_MAX) c = length > r->norm_eps ? 1 : 0;
    kr->norm_row(y, y, inverse, NULL, NULL, false, K);
    const float along = c * kr->dot(y, dy, K);
    for (size_t i = 0; i < K; i++) dy[i] = inverse * (dy[i] - along * y[i]);
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static float given(const struct gdn_kernels *kr, const struct gdn_rows *rows,
                   const struct gdn_seq *seq, int64_t t, int head)
{
    float x;
    kr->load_row[rows->dtype](&x, gdn_row(rows, seq, t, head), 1);
    return x;
}

/* dg of log alpha becomes that of a; sums[0] gets that of A_log. */
static double through_raw(const struct gdn_rule *r, double a, int head, double dg, double *sums)
{
    const double x = a + (double)r->dt[head], A = (double)r->A[head];
    if (r->bound < 0) {
        const double s = sigmoid(A * x), slope = (double)r->bound * s * (1 - s);
        if (sums) sums[0] += dg * slope * A * x;
        return dg * slope * A;
    }
    const double softplus = x > 20 ? x : log1p(exp(x));
    if (sums) sums[0] += dg * A * softplus;
    return dg * A * sigmoid(x);
}

static void gate_gradient(const struct gdn_rule *r, const struct gdn_kernels *kr,
                          const struct gdn_seq *seq, int head, int64_t t, float *dg, double *sums)
{
    if (!r->g.data || r->gate == GDN_GATE_LOG || *dg == 0) return;
    const double g = (double)given(kr, &r->g, seq, t, head);
    if (r->gate == GDN_GATE_LINEAR) {
        *dg = (float)((double)*dg / g);
        return;
    }
    const double da = through_raw(r, g, head, (double)*dg, sums);
    if (sums) sums[1] += da;
    *dg = (float)da;
}

void gdn_backward_gates(const struct gdn_rule *r, const struct gdn_kernels *kr,
                        const struct gdn_seq *seq, int head, int64_t t0, int n, float *dg,
                        float *dbeta, double *sums)
{
    const double most = r->beta_kind == GDN_BETA_TWICE_SIGMOID ? 2 : 1;
    for (int t = 0; t < n; t++) {
        gate_gradient(r, kr, seq, head, t0 + t, &dg[t], sums);
        if (r->beta_kind == GDN_NO_SIGMOID) continue;
        const double s = sigmoid((double)given(kr, &r->beta, seq, t0 + t, head));
        dbeta[t] = (float)((double)dbeta[t] * most * s * (1 - s));
    }
}
