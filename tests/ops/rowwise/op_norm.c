/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 */
/* gdn_l2norm and gdn_rmsnorm_gated against the float64 oracle, and their guarantees by name. */
#include <math.h>
#include <string.h>

#include "oracle.h"
#include "ring2.h"
#include "ring2_device.h"

/* Both ops in one struct: x z weight out, and what is set of the rest. */
struct call {
    gdn_ctx *ctx;
    bool rms;
    gdn_tensor x, z, weight, out;
    int32_t norm, activation;
    float eps;
    void *workspace;
    size_t workspace_bytes;
    gdn_status status;
};

static gdn_l2norm_args l2_args(const struct call *c)
{
    gdn_l2norm_args a = gdn_l2norm_args_init();
    a.x = c->x, a.out = c->out, a.norm = c->norm, a.eps = c->eps;
    a.workspace = c->workspace, a.workspace_bytes = c->workspace_bytes;
    return a;
}

static gdn_rmsnorm_gated_args rms_args(const struct call *c)
{
    gdn_rmsnorm_gated_args a = gdn_rmsnorm_gated_args_init();
    a.x = c->x, a.z = c->z, a.weight = c->weight, a.out = c->out;
    a.activation = c->activation, a.eps = c->eps;
    a.workspace = c->workspace, a.workspace_bytes = c->workspace_bytes;
    return a;
}

static void run_it(void *arg)
{
    struct call *c = arg;
    const gdn_l2norm_args l = l2_args(c);
    const gdn_rmsnorm_gated_args r = rms_args(c);
    c->status = c->rms ? gdn_rmsnorm_gated(c->ctx, &r) : gdn_l2norm(c->ctx, &l);
}

static void run(struct call *c)
{
    run_it(c);
    ring2_status(c->ctx, c->rms ? "gdn_rmsnorm_gated" : "gdn_l2norm", c->status, GDN_OK);
}

static void give_workspace(struct call *c)
{
    const gdn_l2norm_args l = l2_args(c);
    const gdn_rmsnorm_gated_args r = rms_args(c);
    const gdn_op op = c->rms ? GDN_OP_RMSNORM_GATED : GDN_OP_L2NORM;
    const void *a = c->rms ? (const void *)&r : (const void *)&l;
    ring2_status(c->ctx, "gdn_supported", gdn_supported(c->ctx, op, a), GDN_OK);
    ring2_status(c->ctx, "bytes", gdn_workspace_bytes(c->ctx, op, a, &c->workspace_bytes), GDN_OK);
    c->workspace = ring2_alloc((c->workspace_bytes + 63) / 64 * 64, 64);
}

/*
 * Every factor of a result is of one sign, so the limit is relative: half the error of the sum
 * of squares (a dot over pieces of at most 256: 8 + 256 / 16, or 4 on vectors), 4 for the
 * root, the addition of eps and the division, 8 for the row.
 */
static void check(struct call *c)
{
    const int64_t D = c->x.size[c->x.ndim - 1], n = ring2_count(&c->x);
    const bool scalar = !strcmp(gdn_isa(c->ctx), "scalar");
    const double sum = scalar ? 8 + (double)(D < 256 ? D : 256) / 16 : 4;
    const double eps = c->eps != 0 ? (double)c->eps : 1e-6, *x = ring2_doubles(&c->x);
    const double *w = c->weight.data ? ring2_doubles(&c->weight) : NULL;
    const double *z = c->z.data ? ring2_doubles(&c->z) : NULL;
    double *y = ring2_heap((size_t)n * 8), *limit = ring2_heap((size_t)n * 8);
    for (int64_t r = 0; r < n; r += D) {
        if (c->rms)
            oracle_rmsnorm_gated(y + r, x + r, w, z ? z + r : NULL,
                                 c->activation == GDN_ACT_SIGMOID, eps, D);
        else
            oracle_l2norm(y + r, x + r, D, c->norm ? c->norm : GDN_NORM_L2, eps);
    }
    for (int64_t i = 0; i < n; i++) limit[i] = (sum / 2 + 4 + 8) * 0x1p-24 * fabs(y[i]) + 0x1p-125;
    ring2_call_begin();
    ring2_may_write(&c->out);
    ring2_may_write_bytes(c->workspace, c->workspace_bytes);
    run(c);
    ring2_call_end();
    ring2_compare("out", &c->out, y, limit, NULL, NULL);
}

/* ---- Cases ---- */

enum { OP, SIZE, ROWS, X, Z, WEIGHT, OUT, VIEW, FORMULA, EPS, PLACE, N_FACTORS };
enum { L2NORM, RMS_SILU, RMS_SIGMOID };
enum { APART, ON_X, ON_Z };

static const int levels[N_FACTORS] = { 3, 10, 3, 3, 4, 4, 3, 3, 4, 2, 3 };
static const int64_t sizes[10] = { 1, 7, 16, 31, 64, 100, 127, 256, 1025, 65536 };

/* Levels that do not go together: z and weight are absent at level 3; in place both have one
 * dtype. */
static bool clash(int i, int a, int j, int b)
{
    if (i == PLACE && a != APART && j == OUT) return b != 0;
    if (i == PLACE && a == ON_Z && j == Z) return b == 3;
    if (i == PLACE && a == ON_Z && j == OP) return b == L2NORM;
    if (i == PLACE && a == ON_Z && j == FORMULA) return b != 0;
    return i == OP && a != L2NORM && j == FORMULA && b;
}

