/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu --every=5, gpu */
/*
 * gdn_prefill with gates of any strength. The Hopper kernels divide V by exp of the sums of gates,
 * up to what their numbers hold, and by lengths of keys (cuda/prefill/sm90/kernel.cuh): so gates
 * here go to where that ends and beyond, in one token, in 16 or in 64, and V, lengths of keys and
 * states to where such quotients are beyond numbers. What a token gives may depend on those before
 * it alone, to the bit.
 */
#include <math.h>

#include "core/ctx.h"
#include "ring2_rule.h"

enum { H = 4 };
static const int heads[3] = { 2, 2, H };
static const int64_t counts[] = { 64, 40, 130, 200 };
enum { N_COUNTS = sizeof counts / sizeof *counts };

/* ---- Gates ---- */

/* The mean gate of a head: 64 tokens, 16 or one of them reach 66 nats (f16: 4), the most that V
 * is divided by. */
static double by_head(int64_t t, int64_t h)
{
    static const double mean[2][H] = { { -0.03, -1.04, -1.5, -4 }, { -0.065, -0.3, -9, -30 } };
    return mean[t / 150 % 2][h] * ring2_uniform(0.8, 1.2);
}
/* Few strong ones. */
static double spikes(int64_t t, int64_t h)
{
    static const double strong[] = { -20, -65, -70, -300 };
    return (t * 7 + h * 3) % 29 ? ring2_uniform(-0.05, 0) : strong[(t + h) % 4];
}
static double any(int64_t t, int64_t h) { return (void)t, ring2_uniform(h % 2 ? -8 : -2, 0); }
/* Strong gates, some of which forget. */
static double forgetful(int64_t t, int64_t h)
{
    return (t + 9 * h) % 37 == 20 ? -(double)INFINITY : ring2_uniform(-3, 0);
}
static double (*const gates[])(int64_t t, int64_t h) = { by_head, spikes, any, forgetful };
enum { N_GATES = sizeof gates / sizeof *gates };

static void fill_gates(const gdn_rule_args *a, int kind)
{
    for (int64_t i = 0; i < ring2_count(&a->g); i++) ring2_set(&a->g, i, gates[kind](i / H, i % H));
}

static void scale_by(const gdn_tensor *x, double f)
{
    for (int64_t i = 0; i < ring2_count(x); i++) ring2_set(x, i, f * ring2_get(x, i));
}

/* Call i: dtypes, sizes, gates. */
static gdn_rule_args take(int i, int n, const int64_t *lengths)
{
    static const int64_t sizes[][2] = { { 128, 128 }, { 64, 64 }, { 192, 136 }, { 96, 72 } };
    const int64_t *size = sizes[i / (2 * N_GATES) % 4];
    const int32_t dtype = i % 2 ? GDN_F16 : GDN_BF16;
    gdn_rule_args a = ring2_rule_packed(dtype, GDN_F32, n, lengths, heads, size[0], size[1], NULL);
    fill_gates(&a, i / 2 % N_GATES);
    scale_by(&a.v, dtype == GDN_F16 ? 16 : 1); /* not to be below f16 at once */
    scale_by(&a.state, dtype == GDN_F16 ? 16 : 1);
    return a;
}
enum { N_CALLS = 2 * N_GATES * 4 };

/* Key of token t, head h, times f. */
static void scale_key(const gdn_rule_args *a, int64_t t, int h, double f)
{
    const int64_t K = a->k.size[2], first = (t * heads[1] + h) * K;
    for (int64_t i = first; i < first + K; i++) ring2_set(&a->k, i, f * ring2_get(&a->k, i));
}

static void agrees_with_float64(int i)
{
    gdn_rule_args a = take(i, N_COUNTS, counts);
    ring2_rule_check(ring2_ctx(1), &a, false);
}

/* With a norm: keys of any length, of none, and in some chunks 2^24 apart; f16, where keys are
 * scaled before anything is made of them: 2^10, and none of none, as then outputs are of what P has
 * below f16. */
