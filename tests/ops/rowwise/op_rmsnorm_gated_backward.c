/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 */
/* gdn_rmsnorm_gated_backward against float64 gradients, which finite differences judge; and its
 * guarantees by name. */
#include <math.h>
#include <string.h>

#include "gdn_train.h"
#include "oracle.h"
#include "ring2.h"

typedef gdn_rmsnorm_gated_backward_args args;

struct call {
    gdn_ctx *ctx;
    args args;
    gdn_status status;
};

static void run_it(void *arg)
{
    struct call *c = arg;
    c->status = gdn_rmsnorm_gated_backward(c->ctx, &c->args);
}

static void run(struct call *c)
{
    run_it(c);
    ring2_status(c->ctx, "gdn_rmsnorm_gated_backward", c->status, GDN_OK);
}

static void give_workspace(struct call *c)
{
    const gdn_op op = GDN_OP_RMSNORM_GATED_BACKWARD;
    args *a = &c->args;
    ring2_status(c->ctx, "gdn_supported", gdn_supported(c->ctx, op, a), GDN_OK);
    ring2_status(c->ctx, "bytes", gdn_workspace_bytes(c->ctx, op, a, &a->workspace_bytes), GDN_OK);
    const size_t most = a->dweight.data ? 2048 * (size_t)a->dweight.size[0] : 0;
    CHECK(a->workspace_bytes <= most, "%zu bytes", a->workspace_bytes);
    a->workspace = ring2_alloc((a->workspace_bytes + 63) / 64 * 64, 64);
}

/* ---- The model ---- */

static double *doubles(const gdn_tensor *t) { return t->data ? ring2_doubles(t) : NULL; }

/* The wanted values of a gradient, and their limits. */
struct wanted {
    const gdn_tensor *t;
    double *value, *limit;
};

static struct wanted want(const gdn_tensor *t, int64_t n)
{
    return (struct wanted){ t, ring2_heap((size_t)n * 8), ring2_heap((size_t)n * 8) };
}

/*
 * Limits in units of 2^-24, of the magnitudes of the terms. The error of r is half that of the sum
 * of squares and 4; a product with act(z) has 8, its slope 12 of what it is the sum of. Of
 * dx = r e - r^3 x mean(e x) the second term has r's thrice and that of its own sum.
 */
static void find_limits(const struct call *c, const struct oracle_rmsnorm *o, double *dx,
                        double *dz, double *dweight)
{
    const int64_t n = o->n;
    const bool is_scalar = !strcmp(gdn_isa(c->ctx), "scalar");
    const double sum = is_scalar ? 8 + (double)(n < 256 ? n : 256) / 16 : 4;
    double squares = 0, inner = 0;
    for (int64_t i = 0; i < n; i++) squares += o->x[i] * o->x[i];
    const double r = 1 / sqrt(squares / (double)n + o->eps), of_r = sum / 2 + 4;
    for (int64_t i = 0; i < n; i++) {
        const double z = o->z ? o->z[i] : 0, w = o->w ? fabs(o->w[i]) : 1;
        const double act = !o->z ? 1 : o->sigmoid ? oracle_sigmoid(z) : fabs(oracle_silu(z));
        const double d = fabs(o->dout[i]), y = fabs(o->x[i]) * r, s = oracle_sigmoid(z);
        const double slope = o->sigmoid ? s * (1 - s) : s * (1 + fabs(z) * (1 - s));
        dx[i] = d * w * act;
        inner += dx[i] * y / (double)n;
        dz[i] = d * y * w * slope * (of_r + 18) * 0x1p-24 + 0x1p-125;
        dweight[i] = d * y * act * (of_r + 10);
    }
    for (int64_t i = 0; i < n; i++)
        dx[i] = r * (dx[i] * (of_r + 12) + fabs(o->x[i]) * r * inner * (3 * of_r + sum + 16)) *
                    0x1p-24 +
                0x1p-125;
}

/* Adds what the gradients hold before the call, if `adds`. */
static void add_old(struct wanted *w, bool adds)
{
    if (!w->t->data || !adds) return;
    const int64_t n = ring2_count(w->t);
    const double *old = ring2_doubles(w->t);
    for (int64_t i = 0; i < n; i++) {
        w->value[i] += old[i];
        w->limit[i] += (fabs(w->value[i]) + fabs(old[i])) * 0x1p-24;
    }
}

