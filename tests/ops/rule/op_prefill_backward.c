/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 --every=8 */
/*
 * gdn_prefill_backward against the float64 recurrence in reverse, which finite differences judge,
 * over cases in which every pair of levels of the factors below meets.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backward_calls.h"

enum {
    BATCH,
    LENGTHS,
    MASK,
    VIEW,
    ACT,
    OUT,
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
    STATE,
    ENDS,
    ABSENT,
    ADDS,
    N_FACTORS
};
enum { PACKED_I32, PACKED_I64, PLAIN, PADDED };
enum { ALL, COUNT, START, BOTH };
enum { DENSE, GAPS, REVERSED };
enum { NO_GATE, LOG, LINEAR, RAW, RAW_BOUND };
enum { MILD, STRONG, ZERO, SPRINKLED };
enum { NO_BETA, GIVEN, SIGMOID, TWICE, NEAR_2 };
enum { NO_STATE, S_F32, S_BF16, S_F16 };

/* Sizes of heads; the last ones are levels of some cases once more. */
enum { N_DIMS = 9, N_ALL_DIMS = 13 };
static const int levels[N_FACTORS] = {
    [BATCH] = 4, [LENGTHS] = 6,  [MASK] = 4,       [VIEW] = 3,   [ACT] = 3,
    [OUT] = 3,   [LAYOUT] = 2,   [HEADS] = 6,      [MAP] = 2,    [DIMS] = N_DIMS,
    [GATE] = 5,  [STRENGTH] = 4, [GATE_DTYPE] = 2, [BETA] = 5,   [NORM] = 4,
    [SCALE] = 2, [STATE] = 4,    [ENDS] = 4,       [ABSENT] = 9, [ADDS] = 2,
};
/* The named ones of a case. */
static const char *const names[N_FACTORS][RING2_MAX_LEVELS] = {
    [BATCH] = { "cu32", "cu64", "plain", "padded" },
    [LENGTHS] = { "T1", "T9", "T16", "T37", "T0", "T48" },
    [MASK] = { "", "count", "start", "start+count" },
    [VIEW] = { "", "gaps", "reversed" },
    [ACT] = { "f32", "bf16", "f16" },
    [MAP] = { "", "interleaved" },
    [GATE] = { "ungated", "log", "linear", "raw", "bounded" },
    [STRENGTH] = { "", "strong", "zero", "-inf" },
    [BETA] = { "beta=1", "beta", "sigmoid", "2sigmoid", "beta~2" },
    [NORM] = { "", "l2", "l2add", "l2max" },
    [ADDS] = { "", "adds" },
};
static const int lengths[6][6] = { { 1, -1 },  { 0, 1, 8, 9, 0, -1 }, { 15, 16, -1 },
                                   { 37, -1 }, { 0, 0, -1 },          { 17, 48, 2, -1 } };
static const int heads[6][3] = { { 1, 1, 1 }, { 2, 2, 4 }, { 4, 2, 2 },
                                 { 3, 1, 1 }, { 1, 1, 3 }, { 2, 4, 4 } };
static const int dims[N_ALL_DIMS][2] = { { 1, 1 },    { 16, 16 },  { 60, 100 },  { 128, 128 },
                                         { 32, 96 },  { 64, 48 },  { 256, 256 }, { 120, 31 },
                                         { 7, 192 },  { 24, 257 }, { 256, 512 }, { 8, 1000 },
                                         { 40, 1024 } };

static bool clash(int i, int a, int j, int b)
{
    if (i == DIMS && dims[a][0] * dims[a][1] >= 1 << 15) /* slow to judge */
        return (j == HEADS && b) || (j == LENGTHS && lengths[b][0] + lengths[b][1] > 17);
    /* Gradients of GDN_GATE_RAW alone. */
    return i == GATE && a < RAW && j == ABSENT && b >= 1 + DA_LOG && b <= 1 + DDT_BIAS;
}

static bool allowed(int i, int a, int j, int b) { return !clash(i, a, j, b) && !clash(j, b, i, a); }

static void name_case(const int *level, char *name, size_t bytes)
{
    size_t used = 0;
    name[0] = 0;
    for (int i = 0; i < N_FACTORS; i++) {
        const char *one = level[i] < RING2_MAX_LEVELS ? names[i][level[i]] : NULL;
        if (one && one[0]) used += (size_t)snprintf(name + used, bytes - used, " %s", one);
    }
}

/* ---- One case ------------------------------------------------------------------------------ */

