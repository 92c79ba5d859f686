/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 --every=8, sm_90 --every=8 */
/*
 * gdn_prefill and gdn_decode against the float64 oracle, over cases in which every pair of
 * levels of the factors below meets: dtypes, layouts, heads, gates, states, masks, views.
 */
#include <math.h>
#include <string.h>

#include "oracle.h"
#include "ring2_batch.h"
#include "ring2_rule.h"

enum {
    ACT = N_BATCH_FACTORS,
    STATE,
    LAYOUT,
    HEADS,
    MAP,
    DIMS,
    GATE,
    STRENGTH,
    GATE_DTYPE,
    BETA,
    NORM,
    SCALE,
    OUT,
    N_FACTORS
};

enum { NO_GATE, LOG, LINEAR, RAW, RAW_BOUND };
enum { MILD, STRONG, ZERO, SPRINKLED };
enum { NO_BETA, GIVEN, SIGMOID, TWICE, NEAR_2 };
enum { OUT_GIVEN, OUT_ABSENT, OUT_IS_V };

static const struct ring2_factor factors[N_FACTORS - N_BATCH_FACTORS] = {
    [ACT - N_BATCH_FACTORS] = { 3, { "f32", "bf16", "f16" } },
    [STATE - N_BATCH_FACTORS] = { 3, { "S=f32", "S=bf16", "S=f16" } },
    [LAYOUT - N_BATCH_FACTORS] = { 2, { "VK", "KV" } },
    [HEADS -
        N_BATCH_FACTORS] = { 7, { "1-1-1", "2-2-4", "4-2-2", "3-3-3", "2-2-6", "1-1-5", "4-4-4" } },
    [MAP - N_BATCH_FACTORS] = { 2, { "grouped", "interleaved" } },
    [DIMS - N_BATCH_FACTORS] = { 10,
                                 { "1x1", "16x16", "60x60", "100x100", "128x128", "32x96", "64x48",
                                   "256x256", "120x31", "192x136" } },
    [GATE - N_BATCH_FACTORS] = { 5, { "ungated", "log", "linear", "raw", "bounded" } },
    [STRENGTH - N_BATCH_FACTORS] = { 4, { "mild", "strong", "zero", "-inf" } },
    [GATE_DTYPE - N_BATCH_FACTORS] = { 2, { "g=f32", "g=A" } },
    [BETA - N_BATCH_FACTORS] = { 5, { "beta=1", "beta", "sigmoid", "2sigmoid", "beta~2" } },
    [NORM - N_BATCH_FACTORS] = { 4, { "unit", "l2", "l2add", "l2max" } },
    [SCALE - N_BATCH_FACTORS] = { 2, { "", "scale" } },
    [OUT - N_BATCH_FACTORS] = { 3, { "", "no-out", "out=v" } },
};

static const int heads[7][3] = { { 1, 1, 1 }, { 2, 2, 4 }, { 4, 2, 2 }, { 3, 3, 3 },
                                 { 2, 2, 6 }, { 1, 1, 5 }, { 4, 4, 4 } };
/* The last ones are levels of some cases once more. */
enum { N_DIMS = 10, N_ALL_DIMS = 14 };
static const int dims[N_ALL_DIMS][2] = { { 1, 1 },     { 16, 16 },   { 60, 60 },  { 100, 100 },
                                         { 128, 128 }, { 32, 96 },   { 64, 48 },  { 256, 256 },
                                         { 120, 31 },  { 192, 136 }, { 24, 257 }, { 256, 512 },
                                         { 16, 1000 }, { 64, 1024 } };

/* Returns true if two levels do not go together, in either order. */
static bool clash(int i, int a, int j, int b)
{
    if (ring2_batch_clash(i, a, j, b)) return true;
    if (i == OUT && a == OUT_ABSENT && j == SLOTS && b == NO_STATE) return true;
    if (i == OUT && a == OUT_ABSENT) return j == WRITE && b == GDN_WRITE_NONE;
    return i == OUT && a == OUT_IS_V && j == HEADS && heads[b][0] > heads[b][2];
}

static bool allowed(int i, int a, int j, int b) { return !clash(i, a, j, b) && !clash(j, b, i, a); }

/* ---- One case ---- */

struct rule_case {
    const int *level;
    struct ring2_batch b;
    gdn_rule_args args;
};

static gdn_tensor new_rows(const struct rule_case *c, int32_t dtype, int64_t n, int64_t D)
{
    return ring2_batch_rows(&c->b, dtype, n, D);
}

