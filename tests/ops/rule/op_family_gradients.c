/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu */
/*
 * Gradients of the family of gdn.h beside other calls of the library: raw gates inside a call, what
 * is forgotten, dstate alone, and gradients that are added. op_family_backward.c compares with
 * float64.
 */
#include <math.h>

#include "ring2.h"

enum { HK = 2, HV = 4, K = 40, V = 24 };
enum { DQ, DK, DV, DG, DBETA, DWRITE, DSTATE, N_GRADIENTS };
static const char *const names[] = { "dq", "dk", "dv", "dg", "dbeta", "dwrite_gate", "dstate" };

/* One sequence of T tokens. wide: erase and write gates; else KDA, or two updates of it. */
static gdn_prefill_backward_args draw(int64_t T, int n, bool wide)
{
    gdn_prefill_backward_args a = gdn_prefill_backward_args_init();
    a.q = ring2_new(GDN_F32, 3, 3, T, HK, K, 0);
    a.k = ring2_new(GDN_F32, 0, 3, n * T, HK, K, 0);
    a.v = ring2_new(GDN_F32, 1, 3, n * T, HV, V, 0);
    a.g = ring2_new(GDN_F32, 2, 3, T, HV, K, 0);
    a.beta = wide ? ring2_new(GDN_F32, 0, 3, n * T, HV, K, 0)
                  : ring2_new(GDN_F32, 1, 2, n * T, HV, 0, 0);
    if (wide) a.write_gate = ring2_new(GDN_F32, 2, 3, n * T, HV, V, 0);
    a.state = ring2_new(GDN_F32, 0, 4, 1, HV, V, K);
    a.dout = ring2_new(GDN_F32, 1, 3, T, HV, V, 0);
    a.dstate_out = ring2_new(GDN_F32, 0, 4, 1, HV, V, K);
    a.updates = n;
    a.norm = GDN_NORM_L2;
    const gdn_tensor *all[] = { &a.q, &a.k, &a.v, &a.state, &a.dout, &a.dstate_out, &a.write_gate };
    for (int i = 0; i < 7; i++)
        if (all[i]->data) ring2_fill(all[i], -1, 1);
    ring2_fill(&a.g, -2, 0), ring2_fill(&a.beta, 0, 1);
    return a;
}

static void gradients_of(const gdn_prefill_backward_args *a, gdn_tensor *to[N_GRADIENTS],
                         const gdn_tensor *like[N_GRADIENTS])
{
    gdn_prefill_backward_args *b = (gdn_prefill_backward_args *)(uintptr_t)a;
    gdn_tensor *made[] = { &b->dq, &b->dk, &b->dv, &b->dg, &b->dbeta, &b->dwrite_gate, &b->dstate };
    const gdn_tensor *of[] = { &a->q, &a->k, &a->v, &a->g, &a->beta, &a->write_gate, &a->state };
    for (int i = 0; i < N_GRADIENTS; i++) to[i] = made[i], like[i] = of[i];
}

/* Computes every gradient, in tensors of its own. */
static void run(gdn_prefill_backward_args *a)
{
    gdn_tensor *made[N_GRADIENTS];
    const gdn_tensor *like[N_GRADIENTS];
    gradients_of(a, made, like);
    for (int i = 0; i < N_GRADIENTS; i++)
        if (like[i]->data) *made[i] = ring2_clone(like[i]), ring2_fill_value(made[i], NAN);
    ring2_status(ring2_ctx(1), "gdn_prefill_backward", gdn_prefill_backward(ring2_ctx(1), a),
                 GDN_OK);
}

static void near(const char *what, const gdn_tensor *got, const gdn_tensor *want)
{
    const int64_t n = ring2_count(want);
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += ring2_get(want, i) * ring2_get(want, i);
    const double limit = 5e-5 * sqrt(squares / (double)n) + 1e-6;
    for (int64_t i = 0; i < n; i++)
        CHECK(fabs(ring2_get(got, i) - ring2_get(want, i)) <= limit, "%s[%d] is %g, wanted %g",
              what, (int)i, ring2_get(got, i), ring2_get(want, i));
}

/* Raw gates: their gradients are those of log gates, passed through gdn_gates_backward(). */
static void raw(int bounded)
{
    gdn_prefill_backward_args a = draw(37, 1, false), b;
    gdn_gates_args g = gdn_gates_args_init();
    gdn_gates_backward_args back = gdn_gates_backward_args_init();
    gdn_ctx *ctx = ring2_ctx(1);
    ring2_fill(&a.g, -3, 3), ring2_fill(&a.beta, -3, 3);
    a.gate = GDN_GATE_RAW, a.beta_kind = GDN_BETA_SIGMOID;
    a.A_log = ring2_new(GDN_F32, 0, 1, HV, 0, 0, 0), ring2_fill(&a.A_log, -1, 1.5);
    a.dt_bias = ring2_new(GDN_F32, 3, 2, HV, K, 0, 0), ring2_fill(&a.dt_bias, -4, 1);
    a.gate_lower_bound = bounded ? -5 : 0;
    b = a;
    b.gate = GDN_GATE_LOG, b.beta_kind = GDN_BETA_GIVEN, b.gate_lower_bound = 0;
    b.A_log.data = b.dt_bias.data = NULL;
    b.g = ring2_clone(&a.g), b.beta = ring2_clone(&a.beta);
    g.a = a.g, g.b = a.beta, g.A_log = a.A_log, g.dt_bias = a.dt_bias, g.g = b.g, g.beta = b.beta;
    g.gate_lower_bound = a.gate_lower_bound;
    ring2_status(ctx, "gdn_gates", gdn_gates(ctx, &g), GDN_OK);
    a.dA_log = ring2_clone(&a.A_log), a.ddt_bias = ring2_clone(&a.dt_bias);
    run(&a), run(&b);
    back.a = a.g, back.b = a.beta, back.A_log = a.A_log, back.dt_bias = a.dt_bias;
    back.gate_lower_bound = a.gate_lower_bound;
    back.dg = b.dg, back.dbeta = b.dbeta;
    back.da = ring2_clone(&a.g), back.db = ring2_clone(&a.beta);
    back.dA_log = ring2_clone(&a.A_log), back.ddt_bias = ring2_clone(&a.dt_bias);
    ring2_status(ctx, "gdn_gates_backward", gdn_gates_backward(ctx, &back), GDN_OK);
    near("dg", &a.dg, &back.da);
    near("dbeta", &a.dbeta, &back.db);
    near("dA_log", &a.dA_log, &back.dA_log);
    near("ddt_bias", &a.ddt_bias, &back.ddt_bias);
    near("dk", &a.dk, &b.dk);
}