struct grad_case {
    const int *level;
    int64_t B, T, N, cu[8];
    gdn_batch batch;
    gdn_prefill_backward_args args;
};

static void make_batch(struct grad_case *c)
{
    const int *set = lengths[c->level[LENGTHS]], form = c->level[BATCH];
    int64_t length[8], start[8], count[8];
    for (int i = 0; set[i] >= 0; i++) {
        length[c->B++] = set[i], c->N += set[i];
        if (set[i] > c->T) c->T = set[i];
    }
    if (form == PLAIN) c->B = 1, length[0] = c->N;
    for (int64_t i = 0; i < c->B; i++) {
        if (form == PADDED) length[i] = c->T;
        c->cu[i + 1] = c->cu[i] + length[i];
        start[i] = c->level[MASK] >= START ? ring2_below(length[i] + 1) : 0;
        count[i] = ring2_below(length[i] - start[i] + 1);
    }
    c->batch = gdn_batch_init();
    c->args.batch = &c->batch;
    if (form <= PACKED_I64)
        c->batch.cu_seqlens =
            ring2_indices(form == PACKED_I32 ? GDN_I32 : GDN_I64, c->B + 1, c->cu);
    if (c->level[MASK] >= START) c->batch.token_start = ring2_indices(GDN_I32, c->B, start);
    if (c->level[MASK] % 2) c->batch.token_count = ring2_indices(GDN_I64, c->B, count);
}

/* [tokens][n][D], or [tokens][n] with D 0. */
static gdn_tensor rows(const struct grad_case *c, int32_t dtype, int64_t n, int64_t D)
{
    const int64_t gap = c->level[VIEW] == GAPS ? 5 : 0;
    const int inner = D ? 2 : 1;
    gdn_tensor t = c->level[BATCH] == PADDED ? ring2_new(dtype, gap, 2 + inner, c->B, c->T, n, D)
                                             : ring2_new(dtype, gap, 1 + inner, c->N, n, D, 0);
    for (int i = 0; c->level[VIEW] == REVERSED && i < t.ndim - 1; i++) {
        const int64_t step = t.stride[i] * (int64_t)gdn_dtype_bytes(dtype);
        if (t.size[i]) t.data = (char *)t.data + (t.size[i] - 1) * step;
        t.stride[i] = -t.stride[i];
    }
    return t;
}

static gdn_tensor pool(const struct grad_case *c, int32_t dtype)
{
    const int K = dims[c->level[DIMS]][0], V = dims[c->level[DIMS]][1];
    const int *h = heads[c->level[HEADS]], H = h[0] > h[2] ? h[0] : h[2];
    const bool swapped = c->level[VIEW] == REVERSED; /* the other of the two is dense */
    const bool vk = c->level[LAYOUT] == GDN_STATE_VK;
    const int64_t gap = c->level[VIEW] == GAPS ? 7 : 0;
    const gdn_tensor t = ring2_turned(swapped, dtype, gap, 4, c->B, H, vk ? V : K, vk ? K : V);
    ring2_fill(&t, -1, 1);
    return t;
}

static void make_tensors(struct grad_case *c)
{
    const int K = dims[c->level[DIMS]][0], V = dims[c->level[DIMS]][1];
    const int *h = heads[c->level[HEADS]], H = h[0] > h[2] ? h[0] : h[2];
    const int32_t A = c->level[ACT], G = c->level[GATE_DTYPE] ? A : GDN_F32;
    const int32_t D = c->level[OUT] == 1 ? A : GDN_F32, O = c->level[OUT] == 2 ? A : GDN_F32;
    gdn_prefill_backward_args *a = &c->args;
    a->q = rows(c, A, h[0], K), a->k = rows(c, A, h[1], K), a->v = rows(c, A, h[2], V);
    a->dq = rows(c, D, h[0], K), a->dk = rows(c, O, h[1], K), a->dv = rows(c, D, h[2], V);
    a->dout = rows(c, O, H, V);
    if (c->level[GATE] != NO_GATE) a->g = rows(c, G, H, 0);
    if (c->level[BETA] != NO_BETA) a->beta = rows(c, G, H, 0);
    a->dg = rows(c, GDN_F32, H, 0), a->dbeta = rows(c, GDN_F32, H, 0);
    if (c->level[GATE] >= RAW) {
        a->A_log = ring2_new((int32_t)ring2_below(3), 0, 1, H, 0, 0, 0);
        a->dt_bias = ring2_new((int32_t)ring2_below(3), 0, 1, H, 0, 0, 0);
        a->dA_log = ring2_new(GDN_F32, 0, 1, H, 0, 0, 0);
        a->ddt_bias = ring2_new(GDN_F32, 0, 1, H, 0, 0, 0);
        ring2_fill(&a->A_log, -1, 1);
        ring2_fill(&a->dt_bias, -1, 1);
        if (c->level[SCALE]) a->dt_bias.data = NULL;
    }
    if (c->level[STATE]) a->state = pool(c, c->level[STATE] - 1);
    if (c->level[ENDS]) a->dstate_out = pool(c, c->level[ENDS] - 1);
    a->dstate = pool(c, GDN_F32);
    if (c->level[ABSENT]) ((gdn_tensor *)ring2_gradient(a, c->level[ABSENT] - 1))->data = NULL;
}

