/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu */
/*
 * GDN_EXACT (G17): one sequence computed in many ways, the same bits in each. What the bits are
 * is judged by the float64 oracle, token by token, where the state is float32; a state of 16
 * bits is judged through decode of single tokens, which op_rule.c holds to the oracle.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "oracle.h"
#include "ring2_rule.h"

enum { MAX_T = 90, N_CASES = 63 };

/* ---- A case ---- */

enum { LOG, STRONG, SPRINKLED, LINEAR, RAW, BOUNDED, UNGATED, N_GATES };
enum { GIVEN, SOME_ZERO, SIGMOID, ABSENT, N_BETAS };

static const int heads[][3] = { { 2, 2, 4 }, { 1, 1, 1 }, { 4, 2, 2 }, { 1, 1, 3 } };
static const int64_t dims[][2] = { { 16, 16 }, { 128, 128 }, { 33, 130 }, { 7, 31 },  { 60, 60 },
                                   { 100, 8 }, { 1, 1 },     { 256, 40 }, { 72, 17 }, { 16, 520 } };
enum { N_DIMS = sizeof dims / sizeof *dims };

/* A sequence of T tokens as [1][T]..., the state it starts from, and what one call gives. */
struct exact_case {
    gdn_rule_args args; /* out and state are the results */
    gdn_tensor start;
    int64_t T, H, K, V;
};

static double gate(int kind)
{
    const bool dead = kind != UNGATED && kind != STRONG && ring2_below(12) == 0;
    if (kind == RAW || kind == BOUNDED) return dead ? (double)INFINITY : ring2_uniform(-4, 1);
    if (kind == STRONG) return ring2_uniform(-9, -7);
    if (kind == LINEAR) return dead ? 0 : ring2_below(6) ? ring2_uniform(0.8, 1) : 1;
    if (kind == SPRINKLED && dead) return -(double)INFINITY;
    return ring2_below(6) ? ring2_uniform(-0.2, 0) : 0;
}

static void set_gates(gdn_rule_args *a, int kind, int beta, int64_t H)
{
    static const int32_t gates[N_GATES] = { GDN_GATE_LOG,    GDN_GATE_LOG, GDN_GATE_LOG,
                                            GDN_GATE_LINEAR, GDN_GATE_RAW, GDN_GATE_RAW,
                                            GDN_GATE_LOG };
    for (int64_t i = 0; i < ring2_count(&a->g); i++) ring2_set(&a->g, i, gate(kind));
    a->gate = gates[kind];
    a->gate_lower_bound = kind == BOUNDED ? -5 : 0;
    if (kind == UNGATED) a->g.data = NULL;
    if (kind == RAW || kind == BOUNDED) {
        a->A_log = ring2_new(GDN_F32, 0, 1, H, 0, 0, 0);
        a->dt_bias = ring2_new(GDN_BF16, 0, 1, H, 0, 0, 0);
        ring2_fill(&a->A_log, -1, 1);
        ring2_fill(&a->dt_bias, -1, 1);
    }
    for (int64_t i = 0; beta == SOME_ZERO && i < ring2_count(&a->beta); i++)
        if (ring2_below(3) == 0) ring2_set(&a->beta, i, 0);
    if (beta == SIGMOID) ring2_fill(&a->beta, -3, 3), a->beta_kind = GDN_BETA_TWICE_SIGMOID;
    if (beta == ABSENT) a->beta.data = NULL;
}

/* Every factor turns at a speed of its own with the number of the case. */
static struct exact_case make_case(int number, int32_t state_dtype)
{
    const int *hd = heads[number % 4];
    const int64_t *KV = dims[number % N_DIMS];
    struct exact_case c = { .T = number % 3 ? 1 + ring2_below(MAX_T) : MAX_T,
                            .H = hd[0] > hd[2] ? hd[0] : hd[2],
                            .K = KV[0],
                            .V = KV[1] };
    gdn_rule_args *a = &c.args;
    *a = ring2_rule_args((int32_t)(number / 2 % 3), state_dtype, c.T, 1, hd, c.K, c.V);
    a->flags = GDN_EXACT;
    a->head_map = number / 3 % 2;
    a->norm = number / 4 % 5;
    if (a->norm == GDN_NORM_L2_MAX) a->norm_eps = 0.5f;
    set_gates(a, number % N_GATES, number / 5 % N_BETAS, c.H);
    c.start = ring2_clone(&a->state);
    return c;
}

