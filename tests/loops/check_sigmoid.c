/* SPDX-License-Identifier: Apache-2.0 */
/* The loops of the sigmoid, sigmoid_row and slope_row, on the same rows: two sweeps, special values
 * and all lengths about a vector's. */
#include "check.h"

static const float special[] = { 0.0f,    -0.0f,       INFINITY, -INFINITY, NAN,     88.0f,
                                 -88.0f,  89.0f,       -89.0f,   -103.0f,   -105.0f, 1e4f,
                                 -1e4f,   1e-45f,      -1e-30f,  16.6f,     17.4f,   200.5f,
                                 -174.5f, -1.2784645f, -3.4e38f, 3.4e38f };
enum { N_SPECIAL = sizeof special / sizeof *special, N_SWEEP = 20001 };

/* Checks a row of n values. option: m of sigmoid_row, `sigmoid` of slope_row. */
typedef void check_values(const struct gdn_kernels *kr, const float *src, float option, size_t n);

static void check_rows(const struct gdn_kernels *kr, check_values *check, const char *name,
                       float option)
{
    check_case("%s %g, sweep", name, option);
    check(kr, check_floats(N_SWEEP, -106, 106), option, N_SWEEP);
    check_case("%s %g, sweep near 0", name, option);
    check(kr, check_floats(N_SWEEP, -4, 4), option, N_SWEEP);
    check_case("%s %g, special values", name, option);
    check(kr, special, option, N_SPECIAL);
    for (size_t n = 0; n <= 35; n++) {
        check_case("%s %g, n %zu", name, option, n);
        check(kr, check_floats(n, -30, 30), option, n);
    }
}

/* ---- sigmoid_row ---- */

static void check_sigmoid(const struct gdn_kernels *kr, const float *src, float m, size_t n)
{
    const float *x = check_copy(src, n * sizeof *src, ELEMENT);
    float *y = check_poison(n);
    double *want = check_doubles(n), *mag = check_doubles(n);
    for (size_t i = 0; i < n; i++) {
        want[i] = m * oracle_sigmoid(x[i]);
        mag[i] = fabs(want[i]) + 0x1p-126 * fabs(m); /* m times a step of a denormal */
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
    for (size_t f = 0; f < sizeof factors / sizeof *factors; f++)
        check_rows(kr, check_sigmoid, "m", factors[f]);
    check_case("n 1024");
    float *x = check_lines(1024, -5, 5), *y = check_lines(1024, 0, 0);
    CHECK_BENCH(8 * 1024, 0, kr->sigmoid_row(y, x, 1, 1024));
}

/* ---- slope_row ---- */

/* The sigmoid or SiLU, and its slope; both have a limit at an infinite z. */
static void oracle(double *act, double *slope, double *mag, float at, bool sigmoid)
{
    const double z = at, s = oracle_sigmoid(z), rest = oracle_sigmoid(-z);
    const double steep = isinf(z) ? 0 : z * rest;
    *act = sigmoid ? s : oracle_silu(z);
    *slope = sigmoid ? s * rest : isinf(z) ? z > 0 : s * (1 + steep);
    *mag = (sigmoid ? *slope : s * (1 + fabs(steep))) + 0x1p-126;
}

static void check_slope(const struct gdn_kernels *kr, const float *src, float option, size_t n)
{
    const bool sigmoid = option != 0;
    const float *z = check_copy(src, n * sizeof *src, ELEMENT);
    float *act = check_poison(n), *slope = check_poison(n);
    double *acts = check_doubles(n), *slopes = check_doubles(n);
    double *act_mag = check_doubles(n), *slope_mag = check_doubles(n);
    for (size_t i = 0; i < n; i++) {
        oracle(&acts[i], &slopes[i], &slope_mag[i], z[i], sigmoid);
        act_mag[i] = fabs(acts[i]) + 0x1p-126;
    }
    CALL(kr->slope_row)(act, slope, z, sigmoid, n);
    check_error("act", f32_row(act, n), acts, act_mag, 8);
    check_error("slope", f32_row(slope, n), slopes, slope_mag, 8);

    float *alone = check_copy(z, n * sizeof *z, ELEMENT); /* in place, in pieces: same bits */
    for (size_t i = 0, len; i < n; i += len) {
        len = 1 + (size_t)check_below((int)(n - i < 40 ? n - i : 40));
        kr->slope_row(NULL, alone + i, alone + i, sigmoid, len);
    }
    check_same("slope in place, in pieces", alone, slope, n * sizeof *slope);
    kr->slope_row(alone, NULL, z, sigmoid, n);
    check_same("act alone", alone, act, n * sizeof *act);

    const struct gdn_kernels *twin = check_twin(kr);
    float *other = check_poison(n);
    if (twin) twin->slope_row(alone, other, z, sigmoid, n);
    if (twin) check_same_numbers("G17 act of the other table", alone, act, n);
    if (twin) check_same_numbers("G17 slope of the other table", other, slope, n);
}

void check_slope_row(const struct gdn_kernels *kr)
{
    for (int sigmoid = 0; sigmoid < 2; sigmoid++)
        check_rows(kr, check_slope, "sigmoid", (float)sigmoid);
    check_case("n 1024");
    float *z = check_lines(1024, -5, 5), *act = check_lines(1024, 0, 0);
    float *slope = check_lines(1024, 0, 0);
    CHECK_BENCH(12 * 1024, 0, kr->slope_row(act, slope, z, false, 1024));
}
