/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

static const float special[] = { 0.0f,    -0.0f,    INFINITY, -INFINITY, NAN,    88.0f,  -88.0f,
                                 -103.0f, -105.0f,  1e4f,     -1e4f,     1e-45f, -1e-30f,
                                 16.6f,   -1.2784645f, 200.5f, -174.5f,  -3.4e38f, 3.4e38f };
enum { N_SPECIAL = sizeof special / sizeof *special, N_SWEEP = 20001 };

/* The limits of both where z is infinite. */
static void oracle(double *act, double *slope, double *mag, float at, bool sigmoid)
{
    const double z = at, s = oracle_sigmoid(z), rest = oracle_sigmoid(-z);
    const double steep = isinf(z) ? 0 : z * rest;
    *act   = sigmoid ? s : oracle_silu(z);
    *slope = sigmoid ? s * rest : isinf(z) ? z > 0 : s * (1 + steep);
    *mag   = (sigmoid ? *slope : s * (1 + fabs(steep))) + 0x1p-126;
}

static void check_values(const struct gdn_kernels *kr, const float *src, bool sigmoid, size_t n)
{
    const float *z = check_copy(src, n * sizeof *src, ELEMENT);
    float       *act = check_poison(n), *slope = check_poison(n);
    double      *acts = check_doubles(n), *slopes = check_doubles(n);
    double      *act_mag = check_doubles(n), *slope_mag = check_doubles(n);
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
    float                    *other = check_poison(n);
    if (twin) twin->slope_row(alone, other, z, sigmoid, n);
    if (twin) check_same_numbers("G17 act of the other table", alone, act, n);
    if (twin) check_same_numbers("G17 slope of the other table", other, slope, n);
}

void check_slope_row(const struct gdn_kernels *kr)
{
    for (int sigmoid = 0; sigmoid < 2; sigmoid++) {
        check_case("sigmoid %d, sweep", sigmoid);
        check_values(kr, check_floats(N_SWEEP, -106, 106), sigmoid, N_SWEEP);
        check_case("sigmoid %d, sweep near 0", sigmoid);
        check_values(kr, check_floats(N_SWEEP, -4, 4), sigmoid, N_SWEEP);
        check_case("sigmoid %d, special values", sigmoid);
        check_values(kr, special, sigmoid, N_SPECIAL);
        for (size_t n = 0; n <= 35; n++) {
            check_case("sigmoid %d, n %zu", sigmoid, n);
            check_values(kr, check_floats(n, -30, 30), sigmoid, n);
        }
    }
    check_case("n 1024");
    float *z = check_lines(1024, -5, 5), *act = check_lines(1024, 0, 0);
    float *slope = check_lines(1024, 0, 0);
    CHECK_BENCH(12 * 1024, 0, kr->slope_row(act, slope, z, false, 1024));
}
