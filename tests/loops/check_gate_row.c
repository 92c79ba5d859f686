/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

enum { ORDINARY, NEAR_20, NEGATIVE, LARGE, CANCELLING, N_KINDS };

static void fill(float *a, float *dt, int kind, size_t n)
{
    static const double middle[N_KINDS] = { 0, 20, -60, 0, 0 };
    static const double spread[N_KINDS] = { 6, 0.01, 50, 1e4, 1e-3 };
    for (size_t i = 0; i < n; i++) {
        dt[i] = (float)check_uniform(-4, 4);
        if (kind == CANCELLING) dt[i] *= 1000;
        const double x = middle[kind] + check_uniform(-spread[kind], spread[kind]);
        a[i] = (float)(x - dt[i]);
    }
    for (size_t i = 0; i < n && kind == LARGE; i += 3) a[i] = i % 2 ? INFINITY : -INFINITY;
    for (size_t i = 0; i < n && kind == ORDINARY; i += 9) a[i] = 20 - dt[i];
    for (size_t i = 1; i < n && kind == LARGE; i += 17) a[i] = NAN;
}

static void check_one(const struct gdn_kernels *kr, int kind, size_t n)
{
    float *a = check_poison(n), *dt = check_poison(n), *neg = check_floats(n, -16, -1e-3);
    fill(a, dt, kind, n);
    double *want = check_doubles(n), *mag = check_doubles(n);
    for (size_t i = 0; i < n; i++) {
        const double x = (double)a[i] + dt[i];
        want[i] = neg[i] * oracle_softplus(x);
        mag[i] = fabs(want[i]) + fabs(neg[i]) * 0x1p-126; /* a step of a denormal */
        if (isfinite(x)) mag[i] += fabs(neg[i]) * (fabs(a[i]) + fabs(dt[i])) * oracle_sigmoid(x);
    }
    float *g = check_poison(n);
    CALL(kr->gate_row)(g, a, neg, dt, n);
    check_error("g", f32_row(g, n), want, mag, 4);

    const struct gdn_kernels *twin = check_twin(kr);
    float *other = check_poison(n);
    if (twin) twin->gate_row(other, a, neg, dt, n);
    if (twin) check_same_numbers("G17 the other table", other, g, n);

    for (size_t i = 0, len; i < n; i += len) { /* in place, in pieces: same bits */
        len = 1 + (size_t)check_below((int)(n - i < 40 ? n - i : 40));
        kr->gate_row(a + i, a + i, neg + i, dt + i, len);
    }
    check_same("in place, in pieces", a, g, n * sizeof *g);
}

void check_gate_row(const struct gdn_kernels *kr)
{
    for (int kind = 0; kind < N_KINDS; kind++) {
        check_case("kind %d, sweep", kind);
        check_one(kr, kind, 20001);
        for (size_t n = 0; n <= 35; n++) {
            check_case("kind %d, n %zu", kind, n);
            check_one(kr, kind, n);
        }
    }
    check_case("n 1024");
    float *a = check_lines(1024, -5, 5), *neg = check_lines(1024, -16, 0);
    float *dt = check_lines(1024, -4, 4), *g = check_lines(1024, 0, 0);
    CHECK_BENCH(16 * 1024, 0, kr->gate_row(g, a, neg, dt, 1024));
}