/* Columns first.. of a [tokens][C] buffer, as n heads of D, `step` apart. */
static gdn_tensor columns(const gdn_tensor *buffer, int64_t first, int64_t n, int64_t D,
                          int64_t step)
{
    gdn_tensor t = ring2_narrow(buffer, buffer->ndim - 1, first, n);
    t.stride[t.ndim - 1] = D ? D : step;
    if (D) {
        t.size[t.ndim] = D;
        t.stride[t.ndim++] = 1;
    }
    return t;
}

static void make_tensors(struct rule_case *c)
{
    const int K = dims[c->level[DIMS]][0], V = dims[c->level[DIMS]][1];
    const int *h = heads[c->level[HEADS]], H = h[0] > h[2] ? h[0] : h[2];
    const int32_t A = c->level[ACT], G = c->level[GATE_DTYPE] ? A : GDN_F32;
    gdn_rule_args *a = &c->args;
    if (c->level[VIEW] == FUSED) {
        const gdn_tensor qkv = new_rows(c, A, (h[0] + h[1]) * K + h[2] * V + 3, 0);
        const gdn_tensor ba = new_rows(c, G, 2 * H, 0);
        a->q = columns(&qkv, 0, h[0], K, 0);
        a->k = columns(&qkv, h[0] * K, h[1], K, 0);
        a->v = columns(&qkv, (h[0] + h[1]) * K, h[2], V, 0);
        a->g = columns(&ba, 0, H, 0, 2);
        a->beta = columns(&ba, 1, H, 0, 2);
    } else {
        a->q = new_rows(c, A, h[0], K);
        a->k = new_rows(c, A, h[1], K);
        a->v = new_rows(c, A, h[2], V);
        a->g = new_rows(c, G, H, 0);
        a->beta = new_rows(c, G, H, 0);
    }
    if (c->level[OUT] == OUT_GIVEN) a->out = new_rows(c, A, H, V);
    if (c->level[OUT] == OUT_IS_V) a->out = a->v;
    if (c->level[GATE] == NO_GATE) a->g.data = NULL;
    if (c->level[BETA] == NO_BETA) a->beta.data = NULL;
    if (c->level[GATE] >= RAW) {
        a->A_log = ring2_new((int32_t)ring2_below(3), 0, 1, H, 0, 0, 0);
        a->dt_bias = ring2_new((int32_t)ring2_below(3), 0, 1, H, 0, 0, 0);
        ring2_fill(&a->A_log, -1, 1);
        ring2_fill(&a->dt_bias, -1, 1);
        if (c->level[SCALE]) a->dt_bias.data = NULL;
    }
}

static double gate_value(const struct rule_case *c)
{
    const int gate = c->level[GATE], strength = c->level[STRENGTH];
    const bool raw = gate >= RAW, dead = strength == SPRINKLED && ring2_below(4) == 0;
    double g = ring2_uniform(-0.1, 0);
    if (raw)
        return dead                 ? (double)INFINITY
               : strength == STRONG ? 8
               : strength == ZERO   ? -200
                                    : ring2_uniform(-4, 1);
    if (strength == STRONG) g = ring2_uniform(-8.5, -7.5);
    if (strength == ZERO) g = 0;
    if (dead) g = -(double)INFINITY;
    return gate == LINEAR ? exp(g) : g;
}

static double beta_value(const struct rule_case *c)
{
    switch (c->level[BETA]) {
    case GIVEN: return ring2_below(8) ? ring2_uniform(0, 1) : 0;
    case NEAR_2: return ring2_uniform(1.9, 2);
    default: return ring2_uniform(-3, 3);
    }
}

/* Every key near one direction: the worst that beta near 2 meets. */
static void correlate(const gdn_tensor *k)
{
    const int64_t K = k->size[k->ndim - 1];
    double *x = ring2_heap((size_t)K * sizeof *x);
    for (int64_t r = 0; r < ring2_count(k) / K; r++) {
        for (int64_t d = 0; d < K; d++) x[d] = 1 + ring2_uniform(-0.05, 0.05);
        oracle_l2norm(x, x, K, GDN_NORM_L2, 1e-30);
        for (int64_t d = 0; d < K; d++) ring2_set(k, r * K + d, x[d]);
    }
}

