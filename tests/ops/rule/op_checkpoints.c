/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu */
/*
 * Checkpoints of gdn_prefill and gdn_decode. A checkpoint has the bits of the final state of a call
 * that ends there, and other tests judge such calls.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "oracle.h"
#include "ring2_device.h"
#include "ring2_rule.h"

/* ---- Calls --------------------------------------------------------------------------------- */

static const struct shape {
    int32_t dtype, state, left, layout; /* left: dtype of the checkpoints */
    bool turned;                        /* their other dimension is dense */
    int heads[3], map;
    int64_t K, V;
} shapes[] = {
    { GDN_F32, GDN_F32, GDN_F32, GDN_STATE_VK, false, { 2, 2, 4 }, 0, 32, 32 },
    { GDN_F32, GDN_F32, GDN_BF16, GDN_STATE_KV, true, { 1, 1, 3 }, 0, 30, 30 },
    { GDN_BF16, GDN_F32, GDN_F16, GDN_STATE_VK, true, { 4, 2, 2 }, 0, 64, 40 },
    { GDN_F16, GDN_BF16, GDN_F32, GDN_STATE_KV, false, { 1, 1, 2 }, 1, 17, 130 },
    { GDN_BF16, GDN_F16, GDN_BF16, GDN_STATE_VK, false, { 1, 1, 1 }, 0, 16, 7 },
    { GDN_BF16, GDN_F32, GDN_F16, GDN_STATE_KV, true, { 1, 1, 2 }, 0, 16, 296 },
    { GDN_BF16, GDN_F32, GDN_F32, GDN_STATE_VK, false, { 1, 1, 2 }, 0, 192, 136 },
    { GDN_BF16, GDN_BF16, GDN_F32, GDN_STATE_KV, false, { 1, 1, 1 }, 0, 32, 136 },
    { GDN_F16, GDN_F32, GDN_BF16, GDN_STATE_KV, false, { 1, 1, 1 }, 0, 256, 72 },
};
/* The last are for kernels of large heads, which a CPU does not have. */
enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_LARGE = 3 };
#define FOR_EACH_SHAPE(s)                \
    for (const struct shape *s = shapes; \
         s < shapes + N_SHAPES - (ring2_on_device() ? 0 : N_LARGE); s++)

enum { N_SEQS = 8 };
static const int64_t mixed[N_SEQS] = { 70, 9, 0, 17, 32, 33, 0, 15 }; /* all in chunks */
static const int64_t small[N_SEQS] = { 8, 0, 1, 5, 7, 8, 0, 2 };      /* all token by token */

static int n_state_heads(const struct shape *s)
{
    return s->heads[0] > s->heads[2] ? s->heads[0] : s->heads[2];
}

/* A pool of P slots [H][V][K], or [H][K][V] as the layout says. */
static gdn_tensor pool(const struct shape *s, int32_t dtype, int64_t P, int64_t gap, bool turned)
{
    const bool vk = s->layout == GDN_STATE_VK;
    const int64_t H = n_state_heads(s), row = vk ? s->V : s->K, column = vk ? s->K : s->V;
    const gdn_tensor t = ring2_turned(turned, dtype, gap, 4, P, H, row, column);
    ring2_fill(&t, -1, 1);
    return t;
}

static gdn_rule_args packed(const struct shape *s, const int64_t *lengths, gdn_batch **batch)
{
    gdn_rule_args a =
        ring2_rule_packed(s->dtype, s->state, N_SEQS, lengths, s->heads, s->K, s->V, batch);
    a.state = pool(s, s->state, N_SEQS, 0, false);
    a.state_layout = s->layout;
    a.head_map = s->map;
    return a;
}

static void run(gdn_ctx *ctx, const gdn_rule_args *args, bool decode)
{
    gdn_rule_args a = *args;
    a.flags |= GDN_BATCH_INVARIANT;
    ring2_status(ctx, decode ? "gdn_decode" : "gdn_prefill", ring2_rule_call(ctx, &a, decode),
                 GDN_OK);
}

/* ---- Lists of positions -------------------------------------------------------------------- */

enum { MOST = 512 };

/* The checkpoints of a batch by the words of gdn.h, number by number. */
struct left {
    int n;
    int64_t row[MOST], tokens[MOST], slot[MOST]; /* sequence, n, slot (below 0: not wanted) */
    bool poisoned; /* what follows is not finite: then Hopper holds G18 to rounding */
};

