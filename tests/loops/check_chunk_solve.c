/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The system (I + A) U = R, R_i = beta_i (v_i - from_start_i p_i). Rounding adds at most some
 * units of r = |R|'s terms + |A| |u| to each row, and a row's error reaches the others through
 * (I + A)^-1. So the magnitudes are
 *
 *     u: |(I + A)^-1| r     o: |terms| + |B (I + A)^-1| r     w: |to_end| times u's, and |w|
 *
 * The recurrence on absolute values would be (I - |A|)^-1 r instead: 3^16 for equal keys and
 * beta = 2, which judges nothing.
 */
#include "check.h"

enum { C = GDN_CHUNK, K = 24 };

struct chunk {
    float p[2 * C][GDN_MAX_STRIP], v[C][GDN_MAX_STRIP];
    float A[C][C], B[C][C], from_start[C], to_end[C], beta[C];
    double inverse[C][C], B_inverse[C][C]; /* (I + A)^-1, B (I + A)^-1 */
};

static void unit_row(double *x, const double *base, double noise)
{
    double sum = 0;
    for (int i = 0; i < K; i++) {
        x[i] = (base ? base[i] : 0) + noise * check_uniform(-1, 1);
        sum += x[i] * x[i];
    }
    for (int i = 0; i < K; i++) x[i] /= sqrt(sum);
}

static double product(const double *a, const double *b)
{
    double sum = 0;
    for (int i = 0; i < K; i++) sum += a[i] * b[i];
    return sum;
}

/* Gates, A and B as a real chunk has them: from keys, queries, beta and log gates. */
static void make_gates(struct chunk *x, double k[C][K], double q[C][K], const double *g)
{
    double G = 0, end = 0;
    for (int i = 0; i < C; i++) end += g[i];
    for (int i = 0; i < C; i++) {
        double decay = 0; /* G_i - G_j */
        x->from_start[i] = (float)exp(G += g[i]);
        x->to_end[i] = (float)exp(end - G);
        for (int j = i; j >= 0; decay += g[j--]) {
            if (j < i) x->A[i][j] = (float)(x->beta[i] * exp(decay) * product(k[i], k[j]));
            x->B[i][j] = (float)(exp(decay) * product(q[i], k[j]));
        }
    }
}

static void invert(struct chunk *x)
{
    for (int i = 0; i < C; i++)
        for (int j = 0; j < C; j++) {
            double sum = i == j;
            for (int t = j; t < i; t++) sum -= x->A[i][t] * x->inverse[t][j];
            x->inverse[i][j] = sum;
        }
    for (int i = 0; i < C; i++)
        for (int j = 0; j < C; j++)
            for (int t = 0; t <= i; t++) x->B_inverse[i][j] += x->B[i][t] * x->inverse[t][j];
}

struct kind {
    const char *name;
    double base, noise; /* of keys: base x one direction + noise */
    double beta_low, beta_high, g_low;
};

static void make_chunk(struct chunk *x, const struct kind *kind, int strip)
{
    double k[C][K], q[C][K], g[C], S[K], common[K], base[K];
    memset(x, 0, sizeof *x);
    unit_row(common, NULL, 1);
    for (int i = 0; i < K; i++) base[i] = kind->base * common[i];
    for (int i = 0; i < C; i++) {
        unit_row(k[i], base, kind->noise);
        unit_row(q[i], NULL, 1);
        g[i] = check_uniform(kind->g_low, 0);
        x->beta[i] = (float)check_uniform(kind->beta_low, kind->beta_high);
    }
    make_gates(x, k, q, g);
    for (int c = 0; c < strip; c++) {
        for (int i = 0; i < K; i++) S[i] = check_uniform(-2, 2);
        for (int i = 0; i < C; i++) {
            x->p[i][c] = (float)product(S, k[i]);
            x->p[C + i][c] = (float)product(S, q[i]);
            x->v[i][c] = (float)check_uniform(-4, 4);
        }
    }
    invert(x);
}