static void check(struct call *c)
{
    const args *a = &c->args;
    const int64_t D = a->x.size[a->x.ndim - 1], n = ring2_count(&a->x), n_rows = n / D;
    const bool adds = a->flags & GDN_ACCUMULATE;
    const double *x = doubles(&a->x), *z = doubles(&a->z), *dout = doubles(&a->dout);
    const double *weight = doubles(&a->weight);
    struct wanted dx = want(&a->dx, n), dz = want(&a->dz, n), dweight = want(&a->dweight, D);
    double *of_row = ring2_heap((size_t)D * 16), *size = of_row + D;
    for (int64_t i = 0; i < D; i++) dweight.value[i] = dweight.limit[i] = 0;
    for (int64_t r = 0; r < n; r += D) {
        const struct oracle_rmsnorm o = { x + r,
                                          weight,
                                          z ? z + r : NULL,
                                          dout + r,
                                          a->activation == GDN_ACT_SIGMOID,
                                          a->eps > 0 ? (double)a->eps : 1e-6,
                                          D };
        oracle_rmsnorm_backward(&o, dx.value + r, z ? dz.value + r : NULL, of_row);
        find_limits(c, &o, dx.limit + r, dz.limit + r, size);
        for (int64_t i = 0; i < D; i++) {
            dweight.value[i] += of_row[i];
            dweight.limit[i] += (size[i] + (double)(n_rows + 2) * fabs(of_row[i])) * 0x1p-24;
        }
    }
    add_old(&dx, adds), add_old(&dz, adds), add_old(&dweight, adds);
    ring2_call_begin();
    ring2_may_write(&a->dx);
    ring2_may_write(&a->dz);
    ring2_may_write(&a->dweight);
    ring2_may_write_bytes(a->workspace, a->workspace_bytes);
    run(c);
    ring2_call_end();
    if (a->dx.data) ring2_compare("dx", &a->dx, dx.value, dx.limit, NULL, NULL);
    if (a->dz.data) ring2_compare("dz", &a->dz, dz.value, dz.limit, NULL, NULL);
    if (a->dweight.data)
        ring2_compare("dweight", &a->dweight, dweight.value, dweight.limit, NULL, NULL);
}

/* ---- Cases ---- */

enum { SIZE, ROWS, X, Z, DOUT, OUT, VIEW, GATE, WEIGHT, PARTS, EPS, ADDS, N_FACTORS };
enum { ALL, ONLY_DX, ONLY_DZ, ONLY_DWEIGHT };

static const int levels[N_FACTORS] = { 9, 3, 3, 3, 3, 3, 3, 3, 4, 4, 2, 2 };
static const int64_t sizes[9] = { 1, 7, 31, 64, 128, 256, 257, 1024, 3001 };

/* Without a gate there is no dz to want alone. */
static bool allowed(int i, int a, int j, int b)
{
    if (i == GATE && j == PARTS) return !(a == 2 && b == ONLY_DZ);
    if (i == PARTS && j == GATE) return !(b == 2 && a == ONLY_DZ);
    return true;
}

static gdn_tensor rows(const int *level, int32_t dtype, double most)
{
    const int64_t D = sizes[level[SIZE]], gap = level[VIEW] == 1 ? 3 : 0;
    gdn_tensor t;
    switch (level[ROWS]) {
    case 0: t = ring2_new(dtype, gap, 1, D, 0, 0, 0); break;
    case 1: t = ring2_new(dtype, gap, 2, 131, D, 0, 0); break;
    default: t = ring2_new(dtype, gap, 4, 2, 1, 3, D); break;
    }
    if (level[VIEW] == 2 && level[ROWS]) { /* the first dimension backwards */
        const int64_t step = t.stride[0] * (int64_t)gdn_dtype_bytes(dtype);
        t.data = (char *)t.data + (t.size[0] - 1) * step;
        t.stride[0] = -t.stride[0];
    }
    ring2_fill(&t, -most, most);
    return t;
}

static gdn_tensor vector(int32_t dtype, int64_t D, int64_t step)
{
    gdn_tensor t = ring2_new(dtype, 0, 1, D * step, 0, 0, 0);
    ring2_fill(&t, -2, 2);
    t.size[0] = D, t.stride[0] = step;
    return t;
}

static void run_case(const int *level, int number)
{
    struct call c = { .ctx = ring2_ctx(1 + number % 3),
                      .args = gdn_rmsnorm_gated_backward_args_init() };
    const int64_t D = sizes[level[SIZE]];
    const int parts = level[PARTS];
    args *a = &c.args;
    a->x = rows(level, level[X], 3);
    a->dout = rows(level, level[DOUT], 2);
    if (level[GATE] < 2) a->z = rows(level, level[Z], 6);
    if (level[WEIGHT]) a->weight = vector(level[WEIGHT] - 1, D, 1 + number % 2);
    if (parts == ALL || parts == ONLY_DX) a->dx = rows(level, level[OUT], 1);
    if (a->z.data && (parts == ALL || parts == ONLY_DZ)) a->dz = rows(level, level[Z], 1);
    if (parts == ALL || parts == ONLY_DWEIGHT) a->dweight = vector(GDN_F32, D, 1 + number % 3);
    a->activation = level[GATE] ? GDN_ACT_SIGMOID : number % 2 ? GDN_ACT_SILU : GDN_ACT_DEFAULT;
    a->eps = level[EPS] ? 0.5f : 0;
    if (level[ADDS]) a->flags = GDN_ACCUMULATE;
    if (number % 2) give_workspace(&c);
    check(&c);
}

/* ---- The oracle ---- */

