/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 --every=4 */
/*
 * gdn_prefill and gdn_decode: properties of the rule, speculative decoding, and the places
 * where implementations of it are known to disagree, each a test of its own.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "oracle.h"
#include "ring2_rule.h"

static const int gva[3] = { 2, 2, 4 }, gqa[3] = { 4, 2, 2 }, one[3] = { 1, 1, 1 };

static void call(gdn_ctx *ctx, const gdn_rule_args *a, bool decode)
{
    ring2_status(ctx, decode ? "gdn_decode" : "gdn_prefill", ring2_rule_call(ctx, a, decode),
                 GDN_OK);
}

static gdn_rule_args sequence(int64_t T, const int heads[3], int64_t K, int64_t V, gdn_batch **t)
{
    return ring2_rule_packed(GDN_F32, GDN_F32, 1, &T, heads, K, V, t);
}

static void scale_by(const gdn_tensor *t, double f)
{
    for (int64_t i = 0; i < ring2_count(t); i++) ring2_set(t, i, f * ring2_get(t, i));
}

/* Both are within the model's limits of the exact result, so within twice these limits of each
 * other. */
static void expect_close(const char *what, const gdn_tensor *got, const gdn_tensor *want,
                         const double *limit)
{
    const int64_t n = ring2_count(got);
    double *twice = ring2_heap((size_t)n * sizeof *twice);
    for (int64_t i = 0; i < n; i++) twice[i] = 2 * limit[i];
    ring2_compare(what, got, ring2_doubles(want), twice, NULL, NULL);
}

/* ---- Properties ---- */

/* v and the state times 4 give out and the state times 4, to the bit. */
static void linear_in_v(void)
{
    for (int decode = 0; decode < 2; decode++) {
        gdn_rule_args a = sequence(50, gva, 60, 100, NULL), b = ring2_rule_clone(&a);
        scale_by(&b.v, 4);
        scale_by(&b.state, 4);
        call(ring2_ctx(2), &a, decode);
        call(ring2_ctx(2), &b, decode);
        scale_by(&a.out, 4);
        scale_by(&a.state, 4);
        ring2_expect_bits("out", &b.out, &a.out);
        ring2_expect_bits("state", &b.state, &a.state);
    }
}

/* [N][n][D] with every head repeated to H heads, as head_map says. */
static gdn_tensor spread(const gdn_tensor *t, int64_t H, int32_t map)
{
    const int64_t N = t->size[0], n = t->size[1];
    gdn_tensor r = ring2_new(t->dtype, 0, 3, N, H, t->size[2], 0);
    for (int64_t h = 0; h < H; h++) {
        const gdn_tensor to = ring2_select(&r, 1, h);
        const gdn_tensor from = ring2_select(t, 1, map == GDN_HEADS_GROUPED ? h / (H / n) : h % n);
        ring2_copy(&to, &from);
    }
    return r;
}

static void heads_shared_or_copied(void)
{
    for (int i = 0; i < 8; i++) {
        const bool decode = i & 1;
        const int *heads = i & 2 ? gqa : gva;
        gdn_rule_args a = sequence(40, heads, 48, 32, NULL), b = ring2_rule_clone(&a);
        struct ring2_rule m;
        a.head_map = i & 4 ? GDN_HEADS_INTERLEAVED : GDN_HEADS_GROUPED;
        b.q = spread(&b.q, 4, a.head_map);
        b.k = spread(&b.k, 4, a.head_map);
        b.v = spread(&b.v, 4, a.head_map);
        ring2_rule_model(&a, decode, &m);
        call(ring2_ctx(2), &a, decode);
        call(ring2_ctx(2), &b, decode);
        expect_close("out", &b.out, &a.out, m.out_limit);
        expect_close("state", &b.state, &a.state, m.state_limit);
    }
}