/* Draws a gate. Some gates that forget have no exp() in float32. */
static double gate_value(const struct grad_case *c)
{
    const int gate = c->level[GATE], strength = c->level[STRENGTH];
    const bool raw = gate >= RAW, dead = strength == SPRINKLED && ring2_below(4) == 0;
    if (raw)
        return dead                 ? (double)INFINITY
               : strength == STRONG ? 8
               : strength == ZERO   ? -200
                                    : ring2_uniform(-4, 1);
    double g = ring2_uniform(-0.1, 0);
    if (strength == STRONG) g = ring2_uniform(-8.5, -7.5);
    if (strength == ZERO) g = 0;
    if (dead) g = ring2_below(2) ? -(double)INFINITY : -1000;
    return gate == LINEAR ? exp(g) : g;
}

static double beta_value(const struct grad_case *c)
{
    switch (c->level[BETA]) {
    case GIVEN: return ring2_below(8) ? ring2_uniform(0, 1) : 0;
    case NEAR_2: return ring2_uniform(1.9, 2);
    default: return ring2_uniform(-3, 3);
    }
}

static void make_values(struct grad_case *c)
{
    static const int32_t gates[] = { GDN_GATE_LOG, GDN_GATE_LOG, GDN_GATE_LINEAR, GDN_GATE_RAW,
                                     GDN_GATE_RAW };
    static const int32_t betas[] = { GDN_BETA_DEFAULT, GDN_BETA_GIVEN, GDN_BETA_SIGMOID,
                                     GDN_BETA_TWICE_SIGMOID, GDN_BETA_GIVEN };
    gdn_prefill_backward_args *a = &c->args;
    const bool unit = !oracle_normalises(c->level[NORM]);
    fill_keys(&a->q, unit, false);
    fill_keys(&a->k, unit, c->level[BETA] == NEAR_2);
    ring2_fill(&a->v, -1, 1);
    ring2_fill(&a->dout, -1, 1);
    for (int64_t i = 0; a->g.data && i < ring2_count(&a->g); i++)
        ring2_set(&a->g, i, gate_value(c));
    for (int64_t i = 0; a->beta.data && i < ring2_count(&a->beta); i++)
        ring2_set(&a->beta, i, beta_value(c));
    a->gate = gates[c->level[GATE]];
    a->beta_kind = betas[c->level[BETA]];
    a->gate_lower_bound = c->level[GATE] == RAW_BOUND ? -5 : 0;
    a->head_map = c->level[MAP];
    a->state_layout = c->level[LAYOUT];
    a->norm = unit && c->level[SCALE] ? GDN_NORM_NONE : c->level[NORM];
    a->norm_eps = c->level[NORM] == GDN_NORM_L2_MAX ? 1.5f : 0;
    a->scale = c->level[SCALE] ? 0.3f : 0;
    if (!c->level[ADDS]) return;
    a->flags = GDN_ACCUMULATE;
    for (int i = 0; i < N_GRADIENTS; i++)
        if (ring2_gradient(a, i)->data) ring2_fill(ring2_gradient(a, i), -1, 1);
}

/* dstate alone needs no states, and has the bits of dstate among other gradients. */
static void expect_state_alone(gdn_ctx *ctx, const gdn_prefill_backward_args *all,
                               const gdn_tensor *before)
{
    gdn_prefill_backward_args a = *all;
    a.dq = a.dk = a.dv = a.dg = a.dbeta = a.dA_log = a.ddt_bias = (gdn_tensor){ 0 };
    a.workspace = NULL, a.workspace_bytes = 0, a.dstate = *before;
    ring2_status(ctx, "dstate alone", gdn_prefill_backward(ctx, &a), GDN_OK);
    ring2_expect_bits("dstate alone", &a.dstate, &all->dstate);
}