static bool allowed(int i, int a, int j, int b) { return !clash(i, a, j, b) && !clash(j, b, i, a); }

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
    struct call c = { .ctx = ring2_ctx(1 + number % 3), .rms = level[OP] != L2NORM };
    const int64_t D = sizes[level[SIZE]];
    c.x = rows(level, level[X]);
    ring2_fill(&c.x, -3, 3);
    if (level[ROWS]) { /* one row of zeros */
        const gdn_tensor zero = ring2_select(&c.x, 0, 0);
        ring2_fill_value(&zero, 0);
    }
    if (c.rms && level[Z] != 3) {
        c.z = rows(level, level[Z]);
        ring2_fill(&c.z, -20, 20);
    }
    if (c.rms && level[WEIGHT] != 3) {
        c.weight = ring2_new(level[WEIGHT], 0, 1, D, 0, 0, 0);
        ring2_fill(&c.weight, -2, 2);
    }
    c.out = level[PLACE] == ON_X ? c.x : c.z;
    if (level[PLACE] == APART) c.out = rows(level, level[OUT]);
    c.norm = level[FORMULA];
    c.activation = level[OP] == RMS_SIGMOID ? GDN_ACT_SIGMOID : level[EPS] ? GDN_ACT_SILU : 0;
    c.eps = level[EPS] ? 0.5f : 0;
    if (number % 2) give_workspace(&c);
    check(&c);
}

/* ---- Properties ---- */

static struct call make_call(bool rms, int64_t n, int64_t D)
{
    struct call c = { .ctx = ring2_ctx(1), .rms = rms };
    c.x = ring2_new(GDN_F32, 0, 2, n, D, 0, 0);
    c.out = ring2_new(GDN_F32, 0, 2, n, D, 0, 0);
    ring2_fill(&c.x, -1, 1);
    if (!rms) return c;
    c.z = ring2_new(GDN_F32, 0, 2, n, D, 0, 0);
    c.weight = ring2_new(GDN_F32, 0, 1, D, 0, 0, 0);
    ring2_fill(&c.z, -9, 9);
    ring2_fill(&c.weight, -1, 1);
    return c;
}

/* x = (3, 4), eps = 7: the length is sqrt(25 + 7), 5 + 7 or max(5, 7); mean square 12.5. */
static void trap_4_formulas(void)
{
    static const int32_t norms[] = { 0, GDN_NORM_L2, GDN_NORM_L2_ADD, GDN_NORM_L2_MAX, 0 };
    const double length[] = { sqrt(32), sqrt(32), 12, 7, sqrt(12.5 + 7) };
    for (int i = 0; i < 5; i++) {
        struct call c = make_call(i == 4, 1, 2);
        c.z.data = c.weight.data = NULL;
        c.norm = norms[i];
        c.eps = 7;
        ring2_set(&c.x, 0, 3), ring2_set(&c.x, 1, 4);
        run(&c);
        for (int j = 0; j < 2; j++)
            CHECK(fabs(ring2_get(&c.out, j) - (3 + j) / length[i]) < 1e-6, "formula %d: %g", i,
                  ring2_get(&c.out, j));
    }
}

/* Rows whose length is near the default eps, and a row of zeros. */
static void tiny_rows(void)
{
    static const double sizes_of[] = { 0, 1e-3, 1e-4, 1e-6, 1e-8 };
    for (int i = 0; i < 20; i++) {
        struct call c = make_call(i / 5 == 3, 1, 64);
        c.norm = i / 5 < 3 ? 1 + i / 5 : 0;
        ring2_fill(&c.x, -sizes_of[i % 5], sizes_of[i % 5]);
        check(&c);
        for (int64_t j = 0; i % 5 == 0 && j < 64; j++)
            CHECK(ring2_get(&c.out, j) == 0, "a zero row became %g", ring2_get(&c.out, j));
    }
}

/* Whole packs of 16 bits, each line size and more lines than a block has, dense and apart. */
static void flat_lines(void)
{
    for (int i = 0; i < 48 && !ring2_failed(); i++) {
        const int64_t D = 8 << i % 6, n = i % 6 < 3 ? 1030 : 131, gap = i & 8 ? 16 : 0;
        const int32_t dtype = i / 6 % 2 ? GDN_BF16 : GDN_F16;
        struct call c = make_call(i % 4 > 0, 1, D);
        c.x = ring2_new(dtype, gap, 2, n, D, 0, 0);
        c.out = ring2_new(dtype, i & 16 ? 24 : 0, 2, n, D, 0, 0);
        c.z = i % 4 > 1 ? ring2_new(dtype, 0, 2, n, D, 0, 0) : (gdn_tensor){ 0 };
        ring2_fill(&c.x, -2, 2);
        if (c.z.data) ring2_fill(&c.z, -3, 3);
        if (i % 4 == 3) c.weight = (gdn_tensor){ 0 };
        c.ctx = ring2_ctx(1);
        check(&c);
        if (ring2_on_device() && D >= 32)
            CHECK(strstr(gdn_last_kernel(c.ctx), "flat"), "%s", gdn_last_kernel(c.ctx));
        ring2_free();
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "trap 4: norm formulas", trap_4_formulas },
        { "tiny rows", tiny_rows },
        { "flat lines", flat_lines },
    };
    static int cases[200][RING2_MAX_FACTORS];
    struct ring2_factors f = { N_FACTORS, levels, allowed };
    const int n = (ring2_options(argc, argv), ring2_pairs(&f, cases, 200));
    for (int i = 0; i < n; i++) {
        const int *l = cases[i];
        if (!ring2_begin("norm %03d %s D%d", i, l[OP] == L2NORM ? "l2" : "rms",
                         (int)sizes[l[SIZE]]))
            continue;
        run_case(l, i);
        ring2_end();
    }
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
