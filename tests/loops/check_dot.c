/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Of data without structure the errors of a sum cancel, and few units are left whatever its
 * length. Of any data they can reach a unit per link of the longest chain of additions: n / 64
 * + 3 with four times 16 lanes, n / 8 with eight scalars, and the tree that adds those.
 */
#include "check.h"

static const int sizes[] = {
    0,  1,   2,   7,   8,   9,   15,  16,  17,  31,  32,   33,   63,   64,
    65, 100, 127, 128, 129, 255, 256, 257, 511, 513, 1000, 1023, 2048, 4097
};

enum { SIGNED, POSITIVE, WIDE, CANCELLING, CONSTANT, ONE_LARGE, N_KINDS };

static float value(int kind, size_t i)
{
    const float x = (float)check_uniform(kind == POSITIVE ? 0 : -1, 1);
    if (kind == CONSTANT) return 0.1f;
    if (kind == ONE_LARGE) return i < 64 ? 1 : 0x1.fp-13f;
    if (kind == WIDE) return ldexpf(x, check_below(40) - 20);
    if (kind == CANCELLING) return i % 2 ? -1 + x * 0x1p-12f : 1;
    return x;
}

static void check_size(const struct gdn_kernels *kr, int kind, size_t n)
{
    float *a = check_poison(n), *b = check_poison(n);
    for (size_t i = 0; i < n; i++) {
        a[i] = value(kind, i);
        b[i] = kind == CANCELLING ? 1.5f : value(kind, i);
    }
    const double *wide_a = check_widen(a, n), *wide_b = check_widen(b, n);
    double want, mag;
    oracle_linear(&want, &mag, wide_a, wide_b, 1, 1, (int64_t)n);

    const double any = is_scalar(kr) ? 5 + (double)n / 8 : 10 + (double)n / 64;
    const double usual = is_scalar(kr) ? 8 + (double)n / 16 : 4;
    const float got = CALL(kr->dot)(a, b, n);
    check_error("sum", f32_row(&got, 1), &want, &mag, kind < CONSTANT ? usual : any);
    const struct gdn_kernels *twin = check_twin(kr);
    if (twin) check_same("G17 the other table", &(float){ twin->dot(a, b, n) }, &got, sizeof got);
    float sink;
    if (kind == SIGNED && (n == 128 || n == 2048))
        CHECK_BENCH(8 * n, 2 * n, sink = kr->dot(a, b, n));
    (void)sink;
}

void check_dot(const struct gdn_kernels *kr)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            check_case("n %d, kind %d", sizes[i], kind);
            check_size(kr, kind, (size_t)sizes[i]);
        }
}