/* [N].. as one sequence [1][N].. */
static gdn_tensor as_one(gdn_tensor t)
{
    if (!t.data) return t;
    for (int i = t.ndim++; i > 0; i--) {
        t.size[i] = t.size[i - 1];
        t.stride[i] = t.stride[i - 1];
    }
    t.size[0] = 1;
    t.stride[0] = 0;
    return t;
}

static gdn_rule_args one_sequence(const gdn_rule_args *args)
{
    gdn_rule_args a = *args;
    a.q = as_one(a.q), a.k = as_one(a.k), a.v = as_one(a.v), a.out = as_one(a.out);
    a.g = as_one(a.g), a.beta = as_one(a.beta);
    return a;
}

static gdn_ctx *some_ctx(void) { return ring2_ctx(1 + (int)ring2_below(3)); }

static void run(gdn_ctx *ctx, const gdn_rule_args *args, bool decode)
{
    const gdn_rule_args a = one_sequence(args);
    ring2_status(ctx, decode ? "gdn_decode" : "gdn_prefill", ring2_rule_call(ctx, &a, decode),
                 GDN_OK);
}

/* Returns the same call from the same start, with other memory for its results. */
static gdn_rule_args again(const struct exact_case *c)
{
    gdn_rule_args a = c->args;
    a.out = ring2_clone(&c->args.out);
    a.state = ring2_clone(&c->start);
    ring2_fill_value(&a.out, 7);
    return a;
}

static void expect_same(const char *what, const gdn_rule_args *got, const struct exact_case *want)
{
    ring2_expect_bits(what, &got->out, &want->args.out);
    ring2_expect_bits(what, &got->state, &want->args.state);
}

/* ---- The ways ---- */

/* Tokens in one call each. */
static void by_tokens(const struct exact_case *c, bool decode)
{
    const gdn_rule_args a = again(c);
    for (int64_t t = 0; t < c->T; t++) {
        const gdn_rule_args part = ring2_rule_slice(&a, t, 1);
        run(some_ctx(), &part, decode);
    }
    expect_same(decode ? "decode by tokens" : "prefill by tokens", &a, c);
}

/* Tokens of a part with a state after each, from slot `from` of the pool to the slots after. */
static int64_t each_part(const gdn_rule_args *part, int64_t from, int64_t n)
{
    gdn_batch batch = gdn_batch_init();
    gdn_rule_args a = *part;
    const int64_t P = a.state.size[0];
    int64_t slots[MAX_T];
    for (int64_t t = 0; t < n; t++) slots[t] = (from + 1 + t) % P;
    batch.write = GDN_WRITE_EACH;
    batch.read_slots = ring2_indices(GDN_I32, 1, &from);
    batch.write_slots = ring2_indices(GDN_I32, n, slots);
    batch.write_slots.ndim = 2;
    batch.write_slots.size[0] = 1;
    batch.write_slots.size[1] = n;
    batch.write_slots.stride[0] = n;
    batch.write_slots.stride[1] = 1;
    a.batch = &batch;
    run(some_ctx(), &a, true);
    return slots[n - 1];
}

/* Parts of random lengths by random ops, the state in one slot of a pool or another. */
static void by_parts(const struct exact_case *c)
{
    gdn_rule_args a = again(c);
    const gdn_tensor from = a.state;
    const int64_t P = 12;
    int64_t slot = 0;
    a.state = ring2_new(from.dtype, 0, 4, P, c->H, c->V, c->K);
    ring2_fill_value(&a.state, 9);
    const gdn_tensor first = ring2_narrow(&a.state, 0, 0, 1);
    ring2_copy(&first, &from);
    for (int64_t t = 0, n; t < c->T; t += n) {
        n = 1 + ring2_below(ring2_below(2) ? 40 : 6);
        if (n > c->T - t) n = c->T - t;
        gdn_rule_args part = ring2_rule_slice(&a, t, n);
        const int way = (int)ring2_below(3);
        if (way == 2 && n < P) {
            slot = each_part(&part, slot, n);
            continue;
        }
        part.state = ring2_narrow(&a.state, 0, slot, 1);
        run(some_ctx(), &part, way == 1);
    }
    a.state = ring2_narrow(&a.state, 0, slot, 1);
    expect_same("parts", &a, c);
}

