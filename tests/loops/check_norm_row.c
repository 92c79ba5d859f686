/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

static const int sizes[] = { 0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 128, 255 };

/* y = x s w act(z) on exact inputs; a step of a denormal in act grows by x s w. */
static void oracle_norm(double *y, double *mag, const float *x, double s, const float *w,
                        const float *z, bool sigmoid, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const double factor = x[i] * s * (w ? w[i] : 1);
        const double act = !z ? 1 : sigmoid ? oracle_sigmoid(z[i]) : oracle_silu(z[i]);
        y[i] = factor * act;
        mag[i] = fabs(y[i]) + 0x1p-126 * fabs(factor);
    }
}

static void check_one(const struct gdn_kernels *kr, size_t n, bool with_w, bool with_z,
                      bool sigmoid)
{
    const float s = (float)check_uniform(0.01, 3);
    float *x = check_floats(n, -8, 8);
    float *w = with_w ? check_floats(n, -2, 2) : NULL;
    float *z = with_z ? check_floats(n, -20, 20) : NULL;
    for (size_t i = 0; z && i < n; i += 5) z[i] = (float)check_uniform(-110, 110);
    for (size_t i = 0; i < n; i += 7) x[i] = ldexpf(x[i], check_below(40) - 20);
    if (z && n > 8) z[3] = INFINITY;
    if (z && n > 8) z[4] = -0.0f;
    if (z && n > 8) z[5] = -3e38f;
    if (z && n > 8) z[6] = -INFINITY;
    double *want = check_doubles(n), *mag = check_doubles(n);
    oracle_norm(want, mag, x, s, w, z, sigmoid, n);

    float *y = check_poison(n);
    CALL(kr->norm_row)(y, x, s, w, z, sigmoid, n);
    check_error("y", f32_row(y, n), want, mag, 8);

    float *pieces = check_poison(n); /* cutting a row changes no bit */
    for (size_t i = 0, len; i < n; i += len) {
        len = 1 + (size_t)check_below((int)(n - i));
        kr->norm_row(pieces + i, x + i, s, w ? w + i : NULL, z ? z + i : NULL, sigmoid, len);
    }
    check_same("in pieces", pieces, y, n * sizeof *y);

    const struct gdn_kernels *twin = check_twin(kr);
    if (twin) twin->norm_row(pieces, x, s, w, z, sigmoid, n);
    if (twin) check_same_numbers("G17 the other table", pieces, y, n);

    float *in_x = check_copy(x, n * sizeof *x, ELEMENT);
    kr->norm_row(in_x, in_x, s, w, z, sigmoid, n);
    check_same("y = x", in_x, y, n * sizeof *y);
    if (z) {
        float *in_z = check_copy(z, n * sizeof *z, ELEMENT);
        kr->norm_row(in_z, x, s, w, in_z, sigmoid, n);
        check_same("y = z", in_z, y, n * sizeof *y);
    }
    if (n == 128) CHECK_BENCH(16 * n, 0, kr->norm_row(y, x, s, w, z, sigmoid, n));
}

void check_norm_row(const struct gdn_kernels *kr)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int kind = 0; kind < 6; kind++) {
            const bool with_w = kind % 2, with_z = kind / 2 > 0, sigmoid = kind / 2 == 2;
            check_case("n %d, w %d, z %d, sigmoid %d", sizes[i], with_w, with_z, sigmoid);
            check_one(kr, (size_t)sizes[i], with_w, with_z, sigmoid);
        }
}