static void run_case(const int *level, int number)
{
    struct grad_case c = { .level = level, .args = gdn_prefill_backward_args_init() };
    gdn_prefill_backward_args *a = &c.args;
    gdn_ctx *ctx = ring2_ctx(1 + number % 3);
    const gdn_op op = GDN_OP_PREFILL_BACKWARD;
    make_batch(&c);
    make_tensors(&c);
    make_values(&c);
    ring2_status(ctx, "gdn_supported", gdn_supported(ctx, op, a), GDN_OK);
    if (number % 2) {
        ring2_give_workspace(ctx, op, a);
    }
    const gdn_tensor before = a->dstate.data ? ring2_clone(&a->dstate) : a->dstate;
    ring2_gradients_check(ctx, a);
    if (before.data) expect_state_alone(ctx, a, &before);
}

/* ---- The oracle ---------------------------------------------------------------------------- */

enum { T_FD = 5, K_FD = 3, V_FD = 2, N_FD = T_FD * (2 * K_FD + V_FD + 2) + K_FD * V_FD };

/* q, k, v, log alpha, beta and the state, one after the other, as a call. */
static void spread(double *x, struct oracle_backward *r, double *alpha)
{
    r->q = x, r->k = x += T_FD * K_FD, r->v = x += T_FD * K_FD, x += T_FD * V_FD;
    for (int t = 0; t < T_FD; t++) alpha[t] = exp(x[t]);
    r->alpha = alpha, r->beta = x += T_FD, r->state = x + T_FD;
}

/* The sum of dout o and dstate_out S'. */
static double loss(double *x, const struct oracle_backward *b)
{
    double alpha[T_FD], S[V_FD * K_FD], o[T_FD * V_FD], sum = 0;
    struct oracle_backward r = *b;
    spread(x, &r, alpha);
    memcpy(S, r.state, sizeof S);
    const struct oracle_rule f = { .T = T_FD,
                                   .K = K_FD,
                                   .V = V_FD,
                                   .scale = r.scale,
                                   .q = r.q,
                                   .k = r.k,
                                   .v = r.v,
                                   .alpha = alpha,
                                   .beta = r.beta,
                                   .state = S,
                                   .o = o };
    oracle_rule(&f);
    for (int i = 0; i < T_FD * V_FD; i++) sum += o[i] * b->dout[i];
    for (int i = 0; i < V_FD * K_FD; i++) sum += S[i] * b->dstate_out[i];
    return sum;
}

/* In one of the three a gate is -inf, and stays so. */
static void finite_differences(void)
{
    const double h = 1e-6;
    for (int round = 0; round < 3; round++) {
        double x[N_FD], got[N_FD], dout[T_FD * V_FD], ends[K_FD * V_FD], alpha[T_FD], carried[V_FD];
        struct oracle_backward r = { .T = T_FD, .K = K_FD, .V = V_FD, .scale = 0.7 };
        double *const gates = x + T_FD * (2 * K_FD + V_FD), *at = got;
        for (int i = 0; i < N_FD; i++) x[i] = ring2_uniform(-1, 1);
        for (int t = 0; t < T_FD; t++) gates[t] = ring2_uniform(-2, 0);
        if (round == 2) gates[2] = -INFINITY;
        for (int i = 0; i < T_FD * V_FD; i++) dout[i] = ring2_uniform(-1, 1);
        for (int i = 0; i < K_FD * V_FD; i++) ends[i] = ring2_uniform(-1, 1);
        spread(x, &r, alpha);
        r.dout = dout, r.dstate_out = ends;
        r.dq = at, r.dk = at += T_FD * K_FD, r.dv = at += T_FD * K_FD, r.dgate = at += T_FD * V_FD;
        r.dbeta = at += T_FD, r.dstate = at + T_FD, r.carried = carried;
        oracle_rule_backward(&r);
        for (int i = 0; i < N_FD; i++) {
            const double here = x[i];
            x[i] = here + h;
            const double above = loss(x, &r);
            x[i] = here - h;
            const double want = (above - loss(x, &r)) / (2 * h);
            x[i] = here;
            CHECK(fabs(got[i] - want) < 1e-8, "round %d, input %d: %.9g, wanted %.9g", round, i,
                  got[i], want);
        }
    }
}

