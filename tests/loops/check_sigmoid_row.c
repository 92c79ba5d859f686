/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

static const float special[] = { 0.0f,  -0.0f,  INFINITY, -INFINITY, NAN,    88.0f, -88.0f, 89.0f,
                                 -89.0f, -103.0f, -105.0f, 1e4f,     -1e4f,  1e-45f, -1e-30f,
                                 16.6f, 17.4f,  -3.4e38f, 3.4e38f };
enum { N_SPECIAL = sizeof special / sizeof *special, N_SWEEP = 20001 };

static void check_values(const struct gdn_kernels *kr, const float *src, float m, size_t n)
{
    const float *x    = check_copy(src, n * sizeof *src, ELEMENT);
    float       *y    = check_poison(n);
    double      *want = check_doubles(n), *mag = check_doubles(n);
    for (size_t i = 0; i < n; i++) {
        want[i] = m * oracle_sigmoid(x[i]);
        mag[i]  = fabs(want[i]) + 0x1p-126 * fabs(m); /* m times a step of a denormal */
    }
    CALL(kr->sigmoid_row)(y, x, m, n);
    check_error("y", f32_row(y, n), want, mag, 5);

    float *pieces = check_copy(x, n * sizeof *x, ELEMENT); /* in place, in pieces: same bits */
    for (size_t i = 0, len; i < n; i += len) {
        len = 1 + (size_t)check_below((int)(n - i < 40 ? n - i : 40));
        kr->sigmoid_row(pieces + i, pieces + i, m, len);
    }
    check_same("in place, in pieces", pieces, y, n * sizeof *y);

    const struct gdn_kernels *twin = check_twin(kr);
    if (twin) twin->sigmoid_row(pieces, x, m, n);
    if (twin) check_same_numbers("G17 the other table", pieces, y, n);
}

void check_sigmoid_row(const struct gdn_kernels *kr)
{
    static const float factors[] = { 1, 2, -5, 0.3f };
    for (size_t f = 0; f < sizeof factors / sizeof *factors; f++) {
        const float m = factors[f];
        check_case("m %g, sweep", m);
        check_values(kr, check_floats(N_SWEEP, -106, 106), m, N_SWEEP);
        check_case("m %g, sweep near 0", m);
        check_values(kr, check_floats(N_SWEEP, -4, 4), m, N_SWEEP);
        check_case("m %g, special values", m);
        check_values(kr, special, m, N_SPECIAL);
        for (size_t n = 0; n <= 35; n++) {
            check_case("m %g, n %zu", m, n);
            check_values(kr, check_floats(n, -30, 30), m, n);
        }
    }
    check_case("n 1024");
    float *x = check_lines(1024, -5, 5), *y = check_lines(1024, 0, 0);
    CHECK_BENCH(8 * 1024, 0, kr->sigmoid_row(y, x, 1, 1024));
}