/* Heads 0 1 2 3 of a grouped call are heads 0 2 1 3 of an interleaved one. */
static void heads_interleaved_or_grouped(void)
{
    static const int to[4] = { 0, 2, 1, 3 };
    for (int decode = 0; decode < 2; decode++) {
        gdn_rule_args a = sequence(40, gva, 48, 32, NULL), b = ring2_rule_clone(&a);
        gdn_rule_args back = ring2_rule_clone(&a);
        const gdn_tensor *from[] = { &a.v, &a.g, &a.beta, &a.state };
        const gdn_tensor *into[] = { &b.v, &b.g, &b.beta, &b.state };
        struct ring2_rule m;
        b.head_map = GDN_HEADS_INTERLEAVED;
        for (int i = 0; i < 4; i++)
            for (int h = 0; h < 4; h++) {
                const gdn_tensor x = ring2_select(from[i], 1, h);
                const gdn_tensor y = ring2_select(into[i], 1, to[h]);
                ring2_copy(&y, &x);
            }
        ring2_rule_model(&a, decode, &m);
        call(ring2_ctx(2), &a, decode);
        call(ring2_ctx(2), &b, decode);
        for (int h = 0; h < 4; h++) {
            const gdn_tensor x = ring2_select(&b.out, 1, to[h]), y = ring2_select(&back.out, 1, h);
            const gdn_tensor S = ring2_select(&b.state, 1, to[h]);
            const gdn_tensor S_back = ring2_select(&back.state, 1, h);
            ring2_copy(&y, &x);
            ring2_copy(&S_back, &S);
        }
        expect_close("out", &back.out, &a.out, m.out_limit);
        expect_close("state", &back.state, &a.state, m.state_limit);
    }
}

static void chunked_or_recurrent(void)
{
    static const int64_t tokens[] = { 9, 16, 31, 100, 257 };
    for (int i = 0; i < 5; i++) {
        gdn_rule_args a = sequence(tokens[i], gva, 100, 60, NULL), b = ring2_rule_clone(&a);
        struct ring2_rule m;
        ring2_rule_model(&a, false, &m);
        call(ring2_ctx(2), &a, false);
        call(ring2_ctx(2), &b, true);
        expect_close("out", &a.out, &b.out, m.out_limit);
        expect_close("state", &a.state, &b.state, m.state_limit);
    }
}

/* One bad number at token `at` of head 1 (of n heads, each read by H / n state heads). */
static void poison_one(gdn_rule_args *a, int which, int64_t at, double bad)
{
    gdn_tensor *t[] = { &a->q, &a->k, &a->v, &a->g, &a->beta };
    gdn_tensor token = ring2_select(t[which], 0, at), head;
    if (which >= 3) ring2_set(&token, 2, bad);
    if (which >= 3) return;
    head = ring2_select(&token, 0, which == 2 ? 2 : 1);
    ring2_set(&head, ring2_count(&head) / 2, bad);
}

/* Policy: a NaN or an infinity reaches only later tokens of the same sequence and head. */
static void a_nan_stays_where_it_is(void)
{
    static const int64_t sizes[3] = { 20, 40, 18 };
    static const double bad[2] = { (double)NAN, (double)INFINITY };
    for (int i = 0; i < 20; i++) {
        const bool decode = i & 1;
        const int64_t at = 20 + 19; /* token 19 of the second sequence */
        gdn_rule_args a = ring2_rule_packed(GDN_F32, GDN_F32, 3, sizes, gva, 40, 24, NULL);
        gdn_rule_args b = ring2_rule_clone(&a);
        poison_one(&b, i / 4, at, bad[i / 2 & 1]);
        call(ring2_ctx(2), &a, decode);
        call(ring2_ctx(2), &b, decode);
        for (int64_t t = 0; t < 78; t++)
            for (int h = 0; h < 4; h++) {
                const bool reached = t >= at && t < 60 && h >= 2 && (h == 2 || i / 4 < 2);
                const gdn_tensor x = ring2_select(&a.out, 0, t), y = ring2_select(&b.out, 0, t);
                const gdn_tensor want = ring2_select(&x, 0, h), got = ring2_select(&y, 0, h);
                if (!reached) ring2_expect_bits("out", &got, &want);
            }
        for (int64_t j = 0; j < 12; j++) { /* slots and heads */
            const gdn_tensor x = ring2_select(&a.state, 0, j / 4);
            const gdn_tensor y = ring2_select(&b.state, 0, j / 4);
            const gdn_tensor want = ring2_select(&x, 0, j % 4), got = ring2_select(&y, 0, j % 4);
            if (j / 4 != 1 || j % 4 < 2) ring2_expect_bits("state", &got, &want);
        }
    }
}

