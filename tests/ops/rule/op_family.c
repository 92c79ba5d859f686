/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 --every=8 */
/*
 * The family of gdn.h: KDA, GDN-2, Gated DeltaProduct and their mixtures, beside float64, with
 * gates of any strength in single channels; and the guarantees that Gated DeltaNet has. Gradients
 * are in op_family_backward.c.
 */
#include <math.h>
#include <string.h>

#include "family_draw.h"
#include "ring2_device.h"

/* ---- Beside float64 ------------------------------------------------------------------------ */

static void agrees(const struct rule *f, int gate, int size, int64_t T, uint32_t flags, bool decode)
{
    gdn_rule_args a = draw(f, gate, size, T);
    const int64_t K = sizes[size][0], V = sizes[size][1];
    double *out = ring2_heap((size_t)ring2_count(&a.out) * sizeof *out);
    double *state = ring2_heap((size_t)ring2_count(&a.state) * sizeof *state);
    a.flags = flags;
    for (int s = 0; s < N_SEQS; s++)
        for (int64_t h = 0; h < HV; h++) {
            struct oracle_family r = head_of(&a, s, h);
            const int64_t first = (int64_t)ring2_get(&a.batch->cu_seqlens, s);
            oracle_family(&r);
            for (int64_t i = 0; i < r.T * V; i++)
                out[((first + i / V) * HV + h) * V + i % V] = r.o[i];
            memcpy(state + (s * HV + h) * K * V, r.state, (size_t)(K * V) * sizeof *state);
        }
    run(&a, decode);
    near("out", &a.out, out, 2e-5);
    near("state", &a.state, state, 2e-5);
}

static void prefill(int i)
{
    agrees(&rules[i % N_RULES], i / N_RULES % N_GATES, i / N_RULES / N_GATES, 70, 0, false);
}
static void exact(int i)
{
    agrees(&rules[i % N_RULES], i / N_RULES % N_GATES, i / N_RULES / N_GATES, 40, GDN_EXACT, false);
}
static void decode(int i)
{
    agrees(&rules[i % N_RULES], i / N_RULES % N_GATES, i / N_RULES / N_GATES, 9, 0, true);
}

/* ---- Guarantees ---------------------------------------------------------------------------- */

/* G4, G18: cuts at multiples of 16 tokens; a checkpoint has the bits of a call that ends there. */
static void cuts(int i)
{
    const gdn_rule_args a = draw(&rules[i % N_RULES], i / N_RULES, 0, 61);
    gdn_rule_args whole = clone(&a), first = clone(&a), rest, left = clone(&a);
    gdn_rule_args one = part(&whole, 0, 61);
    run(&one, false);
    rest = part(&first, 32, 29);
    first = part(&first, 0, 32);
    run(&first, false);
    const gdn_tensor after_32 = ring2_clone(&first.state);
    run(&rest, false);
    ring2_expect_bits("state", &rest.state, &one.state);
    gdn_tensor tail = ring2_narrow(&one.out, 0, 32, 29);
    ring2_expect_bits("out", &rest.out, &tail);

    gdn_batch batch = gdn_batch_init();
    const int64_t starts[] = { 0, 2 }, at_tokens[] = { 21, 32 };
    gdn_rule_args marked = part(&left, 0, 61), until = part(&a, 0, 21);
    batch.checkpoint_starts = ring2_indices(GDN_I64, 2, starts);
    batch.checkpoint_positions = ring2_indices(GDN_I64, 2, at_tokens);
    marked.batch = &batch;
    marked.checkpoints = ring2_new(GDN_F32, 0, 4, 2, HV, a.v.size[2], a.q.size[2]);
    run(&marked, false);
    ring2_expect_bits("state with checkpoints", &marked.state, &one.state);
    gdn_tensor c0 = ring2_narrow(&marked.checkpoints, 0, 0, 1);
    gdn_tensor c1 = ring2_narrow(&marked.checkpoints, 0, 1, 1);
    ring2_expect_bits("checkpoint after 32", &c1, &after_32);
    until = clone(&until);
    until.batch = NULL;
    run(&until, false);
    ring2_expect_bits("checkpoint after 21", &c0, &until.state);
}