enum { SMALL = 5 };

static double loss(const struct oracle_rmsnorm *o)
{
    double y[SMALL], sum = 0;
    oracle_rmsnorm_gated(y, o->x, o->w, o->z, o->sigmoid, o->eps, SMALL);
    for (int i = 0; i < SMALL; i++) sum += o->dout[i] * y[i];
    return sum;
}

static void finite_differences(void)
{
    const double h = 1e-5;
    for (int n = 0; n < 4; n++) {
        double in[4][SMALL], gradient[3][SMALL]; /* x, z, w, dout; of the first three */
        for (int i = 0; i < 4 * SMALL; i++) in[i / SMALL][i % SMALL] = ring2_uniform(-1, 1);
        const struct oracle_rmsnorm o = { in[0], in[2], in[1], in[3], n % 2, n / 2 ? 0.5 : 1e-6,
                                          SMALL };
        oracle_rmsnorm_backward(&o, gradient[0], gradient[1], gradient[2]);
        for (int t = 0; t < 3; t++)
            for (int i = 0; i < SMALL; i++) {
                const double at = in[t][i];
                in[t][i] = at + h;
                const double above = loss(&o);
                in[t][i] = at - h;
                const double seen = (above - loss(&o)) / (2 * h);
                in[t][i] = at;
                CHECK(fabs(gradient[t][i] - seen) < 1e-8 * (1 + fabs(seen)), "%d: %g, seen %g", t,
                      gradient[t][i], seen);
            }
    }
}

/* ---- Properties ---- */

static struct call make_call(int64_t n, int64_t D)
{
    struct call c = { .ctx = ring2_ctx(1), .args = gdn_rmsnorm_gated_backward_args_init() };
    args *a = &c.args;
    gdn_tensor *of_rows[] = { &a->x, &a->z, &a->dout, &a->dx, &a->dz };
    for (int i = 0; i < 5; i++) {
        *of_rows[i] = ring2_new(GDN_F32, 0, 2, n, D, 0, 0);
        ring2_fill(of_rows[i], -2, 2);
    }
    a->weight = vector(GDN_F32, D, 1);
    a->dweight = vector(GDN_F32, D, 1);
    return c;
}

/* No rows; and so many rows that a block has more than the least number. */
static void many_rows_and_none(void)
{
    struct call many = make_call(70000, 3), none = make_call(0, 5);
    check(&many);
    check(&none);
    for (int64_t i = 0; i < 5; i++) CHECK(ring2_get(&none.args.dweight, i) == 0, "not zero");
}

/* An infinite gate has the limit of the slope; a row of zeros has dout / sqrt(eps); NaN stays in
 * its row. */
static void special_values(void)
{
    struct call c = make_call(4, 8);
    args *a = &c.args;
    a->eps = 0.25f;
    ring2_set(&a->z, 0, (double)INFINITY);
    ring2_set(&a->z, 1, -(double)INFINITY);
    ring2_set(&a->z, 8 + 2, (double)NAN);
    for (int64_t i = 0; i < 8; i++) ring2_set(&a->x, 16 + i, 0);
    run(&c);
    CHECK(isinf(ring2_get(&a->dx, 0)) || isnan(ring2_get(&a->dx, 0)), "an infinite gate was lost");
    CHECK(isfinite(ring2_get(&a->dz, 0)) && ring2_get(&a->dz, 0) != 0, "slope of inf");
    CHECK(ring2_get(&a->dz, 1) == 0, "slope of -inf");
    CHECK(isnan(ring2_get(&a->dx, 8 + 2)) && isnan(ring2_get(&a->dz, 8 + 2)), "NaN was lost");
    CHECK(isfinite(ring2_get(&a->dz, 8)), "NaN spread to another gate");
    CHECK(isnan(ring2_get(&a->dweight, 2)), "dweight lost NaN");
    for (int64_t i = 16; i < 32; i++) CHECK(isfinite(ring2_get(&a->dx, i)), "NaN spread");
    for (int64_t i = 0; i < 8; i++) {
        const double z = ring2_get(&a->z, 16 + i);
        const double e = ring2_get(&a->dout, 16 + i) * ring2_get(&a->weight, i) * oracle_silu(z);
        CHECK(fabs(ring2_get(&a->dx, 16 + i) - 2 * e) <= 1e-6 * fabs(e), "a zero row");
        CHECK(ring2_get(&a->dz, 16 + i) == 0, "dz of a zero row");
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "finite differences", finite_differences },
        { "many rows and none", many_rows_and_none },
        { "special values", special_values },
    };
    static int cases[200][RING2_MAX_FACTORS];
    struct ring2_factors f = { N_FACTORS, levels, allowed };
    const int n = (ring2_options(argc, argv), ring2_pairs(&f, cases, 200));
    for (int i = 0; i < n; i++) {
        if (!ring2_begin("rmsnorm_backward %03d D%d", i, (int)sizes[cases[i][SIZE]])) continue;
        run_case(cases[i], i);
        ring2_end();
    }
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