static void make_values(struct rule_case *c)
{
    static const int32_t gates[] = { GDN_GATE_LOG, GDN_GATE_LOG, GDN_GATE_LINEAR, GDN_GATE_RAW,
                                     GDN_GATE_RAW };
    static const int32_t betas[] = { GDN_BETA_DEFAULT, GDN_BETA_GIVEN, GDN_BETA_SIGMOID,
                                     GDN_BETA_TWICE_SIGMOID, GDN_BETA_GIVEN };
    gdn_rule_args *a = &c->args;
    const bool unit = !oracle_normalises(c->level[NORM]);
    ring2_rule_inputs(a, unit, 0);
    if (c->level[BETA] == NEAR_2) correlate(&a->k);
    for (int64_t i = 0; a->g.data && i < ring2_count(&a->g); i++)
        ring2_set(&a->g, i, gate_value(c));
    for (int64_t i = 0; a->beta.data && i < ring2_count(&a->beta); i++)
        ring2_set(&a->beta, i, beta_value(c));
    a->gate = gates[c->level[GATE]];
    a->beta_kind = betas[c->level[BETA]];
    a->gate_lower_bound = c->level[GATE] == RAW_BOUND ? -5 : 0;
    a->head_map = c->level[MAP];
    a->norm = unit && c->level[SCALE] ? GDN_NORM_NONE : c->level[NORM];
    a->norm_eps = c->level[NORM] == GDN_NORM_L2_MAX ? 0.5f : 0;
    a->scale = c->level[SCALE] ? 0.3f : 0;
}

static gdn_tensor new_pool(const struct rule_case *c, int32_t dtype)
{
    const int K = dims[c->level[DIMS]][0], V = dims[c->level[DIMS]][1];
    const int *h = heads[c->level[HEADS]], H = h[0] > h[2] ? h[0] : h[2];
    const bool swapped = c->level[VIEW] == FUSED; /* the other of the two is dense */
    const bool vk = c->level[LAYOUT] == GDN_STATE_VK;
    const int64_t gap = c->level[VIEW] == GAPS ? 7 : 0;
    const gdn_tensor t = ring2_turned(swapped, dtype, gap, 4, c->b.P, H, vk ? V : K, vk ? K : V);
    ring2_fill(&t, -1, 1);
    return t;
}

/* ---- Running ---- */

static void run_case(const int *level, int number, bool decode)
{
    struct rule_case c;
    gdn_ctx *ctx = ring2_ctx(1 + number % 3);
    gdn_rule_args *a = &c.args;
    const gdn_op op = decode ? GDN_OP_DECODE : GDN_OP_PREFILL;
    c.level = level;
    c.args = gdn_rule_args_init();
    ring2_batch_make(&c.b, level);
    make_tensors(&c);
    make_values(&c);
    if (ring2_batch_has_state(&c.b)) a->state = new_pool(&c, level[STATE]);
    if (ring2_batch_has_state_out(&c.b)) a->state_out = new_pool(&c, (int32_t)ring2_below(3));
    a->state_layout = level[LAYOUT];
    a->batch = &c.b.batch;
    if (!decode && level[WRITE] == GDN_WRITE_EACH) {
        ring2_call_begin();
        ring2_status(ctx, "each", gdn_prefill(ctx, a), GDN_E_UNSUPPORTED);
        ring2_call_end();
        return;
    }
    if (number % 2) {
        ring2_give_workspace(ctx, op, a);
    }
    ring2_rule_check(ctx, a, decode);
}

static bool begin_case(const int *row, int number, bool again, bool decode)
{
    char name[200];
    int level[N_FACTORS];
    memcpy(level, row, sizeof level);
    if (again) level[DIMS] = 0; /* it has no name there */
    ring2_name_case(level, factors, N_FACTORS - N_BATCH_FACTORS, name, sizeof name);
    if (!again) return ring2_begin("%s %03d%s", decode ? "decode" : "prefill", number, name);
    return ring2_begin("%s %03d K%d V%d, else%s", decode ? "decode" : "prefill", number,
                       dims[row[DIMS]][0], dims[row[DIMS]][1], name);
}

int main(int argc, char **argv)
{
    static int rows[400][RING2_MAX_FACTORS];
    int levels[N_FACTORS], n, all;
    struct ring2_factors f = { N_FACTORS, levels, allowed };
    for (int i = 0; i < N_FACTORS; i++)
        levels[i] = i < N_BATCH_FACTORS ? ring2_batch_factors[i].n : factors[i - N_BATCH_FACTORS].n;
    ring2_options(argc, argv);
    n = ring2_pairs(&f, rows, 400);
    all = ring2_pairs_again(&f, rows, n, 400, DIMS, N_DIMS, N_ALL_DIMS);
    for (int i = 0; i < all; i++)
        for (int decode = 0; decode < 2; decode++)
            if (begin_case(rows[i], i, i >= n, decode)) {
                run_case(rows[i], i, decode);
                ring2_end();
            }
    return ring2_summary();
}
