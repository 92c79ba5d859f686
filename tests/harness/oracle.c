/* SPDX-License-Identifier: Apache-2.0 */
/* See oracle.h. The letters are those of gdn.h. */
#include "oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gdn.h"

/* ---- Storage ---- */

/* A binary float: its significant bits and smallest and largest normal exponents. */
static const struct format {
    int bits, e_min, e_max;
} formats[] = {
    [GDN_F32] = { 24, -126, 127 }, [GDN_BF16] = { 8, -126, 127 }, [GDN_F16] = { 11, -14, 15 }
};

static double power_of_two(int e) /* no less than -1022 */
{
    const uint64_t bits = (uint64_t)(e + 1023) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The distance of neighbours around x. */
static double spacing(const struct format *f, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const int e = (int)(bits >> 52 & 2047) - 1023; /* |x| in [2^e, 2^(e+1)) */
    return power_of_two((e < f->e_min ? f->e_min : e) + 1 - f->bits);
}

double oracle_half_ulp(int dtype, double x)
{
    return isfinite(x) ? spacing(&formats[dtype], x) / 2 : 0;
}

static double round_to(const struct format *f, double x)
{
    if (!isfinite(x)) return x;
    const double s = spacing(f, x), r = nearbyint(x / s) * s;
    return fabs(r) >= power_of_two(f->e_max + 1) ? copysign(INFINITY, x) : r;
}

static uint16_t f16_bits(double x) /* x is an f16 number */
{
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    const double a = fabs(x);
    int e;
    if (isnan(x)) return sign | 0x7e00;
    if (isinf(x)) return sign | 0x7c00;
    if (a < 0x1p-14) return sign | (uint16_t)(a * 0x1p24);
    const double m = frexp(a, &e) * 2 - 1; /* a = (1 + m) 2^(e-1) */
    return sign | (uint16_t)((e - 1 + 15) << 10) | (uint16_t)(m * 1024);
}

static double f16_value(uint16_t h)
{
    const double sign = h & 0x8000 ? -1 : 1;
    const int e = h >> 10 & 31, m = h & 1023;
    if (e == 31) return m ? NAN : sign * INFINITY;
    return sign * 0x1p-24 * (e ? (1024 + m) * (double)(1 << (e - 1)) : m);
}

static float bits_float(uint32_t i)
{
    float f;
    memcpy(&f, &i, sizeof f);
    return f;
}

double oracle_load(const void *p, int dtype, int64_t i)
{
    switch (dtype) {
    case GDN_F32: return ((const float *)p)[i];
    case GDN_BF16: return bits_float((uint32_t)((const uint16_t *)p)[i] << 16);
    case GDN_F16: return f16_value(((const uint16_t *)p)[i]);
    case GDN_I32: return ((const int32_t *)p)[i];
    case GDN_I64: return (double)((const int64_t *)p)[i];
    default: return ((const uint8_t *)p)[i];
    }
}

void oracle_store(void *p, int dtype, int64_t i, double x)
{
    uint32_t bits;
    const float f = dtype == GDN_BF16 ? (float)round_to(&formats[GDN_BF16], x) : (float)x;
    memcpy(&bits, &f, sizeof bits);
    switch (dtype) {
    case GDN_F32: ((float *)p)[i] = f; break;
    case GDN_BF16: ((uint16_t *)p)[i] = isnan(x) ? 0x7fc0 : (uint16_t)(bits >> 16); break;
    case GDN_F16: ((uint16_t *)p)[i] = f16_bits(round_to(&formats[GDN_F16], x)); break;
    case GDN_I32: ((int32_t *)p)[i] = (int32_t)x; break;
    case GDN_I64: ((int64_t *)p)[i] = (int64_t)x; break;
    default: ((uint8_t *)p)[i] = (uint8_t)x; break;
    }
}

/* ---- The rule ---- */

static double dot(const double *a, const double *b, int n)
{
    double s = 0;
    for (int i = 0; i < n; i++) s += a[i] * b[i];
    return s;
}

static double dot_abs(const double *a, const double *b, int n)
{
    double s = 0;
    for (int i = 0; i < n; i++) s += fabs(a[i] * b[i]);
    return s;
}

static double length(const double *a, int n) { return sqrt(dot(a, a, n)); }

/* The magnitudes of one column S of the state: mag [K] by element, and norm, which bounds the
 * length of the whole column's error. */
struct column {
    double *mag;
    double norm;
};

/* Returns the error that a column passes to its product with x: the better of two bounds. */
static double carried(const struct column *c, const double *x, int K)
{
    return fmin(dot_abs(x, c->mag, K), length(x, K) * c->norm);
}

/*
 * One token on one column's magnitudes, before S itself moves on. Element by element alone the
 * bound would grow by up to 1 + beta |k|^2 per token, without bound over long sequences; the
 * length of the error only grows by |alpha (I - beta k k^T)|, which is at most 1 for unit keys.
 * Returns the magnitude of o.
 */
static double magnitude_token(struct column *c, const double *S, const double *q, const double *k,
                              double v, double u, double alpha, double beta, int K)
{
    const double local_u = fabs(beta) * (fabs(v) + alpha * dot_abs(k, S, K));
    const double u_mag = local_u + fabs(beta) * alpha * carried(c, k, K);
    const double o_mag = alpha * (dot_abs(q, S, K) + carried(c, q, K)) +
                         fabs(dot(k, q, K)) * u_mag + dot_abs(k, q, K) * fabs(u);
    double local2 = 0;
    for (int x = 0; x < K; x++) {
        const double local = alpha * fabs(S[x]) + fabs(k[x] * u);
        c->mag[x] = alpha * c->mag[x] + fabs(k[x]) * u_mag + local;
        local2 += local * local;
    }
    c->norm = alpha * fmax(1, fabs(1 - beta * dot(k, k, K))) * c->norm + length(k, K) * local_u +
              sqrt(local2);
    for (int x = 0; x < K; x++) c->mag[x] = fmin(c->mag[x], c->norm);
    return o_mag;
}

void oracle_rule(const struct oracle_rule *r)
{
    const int K = r->K;
    const bool track = r->o_mag || r->state_mag || r->each_mag;
    double *mag = calloc((size_t)K, sizeof *mag), *no_key = calloc((size_t)K, sizeof *no_key);

    for (int j = 0; j < r->V; j++) {
        double *S = r->state + (size_t)j * K;
        struct column c = { mag, 0 };
        memset(mag, 0, (size_t)K * sizeof *mag);
        for (int64_t t = 0; t < r->T; t++) {
            const double alpha = r->alpha[t], beta = r->beta[t];
            const double *q = r->q + t * K, *k = beta == 0 ? no_key : r->k + t * K;
            const double v = beta == 0 ? 0 : r->v[t * r->V + j];

            if (alpha == 0) memset(S, 0, (size_t)K * sizeof *S);
            const double u = beta * (v - alpha * dot(k, S, K));
            if (track) {
                const double m = magnitude_token(&c, S, q, k, v, u, alpha, beta, K);
                if (r->o_mag) r->o_mag[t * r->V + j] = fabs(r->scale) * m;
            }
            for (int x = 0; x < K; x++) S[x] = alpha * S[x] + k[x] * u;
            if (r->o) r->o[t * r->V + j] = r->scale * dot(q, S, K);

            const size_t at = ((size_t)t * r->V + j) * K;
            if (r->each) memcpy(r->each + at, S, (size_t)K * sizeof *S);
            if (r->each_mag) memcpy(r->each_mag + at, mag, (size_t)K * sizeof *mag);
        }
        if (r->state_mag) memcpy(r->state_mag + (size_t)j * K, mag, (size_t)K * sizeof *mag);
    }
    free(mag);
    free(no_key);
}

/* ---- The rule in chunks ---- */

double oracle_move(struct oracle_noise *n, double x)
{
    uint64_t z = n->seed += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return x + ((double)(z >> 11) * 0x1p-52 - 1) * oracle_half_ulp(n->dtype, x);
}

void oracle_move_all(struct oracle_noise *n, double *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) x[i] = oracle_move(n, x[i]);
}