static void add(struct left *l, int64_t row, int64_t tokens)
{
    l->row[l->n] = row, l->tokens[l->n] = tokens, l->slot[l->n] = l->n;
    l->n++;
}

static void leave_every(gdn_batch *t, const int64_t *lengths, int64_t every, struct left *l)
{
    l->n = 0;
    t->checkpoint_every = every;
    for (int b = 0; b < N_SEQS; b++)
        for (int64_t n = every; n <= lengths[b]; n += every) add(l, b, n);
}

/* Lists a few checkpoints of each sequence: one position twice, and always the last token. */
static void leave_list(gdn_batch *t, const int64_t *lengths, struct left *l)
{
    int64_t starts[N_SEQS + 1] = { 0 };
    l->n = 0;
    for (int b = 0; b < N_SEQS; b++) {
        for (int64_t n = 1; n <= lengths[b]; n++)
            if (n == lengths[b] || ring2_below(10) == 0)
                for (int64_t i = ring2_below(3) == 0; i >= 0; i--) add(l, b, n);
        starts[b + 1] = l->n;
    }
    t->checkpoint_starts = ring2_indices(GDN_I32, N_SEQS + 1, starts);
    t->checkpoint_positions = ring2_indices(GDN_I64, l->n, l->tokens);
}

/* Slots in any order from `first` on, of which every fifth is not wanted. */
static void choose_slots(gdn_batch *t, struct left *l, int64_t first)
{
    for (int i = 0; i < l->n; i++) l->slot[i] = first + i;
    for (int i = l->n - 1; i > 0; i--) {
        const int64_t j = ring2_below(i + 1), slot = l->slot[i];
        l->slot[i] = l->slot[j], l->slot[j] = slot;
    }
    for (int i = 3; i < l->n; i += 5) l->slot[i] = -1 - i % 2;
    t->checkpoint_slots = ring2_indices(l->n % 2 ? GDN_I32 : GDN_I64, l->n, l->slot);
}

/* ---- What they must hold ------------------------------------------------------------------- */

/* The call on the first n tokens of sequence b of a packed batch, its final state in a slot of
 * the checkpoints' dtype. */
static gdn_rule_args first_tokens(const gdn_rule_args *a, const struct shape *s, int64_t b,
                                  int64_t n)
{
    const int64_t first = (int64_t)ring2_get(&a->batch->cu_seqlens, b);
    gdn_rule_args r = ring2_rule_slice(a, first, n);
    if (a->state.data) r.state = ring2_narrow(&a->state, 0, b, 1);
    r.state_out = pool(s, s->left, 1, 0, false);
    r.out = ring2_clone(&r.out);
    r.checkpoints = (gdn_tensor){ 0 };
    return r;
}

/* [n]... as one padded sequence, for gdn_decode. */
static gdn_rule_args as_padded(gdn_rule_args a)
{
    gdn_tensor *rows[] = { &a.q, &a.k, &a.v, &a.g, &a.beta, &a.out };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        gdn_tensor *t = rows[i];
        if (!t->data) continue;
        memmove(t->size + 1, t->size, sizeof *t->size * (GDN_MAX_DIMS - 1));
        memmove(t->stride + 1, t->stride, sizeof *t->stride * (GDN_MAX_DIMS - 1));
        t->size[0] = 1;
        t->stride[0] = 0;
        t->ndim++;
    }
    return a;
}

/* Returns true if both calls take the same form of the rule: then they have the same bits, else
 * they agree up to rounding. */
static bool is_exact(bool decode, int64_t T, int64_t n) { return decode || (T > 8) == (n > 8); }

/* before: the arguments as they were when the call was made. rounded: no bits are promised. */
static void expect_checkpoints(const gdn_rule_args *before, const gdn_tensor *got,
                               const struct shape *s, const struct left *l, bool decode,
                               bool rounded)
{
    for (int i = 0; i < l->n && !ring2_failed(); i++) {
        const gdn_tensor *cu = &before->batch->cu_seqlens;
        const int64_t b = l->row[i];
        const int64_t T = (int64_t)(ring2_get(cu, b + 1) - ring2_get(cu, b));
        gdn_rule_args r = first_tokens(before, s, b, l->tokens[i]);
        gdn_tensor mine;
        struct ring2_rule m;
        char what[64];
        if (l->slot[i] < 0) continue;
        if (decode) r = as_padded(r);
        mine = ring2_narrow(got, 0, l->slot[i], 1);
        snprintf(what, sizeof what, "checkpoint %d, sequence %d after %d", i, (int)b,
                 (int)l->tokens[i]);
        if (is_exact(decode, T, l->tokens[i]) && !rounded) {
            run(ring2_ctx(1), &r, decode);
            ring2_expect_bits(what, &mine, &r.state_out);
        } else {
            ring2_rule_model(&r, decode, &m);
            ring2_compare(what, &mine, m.state, m.state_limit, m.state_noise, NULL);
        }
    }
}

