/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu */
/*
 * gdn_conv1d with trees of drafted tokens, with paths that commit them, and with checkpoints. Each
 * has the bits of plain calls that do the same.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ring2.h"

enum { B = 4, T = 12, MOST = 3 * T };

/* The shapes of the tests. */
static const struct shape {
    int32_t dtype, state, left; /* left: dtype of the checkpoints */
    bool turned, left_turned;   /* channels last */
    int64_t D, W, S;
} shapes[] = {
    { GDN_F32, GDN_F32, GDN_F32, false, false, 7, 4, 3 },
    { GDN_BF16, GDN_F32, GDN_BF16, true, false, 130, 2, 1 },
    { GDN_F16, GDN_F16, GDN_F32, false, true, 64, 8, 9 },
    { GDN_F32, GDN_BF16, GDN_F16, true, true, 1300, 3, 5 },
    { GDN_BF16, GDN_BF16, GDN_F32, false, false, 700, 4, 4 },
    { GDN_F32, GDN_BF16, GDN_F32, true, false, 140, 15, 17 },
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };
#define FOR_EACH_SHAPE(s) for (const struct shape *s = shapes; s < shapes + N_SHAPES; s++)

static gdn_tensor pool(const struct shape *s, int32_t dtype, int64_t P, bool turned)
{
    const gdn_tensor t = ring2_turned(turned, dtype, turned ? 2 : s->W % 2, 3, P, s->D, s->S, 0);
    ring2_fill(&t, -1, 1);
    return t;
}

/* [B][T], a state for every sequence and P - B slots more. */
static gdn_conv1d_args make_call(const struct shape *s, int64_t P, gdn_batch *t)
{
    gdn_conv1d_args a = gdn_conv1d_args_init();
    a.x = ring2_new(s->dtype, 1, 3, B, T, s->D, 0);
    a.out = ring2_new(s->dtype, 0, 3, B, T, s->D, 0);
    a.weight = ring2_new(GDN_F32, 0, 2, s->D, s->W, 0, 0);
    a.bias = ring2_new(GDN_F32, 0, 1, s->D, 0, 0, 0);
    a.state = pool(s, s->state, P, s->turned);
    ring2_fill(&a.x, -1, 1), ring2_fill(&a.weight, -1, 1), ring2_fill(&a.bias, -1, 1);
    a.activation = GDN_ACT_SILU;
    *t = gdn_batch_init();
    a.batch = t;
    return a;
}

static gdn_conv1d_args clone(const gdn_conv1d_args *a)
{
    gdn_conv1d_args b = *a;
    b.x = ring2_clone(&a->x), b.out = ring2_clone(&a->out), b.state = ring2_clone(&a->state);
    b.state_out = ring2_clone(&a->state_out), b.checkpoints = ring2_clone(&a->checkpoints);
    return b;
}

static void call(gdn_ctx *ctx, const gdn_conv1d_args *a)
{
    ring2_status(ctx, "gdn_conv1d", gdn_conv1d(ctx, a), GDN_OK);
}

/* The tokens at[0..n) of sequence b one after the other from its state in slot b; the final
 * state in a pool of the given dtype. No batch. */
static gdn_conv1d_args chain(const gdn_conv1d_args *a, const struct shape *s, int64_t b, int64_t n,
                             const int64_t *at, int32_t dtype)
{
    gdn_conv1d_args r = *a;
    r.x = ring2_new(s->dtype, 0, 2, n, s->D, 0, 0);
    r.out = ring2_new(s->dtype, 0, 2, n, s->D, 0, 0);
    for (int64_t i = 0; i < n; i++) {
        const gdn_tensor row = ring2_select(&a->x, 0, b);
        const gdn_tensor from = ring2_narrow(&row, 0, at[i], 1), to = ring2_narrow(&r.x, 0, i, 1);
        ring2_copy(&to, &from);
    }
    if (a->state.data) r.state = ring2_narrow(&a->state, 0, b, 1);
    r.state_out = pool(s, dtype, 1, false);
    r.checkpoints.data = NULL;
    r.batch = NULL;
    call(ring2_ctx(1), &r);
    return r;
}

/* ---- Trees --------------------------------------------------------------------------------- */

/* Any tree: chains, forks, several roots. */
static void grow(int64_t parent[B][T])
{
    for (int b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++)
            parent[b][t] = b == 0 ? t - 1 : b == 1 ? -1 : ring2_below(t + 1) - 1;
}

