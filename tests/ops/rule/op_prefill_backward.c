/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 --every=8, sm_90 "tensor cores" */
/*
 * gdn_prefill_backward against the float64 recurrence in reverse, which finite differences judge,
 * over cases in which every pair of levels of the factors below meets.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "oracle.h"
#include "ring2_device.h"
#include "ring2_gradients.h"
#include "ring2_rule.h"

enum {
    BATCH, LENGTHS, MASK, VIEW, ACT, OUT, LAYOUT, HEADS, MAP, DIMS, GATE, STRENGTH, GATE_DTYPE,
    BETA, NORM, SCALE, STATE, ENDS, ABSENT, ADDS, N_FACTORS
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
    [BATCH] = 4, [LENGTHS] = 6, [MASK] = 4, [VIEW] = 3, [ACT] = 3, [OUT] = 3, [LAYOUT] = 2,
    [HEADS] = 6, [MAP] = 2, [DIMS] = N_DIMS, [GATE] = 5, [STRENGTH] = 4, [GATE_DTYPE] = 2,
    [BETA] = 5, [NORM] = 4, [SCALE] = 2, [STATE] = 4, [ENDS] = 4, [ABSENT] = 9, [ADDS] = 2,
};
/* The named ones of a case. */
static const char *const names[N_FACTORS][RING2_MAX_LEVELS] = {
    [BATCH]    = { "cu32", "cu64", "plain", "padded" },
    [LENGTHS]  = { "T1", "T9", "T16", "T37", "T0", "T48" },
    [MASK]     = { "", "count", "start", "start+count" },
    [VIEW]     = { "", "gaps", "reversed" },
    [ACT]      = { "f32", "bf16", "f16" },
    [MAP]      = { "", "interleaved" },
    [GATE]     = { "ungated", "log", "linear", "raw", "bounded" },
    [STRENGTH] = { "", "strong", "zero", "-inf" },
    [BETA]     = { "beta=1", "beta", "sigmoid", "2sigmoid", "beta~2" },
    [NORM]     = { "", "l2", "l2add", "l2max" },
    [ADDS]     = { "", "adds" },
};
static const int lengths[6][6] = { { 1, -1 }, { 0, 1, 8, 9, 0, -1 }, { 15, 16, -1 }, { 37, -1 },
                                   { 0, 0, -1 }, { 17, 48, 2, -1 } };
static const int heads[6][3] = { { 1, 1, 1 }, { 2, 2, 4 }, { 4, 2, 2 }, { 3, 1, 1 }, { 1, 1, 3 },
                                 { 2, 4, 4 } };
static const int dims[N_ALL_DIMS][2] = { { 1, 1 },     { 16, 16 },   { 60, 100 }, { 128, 128 },
                                         { 32, 96 },   { 64, 48 },   { 256, 256 }, { 120, 31 },
                                         { 7, 192 },   { 24, 257 },  { 256, 512 }, { 8, 1000 },
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
    const int                *level;
    int64_t                   B, T, N, cu[8];
    gdn_batch                 batch;
    gdn_prefill_backward_args args;
};

static void make_batch(struct grad_case *c)
{
    const int *set = lengths[c->level[LENGTHS]], form = c->level[BATCH];
    int64_t    length[8], start[8], count[8];
    for (int i = 0; set[i] >= 0; i++) {
        length[c->B++] = set[i], c->N += set[i];
        if (set[i] > c->T) c->T = set[i];
    }
    if (form == PLAIN) c->B = 1, length[0] = c->N;
    for (int64_t i = 0; i < c->B; i++) {
        if (form == PADDED) length[i] = c->T;
        c->cu[i + 1] = c->cu[i] + length[i];
        start[i]     = c->level[MASK] >= START ? ring2_below(length[i] + 1) : 0;
        count[i]     = ring2_below(length[i] - start[i] + 1);
    }
    c->batch      = gdn_batch_init();
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
    const int64_t gap   = c->level[VIEW] == GAPS ? 5 : 0;
    const int     inner = D ? 2 : 1;
    gdn_tensor    t = c->level[BATCH] == PADDED ? ring2_new(dtype, gap, 2 + inner, c->B, c->T, n, D)
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
    const int     K = dims[c->level[DIMS]][0], V = dims[c->level[DIMS]][1];
    const int    *h = heads[c->level[HEADS]], H = h[0] > h[2] ? h[0] : h[2];
    const bool    swapped = c->level[VIEW] == REVERSED; /* the other of the two is dense */
    const bool    vk      = c->level[LAYOUT] == GDN_STATE_VK;
    const int64_t gap     = c->level[VIEW] == GAPS ? 7 : 0;
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
        a->A_log   = ring2_new((int32_t)ring2_below(3), 0, 1, H, 0, 0, 0);
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

/* Some that float32 has no exp() of are among the dead ones. */
static double gate_value(const struct grad_case *c)
{
    const int  gate = c->level[GATE], strength = c->level[STRENGTH];
    const bool raw = gate >= RAW, dead = strength == SPRINKLED && ring2_below(4) == 0;
    if (raw)
        return dead ? (double)INFINITY
               : strength == STRONG ? 8 : strength == ZERO ? -200 : ring2_uniform(-4, 1);
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

/* Rows of length near 1; of keys that beta near 2 meets, near one direction. */
static void fill_keys(const gdn_tensor *k, bool unit, bool alike)
{
    const int64_t K = k->size[k->ndim - 1];
    double       *x = ring2_heap((size_t)K * sizeof *x);
    for (int64_t r = 0; r < ring2_count(k) / K; r++) {
        for (int64_t d = 0; d < K; d++)
            x[d] = alike ? 1 + ring2_uniform(-0.05, 0.05) : ring2_uniform(-1, 1);
        if (unit) oracle_l2norm(x, x, K, GDN_NORM_L2, 1e-30);
        for (int64_t d = 0; d < K; d++) ring2_set(k, r * K + d, x[d]);
    }
}

static void make_values(struct grad_case *c)
{
    static const int32_t gates[] = { GDN_GATE_LOG, GDN_GATE_LOG, GDN_GATE_LINEAR, GDN_GATE_RAW,
                                     GDN_GATE_RAW };
    static const int32_t betas[] = { GDN_BETA_DEFAULT, GDN_BETA_GIVEN, GDN_BETA_SIGMOID,
                                     GDN_BETA_TWICE_SIGMOID, GDN_BETA_GIVEN };
    gdn_prefill_backward_args *a = &c->args;
    const bool                 unit = !oracle_normalises(c->level[NORM]);
    fill_keys(&a->q, unit, false);
    fill_keys(&a->k, unit, c->level[BETA] == NEAR_2);
    ring2_fill(&a->v, -1, 1);
    ring2_fill(&a->dout, -1, 1);
    for (int64_t i = 0; a->g.data && i < ring2_count(&a->g); i++)
        ring2_set(&a->g, i, gate_value(c));
    for (int64_t i = 0; a->beta.data && i < ring2_count(&a->beta); i++)
        ring2_set(&a->beta, i, beta_value(c));
    a->gate             = gates[c->level[GATE]];
    a->beta_kind        = betas[c->level[BETA]];
    a->gate_lower_bound = c->level[GATE] == RAW_BOUND ? -5 : 0;
    a->head_map         = c->level[MAP];
    a->state_layout     = c->level[LAYOUT];
    a->norm             = unit && c->level[SCALE] ? GDN_NORM_NONE : c->level[NORM];
    a->norm_eps         = c->level[NORM] == GDN_NORM_L2_MAX ? 1.5f : 0;
    a->scale            = c->level[SCALE] ? 0.3f : 0;
    if (!c->level[ADDS]) return;
    a->flags = GDN_ACCUMULATE;
    for (int i = 0; i < N_GRADIENTS; i++)
        if (ring2_gradient(a, i)->data) ring2_fill(ring2_gradient(a, i), -1, 1);
}

/* dstate alone is computed without states, and has the bits that it has beside others. */
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
    struct grad_case           c = { .level = level, .args = gdn_prefill_backward_args_init() };
    gdn_prefill_backward_args *a = &c.args;
    gdn_ctx                   *ctx = ring2_ctx(1 + number % 3);
    const gdn_op               op = GDN_OP_PREFILL_BACKWARD;
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
    double                 alpha[T_FD], S[V_FD * K_FD], o[T_FD * V_FD], sum = 0;
    struct oracle_backward r = *b;
    spread(x, &r, alpha);
    memcpy(S, r.state, sizeof S);
    const struct oracle_rule f = { .T = T_FD, .K = K_FD, .V = V_FD, .scale = r.scale, .q = r.q,
                                   .k = r.k, .v = r.v, .alpha = alpha, .beta = r.beta, .state = S,
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
        double x[N_FD], got[N_FD], dout[T_FD * V_FD], ends[K_FD * V_FD], alpha[T_FD],
            carried[V_FD];
        struct oracle_backward r = { .T = T_FD, .K = K_FD, .V = V_FD, .scale = 0.7 };
        double *const          gates = x + T_FD * (2 * K_FD + V_FD), *at = got;
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
            x[i]              = here + h;
            const double above = loss(x, &r);
            x[i]               = here - h;
            const double want = (above - loss(x, &r)) / (2 * h);
            x[i]              = here;
            CHECK(fabs(got[i] - want) < 1e-8, "round %d, input %d: %.9g, wanted %.9g", round, i,
                  got[i], want);
        }
    }
}

