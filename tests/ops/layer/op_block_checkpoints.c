/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu */
/*
 * Checkpoints of gdn_block, of both kinds, also between windows. A checkpoint must equal the final
 * state of a call that ends there.
 */
#include <stdio.h>
#include <string.h>

#include "ring2.h"
#include "ring2_device.h"

enum { HIDDEN = 24, HK = 2, HV = 4, K = 16, V = 24, W = 4, D = 2 * HK * K + HV * V, B = 6 };
static const int64_t lengths[B] = { 20, 0, 300, 9, 600, 33 };
enum { N = 962 };

struct kind {
    int32_t dtype, states, left, layout; /* left: dtype of the checkpoints */
    int64_t S;
    bool turned; /* conv_checkpoints: channels last; checkpoints: the other dimension dense */
};
static const struct kind kinds[] = {
    { GDN_F32, GDN_F32, GDN_F32, GDN_STATE_VK, 3, false },
    { GDN_BF16, GDN_F32, GDN_BF16, GDN_STATE_KV, 7, true },
    { GDN_F16, GDN_F16, GDN_F32, GDN_STATE_VK, 4, true },
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static gdn_tensor random_weight(int64_t rows, int64_t columns, double size)
{
    gdn_tensor t = columns ? ring2_new(GDN_F32, 0, 2, rows, columns, 0, 0)
                           : ring2_new(GDN_F32, 0, 1, rows, 0, 0, 0);
    ring2_fill(&t, -size, size);
    return t;
}

static gdn_tensor states(const struct kind *k, int32_t dtype, int64_t P, bool turned)
{
    const bool vk = k->layout == GDN_STATE_VK;
    const gdn_tensor t = ring2_turned(turned, dtype, turned, 4, P, HV, vk ? V : K, vk ? K : V);
    ring2_fill(&t, -0.5, 0.5);
    return t;
}

static gdn_tensor conv_states(const struct kind *k, int32_t dtype, int64_t P, bool turned)
{
    const gdn_tensor t = ring2_turned(turned, dtype, turned ? 2 : 0, 3, P, D, k->S, 0);
    ring2_fill(&t, -1, 1);
    return t;
}

/* A packed batch, in place in slots b, with P slots. */
static gdn_block_args make_call(const struct kind *k, int64_t P, gdn_batch *t)
{
    int64_t cu[B + 1] = { 0 };
    gdn_block_args a = gdn_block_args_init();
    a.hidden = ring2_new(k->dtype, 3, 2, N, HIDDEN, 0, 0);
    a.out = ring2_new(k->dtype, 5, 2, N, HIDDEN, 0, 0);
    ring2_fill(&a.hidden, -1, 1);
    a.in_proj_qkvz = random_weight(D + HV * V, HIDDEN, 0.4);
    a.in_proj_ba = random_weight(2 * HV, HIDDEN, 0.4);
    a.conv_weight = random_weight(D, W, 0.5);
    a.A_log = random_weight(HV, 0, 1);
    a.dt_bias = random_weight(HV, 0, 1);
    a.norm_weight = random_weight(V, 0, 2);
    a.out_proj = random_weight(HIDDEN, HV * V, 0.2);
    a.n_key_heads = HK, a.n_value_heads = HV, a.key_head_dim = K, a.value_head_dim = V;
    a.state_layout = k->layout;
    /* With weights of float32, the order of cuBLAS's sums may depend on the number of tokens. */
    a.flags = GDN_BATCH_INVARIANT;
    if (ring2_on_device() && k->dtype == GDN_F32) a.flags |= GDN_EXACT;
    a.state = states(k, k->states, P, false);
    a.conv_state = conv_states(k, k->states, P, false);
    for (int b = 0; b < B; b++) cu[b + 1] = cu[b] + lengths[b];
    *t = gdn_batch_init();
    t->cu_seqlens = ring2_indices(GDN_I32, B + 1, cu);
    a.batch = t;
    return a;
}

static gdn_block_args clone(const gdn_block_args *a)
{
    gdn_block_args b = *a;
    b.out = ring2_clone(&a->out), b.state = ring2_clone(&a->state);
    b.conv_state = ring2_clone(&a->conv_state);
    b.checkpoints = b.conv_checkpoints = (gdn_tensor){ 0 };
    return b;
}

static void call(gdn_ctx *ctx, const gdn_block_args *a)
{
    ring2_status(ctx, "gdn_block", gdn_block(ctx, a), GDN_OK);
}

/* ---- Lists --------------------------------------------------------------------------------- */

enum { MOST = 256 };
struct left {
    int n;
    int64_t row[MOST], tokens[MOST], slot[MOST];
};

/* every 0: some here and there, and 2 tokens after each place where a window may end. */
static void leave(gdn_batch *t, int64_t every, struct left *l)
{
    int64_t starts[B + 1] = { 0 };
    l->n = 0;
    for (int b = 0; b < B; b++) {
        for (int64_t n = 1; n <= lengths[b]; n++) {
            const bool some = n == lengths[b] || ring2_below(40) == 0 || n % 16 == 2;
            if (every ? n % every : !some) continue;
            l->row[l->n] = b, l->tokens[l->n] = n, l->slot[l->n] = l->n;
            l->n++;
        }
        starts[b + 1] = l->n;
    }
    t->checkpoint_every = every;
    if (every) return;
    t->checkpoint_starts = ring2_indices(GDN_I64, B + 1, starts);
    t->checkpoint_positions = ring2_indices(GDN_I32, l->n, l->tokens);
}

/* From `first` on, from the last to the first; every fifth is not wanted. */
static void choose_slots(gdn_batch *t, int64_t first, struct left *l)
{
    for (int i = 0; i < l->n; i++) l->slot[i] = i % 5 == 3 ? -1 : first + l->n - 1 - i;
    t->checkpoint_slots = ring2_indices(GDN_I32, l->n, l->slot);
}

/* The rule on 8 tokens or fewer goes token by token: another form than in the whole call. */
static bool is_exact(const struct left *l, int i) { return l->tokens[i] > 8; }

static void expect_checkpoints(const gdn_block_args *before, const gdn_tensor *rule,
                               const gdn_tensor *conv, const struct kind *k, const struct left *l)
{
    for (int i = 0; i < l->n; i++) {
        const int64_t first = (int64_t)ring2_get(&before->batch->cu_seqlens, l->row[i]);
        gdn_block_args r = *before;
        gdn_batch one = gdn_batch_init();
        const int64_t from[1] = { 0 }, to[1] = { 1 };
        gdn_tensor pools[2] = { states(k, k->left, 2, false), conv_states(k, k->left, 2, false) };
        if (l->slot[i] < 0) continue;
        /* A state is updated in place, so the pools are of the checkpoints' dtype; it starts
         * from one that this dtype holds exactly, or there is none. */
        for (int j = 0; j < 2; j++) {
            const gdn_tensor *old = j ? &before->conv_state : &before->state;
            gdn_tensor slot = ring2_narrow(&pools[j], 0, 0, 1), was;
            if (!old->data) continue;
            was = ring2_narrow(old, 0, l->row[i], 1);
            ring2_copy(&slot, &was);
        }
        one.read_slots = ring2_indices(GDN_I32, 1, from);
        one.write_slots = ring2_indices(GDN_I32, 1, to);
        r.hidden = ring2_narrow(&before->hidden, 0, first, l->tokens[i]);
        r.out = ring2_narrow(&before->out, 0, first, l->tokens[i]);
        r.state = pools[0], r.conv_state = pools[1];
        const int64_t initial[1] = { before->state.data != NULL };
        one.has_initial_state = ring2_indices(GDN_U8, 1, initial);
        r.batch = &one;
        call(ring2_ctx(1), &r);
        const gdn_tensor want = ring2_narrow(&r.state, 0, 1, 1);
        const gdn_tensor conv_want = ring2_narrow(&r.conv_state, 0, 1, 1);
        if (rule->data && is_exact(l, i)) {
            const gdn_tensor got = ring2_narrow(rule, 0, l->slot[i], 1);
            ring2_expect_bits("checkpoint", &got, &want);
        }
        if (conv->data) {
            const gdn_tensor got = ring2_narrow(conv, 0, l->slot[i], 1);
            ring2_expect_bits("conv_checkpoint", &got, &conv_want);
        }
    }
}

/* Values that every dtype here holds. */
static void round_states(gdn_block_args *a)
{
    gdn_tensor *t[2] = { &a->state, &a->conv_state };
    for (int j = 0; j < 2; j++)
        for (int64_t i = 0; i < ring2_count(t[j]); i++)
            ring2_set(t[j], i, (double)(int)(ring2_get(t[j], i) * 64) / 64);
}

/* ---- Tests --------------------------------------------------------------------------------- */

/* which: 0: checkpoints of both kinds; 1: of the rule; 2: of the convolution. */
static void check(const struct kind *k, int64_t every, int which, int threads)
{
    static struct left l;
    gdn_batch t;
    gdn_block_args a = make_call(k, B, &t), before, without;
    round_states(&a);
    leave(&t, every, &l);
    if (every != 100) choose_slots(&t, 1, &l);
    before = clone(&a);
    without = clone(&a);
    if (which != 2) a.checkpoints = states(k, k->left, l.n + 1, k->turned);
    if (which != 1) a.conv_checkpoints = conv_states(k, k->left, l.n + 1, k->turned);
    ring2_call_begin();
    ring2_may_write(&a.out), ring2_may_write(&a.state), ring2_may_write(&a.conv_state);
    for (int i = 0; i < l.n; i++)
        for (int j = 0; j < 2; j++) {
            const gdn_tensor *pool = j ? &a.conv_checkpoints : &a.checkpoints;
            if (!pool->data || l.slot[i] < 0) continue;
            const gdn_tensor slot = ring2_narrow(pool, 0, l.slot[i], 1);
            ring2_may_write(&slot);
        }
    call(ring2_ctx(threads), &a);
    ring2_call_end();
    const gdn_batch plain = ring2_no_checkpoints(&t);
    without.batch = &plain;
    call(ring2_ctx(1), &without);
    ring2_expect_bits("out", &a.out, &without.out);
    ring2_expect_bits("state", &a.state, &without.state);
    ring2_expect_bits("conv_state", &a.conv_state, &without.conv_state);
    expect_checkpoints(&before, &a.checkpoints, &a.conv_checkpoints, k, &l);
}

static void G18_every_n(void)
{
    for (int i = 0; i < N_KINDS; i++) check(&kinds[i], i == 0 ? 48 : i == 1 ? 77 : 100, 0, 1 + i);
}

static void G18_lists(void)
{
    for (int i = 0; i < N_KINDS; i++) check(&kinds[i], 0, i, 2);
}

/* Without states: checkpoints of the convolution longer than W - 1 through windows. */
static void G18_no_states(void)
{
    static struct left l;
    for (int i = 0; i < N_KINDS; i++) {
        gdn_batch t;
        gdn_block_args a = make_call(&kinds[i], B, &t), before;
        a.state.data = a.conv_state.data = NULL;
        leave(&t, 0, &l);
        before = clone(&a);
        a.checkpoints = states(&kinds[i], kinds[i].left, l.n, kinds[i].turned);
        a.conv_checkpoints = conv_states(&kinds[i], kinds[i].left, l.n, kinds[i].turned);
        call(ring2_ctx(2), &a);
        expect_checkpoints(&before, &a.checkpoints, &a.conv_checkpoints, &kinds[i], &l);
    }
}

/* In the pools of the states, also while those are frozen. */
static void G18_one_pool(void)
{
    static struct left l;
    for (int i = 0; i < 2 * N_KINDS; i++) {
        gdn_batch t;
        struct kind own = kinds[i / 2];
        gdn_block_args a = make_call(&own, B + 20, &t), before;
        own.left = own.states;
        round_states(&a);
        leave(&t, 100, &l);
        choose_slots(&t, B, &l);
        t.write = i % 2 ? GDN_WRITE_NONE : GDN_WRITE_FINAL;
        before = clone(&a);
        a.checkpoints = a.state;
        a.conv_checkpoints = a.conv_state;
        call(ring2_ctx(2), &a);
        expect_checkpoints(&before, &a.checkpoints, &a.conv_checkpoints, &own, &l);
    }
}

/* ---- States of 8 bits ---------------------------------------------------------------------- */

static gdn_tensor scales_of(int64_t P)
{
    gdn_tensor t = ring2_new(GDN_F32, 0, 3, P, HV, V, 0);
    ring2_fill_value(&t, 1);
    return t;
}

static gdn_tensor zeros(const struct kind *k, int32_t dtype, int64_t P)
{
    const bool vk = k->layout == GDN_STATE_VK;
    return vk ? ring2_new(dtype, 0, 4, P, HV, V, K) : ring2_new(dtype, 0, 4, P, HV, K, V);
}

static void convert(const struct kind *k, const gdn_tensor *from, const gdn_tensor *from_scales,
                    const gdn_tensor *to, const gdn_tensor *to_scales, int32_t rounding,
                    uint64_t seed)
{
    gdn_state_copy_args c = gdn_state_copy_args_init();
    c.from_pool = *from, c.to_pool = *to;
    c.from_layout = c.to_layout = k->layout;
    if (from_scales) c.from_scales = *from_scales;
    if (to_scales) c.to_scales = *to_scales;
    c.rounding = rounding, c.seed = seed;
    ring2_status(ring2_ctx(1), "gdn_state_copy", gdn_state_copy(ring2_ctx(1), &c), GDN_OK);
}

/* Checks slot by slot: slot s has what a call on float32 states leaves after n[s] tokens,
 * converted by gdn_state_copy. A slot of 0 tokens is unchanged. gdn_state_copy counts no tokens,
 * so its seed includes them. */
static void expect_converted(const char *what, const struct kind *k, const gdn_block_args *call,
                             const gdn_tensor *got, const gdn_tensor *got_scales,
                             const gdn_tensor *wide, const int64_t *n)
{
    const gdn_tensor want = zeros(k, got->dtype, 1), scales = scales_of(1);
    for (int64_t i = 0; i < got->size[0]; i++) {
        if (n[i] == 0) continue;
        const gdn_tensor a = ring2_narrow(got, 0, i, 1), from = ring2_narrow(wide, 0, i, 1);
        const gdn_tensor b = ring2_narrow(got_scales, 0, i, 1);
        convert(k, &from, NULL, &want, &scales, call->rounding, call->seed + (uint64_t)n[i]);
        ring2_expect_bits(what, &a, &want);
        ring2_expect_bits(what, &b, &scales);
    }
}

/* States and checkpoints of 8 bits are those of a float32 call between two conversions. */
static void eight(const struct kind *k, int32_t dtype, int32_t rounding)
{
    static struct left l;
    gdn_batch t;
    gdn_block_args a = make_call(k, B, &t), wide;
    leave(&t, 7, &l);
    a.flags = 0; /* GDN_EXACT rounds such states after every token */
    a.rounding = rounding, a.seed = ring2_bits();
    wide = clone(&a);
    a.state = zeros(k, dtype, B), a.state_scales = scales_of(B);
    convert(k, &wide.state, NULL, &a.state, &a.state_scales, GDN_ROUND_NEAREST, 0);
    convert(k, &a.state, &a.state_scales, &wide.state, NULL, GDN_ROUND_NEAREST, 0);
    a.checkpoints = zeros(k, dtype, l.n), a.checkpoint_scales = scales_of(l.n);
    wide.checkpoints = zeros(k, GDN_F32, l.n);
    ring2_call_begin();
    ring2_may_write(&a.out), ring2_may_write(&a.conv_state), ring2_may_write(&a.state);
    ring2_may_write(&a.state_scales), ring2_may_write(&a.checkpoints);
    ring2_may_write(&a.checkpoint_scales);
    call(ring2_ctx(2), &a);
    ring2_call_end();
    call(ring2_ctx(1), &wide);
    ring2_expect_bits("out", &a.out, &wide.out);
    ring2_expect_bits("conv_state", &a.conv_state, &wide.conv_state);
    expect_converted("state", k, &a, &a.state, &a.state_scales, &wide.state, lengths);
    expect_converted("checkpoints", k, &a, &a.checkpoints, &a.checkpoint_scales, &wide.checkpoints,
                     l.tokens);
}

static void G21_states_of_8_bits(void)
{
    for (int i = 0; i < 8; i++) {
        struct kind k = kinds[i % 2];
        k.states = GDN_F32;
        eight(&k, i / 2 % 2 ? GDN_E4M3 : GDN_I8, i / 4 ? GDN_ROUND_STOCHASTIC : GDN_ROUND_NEAREST);
    }
}

/* Floats of 8 bits without scales; and the same, apart in V and K. */
static void states_apart(void)
{
    for (int i = 0; i < 2; i++) {
        struct kind k = kinds[i];
        k.states = GDN_F32;
        gdn_batch t;
        gdn_block_args a = make_call(&k, B, &t), b;
        const gdn_tensor wide = a.state;
        const int64_t rows = k.layout ? K : V, columns = k.layout ? V : K;
        a.flags = 0;
        a.state = zeros(&k, GDN_E5M2, B);
        convert(&k, &wide, NULL, &a.state, NULL, GDN_ROUND_NEAREST, 0);
        b = clone(&a);
        b.state = ring2_new(GDN_E5M2, 0, 4, B, HV, rows, 3 * columns);
        b.state.size[3] = columns;
        b.state.stride[3] = 3;
        convert(&k, &a.state, NULL, &b.state, NULL, GDN_ROUND_NEAREST, 0);
        call(ring2_ctx(2), &a);
        call(ring2_ctx(1), &b);
        ring2_expect_bits("out", &b.out, &a.out);
        ring2_expect_bits("state", &b.state, &a.state);
    }
}

/* Rounded after every token: as calls of 100 tokens, row by row, with seeds that go on. */
static void G21_exact_calls_of_any_length(void)
{
    enum { PART = 100 };
    for (int i = 0; i < 2; i++) {
        const struct kind *k = &kinds[0];
        gdn_batch t;
        gdn_block_args a = make_call(k, B, &t), parts;
        const gdn_tensor wide = a.state;
        a.flags |= GDN_EXACT;
        a.rounding = GDN_ROUND_STOCHASTIC, a.seed = ring2_bits();
        a.state = zeros(k, i ? GDN_E4M3 : GDN_I8, B), a.state_scales = scales_of(B);
        convert(k, &wide, NULL, &a.state, &a.state_scales, GDN_ROUND_NEAREST, 0);
        parts = clone(&a);
        parts.state_scales = ring2_clone(&a.state_scales);
        call(ring2_ctx(2), &a);
        for (int64_t b = 0, first = 0; b < B; first += lengths[b++])
            for (int64_t n = 0; n < lengths[b]; n += PART) {
                const int64_t size = lengths[b] - n < PART ? lengths[b] - n : PART;
                gdn_block_args p = parts;
                p.batch = NULL;
                p.hidden = ring2_narrow(&parts.hidden, 0, first + n, size);
                p.out = ring2_narrow(&parts.out, 0, first + n, size);
                p.state = ring2_narrow(&parts.state, 0, b, 1);
                p.state_scales = ring2_narrow(&parts.state_scales, 0, b, 1);
                p.conv_state = ring2_narrow(&parts.conv_state, 0, b, 1);
                p.seed = parts.seed + (uint64_t)n;
                call(ring2_ctx(1), &p);
            }
        ring2_expect_bits("out", &a.out, &parts.out);
        ring2_expect_bits("conv_state", &a.conv_state, &parts.conv_state);
        ring2_expect_bits("state", &a.state, &parts.state);
        ring2_expect_bits("state_scales", &a.state_scales, &parts.state_scales);
    }
}

/* ---- G1 ------------------------------------------------------------------------------------ */

#define REFUSE(seen, status, needle, ...)                                   \
    do {                                                                    \
        gdn_batch t_, *t = &t_;                                             \
        gdn_block_args a_ = make_call(k, B + 20, t), *a = &a_;              \
        a->checkpoints = states(k, GDN_F32, 60, false);                     \
        a->conv_checkpoints = conv_states(k, GDN_F32, 60, false);           \
        t->checkpoint_every = 50;                                           \
        __VA_ARGS__;                                                        \
        ring2_refused(ring2_ctx(1), GDN_OP_BLOCK, a, seen, status, needle); \
    } while (0)

static void G1_refused(void)
{
    const struct kind *k = &kinds[0];
    REFUSE(RING2_STRUCT, GDN_E_SHAPE, "conv_checkpoints: 59 slots",
           a->conv_checkpoints.size[0] = 59);
    REFUSE(RING2_STRUCT, GDN_E_SHAPE, "conv_checkpoints: 4 entries",
           a->conv_checkpoints = conv_states(&kinds[2], GDN_F32, 60, false));
    REFUSE(RING2_STRUCT, GDN_E_SHAPE, "conv_checkpoints", a->conv_state.data = NULL,
           a->conv_checkpoints.size[2] = 2);
    REFUSE(RING2_STRUCT, GDN_E_SHAPE, "checkpoints", a->checkpoints.size[3] = 8);
    REFUSE(RING2_STRUCT, GDN_E_DTYPE, "checkpoints", a->checkpoints.dtype = GDN_I32);
    REFUSE(RING2_STRUCT, GDN_E_ARG, "checkpoints",
           a->checkpoints = ring2_narrow(&a->state, 0, 1, 20), a->conv_checkpoints.size[0] = 20);
    REFUSE(RING2_STRUCT, GDN_E_ARG, "conv_checkpoints",
           a->conv_checkpoints.data = a->conv_state.data, a->checkpoints.data = NULL);
    REFUSE(RING2_STRUCT, GDN_E_ARG, "checkpoint_every", t->checkpoint_every = -1);
    REFUSE(RING2_STRUCT, GDN_E_ARG, "checkpoint_positions: absent, and checkpoint_every is 0",
           t->checkpoint_every = 0);
    REFUSE(RING2_STRUCT, GDN_E_ARG, "checkpoints: absent, wanted with checkpoint_every",
           a->checkpoints.data = a->conv_checkpoints.data = NULL);
    REFUSE(RING2_CONTENTS, GDN_E_ARG, "checkpoint_slots: absent, so slot 11",
           a->checkpoints = ring2_narrow(&a->checkpoints, 0, 0, 11),
           a->conv_checkpoints = ring2_narrow(&a->conv_checkpoints, 0, 0, 11));
    REFUSE(RING2_CONTENTS, GDN_E_ARG, "slot 0", a->checkpoints = a->state,
           a->conv_checkpoints.size[0] = B + 20);
    REFUSE(RING2_CONTENTS, GDN_E_ARG, "slot 0", a->conv_checkpoints = a->conv_state,
           a->checkpoints.size[0] = B + 20, t->write = GDN_WRITE_NONE);
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "G18 every n tokens", G18_every_n },
        { "G18 lists", G18_lists },
        { "G18 without states", G18_no_states },
        { "G18 one pool for all", G18_one_pool },
        { "G21 states of 8 bits", G21_states_of_8_bits },
        { "states apart", states_apart },
        { "G21 GDN_EXACT: calls of any length", G21_exact_calls_of_any_length },
        { "G1 refused", G1_refused },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
