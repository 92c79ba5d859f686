/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 */
/* gdn_gates_backward against float64 slopes, which finite differences judge; and its guarantees by
 * name. */
#include <math.h>

#include "gdn_train.h"
#include "oracle.h"
#include "ring2.h"

enum { IN, OUT, HEADS, RANK, VIEW, PARTS, GATE, BOUND, BETA, BIAS, PARAMS, ADDS, N_FACTORS };
enum { ALL, ONLY_DA, ONLY_DB, ONLY_SUMS, DA_AND_SUMS };

static const int levels[N_FACTORS] = { 3, 3, 6, 3, 4, 5, 2, 2, 3, 2, 3, 2 };
static const int heads[6] = { 1, 3, 12, 33, 64, 257 };

static bool allowed(int i, int a, int j, int b)
{
    (void)i, (void)a, (void)j, (void)b;
    return true;
}

/* ---- The model ---- */

/* A value and the limit of its error in units of 2^-24. */
struct judged {
    double value, limit;
};

/* Judges da of one head in one row, and the row's part of dA_log. Limits of inner loops: exp 2,
 * sigmoid 5, softplus 4 of what enters them. a + dt_bias and products round, and slopes carry
 * that on. */
static void judge_gate(const gdn_gates_backward_args *x, int64_t i, int64_t h, struct judged *da,
                       struct judged *dA_log)
{
    const double a = ring2_get(&x->a, i), A_log = ring2_get(&x->A_log, h), A = exp(A_log);
    const double dt = x->dt_bias.data ? ring2_get(&x->dt_bias, h) : 0;
    const double bound = (double)x->gate_lower_bound, size = fabs(a) + fabs(dt);
    const double g = oracle_gate(a, A_log, dt, bound);
    double dg = ring2_get(&x->dg, i), by_A_log, g_limit = 8 * fabs(g), linear = 0, slope;
    slope = oracle_gate_slope(a, A_log, dt, bound, &by_A_log);
    g_limit += 6 * fabs(slope) * size;
    if (x->gate == GDN_GATE_LINEAR) dg *= exp(g), linear = g_limit + 3;
    const double relative = 15 + linear + (bound < 0 ? 6 * A * size : size);
    *da = (struct judged){ dg * slope, fabs(dg * slope) * relative };
    *dA_log = (struct judged){ dg * by_A_log, fabs(dg * by_A_log) * (relative + 2) };
    if (bound < 0)
        dA_log->limit += fabs(da->value) * size;
    else
        dA_log->limit += fabs(dg) * g_limit;
}

static struct judged judge_beta(const gdn_gates_backward_args *x, int64_t i)
{
    const double b = ring2_get(&x->b, i), most = x->beta_kind == GDN_BETA_TWICE_SIGMOID ? 2 : 1;
    const double db = ring2_get(&x->dbeta, i) * most * oracle_sigmoid(b) * oracle_sigmoid(-b);
    return (struct judged){ db, 13 * fabs(db) };
}

/* The wanted values of a tensor, and their limits. */
struct wanted {
    const gdn_tensor *t;
    double *value, *limit, *size; /* size: the sum of magnitudes */
};

static struct wanted want(const gdn_tensor *t, bool adds)
{
    const size_t n = t->data ? (size_t)ring2_count(t) : 0;
    struct wanted w = { t, ring2_heap(n * 8 + 8), ring2_heap(n * 8 + 8), ring2_heap(n * 8 + 8) };
    for (size_t i = 0; i < n; i++) {
        w.value[i] = adds ? ring2_get(t, (int64_t)i) : 0;
        w.limit[i] = 0;
        w.size[i] = fabs(w.value[i]);
    }
    return w;
}

static void add(struct wanted *w, int64_t i, struct judged x)
{
    if (!w->t->data) return;
    w->value[i] += x.value;
    w->limit[i] += x.limit;
    w->size[i] += fabs(x.value);
}

static void compare(const char *name, struct wanted *w, double n_added)
{
    if (!w->t->data) return;
    for (int64_t i = 0; i < ring2_count(w->t); i++)
        w->limit[i] = (w->limit[i] + n_added * w->size[i]) * 0x1p-24 + 0x1p-125;
    ring2_compare(name, w->t, w->value, w->limit, NULL, NULL);
}

