/* SPDX-License-Identifier: Apache-2.0 */
/* runs: gpu */
/*
 * gdn_prefill on Hopper where T of a chunk is not finite, though the recurrence is: products of
 * keys are beyond what T is made of, or keys are not finite themselves but forgotten, or never
 * written. Then a chunk goes token by token, in every kernel: clusters, wide blocks, segments and
 * their summaries, heads of up to 64, and from 128 up to 256.
 */
#include <math.h>
#include <string.h>

#include "ring2_device.h"
#include "ring2_rule.h"

enum { H = 4, T = 200 };
static const int heads[3] = { 2, 2, H };

static const struct shape {
    int32_t dtype, norm;
    int64_t K, V;
} shapes[] = {
    { GDN_BF16, GDN_NORM_L2, 128, 128 },   { GDN_F16, GDN_NORM_L2, 128, 128 },
    { GDN_BF16, GDN_NORM_NONE, 64, 64 },   { GDN_F16, GDN_NORM_NONE, 40, 64 },
    { GDN_BF16, GDN_NORM_L2_ADD, 96, 72 }, { GDN_BF16, GDN_NORM_NONE, 256, 256 },
    { GDN_F16, GDN_NORM_L2, 192, 136 },
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* A context that cuts whole sequences into segments of 64 tokens, if so; NULL: no Hopper. */
static gdn_ctx *hopper(bool cuts) { return ring2_hopper(cuts ? 64 : 0, cuts ? 64 : 0); }

static void call(gdn_ctx *ctx, const gdn_rule_args *a, bool cuts)
{
    gdn_rule_args b = *a;
    if (!cuts) b.flags |= GDN_BATCH_INVARIANT;
    ring2_status(ctx, "gdn_prefill", gdn_prefill(ctx, &b), GDN_OK);
    CHECK(!strstr(gdn_last_kernel(ctx), "segments") == !cuts, "%s", gdn_last_kernel(ctx));
}

/* ---- Long keys ------------------------------------------------------------------------------- */

/*
 * Keys of length one get lengths 2^low and 2^high in turn, and beta such that beta |k|^2 is in
 * [1, 1.5]: then S is what it would be with unit keys and v / |k|. So the bound of errors that
 * ring2_rule_model() runs along is as close as for ordinary inputs, and its limits hold.
 * -10, 12: beta_j k_i . k_j is about 2^22 cos(k_i, k_j), and beta 2^20; f16 ends below 2^16.
 * 66, 66: k_i . k_j is about 2^132 cos(k_i, k_j), float32 ends at 2^128. beta and u are denormal
 * then, of 17 bits, which is little beside the 8 of bf16. (beta as an element of a finite T would
 * have one bit: so no chunk is of so few tokens that all their keys may be at right angles.)
 * -5, 5: T is finite.
 */
static const struct lengths {
    int32_t dtype;
    int low, high;
} lengths_of[] = {
    { GDN_BF16, -10, 12 }, { GDN_BF16, 66, 66 }, { GDN_F16, -10, 12 }, { GDN_BF16, -5, 5 }
};

static void lengthen(const gdn_rule_args *a, const struct lengths *l)
{
    const int64_t N = a->k.size[0], row = ring2_count(&a->k) / N;
    for (int64_t t = 0; t < N; t++) {
        const int e = t % 2 ? l->high : l->low;
        for (int64_t i = t * row; i < (t + 1) * row; i++)
            ring2_set(&a->k, i, ldexp(ring2_get(&a->k, i), e));
        for (int64_t h = t * H; h < (t + 1) * H; h++)
            ring2_set(&a->beta, h, ldexp(ring2_uniform(1, 1.5), -2 * e));
    }
    for (int64_t i = 0; i < ring2_count(&a->state); i++)
        ring2_set(&a->state, i, ldexp(ring2_get(&a->state, i), -l->high));
}

/* Sequences of one chunk, and of more; in f16 R of a second chunk, v - S k, would not be finite. */
static void agrees_with_float64(void)
{
    static const int64_t counts[][4] = { { 40, 64, 140, 200 }, { 40, 64, 1, 17 } };
    static const int64_t sizes[][2] = { { 64, 64 }, { 128, 128 }, { 256, 256 },
                                        { 96, 72 }, { 40, 256 },  { 192, 136 } };
    for (int i = 0; i < 4 * 6 * 4 && !ring2_failed(); i++) {
        const struct lengths *l = &lengths_of[i / 24];
        const int64_t *size = sizes[i / 4 % 6];
        const bool cuts = i % 2 && size[0] <= 128 && l->dtype == GDN_BF16;
        gdn_ctx *ctx = hopper(cuts);
        if (!ctx) return;
        gdn_rule_args a = ring2_rule_packed(l->dtype, GDN_F32, 4, counts[l->dtype == GDN_F16],
                                            heads, size[0], size[1], NULL);
        lengthen(&a, l);
        if (i / 2 % 2)
            a.g.data = NULL;
        else
            ring2_fill(&a.g, -0.1, 0);
        a.flags = cuts ? 0 : GDN_BATCH_INVARIANT;
        ring2_rule_check(ctx, &a, false);
        CHECK(!strstr(gdn_last_kernel(ctx), "segments") == !cuts, "%s", gdn_last_kernel(ctx));
        ring2_free();
    }
}

/* Few writers, all long: beta k_i . k_j is about 10^6, and so the state grows from one to the next,
 * and the bound of its error with it. Gates of -inf begin anew. */
static void states_grow(void)
{
    static const int64_t counts[] = { 40, 64, 130, 200 }, sizes[] = { 64, 128, 256 };
    for (int i = 0; i < 12 && !ring2_failed(); i++) {
        const int64_t D = sizes[i / 4];
        const bool cuts = i % 2 && D <= 128;
        gdn_ctx *ctx = hopper(cuts);
        if (!ctx) return;
        gdn_rule_args a = ring2_rule_packed(GDN_BF16, GDN_F32, 4, counts, heads, D, D, NULL);
        for (int64_t j = 0; j < ring2_count(&a.k); j++)
            ring2_set(&a.k, j, 2000 * ring2_get(&a.k, j));
        for (int64_t j = 0; j < ring2_count(&a.g); j++) {
            const int64_t t = j / H;
            ring2_set(&a.g, j, t % 50 == 20 ? -INFINITY : i / 2 % 2 ? 0 : ring2_uniform(-0.1, 0));
            ring2_set(&a.beta, j, t % 25 == 3 ? ring2_uniform(0.5, 1) : 0);
        }
        a.flags = cuts ? 0 : GDN_BATCH_INVARIANT;
        ring2_rule_check(ctx, &a, false);
        ring2_free();
    }
}

/* A checkpoint inside such a chunk is the state after the tokens before it; the chunk then goes
 * on from there. */
static void checkpoints(void)
{
    enum { EVERY = 24, N = T / EVERY };
    static const int64_t sizes[] = { 64, 128, 256 };
    for (int i = 0; i < 6 && !ring2_failed(); i++) {
        const int64_t D = sizes[i / 2];
        const bool cuts = i % 2 && D <= 128;
        gdn_ctx *ctx = hopper(cuts);
        gdn_batch t = gdn_batch_init();
        int64_t cu[] = { 0, T };
        if (!ctx) return;
        gdn_rule_args a = ring2_rule_args(GDN_BF16, GDN_F32, T, 1, heads, D, D);
        lengthen(&a, &lengths_of[1]);
        const gdn_rule_args before = ring2_rule_clone(&a);
        t.cu_seqlens = ring2_indices(GDN_I64, 2, cu);
        t.checkpoint_every = EVERY;
        a.batch = &t;
        a.checkpoints = ring2_new(GDN_F32, 0, 4, N, H, D, D);
        struct ring2_rule m;
        ring2_rule_model(&a, false, &m);
        call(ctx, &a, cuts);
        ring2_compare("out", &a.out, m.out, m.out_limit, m.out_noise, NULL);
        ring2_compare("state", &a.state, m.state, m.state_limit, m.state_noise, NULL);
        for (int c = 0; c < N && !ring2_failed(); c++) {
            gdn_rule_args part = ring2_rule_slice(&before, 0, (c + 1) * EVERY);
            const gdn_tensor got = ring2_narrow(&a.checkpoints, 0, c, 1);
            ring2_rule_model(&part, false, &m);
            ring2_compare("checkpoint", &got, m.state, m.state_limit, m.state_noise, NULL);
        }
        ring2_free();
    }
}

/* A sequence has the same bits alone, where a cluster computes it, and in a large batch, where
 * one block does. */
static void G2_many_mates(void)
{
    enum { MANY = 25 };
    static const int64_t some[] = { 40, 64, 130, 200 }, sizes[] = { 64, 128, 256 };
    for (int i = 0; i < 6 && !ring2_failed(); i++) {
        const int64_t D = sizes[i / 2];
        gdn_ctx *ctx = hopper(false);
        int64_t counts[MANY], first = 0;
        if (!ctx) return;
        for (int j = 0; j < MANY; j++) counts[j] = some[j % 4];
        gdn_rule_args a = ring2_rule_packed(GDN_BF16, GDN_F32, MANY, counts, heads, D, D, NULL);
        lengthen(&a, &lengths_of[i % 2]);
        gdn_rule_args all = ring2_rule_clone(&a);
        call(ctx, &all, false);
        for (int j = 0; j < 8; first += counts[j++]) {
            gdn_rule_args alone = ring2_rule_slice(&a, first, counts[j]);
            gdn_rule_args want = ring2_rule_slice(&all, first, counts[j]);
            const gdn_tensor S = ring2_narrow(&a.state, 0, j, 1);
            const gdn_tensor to = ring2_narrow(&all.state, 0, j, 1);
            alone.state = S;
            alone = ring2_rule_clone(&alone);
            call(ctx, &alone, false);
            ring2_expect_bits("out", &alone.out, &want.out);
            ring2_expect_bits("state", &alone.state, &to);
        }
        ring2_free();
    }
}

/* ---- Keys that are not finite ---------------------------------------------------------------- */

static gdn_rule_args sequence(const struct shape *s)
{
    gdn_rule_args a = ring2_rule_args(s->dtype, GDN_F32, T, 1, heads, s->K, s->V);
    a.norm = s->norm;
    ring2_fill(&a.g, -0.1, 0);
    return a;
}

/* Call i of each shape whole and cut, on a sequence; NULL: no Hopper. */
static gdn_ctx *take_shape(int i, bool *cuts, gdn_rule_args *a)
{
    const struct shape *s = &shapes[i / 2];
    *cuts = i % 2 && s->K <= 128;
    gdn_ctx *ctx = hopper(*cuts);
    if (ctx) *a = sequence(s);
    return ctx;
}

static void poison_keys(const gdn_rule_args *a, int64_t t, double bad)
{
    const int64_t K = a->k.size[2];
    for (int i = 0; i < heads[1]; i++) ring2_set(&a->k, (t * heads[1] + i) * K + K / 2, bad);
}

static void set_heads(const gdn_tensor *x, int64_t t, double value)
{
    for (int h = 0; h < H; h++) ring2_set(x, t * H + h, value);
}

/* The outputs of tokens [first, first + n) are those of the model, which has only these. */
static void expect_tokens(const gdn_rule_args *a, const struct ring2_rule *m, int64_t first,
                          int64_t n)
{
    const gdn_tensor out = ring2_narrow(&a->out, 0, first, n);
    ring2_compare("out", &out, m->out, m->out_limit, m->out_noise, NULL);
}

/* Token `at` has a key that is not finite, token `gate` forgets. */
static void forgets(const struct shape *s, int64_t at, int64_t gate, double bad, bool cuts)
{
    gdn_ctx *ctx = hopper(cuts);
    struct ring2_rule m[2];
    if (!ctx) return;
    gdn_rule_args a = sequence(s), part[2];
    set_heads(&a.g, gate, -INFINITY);
    set_heads(&a.beta, at, 0.5);
    const int64_t first[2] = { 0, gate }, n[2] = { at, T - gate };
    for (int i = 0; i < 2; i++) {
        part[i] = ring2_rule_slice(&a, first[i], n[i]);
        part[i].state = ring2_clone(&a.state);
        if (i) ring2_fill_value(&part[i].state, 0);
        ring2_rule_model(&part[i], false, &m[i]);
    }
    poison_keys(&a, at, bad);
    call(ctx, &a, cuts);
    for (int i = 0; i < 2; i++) expect_tokens(&a, &m[i], first[i], n[i]);
    ring2_compare("state", &a.state, m[1].state, m[1].state_limit, m[1].state_noise, NULL);
    const double reached = ring2_get(&a.out, at * H * s->V);
    CHECK(!isfinite(reached), "token %d, which is reached: %g", (int)at, reached);
    ring2_free();
}

static void what_is_not_finite_is_forgotten(void)
{
    static const int64_t tokens[][2] = { { 10, 40 },  { 0, 1 },     { 10, 64 }, { 63, 64 },
                                         { 70, 150 }, { 127, 130 }, { 3, 199 } };
    static const double bad[] = { (double)NAN, (double)INFINITY };
    for (int i = 0; i < N_SHAPES * 7 * 2 && !ring2_failed(); i++) {
        const struct shape *s = &shapes[i / 14];
        for (int cuts = 0; cuts < (s->K <= 128 ? 2 : 1); cuts++)
            forgets(s, tokens[i % 7][0], tokens[i % 7][1], bad[i / 7 % 2], cuts);
    }
}

/* Keys of tokens that write nothing are not read into anything. */
static void keys_that_are_not_written(void)
{
    static const int64_t at[] = { 0, 7, 62, 63, 64, 100, 199 };
    for (int i = 0; i < N_SHAPES * 2 && !ring2_failed(); i++) {
        gdn_rule_args a;
        struct ring2_rule m;
        bool cuts;
        gdn_ctx *ctx = take_shape(i, &cuts, &a);
        if (!ctx) return;
        for (int j = 0; j < 7; j++) set_heads(&a.beta, at[j], 0);
        ring2_rule_model(&a, false, &m);
        for (int j = 0; j < 7; j++) poison_keys(&a, at[j], j % 2 ? (double)NAN : (double)INFINITY);
        call(ctx, &a, cuts);
        expect_tokens(&a, &m, 0, T);
        ring2_compare("state", &a.state, m.state, m.state_limit, m.state_noise, NULL);
        ring2_free();
    }
}

/* G9: no token writes or forgets, so every bit of the state stays, whatever keys hold. */
static void G9_every_bit_stays(void)
{
    for (int i = 0; i < N_SHAPES * 2 && !ring2_failed(); i++) {
        gdn_rule_args a;
        struct ring2_rule m;
        bool cuts;
        gdn_ctx *ctx = take_shape(i, &cuts, &a);
        if (!ctx) return;
        a.g.data = NULL;
        ring2_fill_value(&a.beta, 0);
        for (int j = 0; j < 100; j++) ring2_set(&a.state, j, j % 2 ? -0.0 : ldexp(1, -149));
        const gdn_tensor before = ring2_clone(&a.state);
        ring2_rule_model(&a, false, &m);
        for (int64_t t = 5; t < T; t += 60) poison_keys(&a, t, NAN);
        call(ctx, &a, cuts);
        expect_tokens(&a, &m, 0, T);
        ring2_expect_bits("state", &a.state, &before);
        ring2_free();
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "agrees with float64", agrees_with_float64 },
        { "states grow", states_grow },
        { "checkpoints", checkpoints },
        { "G2 many batch mates", G2_many_mates },
        { "what is not finite is forgotten", what_is_not_finite_is_forgotten },
        { "keys that are not written", keys_that_are_not_written },
        { "G9 every bit stays", G9_every_bit_stays },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
