/* SPDX-License-Identifier: Apache-2.0 */
/* chunk_update; and channel_update, which has a decay for each row. */
#include "check.h"

enum { C = GDN_CHUNK };

static const int depths[] = { 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 64, 100, 128, 255, 256 };
static const float decays[] = { 0, 0.5f, 1, 1e-30f, 1e-45f };

/* The decays of rows. NOT_FINITE: their own, and some rows of from hold NaN and infinities. */
enum rows { ALIKE, OWN, NOT_FINITE };

/* Makes decays of K rows: all are `one`, or each is random. */
static float *make_decays(int K, enum rows rows, float one)
{
    const int n = sizeof decays / sizeof *decays;
    float *decay = check_floats((size_t)K, one, one);
    for (int x = 0; x < K && rows != ALIKE; x++)
        decay[x] = check_below(2) ? decays[check_below(n)] : (float)check_uniform(0, 1);
    return decay;
}

static void spoil(float *from, int K, int n, int ld)
{
    static const float wild[] = { NAN, INFINITY, -INFINITY };
    for (int x = check_below(2); x < K; x += 2)
        for (int j = 0; j < n; j++)
            if (check_below(4) == 0) from[x * ld + j] = wild[check_below(3)];
}

static void check_one(const struct gdn_kernels *kr, int K, enum rows rows, float one, int T,
                      bool in_place)
{
    const int n = kr->strip, ld_k = K + check_below(4), ld_w = n + check_below(4);
    const int ld = n + check_below(4);
    const size_t size = (size_t)(K * n);
    float *from = check_matrix(K, n, ld, -2, 2), *w = check_matrix(T, n, ld_w, -1, 1);
    float *to = in_place ? from : check_matrix(K, n, ld, 0, 0);
    float *k = check_matrix(T, K, ld_k, -1, 1), *decay = make_decays(K, rows, one);
    double *want = check_doubles(size), *mag = check_doubles(size);
    if (rows == NOT_FINITE) spoil(from, K, n, ld);
    for (int x = 0; x < K; x++)
        for (int j = 0; j < n; j++) {
            double sum = (double)decay[x] * from[x * ld + j], abs = fabs(sum);
            for (int t = 0; t < T; t++) {
                const double term = (double)k[t * ld_k + x] * w[t * ld_w + j];
                sum += term;
                abs += fabs(term);
            }
            want[x * n + j] = sum;
            mag[x * n + j] = abs;
        }
    float *before =
        check_copy(from, ((size_t)(K - 1) * (size_t)ld + (size_t)n) * sizeof *from, ELEMENT);
    if (rows == ALIKE)
        CALL(kr->chunk_update)(to, from, ld, one, k, ld_k, w, ld_w, T, K);
    else
        CALL(kr->channel_update)(to, from, ld, decay, k, ld_k, w, ld_w, T, K);
    check_error("to", f32_matrix(to, K, n, ld), want, mag, T > C ? 20 : 12);

    float row[GDN_MAX_STRIP]; /* a row has the same bits alone, by either loop */
    for (int x = 0; x < K; x++) {
        kr->chunk_update(row, before + x * ld, n, decay[x], k + x, ld_k, w, ld_w, T, 1);
        check_same_numbers("row alone", to + x * ld, row, (size_t)n);
        kr->channel_update(row, before + x * ld, n, decay + x, k + x, ld_k, w, ld_w, T, 1);
        check_same_numbers("row alone, a channel", to + x * ld, row, (size_t)n);
    }
    if (K == 128 && rows == ALIKE && one == 0.5f && T == C)
        CHECK_BENCH(8.0 * K * n, 2.0 * C * K * n,
                    kr->chunk_update(to, from, ld, one, k, ld_k, w, ld_w, T, K));
    if (K == 128 && rows == OWN && T == C)
        CHECK_BENCH(8.0 * K * n, 2.0 * C * K * n,
                    kr->channel_update(to, from, ld, decay, k, ld_k, w, ld_w, T, K));
}

void check_chunk_update(const struct gdn_kernels *kr)
{
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++)
        for (size_t d = 0; d < sizeof decays / sizeof *decays; d++) {
            const int T = (i + d) % 2 ? C : 2 * C;
            const bool in_place = i % 2 == 0;
            check_case("K %d, decay %g, T %d, in place %d", depths[i], decays[d], T, in_place);
            check_one(kr, depths[i], ALIKE, decays[d], T, in_place);
        }
}

void check_channel_update(const struct gdn_kernels *kr)
{
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++)
        for (int round = 0; round < 8; round++) {
            const int T = round % 2 ? C : 2 * C - check_below(C);
            const bool in_place = round % 4 < 2;
            const enum rows rows = round < 5 ? OWN : NOT_FINITE;
            check_case("K %d, rows %s, T %d, in place %d", depths[i],
                       rows == OWN ? "finite" : "not finite", T, in_place);
            check_one(kr, depths[i], rows, 0, T, in_place);
        }
}