/* The state with K first. */
static void k_first(const struct exact_case *c, bool decode)
{
    gdn_rule_args a = again(c);
    const gdn_tensor turned = ring2_swap(&a.state, 2, 3);
    gdn_tensor state = ring2_new(turned.dtype, 3, 4, 1, c->H, c->K, c->V);
    ring2_copy(&state, &turned);
    a.state = state;
    a.state_layout = GDN_STATE_KV;
    for (int64_t t = 0, n; t < c->T; t += n) {
        n = decode ? 1 + ring2_below(3) : c->T;
        if (n > c->T - t) n = c->T - t;
        const gdn_rule_args part = ring2_rule_slice(&a, t, n);
        run(some_ctx(), &part, decode);
    }
    a.state = ring2_swap(&state, 2, 3);
    expect_same(decode ? "decode, k first" : "prefill, k first", &a, c);
}

/* Three sequences in a packed batch, of which this is the second. */
static void with_mates(const struct exact_case *c)
{
    const int64_t before = ring2_below(20), after = ring2_below(20);
    gdn_rule_args a = again(c), mine;
    gdn_batch batch = gdn_batch_init();
    gdn_tensor *rows[] = { &a.q, &a.k, &a.v, &a.g, &a.beta, &a.out };
    for (int i = 0; i < 6; i++) {
        const gdn_tensor t = *rows[i];
        if (!t.data) continue;
        *rows[i] = ring2_new(t.dtype, 0, t.ndim, before + c->T + after, t.size[1], t.size[2], 0);
        ring2_fill(rows[i], 0.1, 0.2);
        const gdn_tensor middle = ring2_narrow(rows[i], 0, before, c->T);
        ring2_copy(&middle, &t);
    }
    const gdn_tensor start = a.state;
    a.state = ring2_new(start.dtype, 0, 4, 3, c->H, c->V, c->K);
    ring2_fill(&a.state, -1, 1);
    const gdn_tensor slot = ring2_narrow(&a.state, 0, 1, 1);
    ring2_copy(&slot, &start);
    const int64_t cu[] = { 0, before, before + c->T, before + c->T + after };
    batch.cu_seqlens = ring2_indices(GDN_I64, 4, cu);
    a.batch = &batch;
    ring2_status(ring2_ctx(3), "mates", gdn_prefill(ring2_ctx(3), &a), GDN_OK);
    mine = ring2_rule_slice(&a, before, c->T);
    mine.state = slot;
    expect_same("batch mates", &mine, c);
}

static void in_all_ways(int number, int32_t state_dtype)
{
    struct exact_case c = make_case(number, state_dtype);
    run(ring2_ctx(1), &c.args, false);
    by_tokens(&c, true);
    by_tokens(&c, false);
    for (int i = 0; i < 3; i++) by_parts(&c);
    k_first(&c, false);
    k_first(&c, true);
    with_mates(&c);
}

static void ways_f32(int number) { in_all_ways(number, GDN_F32); }
static void ways_bf16(int number) { in_all_ways(number, GDN_BF16); }
static void ways_f16(int number) { in_all_ways(number, GDN_F16); }

/* ---- Pools of two dtypes: what rounds is the one that states go to ---- */

static void two_pools(int number)
{
    struct exact_case c = make_case(number, (int32_t)(number % 3));
    const int32_t to_dtype = (int32_t)(number / 3 % 3);
    const int64_t cut = 1 + ring2_below(c.T);
    gdn_tensor to = ring2_new(to_dtype, 0, 4, 1, c.H, c.V, c.K);
    c.args.state_out = to;
    run(ring2_ctx(1), &c.args, false);
    gdn_rule_args a = again(&c);
    a.state_out = ring2_clone(&to);
    for (int64_t t = 0, n; t < c.T; t += n) {
        n = t ? c.T - cut : cut;
        gdn_rule_args part = ring2_rule_slice(&a, t, n);
        if (t) part.state = part.state_out, part.state_out.data = NULL;
        run(some_ctx(), &part, number % 2);
    }
    ring2_expect_bits("out", &a.out, &c.args.out);
    ring2_expect_bits("state_out", &a.state_out, &to);
}

