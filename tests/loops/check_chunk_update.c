/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

enum { C = GDN_CHUNK };

static const int   depths[] = { 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 64, 100, 128, 255, 256 };
static const float decays[] = { 0, 0.5f, 1, 1e-30f };

static void check_one(const struct gdn_kernels *kr, int K, float decay)
{
    const int    n    = kr->strip, ld_k = K + check_below(4);
    const size_t size = (size_t)(K * n);
    float       *s = check_lines(size, -2, 2), *w = check_lines((size_t)(C * n), -1, 1);
    float       *k = check_matrix(C, K, ld_k, -1, 1);
    double      *want = check_doubles(size), *mag = check_doubles(size);
    for (int x = 0; x < K; x++)
        for (int j = 0; j < n; j++) {
            double sum = (double)decay * s[x * n + j], abs = fabs(sum);
            for (int t = 0; t < C; t++) {
                const double term = (double)k[t * ld_k + x] * w[t * n + j];
                sum += term;
                abs += fabs(term);
            }
            want[x * n + j] = sum;
            mag[x * n + j]  = abs;
        }
    float *before = check_copy(s, size * sizeof *s, LINE);
    CALL(kr->chunk_update)(s, decay, k, ld_k, w, K);
    check_error("s", f32_matrix(s, K, n, n), want, mag, 12);

    /* A row has the same bits alone; rows of an aligned strip stay aligned only in a copy. */
    float *row = check_lines((size_t)n, 0, 0);
    for (int x = 0; x < K; x++) {
        memcpy(row, before + x * n, (size_t)n * sizeof *row);
        kr->chunk_update(row, decay, k + x, ld_k, w, 1);
        check_same("row alone", s + x * n, row, (size_t)n * sizeof *row);
    }
    if (K == 128 && decay == 0.5f)
        CHECK_BENCH(8.0 * K * n, 2.0 * C * K * n, kr->chunk_update(s, decay, k, ld_k, w, K));
}

void check_chunk_update(const struct gdn_kernels *kr)
{
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++)
        for (size_t d = 0; d < sizeof decays / sizeof *decays; d++) {
            check_case("K %d, decay %g", depths[i], decays[d]);
            check_one(kr, depths[i], decays[d]);
        }
}