static gdn_tensor table(int32_t dtype, const int64_t *values, int64_t columns)
{
    gdn_tensor t = ring2_new(dtype, 3, 2, B, columns, 0, 0);
    for (int64_t i = 0; i < B * columns; i++) ring2_set(&t, i, (double)values[i]);
    return t;
}

/* The tokens that t follows, and t. */
static int64_t branch(const int64_t *parent, int64_t t, int64_t *at)
{
    const int64_t n = t < 0 ? 0 : branch(parent, parent[t], at) + 1;
    if (n) at[n - 1] = t;
    return n;
}

static void expect_token(const gdn_conv1d_args *before, const gdn_conv1d_args *got,
                         const struct shape *s, const int64_t *parent, int64_t b, int64_t t)
{
    int64_t at[T];
    const int64_t n = branch(parent, t, at);
    const gdn_conv1d_args r = chain(before, s, b, n, at, s->state);
    const gdn_tensor row = ring2_select(&got->out, 0, b);
    const gdn_tensor out = ring2_narrow(&row, 0, t, 1);
    const gdn_tensor want = ring2_narrow(&r.out, 0, n - 1, 1);
    const gdn_tensor state = ring2_narrow(&got->state, 0, B + b * T + t, 1);
    ring2_expect_bits("a token of a tree", &out, &want);
    ring2_expect_bits("the state after it", &state, &r.state_out);
    if (t < T - 1) return;
    const gdn_tensor left = ring2_narrow(&got->checkpoints, 0, b * 2 + 1, 1);
    const gdn_conv1d_args last = chain(before, s, b, n, at, s->left);
    ring2_expect_bits("its checkpoint", &left, &last.state_out);
}

/* Every token of a tree has the bits of the chain of those it follows: output, state, and the
 * checkpoints after 5 tokens and after all. out may be x. */
static void trees(void)
{
    static int64_t parent[B][T], slots[B][T];
    FOR_EACH_SHAPE(s) for (int i = 0; i < 2; i++)
    {
        gdn_batch t;
        gdn_conv1d_args a = make_call(s, B + B * T, &t), before;
        static const int64_t starts[B + 1] = { 0, 2, 4, 6, 8 };
        static const int64_t at[2 * B] = { 5, T, 5, T, 5, T, 5, T };
        grow(parent);
        for (int j = 0; j < B * T; j++) slots[j / T][j % T] = B + j;
        t.parents = table(i ? GDN_I32 : GDN_I64, parent[0], T);
        t.write = GDN_WRITE_EACH;
        t.write_slots = table(GDN_I32, slots[0], T);
        t.checkpoint_starts = ring2_indices(GDN_I32, B + 1, starts);
        t.checkpoint_positions = ring2_indices(GDN_I32, 2 * B, at);
        a.checkpoints = pool(s, s->left, 2 * B, s->left_turned);
        before = clone(&a);
        if (i) a.out = a.x;
        ring2_call_begin();
        ring2_may_write(&a.out), ring2_may_write(&a.checkpoints);
        const gdn_tensor written = ring2_narrow(&a.state, 0, B, B * T);
        ring2_may_write(&written);
        call(ring2_ctx(1 + i * 2), &a);
        ring2_call_end();
        for (int64_t b = 0; b < B; b++)
            for (int64_t j = 0; j < T; j++) expect_token(&before, &a, s, parent[b], b, j);
        for (int64_t b = 0; b < B; b++) {
            int64_t line[T];
            const int64_t n = branch(parent[b], 4, line);
            const gdn_conv1d_args r = chain(&before, s, b, n, line, s->left);
            const gdn_tensor left = ring2_narrow(&a.checkpoints, 0, b * 2, 1);
            ring2_expect_bits("a checkpoint", &left, &r.state_out);
        }
    }
}

/* The final state is that after the last token that counts; a slot to itself is read and
 * written; left padding; a padding row that sinks has a tree of its own. */