/* One column: values and magnitudes, cols apart. */
static void solve(const struct chunk *x, int c, double *o, double *o_mag, double *w, double *w_mag,
                  int cols)
{
    double u[C], r[C];
    for (int i = 0; i < C; i++) {
        const double seen = (double)x->from_start[i] * x->p[i][c];
        u[i] = x->beta[i] * (x->v[i][c] - seen);
        r[i] = fabs(x->beta[i]) * (fabs(x->v[i][c]) + fabs(seen));
        for (int j = 0; j < i; j++) {
            u[i] -= x->A[i][j] * u[j];
            r[i] += fabs(x->A[i][j] * u[j]);
        }
    }
    for (int i = 0; i < C; i++) {
        double out = (double)x->from_start[i] * x->p[C + i][c], mag = fabs(out), u_mag = 0;
        for (int j = 0; j <= i; j++) {
            out += x->B[i][j] * u[j];
            mag += fabs(x->B[i][j] * u[j]) + fabs(x->B_inverse[i][j]) * r[j];
            u_mag += fabs(x->inverse[i][j]) * r[j];
        }
        o[i * cols + c] = out;
        o_mag[i * cols + c] = mag;
        w[i * cols + c] = x->to_end[i] * u[i];
        w_mag[i * cols + c] = x->to_end[i] * (u_mag + fabs(u[i])) + 0x1p-126;
    }
}

static void check_one(const struct gdn_kernels *kr, const struct kind *kind, bool timed)
{
    const int n = kr->strip, ld_v = n + check_below(4), ld_o = n + check_below(4);
    const size_t size = (size_t)(C * n), row = (size_t)n * sizeof(float);
    struct chunk *x = check_bytes(sizeof *x, LINE);
    make_chunk(x, kind, n);
    float *p = check_lines(2 * size, 0, 0), *v = check_matrix(C, n, ld_v, 0, 0);
    float *o = check_matrix(C, n, ld_o, 0, 0), *w = check_bytes(size * sizeof *w, LINE);
    for (int i = 0; i < 2 * C; i++) memcpy(p + i * n, x->p[i], row);
    for (int i = 0; i < C; i++) memcpy(v + i * ld_v, x->v[i], row);
    const float *A = check_copy(x->A, sizeof x->A, LINE), *B = check_copy(x->B, sizeof x->B, LINE);
    const float *from = check_copy(x->from_start, sizeof x->from_start, ELEMENT);
    const float *to = check_copy(x->to_end, sizeof x->to_end, ELEMENT);
    const float *beta = check_copy(x->beta, sizeof x->beta, ELEMENT);

    double *o_want = check_doubles(size), *o_mag = check_doubles(size);
    double *w_want = check_doubles(size), *w_mag = check_doubles(size);
    for (int c = 0; c < n; c++) solve(x, c, o_want, o_mag, w_want, w_mag, n);

    CALL(kr->chunk_solve)(o, ld_o, w, p, v, ld_v, A, B, from, to, beta);
    check_error("o", f32_matrix(o, C, n, ld_o), o_want, o_mag, 32);
    check_error("w", f32_matrix(w, C, n, n), w_want, w_mag, 32);
    if (timed)
        CHECK_BENCH(4 * 6 * C * n, (2.0 * C * C + 6 * C) * n,
                    kr->chunk_solve(o, ld_o, w, p, v, ld_v, A, B, from, to, beta));
}

static const struct kind kinds[] = {
    { "ordinary", 0, 1, 0, 1, -0.2 },
    { "beta up to 2", 0, 1, 0, 2, -0.05 },
    { "correlated keys, beta near 1", 1, 0.05, 0.9, 1, -0.01 },
    { "correlated keys, beta near 2", 1, 0.05, 1.9, 2, -1e-3 },
    { "equal keys, beta 2, no decay", 1, 0, 2, 2, 0 },
    { "beta 0", 0, 1, 0, 0, -0.2 },
    { "strong decay", 0, 1, 0, 1, -30 },
};

