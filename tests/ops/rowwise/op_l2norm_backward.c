/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 */
/* gdn_l2norm_backward against the float64 Jacobian, which finite differences judge; and its
 * guarantees by name. */
#include <math.h>
#include <string.h>

#include "gdn_train.h"
#include "oracle.h"
#include "ring2.h"

struct call {
    gdn_ctx *ctx;
    gdn_l2norm_backward_args args;
    gdn_status status;
};

static void run_it(void *arg)
{
    struct call *c = arg;
    c->status = gdn_l2norm_backward(c->ctx, &c->args);
}

static void run(struct call *c)
{
    run_it(c);
    ring2_status(c->ctx, "gdn_l2norm_backward", c->status, GDN_OK);
}

static void give_workspace(struct call *c)
{
    gdn_l2norm_backward_args *a = &c->args;
    const gdn_op op = GDN_OP_L2NORM_BACKWARD;
    ring2_status(c->ctx, "gdn_supported", gdn_supported(c->ctx, op, a), GDN_OK);
    ring2_give_workspace(c->ctx, op, a);
}

static int norm_of(const gdn_l2norm_backward_args *a) { return a->norm ? a->norm : GDN_NORM_L2; }

static double eps_of(const gdn_l2norm_backward_args *a)
{
    return a->eps > 0 ? (double)a->eps : 1e-6;
}

static double divisor_of(const gdn_l2norm_backward_args *a, double squares)
{
    const double length = sqrt(squares);
    if (a->norm == GDN_NORM_L2_ADD) return length + eps_of(a);
    if (a->norm == GDN_NORM_L2_MAX) return fmax(length, eps_of(a));
    return sqrt(squares + eps_of(a));
}

/*
 * A gradient is dout / d - x s inner / d^2. Its first term has the error of d: half that of the sum
 * of squares (as in op_norm.c), 4 for root, eps and division, and 1 of its own. The second has d's
 * three times, the error of inner, relative to the sum of |x dout|, and 8 roundings. Adding to what
 * is there rounds once more.
 */
static void find_limits(const struct call *c, double *limit, const double *x, const double *dout,
                        int64_t D)
{
    const double sum = strcmp(gdn_isa(c->ctx), "scalar") ? 4 : 8 + (double)(D < 256 ? D : 256) / 16;
    double *sizes = ring2_heap((size_t)D * 16), *from = sizes + D, squares = 0;
    for (int64_t i = 0; i < D; i++) {
        squares += x[i] * x[i];
        sizes[i] = fabs(x[i]), from[i] = fabs(dout[i]);
    }
    oracle_l2norm_backward(limit, sizes, from, D, norm_of(&c->args), eps_of(&c->args));
    for (int64_t i = 0; i < D; i++) {
        const double first = from[i] / divisor_of(&c->args, squares);
        const double second = fabs(first - limit[i]);
        limit[i] = ((sum / 2 + 5) * first + (2.5 * sum + 20) * second) * 0x1p-24 + 0x1p-125;
    }
}

static void check(struct call *c)
{
    const gdn_tensor *dx = &c->args.dx;
    const int64_t D = dx->size[dx->ndim - 1], n = ring2_count(dx);
    const double *x = ring2_doubles(&c->args.x), *dout = ring2_doubles(&c->args.dout);
    double *want = ring2_heap((size_t)n * 8), *limit = ring2_heap((size_t)n * 8);
    for (int64_t r = 0; r < n; r += D) {
        oracle_l2norm_backward(want + r, x + r, dout + r, D, norm_of(&c->args), eps_of(&c->args));
        find_limits(c, limit + r, x + r, dout + r, D);
    }
    if (c->args.flags & GDN_ACCUMULATE) {
        const double *old = ring2_doubles(dx);
        for (int64_t i = 0; i < n; i++) {
            want[i] += old[i];
            limit[i] += fabs(want[i]) * 0x1p-24;
        }
    }
    ring2_call_begin();
    ring2_may_write(dx);
    ring2_may_write_bytes(c->args.workspace, c->args.workspace_bytes);
    run(c);
    ring2_call_end();
    ring2_compare("dx", dx, want, limit, NULL, NULL);
}

/* ---- Cases ---- */

enum { SIZE, ROWS, X, DOUT, DX, VIEW, FORMULA, EPS, ADDS, N_FACTORS };

static const int levels[N_FACTORS] = { 10, 3, 3, 3, 3, 3, 4, 2, 2 };
static const int64_t sizes[10] = { 1, 7, 16, 31, 64, 100, 127, 256, 1025, 65536 };

static bool allowed(int i, int a, int j, int b)
{
    (void)i, (void)a, (void)j, (void)b;
    return true;
}

static gdn_tensor rows(const int *level, int32_t dtype)
{
    const int64_t D = sizes[level[SIZE]], gap = level[VIEW] == 1 ? 3 : 0;
    gdn_tensor t;
    if (level[ROWS] == 0) return ring2_new(dtype, gap, 1, D, 0, 0, 0);
    t = level[ROWS] == 1 ? ring2_new(dtype, gap, 2, 3, D, 0, 0)
                         : ring2_new(dtype, gap, 4, 2, 1, 3, D);
    if (level[VIEW] == 2) { /* the first dimension backwards */
        const int64_t step = t.stride[0] * (int64_t)gdn_dtype_bytes(dtype);
        t.data = (char *)t.data + (t.size[0] - 1) * step;
        t.stride[0] = -t.stride[0];
    }
    return t;
}