/* Returns which tokens the bad number of poison_one() reaches: from `at` until head 2 or 3
 * forgets. */
static bool *reached_by(const gdn_rule_args *a, int64_t at, int64_t forgets)
{
    const int64_t row = ring2_count(&a->out) / a->out.size[0], V = row / 4;
    bool *reached = ring2_heap((size_t)ring2_count(&a->out) * sizeof *reached);
    for (int64_t i = at * row; i < forgets * row; i++) reached[i] = i % row / V >= 2;
    return reached;
}

/* A call with one bad number, behind which all heads forget. */
static void forgets_what_is_bad(gdn_rule_args *a, int which, double bad, int64_t at,
                                int64_t forgets, bool decode)
{
    static const char *const inputs[] = { "q", "k", "v", "g", "beta" };
    struct ring2_rule m;
    char what[100];
    snprintf(what, sizeof what, "%s, %g in %s, dtype %d, norm %d, K %d, %d and %d of %d tokens",
             decode ? "decode" : "prefill", bad, inputs[which], (int)a->q.dtype, (int)a->norm,
             (int)a->q.size[2], (int)at, (int)forgets, (int)a->q.size[0]);
    for (int h = 0; h < 4; h++) ring2_set(&a->g, forgets * 4 + h, -(double)INFINITY);
    ring2_rule_model(a, decode, &m);
    poison_one(a, which, at, bad);
    call(ring2_ctx(2), a, decode);
    ring2_compare(what, &a->out, m.out, m.out_limit, m.out_noise, reached_by(a, at, forgets));
    ring2_compare(what, &a->state, m.state, m.state_limit, m.state_noise, NULL);
    const gdn_rule_args token = ring2_rule_slice(a, at, 1);
    const gdn_tensor head = ring2_select(&token.out, 1, 2);
    bool seen = false;
    for (int64_t i = 0; i < ring2_count(&head); i++) seen = seen || !isfinite(ring2_get(&head, i));
    CHECK(seen, "%s: not in the output of its token", what);
}

/* ... until a gate of -inf, in the same chunk or another (G7). */
static void a_nan_is_forgotten(void)
{
    static const int64_t tokens[][3] = { { 40, 3, 9 },   { 40, 15, 16 }, { 40, 0, 39 },
                                         { 70, 10, 40 }, { 70, 63, 64 }, { 200, 5, 70 } };
    static const int32_t dtypes[] = { GDN_F32, GDN_BF16, GDN_F16 };
    static const int64_t K[] = { 24, 64 };
    static const double bad[] = { (double)NAN, (double)INFINITY };
    for (int i = 0; i < 6 * 3 * 2 * 2 * 5 && !ring2_failed(); i++)
        for (int decode = 0; decode < (i % 6 < 3 ? 2 : 1); decode++) {
            const int64_t *t = tokens[i % 6];
            gdn_rule_args a = ring2_rule_packed(dtypes[i / 6 % 3], GDN_F32, 1, t, gva,
                                                K[(i + i / 6) % 2], 24, NULL);
            a.norm = i / 18 % 2 ? GDN_NORM_L2 : GDN_NORM_NONE;
            forgets_what_is_bad(&a, i / 72, bad[i / 36 % 2], t[1], t[2], decode);
            ring2_free();
        }
}

/* ---- Speculative decoding ---- */

/* Four drafted tokens with a slot each, of which n are accepted, then 3 more tokens. The bits
 * are those of n + 3 tokens one by one. */