/* ---- Calls to start from ------------------------------------------------------------------- */

/* Packed sequences of 2 heads of q and k and 4 of v, raw gates and betas, normalised keys. */
static gdn_prefill_backward_args make_call(int n, const int64_t *lengths_of, int64_t K, int64_t V)
{
    gdn_prefill_backward_args a = gdn_prefill_backward_args_init();
    gdn_batch                *t = ring2_heap(sizeof *t);
    int64_t                   cu[16] = { 0 };
    for (int i = 0; i < n; i++) cu[i + 1] = cu[i] + lengths_of[i];
    const int64_t N = cu[n];
    *t = gdn_batch_init(), t->cu_seqlens = ring2_indices(GDN_I32, n + 1, cu), a.batch = t;
    gdn_tensor *const given[] = { &a.q, &a.k, &a.v, &a.dout, &a.g, &a.beta, &a.A_log, &a.dt_bias,
                                  &a.state, &a.dstate_out };
    a.q = ring2_new(GDN_F32, 0, 3, N, 2, K, 0), a.k = ring2_new(GDN_F32, 0, 3, N, 2, K, 0);
    a.v = ring2_new(GDN_F32, 0, 3, N, 4, V, 0), a.dout = ring2_new(GDN_F32, 0, 3, N, 4, V, 0);
    a.g = ring2_new(GDN_F32, 0, 2, N, 4, 0, 0), a.beta = ring2_new(GDN_F32, 0, 2, N, 4, 0, 0);
    a.A_log = ring2_new(GDN_F32, 0, 1, 4, 0, 0, 0);
    a.dt_bias = ring2_new(GDN_F32, 0, 1, 4, 0, 0, 0);
    a.state = ring2_new(GDN_F32, 0, 4, n, 4, V, K);
    a.dstate_out = ring2_new(GDN_F32, 0, 4, n, 4, V, K);
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) ring2_fill(given[i], -1, 1);
    a.gate = GDN_GATE_RAW, a.beta_kind = GDN_BETA_SIGMOID, a.norm = GDN_NORM_L2;
    return a;
}

/* Fresh gradients, of numbers that mean nothing. */
static void new_gradients(gdn_prefill_backward_args *a)
{
    a->dq = ring2_clone(&a->q), a->dk = ring2_clone(&a->k), a->dv = ring2_clone(&a->v);
    a->dg = ring2_clone(&a->g), a->dbeta = ring2_clone(&a->beta);
    a->dA_log = ring2_clone(&a->A_log), a->ddt_bias = ring2_clone(&a->dt_bias);
    a->dstate = ring2_clone(&a->dstate_out);
    for (int i = 0; i < N_GRADIENTS; i++)
        if (ring2_gradient(a, i)->data) ring2_fill_value(ring2_gradient(a, i), 7);
}

static void run(gdn_ctx *ctx, gdn_prefill_backward_args *a)
{
    ring2_status(ctx, "gdn_prefill_backward", gdn_prefill_backward(ctx, a), GDN_OK);
}

static void expect_bits(const char *what, const gdn_prefill_backward_args *got,
                        const gdn_prefill_backward_args *want)
{
    for (int i = 0; i < N_GRADIENTS; i++)
        if (ring2_gradient(want, i)->data)
            ring2_expect_bits(what, ring2_gradient(got, i), ring2_gradient(want, i));
}

/* ---- The model ----------------------------------------------------------------------------- */