/* A pool of 16 bits that is only read gives the outputs of one that is written. */
static void frozen(int number)
{
    struct exact_case c = make_case(number, number % 2 ? GDN_BF16 : GDN_F16);
    gdn_batch batch = gdn_batch_init();
    batch.write = GDN_WRITE_NONE;
    run(ring2_ctx(1), &c.args, false);
    for (int decode = 0; decode < 2; decode++) {
        gdn_rule_args a = again(&c);
        a.batch = &batch;
        run(some_ctx(), &a, decode);
        ring2_expect_bits("out", &a.out, &c.args.out);
        ring2_expect_bits("state", &a.state, &c.start);
    }
}

/* Checkpoints, two in one place among them: going on from each gives the bits of the whole. */
static void checkpoints(int number)
{
    struct exact_case c = make_case(number, (int32_t)(number % 3));
    gdn_batch batch = gdn_batch_init();
    gdn_rule_args a = again(&c);
    int64_t at[6], starts[2] = { 0, 6 };
    for (int i = 0; i < 6; i++) at[i] = 1 + ring2_below(c.T);
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < i; j++)
            if (at[j] > at[i]) {
                const int64_t t = at[i];
                at[i] = at[j];
                at[j] = t;
            }
    at[3] = at[2];
    batch.checkpoint_positions = ring2_indices(GDN_I32, 6, at);
    batch.checkpoint_starts = ring2_indices(GDN_I32, 2, starts);
    a.checkpoints = ring2_new(a.state.dtype, 0, 4, 6, c.H, c.V, c.K);
    run(ring2_ctx(1), &c.args, false);
    a.batch = &batch;
    run(some_ctx(), &a, number / 3 % 2);
    expect_same("checkpoints change no bit", &a, &c);
    for (int i = 0; i < 6; i++) {
        gdn_rule_args rest = again(&c);
        ring2_copy(&rest.out, &c.args.out);
        rest.state = ring2_narrow(&a.checkpoints, 0, i, 1);
        gdn_rule_args part = ring2_rule_slice(&rest, at[i], c.T - at[i]);
        ring2_fill_value(&part.out, 7);
        if (at[i] < c.T) run(some_ctx(), &part, i % 2);
        expect_same("from a checkpoint", &rest, &c);
    }
}

/* ---- Instruction sets ---- */

static gdn_ctx *isa_ctx(const char *isa)
{
    gdn_options o = gdn_options_init();
    gdn_ctx *ctx = NULL;
    o.isa = isa;
    o.n_threads = 2;
    gdn_ctx_create(&o, &ctx);
    if (ctx && !strcmp(gdn_isa(ctx), isa)) return ctx;
    gdn_ctx_destroy(ctx);
    return NULL;
}

static void instruction_sets(int number)
{
    gdn_ctx *ctx[2] = { isa_ctx("avx2"), isa_ctx("avx512") };
    if (ctx[0] && ctx[1]) {
        struct exact_case c = make_case(number, (int32_t)(number % 3));
        gdn_rule_args a = again(&c);
        run(ctx[0], &c.args, number / 3 % 2);
        run(ctx[1], &a, number / 3 % 2);
        expect_same("avx512 and avx2", &a, &c);
    } else {
        ring2_skip("avx2 and avx512 do not both run here");
    }
    gdn_ctx_destroy(ctx[0]);
    gdn_ctx_destroy(ctx[1]);
}

/* ---- Values ---- */

static void beside_float64(int number)
{
    struct exact_case c = make_case(number, GDN_F32);
    const gdn_rule_args a = one_sequence(&c.args);
    ring2_rule_check(some_ctx(), &a, false);
}

/* Selection, on states that would spoil everything: NaN and 1e30. */
static void forgets(int number)
{
    struct exact_case c = make_case(9 * number + 1, (int32_t)(number % 3)); /* 128 x 128 */
    const int64_t at = ring2_below(c.T);
    c.args.gate = GDN_GATE_LOG, c.args.A_log.data = c.args.dt_bias.data = NULL;
    c.args.gate_lower_bound = 0;
    c.args.g = ring2_new(GDN_F32, 0, 2, c.T, c.H, 0, 0);
    ring2_fill(&c.args.g, -0.5, 0);
    for (int64_t h = 0; h < c.H; h++) ring2_set(&c.args.g, at * c.H + h, -(double)INFINITY);
    gdn_rule_args stale = again(&c);
    ring2_fill_value(&stale.state, number % 2 ? (double)NAN : 1e30);
    run(ring2_ctx(1), &c.args, false);
    run(ring2_ctx(1), &stale, false);
    const gdn_rule_args want = ring2_rule_slice(&c.args, at, c.T - at);
    const gdn_rule_args got = ring2_rule_slice(&stale, at, c.T - at);
    ring2_expect_bits("out", &got.out, &want.out);
    ring2_expect_bits("state", &stale.state, &c.args.state);
    CHECK(isfinite(ring2_get(&got.out, 0)), "the output is not finite");
}