/*
 * G18 of one packed call in place: the same bits with and without checkpoints, nothing else
 * written, and each of them right. The pool of checkpoints has gaps and slots of no sequence.
 */
static void check(gdn_rule_args *a, const struct shape *s, const struct left *l, int threads,
                  bool decode)
{
    gdn_ctx *ctx = ring2_ctx(threads);
    const gdn_op op = decode ? GDN_OP_DECODE : GDN_OP_PREFILL;
    const gdn_rule_args before = ring2_rule_clone(a);
    gdn_rule_args without = ring2_rule_clone(a);
    a->checkpoints = pool(s, s->left, l->n + 2, 3, s->turned);
    ring2_give_workspace(ctx, op, a);
    const gdn_batch plain = ring2_no_checkpoints(a->batch);
    without.batch = &plain;
    run(ctx, &without, decode);
    ring2_call_begin();
    ring2_may_write(&a->out);
    ring2_may_write(&a->state);
    ring2_may_write_bytes(a->workspace, a->workspace_bytes);
    for (int i = 0; i < l->n; i++) {
        if (l->slot[i] < 0) continue;
        const gdn_tensor slot = ring2_narrow(&a->checkpoints, 0, l->slot[i], 1);
        ring2_may_write(&slot);
    }
    run(ctx, a, decode);
    ring2_call_end();
    const bool rounded = l->poisoned && strstr(gdn_last_kernel(ctx), "prefill_sm90");
    if (a->out.data) ring2_expect_bits("out", &a->out, &without.out);
    ring2_expect_bits("state", &a->state, &without.state);
    expect_checkpoints(&before, &a->checkpoints, s, l, decode, rounded);
}

/* ---- G18 ----------------------------------------------------------------------------------- */

static void every_n(const int64_t *lengths, bool decode)
{
    static const int64_t every[] = { 3, 16, 33, 100 };
    static struct left l;
    for (size_t i = 0; i < sizeof every / sizeof *every; i++) FOR_EACH_SHAPE(s)
        {
            gdn_batch *t;
            gdn_rule_args a = packed(s, lengths, &t);
            leave_every(t, lengths, every[i], &l);
            if (i % 2) choose_slots(t, &l, 0);
            check(&a, s, &l, 1 + (int)i % 3, decode);
        }
}

static void lists(const int64_t *lengths, bool decode)
{
    static struct left l;
    for (int i = 0; i < 2; i++) FOR_EACH_SHAPE(s)
        {
            gdn_batch *t;
            gdn_rule_args a = packed(s, lengths, &t);
            leave_list(t, lengths, &l);
            if (i % 2) choose_slots(t, &l, 1);
            check(&a, s, &l, 1 + i % 3, decode);
        }
}

static void G18_every_n(void) { every_n(mixed, false); }
static void G18_lists(void) { lists(mixed, false); }
static void G18_short_sequences(void) { every_n(small, false), lists(small, false); }
static void G18_decode(void) { every_n(mixed, true), lists(small, true); }

/* Gates that forget, betas of 0 over v of NaN, raw gates: chunks are cut in many ways. */
static void selections(bool decode)
{
    static struct left l;
    FOR_EACH_SHAPE(s) for (int raw = 0; raw < 2; raw++)
    {
        gdn_batch *t;
        gdn_rule_args a = packed(s, mixed, &t);
        const int64_t H = n_state_heads(s), row = s->heads[2] * s->V;
        for (int64_t i = 0; i < ring2_count(&a.g) && !raw; i++)
            if (ring2_below(9) == 0) ring2_set(&a.g, i, -(double)INFINITY);
        for (int64_t i = 0; i < a.q.size[0]; i++) {
            if (ring2_below(4)) continue;
            for (int64_t h = 0; h < H; h++) ring2_set(&a.beta, i * H + h, 0);
            for (int64_t j = 0; j < row; j++) ring2_set(&a.v, i * row + j, (double)NAN);
        }
        if (raw) {
            a.gate = GDN_GATE_RAW;
            a.A_log = ring2_new(GDN_F32, 0, 1, H, 0, 0, 0);
            a.dt_bias = ring2_new(GDN_BF16, 0, 1, H, 0, 0, 0);
            ring2_fill(&a.A_log, -1, 1), ring2_fill(&a.dt_bias, -1, 1);
        }
        leave_list(t, mixed, &l);
        check(&a, s, &l, 2, decode);
    }
}