/* Tokens t0 to t0 + n - 1. The matrices are [n][n]. */
struct chunk {
    const struct oracle_rule *r;
    int64_t t0;
    int n;
    double *T, *P, *L, *from_start, *to_end;
    double *S, *R, *U; /* of one column: [K], [n], [n] */
};

/* Zero by selection. */
static double decayed(double decay, double x) { return decay == 0 ? 0 : decay * x; }

static const double *row_of(const struct chunk *c, const double *rows, int i)
{
    return rows + (c->t0 + i) * c->r->K;
}

/* Makes L below the diagonal, P up to it, and the decays of the state and of tokens from either
 * end. */
static void make_grams(const struct chunk *c)
{
    const double *alpha = c->r->alpha + c->t0, *beta = c->r->beta + c->t0;
    for (int j = 0; j < c->n; j++) {
        double decay = 1;
        for (int i = j; i < c->n; i++) {
            if (i > j) decay *= alpha[i];
            const double *k = row_of(c, c->r->k, j);
            const double kk = dot(row_of(c, c->r->k, i), k, c->r->K);
            const double qk = dot(row_of(c, c->r->q, i), k, c->r->K);
            c->L[i * c->n + j] = decayed(beta[i] * decay, kk);
            c->P[i * c->n + j] = decayed(c->r->scale * decay, qk);
        }
        c->to_end[j] = decay;
        c->from_start[j] = alpha[j] * (j ? c->from_start[j - 1] : 1);
    }
}

