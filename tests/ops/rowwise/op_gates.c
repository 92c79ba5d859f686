/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 */
/* gdn_gates against the float64 oracle, and its guarantees by name. */
#include <math.h>

#include "oracle.h"
#include "ring2.h"
#include "ring2_device.h"

enum { IN, OUT, HEADS, RANK, VIEW, PARTS, GATE, BOUND, BETA, BIAS, PARAMS, PLACE, N_FACTORS };
enum { BOTH, ONLY_G, ONLY_BETA };

/* a and b; g and beta; sizes; which are there; formulas; A_log and dt_bias; in place or not */
static const int levels[N_FACTORS] = { 3, 3, 6, 5, 4, 3, 2, 2, 3, 2, 3, 2 };
static const int heads[6] = { 1, 3, 12, 33, 64, 257 };

static bool allowed(int i, int a, int j, int b)
{
    if (i > j) return allowed(j, b, i, a);
    return !(i == OUT && j == PLACE && b) || a == 0; /* OUT 0: the dtype of the input */
}

/* ---- The model ---- */

/* One log gate, and the limit of its error in units of 2^-24 x magnitude. Inner loops: exp 2
 * and softplus 4 of what enters them; the sum a + dt rounds, and its slope carries that on. */
static double gate(const gdn_gates_args *x, int64_t i, int64_t h, double *limit)
{
    const double a = ring2_get(&x->a, i), A = exp(ring2_get(&x->A_log, h));
    const double dt = x->dt_bias.data ? ring2_get(&x->dt_bias, h) : 0;
    const double bound = (double)x->gate_lower_bound, s = oracle_sigmoid(a + dt);
    const double g = oracle_gate(a, ring2_get(&x->A_log, h), dt, bound);
    const double size = fabs(a) + fabs(dt), y = oracle_sigmoid(A * (a + dt));
    if (bound < 0)
        *limit = 4 * fabs(g) + (size > 0 ? fabs(bound) * y * (1 - y) * 6 * A * size : 0);
    else
        *limit = 8 * fabs(g) + 4 * A * size * s;
    if (x->gate == GDN_GATE_LINEAR) {
        *limit = exp(g) * (*limit + 2);
        return exp(g);
    }
    return g;
}

/* units: of 2^-24, the limit of beta's error. */
static void check_within(gdn_ctx *ctx, const gdn_gates_args *x, double units)
{
    const int64_t n = ring2_count(x->g.data ? &x->g : &x->beta);
    const int64_t H = x->g.data ? x->g.size[x->g.ndim - 1] : 1;
    double *g = ring2_heap((size_t)n * 8), *g_limit = ring2_heap((size_t)n * 8);
    double *beta = ring2_heap((size_t)n * 8), *beta_limit = ring2_heap((size_t)n * 8);
    for (int64_t i = 0; i < n; i++) {
        if (x->g.data) g[i] = gate(x, i, i % H, &g_limit[i]);
        if (x->beta.data) beta[i] = oracle_sigmoid(ring2_get(&x->b, i));
        if (x->beta_kind == GDN_BETA_TWICE_SIGMOID) beta[i] *= 2;
        g_limit[i] = g_limit[i] * 0x1p-24 + 0x1p-140;
        beta_limit[i] = units * 0x1p-24 * beta[i] + 0x1p-140;
    }
    ring2_status(ctx, "gdn_supported", gdn_supported(ctx, GDN_OP_GATES, x), GDN_OK);
    ring2_call_begin();
    ring2_may_write(&x->g);
    ring2_may_write(&x->beta);
    ring2_may_write_bytes(x->workspace, x->workspace_bytes);
    ring2_status(ctx, "gdn_gates", gdn_gates(ctx, x), GDN_OK);
    ring2_call_end();
    if (x->g.data) ring2_compare("g", &x->g, g, g_limit, NULL, NULL);
    if (x->beta.data) ring2_compare("beta", &x->beta, beta, beta_limit, NULL, NULL);
}

static void check_call(gdn_ctx *ctx, const gdn_gates_args *x) { check_within(ctx, x, 3); }

/* ---- Cases ---- */

/* [..][H] of 1 to 5 leading dimensions. Up to 3 may have the heads first: [H][T], [B][H][T],
 * [B][T][H][2]. */
static gdn_tensor rows(const int *level, int32_t dtype)
{
    const bool turned = level[VIEW] == 3;
    const int64_t H = heads[level[HEADS]], gap = level[VIEW] == 1 ? 3 : 0;
    gdn_tensor t;
    switch (level[RANK]) {
    case 0: return ring2_turned(turned, dtype, gap, 2, 37, H, 0, 0);
    case 1: return ring2_turned(turned, dtype, gap, 3, 3, 5, H, 0);
    case 2: return ring2_turned(turned, dtype, turned ? 2 : gap, 4, 2, 3, 2, H);
    default: break;
    }
    t = ring2_new(dtype, gap, 3, 12, 2, H, 0);
    t.ndim = level[RANK] + 2; /* 5, 6: the 12 as 3 x 4, behind a 1 of any stride */
    for (int i = 0; i < 2; i++) {
        t.size[t.ndim - 1 - i] = t.size[2 - i];
        t.stride[t.ndim - 1 - i] = t.stride[2 - i];
    }
    t.stride[t.ndim - 3] = t.stride[0];
    t.stride[t.ndim - 4] = 4 * t.stride[0];
    t.size[t.ndim - 3] = 4;
    t.size[t.ndim - 4] = 3;
    for (int i = 0; i < t.ndim - 4; i++) {
        t.size[i] = 1;
        t.stride[i] = i ? -3 : 99;
    }
    return t;
}