static void final_states(void)
{
    static int64_t parent[B][T];
    static const int64_t start[B] = { 0, 3, 0, 1 }, count[B] = { 12, 7, 0, 10 };
    static const int64_t slots[B] = { 0, 1, 2, -1 };
    FOR_EACH_SHAPE(s)
    {
        gdn_batch t;
        gdn_conv1d_args a = make_call(s, B, &t), before;
        grow(parent);
        t.parents = table(GDN_I32, parent[0], T);
        t.token_start = ring2_indices(GDN_I32, B, start);
        t.token_count = ring2_indices(GDN_I32, B, count);
        t.read_slots = ring2_indices(GDN_I64, B, slots);
        t.pad_policy = GDN_PAD_SINK;
        t.sink_slot = 3;
        before = clone(&a);
        call(ring2_ctx(2), &a);
        for (int64_t b = 0; b < B; b++) {
            int64_t at[T], n = branch(parent[b], count[b] - 1, at);
            gdn_tensor state = ring2_narrow(&a.state, 0, b, 1);
            gdn_tensor was = ring2_narrow(&before.state, 0, b, 1);
            for (int64_t i = 0; i < n; i++) at[i] += start[b];
            if (n) was = chain(&before, s, b, n, at, s->state).state_out;
            ring2_expect_bits("final", &state, &was);
        }
    }
}

/* ---- Paths --------------------------------------------------------------------------------- */

/* Committing a path is feeding its inputs alone: final state, every state, checkpoints. */
static void paths(void)
{
    static const int64_t n[B] = { 1, 5, 0, 9 };
    FOR_EACH_SHAPE(s) for (int i = 0; i < 3; i++)
    {
        int64_t path[B][T] = { { 0 } }, slots[B][T], starts[B + 1] = { 0 }, at[B] = { 0 };
        gdn_batch t;
        gdn_conv1d_args a = make_call(s, B + B * T, &t), before;
        int n_left = 0;
        for (int b = 0; b < B; b++) {
            for (int64_t j = 0, k = 0; j < n[b]; k++)
                if (ring2_below(T - k) < n[b] - j) path[b][j++] = k;
            for (int j = 0; j < T; j++) slots[b][j] = j % 3 ? B + b * T + j : -1;
            if (n[b]) at[n_left++] = (n[b] + 1) / 2;
            starts[b + 1] = n_left;
        }
        t.path = table(GDN_I32, path[0], T);
        t.token_count = ring2_indices(GDN_I64, B, n);
        t.parents = i == 2 ? table(GDN_I32, slots[0], T) : (gdn_tensor){ 0 };
        if (i == 2) ring2_fill_value(&t.parents, -1);
        t.write = i == 1 ? GDN_WRITE_EACH : GDN_WRITE_FINAL;
        if (i == 1) t.write_slots = table(GDN_I32, slots[0], T);
        t.checkpoint_starts = ring2_indices(GDN_I32, B + 1, starts);
        t.checkpoint_positions = ring2_indices(GDN_I32, n_left, at);
        a.checkpoints = pool(s, s->left, n_left, s->left_turned);
        a.out.data = NULL;
        before = clone(&a);
        call(ring2_ctx(1 + i), &a);
        for (int64_t b = 0; b < B; b++) {
            gdn_tensor got = ring2_narrow(&a.state, 0, b, 1);
            gdn_tensor want = ring2_narrow(&before.state, 0, b, 1);
            if (n[b] && i != 1) want = chain(&before, s, b, n[b], path[b], s->state).state_out;
            ring2_expect_bits("final", &got, &want);
            for (int64_t j = 0; j < n[b] && i == 1; j++) {
                if (slots[b][j] < 0) continue;
                got = ring2_narrow(&a.state, 0, slots[b][j], 1);
                want = chain(&before, s, b, j + 1, path[b], s->state).state_out;
                ring2_expect_bits("after a token of the path", &got, &want);
            }
            if (!n[b]) continue;
            got = ring2_narrow(&a.checkpoints, 0, starts[b], 1);
            want = chain(&before, s, b, at[starts[b]], path[b], s->left).state_out;
            ring2_expect_bits("checkpoint", &got, &want);
        }
    }
}

/* To draft a tree and to commit a branch of it gives what decoding that branch gives. */
static void draft_and_commit(void)
{
    static int64_t parent[B][T];
    FOR_EACH_SHAPE(s)
    {
        gdn_batch t;
        gdn_conv1d_args a = make_call(s, B, &t), before;
        int64_t path[B][T] = { { 0 } }, n[B];
        grow(parent);
        t.parents = table(GDN_I32, parent[0], T);
        t.write = GDN_WRITE_NONE;
        before = clone(&a);
        call(ring2_ctx(2), &a);
        for (int b = 0; b < B; b++) n[b] = branch(parent[b], T - 1 - b, path[b]);
        gdn_conv1d_args commit = a;
        commit.out.data = NULL;
        t.write = GDN_WRITE_FINAL;
        t.path = table(GDN_I64, path[0], T);
        t.token_count = ring2_indices(GDN_I32, B, n);
        call(ring2_ctx(2), &commit);
        for (int64_t b = 0; b < B; b++) {
            const gdn_conv1d_args r = chain(&before, s, b, n[b], path[b], s->state);
            const gdn_tensor got = ring2_narrow(&commit.state, 0, b, 1);
            ring2_expect_bits("committed", &got, &r.state_out);
        }
    }
}

