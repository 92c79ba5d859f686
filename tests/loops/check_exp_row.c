/* SPDX-License-Identifier: Apache-2.0 */
/* exp_row: its whole range in small steps, with denormal results, and both ends. */
#include "check.h"

static const float special[] = {
    0.0f,      -0.0f,     1.0f,       -1.0f,       INFINITY,     -INFINITY,  NAN,         -103.9f,
    -103.97f,  -104.0f,   -104.5f,    -1e4f,       -3.4e38f,     -87.33f,    -87.34f,     -88.0f,
    88.72283f, 88.72284f, 88.722839f, 89.0f,       1e4f,         3.4e38f,    1e-45f,      -1e-45f,
    1e-38f,    0x1p-24f,  -0x1p-25f,  0.34657359f, -0.34657359f, 0.6931472f, -0.6931472f, 20.0f,
};
enum { N_SPECIAL = sizeof special / sizeof *special, N_SWEEP = 40001 };

static void check_values(const struct gdn_kernels *kr, const float *src, size_t n)
{
    const float *x = check_copy(src, n * sizeof *src, ELEMENT);
    float *y = check_poison(n);
    double *want = check_doubles(n);
    for (size_t i = 0; i < n; i++) want[i] = exp(x[i]);

    CALL(kr->exp_row)(y, x, n);
    check_error("y", f32_row(y, n), want, want, 2);
    for (size_t i = 0; i < n; i++)
        if (x[i] == 0 && y[i] != 1) check_fail("exp(0) is %.9g", y[i]);
    for (size_t i = 0; i < n; i++)
        if (x[i] == -INFINITY && y[i] != 0) check_fail("exp(-inf) is %.9g", y[i]);

    float *pieces = check_copy(x, n * sizeof *x, ELEMENT); /* in place, in pieces: same bits */
    for (size_t i = 0, len; i < n; i += len) {
        len = 1 + (size_t)check_below((int)(n - i < 40 ? n - i : 40));
        kr->exp_row(pieces + i, pieces + i, len);
    }
    check_same("in place, in pieces", pieces, y, n * sizeof *y);

    const struct gdn_kernels *twin = check_twin(kr);
    if (twin) twin->exp_row(pieces, x, n);
    if (twin) check_same_numbers("G17 the other table", pieces, y, n);
}

void check_exp_row(const struct gdn_kernels *kr)
{
    static const double ranges[][2] = {
        { -105, 89.5 }, { -1, 1 }, { -104.2, -86.5 }, { -1e-3, 1e-3 }, { 88, 89 }
    };
    for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++) {
        check_case("sweep from %g to %g", ranges[r][0], ranges[r][1]);
        check_values(kr, check_floats(N_SWEEP, ranges[r][0], ranges[r][1]), N_SWEEP);
    }
    check_case("special values");
    check_values(kr, special, N_SPECIAL);
    for (size_t n = 0; n <= 35; n++) {
        check_case("n %zu", n);
        float *x = check_floats(n, -30, 10);
        for (size_t i = 0; i < n; i += 4) x[i] = special[check_below(N_SPECIAL)];
        check_values(kr, x, n);
    }
    check_case("n 1024");
    float *x = check_lines(1024, -20, 0), *y = check_lines(1024, 0, 0);
    CHECK_BENCH(8 * 1024, 0, kr->exp_row(y, x, 1024));
}