static void rollback_is_a_replay(void)
{
    for (int64_t n = 1; n <= 4; n++) {
        int64_t T = 4, cu[2] = { 0, 3 };
        int64_t slots[4] = { 3, 1, 5, 2 }, start = 4;
        gdn_batch *t;
        gdn_rule_args draft = ring2_rule_packed(GDN_BF16, GDN_F32, 1, &T, gva, 60, 100, &t);
        gdn_rule_args next, all;
        gdn_batch again = gdn_batch_init();
        gdn_tensor pool = ring2_new(GDN_F32, 0, 4, 6, 4, 100, 60), from, end;
        ring2_fill(&pool, -1, 1);
        draft.state = pool;
        t->read_slots = ring2_indices(GDN_I32, 1, &start);
        t->write = GDN_WRITE_EACH;
        t->write_slots = ring2_new(GDN_I32, 0, 2, 1, 4, 0, 0);
        for (int i = 0; i < 4; i++) ring2_set(&t->write_slots, i, (double)slots[i]);

        all = ring2_rule_args(GDN_BF16, GDN_F32, 7, 1, gva, 60, 100);
        from = ring2_narrow(&pool, 0, 4, 1);
        all.state = ring2_clone(&from);
        next = ring2_rule_args(GDN_BF16, GDN_F32, 3, 0, gva, 60, 100);
        call(ring2_ctx(2), &draft, true);

        next.state = pool;
        again.cu_seqlens = ring2_indices(GDN_I64, 2, cu);
        again.read_slots = t->write_slots;
        again.num_accepted_tokens = ring2_indices(GDN_I32, 1, &n);
        again.write_slots = ring2_indices(GDN_I32, 1, (int64_t[]){ 0 });
        next.batch = &again;
        call(ring2_ctx(2), &next, true);

        for (int64_t i = 0; i < n + 3; i++) {
            const gdn_rule_args token = ring2_rule_slice(&all, i, 1);
            const gdn_rule_args is =
                i < n ? ring2_rule_slice(&draft, i, 1) : ring2_rule_slice(&next, i - n, 1);
            gdn_rule_args replay = token;
            replay.q = is.q, replay.k = is.k, replay.v = is.v, replay.g = is.g;
            replay.beta = is.beta;
            call(ring2_ctx(2), &replay, true);
            ring2_expect_bits("out", &is.out, &token.out);
        }
        end = ring2_narrow(&pool, 0, 0, 1);
        ring2_expect_bits("state", &end, &all.state);
    }
}

/* token_count without out: n drafted tokens are committed. */
static void commit_only(void)
{
    for (int64_t n = 0; n <= 5; n++) {
        gdn_batch *t;
        gdn_rule_args a = sequence(5, gva, 60, 100, &t), b = ring2_rule_clone(&a), part;
        t->token_count = ring2_indices(GDN_I64, 1, &n);
        a.out.data = NULL;
        call(ring2_ctx(2), &a, true);
        for (int64_t i = 0; i < n; i++) {
            part = ring2_rule_slice(&b, i, 1);
            call(ring2_ctx(2), &part, true);
        }
        ring2_expect_bits("state", &a.state, &b.state);
    }
}

static void frozen_states_stay(void)
{
    for (int decode = 0; decode < 2; decode++) {
        gdn_batch *t;
        gdn_rule_args a = sequence(30, gva, 60, 100, &t), b = ring2_rule_clone(&a);
        call(ring2_ctx(2), &a, decode);
        t->write = GDN_WRITE_NONE;
        ring2_call_begin();
        ring2_may_write(&b.out);
        call(ring2_ctx(2), &b, decode);
        ring2_call_end();
        ring2_expect_bits("out", &b.out, &a.out);
    }
}

/* ---- Traps ---- */

/* The same decay given as its logarithm, as itself, and raw. */
static void trap_1_gate_space(void)
{
    for (int i = 0; i < 4; i++) {
        const bool decode = i & 1;
        gdn_rule_args a = sequence(40, gva, 32, 32, NULL), b = ring2_rule_clone(&a);
        struct ring2_rule m;
        for (int64_t j = 0; j < ring2_count(&b.g); j++) { /* exact in either form: 2^-n */
            const double n = (double)ring2_below(3);
            ring2_set(&a.g, j, -n * log(2));
            ring2_set(&b.g, j, i & 2 ? (n == 0 ? -200 : log(expm1(n * log(2)))) : exp2(-n));
        }
        b.gate = i & 2 ? GDN_GATE_RAW : GDN_GATE_LINEAR;
        if (i & 2) {
            b.A_log = ring2_new(GDN_F32, 0, 1, 4, 0, 0, 0);
            ring2_fill_value(&b.A_log, 0);
        }
        ring2_rule_model(&b, decode, &m);
        call(ring2_ctx(2), &a, decode);
        call(ring2_ctx(2), &b, decode);
        expect_close("out", &b.out, &a.out, m.out_limit);
        expect_close("state", &b.state, &a.state, m.state_limit);
    }
}