/* G17, and G4 of gdn_decode: with GDN_EXACT any split over either op. */
static void splits(int i)
{
    const gdn_rule_args a = draw(&rules[i % N_RULES], i / N_RULES, 0, 30);
    for (int exactly = 0; exactly < 2; exactly++) {
        gdn_rule_args all = clone(&a), cut = clone(&a), one = part(&all, 0, 30);
        one.flags = exactly ? GDN_EXACT : 0;
        run(&one, !exactly);
        for (int64_t t = 0, n; t < 30; t += n) {
            n = t == 0 ? 11 : t == 11 ? 1 : 18;
            gdn_rule_args some = part(&cut, t, n);
            some.flags = one.flags;
            run(&some, !exactly || n == 1);
            gdn_tensor want = ring2_narrow(&one.out, 0, t, n);
            ring2_expect_bits("out", &some.out, &want);
        }
        gdn_tensor got = ring2_narrow(&cut.state, 0, 0, 1);
        ring2_expect_bits("state", &got, &one.state);
    }
}

/* G7: a channel that forgets drops a NaN and 1e30, in its own row alone. Updates would carry
 * them to other channels, so the first token forgets. */
static void forgets(int i)
{
    const int64_t K = sizes[0][0], V = sizes[0][1];
    for (int op = 0; op < 3; op++) {
        gdn_rule_args a = draw(&rules[i % 2], i / 2, 0, op == 1 ? 5 : 40);
        for (int64_t j = 0; j < ring2_count(&a.g); j++)
            if (j % K < 3 && (j / K / HV == 0)) ring2_set(&a.g, j, -(double)INFINITY);
        gdn_rule_args clean = clone(&a);
        a = part(&a, 0, a.q.size[0] * 2 / 3), clean = part(&clean, 0, clean.q.size[0] * 2 / 3);
        for (int64_t j = 0; j < HV * V; j++)
            for (int x = 0; x < 3; x++) ring2_set(&a.state, j * K + x, x == 0 ? (double)NAN : 1e30);
        a.flags = clean.flags = op == 2 ? GDN_EXACT : 0;
        run(&a, op == 1), run(&clean, op == 1);
        for (int64_t j = 0; j < ring2_count(&a.out); j++)
            CHECK(fabs(ring2_get(&a.out, j) - ring2_get(&clean.out, j)) < 1e-5,
                  "op %d: out[%d] is %g, wanted %g", op, (int)j, ring2_get(&a.out, j),
                  ring2_get(&clean.out, j));
        for (int64_t j = 0; j < ring2_count(&a.state); j++)
            CHECK(fabs(ring2_get(&a.state, j) - ring2_get(&clean.state, j)) < 1e-5,
                  "op %d: state[%d] is %g, wanted %g", op, (int)j, ring2_get(&a.state, j),
                  ring2_get(&clean.state, j));
    }
}

/* G7: NaN in a token is forgotten when every channel forgets, in one token or token by token
 * while nothing is written. */
static void forgets_all(int i)
{
    const int64_t K = sizes[0][0];
    for (int op = 0; op < 3; op++) {
        gdn_rule_args a = draw(&rules[0], 1, 0, 60);
        a = part(&a, 0, 60);
        ring2_set(&a.v, 5 * HV * a.v.size[2], NAN);
        ring2_set(&a.k, 6 * HK * K, NAN);
        for (int64_t h = 0; h < HV; h++)
            for (int64_t x = 0; x < K; x++)
                ring2_set(&a.g, ((10 + (i && x % 2 ? 1 : 0)) * HV + h) * K + x, -(double)INFINITY);
        for (int64_t h = 0; i && h < HV; h++) ring2_set(&a.beta, 10 * HV + h, 0);
        a.flags = op == 2 ? GDN_EXACT : 0;
        run(&a, op == 1);
        const int64_t first = 11 * HV * a.v.size[2];
        for (int64_t j = first; j < ring2_count(&a.out); j++)
            CHECK(isfinite(ring2_get(&a.out, j)), "op %d: out[%d] is %g", op, (int)j,
                  ring2_get(&a.out, j));
        for (int64_t j = 0; j < ring2_count(&a.state); j++)
            CHECK(isfinite(ring2_get(&a.state, j)), "op %d: state[%d]", op, (int)j);
    }
}

/* G8: where w is 0, v may be NaN; a row whose b and w are 0 writes nothing. G9: every bit of the
 * state stays where g, b and w are 0. */