static void G18_selections(void) { selections(false); }
static void G18_decode_selections(void) { selections(true); }

/* NaN and infinity in tokens after a position, of the same chunk too, do not reach it. */
static void later_tokens(bool decode)
{
    static const int64_t from[] = { 9, 13, 17, 20, 35 };
    FOR_EACH_SHAPE(s) for (int i = 0; i < 5; i++)
    {
        static struct left l;
        const int64_t lengths[N_SEQS] = { 40, 0, 0, 0, 0, 0, 0, 0 };
        gdn_batch *t;
        gdn_rule_args a = packed(s, lengths, &t), rest;
        int64_t starts[N_SEQS + 1] = { 0, 2, 2, 2, 2, 2, 2, 2, 2 };
        rest = ring2_rule_slice(&a, from[i], 40 - from[i]);
        ring2_fill_value(&rest.k, i % 2 ? (double)NAN : (double)INFINITY);
        ring2_fill_value(&rest.q, (double)NAN), ring2_fill_value(&rest.v, (double)NAN);
        ring2_fill_value(i % 2 ? &rest.g : &rest.beta, (double)NAN);
        l.n = 0;
        l.poisoned = true;
        add(&l, 0, from[i] - (i == 0 ? 0 : 2)), add(&l, 0, from[i]);
        t->checkpoint_starts = ring2_indices(GDN_I64, N_SEQS + 1, starts);
        t->checkpoint_positions = ring2_indices(GDN_I32, 2, l.tokens);
        check(&a, s, &l, 1, decode);
        for (int64_t j = 0; j < 2 * ring2_count(&a.checkpoints) / a.checkpoints.size[0]; j++)
            CHECK(isfinite(ring2_get(&a.checkpoints, j)), "%d: a later token came through", i);
    }
}

static void G18_later_tokens(void) { later_tokens(false); }
static void G18_decode_later_tokens(void) { later_tokens(true); }

/* g = 0 and beta = 0: every bit of the state, -0 and infinities among them (G9). */
static void nothing_happens(bool decode)
{
    static struct left l;
    FOR_EACH_SHAPE(s)
    {
        gdn_batch *t;
        gdn_rule_args a = packed(s, mixed, &t);
        ring2_fill_value(&a.g, 0), ring2_fill_value(&a.beta, 0);
        for (int64_t i = 0; i < ring2_count(&a.state); i += 3)
            ring2_set(&a.state, i, i % 2 ? -0.0 : (double)INFINITY);
        const gdn_tensor start = ring2_clone(&a.state);
        leave_every(t, mixed, 10, &l);
        check(&a, s, &l, 2, decode);
        for (int i = 0; i < l.n; i++) {
            const gdn_tensor got = ring2_narrow(&a.checkpoints, 0, i, 1);
            const gdn_tensor was = ring2_narrow(&start, 0, l.row[i], 1);
            gdn_tensor want = pool(s, s->left, 1, 0, false);
            ring2_copy(&want, &was);
            ring2_expect_bits("the start", &got, &want);
        }
    }
}

static void G9_G18_every_bit_stays(void) { nothing_happens(false); }
static void G9_G18_decode_every_bit_stays(void) { nothing_happens(true); }

/* ---- Batches ------------------------------------------------------------------------------- */

/* Threads and batch mates change no bit of a checkpoint (G2). */
static void G2_threads(void)
{
    static struct left l;
    FOR_EACH_SHAPE(s)
    {
        gdn_batch *t;
        gdn_rule_args a = packed(s, mixed, &t), one;
        leave_every(t, mixed, 5, &l);
        a.checkpoints = pool(s, s->left, l.n, 0, s->turned);
        one = ring2_rule_clone(&a);
        run(ring2_ctx(1), &one, false);
        for (int n = 2; n <= 4; n++) {
            gdn_rule_args many = ring2_rule_clone(&a);
            run(ring2_ctx(n), &many, false);
            ring2_expect_bits("threads", &many.checkpoints, &one.checkpoints);
        }
    }
}

/* padded_rows: [4][40] with padding left and right, a padding row whose output stays, and slots
 * to read. */