static void trap_2_orientation(void)
{
    for (int decode = 0; decode < 2; decode++) {
        gdn_rule_args a = sequence(20, gva, 32, 48, NULL);
        gdn_rule_args vk = sequence(20, gva, 60, 60, NULL), kv = ring2_rule_clone(&vk);
        struct ring2_rule m;
        a.state_layout = GDN_STATE_KV; /* but the pool is [P][H][V][K] */
        ring2_call_begin();
        ring2_status(ring2_ctx(1), "KV", ring2_rule_call(ring2_ctx(1), &a, decode), GDN_E_SHAPE);
        ring2_call_end();
        CHECK(strstr(gdn_last_error(ring2_ctx(1)), "state"), "the error does not name the state");

        ring2_rule_model(&vk, decode, &m);
        kv.state_layout = GDN_STATE_KV;
        for (int64_t i = 0; i < ring2_count(&kv.state); i++) {
            const gdn_tensor turned = ring2_swap(&vk.state, 2, 3);
            ring2_set(&kv.state, i, ring2_get(&turned, i));
        }
        call(ring2_ctx(1), &vk, decode);
        call(ring2_ctx(1), &kv, decode);
        kv.state = ring2_swap(&kv.state, 2, 3);
        expect_close("out", &kv.out, &vk.out, m.out_limit);
        expect_close("state", &kv.state, &vk.state, m.state_limit);
    }
}

/* From a zero state, with K = V = 1 and one token, o = q k v. */
static void trap_3_head_map(void)
{
    static const double grouped[4] = { 1 * 3 * 5, 1 * 3 * 7, 2 * 4 * 11, 2 * 4 * 13 };
    static const double interleaved[4] = { 1 * 3 * 5, 2 * 4 * 7, 1 * 3 * 11, 2 * 4 * 13 };
    static const double v[4] = { 5, 7, 11, 13 };
    for (int i = 0; i < 4; i++) {
        gdn_rule_args a = sequence(1, gva, 1, 1, NULL);
        a.g.data = a.beta.data = a.state.data = NULL;
        a.head_map = i & 2 ? GDN_HEADS_INTERLEAVED : GDN_HEADS_GROUPED;
        for (int h = 0; h < 2; h++) ring2_set(&a.q, h, 1 + h), ring2_set(&a.k, h, 3 + h);
        for (int h = 0; h < 4; h++) ring2_set(&a.v, h, v[h]);
        call(ring2_ctx(1), &a, i & 1);
        for (int h = 0; h < 4; h++)
            CHECK(ring2_get(&a.out, h) == (i & 2 ? interleaved : grouped)[h], "head %d: %g", h,
                  ring2_get(&a.out, h));
    }
}

/* k = (3, 4), eps = 7: the length is sqrt(25 + 7), 5 + 7 or max(5, 7); without a norm 1. */
static void trap_4_norm_formulas(void)
{
    const double length[] = { 1, sqrt(32), 12, 7, 1 };
    for (int i = 0; i < 10; i++) {
        gdn_rule_args a = sequence(1, one, 2, 1, NULL);
        const double want = 25 / (length[i / 2] * length[i / 2]);
        a.g.data = a.beta.data = a.state.data = NULL;
        a.norm = i / 2;
        a.norm_eps = 7;
        a.scale = 1;
        for (int x = 0; x < 2; x++) ring2_set(&a.q, x, 3 + x), ring2_set(&a.k, x, 3 + x);
        ring2_set(&a.v, 0, 1);
        call(ring2_ctx(1), &a, i & 1);
        CHECK(fabs(ring2_get(&a.out, 0) - want) <= 0x1p-20 * want, "formula %d: %g, expected %g",
              i / 2, ring2_get(&a.out, 0), want);
    }
}