static void writes_nothing(int i)
{
    for (int op = 0; op < 3; op++) {
        const struct rule *f = &rules[1];
        gdn_rule_args a = draw(f, 4, 0, 40);
        a = part(&a, 0, 40);
        gdn_rule_args b = clone(&a);
        for (int64_t j = 0; j < ring2_count(&a.v); j++) {
            if (j % 7) continue;
            ring2_set(&a.write_gate, j, 0), ring2_set(&b.write_gate, j, 0);
            ring2_set(&a.v, j, NAN);
        }
        a.flags = b.flags = op == 2 ? GDN_EXACT : 0;
        run(&a, op == 1), run(&b, op == 1);
        ring2_expect_bits("out", &a.out, &b.out);
        ring2_expect_bits("state", &a.state, &b.state);

        gdn_rule_args idle = draw(&rules[i], 0, 0, 40);
        idle = part(&idle, 0, 40);
        const gdn_tensor before = ring2_clone(&idle.state);
        ring2_fill_value(&idle.beta, 0);
        if (idle.write_gate.data) ring2_fill_value(&idle.write_gate, 0);
        if (idle.beta.ndim == 3 && !idle.write_gate.data) continue; /* w is 1 */
        ring2_fill_value(&idle.v, NAN);
        idle.flags = a.flags;
        run(&idle, op == 1);
        ring2_expect_bits("idle state", &idle.state, &before);
    }
}

/* G2: a sequence alone, and with several threads. */
static void alone(int i)
{
    gdn_rule_args a = draw(&rules[i % N_RULES], 4, i / N_RULES, 50), b = clone(&a), one = clone(&a);
    gdn_ctx *ctx = ring2_ctx(3);
    run(&a, false);
    ring2_status(ctx, "three threads", gdn_prefill(ctx, &b), GDN_OK);
    ring2_expect_bits("out", &b.out, &a.out);
    ring2_expect_bits("state", &b.state, &a.state);
    one = part(&one, 0, 50);
    run(&one, false);
    const gdn_tensor out = ring2_narrow(&a.out, 0, 0, 50), state = ring2_narrow(&a.state, 0, 0, 1);
    ring2_expect_bits("alone", &one.out, &out);
    ring2_expect_bits("state alone", &one.state, &state);
}

/* Summaries: M S + U is the final state. */
static void summaries(int i)
{
    const struct rule *f = &rules[i % N_RULES];
    gdn_rule_args a = draw(f, i / N_RULES, 0, 45);
    const int64_t K = sizes[0][0], V = sizes[0][1];
    gdn_summary_args s = gdn_summary_args_init();
    gdn_summary_apply_args p = gdn_summary_apply_args_init();
    gdn_ctx *ctx = ring2_ctx(1);
    s.k = a.k, s.v = a.v, s.g = a.g, s.beta = a.beta, s.write_gate = a.write_gate;
    s.updates = a.updates, s.norm = a.norm, s.batch = a.batch;
    s.M = ring2_new(GDN_F32, 0, 4, N_SEQS, HV, K, K);
    s.U = ring2_new(GDN_F32, 0, 4, N_SEQS, HV, V, K);
    p.M = s.M, p.U = s.U, p.state = ring2_clone(&a.state), p.state_out = p.state;
    ring2_status(ctx, "summary", gdn_summary(ctx, &s), GDN_OK);
    ring2_status(ctx, "apply", gdn_summary_apply(ctx, &p), GDN_OK);
    run(&a, false);
    near("M S + U", &p.state, ring2_doubles(&a.state), 2e-5);
}

/* ---- Raw gates, refusals ------------------------------------------------------------------- */

/* Raw gates inside a call have the bits of gdn_gates() before it (on a GPU a bound is multiplied at
 * another place). And the gradients of gdn_gates(). */