static void writes_nothing(int number)
{
    struct exact_case c = make_case(9 * number + 4, (int32_t)(number % 3));
    gdn_rule_args bad = c.args;
    const int64_t Hv = c.args.v.size[1], row = Hv * c.V;
    c.args.beta_kind = bad.beta_kind = GDN_BETA_GIVEN;
    c.args.beta = bad.beta = ring2_new(GDN_F32, 0, 2, c.T, c.H, 0, 0);
    ring2_fill(&c.args.beta, 0, 1);
    bad.v = ring2_clone(&c.args.v);
    for (int64_t t = 0; t < c.T; t++) {
        if (ring2_below(2)) continue;
        for (int64_t h = 0; h < c.H; h++) ring2_set(&c.args.beta, t * c.H + h, 0);
        for (int64_t x = 0; x < row; x++) ring2_set(&bad.v, t * row + x, (double)NAN);
    }
    bad.out = ring2_clone(&c.args.out);
    bad.state = ring2_clone(&c.start);
    run(ring2_ctx(1), &c.args, false);
    run(ring2_ctx(1), &bad, false);
    expect_same("beta 0", &bad, &c);
}

static void every_bit_stays(int number)
{
    struct exact_case c = make_case(9 * number, (int32_t)(number % 3));
    c.args.g.data = c.args.A_log.data = c.args.dt_bias.data = NULL;
    c.args.gate = GDN_GATE_LOG, c.args.gate_lower_bound = 0;
    c.args.beta_kind = GDN_BETA_GIVEN;
    c.args.beta = ring2_new(GDN_F32, 0, 2, c.T, c.H, 0, 0);
    ring2_fill_value(&c.args.beta, 0);
    for (int64_t j = 0; j < ring2_count(&c.start); j++)
        ring2_set(&c.start, j, j % 3 ? -0.0 : j % 2 ? 0x1p-24 : -(double)INFINITY);
    ring2_copy(&c.args.state, &c.start);
    run(ring2_ctx(1), &c.args, false);
    ring2_expect_bits("state", &c.args.state, &c.start);
}

/* G1, G6, G11, G13: an exact call of a whole batch, with masks, beside guard pages. */
static void whole_batch(int number)
{
    static const int64_t lengths[] = { 40, 0, 9, 70, 3 }, counts[] = { 33, 0, 9, 0, 2 };
    gdn_batch *batch;
    const int *hd = heads[number % 4];
    gdn_rule_args a = ring2_rule_packed((int32_t)(number % 3), GDN_F32, 5, lengths, hd,
                                        dims[number][0], dims[number][1], &batch);
    a.flags = GDN_EXACT;
    batch->token_count = ring2_indices(GDN_I32, 5, counts);
    ring2_status(some_ctx(), "bytes",
                 gdn_workspace_bytes(ring2_ctx(3), GDN_OP_PREFILL, &a, &a.workspace_bytes), GDN_OK);
    a.workspace = ring2_alloc((a.workspace_bytes + 63) / 64 * 64, 64);
    ring2_rule_check(ring2_ctx(3), &a, false);
}

int main(int argc, char **argv)
{
    static const struct ring2_cases tests[] = {
        { "G17 state f32, in all ways", ways_f32, N_CASES },
        { "G17 state bf16, in all ways", ways_bf16, N_CASES },
        { "G17 state f16, in all ways", ways_f16, N_CASES },
        { "G17 pools of two dtypes", two_pools, 27 },
        { "G17 frozen states", frozen, 12 },
        { "G17 G18 checkpoints", checkpoints, N_CASES },
        { "G17 avx2 and avx512", instruction_sets, N_CASES },
        { "exact beside float64", beside_float64, N_CASES },
        { "exact: G7 a gate of -inf forgets", forgets, 18 },
        { "exact: G8 beta 0 writes nothing", writes_nothing, 18 },
        { "exact: G9 every state bit stays", every_bit_stays, 18 },
        { "exact: G6 G11 G13 a whole batch", whole_batch, 8 },
    };
    return ring2_cases_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