/* T = (I + L)^-1 diag(beta), column by column. */
static void make_t(const struct chunk *c)
{
    for (int j = 0; j < c->n; j++)
        for (int i = j; i < c->n; i++) {
            double sum = i == j ? c->r->beta[c->t0 + j] : 0;
            for (int m = j; m < i; m++) sum -= c->L[i * c->n + m] * c->T[m * c->n + j];
            c->T[i * c->n + j] = sum;
        }
}

/* Value column j of a chunk, from and to S; c->S is S as a factor. */
static void run_column(const struct chunk *c, int64_t j, double *S, struct oracle_noise *noise)
{
    const struct oracle_rule *r = c->r;
    const int K = r->K;
    memcpy(c->S, S, (size_t)K * sizeof *S);
    oracle_move_all(noise, c->S, K);
    for (int i = 0; i < c->n; i++) {
        const double p = decayed(c->from_start[i], dot(row_of(c, r->k, i), c->S, K));
        c->R[i] =
            r->beta[c->t0 + i] == 0 ? 0 : oracle_move(noise, r->v[(c->t0 + i) * r->V + j] - p);
        c->U[i] = dot(c->T + i * c->n, c->R, i + 1);
    }
    for (int x = 0; x < K; x++) S[x] = decayed(c->from_start[c->n - 1], S[x]);
    for (int i = 0; i < c->n; i++) {
        const double w = oracle_move(noise, decayed(c->to_end[i], c->U[i]));
        for (int x = 0; x < K; x++) S[x] += decayed(w, row_of(c, r->k, i)[x]);
    }
    oracle_move_all(noise, c->U, c->n);
    for (int i = 0; i < c->n; i++) {
        const double z = decayed(r->scale * c->from_start[i], dot(row_of(c, r->q, i), c->S, K));
        r->o[(c->t0 + i) * r->V + j] = oracle_move(noise, z + dot(c->P + i * c->n, c->U, i + 1));
    }
}

void oracle_rule_chunks(const struct oracle_rule *r, int C, struct oracle_noise *noise)
{
    double *memory = calloc((size_t)(3 * C * C + 4 * C + r->K), sizeof *memory), *at = memory;
    struct chunk c = { .r = r };
    c.T = at, c.P = at += C * C, c.L = at += C * C, c.from_start = at += C * C;
    c.to_end = at += C, c.R = at += C, c.U = at += C, c.S = at + C;
    for (; c.t0 < r->T; c.t0 += C) {
        c.n = r->T - c.t0 < C ? (int)(r->T - c.t0) : C;
        make_grams(&c);
        make_t(&c);
        for (int i = 0; i < c.n; i++) {
            oracle_move_all(noise, c.T + i * c.n, i + 1);
            oracle_move_all(noise, c.P + i * c.n, i + 1);
        }
        for (int64_t j = 0; j < r->V; j++) run_column(&c, j, r->state + j * r->K, noise);
    }
    free(memory);
}

/* ---- Gates ---- */

double oracle_sigmoid(double x) { return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x)); }

double oracle_silu(double x) { return x == -INFINITY ? 0 : x * oracle_sigmoid(x); }

double oracle_softplus(double x) { return x > 20 ? x : log1p(exp(x)); }

double oracle_gate(double a, double A_log, double dt_bias, double lower_bound)
{
    if (lower_bound < 0) return lower_bound * oracle_sigmoid(exp(A_log) * (a + dt_bias));
    return -exp(A_log) * oracle_softplus(a + dt_bias);
}

double oracle_gate_slope(double a, double A_log, double dt_bias, double lower_bound,
                         double *by_A_log)
{
    const double A = exp(A_log), x = a + dt_bias;
    if (lower_bound < 0) {
        const double y = oracle_sigmoid(A * x) * oracle_sigmoid(-A * x);
        *by_A_log = y > 0 ? lower_bound * y * A * x : 0;
        return lower_bound * y * A;
    }
    *by_A_log = oracle_gate(a, A_log, dt_bias, 0);
    return -A * oracle_sigmoid(x);
}

/* ---- Norms ---- */