/* ---- The model ----------------------------------------------------------------------------- */

static double model_loss(const gdn_prefill_backward_args *a)
{
    gdn_rule_args f = gdn_rule_args_init();
    struct ring2_rule m;
    double sum = 0;
    f.q = a->q, f.k = a->k, f.v = a->v, f.g = a->g, f.beta = a->beta, f.A_log = a->A_log;
    f.dt_bias = a->dt_bias, f.state = a->state, f.state_out = a->dstate, f.out = a->dout;
    f.batch = a->batch, f.gate = a->gate, f.beta_kind = a->beta_kind, f.norm = a->norm;
    f.norm_eps = a->norm_eps, f.gate_lower_bound = a->gate_lower_bound, f.head_map = a->head_map;
    ring2_rule_model(&f, false, &m);
    for (int64_t i = 0; i < ring2_count(&a->dout); i++) sum += m.out[i] * ring2_get(&a->dout, i);
    for (int64_t i = 0; i < ring2_count(&a->dstate); i++)
        sum += m.state[i] * ring2_get(&a->dstate_out, i);
    return sum;
}

/* The model's gradients beside differences of the model of gdn_prefill: norms, gates, betas, heads
 * that are shared. Inputs are multiples of h, so that a step of h is exact in float32. */
static void model_differences(void)
{
    static const int64_t T[] = { 3, 2 };
    const double h = 0x1p-12;
    for (int round = 0; round < 4; round++) {
        gdn_prefill_backward_args a = make_call(2, T, 3, 2);
        struct ring2_gradients m;
        gdn_tensor *const inputs[N_GRADIENTS] = { &a.q,    &a.k,     &a.v,       &a.g,
                                                  &a.beta, &a.A_log, &a.dt_bias, &a.state };
        a.norm = round, a.head_map = round % 2, a.norm_eps = 0.25;
        a.beta_kind = round == 1 ? GDN_BETA_TWICE_SIGMOID : GDN_BETA_SIGMOID;
        a.gate = round < 2 ? GDN_GATE_RAW : round == 2 ? GDN_GATE_LINEAR : GDN_GATE_LOG;
        a.gate_lower_bound = round == 1 ? -3 : 0;
        if (round == 2) ring2_fill(&a.g, 0.5, 0.9);
        if (round == 3) ring2_fill(&a.g, -0.9, -0.1);
        if (round >= 2) a.A_log.data = a.dt_bias.data = NULL;
        new_gradients(&a);
        for (int i = 0; i < N_GRADIENTS; i++)
            for (int64_t j = 0; inputs[i]->data && j < ring2_count(inputs[i]); j++)
                ring2_set(inputs[i], j, nearbyint(ring2_get(inputs[i], j) / h) * h);
        ring2_gradients_model(&a, &m);
        for (int i = 0; i < N_GRADIENTS; i++)
            for (int64_t j = 0; inputs[i]->data && j < ring2_count(inputs[i]); j++) {
                const double here = ring2_get(inputs[i], j);
                ring2_set(inputs[i], j, here + h);
                const double above = model_loss(&a);
                ring2_set(inputs[i], j, here - h);
                const double want = (above - model_loss(&a)) / (2 * h);
                ring2_set(inputs[i], j, here);
                CHECK(fabs(m.want[i][j] - want) < 4e-6, "round %d, %s[%d]: %.9g, wanted %.9g",
                      round, ring2_gradient_names[i], (int)j, m.want[i][j], want);
            }
    }
}

/* ---- Guarantees ---------------------------------------------------------------------------- */

/* A sequence in two calls, cut at a multiple of 64, has the bits of one call. The first call gets
 * the gradient of the state between both, the second gets that state. On a device gdn_prefill gives
 * other bits for that state. */
static void split_sequence(void)
{
    static const int64_t T = 300, cut = 192;
    gdn_prefill_backward_args all = make_call(1, &T, 40, 24), left, right;
    new_gradients(&all);
    run(ring2_ctx(1), &all);
    left = slice(&all, 0, 0, cut), right = slice(&all, 0, cut, T - cut);

    gdn_rule_args f = gdn_rule_args_init();
    f.q = left.q, f.k = left.k, f.v = left.v, f.g = left.g, f.beta = left.beta;
    f.A_log = left.A_log, f.dt_bias = left.dt_bias, f.state = left.state;
    f.state_out = ring2_clone(&left.state);
    f.gate = all.gate, f.beta_kind = all.beta_kind, f.norm = all.norm;
    ring2_status(ring2_ctx(1), "gdn_prefill", gdn_prefill(ring2_ctx(1), &f), GDN_OK);

    right.state = f.state_out;
    new_gradients(&right);
    run(ring2_ctx(1), &right);
    left.dstate_out = right.dstate;
    new_gradients(&left);
    run(ring2_ctx(1), &left);
    if (ring2_on_device()) {
        expect_near(&right, &all, cut, T - cut);
        expect_near(&left, &all, 0, cut);
        return;
    }
    expect_rows(&right, &all, cut, T - cut);
    expect_rows(&left, &all, 0, cut);
    ring2_expect_bits("dstate", &left.dstate, &all.dstate);
}

