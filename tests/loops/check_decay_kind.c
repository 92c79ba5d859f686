/* SPDX-License-Identifier: Apache-2.0 */
/* decay_kind: rows of ones, and rows of ones with one or two other numbers anywhere. */
#include "check.h"

static const float others[] = { 0,          -0.0f,          0.5f,
                                -1,         1e-45f,         0x1p-126f,
                                -0x1p-149f, 0x1.fffffep-1f, 0x1.000002p0f,
                                1e30f,      INFINITY,       NAN };
enum { N_OTHERS = sizeof others / sizeof *others, LONGEST = 70 };

static float kind_of(const float *a, size_t n)
{
    float kind = 1;
    for (size_t i = 0; i < n; i++) {
        if (a[i] == 0) return 0;
        if (a[i] != 1) kind = 0.5f;
    }
    return kind;
}

static void check_one(const struct gdn_kernels *kr, const float *a, size_t n)
{
    const float got = CALL(kr->decay_kind)(a, n), want = kind_of(a, n);
    if (got != want) check_fail("n %zu: got %.9g, want %.9g", n, got, want);
}

/* Returns ones, with x at place i. */
static float *make(size_t n, size_t i, float x)
{
    float *a = check_floats(n, 1, 1);
    a[i] = x;
    return a;
}

void check_decay_kind(const struct gdn_kernels *kr)
{
    for (size_t n = 0; n <= LONGEST; n++) {
        check_case("n %zu, ones, then any", n);
        check_one(kr, check_floats(n, 1, 1), n);
        check_one(kr, check_floats(n, 0, 1), n);
        for (size_t i = 0; i < n; i++) {
            const float x = others[(n + i) % N_OTHERS];
            check_case("n %zu, [%zu] is %g", n, i, (double)x);
            check_one(kr, make(n, i, x), n);
        }
    }
    for (int x = 0; x < N_OTHERS; x++)
        for (int y = 0; y < N_OTHERS; y++) { /* in the order of the row, in one lane and in two */
            const size_t n = (size_t)(1 + check_below(LONGEST)), i = (size_t)check_below((int)n);
            check_case("n %zu, %g and then %g", n, (double)others[x], (double)others[y]);
            for (size_t j = i + 1; j < n; j++) {
                float *a = make(n, i, others[x]);
                a[j] = others[y];
                check_one(kr, a, n);
            }
        }
    check_case("n 128");
    const float *a = check_lines(128, 0.5, 1);
    CHECK_BENCH(4 * 128, 0, kr->decay_kind(a, 128));
}