static void check_call(gdn_ctx *ctx, const gdn_gates_backward_args *x)
{
    const gdn_tensor *like = x->a.data ? &x->a : &x->b;
    const int64_t n = ring2_count(like), H = like->size[like->ndim - 1];
    const bool adds = x->flags & GDN_ACCUMULATE, has_a = x->a.data && x->dg.data;
    struct wanted da = want(&x->da, adds), db = want(&x->db, adds);
    struct wanted dA = want(&x->dA_log, adds), ddt = want(&x->ddt_bias, adds);
    for (int64_t i = 0; i < n; i++) {
        struct judged of_a, of_A;
        if (x->db.data) add(&db, i, judge_beta(x, i));
        if (!has_a) continue;
        judge_gate(x, i, i % H, &of_a, &of_A);
        add(&da, i, of_a);
        add(&ddt, i % H, of_a);
        add(&dA, i % H, of_A);
    }
    ring2_status(ctx, "gdn_supported", gdn_supported(ctx, GDN_OP_GATES_BACKWARD, x), GDN_OK);
    ring2_call_begin();
    ring2_may_write(&x->da);
    ring2_may_write(&x->db);
    ring2_may_write(&x->dA_log);
    ring2_may_write(&x->ddt_bias);
    ring2_may_write_bytes(x->workspace, x->workspace_bytes);
    ring2_status(ctx, "gdn_gates_backward", gdn_gates_backward(ctx, x), GDN_OK);
    ring2_call_end();
    compare("da", &da, adds);
    compare("db", &db, adds);
    compare("dA_log", &dA, (double)(n / H) + 2);
    compare("ddt_bias", &ddt, (double)(n / H) + 2);
}

/* ---- Cases ---- */

/* [..][H] of 1 to 3 leading dimensions. Heads may lie before the last of these. */
static gdn_tensor rows(const int *level, int32_t dtype)
{
    const bool turned = level[VIEW] == 3;
    const int64_t H = heads[level[HEADS]], gap = level[VIEW] == 1 ? 3 : 0;
    gdn_tensor t;
    switch (level[RANK]) {
    case 0: t = ring2_turned(turned, dtype, gap, 2, 37, H, 0, 0); break;
    case 1: t = ring2_turned(turned, dtype, gap, 3, 3, 15, H, 0); break;
    default: t = ring2_turned(turned, dtype, turned ? 2 : gap, 4, 2, 3, 6, H); break;
    }
    if (level[VIEW] == 2) { /* the first dimension backwards */
        const int64_t step = t.stride[0] * (int64_t)gdn_dtype_bytes(dtype);
        t.data = (char *)t.data + (t.size[0] - 1) * step;
        t.stride[0] = -t.stride[0];
    }
    return t;
}

static gdn_tensor filled(gdn_tensor t, double size)
{
    ring2_fill(&t, -size, size);
    return t;
}

static void give_a(gdn_gates_backward_args *x, const int *level)
{
    const int64_t H = heads[level[HEADS]];
    const int32_t in = level[IN], out = (level[IN] + level[OUT]) % 3;
    x->a = filled(rows(level, in), 12);
    x->dg = filled(rows(level, out), 2);
    x->A_log = filled(ring2_new(level[PARAMS], 0, 1, H, 0, 0, 0), 1);
    if (level[BIAS]) x->dt_bias = filled(ring2_new((level[PARAMS] + 1) % 3, 0, 1, H, 0, 0, 0), 2);
    if (level[PARTS] != ONLY_SUMS) x->da = filled(rows(level, in), 1);
    if (level[PARTS] != ONLY_DA) {
        x->dA_log = filled(ring2_new(GDN_F32, 0, 1, H, 0, 0, 0), 1);
        if (level[PARTS] != DA_AND_SUMS)
            x->ddt_bias = filled(ring2_new(GDN_F32, 0, 1, H, 0, 0, 0), 1);
    }
    x->gate = level[GATE];
    x->gate_lower_bound = level[BOUND] ? -5 : 0;
}

static void give_workspace(gdn_ctx *ctx, gdn_gates_backward_args *x)
{
    ring2_status(ctx, "bytes",
                 gdn_workspace_bytes(ctx, GDN_OP_GATES_BACKWARD, x, &x->workspace_bytes), GDN_OK);
    const gdn_tensor *sums = x->dA_log.data ? &x->dA_log : &x->ddt_bias;
    const int64_t H = sums->data ? sums->size[0] : 0;
    CHECK(x->workspace_bytes <= 4096 * (size_t)H, "%zu bytes", x->workspace_bytes);
    x->workspace = ring2_alloc((x->workspace_bytes + 63) / 64 * 64, 64);
}

