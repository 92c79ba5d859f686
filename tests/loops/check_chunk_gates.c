/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunk_gates: the oracle sums the gates between two tokens directly, in double.
 */
#include "check.h"

enum { C = GDN_CHUNK };

struct gates {
    float *g, *beta, *gram;
    float *A, *B, *from_start, *to_end;
};

static struct gates make(double low, double high)
{
    const struct gates x = {
        .g = check_floats(C, low, high),
        .beta = check_floats(C, 0, 2),
        .gram = check_floats(2 * C * C, -1, 1),
        .A = check_bytes(C * C * sizeof(float), LINE),
        .B = check_bytes(C * C * sizeof(float), LINE),
        .from_start = check_poison(C),
        .to_end = check_poison(C),
    };
    return x;
}

/* G_i - G_j, the sum of the gates of tokens j+1 .. i. */
static double log_decay(const float *g, int j, int i)
{
    double sum = 0;
    for (int t = j + 1; t <= i; t++) sum += g[t];
    return sum;
}

/* The magnitude of factor exp(x), judged by a limit of 8: a relative error of 2 |x| units, as
 * x is rounded twice, and a step where the exponential is denormal. */
static double magnitude(double x, double factor)
{
    const double e = exp(x);
    return fabs(factor) * ((e > 0 ? e * (1 + fabs(x) / 4) : 0) + 0x1p-126);
}

static void check_one(const struct gdn_kernels *kr, const struct gates *x)
{
    double A[C * C] = { 0 }, B[C * C] = { 0 }, A_mag[C * C] = { 0 }, B_mag[C * C] = { 0 };
    double from[C], to[C], from_mag[C], to_mag[C];
    for (int i = 0; i < C; i++) {
        for (int j = 0; j <= i; j++) {
            const double d = log_decay(x->g, j, i), qk = x->gram[(C + i) * C + j];
            const double kk = j == i ? 0 : (double)x->beta[i] * x->gram[i * C + j];
            A[i * C + j] = exp(d) * kk;
            A_mag[i * C + j] = magnitude(d, kk);
            B[i * C + j] = exp(d) * qk;
            B_mag[i * C + j] = magnitude(d, qk);
        }
        from[i] = exp(log_decay(x->g, -1, i));
        from_mag[i] = magnitude(log_decay(x->g, -1, i), 1);
        to[i] = exp(log_decay(x->g, i, C - 1));
        to_mag[i] = magnitude(log_decay(x->g, i, C - 1), 1);
    }
    CALL(kr->chunk_gates)(x->A, x->B, x->from_start, x->to_end, x->g, x->beta, x->gram);
    check_error("A", f32_matrix(x->A, C, C, C), A, A_mag, 8);
    check_error("B", f32_matrix(x->B, C, C, C), B, B_mag, 8);
    check_error("from_start", f32_row(x->from_start, C), from, from_mag, 8);
    check_error("to_end", f32_row(x->to_end, C), to, to_mag, 8);
    /* elements above the diagonal are exactly 0 */
    for (int i = 0; i < C; i++)
        for (int j = i + 1; j < C; j++)
            if (x->A[i * C + j] != 0 || x->B[i * C + j] != 0)
                check_fail("[%d][%d]: A %.9g, B %.9g, want 0", i, j, x->A[i * C + j],
                           x->B[i * C + j]);
    for (int i = 0; i < C; i++)
        if (x->beta[i] == 0)
            for (int j = 0; j < i; j++)
                if (x->A[i * C + j] != 0) check_fail("A[%d][%d] behind beta 0", i, j);
}

static void check_ranges(const struct gdn_kernels *kr)
{
    static const double ranges[][2] = {
        { -3, 0 },     { -1e-3, 0 },   { -1e-30, 0 }, { -20, 0 },
        { -200, -50 }, { -1e4, -1e4 }, { 0, 0 },      { -0.5, 0.5 }
    };
    for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++)
        for (int beta = 0; beta < 4; beta++) {
            check_case("g from %g to %g, beta %d", ranges[r][0], ranges[r][1], beta);
            const struct gates x = make(ranges[r][0], ranges[r][1]);
            for (int i = 0; i < C && beta < 3; i++) x.beta[i] = (float)beta;
            check_one(kr, &x);
        }
}

void check_chunk_gates(const struct gdn_kernels *kr)
{
    check_ranges(kr);
    for (int at = 0; at < C; at++) {
        check_case("gate %d is -1e4", at);
        const struct gates x = make(-2, 0);
        x.g[at] = -1e4f;
        check_one(kr, &x);
    }
    for (int round = 0; round < 50; round++) {
        check_case("several gates or betas are 0, round %d", round);
        const struct gates x = make(-4, 0);
        for (int i = 0; i < C; i++) {
            if (check_below(4) == 0) x.g[i] = 0;
            if (check_below(4) == 0) x.beta[i] = 0;
        }
        check_one(kr, &x);
    }

    check_case("C %d", C);
    const struct gates x = make(-1, 0);
    CHECK_BENCH(4 * 4 * C * C, 4 * C * C,
                kr->chunk_gates(x.A, x.B, x.from_start, x.to_end, x.g, x.beta, x.gram));
}
