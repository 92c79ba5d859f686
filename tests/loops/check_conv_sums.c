/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

static void check_one(const struct gdn_kernels *kr, int W, int T, int n)
{
    const int ld = n + check_below(4), ld_sum = n + check_below(4);
    const float *dz = check_matrix(T, n, ld, -4, 4), *x = check_matrix(T + W - 1, n, ld, -4, 4);
    const size_t all = (size_t)((W - 1) * ld_sum + n);
    float *sum = check_poison(all), *parts = check_copy(sum, all * sizeof *sum, ELEMENT);
    double *want = check_doubles((size_t)(W * n)), *mag = check_doubles((size_t)(W * n));
    for (int w = 0; w < W; w++)
        for (int j = 0; j < n; j++) {
            double *s = &want[w * n + j], *m = &mag[w * n + j];
            *s = *m = 0;
            for (int t = 0; t < T; t++) {
                const double product = (double)dz[t * ld + j] * x[(t + w) * ld + j];
                *s += product;
                *m += fabs(product);
            }
        }
    CALL(kr->conv_sums)(sum, ld_sum, dz, x, ld, W, T, n);
    const struct check_view view = { sum, GDN_F32, W, n, ld_sum };
    check_error("sum", view, want, mag, T + 1);

    for (int c = 0, some; c < n; c += some) { /* cutting a call changes no bit */
        some = 1 + check_below(n - c);
        kr->conv_sums(parts + c, ld_sum, dz + c, x + c, ld, W, T, some);
    }
    check_same("in parts", parts, sum, all * sizeof *sum);
}

void check_conv_sums(const struct gdn_kernels *kr)
{
    static const int taps[] = { 2, 3, 4, 5, 8, 15, 16 }, tokens[] = { 1, 2, 7, 32 };
    for (size_t w = 0; w < sizeof taps / sizeof *taps; w++)
        for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++) {
            const int n = 1 + check_below(64);
            check_case("W %d, T %d, n %d", taps[w], tokens[t], n);
            check_one(kr, taps[w], tokens[t], n);
        }
    check_case("n 64");
    float *dz = check_lines(32 * 64, -1, 1), *x = check_lines(35 * 64, -1, 1);
    float *sum = check_lines(4 * 64, 0, 0);
    CHECK_BENCH(0, 2 * 4 * 32 * 64, kr->conv_sums(sum, 64, dz, x, 64, 4, 32, 64));
}