/* G7: channels that forget at the first token forget NaN and 1e30 of the state, and their gradient
 * is 0; the others are as without them. */
static void forgets_state(int i)
{
    gdn_prefill_backward_args a = draw(37, 1 + i % 2, i / 2), clean;
    for (int64_t j = 0; j < HV * K; j++)
        if (j % K < 3) ring2_set(&a.g, j, -(double)INFINITY);
    clean = a;
    a.state = ring2_clone(&clean.state);
    for (int64_t j = 0; j < HV * V; j++)
        for (int x = 0; x < 3; x++) {
            ring2_set(&a.state, j * K + x, x == 0 ? (double)NAN : 1e30);
            ring2_set(&clean.state, j * K + x, 0);
        }
    run(&a), run(&clean);
    gdn_tensor *got[N_GRADIENTS], *want[N_GRADIENTS];
    const gdn_tensor *of[N_GRADIENTS];
    gradients_of(&a, got, of), gradients_of(&clean, want, of);
    for (int d = 0; d < N_GRADIENTS; d++)
        if (of[d]->data) near(names[d], got[d], want[d]);
    for (int64_t j = 0; j < HV * V * K; j++)
        if (j % K < 3)
            CHECK(ring2_get(&a.dstate, j) == 0, "dstate[%d] is %g", (int)j,
                  ring2_get(&a.dstate, j));
}

/* G7: at one token every channel forgets. Then each side of that token has the gradients that it
 * has without the other side, even if the other side is NaN. */
static void forgets_tokens(int i)
{
    const int64_t T = 37, at = i / 2 ? 21 : 16;
    const bool later = i % 2;
    gdn_prefill_backward_args a = draw(T, 1, false), b;
    for (int64_t j = 0; j < HV * K; j++) ring2_set(&a.g, at * HV * K + j, -(double)INFINITY);
    b = a, b.v = ring2_clone(&a.v), b.k = ring2_clone(&a.k), b.dout = ring2_clone(&a.dout);
    const int64_t bad = later ? at + 2 : at - 2;
    ring2_set(&b.v, bad * HV * V, NAN);
    ring2_set(&b.dout, bad * HV * V + 5, NAN);
    run(&a), run(&b);
    gdn_tensor *got[N_GRADIENTS], *want[N_GRADIENTS];
    const gdn_tensor *of[N_GRADIENTS];
    gradients_of(&b, got, of), gradients_of(&a, want, of);
    for (int d = 0; d < DSTATE; d++) {
        if (!of[d]->data) continue;
        const gdn_tensor part =
            later ? ring2_narrow(got[d], 0, 0, at) : ring2_narrow(got[d], 0, at, T - at);
        const gdn_tensor wanted =
            later ? ring2_narrow(want[d], 0, 0, at) : ring2_narrow(want[d], 0, at, T - at);
        near(names[d], &part, &wanted);
    }
    if (later) near("dstate", &b.dstate, &a.dstate);
}

/* dstate alone has the same bits. GDN_ACCUMULATE adds gradients to the old content. */
static void parts(int i)
{
    gdn_prefill_backward_args a = draw(53, 1 + i % 2, i / 2), alone, sum;
    ring2_set(&a.g, 20 * HV * K + 3, -(double)INFINITY);
    run(&a);
    alone = a, sum = a;
    alone.dq.data = alone.dk.data = alone.dv.data = alone.dg.data = alone.dbeta.data = NULL;
    alone.dwrite_gate.data = NULL;
    alone.dstate = ring2_clone(&a.state);
    ring2_status(ring2_ctx(1), "alone", gdn_prefill_backward(ring2_ctx(1), &alone), GDN_OK);
    ring2_expect_bits("dstate alone", &alone.dstate, &a.dstate);
    gdn_tensor *got[N_GRADIENTS], *once[N_GRADIENTS];
    const gdn_tensor *of[N_GRADIENTS];
    gradients_of(&sum, got, of), gradients_of(&a, once, of);
    sum.flags |= GDN_ACCUMULATE;
    for (int d = 0; d < N_GRADIENTS; d++)
        if (of[d]->data) *got[d] = ring2_clone(once[d]);
    ring2_status(ring2_ctx(1), "added", gdn_prefill_backward(ring2_ctx(1), &sum), GDN_OK);
    for (int d = 0; d < N_GRADIENTS; d++) {
        if (!of[d]->data) continue;
        const gdn_tensor twice = ring2_clone(once[d]);
        for (int64_t j = 0; j < ring2_count(&twice); j++)
            ring2_set(&twice, j, 2 * ring2_get(once[d], j));
        near(names[d], got[d], &twice);
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_cases tests[] = {
        { "raw", raw, 2 },
        { "forgets_state", forgets_state, 4 },
        { "forgets_tokens", forgets_tokens, 4 },
        { "parts", parts, 4 },
    };
    return ring2_cases_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