static void padded_rows(void)
{
    static const int64_t start[4] = { 0, 7, 3, 19 }, count[4] = { 40, 30, 37, 12 };
    static const int64_t slots[4] = { 3, 1, -1, 5 }, starts[5] = { 0, 3, 5, 7, 9 };
    static const int64_t left[9] = { 1, 2, 3, 4, 0, 6, 7, -1, 9 };
    static const int64_t at[9] = { 10, 32, 40, 16, 29, 20, 37, 11, 12 };
    static const int64_t row[9] = { 0, 0, 0, 1, 1, 2, 2, 3, 3 };
    const struct shape *s = &shapes[0];
    for (int sink = 0; sink < 2; sink++) {
        gdn_rule_args a = ring2_rule_args(s->dtype, s->state, 160, 7, s->heads, s->K, s->V), p = a;
        gdn_tensor *rows[] = { &p.q, &p.k, &p.v, &p.g, &p.beta, &p.out };
        gdn_batch t = gdn_batch_init();
        for (int i = 0; i < 6; i++) {
            memmove(rows[i]->size + 1, rows[i]->size, 4 * sizeof(int64_t));
            memmove(rows[i]->stride + 1, rows[i]->stride, 4 * sizeof(int64_t));
            rows[i]->size[0] = 4, rows[i]->size[1] = 40, rows[i]->ndim++;
            rows[i]->stride[0] = 40 * rows[i]->stride[1];
        }
        t.token_start = ring2_indices(GDN_I32, 4, start);
        t.token_count = ring2_indices(GDN_I64, 4, count);
        t.read_slots = ring2_indices(GDN_I32, 4, slots);
        t.pad_policy = sink ? GDN_PAD_SINK : GDN_PAD_ZERO;
        t.sink_slot = 6;
        t.checkpoint_starts = ring2_indices(GDN_I32, 5, starts);
        t.checkpoint_positions = ring2_indices(GDN_I32, 9, at);
        t.checkpoint_slots = ring2_indices(GDN_I32, 9, left);
        t.first_slot = 1;
        p.batch = &t;
        p.state = ring2_clone(&a.state);
        p.checkpoints = pool(s, GDN_F32, 10, 0, false);
        const gdn_tensor untouched = ring2_clone(&p.checkpoints);
        run(ring2_ctx(2), &p, false);
        for (int i = 0; i < 9; i++) {
            gdn_rule_args r = ring2_rule_slice(&a, row[i] * 40 + start[row[i]], at[i]);
            const gdn_tensor got = ring2_narrow(&p.checkpoints, 0, i + 1, 1);
            const gdn_tensor was = ring2_narrow(&untouched, 0, i + 1, 1);
            if (row[i] == 2 || left[i] < 1) {
                ring2_expect_bits("a row's that is not wanted", &got, &was);
                continue;
            }
            r.state = ring2_narrow(&a.state, 0, slots[row[i]], 1);
            r.state_out = ring2_clone(&r.state);
            run(ring2_ctx(1), &r, false);
            ring2_expect_bits("a row's", &got, &r.state_out);
        }
    }
}

/* Checkpoints in the pool of the final states: in place, in state_out, and while frozen. */
static void same_pool(void)
{
    static struct left l;
    FOR_EACH_SHAPE(s) for (int i = 0; i < 4; i++)
    {
        gdn_batch *t;
        struct shape own = *s;
        gdn_rule_args a = packed(s, mixed, &t), before;
        own.left = s->state;
        leave_list(t, mixed, &l);
        choose_slots(t, &l, N_SEQS);
        a.state = pool(s, s->state, N_SEQS + l.n, 0, false);
        if (i == 1) a.state_out = pool(s, s->state, N_SEQS + l.n, 0, false);
        if (i == 2) a.state_out = a.state;
        if (i == 3) t->write = GDN_WRITE_NONE;
        a.checkpoints = i == 1 ? a.state_out : a.state;
        before = ring2_rule_clone(&a);
        before.checkpoints.data = NULL;
        run(ring2_ctx(2), &a, false);
        expect_checkpoints(&before, &a.checkpoints, &own, &l, false, false);
        const gdn_batch plain = ring2_no_checkpoints(t);
        before.batch = &plain;
        before.state_out = i == 1 ? before.state_out : i == 2 ? before.state : (gdn_tensor){ 0 };
        run(ring2_ctx(2), &before, false);
        const gdn_tensor *to = i == 1 ? &a.state_out : &a.state;
        const gdn_tensor *want = i == 1 ? &before.state_out : &before.state;
        const gdn_tensor final = ring2_narrow(to, 0, 0, N_SEQS);
        const gdn_tensor expected = ring2_narrow(want, 0, 0, N_SEQS);
        ring2_expect_bits("final states", &final, &expected);
        ring2_expect_bits("out", &a.out, &before.out);
    }
}