static double model_loss(const gdn_prefill_backward_args *a)
{
    gdn_rule_args     f = gdn_rule_args_init();
    struct ring2_rule m;
    double            sum = 0;
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
    const double         h = 0x1p-12;
    for (int round = 0; round < 4; round++) {
        gdn_prefill_backward_args a = make_call(2, T, 3, 2);
        struct ring2_gradients    m;
        gdn_tensor *const inputs[N_GRADIENTS] = { &a.q, &a.k, &a.v, &a.g, &a.beta, &a.A_log,
                                                  &a.dt_bias, &a.state };
        a.norm = round, a.head_map = round % 2, a.norm_eps = 0.25;
        a.beta_kind        = round == 1 ? GDN_BETA_TWICE_SIGMOID : GDN_BETA_SIGMOID;
        a.gate             = round < 2 ? GDN_GATE_RAW : round == 2 ? GDN_GATE_LINEAR : GDN_GATE_LOG;
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

static const int64_t three[] = { 37, 300, 5 };

/* ---- Guarantees ---------------------------------------------------------------------------- */

/* Tokens [first, first + n) as one sequence, with the states of row b. */
static gdn_prefill_backward_args slice(const gdn_prefill_backward_args *args, int64_t b,
                                       int64_t first, int64_t n)
{
    gdn_prefill_backward_args a = *args;
    gdn_tensor *const rows_of[] = { &a.q, &a.k, &a.v, &a.g, &a.beta, &a.dout };
    for (int i = 0; i < 6; i++) *rows_of[i] = ring2_narrow(rows_of[i], 0, first, n);
    a.state = ring2_narrow(&a.state, 0, b, 1), a.dstate_out = ring2_narrow(&a.dstate_out, 0, b, 1);
    a.batch = NULL;
    return a;
}

static void expect_rows(const gdn_prefill_backward_args *part, const gdn_prefill_backward_args *all,
                        int64_t first, int64_t n)
{
    for (int i = DQ; i <= DBETA; i++) {
        const gdn_tensor want = ring2_narrow(ring2_gradient(all, i), 0, first, n);
        ring2_expect_bits(ring2_gradient_names[i], ring2_gradient(part, i), &want);
    }
}

/* The same, with 256 units of the largest. */
static void expect_near(const gdn_prefill_backward_args *part, const gdn_prefill_backward_args *all,
                        int64_t first, int64_t n)
{
    for (int i = DQ; i <= DBETA; i++) {
        const gdn_tensor t = ring2_narrow(ring2_gradient(all, i), 0, first, n);
        const int64_t    count = ring2_count(&t);
        double *want = ring2_heap((size_t)count * sizeof *want), most = 0;
        double *limit = ring2_heap((size_t)count * sizeof *limit);
        for (int64_t j = 0; j < count; j++) {
            want[j] = ring2_get(&t, j);
            most    = fmax(most, fabs(want[j]));
        }
        for (int64_t j = 0; j < count; j++) limit[j] = 256 * 0x1p-24 * most;
        ring2_compare(ring2_gradient_names[i], ring2_gradient(part, i), want, limit, NULL, NULL);
    }
}

/* A segment's gradients follow from the state before it and the gradient of that after it: a
 * sequence in two calls, cut at a multiple of 64, has the bits of one. On a device gdn_prefill
 * gives that state in other bits. */
static void split_sequence(void)
{
    static const int64_t      T = 300, cut = 192;
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
    size_t                    bytes;
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
        const size_t  few = bytes_of(40, K, V), some = bytes_of(300, K, V);
        const size_t  many = bytes_of(2048, K, V), large = bytes_of(300, K + 56, V + 56);
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

/* ---- Checkpoints of the forward call --------------------------------------------------------- */

/* Returns the call with the states that gdn_prefill() saves after each `every` tokens. */
static gdn_prefill_backward_args with_states(const gdn_prefill_backward_args *call, int64_t every)
{
    gdn_prefill_backward_args a = *call;
    gdn_batch                *t = ring2_heap(sizeof *t), forward;
    gdn_rule_args             f = gdn_rule_args_init();
    const int64_t             V = a.v.size[a.v.ndim - 1], K = a.q.size[a.q.ndim - 1];
    const int64_t             N = ring2_count(&a.dout) / a.dout.size[a.dout.ndim - 2] / V;
    *t       = a.batch ? *a.batch : gdn_batch_init();
    a.batch  = t, t->checkpoint_every = every;
    forward  = *t, forward.write = GDN_WRITE_NONE;
    f.q = a.q, f.k = a.k, f.v = a.v, f.g = a.g, f.beta = a.beta;
    f.A_log = a.A_log, f.dt_bias = a.dt_bias, f.state = a.state;
    f.out = ring2_clone(&a.dout), f.batch = &forward;
    f.gate = a.gate, f.beta_kind = a.beta_kind, f.head_map = a.head_map, f.norm = a.norm;
    f.norm_eps = a.norm_eps;
    a.checkpoints = ring2_new(GDN_F32, 0, 4, N / every, a.dout.size[a.dout.ndim - 2], V, K);
    f.checkpoints = a.checkpoints;
    ring2_status(ring2_ctx(1), "gdn_prefill", gdn_prefill(ring2_ctx(1), &f), GDN_OK);
    return a;
}

static bool has_nan(const gdn_tensor *t)
{
    for (int64_t i = 0; i < ring2_count(t); i++)
        if (isnan(ring2_get(t, i))) return true;
    return false;
}

/* Checks that a call reads its checkpoints: a NaN there reaches dq. */
static void expect_read(const gdn_prefill_backward_args *call)
{
    gdn_prefill_backward_args a = *call;
    a.checkpoints = ring2_clone(&call->checkpoints), a.dq = ring2_clone(&call->dq);
    ring2_fill_value(&a.checkpoints, NAN);
    run(ring2_ctx(1), &a);
    CHECK(has_nan(&a.dq), "checkpoints were not read");
}

/* Segments of a CPU have 432 tokens here, windows of a device 512, of which checkpoints leave 384.
 * States that are given, or computed again, differ by rounding. */
static void saved_states(void)
{
    static const int64_t      on_cpu[] = { 37, 450, 5 }, on_device[] = { 900 };
    const bool                device = ring2_on_device();
    gdn_prefill_backward_args a = device ? make_call(1, on_device, 16, 24)
                                         : make_call(3, on_cpu, 256, 512), b;
    new_gradients(&a);
    run(ring2_ctx(1), &a);
    for (int64_t every = 192; every <= 3072; every *= 16) { /* the last is too far apart */
        b = with_states(&a, every);
        new_gradients(&b);
        run(ring2_ctx(2), &b);
        expect_near(&b, &a, 0, a.q.size[0]);
        if (every <= 384) expect_read(&b);
    }
    if (device) {
        b.flags = GDN_BATCH_INVARIANT; /* which reads none */
        run(ring2_ctx(1), &b);
        expect_bits("invariant", &b, &a);
        return;
    }
    b = with_states(&a, 192);
    new_gradients(&b);
    run(ring2_ctx(2), &b);
    gdn_prefill_backward_args alone = slice(&a, 1, 37, 450);
    alone = with_states(&alone, 192);
    new_gradients(&alone);
    run(ring2_ctx(1), &alone);
    expect_rows(&alone, &b, 37, 450);
}

/* Long enough for three windows on a device, against the oracle. */
static void long_sequence(void)
{
    static const int64_t T[][2] = { { 700, 3 }, { 1100, 40 } };
    for (int i = 0; i < 2; i++) {
        gdn_prefill_backward_args a = make_call(2, T[i], 16, 24);
        new_gradients(&a);
        ring2_gradients_check(ring2_ctx(1), &a);
    }
}

/* Every gradient where heads have more values than keys may have. */
static void wide_values(void)
{
    static const int64_t T[] = { 70, 3 }, sizes[] = { 257, 512, 1000, 1024 };
    for (int i = 0; i < 4; i++) {
        gdn_prefill_backward_args a = make_call(2, T, 20, sizes[i]);
        new_gradients(&a);
        ring2_gradients_check(ring2_ctx(2), &a);
    }
}

/* A NaN in dout of one token reaches no later chunk, no other sequence, and nothing before a gate
 * of -inf. */
static void nan_stays(void)
{
    static const int64_t      T[] = { 40, 40 };
    gdn_prefill_backward_args a = make_call(2, T, 16, 24), b = a;
    a.gate = b.gate = GDN_GATE_LOG;
    a.A_log.data = a.dt_bias.data = b.A_log.data = b.dt_bias.data = NULL;
    ring2_fill(&a.g, -0.1, 0);
    for (int h = 0; h < 4; h++) ring2_set(&a.g, 18 * 4 + h, -INFINITY);
    new_gradients(&a);
    run(ring2_ctx(1), &a);
    b.dout = ring2_clone(&a.dout);
    ring2_set(&b.dout, (25 * 4 + 1) * 24 + 3, NAN);
    new_gradients(&b);
    run(ring2_ctx(1), &b);
    for (int i = DQ; i <= DBETA; i++) {
        const gdn_tensor *all = ring2_gradient(&b, i), *clean = ring2_gradient(&a, i);
        const gdn_tensor  reached = ring2_narrow(all, 0, 18, 8);
        bool              any = false;
        for (int64_t j = 0; j < ring2_count(&reached); j++) any |= isnan(ring2_get(&reached, j));
        CHECK(any, "%s: no NaN", ring2_gradient_names[i]);
        for (int side = 0; side < 2; side++) {
            const gdn_tensor got  = ring2_narrow(all, 0, side ? 32 : 0, side ? 48 : 18);
            const gdn_tensor want = ring2_narrow(clean, 0, side ? 32 : 0, side ? 48 : 18);
            ring2_expect_bits(ring2_gradient_names[i], &got, &want);
        }
    }
    ring2_expect_bits("dstate", &b.dstate, &a.dstate);
}

/* G7, G11: a state of NaN behind a gate of -inf, and tokens of NaN that do not count. */
static void nan_is_skipped(void)
{
    static const int64_t      T[] = { 40 };
    gdn_prefill_backward_args a = make_call(1, T, 16, 24);
    gdn_batch                *t = ring2_heap(sizeof *t);
    *t             = *a.batch;
    t->token_start = ring2_indices(GDN_I32, 1, (int64_t[]){ 3 });
    t->token_count = ring2_indices(GDN_I32, 1, (int64_t[]){ 30 });
    a.batch        = t;
    a.gate         = GDN_GATE_LOG;
    a.A_log.data = a.dt_bias.data = NULL;
    ring2_fill(&a.g, -0.1, 0);
    for (int h = 0; h < 4; h++) ring2_set(&a.g, 3 * 4 + h, -INFINITY);
    ring2_fill_value(&a.state, NAN);
    gdn_tensor *const rows_of[] = { &a.q, &a.k, &a.v, &a.g, &a.beta, &a.dout };
    for (int i = 0; i < 6; i++) {
        const gdn_tensor before = ring2_narrow(rows_of[i], 0, 0, 3);
        const gdn_tensor after  = ring2_narrow(rows_of[i], 0, 33, 7);
        ring2_fill_value(&before, NAN);
        ring2_fill_value(&after, NAN);
    }
    new_gradients(&a);
    run(ring2_ctx(1), &a);
    for (int i = 0; i < N_GRADIENTS; i++) {
        const gdn_tensor *got = ring2_gradient(&a, i);
        for (int64_t j = 0; got->data && j < ring2_count(got); j++)
            CHECK(isfinite(ring2_get(got, j)), "%s: %g", ring2_gradient_names[i],
                  ring2_get(got, j));
    }
}

/* ---- Tensor cores -------------------------------------------------------------------------- */

/* The calls in 16 bits that tensor cores take. */
enum { MOST_ROWS = 72, EMPTY = -1 };
struct wide_call {
    const char *name;
    int64_t     T[MOST_ROWS];
    int         Hk, H, gate, norm, map, beta;
    double      strength; /* of log gates: from -strength to 0; below 0: some forget */
    bool        states, adds, f32; /* f32: gradients */
    int         K, V, dtype;
};

static gdn_prefill_backward_args make_wide(const struct wide_call *w)
{
    gdn_prefill_backward_args a = gdn_prefill_backward_args_init();
    gdn_batch                *t = ring2_heap(sizeof *t);
    int64_t                   cu[MOST_ROWS + 1] = { 0 }, n = 0;
    for (; n < MOST_ROWS && w->T[n]; n++) cu[n + 1] = cu[n] + (w->T[n] == EMPTY ? 0 : w->T[n]);
    const int64_t N = cu[n], H = w->H, K = w->K, V = w->V;
    const int32_t A = w->dtype, out = w->f32 ? GDN_F32 : A;
    *t = gdn_batch_init(), t->cu_seqlens = ring2_indices(GDN_I32, n + 1, cu), a.batch = t;
    a.q = ring2_new(A, 0, 3, N, w->Hk, K, 0), a.dq = ring2_new(out, 0, 3, N, w->Hk, K, 0);
    a.k = ring2_new(A, 0, 3, N, w->Hk, K, 0), a.dk = ring2_new(out, 0, 3, N, w->Hk, K, 0);
    a.v = ring2_new(A, 0, 3, N, H, V, 0), a.dv = ring2_new(out, 0, 3, N, H, V, 0);
    a.dout = ring2_new(A, 0, 3, N, H, V, 0);
    a.g = ring2_new(GDN_F32, 0, 2, N, H, 0, 0), a.dg = ring2_new(GDN_F32, 0, 2, N, H, 0, 0);
    a.beta = ring2_new(GDN_F32, 0, 2, N, H, 0, 0), a.dbeta = ring2_clone(&a.dg);
    a.dstate = ring2_new(GDN_F32, 0, 4, n, H, V, K);
    if (w->states) {
        a.state = ring2_clone(&a.dstate), a.dstate_out = ring2_clone(&a.dstate);
        ring2_fill(&a.state, -1, 1);
        ring2_fill(&a.dstate_out, -1, 1);
    }
    fill_keys(&a.q, !oracle_normalises(w->norm), false);
    fill_keys(&a.k, !oracle_normalises(w->norm), false);
    ring2_fill(&a.v, -1, 1);
    ring2_fill(&a.dout, -1, 1);
    a.gate = w->gate, a.norm = w->norm, a.head_map = w->map, a.beta_kind = w->beta;
    if (w->gate == GDN_GATE_RAW) {
        a.A_log = ring2_new(GDN_F32, 0, 1, H, 0, 0, 0), a.dA_log = ring2_clone(&a.A_log);
        a.dt_bias = ring2_new(GDN_F32, 0, 1, H, 0, 0, 0), a.ddt_bias = ring2_clone(&a.dt_bias);
        ring2_fill(&a.A_log, -1, 1);
        ring2_fill(&a.dt_bias, -1, 1);
        ring2_fill(&a.g, -4, 1);
    } else {
        ring2_fill(&a.g, -fabs(w->strength), 0);
    }
    for (int64_t i = 0; w->strength < 0 && i < ring2_count(&a.g); i++)
        if (ring2_below(20) == 0) ring2_set(&a.g, i, -INFINITY);
    if (!oracle_squashes(w->beta))
        for (int64_t i = 0; i < ring2_count(&a.beta); i++)
            ring2_set(&a.beta, i, ring2_below(8) ? ring2_uniform(0, 1) : 0);
    else
        ring2_fill(&a.beta, -3, 3);
    if (w->adds) a.flags = GDN_ACCUMULATE;
    for (int i = 0; i < N_GRADIENTS; i++)
        if (ring2_gradient(&a, i)->data) ring2_fill(ring2_gradient(&a, i), -1, 1);
    return a;
}

enum { RAW_G = GDN_GATE_RAW, LOG_G = GDN_GATE_LOG, L2 = GDN_NORM_L2 };
enum { B16 = GDN_BF16, H16 = GDN_F16 };
static const struct wide_call wide_calls[] = {
    { "one chunk", { 64 }, 1, 1, LOG_G, 0, 0, 0, 0.1, false, false, true, 128, 128, B16 },
    { "raw", { 200, 3, 64 }, 2, 4, RAW_G, L2, 0, GDN_BETA_SIGMOID, 0, true, false, false, 128, 128,
      B16 },
    { "strong", { 130 }, 1, 3, LOG_G, GDN_NORM_L2_MAX, 1, 0, 8, true, true, true, 128, 128, B16 },
    { "some forget", { 150, 70 }, 1, 2, LOG_G, GDN_NORM_L2_ADD, 0, GDN_BETA_TWICE_SIGMOID, -1, true,
      false, true, 128, 128, B16 },
    { "model", { 1, 127 }, 2, 2, LOG_G, L2, 0, 0, 1.6, true, true, false, 128, 128, B16 },
    { "full device", { 70, 3, 64, 5 }, 6, 12, LOG_G, L2, 0, GDN_BETA_SIGMOID, 0.5, true, false,
      true, 128, 128, B16 },
    { "K64 V64", { 130, 1, 64 }, 2, 4, RAW_G, L2, 1, GDN_BETA_SIGMOID, 0, true, true, false, 64, 64,
      B16 },
    { "K72 V24", { 100, 29 }, 1, 2, LOG_G, GDN_NORM_L2_ADD, 0, 0, -1, true, false, true, 72, 24,
      B16 },
    { "six readers of a key", { 70, 5 }, 1, 6, RAW_G, L2, 0, 0, 0, false, false, false, 64, 64,
      B16 },
    { "K8 V128", { 77 }, 1, 1, LOG_G, 0, 0, 0, 0.1, true, true, false, 8, 128, B16 },
    { "K40 V104, full device", { 70, 64, 25 }, 6, 12, LOG_G, L2, 0, 0, 0.5, true, false, false, 40,
      104, B16 },
    { "raw", { 200, 3, 64 }, 2, 4, RAW_G, L2, 0, GDN_BETA_SIGMOID, 0, true, false, false, 128, 128,
      H16 },
    { "some forget", { 150, 70 }, 1, 2, LOG_G, GDN_NORM_L2_ADD, 0, GDN_BETA_TWICE_SIGMOID, -1, true,
      false, true, 128, 128, H16 },
    { "strong", { 130 }, 1, 3, LOG_G, GDN_NORM_L2_MAX, 1, 0, 8, true, true, true, 64, 64, H16 },
    { "full device", { 70, 33, 64 }, 6, 12, LOG_G, 0, 0, 0, 0.5, true, true, false, 96, 120,
      H16 },
    { "K256 V256", { 130, EMPTY, 1, 64 }, 1, 2, RAW_G, L2, 0, GDN_BETA_SIGMOID, 0, true, false,
      false, 256, 256, B16 },
    { "K128 V256", { 100, 29, EMPTY }, 2, 4, LOG_G, L2, 1, 0, 0.5, true, true, true, 128, 256,
      B16 },
    { "K192 V128, some forget", { 70, 64 }, 1, 2, LOG_G, GDN_NORM_L2_ADD, 0,
      GDN_BETA_TWICE_SIGMOID, -1, true, false, true, 192, 128, B16 },
    { "K256 V512", { 66 }, 1, 1, LOG_G, 0, 0, 0, 0.1, true, true, true, 256, 512, B16 },
    { "K64 V328, some forget", { 70, 5 }, 1, 1, LOG_G, L2, 0, 0, -1, true, false, true, 64, 328,
      B16 },
    { "K136 V40, strong", { 130 }, 1, 3, LOG_G, GDN_NORM_L2_MAX, 1, 0, 8, true, true, true, 136, 40,
      H16 },
    { "K256 V192", { EMPTY, 70, 33, EMPTY }, 2, 2, LOG_G, L2, 0, 0, -0.5, true, false, false, 256,
      192, H16 },
    { "K72 V256, full device", { 70, 33 }, 6, 24, LOG_G, L2, 0, 0, 0.5, true, false, false, 72, 256,
      H16 },
};

/* As nan_stays() and nan_is_skipped(), where sums over tokens take all of a chunk: token 18
 * forgets; a token behind it, and then the state before, have NaN. */
static void expect_nan(int dtype, int D)
{
    const struct wide_call w = { "", { 40, 40 }, 2, 4, LOG_G, 0, 0, 0, 0.1, true, false, true, D, D,
                                 dtype };
    gdn_prefill_backward_args a = make_wide(&w), b;
    for (int h = 0; h < 4; h++) ring2_set(&a.g, 18 * 4 + h, -INFINITY);
    b = a;
    for (int i = 0; i < N_GRADIENTS; i++)
        if (ring2_gradient(&a, i)->data)
            *(gdn_tensor *)ring2_gradient(&b, i) = ring2_clone(ring2_gradient(&a, i));
    run(ring2_ctx(1), &a);
    b.dout = ring2_clone(&a.dout);
    ring2_set(&b.dout, (25 * 4 + 1) * D + D - 3, NAN);
    run(ring2_ctx(1), &b);
    for (int i = DQ; i <= DBETA; i++) {
        const gdn_tensor *all = ring2_gradient(&b, i), *clean = ring2_gradient(&a, i);
        const gdn_tensor  reached = ring2_narrow(all, 0, 25, 1);
        bool              any = false;
        for (int64_t j = 0; j < ring2_count(&reached); j++) any |= isnan(ring2_get(&reached, j));
        CHECK(any, "%s: no NaN", ring2_gradient_names[i]);
        for (int side = 0; side < 2; side++) {
            const gdn_tensor got  = ring2_narrow(all, 0, side ? 40 : 0, side ? 40 : 18);
            const gdn_tensor want = ring2_narrow(clean, 0, side ? 40 : 0, side ? 40 : 18);
            ring2_expect_bits(ring2_gradient_names[i], &got, &want);
        }
    }
    ring2_expect_bits("dstate", &b.dstate, &a.dstate);

    ring2_fill_value(&a.state, NAN);
    run(ring2_ctx(1), &a);
    for (int i = DQ; i <= DBETA; i++) {
        const gdn_tensor behind = ring2_narrow(ring2_gradient(&a, i), 0, 18, 22);
        for (int64_t j = 0; j < ring2_count(&behind); j++)
            CHECK(isfinite(ring2_get(&behind, j)), "%s: %g", ring2_gradient_names[i],
                  ring2_get(&behind, j));
    }
}

static void wide_nan(void)
{
    for (int D = 128; D <= 256; D *= 2) {
        expect_nan(GDN_BF16, D);
        expect_nan(GDN_F16, D);
    }
}

/* ---- Windows through a batch ----------------------------------------------------------------- */

/* A call, its gradients fresh, with so many chunks of a window. */
static gdn_prefill_backward_args run_windows(const gdn_prefill_backward_args *call, int64_t chunks)
{
    gdn_prefill_backward_args a = *call;
    for (int i = 0; i < N_GRADIENTS; i++) {
        gdn_tensor *t = (gdn_tensor *)ring2_gradient(&a, i);
        if (!t->data) continue;
        *t = ring2_clone(t);
        ring2_fill_value(t, 7);
    }
    ring2_windows(chunks);
    run(ring2_ctx(1), &a);
    const bool through = strstr(gdn_last_kernel(ring2_ctx(1)), "backward_plan") != NULL;
    CHECK(through == (chunks < 0), "%d chunks: %s", (int)chunks, gdn_last_kernel(ring2_ctx(1)));
    ring2_windows(0);
    return a;
}

/* Long, short and empty sequences, more than a window has chunks. Windows change no bit of what is
 * computed with GDN_BATCH_INVARIANT. Else states before them come from gdn_prefill's kernels. */
static void windows_through(void)
{
    static const struct wide_call w = { "", { 3, 300, EMPTY, 64, 1, 1, 130, 2, 65, 192, 1, EMPTY },
                                        1, 2, RAW_G, L2, 0, GDN_BETA_SIGMOID, 0, true, false, false,
                                        64, 72, B16 };
    static const int64_t starts[] = { 1, 0, 0, 64, 0, 1, 70, 0, 0, 3, 0, 0 };
    static const int64_t counts[] = { 2, 300, 0, 0, 1, 0, 60, 1, 64, 189, 1, 0 };
    static const int64_t chunks[] = { -1, -2, -5, 1 };
    if (!ring2_windows(0)) {
        ring2_skip("on a device");
        return;
    }
    for (int masked = 0; masked < 2; masked++) {
        gdn_prefill_backward_args a = make_wide(&w), alone;
        gdn_batch                *t = ring2_heap(sizeof *t);
        *t = *a.batch, a.batch = t;
        if (masked) {
            t->token_start = ring2_indices(GDN_I32, 12, starts);
            t->token_count = ring2_indices(GDN_I64, 12, counts);
        }
        ring2_windows(masked ? -3 : -1);
        ring2_give_workspace(ring2_ctx(1), GDN_OP_PREFILL_BACKWARD, &a);
        ring2_gradients_check(ring2_ctx(1), &a);
        a.workspace = NULL, a.workspace_bytes = 0;
        a.flags = GDN_BATCH_INVARIANT | GDN_NO_EARLY_STOP;
        const gdn_prefill_backward_args want = run_windows(&a, 0);
        alone                                = a;
        alone.dq = alone.dk = alone.dv = alone.dg = alone.dbeta = (gdn_tensor){ 0 };
        alone.dA_log = alone.ddt_bias = (gdn_tensor){ 0 };
        for (int i = 0; i < 4; i++) {
            gdn_prefill_backward_args got = run_windows(&a, chunks[i]);
            got.dA_log = want.dA_log, got.ddt_bias = want.ddt_bias; /* sums over the batch */
            expect_bits("windows", &got, &want);
        }
        const gdn_prefill_backward_args got = run_windows(&alone, masked ? -1 : -4);
        ring2_expect_bits("dstate alone", &got.dstate, &want.dstate);
    }
}

/* More sequences than a warp has threads, one of them longer than a window. */
static void windows_of_many(void)
{
    struct wide_call w = { "", { 0 }, 1, 2, RAW_G, L2, 0, GDN_BETA_SIGMOID, 0, true, false, false,
                           64, 40, B16 };
    if (!ring2_windows(0)) {
        ring2_skip("on a device");
        return;
    }
    for (int i = 0; i < 70; i++) w.T[i] = ring2_below(6) ? 1 + (int64_t)ring2_below(90) : EMPTY;
    w.T[50] = 700;
    const gdn_prefill_backward_args a = make_wide(&w);
    for (int n = 2; n <= 50; n *= 5) {
        ring2_windows(-n);
        ring2_gradients_check(ring2_ctx(1), &a);
    }
    ring2_windows(0);
}

/* Makes [B][T].. of a tensor [B x T].. */
static gdn_tensor in_rows(gdn_tensor t, int64_t B)
{
    for (int i = t.ndim++; i > 0; i--) t.size[i] = t.size[i - 1], t.stride[i] = t.stride[i - 1];
    t.size[1] /= B;
    t.size[0]   = B;
    t.stride[0] = t.size[1] * t.stride[1];
    return t;
}

/* Returns the bytes that a call needs with so many chunks of a window. */
static size_t bytes_with(const gdn_prefill_backward_args *a, int64_t chunks)
{
    size_t bytes = 0;
    ring2_windows(chunks);
    ring2_status(ring2_ctx(1), "bytes",
                 gdn_workspace_bytes(ring2_ctx(1), GDN_OP_PREFILL_BACKWARD, a, &bytes), GDN_OK);
    return bytes;
}

/* Padded batches in windows of whole sequences, the last of which has one: the same bits as in one
 * window, with less memory. */
static void windows_of_rows(void)
{
    enum { B = 5, CHUNKS = 3 };
    static const struct wide_call calls[] = {
        { "", { 130, 130, 130, 130, 130 }, 1, 2, RAW_G, L2, 0, GDN_BETA_SIGMOID, 0, true, false,
          false, 64, 72, B16 },
        { "", { 130, 130, 130, 130, 130 }, 1, 2, LOG_G, L2, 0, 0, -1, true, true, true, 256, 136,
          H16 },
    };
    static const int64_t starts[] = { 1, 0, 0, 64, 0 }, counts[] = { 2, 130, 0, 60, 129 };
    if (!ring2_windows(0)) {
        ring2_skip("on a device");
        return;
    }
    for (int i = 0; i < 4; i++) {
        gdn_prefill_backward_args a = make_wide(&calls[i / 2]), alone;
        gdn_batch                *t = ring2_heap(sizeof *t);
        if (!ring2_gradients_on_tiles(&a)) continue;
        gdn_tensor *const rows[] = { &a.q, &a.k, &a.v, &a.g, &a.beta, &a.dout, &a.dq, &a.dk, &a.dv,
                                     &a.dg, &a.dbeta };
        for (int j = 0; j < 11; j++) *rows[j] = in_rows(*rows[j], B);
        *t = gdn_batch_init(), a.batch = t;
        if (i % 2) {
            t->token_start = ring2_indices(GDN_I32, B, starts);
            t->token_count = ring2_indices(GDN_I64, B, counts);
        }
        CHECK(bytes_with(&a, -2 * CHUNKS) < bytes_with(&a, -B * CHUNKS),
              "windows have all sequences");
        ring2_windows(-2 * CHUNKS);
        ring2_give_workspace(ring2_ctx(1), GDN_OP_PREFILL_BACKWARD, &a);
        ring2_gradients_check(ring2_ctx(1), &a);
        a.workspace = NULL, a.workspace_bytes = 0;
        const gdn_prefill_backward_args want = run_windows(&a, 0);
        gdn_prefill_backward_args got = run_windows(&a, -CHUNKS * (i + 1));
        got.dA_log = want.dA_log, got.ddt_bias = want.ddt_bias; /* sums over the batch */
        expect_bits("windows", &got, &want);
        alone = a;
        alone.flags |= GDN_BATCH_INVARIANT | GDN_NO_EARLY_STOP;
        alone.dq = alone.dk = alone.dv = alone.dg = alone.dbeta = (gdn_tensor){ 0 };
        alone.dA_log = alone.ddt_bias = (gdn_tensor){ 0 };
        got = run_windows(&alone, -CHUNKS);
        ring2_expect_bits("dstate alone", &got.dstate, &want.dstate);
    }
}

/* Windows of each sequence, and through the batch, begin at checkpoints. */
static void windows_at_checkpoints(void)
{
    enum { B = 3 };
    static const struct wide_call calls[] = {
        { "", { 210, 210, 210 }, 1, 2, LOG_G, L2, 0, GDN_BETA_SIGMOID, 0.5, true, false, false, 64,
          72, B16 },
        { "", { 193, 193, 193 }, 1, 1, LOG_G, GDN_NORM_L2_ADD, 0, 0, -1, true, true, true, 256, 136,
          H16 },
    };
    static const int64_t starts[] = { 1, 0, 7 }, counts[] = { 129, 193, 0 };
    if (!ring2_windows(0)) {
        ring2_skip("on a device");
        return;
    }
    for (int i = 0; i < 6; i++) {
        gdn_prefill_backward_args a = make_wide(&calls[i / 3]);
        gdn_batch                *t = ring2_heap(sizeof *t);
        if (!ring2_gradients_on_tiles(&a)) continue;
        gdn_tensor *const rows[] = { &a.q, &a.k, &a.v, &a.g, &a.beta, &a.dout, &a.dq, &a.dk, &a.dv,
                                     &a.dg, &a.dbeta };
        *t = i % 3 ? gdn_batch_init() : *a.batch, a.batch = t;
        for (int j = 0; j < 11 && i % 3; j++) *rows[j] = in_rows(*rows[j], B);
        if (i % 3 == 2) {
            t->token_start = ring2_indices(GDN_I32, B, starts);
            t->token_count = ring2_indices(GDN_I64, B, counts);
        }
        a = with_states(&a, 64);
        ring2_windows(i % 3 ? 2 : -3);
        ring2_give_workspace(ring2_ctx(1), GDN_OP_PREFILL_BACKWARD, &a);
        ring2_gradients_check(ring2_ctx(1), &a);
        a.workspace = NULL, a.workspace_bytes = 0;
        expect_read(&a);
        a.checkpoints.size[0] = 1; /* a state that is not there is zero */
        run(ring2_ctx(1), &a);
        ring2_windows(0);
    }
    static const struct wide_call alone = { "", { 330 }, 1, 2, LOG_G, L2, 0, 0, 0.5, true, false,
                                            false, 64, 72, B16 };
    const gdn_prefill_backward_args a = make_wide(&alone);
    for (int64_t every = 64; every <= 4096; every *= 64) { /* the last is too far apart */
        const gdn_prefill_backward_args b = with_states(&a, every);
        ring2_windows(-4);
        ring2_gradients_check(ring2_ctx(1), &b);
        ring2_windows(0);
    }
}

/* A batch of many sequences needs about as much memory as one sequence of as many tokens. */
static void memory_of_windows(void)
{
    enum { B = 29, N = 131072, Hk = 16, H = 32, D = 128 };
    gdn_prefill_backward_args a = gdn_prefill_backward_args_init();
    gdn_batch                 t = gdn_batch_init();
    size_t                    one, many;
    int64_t                   cu[B + 1] = { 0 };
    if (!ring2_windows(0)) {
        ring2_skip("on a device");
        return;
    }
    for (int i = 1; i <= B; i++) cu[i] = (int64_t)N * i / B;
    gdn_tensor *const all[] = { &a.q, &a.k, &a.dq, &a.dk, &a.v, &a.dv, &a.dout,
                                &a.g, &a.beta, &a.dg, &a.dbeta };
    for (int i = 0; i < 11; i++) { /* nothing is read */
        void *const data = (void *)((uintptr_t)(i + 1) << 36);
        *all[i] = i < 7 ? gdn_dense(data, GDN_BF16, 3, N, i < 4 ? Hk : H, D, 0)
                        : gdn_dense(data, GDN_F32, 2, N, H, 0, 0);
    }
    ring2_status(ring2_ctx(1), "bytes of one",
                 gdn_workspace_bytes(ring2_ctx(1), GDN_OP_PREFILL_BACKWARD, &a, &one), GDN_OK);
    t.cu_seqlens = ring2_indices(GDN_I32, B + 1, cu), a.batch = &t;
    ring2_status(ring2_ctx(1), "bytes of many",
                 gdn_workspace_bytes(ring2_ctx(1), GDN_OP_PREFILL_BACKWARD, &a, &many), GDN_OK);
    CHECK(many <= one + one / 4, "%zu bytes of many, %zu of one", many, one);
}

static void multiply(const gdn_tensor *t, double by)
{
    for (int64_t i = 0; i < ring2_count(t); i++) ring2_set(t, i, by * ring2_get(t, i));
}

/* f16 has no room for large values over the length of tiny keys, nor for much less than dout. */
static void f16_ranges(void)
{
    static const struct wide_call w = { "", { 150, 70 }, 1, 2, LOG_G, L2, 0, 0, 0.1, false, false,
                                        true, 128, 64, H16 };
    gdn_prefill_backward_args a = make_wide(&w);
    multiply(&a.k, 0x1p-11), multiply(&a.q, 0x1p9);
    multiply(&a.v, 0x1p6), multiply(&a.dout, 0x1p-6);
    ring2_gradients_check(ring2_ctx(1), &a);
    multiply(&a.q, 0x1p-20), multiply(&a.v, 0x1p-12), multiply(&a.dout, 0x1p14);
    a.scale = 0x1p-5f;
    ring2_gradients_check(ring2_ctx(1), &a);
}

/* Whole; and in windows, before which states are those of gdn_prefill's kernels, or of the walk.
 * Every other call has windows through the batch, or of each sequence. */
static void run_wide_calls(void)
{
    static const struct {
        const char *name;
        int64_t     chunks;
        uint32_t    flags;
    } cuts[] = { { "", 0, 0 },
                 { ", windows", 1, 0 },
                 { ", windows through, of the walk", -2, GDN_BATCH_INVARIANT },
                 { "", 0, 0 },
                 { ", windows through", -1, 0 },
                 { ", windows of the walk", 2, GDN_BATCH_INVARIANT } };
    const int n_cuts = ring2_windows(0) ? 3 : 1, n = sizeof wide_calls / sizeof *wide_calls;
    for (int i = 0; i < n * n_cuts; i++) {
        const struct wide_call *w = &wide_calls[i / n_cuts];
        const int               how = i % n_cuts + i / n_cuts % 2 * 3;
        if (!ring2_begin("tensor cores: %s %s%s", w->dtype == B16 ? "bf16" : "f16", w->name,
                         cuts[how].name))
            continue;
        gdn_prefill_backward_args a = make_wide(w);
        a.flags |= cuts[how].flags;
        ring2_windows(cuts[how].chunks);
        ring2_gradients_check(ring2_ctx(1), &a);
        const char *ran = gdn_last_kernel(ring2_ctx(1));
        CHECK(!ring2_gradients_on_tiles(&a) || strstr(ran, "backward_mma_heads") ||
                  strstr(ran, "backward_portable_heads"),
              "%s", ran);
        ring2_windows(0);
        ring2_end();
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "finite differences", finite_differences },
        { "differences of the model", model_differences },
        { "workspace", workspace },
        { "linear in dout", linear_in_dout },
        { "split sequence", split_sequence },
        { "checkpoints", saved_states },
        { "long sequence", long_sequence },
        { "wide values", wide_values },
        { "NaN stays with what it reaches", nan_stays },
        { "NaN of what does not count", nan_is_skipped },
        { "tensor cores: NaN", wide_nan },
        { "tensor cores: ranges of f16", f16_ranges },
        { "tensor cores: windows through a batch", windows_through },
        { "tensor cores: windows through many", windows_of_many },
        { "tensor cores: windows of whole sequences", windows_of_rows },
        { "tensor cores: windows at checkpoints", windows_at_checkpoints },
        { "tensor cores: memory of windows", memory_of_windows },
    };
    static int           cases[300][RING2_MAX_FACTORS];
    struct ring2_factors f = { N_FACTORS, levels, allowed };
    const int            few = (ring2_options(argc, argv), ring2_pairs(&f, cases, 300));
    const int            n = ring2_pairs_again(&f, cases, few, 300, DIMS, N_DIMS, N_ALL_DIMS);
    for (int i = 0; i < n; i++) {
        char name[200];
        name_case(cases[i], name, sizeof name);
        if (!ring2_begin("prefill_backward %03d K%d V%d%s", i, dims[cases[i][DIMS]][0],
                         dims[cases[i][DIMS]][1], name))
            continue;
        run_case(cases[i], i);
        ring2_end();
    }
    run_wide_calls();
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