/* ---- Checkpoints --------------------------------------------------------------------------- */

/* Every n tokens, with and without a state, alone and beside the rest, in one pool with it. */
static void G18_every_n(void)
{
    static const int64_t line[T] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 };
    static const int step[4] = { 5, 1, 3, 2 };
    FOR_EACH_SHAPE(s) for (int kind = 0; kind < 4; kind++)
    {
        const int every = step[kind], per = T / every;
        const bool own = kind != 3; /* a pool of their own */
        gdn_batch t;
        gdn_conv1d_args a = make_call(s, own ? B : B + MOST * B, &t), without, before;
        int64_t slots[T * B];
        for (int j = 0; j < per * B; j++) slots[j] = own ? per * B - 1 - j : B + j;
        if (kind == 1) a.state.data = NULL;
        if (kind == 2) a.state.data = NULL, a.out.data = NULL;
        without = clone(&a);
        before = a;
        before.state = ring2_clone(&a.state);
        t.checkpoint_every = every;
        t.checkpoint_slots = ring2_indices(GDN_I64, per * B, slots);
        a.checkpoints = own ? pool(s, s->left, per * B, s->left_turned) : a.state;
        call(ring2_ctx(1 + kind % 3), &a);
        for (int j = 0; j < per * B; j++) {
            const gdn_tensor got = ring2_narrow(&a.checkpoints, 0, slots[j], 1);
            const gdn_conv1d_args r =
                chain(&before, s, j / per, (j % per + 1) * every, line, own ? s->left : s->state);
            ring2_expect_bits("checkpoint", &got, &r.state_out);
        }
        t.checkpoint_slots.data = NULL;
        if (kind == 2) continue;
        t.checkpoint_every = 0;
        call(ring2_ctx(1), &without);
        ring2_expect_bits("out", &a.out, &without.out);
        if (!a.state.data) continue;
        const gdn_tensor got = ring2_narrow(&a.state, 0, 0, B);
        const gdn_tensor want = ring2_narrow(&without.state, 0, 0, B);
        ring2_expect_bits("state", &got, &want);
    }
}

/* Packed, with empty sequences and a list in which a position comes twice. */
static void G18_lists(void)
{
    static const int64_t cu[5] = { 0, 20, 20, 21, 48 }, starts[5] = { 0, 3, 3, 4, 8 };
    static const int64_t at[8] = { 1, 7, 20, 1, 2, 9, 9, 27 }, row[8] = { 0, 0, 0, 2, 3, 3, 3, 3 };
    static const int64_t slots[8] = { 4, 0, -1, 2, 5, 1, 3, 6 };
    FOR_EACH_SHAPE(s)
    {
        gdn_batch t;
        gdn_conv1d_args a = make_call(s, 4, &t), before;
        a.x = ring2_new(s->dtype, 0, 2, 48, s->D, 0, 0);
        a.out = ring2_new(s->dtype, 0, 2, 48, s->D, 0, 0);
        ring2_fill(&a.x, -1, 1);
        t.cu_seqlens = ring2_indices(GDN_I32, 5, cu);
        t.checkpoint_starts = ring2_indices(GDN_I64, 5, starts);
        t.checkpoint_positions = ring2_indices(GDN_I64, 8, at);
        t.checkpoint_slots = ring2_indices(GDN_I32, 8, slots);
        a.checkpoints = pool(s, s->left, 8, s->left_turned);
        before = clone(&a);
        call(ring2_ctx(3), &a);
        for (int i = 0; i < 8; i++) {
            gdn_conv1d_args r = before;
            r.x = ring2_narrow(&before.x, 0, cu[row[i]], at[i]);
            r.out = ring2_narrow(&before.out, 0, cu[row[i]], at[i]);
            r.state = ring2_narrow(&before.state, 0, row[i], 1);
            r.state_out = pool(s, s->left, 1, false);
            r.batch = NULL;
            r.checkpoints = (gdn_tensor){ 0 };
            if (slots[i] < 0) continue;
            call(ring2_ctx(1), &r);
            const gdn_tensor got = ring2_narrow(&a.checkpoints, 0, slots[i], 1);
            ring2_expect_bits("checkpoint", &got, &r.state_out);
        }
    }
}