/* A row broadcast to all tokens by a stride of zero. */
static gdn_tensor input_rows(const int *level, int32_t dtype)
{
    gdn_tensor t = rows(level, dtype);
    ring2_fill(&t, -30, 30);
    if (level[VIEW] == 2) t.stride[t.ndim - 2] = 0;
    return t;
}

static void run_case(const int *level, int number)
{
    gdn_ctx *ctx = ring2_ctx(1 + number % 3);
    gdn_gates_args x = gdn_gates_args_init();
    const int64_t H = heads[level[HEADS]];
    const int32_t in = level[IN], out = level[PLACE] ? in : (level[IN] + level[OUT]) % 3;
    if (level[PARTS] != ONLY_BETA) {
        x.a = level[PLACE] ? rows(level, in) : input_rows(level, in);
        x.g = level[PLACE] ? x.a : rows(level, out);
        x.A_log = ring2_new(level[PARAMS], 0, 1, H, 0, 0, 0);
        ring2_fill(&x.a, -30, 30);
        ring2_fill(&x.A_log, -2, 2);
        if (level[BIAS]) {
            x.dt_bias = ring2_new((level[PARAMS] + 1) % 3, 0, 1, H, 0, 0, 0);
            ring2_fill(&x.dt_bias, -2, 2);
        }
        x.gate = level[GATE];
        x.gate_lower_bound = level[BOUND] ? -5 : 0;
    }
    if (level[PARTS] != ONLY_G) {
        x.b = level[PLACE] ? rows(level, in) : input_rows(level, in);
        x.beta = level[PLACE] ? x.b : rows(level, out);
        ring2_fill(&x.b, -30, 30);
        x.beta_kind = level[BETA];
    }
    if (number % 2) {
        ring2_give_workspace(ctx, GDN_OP_GATES, &x);
    }
    check_call(ctx, &x);
}

/* ---- Properties ---- */

static gdn_gates_args make_call(int64_t N, int64_t H)
{
    gdn_gates_args x = gdn_gates_args_init();
    x.a = ring2_new(GDN_F32, 0, 2, N, H, 0, 0), x.b = ring2_new(GDN_F32, 0, 2, N, H, 0, 0);
    x.g = ring2_new(GDN_F32, 0, 2, N, H, 0, 0), x.beta = ring2_new(GDN_F32, 0, 2, N, H, 0, 0);
    x.A_log = ring2_new(GDN_F32, 0, 1, H, 0, 0, 0);
    x.dt_bias = ring2_new(GDN_F32, 0, 1, H, 0, 0, 0);
    ring2_fill(&x.a, -9, 25), ring2_fill(&x.b, -9, 9);
    ring2_fill(&x.A_log, -1, 1), ring2_fill(&x.dt_bias, -1, 1);
    return x;
}

/* Three million gates. Of so many some come near what docs/design/numerics.md derives for
 * sigmoid_row, 5 units. */
static void many_lines(void)
{
    const gdn_gates_args x = make_call(ring2_on_device() ? 13000 : 1000, 256);
    check_within(ring2_ctx(2), &x, 5);
}

/* More heads than the threads of a block have at once (as of gates.c), so that they take turns. */
static void many_heads(void)
{
    for (int64_t H = 1500; H < 1502; H++) {
        const gdn_gates_args x = make_call(3, H);
        check_call(ring2_ctx(2), &x);
    }
}

/* Infinities, NaN and the threshold of softplus. */
static void special_values(void)
{
    static const double in[] = { -(double)INFINITY,
                                 (double)INFINITY,
                                 (double)NAN,
                                 0,
                                 -0.0,
                                 20,
                                 20.000002,
                                 19.999998,
                                 -104,
                                 -87.5,
                                 88,
                                 1e30,
                                 -1e30,
                                 1e-40 };
    enum { N = sizeof in / sizeof *in };
    for (int linear = 0; linear < 2; linear++) {
        gdn_gates_args x = make_call(N, 1);
        for (int i = 0; i < N; i++) ring2_set(&x.a, i, in[i]), ring2_set(&x.b, i, in[i]);
        x.gate = linear;
        ring2_fill_value(&x.A_log, 0);
        x.dt_bias.data = NULL;
        check_call(ring2_ctx(1), &x);
        CHECK(ring2_get(&x.g, 0) == linear, "g of -inf is %g", ring2_get(&x.g, 0));
        CHECK(ring2_get(&x.g, 1) == (linear ? 0 : -(double)INFINITY), "g of inf is %g",
              ring2_get(&x.g, 1));
        CHECK(isnan(ring2_get(&x.g, 2)) && isnan(ring2_get(&x.beta, 2)), "a NaN got lost");
        CHECK(ring2_get(&x.beta, 0) == 0 && ring2_get(&x.beta, 1) == 1, "sigmoid of infinities");
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "many lines", many_lines },
        { "many heads", many_heads },
        { "special values", special_values },
    };
    static int cases[200][RING2_MAX_FACTORS];
    struct ring2_factors f = { N_FACTORS, levels, allowed };
    const int n = (ring2_options(argc, argv), ring2_pairs(&f, cases, 200));
    for (int i = 0; i < n; i++) {
        if (!ring2_begin("gates %03d", i)) continue;
        run_case(cases[i], i);
        ring2_end();
    }
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