void oracle_l2norm(double *y, const double *x, int64_t n, int norm, double eps)
{
    double sum = 0, divisor = 1;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    if (norm == GDN_NORM_L2) divisor = sqrt(sum + eps);
    if (norm == GDN_NORM_L2_ADD) divisor = sqrt(sum) + eps;
    if (norm == GDN_NORM_L2_MAX) divisor = fmax(sqrt(sum), eps);
    for (int64_t i = 0; i < n; i++) y[i] = x[i] / divisor;
}

/* y_i = x_i / divisor, and divisor has the gradient slope x. */
void oracle_l2norm_backward(double *dx, const double *x, const double *dout, int64_t n, int norm,
                            double eps)
{
    double sum = 0, inner = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i], inner += x[i] * dout[i];
    const double length = sqrt(sum);
    double divisor = sqrt(sum + eps), slope = 1 / divisor;
    if (norm == GDN_NORM_L2_ADD) divisor = length + eps, slope = length > 0 ? 1 / length : 0;
    if (norm == GDN_NORM_L2_MAX) divisor = fmax(length, eps), slope = length < eps ? 0 : 1 / length;
    for (int64_t i = 0; i < n; i++)
        dx[i] = dout[i] / divisor - x[i] * inner * slope / (divisor * divisor);
}

void oracle_rmsnorm_gated(double *y, const double *x, const double *w, const double *z,
                          bool sigmoid, double eps, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    const double s = 1 / sqrt(sum / (double)n + eps);
    for (int64_t i = 0; i < n; i++) {
        const double act = !z ? 1 : sigmoid ? oracle_sigmoid(z[i]) : oracle_silu(z[i]);
        y[i] = x[i] * s * (w ? w[i] : 1) * act;
    }
}

/* The slope of z sigmoid(z), or of sigmoid(z). */
static double gate_slope(double z, bool sigmoid)
{
    const double slope = oracle_sigmoid(z) * oracle_sigmoid(-z);
    return sigmoid ? slope : oracle_sigmoid(z) + z * slope;
}

void oracle_rmsnorm_backward(const struct oracle_rmsnorm *a, double *dx, double *dz,
                             double *dweight)
{
    const int64_t n = a->n;
    double sum = 0, inner = 0;
    for (int64_t i = 0; i < n; i++) sum += a->x[i] * a->x[i];
    const double r = 1 / sqrt(sum / (double)n + a->eps);
    for (int64_t i = 0; i < n; i++) {
        const double z = a->z ? a->z[i] : 0, w = a->w ? a->w[i] : 1, y = a->x[i] * r;
        const double act = !a->z ? 1 : a->sigmoid ? oracle_sigmoid(z) : oracle_silu(z);
        dx[i] = a->dout[i] * w * act;
        inner += dx[i] * y / (double)n;
        dweight[i] = a->dout[i] * y * act;
        if (dz) dz[i] = a->dout[i] * y * w * gate_slope(z, a->sigmoid);
    }
    for (int64_t i = 0; i < n; i++) dx[i] = r * (dx[i] - a->x[i] * r * inner);
}

/* ---- Convolution, projections ---- */

/* silu'(x) = s + x s (1 - s): how an error in x passes through. */
static double silu_slope(double x)
{
    const double s = oracle_sigmoid(x);
    return fabs(s + x * s * (1 - s));
}

void oracle_conv(double *y, double *y_mag, const double *x, const double *history,
                 const double *weight, const double *bias, bool silu, int64_t T, int D, int W)
{
    for (int64_t t = 0; t < T; t++)
        for (int d = 0; d < D; d++) {
            double sum = bias ? bias[d] : 0, mag = fabs(sum);
            for (int w = 0; w < W; w++) {
                const int64_t at = t - W + 1 + w;
                const double past = history && at < 0 ? history[(at + W - 1) * D + d] : 0;
                const double in = at < 0 ? past : x[at * D + d];
                sum += weight[d * W + w] * in;
                mag += fabs(weight[d * W + w] * in);
            }
            y[t * D + d] = silu ? oracle_silu(sum) : sum;
            if (y_mag)
                y_mag[t * D + d] = silu ? silu_slope(sum) * mag + fabs(oracle_silu(sum)) : mag;
        }
}

void oracle_linear(double *y, double *y_mag, const double *x, const double *w, int64_t m, int64_t n,
                   int64_t K)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            y[i * n + j] = dot(x + i * K, w + j * K, (int)K);
            if (y_mag) y_mag[i * n + j] = dot_abs(x + i * K, w + j * K, (int)K);
        }
}