static void raw(int bounded)
{
    gdn_rule_args a = draw(&rules[0], 0, 0, 40), b;
    gdn_gates_args g = gdn_gates_args_init();
    gdn_ctx *ctx = ring2_ctx(1);
    const int64_t K = sizes[0][0];
    ring2_fill(&a.g, -3, 3), ring2_fill(&a.beta, -3, 3);
    a.gate = GDN_GATE_RAW, a.beta_kind = GDN_BETA_SIGMOID;
    a.A_log = ring2_new(GDN_F32, 0, 1, HV, 0, 0, 0), ring2_fill(&a.A_log, -1, 1.5);
    a.dt_bias = ring2_new(GDN_F32, 3, 2, HV, K, 0, 0), ring2_fill(&a.dt_bias, -4, 1);
    a.gate_lower_bound = bounded ? -5 : 0;
    b = clone(&a);
    b.gate = GDN_GATE_LOG, b.beta_kind = GDN_BETA_GIVEN, b.gate_lower_bound = 0;
    b.A_log.data = b.dt_bias.data = NULL;
    g.a = a.g, g.b = a.beta, g.A_log = a.A_log, g.dt_bias = a.dt_bias, g.g = b.g, g.beta = b.beta;
    g.gate_lower_bound = a.gate_lower_bound;
    ring2_status(ctx, "gdn_gates", gdn_gates(ctx, &g), GDN_OK);
    for (int64_t j = 0; j < ring2_count(&b.g); j++) {
        const int64_t h = j / K % HV;
        const double want =
            oracle_gate(ring2_get(&a.g, j), ring2_get(&a.A_log, h),
                        ring2_get(&a.dt_bias, h * K + j % K), (double)a.gate_lower_bound);
        CHECK(fabs(ring2_get(&b.g, j) - want) <= 1e-5 * (1 + fabs(want)), "g[%d] is %g, wanted %g",
              (int)j, ring2_get(&b.g, j), want);
    }
    run(&a, false), run(&b, false);
    near("out", &a.out, ring2_doubles(&b.out), 1e-6);
    near("state", &a.state, ring2_doubles(&b.state), 1e-6);
    if (!bounded || !ring2_on_device()) {
        ring2_expect_bits("out", &a.out, &b.out);
        ring2_expect_bits("state", &a.state, &b.state);
    }

    gdn_gates_backward_args back = gdn_gates_backward_args_init();
    back.a = a.g, back.A_log = a.A_log, back.dt_bias = a.dt_bias, back.dg = ring2_clone(&a.g);
    back.gate_lower_bound = a.gate_lower_bound;
    ring2_fill(&back.dg, -1, 1);
    back.da = ring2_clone(&a.g), back.dA_log = ring2_clone(&a.A_log);
    back.ddt_bias = ring2_clone(&a.dt_bias);
    ring2_status(ctx, "gdn_gates_backward", gdn_gates_backward(ctx, &back), GDN_OK);
    double *da = zeros(&back.da), *dA = zeros(&back.dA_log), *ddt = zeros(&back.ddt_bias);
    for (int64_t j = 0; j < ring2_count(&back.dg); j++) {
        const int64_t h = j / K % HV;
        double by_A;
        da[j] = oracle_gate_slope(ring2_get(&a.g, j), ring2_get(&a.A_log, h),
                                  ring2_get(&a.dt_bias, h * K + j % K), (double)a.gate_lower_bound,
                                  &by_A);
        da[j] *= ring2_get(&back.dg, j);
        dA[h] += by_A * ring2_get(&back.dg, j);
        ddt[h * K + j % K] += da[j];
    }
    near("da", &back.da, da, 5e-5);
    near("dA_log", &back.dA_log, dA, 5e-5);
    near("ddt_bias", &back.ddt_bias, ddt, 5e-5);
}

static void refuse(const gdn_rule_args *a, gdn_status status, const char *name)
{
    ring2_refused(ring2_ctx(1), GDN_OP_PREFILL, a, RING2_STRUCT, status, name);
}

static void refusals(int i)
{
    (void)i;
    const gdn_rule_args a = draw(&rules[0], 0, 0, 20), two = draw(&rules[2], 0, 0, 20);
    gdn_rule_args b = a;
    b.g.size[2]--, refuse(&b, GDN_E_SHAPE, "g:");
    b = a, b.beta.size[0]--, refuse(&b, GDN_E_SHAPE, "beta:");
    b = a, b.updates = 2, refuse(&b, GDN_E_SHAPE, "k:");
    b = a, b.updates = 9, refuse(&b, GDN_E_ARG, "updates:");
    b = a, b.write_gate = a.beta, refuse(&b, GDN_E_SHAPE, "write_gate:");
    b = a, b.gate = GDN_GATE_RAW, refuse(&b, GDN_E_ARG, "A_log:");
    b.A_log = ring2_new(GDN_F32, 0, 1, HV, 0, 0, 0), b.dt_bias = b.A_log;
    refuse(&b, GDN_E_SHAPE, "dt_bias:");
    b = two, b.k = ring2_narrow(&two.k, 0, 0, two.k.size[0] - 1), refuse(&b, GDN_E_SHAPE, "k:");
    b = two, b.out = two.k, refuse(&b, GDN_E_SHAPE, "out:");
}

int main(int argc, char **argv)
{
    enum { ALL = N_RULES * N_GATES };
    static const struct ring2_cases tests[] = {
        { "prefill", prefill, ALL * N_SIZES },
        { "exact", exact, ALL },
        { "decode", decode, ALL * N_SIZES },
        { "cuts", cuts, ALL },
        { "splits", splits, ALL },
        { "forgets", forgets, 2 * N_GATES },
        { "forgets_all", forgets_all, 2 },
        { "writes_nothing", writes_nothing, N_RULES },
        { "alone", alone, N_RULES * N_SIZES },
        { "summaries", summaries, ALL },
        { "raw", raw, 2 },
        { "refusals", refusals, 1 },
    };
    return ring2_cases_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