static void trap_5_negative_slots(void)
{
    static const int64_t sizes[3] = { 12, 3, 7 }, slots[3] = { 1, -1, 0 };
    for (int i = 0; i < 6; i++) {
        gdn_batch *t;
        gdn_rule_args a = ring2_rule_packed(GDN_F32, GDN_F32, 3, sizes, gva, 16, 24, &t);
        const gdn_rule_args padding = ring2_rule_slice(&a, 12, 3);
        t->read_slots = ring2_indices(i & 1 ? GDN_I32 : GDN_I64, 3, slots);
        t->pad_policy = i / 2;
        t->sink_slot = 2;
        ring2_fill_value(&a.out, 77);
        ring2_rule_check(ring2_ctx(2), &a, i & 1);
        if (t->pad_policy != GDN_PAD_SINK)
            CHECK(ring2_get(&padding.out, 5) == (t->pad_policy == GDN_PAD_ZERO ? 0 : 77),
                  "policy %d: %g", t->pad_policy, ring2_get(&padding.out, 5));
    }
}

static void trap_6_empty_sequence(void)
{
    static const int64_t sizes[3] = { 12, 0, 7 };
    for (int decode = 0; decode < 2; decode++) {
        gdn_rule_args a = ring2_rule_packed(GDN_F32, GDN_F32, 3, sizes, gva, 16, 24, NULL);
        gdn_tensor row;
        a.state_out = ring2_clone(&a.state);
        ring2_fill_value(&a.state_out, 77);
        ring2_rule_check(ring2_ctx(2), &a, decode);
        row = ring2_select(&a.state_out, 0, 1);
        CHECK(ring2_get(&row, 9) == 77, "the empty sequence's state_out is %g", ring2_get(&row, 9));
    }
}

static void trap_10_scale_zero_is_the_default(void)
{
    for (int decode = 0; decode < 2; decode++) {
        gdn_rule_args a = sequence(20, gva, 64, 24, NULL), b = ring2_rule_clone(&a);
        b.scale = 0.125f; /* 1 / sqrt(64), exactly */
        call(ring2_ctx(2), &a, decode);
        call(ring2_ctx(2), &b, decode);
        ring2_expect_bits("out", &b.out, &a.out);
    }
}

/* Output of tokens past cu_seqlens[B] is zero. */
static void tail_is_zero(void)
{
    for (int decode = 0; decode < 2; decode++) {
        gdn_batch *t;
        gdn_rule_args a = sequence(20, gva, 64, 24, &t), tail;
        ring2_set(&t->cu_seqlens, 1, 13);
        ring2_rule_check(ring2_ctx(2), &a, decode);
        tail = ring2_rule_slice(&a, 13, 7);
        for (int64_t i = 0; i < ring2_count(&tail.out); i++)
            CHECK(ring2_get(&tail.out, i) == 0, "token past the end: %g", ring2_get(&tail.out, i));
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "linear in v", linear_in_v },
        { "heads shared or copied", heads_shared_or_copied },
        { "heads interleaved or grouped", heads_interleaved_or_grouped },
        { "chunked or recurrent", chunked_or_recurrent },
        { "a NaN stays where it is", a_nan_stays_where_it_is },
        { "a NaN is forgotten", a_nan_is_forgotten },
        { "rollback is a replay", rollback_is_a_replay },
        { "commit only", commit_only },
        { "frozen states stay", frozen_states_stay },
        { "tail is zero", tail_is_zero },
        { "trap 1: gate space", trap_1_gate_space },
        { "trap 2: state orientation", trap_2_orientation },
        { "trap 3: head map", trap_3_head_map },
        { "trap 4: norm formulas", trap_4_norm_formulas },
        { "trap 5: negative slots", trap_5_negative_slots },
        { "trap 6: empty sequence", trap_6_empty_sequence },
        { "trap 10: scale 0", trap_10_scale_zero_is_the_default },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