/* Returns the bytes of a call of one sequence. */
static size_t bytes_of(int64_t T, int64_t K, int64_t V)
{
    gdn_prefill_backward_args a = make_call(1, &T, K, V);
    size_t bytes;
    new_gradients(&a);
    ring2_status(ring2_ctx(2), "bytes",
                 gdn_workspace_bytes(ring2_ctx(2), GDN_OP_PREFILL_BACKWARD, &a, &bytes), GDN_OK);
    return bytes;
}

/* Grows with the number of tokens, and with K and V. */
static void workspace(void)
{
    static const int64_t sizes[][2] = { { 128, 128 }, { 200, 250 }, { 1, 1 }, { 60, 100 } };
    for (int i = 0; i < 4; i++) {
        const int64_t K = sizes[i][0], V = sizes[i][1];
        const size_t few = bytes_of(40, K, V), some = bytes_of(300, K, V);
        const size_t many = bytes_of(2048, K, V), large = bytes_of(300, K + 56, V + 56);
        CHECK(few <= some && some < many && some < large, "K %d, V %d: %zu bytes, %zu, %zu, %zu",
              (int)K, (int)V, few, some, many, large);
    }
}

/* ---- Properties ---------------------------------------------------------------------------- */

/* To the bit, for a factor of 2; and zero gives zero. */
static void linear_in_dout(void)
{
    gdn_prefill_backward_args a = make_call(3, three, 40, 24), b = a;
    new_gradients(&a);
    run(ring2_ctx(1), &a);
    b.dout = ring2_clone(&a.dout), b.dstate_out = ring2_clone(&a.dstate_out);
    for (int64_t i = 0; i < ring2_count(&b.dout); i++)
        ring2_set(&b.dout, i, 2 * ring2_get(&a.dout, i));
    for (int64_t i = 0; i < ring2_count(&b.dstate_out); i++)
        ring2_set(&b.dstate_out, i, 2 * ring2_get(&a.dstate_out, i));
    new_gradients(&b);
    run(ring2_ctx(1), &b);
    for (int i = 0; i < N_GRADIENTS; i++)
        for (int64_t j = 0; j < ring2_count(ring2_gradient(&a, i)); j++)
            ring2_set(ring2_gradient(&a, i), j, 2 * ring2_get(ring2_gradient(&a, i), j));
    expect_bits("twice", &b, &a);

    ring2_fill_value(&b.dout, 0);
    ring2_fill_value(&b.dstate_out, 0);
    run(ring2_ctx(1), &b);
    for (int i = 0; i < N_GRADIENTS; i++)
        for (int64_t j = 0; j < ring2_count(ring2_gradient(&b, i)); j++)
            CHECK(ring2_get(ring2_gradient(&b, i), j) == 0, "%s: zero became %g",
                  ring2_gradient_names[i], ring2_get(ring2_gradient(&b, i), j));
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "finite differences", finite_differences },
        { "differences of the model", model_differences },
        { "workspace", workspace },
        { "linear in dout", linear_in_dout },
        { "split sequence", split_sequence },
    };
    static int cases[300][RING2_MAX_FACTORS];
    struct ring2_factors f = { N_FACTORS, levels, allowed };
    const int few = (ring2_options(argc, argv), ring2_pairs(&f, cases, 300));
    const int n = ring2_pairs_again(&f, cases, few, 300, DIMS, N_DIMS, N_ALL_DIMS);
    for (int i = 0; i < n; i++) {
        char name[200];
        name_case(cases[i], name, sizeof name);
        if (!ring2_begin("prefill_backward %03d K%d V%d%s", i, dims[cases[i][DIMS]][0],
                         dims[cases[i][DIMS]][1], name))
            continue;
        run_case(cases[i], i);
        ring2_end();
    }
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