/* chunk_write has the bits of chunk_solve, and r beside them. */
static void check_write(const struct gdn_kernels *kr, const struct kind *kind)
{
    const int n = kr->strip, ld = n + check_below(4);
    const size_t size = (size_t)(C * n), row = (size_t)n * sizeof(float);
    struct chunk *x = check_bytes(sizeof *x, LINE);
    make_chunk(x, kind, n);
    float *all = check_lines(2 * size, 0, 0), *right = check_lines(size, 0, 0);
    float *o = check_lines(size, 0, 0), *w_want = check_lines(size, 0, 0);
    float *p = check_matrix(C, n, ld, 0, 0), *v = check_matrix(C, n, ld, 0, 0);
    float *r = check_matrix(C, n, ld, 0, 0), *u = check_matrix(C, n, ld, 0, 0);
    float *w = check_matrix(C, n, ld, 0, 0), *u_want = check_lines(size, 0, 0), one[C];
    double *r_want = check_doubles(size), *r_mag = check_doubles(size);
    for (int i = 0; i < C; i++) {
        const int at = i * ld;
        one[i] = 1;
        memcpy(all + i * n, x->p[i], row);
        memcpy(p + at, x->p[i], row);
        memcpy(right + i * n, x->v[i], row);
        memcpy(v + at, x->v[i], row);
        for (int c = 0; c < n; c++) {
            const double seen = (double)x->from_start[i] * x->p[i][c];
            r_want[i * n + c] = x->v[i][c] - seen;
            r_mag[i * n + c] = fabs((double)x->v[i][c]) + fabs(seen);
        }
    }
    const float *A = check_copy(x->A, sizeof x->A, LINE), *B = check_copy(x->B, sizeof x->B, LINE);
    const float *from = check_copy(x->from_start, sizeof x->from_start, ELEMENT);
    const float *to = check_copy(x->to_end, sizeof x->to_end, ELEMENT);
    const float *beta = check_copy(x->beta, sizeof x->beta, ELEMENT);
    kr->chunk_solve(o, n, w_want, all, right, n, A, B, from, to, beta);
    kr->chunk_solve(o, n, u_want, all, right, n, A, B, from, one, beta);
    CALL(kr->chunk_write)(r, u, w, ld, p, v, A, from, to, beta);
    for (int i = 0; i < C; i++) {
        const int at = i * ld;
        check_same("u", u + at, u_want + i * n, row);
        check_same("w", w + at, w_want + i * n, row);
        check_error("r", f32_row(r + at, n), r_want + i * n, r_mag + i * n, 2);
    }
}

/* chunk_return: the system of chunk_solve with beta 1 on tokens in reverse and A's transpose. */
static void check_return(const struct gdn_kernels *kr, const struct kind *kind)
{
    const int n = kr->strip, ld = n + check_below(4);
    const size_t size = (size_t)(C * n);
    struct chunk *x = check_bytes(sizeof *x, LINE), *back = check_bytes(sizeof *back, LINE);
    float *p = check_matrix(C, n, ld, 0, 0), *v = check_matrix(C, n, ld, 0, 0);
    float *u = check_matrix(C, n, ld, 0, 0), *w = check_matrix(C, n, ld, 0, 0);
    float end[C], scale[C];
    make_chunk(x, kind, n);
    memset(back, 0, sizeof *back);
    for (int i = 0; i < C; i++) {
        const int at = C - 1 - i;
        memcpy(p + at * ld, x->p[i], (size_t)n * sizeof *p);
        memcpy(v + at * ld, x->v[i], (size_t)n * sizeof *v);
        memcpy(back->p[i], x->p[i], sizeof x->p[i]);
        memcpy(back->v[i], x->v[i], sizeof x->v[i]);
        end[at] = -x->to_end[at];
        scale[at] = x->from_start[at];
        back->from_start[i] = end[at], back->to_end[i] = scale[at], back->beta[i] = 1;
        for (int j = 0; j < C; j++) back->A[i][j] = x->A[C - 1 - j][at];
    }
    invert(back);
    double *none = check_doubles(size), *want = check_doubles(size), *mag = check_doubles(size);
    for (int c = 0; c < n; c++) solve(back, c, none, none, want, mag, n);
    CALL(kr->chunk_return)
    (u, w, ld, p, v, check_copy(x->A, sizeof x->A, LINE), check_copy(end, sizeof end, ELEMENT),
     check_copy(scale, sizeof scale, ELEMENT));
    for (int i = 0; i < C; i++)
        check_error("w", f32_row(w + (C - 1 - i) * ld, n), want + i * n, mag + i * n, 32);
    for (int i = 0; i < C; i++) back->to_end[i] = 1;
    for (int c = 0; c < n; c++) solve(back, c, none, none, want, mag, n);
    for (int i = 0; i < C; i++)
        check_error("u", f32_row(u + (C - 1 - i) * ld, n), want + i * n, mag + i * n, 32);
}

void check_chunk_solve(const struct gdn_kernels *kr)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (int round = 0; round < 8; round++) {
            check_case("%s, round %d", kinds[i].name, round);
            check_one(kr, &kinds[i], i == 0 && round == 0);
        }
}

void check_chunk_write(const struct gdn_kernels *kr)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (int round = 0; round < 8; round++) {
            check_case("%s, round %d", kinds[i].name, round);
            check_write(kr, &kinds[i]);
        }
}

void check_chunk_return(const struct gdn_kernels *kr)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (int round = 0; round < 8; round++) {
            check_case("%s, round %d", kinds[i].name, round);
            check_return(kr, &kinds[i]);
        }
}
