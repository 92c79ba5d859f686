/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients through what stands before the rule: the norm of q and k, gates and betas. */
#include <math.h>

#include "core/tensor_check.h"
#include "cpu/backward/backward.h"

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

static double number_at(const struct gdn_kernels *kr, int32_t dtype, const void *from)
{
    float x;
    kr->load_row[dtype](&x, from, 1);
    return (double)x;
}

/* dg of a head's log gate becomes that of the raw number. */
static double through_raw(const struct gdn_rule *r, int head, double raw, double dg, double *sums)
{
    const double z = raw + (double)r->dt[head];
    const double A = (double)r->A[head];
    double dz, dA;
    if (r->bound < 0) {
        const double s = sigmoid(A * z), slope = (double)r->bound * s * (1 - s);
        dz = dg * slope * A;
        dA = dg * slope * A * z;
    } else {
        dz = dg * A * sigmoid(z);
        dA = dg * A * (z > 20 ? z : log1p(exp(z)));
    }
    if (sums) sums[0] += dA, sums[1] += dz;
    return dz;
}

double gdn_backward_gate(const struct gdn_rule *r, const struct gdn_kernels *kr, const void *g,
                         int head, double dg, double *sums)
{
    if (!g || r->gate == GDN_GATE_LOG || dg == 0) return dg;
    const double given = number_at(kr, r->g.dtype, g);
    if (r->gate == GDN_GATE_LINEAR) return dg / given;
    return through_raw(r, head, given, dg, sums);
}

void gdn_backward_gate_row(const struct gdn_rule *r, const struct gdn_kernels *kr,
                           const float *given, int head, float *dg, double *sums)
{
    const float *dt = r->dt + (ptrdiff_t)head * r->K, A = r->gate == GDN_GATE_RAW ? r->A[head] : 0;
    float slope[GDN_MAX_HEAD], factor[GDN_MAX_HEAD], z[GDN_MAX_HEAD];
    const size_t K = (size_t)r->K;
    if (r->gate == GDN_GATE_LOG) return;
    for (size_t i = 0; i < K && r->gate == GDN_GATE_LINEAR; i++)
        dg[i] = dg[i] ? dg[i] / given[i] : 0;
    if (r->gate == GDN_GATE_LINEAR) return;
    for (size_t i = 0; i < K; i++) z[i] = (r->bound < 0 ? A : 1) * (given[i] + dt[i]);
    if (r->bound < 0) {
        kr->slope_row(NULL, slope, z, true, K);
    } else {
        for (size_t i = 0; i < K; i++) factor[i] = A;
        kr->gate_row(factor, given, factor, dt, K);
        kr->sigmoid_row(slope, z, 1, K);
    }
    const float by = r->bound < 0 ? A * r->bound : A;
    double dA = 0;
    for (size_t i = 0; i < K; i++) {
        const double to_log = (double)dg[i];
        if (to_log == 0) continue; /* its factors may be infinite */
        dg[i] *= by * slope[i];
        dA +=
            r->bound < 0 ? (double)dg[i] * (double)(given[i] + dt[i]) : to_log * (double)factor[i];
        if (sums) sums[1 + i] += (double)dg[i];
    }
    if (sums) sums[0] += dA;
}

double gdn_backward_beta(const struct gdn_rule *r, const struct gdn_kernels *kr, const void *beta,
                         double dbeta)
{
    const double most = r->beta_kind == GDN_BETA_TWICE_SIGMOID ? 2 : 1;
    if (!beta || r->beta_kind == GDN_NO_SIGMOID) return dbeta;
    const double s = sigmoid(number_at(kr, r->beta.dtype, beta));
    return dbeta * most * s * (1 - s);
}

void gdn_backward_gates(const struct gdn_rule *r, const struct gdn_kernels *kr,
                        const struct gdn_seq *seq, int head, int64_t t0, int n, float *dg,
                        float *dbeta, double *sums)
{
    for (int t = 0; t < n; t++) {
        const void *g = r->g.data ? gdn_row(&r->g, seq, t0 + t, head) : NULL;
        const void *beta = r->beta.data ? gdn_row(&r->beta, seq, t0 + t, head) : NULL;
        dg[t] = (float)gdn_backward_gate(r, kr, g, head, (double)dg[t], sums);
        dbeta[t] = (float)gdn_backward_beta(r, kr, beta, (double)dbeta[t]);
    }
}