/* ---- G1 ------------------------------------------------------------------------------------ */

static gdn_conv1d_args spoilt;
static gdn_batch its;

#define REFUSE(seen, status, needle, ...)                                    \
    do {                                                                     \
        gdn_conv1d_args *a = &spoilt;                                        \
        gdn_batch *t = &its;                                                 \
        *a = make_call(&shapes[0], 9, t), (void)a, (void)t;                  \
        a->checkpoints = pool(&shapes[0], GDN_F32, 9, false);                \
        t->checkpoint_every = 100;                                           \
        __VA_ARGS__;                                                         \
        ring2_refused(ring2_ctx(1), GDN_OP_CONV1D, a, seen, status, needle); \
    } while (0)

static void G1_refused(void)
{
    static const int64_t zeros[B * T] = { 0 }, starts[B + 1] = { 0, 1, 1, 1, 1 }, one[1] = { 1 };
    const gdn_tensor tree = table(GDN_I32, zeros, T), count = ring2_indices(GDN_I32, B, zeros);
    REFUSE(RING2_CONTENTS, GDN_E_ARG, "parents", t->parents = tree); /* token 0 follows itself */
    REFUSE(RING2_CONTENTS, GDN_E_SHAPE, "parents", t->parents = ring2_narrow(&tree, 1, 0, 5));
    REFUSE(RING2_STRUCT, GDN_E_SHAPE, "parents", t->parents = ring2_narrow(&tree, 0, 0, 2));
    REFUSE(RING2_STRUCT, GDN_E_ARG, "out", t->path = tree, t->token_count = count);
    REFUSE(RING2_STRUCT, GDN_E_ARG, "token_count", t->path = tree, a->out.data = NULL);
    REFUSE(RING2_STRUCT, GDN_E_SHAPE, "checkpoints: 3 entries",
           a->state = pool(&shapes[2], GDN_F32, 9, false),
           a->x.size[2] = a->out.size[2] = a->weight.size[0] = 7,
           a->bias.size[0] = a->state.size[1] = 7);
    REFUSE(RING2_STRUCT, GDN_E_DTYPE, "checkpoints", a->checkpoints.dtype = GDN_I32);
    REFUSE(RING2_STRUCT, GDN_E_SHAPE, "checkpoints", a->checkpoints.size[1] = 6);
    REFUSE(RING2_STRUCT, GDN_E_SHAPE, "checkpoints", a->state.data = NULL,
           a->checkpoints = ring2_narrow(&a->checkpoints, 2, 0, 2));
    REFUSE(RING2_STRUCT, GDN_E_SHAPE, "checkpoints", a->checkpoints.stride[0] = 1);
    REFUSE(RING2_STRUCT, GDN_E_ARG, "checkpoints",
           a->checkpoints = ring2_narrow(&a->state, 0, 3, 5));
    REFUSE(RING2_STRUCT, GDN_E_ARG, "checkpoints", a->state_out = pool(&shapes[0], GDN_F32, 9, 0),
           a->checkpoints = a->state);
    REFUSE(RING2_STRUCT, GDN_E_ARG, "checkpoint_positions: absent, and checkpoint_every is 0",
           t->checkpoint_every = 0);
    REFUSE(RING2_STRUCT, GDN_E_ARG, "checkpoints: absent, wanted with checkpoint_every",
           a->checkpoints.data = NULL);
    REFUSE(RING2_CONTENTS, GDN_E_ARG, "slot 0", t->checkpoint_every = 0,
           t->checkpoint_starts = ring2_indices(GDN_I32, B + 1, starts),
           t->checkpoint_positions = ring2_indices(GDN_I32, 1, one), a->checkpoints = a->state);
    REFUSE(RING2_STRUCT, GDN_E_ARG, "out: absent", a->out.data = a->checkpoints.data = NULL,
           t->checkpoint_every = 0, t->write = GDN_WRITE_NONE);
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "a token of a tree has the bits of its chain", trees },
        { "final states of trees", final_states },
        { "paths", paths },
        { "draft and commit", draft_and_commit },
        { "G18 every n tokens", G18_every_n },
        { "G18 lists", G18_lists },
        { "G1 refused", G1_refused },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