static void run_case(const int *level, int number)
{
    gdn_ctx *ctx = ring2_ctx(1 + number % 3);
    gdn_gates_backward_args x = gdn_gates_backward_args_init();
    if (level[PARTS] != ONLY_DB) give_a(&x, level);
    if (level[PARTS] == ALL || level[PARTS] == ONLY_DB) {
        x.b = filled(rows(level, level[IN]), 12);
        x.dbeta = filled(rows(level, (level[IN] + level[OUT]) % 3), 2);
        x.db = filled(rows(level, level[OUT]), 1);
        x.beta_kind = level[BETA];
    }
    if (level[ADDS]) x.flags = GDN_ACCUMULATE;
    if (number % 2) give_workspace(ctx, &x);
    check_call(ctx, &x);
}

/* ---- The oracle ---- */

static void finite_differences(void)
{
    const double h = 1e-5;
    for (int i = 0; i < 40; i++) {
        const double a = ring2_uniform(-6, 6), A = ring2_uniform(-1, 1), dt = ring2_uniform(-1, 1);
        const double bound = i % 2 ? -5 : 0;
        double by_A;
        const double by_a = oracle_gate_slope(a, A, dt, bound, &by_A);
        const double over_a = oracle_gate(a + h, A, dt, bound) - oracle_gate(a - h, A, dt, bound);
        const double over_A = oracle_gate(a, A + h, dt, bound) - oracle_gate(a, A - h, dt, bound);
        const double seen_a = over_a / (2 * h), seen_A = over_A / (2 * h);
        CHECK(fabs(by_a - seen_a) < 1e-8, "by a %g, seen %g", by_a, seen_a);
        CHECK(fabs(by_A - seen_A) < 1e-8, "by A_log %g, seen %g", by_A, seen_A);
    }
}

/* ---- Properties ---- */

static gdn_gates_backward_args make_call(int64_t N, int64_t H)
{
    gdn_gates_backward_args x = gdn_gates_backward_args_init();
    gdn_tensor *of_rows[] = { &x.a, &x.b, &x.dg, &x.dbeta, &x.da, &x.db };
    gdn_tensor *of_vectors[] = { &x.A_log, &x.dt_bias, &x.dA_log, &x.ddt_bias };
    for (int i = 0; i < 6; i++) *of_rows[i] = filled(ring2_new(GDN_F32, 0, 2, N, H, 0, 0), 9);
    for (int i = 0; i < 4; i++) *of_vectors[i] = filled(ring2_new(GDN_F32, 0, 1, H, 0, 0, 0), 1);
    return x;
}

static void call(gdn_ctx *ctx, const gdn_gates_backward_args *x)
{
    ring2_status(ctx, "gdn_gates_backward", gdn_gates_backward(ctx, x), GDN_OK);
}

/* No rows; and so many rows that a block has more than the least number. */
static void many_rows_and_none(void)
{
    const gdn_gates_backward_args many = make_call(20000, 3), none = make_call(0, 5);
    check_call(ring2_ctx(2), &many);
    check_call(ring2_ctx(2), &none);
    for (int64_t h = 0; h < 5; h++) CHECK(ring2_get(&none.dA_log, h) == 0, "a sum of nothing");
}

/* Infinities and overflows times a gradient of zero make zero; NaN stays. */
static void special_values(void)
{
    static const double in[] = {
        -(double)INFINITY, (double)INFINITY, -104, 88, 1e30, -1e30, 1e-40
    };
    enum { N = sizeof in / sizeof *in };
    for (int i = 0; i < 4; i++) {
        gdn_gates_backward_args x = make_call(N + 1, 2);
        x.gate = i % 2;
        x.gate_lower_bound = i / 2 ? -5 : 0;
        for (int row = 0; row <= N; row++) {
            ring2_set(&x.a, row * 2, row < N ? in[row] : 0);
            ring2_set(&x.a, row * 2 + 1, row < N ? 0 : (double)NAN);
            ring2_set(&x.dg, row * 2, 0);
        }
        ring2_fill_value(&x.A_log, 0);
        call(ring2_ctx(1), &x);
        for (int row = 0; row < N; row++)
            CHECK(ring2_get(&x.da, row * 2) == 0, "da %g", ring2_get(&x.da, row * 2));
        CHECK(ring2_get(&x.dA_log, 0) == 0 && ring2_get(&x.ddt_bias, 0) == 0, "sums of zeros");
        CHECK(isnan(ring2_get(&x.da, 2 * N + 1)), "da lost a NaN");
        CHECK(isnan(ring2_get(&x.dA_log, 1)), "dA_log lost a NaN");
        CHECK(!isnan(ring2_get(&x.da, 1)), "a NaN spread");
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
        if (!ring2_begin("gates_backward %03d", i)) continue;
        run_case(cases[i], i);
        ring2_end();
    }
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