/* No output and no state but the checkpoints. */
static void checkpoints_alone(void)
{
    static struct left l;
    FOR_EACH_SHAPE(s)
    {
        gdn_batch *t;
        gdn_rule_args a = packed(s, mixed, &t), before;
        a.state.data = NULL;
        before = ring2_rule_clone(&a);
        a.out.data = NULL;
        leave_list(t, mixed, &l);
        a.checkpoints = pool(s, s->left, l.n, 0, s->turned);
        run(ring2_ctx(2), &a, false);
        expect_checkpoints(&before, &a.checkpoints, s, &l, false, false);
    }
}

/* A list may be empty. */
static void none_wanted(void)
{
    const struct shape *s = &shapes[0];
    gdn_batch *t;
    static const int64_t nothing[N_SEQS + 1] = { 0 };
    gdn_rule_args a = packed(s, mixed, &t), b = ring2_rule_clone(&a);
    run(ring2_ctx(1), &b, false);
    t->checkpoint_starts = ring2_indices(GDN_I32, N_SEQS + 1, nothing);
    t->checkpoint_positions = ring2_indices(GDN_I32, 0, nothing);
    a.checkpoints = pool(s, s->left, 1, 0, false);
    run(ring2_ctx(1), &a, false);
    ring2_expect_bits("an empty list", &a.out, &b.out);
}

/* ---- Going on from a checkpoint ------------------------------------------------------------ */

/* Resumes from checkpoints: with G4's bits at multiples of 16 (64), else to rounding. */
static void G4_resume(void)
{
    const int64_t wide = ring2_on_device() ? 4 : 1, T = 73 * wide;
    const int64_t at[] = { 16 * wide, 48 * wide, 9, 23, 57 * wide };
    FOR_EACH_SHAPE(s) for (int i = 0; i < 5; i++)
    {
        gdn_rule_args a = ring2_rule_args(s->dtype, GDN_F32, T, 1, s->heads, s->K, s->V), rest;
        gdn_rule_args whole;
        gdn_batch t = gdn_batch_init();
        const int64_t starts[2] = { 0, 1 }, slots[1] = { 0 };
        struct ring2_rule m;
        a.head_map = s->map;
        a.state_layout = s->layout;
        a.state = pool(s, GDN_F32, 1, 0, false);
        a.checkpoints = pool(s, GDN_F32, 1, 0, s->turned);
        t.checkpoint_starts = ring2_indices(GDN_I32, 2, starts);
        t.checkpoint_positions = ring2_indices(GDN_I32, 1, &at[i]);
        t.checkpoint_slots = ring2_indices(GDN_I32, 1, slots);
        a.batch = &t;
        ring2_rule_model(&a, false, &m);
        whole = ring2_rule_clone(&a);
        run(ring2_ctx(2), &whole, false);
        rest = ring2_rule_slice(&whole, at[i], T - at[i]);
        const gdn_tensor out = ring2_clone(&rest.out);
        rest.state = whole.checkpoints;
        rest.checkpoints = (gdn_tensor){ 0 };
        run(ring2_ctx(2), &rest, false);
        ring2_compare("out", &whole.out, m.out, m.out_limit, m.out_noise, NULL);
        ring2_compare("state", &rest.state, m.state, m.state_limit, m.state_noise, NULL);
        if (at[i] % (16 * wide)) continue;
        ring2_expect_bits("out", &rest.out, &out);
        ring2_expect_bits("state", &rest.state, &whole.state);
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "G18 every n tokens", G18_every_n },
        { "G18 lists of positions", G18_lists },
        { "G18 short sequences", G18_short_sequences },
        { "G18 decode", G18_decode },
        { "G18 selections", G18_selections },
        { "G18 decode, selections", G18_decode_selections },
        { "G18 later tokens", G18_later_tokens },
        { "G18 decode, later tokens", G18_decode_later_tokens },
        { "G9 G18 every bit stays", G9_G18_every_bit_stays },
        { "G9 G18 decode, every bit stays", G9_G18_decode_every_bit_stays },
        { "G2 threads", G2_threads },
        { "padded rows", padded_rows },
        { "one pool for all", same_pool },
        { "checkpoints alone", checkpoints_alone },
        { "none wanted", none_wanted },
        { "G4 going on from a checkpoint", G4_resume },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