static void run_case(const int *level, int number)
{
    struct call c = { .ctx = ring2_ctx(1 + number % 3), .args = gdn_l2norm_backward_args_init() };
    c.args.x = rows(level, level[X]), c.args.dout = rows(level, level[DOUT]);
    c.args.dx = rows(level, level[DX]);
    c.args.norm = level[FORMULA];
    c.args.eps = level[EPS] ? 0.5f : 0;
    ring2_fill(&c.args.x, -3, 3);
    ring2_fill(&c.args.dout, -2, 2);
    /* One row of zeros: there 1e6 dout, which f16 has not. */
    if (level[ROWS] && (level[DX] != GDN_F16 || level[EPS])) {
        const gdn_tensor zero = ring2_select(&c.args.x, 0, 0);
        ring2_fill_value(&zero, 0);
    }
    if (level[ADDS]) {
        c.args.flags = GDN_ACCUMULATE;
        ring2_fill(&c.args.dx, -1, 1);
    }
    if (number % 2) give_workspace(&c);
    check(&c);
}

/* ---- The oracle ---- */

/* Differences of the sum of dout y, on both sides of where GDN_NORM_L2_MAX bends. */
static void finite_differences(void)
{
    enum { D = 7 };
    const double h = 1e-5;
    for (int i = 0; i < 6; i++) {
        const int norm = 1 + i % 3;
        const double eps = i < 3 ? 0.3 : 9;
        double x[D], dout[D], dx[D], y[D];
        for (int j = 0; j < D; j++) x[j] = ring2_uniform(-1, 1), dout[j] = ring2_uniform(-1, 1);
        oracle_l2norm_backward(dx, x, dout, D, norm, eps);
        for (int j = 0; j < D; j++) {
            const double at = x[j];
            double difference = 0;
            for (int side = -1; side <= 1; side += 2) {
                x[j] = at + side * h;
                oracle_l2norm(y, x, D, norm, eps);
                for (int k = 0; k < D; k++) difference += side * dout[k] * y[k] / (2 * h);
            }
            x[j] = at;
            CHECK(fabs(dx[j] - difference) < 1e-8, "norm %d, eps %g: %g, wanted %g", norm, eps,
                  dx[j], difference);
        }
    }
}

/* ---- Properties ---- */

static struct call make_call(int64_t n, int64_t D)
{
    struct call c = { .ctx = ring2_ctx(1), .args = gdn_l2norm_backward_args_init() };
    c.args.x = ring2_new(GDN_F32, 0, 2, n, D, 0, 0);
    c.args.dout = ring2_new(GDN_F32, 0, 2, n, D, 0, 0);
    c.args.dx = ring2_new(GDN_F32, 0, 2, n, D, 0, 0);
    ring2_fill(&c.args.x, -1, 1);
    ring2_fill(&c.args.dout, -1, 1);
    return c;
}

/* A gradient is linear in dout: twice as much gives twice as much, to the bit, and zero gives
 * zero. Added to zero it is itself. */
static void linear_in_dout(void)
{
    struct call c = make_call(9, 77), other = c;
    run(&c);
    other.args.dout = ring2_clone(&c.args.dout);
    other.args.dx = ring2_clone(&c.args.dx);
    for (int64_t i = 0; i < ring2_count(&c.args.dx); i++) {
        ring2_set(&other.args.dout, i, 2 * ring2_get(&c.args.dout, i));
        ring2_set(&c.args.dx, i, 2 * ring2_get(&c.args.dx, i));
    }
    run(&other);
    ring2_expect_bits("twice", &other.args.dx, &c.args.dx);

    ring2_fill_value(&c.args.dx, 0);
    c.args.flags = GDN_ACCUMULATE;
    c.args.dout = other.args.dout;
    run(&c);
    ring2_expect_bits("added to zero", &c.args.dx, &other.args.dx);

    ring2_fill_value(&other.args.dout, 0);
    run(&other);
    for (int64_t i = 0; i < ring2_count(&other.args.dx); i++)
        CHECK(ring2_get(&other.args.dx, i) == 0, "zero became %g", ring2_get(&other.args.dx, i));
}

/* Rows whose length is near the default eps, and a row of zeros. */
static void tiny_rows(void)
{
    static const double sizes_of[] = { 0, 1e-3, 1e-4, 1e-6, 1e-8 };
    for (int i = 0; i < 15; i++) {
        struct call c = make_call(1, 64);
        c.args.norm = 1 + i / 5;
        ring2_fill(&c.args.x, -sizes_of[i % 5], sizes_of[i % 5]);
        check(&c);
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "finite differences", finite_differences },
        { "linear in dout", linear_in_dout },
        { "tiny rows", tiny_rows },
    };
    static int cases[200][RING2_MAX_FACTORS];
    struct ring2_factors f = { N_FACTORS, levels, allowed };
    const int n = (ring2_options(argc, argv), ring2_pairs(&f, cases, 200));
    for (int i = 0; i < n; i++) {
        if (!ring2_begin("l2norm_backward %03d D%d", i, (int)sizes[cases[i][SIZE]])) continue;
        run_case(cases[i], i);
        ring2_end();
    }
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