static void lengths_of_keys(int i)
{
    gdn_rule_args a = take(i, 2, counts + 1);
    a.norm = GDN_NORM_L2;
    a.norm_eps = 1e-6;
    for (int64_t t = 0; t < a.k.size[0]; t++)
        for (int h = 0; h < heads[1]; h++) {
            const int e = t % 64 == 40 && t > 100 ? (i % 2 ? 10 : 24) : (int)(t * 5 + h) % 7;
            scale_key(&a, t, h, t % 17 == 3 && i % 2 == 0 ? 0 : ldexp(1, e));
        }
    ring2_rule_check(ring2_ctx(1), &a, false);
}

/* V, and the state, near the end of the dtype's numbers. */
static void far_values(int i)
{
    const double f = i % 2 ? 0x1p8 : 0x1p90;
    gdn_rule_args a = take(i, 2, counts + 1);
    scale_by(&a.v, f);
    scale_by(&a.state, f);
    ring2_rule_check(ring2_ctx(1), &a, false);
}

/* ---- To the bit ---- */

static void call(const gdn_rule_args *a)
{
    gdn_rule_args b = *a;
    b.flags |= GDN_BATCH_INVARIANT;
    ring2_status(ring2_ctx(1), "gdn_prefill", gdn_prefill(ring2_ctx(1), &b), GDN_OK);
}

/* Outputs and states of a call's first tokens are those of a call of these alone. */
static void later_tokens(int i)
{
    enum { T = 200, EVERY = 24, N = T / EVERY };
    int64_t length = T, cu[] = { 0, T };
    gdn_rule_args a = take(i, 1, &length);
    const gdn_rule_args before = ring2_rule_clone(&a);
    gdn_batch t = gdn_batch_init();
    t.cu_seqlens = ring2_indices(GDN_I64, 2, cu);
    t.checkpoint_every = EVERY;
    a.batch = &t;
    a.checkpoints = ring2_new(GDN_F32, 0, 4, N, H, (int)a.v.size[2], (int)a.k.size[2]);
    call(&a);
    for (int c = 0; c < N && !ring2_failed(); c++) {
        gdn_rule_args part = ring2_rule_slice(&before, 0, (c + 1) * EVERY);
        const gdn_tensor got = ring2_narrow(&a.checkpoints, 0, c, 1);
        const gdn_tensor out = ring2_narrow(&a.out, 0, 0, (c + 1) * EVERY);
        part.state = before.state;
        part = ring2_rule_clone(&part);
        call(&part);
        ring2_expect_bits("out", &out, &part.out);
        ring2_expect_bits("checkpoint", &got, &part.state);
    }
}

/* Alone, and among so many that a device goes another way. */
static void G2_many_mates(int i)
{
    enum { MANY = 25 };
    int64_t lengths[MANY];
    for (int j = 0; j < MANY; j++) lengths[j] = counts[j % N_COUNTS];
    gdn_rule_args a = take(i, MANY, lengths), all = ring2_rule_clone(&a);
    int64_t first = 0;
    call(&all);
    for (int j = 0; j < 4; first += lengths[j++]) {
        gdn_rule_args alone = ring2_rule_slice(&a, first, lengths[j]);
        gdn_rule_args want = ring2_rule_slice(&all, first, lengths[j]);
        const gdn_tensor to = ring2_narrow(&all.state, 0, j, 1);
        alone.state = ring2_narrow(&a.state, 0, j, 1);
        alone = ring2_rule_clone(&alone);
        call(&alone);
        ring2_expect_bits("out", &alone.out, &want.out);
        ring2_expect_bits("state", &alone.state, &to);
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_cases tests[] = {
        { "agrees with float64", agrees_with_float64, N_CALLS },
        { "lengths of keys", lengths_of_keys, N_CALLS },
        { "far values", far_values, N_CALLS },
        { "later tokens", later_tokens, N_CALLS },
        { "G2 many batch mates", G2_many_mates, N_CALLS },
    };
    return ring2_cases_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
