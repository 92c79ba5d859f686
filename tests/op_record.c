/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rolling back: draft, accept some, go on, for the convolution and the rule together. The ways
 * of gdn.h (a slot for each token, the accepted ones again, records) against plain decode of
 * what was accepted: G20. Then records alone: rounding, odd values, and the other guarantees.
 */
#include <math.h>
#include <string.h>

#include "ring2_rule.h"

enum { B = 4, P = 6, R = 9, MOST = 6, TAPS = 4 }; /* the last sequence is padding */
static const int64_t slots[B] = { 4, 0, 3, -1 };

struct layer {
    int32_t dtype, record, layout, map, exact;
    int     heads[3];
    int64_t K, V;
};
static const struct layer layers[] = {
    { GDN_F32, GDN_F32, GDN_STATE_VK, GDN_HEADS_GROUPED, 0, { 2, 2, 4 }, 16, 12 },
    { GDN_F32, GDN_F32, GDN_STATE_KV, GDN_HEADS_INTERLEAVED, 0, { 2, 2, 4 }, 33, 7 },
    { GDN_F32, GDN_F32, GDN_STATE_VK, GDN_HEADS_GROUPED, GDN_EXACT, { 4, 2, 2 }, 9, 130 },
    { GDN_F32, GDN_F32, GDN_STATE_KV, GDN_HEADS_INTERLEAVED, 0, { 4, 1, 2 }, 20, 17 },
    { GDN_F32, GDN_BF16, GDN_STATE_VK, GDN_HEADS_GROUPED, 0, { 2, 2, 4 }, 32, 20 },
    { GDN_BF16, GDN_F32, GDN_STATE_KV, GDN_HEADS_GROUPED, 0, { 1, 1, 3 }, 31, 20 },
    { GDN_F16, GDN_F16, GDN_STATE_VK, GDN_HEADS_INTERLEAVED, 0, { 2, 2, 4 }, 24, 9 },
};
enum { N_EXACT_LAYERS = 4, N_LAYERS = sizeof layers / sizeof *layers };

static int64_t state_heads(const struct layer *m)
{
    return m->heads[0] > m->heads[2] ? m->heads[0] : m->heads[2];
}

static int64_t channels(const struct layer *m)
{
    return (m->heads[0] + m->heads[1]) * m->K + m->heads[2] * m->V;
}

static gdn_tensor pool(const struct layer *m, int32_t dtype, int64_t n)
{
    const bool vk = m->layout == GDN_STATE_VK;
    gdn_tensor t  = ring2_new(dtype, 1, 4, n, state_heads(m), vk ? m->V : m->K, vk ? m->K : m->V);
    ring2_fill(&t, -1, 1);
    return t;
}

/* ---- Records ---- */

struct record {
    gdn_tensor k, u, g, count;
};

static struct record new_record(const struct layer *m, int32_t dtype)
{
    struct record r;
    gdn_tensor   *const all[] = { &r.k, &r.u, &r.g };
    const int64_t H = state_heads(m), zeros[P] = { 0 };
    r.k     = ring2_new(dtype, 1, 4, P, R, m->heads[1], m->K);
    r.u     = ring2_new(dtype, 0, 4, P, R, H, m->V);
    r.g     = ring2_new(GDN_F32, 2, 3, P, R, H, 0);
    r.count = ring2_indices(m->K % 2 ? GDN_I64 : GDN_I32, P, zeros);
    for (int i = 0; i < 3; i++) ring2_fill_value(all[i], (double)NAN);
    return r;
}

static int64_t count_of(const struct record *r, int64_t slot)
{
    return (int64_t)ring2_get(&r->count, slot);
}

/* Rows [first, first + n) of a slot may change. */
static void may_write_rows(const struct record *r, int64_t slot, int64_t first, int64_t n)
{
    const gdn_tensor *const all[] = { &r->k, &r->u, &r->g };
    for (int i = 0; i < 3; i++) {
        const gdn_tensor one  = ring2_narrow(all[i], 0, slot, 1);
        const gdn_tensor rows = ring2_narrow(&one, 1, first, n);
        ring2_may_write(&rows);
    }
}

static void may_write_slot(const gdn_tensor *t, int64_t slot)
{
    const gdn_tensor one = ring2_narrow(t, 0, slot, 1);
    ring2_may_write(&one);
}

/* ---- Calls ---- */

/* Tokens of all sequences: [B][T], of which count[b] are there. */
struct tokens {
    int64_t    T, count[B];
    int64_t    parents[B][MOST];
    gdn_tensor x, g, beta;
};

struct accepted {
    int64_t n[B], path[B][MOST];
};

/* [B][T][D] of which some channels are [B][T][n][size]. */
static gdn_tensor heads_of(const gdn_tensor *act, int64_t from, int64_t n, int64_t size)
{
    gdn_tensor t = ring2_narrow(act, 2, from, n * size);
    t.ndim       = 4;
    t.size[2] = n, t.size[3] = size;
    t.stride[2] = size, t.stride[3] = 1;
    return t;
}

static gdn_rule_args rule_args(const struct layer *m, const struct tokens *t, const gdn_tensor *act,
                               const gdn_tensor *state, const gdn_batch *batch)
{
    const int     Hq = m->heads[0], Hk = m->heads[1];
    gdn_rule_args a = gdn_rule_args_init();
    a.q             = heads_of(act, 0, Hq, m->K);
    a.k             = heads_of(act, Hq * m->K, Hk, m->K);
    a.v             = heads_of(act, (Hq + Hk) * m->K, m->heads[2], m->V);
    a.g             = t->g;
    a.beta          = t->beta;
    a.state         = *state;
    a.out           = ring2_new(GDN_F32, 0, 4, B, t->T, state_heads(m), m->V);
    a.norm          = GDN_NORM_L2;
    a.head_map      = m->map;
    a.state_layout  = m->layout;
    a.flags         = (uint32_t)m->exact;
    a.batch         = batch;
    return a;
}

static void conv(const struct tokens *t, const gdn_tensor *weight, const gdn_tensor *state,
                 const gdn_tensor *out, const gdn_batch *batch)
{
    gdn_conv1d_args a = gdn_conv1d_args_init();
    a.x = t->x, a.weight = *weight, a.state = *state, a.batch = batch;
    a.activation = GDN_ACT_SILU;
    if (out) a.out = *out;
    ring2_status(ring2_ctx(2), "gdn_conv1d", gdn_conv1d(ring2_ctx(2), &a), GDN_OK);
}

static void decode(const gdn_rule_args *a)
{
    ring2_status(ring2_ctx(3), "gdn_decode", gdn_decode(ring2_ctx(3), a), GDN_OK);
}

static gdn_tensor table(int64_t n, const int64_t *values)
{
    gdn_tensor t = ring2_new(GDN_I32, 1, 2, B, n, 0, 0);
    for (int64_t i = 0; i < B * n; i++)
        ring2_set(&t, i, (double)values[i / n * MOST + i % n]);
    return t;
}

static gdn_batch drafts(const struct tokens *t, bool tree)
{
    gdn_batch b   = gdn_batch_init();
    b.write       = GDN_WRITE_NONE;
    b.read_slots  = ring2_indices(GDN_I32, B, slots);
    b.token_count = ring2_indices(GDN_I32, B, t->count);
    if (tree) b.parents = table(t->T, t->parents[0]);
    return b;
}

/* ---- The ways, each with states of its own ---- */

struct way {
    gdn_tensor conv, state, out;
};

/* What was accepted, decoded as if it had come that way. */
static void plain_round(const struct layer *m, const gdn_tensor *weight, const struct tokens *t,
                        const struct accepted *n, struct way *w)
{
    struct tokens    some = *t;
    gdn_tensor       act = ring2_new(GDN_F32, 0, 3, B, t->T, channels(m), 0);
    const gdn_tensor *to[] = { &some.x, &some.g, &some.beta }, *from[] = { &t->x, &t->g, &t->beta };
    gdn_batch        b;
    some.x = ring2_clone(&t->x), some.g = ring2_clone(&t->g), some.beta = ring2_clone(&t->beta);
    memcpy(some.count, n->n, sizeof some.count);
    for (int s = 0; s < B; s++)
        for (int64_t i = 0; i < n->n[s]; i++)
            for (int j = 0; j < 3; j++) {
                gdn_tensor d = ring2_narrow(to[j], 0, s, 1), f = ring2_narrow(from[j], 0, s, 1);
                d = ring2_narrow(&d, 1, i, 1), f = ring2_narrow(&f, 1, n->path[s][i], 1);
                ring2_copy(&d, &f);
            }
    b       = drafts(&some, false);
    b.write = GDN_WRITE_FINAL;
    conv(&some, weight, &w->conv, &act, &b);
    const gdn_rule_args a = rule_args(m, &some, &act, &w->state, &b);
    decode(&a);
    w->out = a.out;
}

static void commit(const struct record *r, const struct accepted *n, bool tree, int64_t T)
{
    gdn_record_commit_args a = gdn_record_commit_args_init();
    gdn_batch              b = gdn_batch_init();
    b.read_slots = ring2_indices(GDN_I64, B, slots);
    a.record_k = r->k, a.record_u = r->u, a.record_g = r->g, a.record_count = r->count;
    a.n_accepted = ring2_indices(GDN_I32, B, n->n);
    a.batch      = &b;
    if (tree) a.path = table(T, n->path[0]);
    ring2_call_begin();
    for (int s = 0; s < B; s++) {
        if (slots[s] < 0) continue;
        if (tree) may_write_rows(r, slots[s], count_of(r, slots[s]), n->n[s]);
        may_write_slot(&r->count, slots[s]);
    }
    ring2_status(ring2_ctx(2), "commit", gdn_record_commit(ring2_ctx(2), &a), GDN_OK);
    ring2_call_end();
}

static gdn_record_fold_args fold_args(const struct layer *m, const struct record *r,
                                      const gdn_tensor *state, const gdn_batch *batch)
{
    gdn_record_fold_args a = gdn_record_fold_args_init();
    a.state = *state, a.record_k = r->k, a.record_u = r->u, a.record_g = r->g;
    a.record_count = r->count;
    a.head_map = m->map, a.state_layout = m->layout, a.batch = batch;
    return a;
}

static void fold(const struct layer *m, const struct record *r, const gdn_tensor *state)
{
    gdn_batch b  = gdn_batch_init();
    b.read_slots = ring2_indices(GDN_I32, B, slots);
    const gdn_record_fold_args a = fold_args(m, r, state, &b);
    ring2_call_begin();
    for (int s = 0; s < B; s++) {
        if (slots[s] < 0) continue;
        may_write_slot(state, slots[s]);
        may_write_slot(&r->count, slots[s]);
    }
    ring2_status(ring2_ctx(3), "fold", gdn_record_fold(ring2_ctx(3), &a), GDN_OK);
    ring2_call_end();
    for (int64_t p = 0; p < P; p++) CHECK(count_of(r, p) == 0, "rows are left after the fold");
}

/* A decode that records; the state and earlier rows stay. */
static gdn_tensor record_drafts(const struct layer *m, const struct tokens *t,
                                const gdn_tensor *act, const struct record *r,
                                const gdn_tensor *state, const gdn_batch *b)
{
    gdn_rule_args a = rule_args(m, t, act, state, b);
    a.record_k = r->k, a.record_u = r->u, a.record_g = r->g, a.record_count = r->count;
    ring2_call_begin();
    ring2_may_write(&a.out);
    for (int s = 0; s < B; s++)
        if (slots[s] >= 0) may_write_rows(r, slots[s], count_of(r, slots[s]), t->count[s]);
    decode(&a);
    ring2_call_end();
    return a.out;
}

static void record_round(const struct layer *m, const gdn_tensor *weight, const struct tokens *t,
                         const struct accepted *n, bool tree, struct way *w, const struct record *r)
{
    gdn_tensor act = ring2_new(GDN_F32, 0, 3, B, t->T, channels(m), 0);
    gdn_batch  b   = drafts(t, tree), done;
    conv(t, weight, &w->conv, &act, &b);
    w->out = record_drafts(m, t, &act, r, &w->state, &b);
    commit(r, n, tree, t->T);
    done             = gdn_batch_init();
    done.read_slots  = b.read_slots;
    done.token_count = ring2_indices(GDN_I32, B, n->n);
    if (tree) done.path = table(t->T, n->path[0]);
    conv(t, weight, &w->conv, NULL, &done);
}

/* A chain, twice: for its output, then its accepted part for the state. */
static void again_round(const struct layer *m, const gdn_tensor *weight, const struct tokens *t,
                        const struct accepted *n, struct way *w)
{
    gdn_tensor    act = ring2_new(GDN_F32, 0, 3, B, t->T, channels(m), 0);
    gdn_batch     b = drafts(t, false);
    gdn_rule_args a;
    conv(t, weight, &w->conv, &act, &b);
    a = rule_args(m, t, &act, &w->state, &b);
    decode(&a);
    w->out        = a.out;
    b.write       = GDN_WRITE_FINAL;
    b.token_count = ring2_indices(GDN_I32, B, n->n);
    a.out.data    = NULL;
    decode(&a);
    conv(t, weight, &w->conv, NULL, &b);
}

/* A slot for each token, in that of two halves where the sequence does not start from. */
enum { HALF = MOST + 1, EACH_SLOTS = B * 2 * HALF };

struct each {
    struct way w;
    int64_t    read[B][HALF], n[B]; /* of the next call: its start is read[n - 1] */
};

static void each_round(const struct layer *m, const gdn_tensor *weight, const struct tokens *t,
                       const struct accepted *n, bool tree, struct each *e)
{
    gdn_tensor act = ring2_new(GDN_F32, 0, 3, B, t->T, channels(m), 0);
    gdn_batch  b   = drafts(t, tree);
    b.write               = GDN_WRITE_EACH;
    b.read_slots          = ring2_new(GDN_I64, 0, 2, B, HALF, 0, 0);
    b.write_slots         = ring2_new(GDN_I32, 0, 2, B, t->T, 0, 0);
    b.num_accepted_tokens = ring2_indices(GDN_I32, B, e->n);
    for (int s = 0; s < B; s++) {
        const int64_t start = e->read[s][e->n[s] - 1];
        for (int64_t i = 0; i < HALF; i++)
            ring2_set(&b.read_slots, s * HALF + i, slots[s] < 0 ? -1 : (double)e->read[s][i]);
        const int64_t half = 1 - start / HALF % 2;
        e->read[s][0]      = start;
        for (int64_t i = 0; i < t->T; i++) {
            e->read[s][i + 1] = (s * 2 + half) * HALF + i;
            ring2_set(&b.write_slots, s * t->T + i, (double)e->read[s][i + 1]);
        }
        e->n[s] = n->n[s] ? n->path[s][n->n[s] - 1] + 2 : 1;
    }
    conv(t, weight, &e->w.conv, &act, &b);
    const gdn_rule_args a = rule_args(m, t, &act, &e->w.state, &b);
    decode(&a);
    e->w.out = a.out;
}

/* ---- Drafts ---- */

static int64_t random_parent(int64_t t) { return ring2_below(3) ? t - 1 : ring2_below(t + 1) - 1; }

static struct tokens draft(const struct layer *m, bool tree)
{
    struct tokens t = { .T = 1 + ring2_below(MOST) };
    t.x    = ring2_new(GDN_F32, 0, 3, B, t.T, channels(m), 0);
    t.g    = ring2_new(GDN_F32, 0, 3, B, t.T, state_heads(m), 0);
    t.beta = ring2_new(GDN_F32, 0, 3, B, t.T, state_heads(m), 0);
    ring2_fill(&t.x, -1, 1);
    ring2_fill(&t.g, -0.5, 0);
    ring2_fill(&t.beta, 0, 1);
    for (int64_t i = 0; i < ring2_count(&t.g); i++) {
        if (ring2_below(30) == 0) ring2_set(&t.g, i, -(double)INFINITY);
        if (ring2_below(10) == 0) ring2_set(&t.beta, i, 0);
    }
    for (int s = 0; s < B; s++) {
        t.count[s] = ring2_below(t.T + 1);
        for (int64_t i = 0; i < t.T; i++) t.parents[s][i] = tree ? random_parent(i) : i - 1;
    }
    return t;
}

/* The path to a random token, or none of them. */
static struct accepted accept_some(const struct tokens *t)
{
    struct accepted n = { 0 };
    for (int s = 0; s < B; s++) {
        const int64_t last = slots[s] < 0 ? -1 : ring2_below(t->count[s] + 1) - 1;
        int64_t       i;
        for (int64_t p = last; p >= 0; p = t->parents[s][p]) n.n[s]++;
        i = n.n[s];
        for (int64_t p = last; p >= 0; p = t->parents[s][p]) n.path[s][--i] = p;
    }
    return n;
}

/* Outputs of what was accepted, against those of plain decode. */
static void expect_out(const char *what, const gdn_tensor *got, const gdn_tensor *want,
                       const struct accepted *n)
{
    for (int s = 0; s < B; s++)
        for (int64_t i = 0; i < n->n[s]; i++) {
            gdn_tensor g = ring2_narrow(got, 0, s, 1), w = ring2_narrow(want, 0, s, 1);
            g = ring2_narrow(&g, 1, n->path[s][i], 1), w = ring2_narrow(&w, 1, i, 1);
            ring2_expect_bits(what, &g, &w);
        }
}

static struct way copy_of(const struct way *w)
{
    return (struct way){ .conv = ring2_clone(&w->conv), .state = ring2_clone(&w->state) };
}

static struct each each_of(const struct layer *m, const struct way *w)
{
    struct each e = { 0 };
    e.w.conv      = ring2_new(GDN_F32, 0, 3, EACH_SLOTS, channels(m), TAPS - 1, 0);
    e.w.state     = pool(m, m->dtype, EACH_SLOTS);
    ring2_fill_value(&e.w.conv, (double)NAN), ring2_fill_value(&e.w.state, (double)NAN);
    for (int s = 0; s < B; s++) {
        e.read[s][0] = s * 2 * HALF + HALF - 1; /* no half writes it */
        e.n[s]       = 1;
        if (slots[s] < 0) continue;
        gdn_tensor to = ring2_narrow(&e.w.conv, 0, e.read[s][0], 1);
        gdn_tensor from = ring2_narrow(&w->conv, 0, slots[s], 1);
        ring2_copy(&to, &from);
        to = ring2_narrow(&e.w.state, 0, e.read[s][0], 1);
        from = ring2_narrow(&w->state, 0, slots[s], 1);
        ring2_copy(&to, &from);
    }
    return e;
}

static void expect_each(const struct each *e, const struct way *plain)
{
    for (int s = 0; s < B; s++) {
        if (slots[s] < 0) continue;
        const int64_t    slot = e->read[s][e->n[s] - 1];
        const gdn_tensor got = ring2_narrow(&e->w.state, 0, slot, 1);
        const gdn_tensor want = ring2_narrow(&plain->state, 0, slots[s], 1);
        const gdn_tensor c = ring2_narrow(&e->w.conv, 0, slot, 1);
        const gdn_tensor want_c = ring2_narrow(&plain->conv, 0, slots[s], 1);
        ring2_expect_bits("slots: state", &got, &want);
        ring2_expect_bits("slots: convolution", &c, &want_c);
    }
}

static bool is_full(const struct record *r, const struct tokens *t)
{
    for (int s = 0; s < B; s++)
        if (slots[s] >= 0 && count_of(r, slots[s]) + t->count[s] > R) return true;
    return false;
}

static void G20_rollback(const struct layer *m, bool tree)
{
    struct way    plain = { .conv  = ring2_new(GDN_F32, 1, 3, P, channels(m), TAPS - 1, 0),
                            .state = pool(m, m->dtype, P) };
    struct record r      = new_record(m, m->record);
    gdn_tensor    weight = ring2_new(GDN_F32, 0, 2, channels(m), TAPS, 0, 0);
    ring2_fill(&plain.conv, -1, 1);
    ring2_fill(&weight, -1, 1);
    struct way  record = copy_of(&plain), again = copy_of(&plain);
    struct each each = each_of(m, &plain);
    for (int round = 0; round < 8 && !ring2_failed(); round++) {
        const struct tokens   t = draft(m, tree);
        const struct accepted n = accept_some(&t);
        if (is_full(&r, &t) || ring2_below(4) == 0) {
            fold(m, &r, &record.state);
            ring2_expect_bits("record: state", &record.state, &plain.state);
        }
        plain_round(m, &weight, &t, &n, &plain);
        record_round(m, &weight, &t, &n, tree, &record, &r);
        expect_out("record: out", &record.out, &plain.out, &n);
        ring2_expect_bits("record: convolution", &record.conv, &plain.conv);
        each_round(m, &weight, &t, &n, tree, &each);
        expect_out("slots: out", &each.w.out, &plain.out, &n);
        expect_each(&each, &plain);
        if (tree) continue;
        again_round(m, &weight, &t, &n, &again);
        expect_out("again: out", &again.out, &plain.out, &n);
        ring2_expect_bits("again: state", &again.state, &plain.state);
        ring2_expect_bits("again: convolution", &again.conv, &plain.conv);
    }
    fold(m, &r, &record.state);
    ring2_expect_bits("record: last state", &record.state, &plain.state);
}

/* ---- Rounded records and states ---- */

static double unit_of(int32_t dtype)
{
    return dtype == GDN_F32 ? 0x1p-24 : dtype == GDN_BF16 ? 0x1p-8 : 0x1p-11;
}

/* Element (j, x) of v and k of one head's state. */
static double state_at(const struct layer *m, const gdn_tensor *t, int64_t head, int64_t j,
                       int64_t x)
{
    const int64_t inner = m->layout == GDN_STATE_VK ? j * m->K + x : x * m->V + j;
    return ring2_get(t, head * m->K * m->V + inner);
}

/* Column j of head `head` (counted through the slots), of length |S|, and of the difference. */
static double column_norm(const struct layer *m, const gdn_tensor *a, const gdn_tensor *b,
                          int64_t head, int64_t j)
{
    double sum = 0;
    for (int64_t x = 0; x < m->K; x++) {
        const double d = state_at(m, a, head, j, x) - (b ? state_at(m, b, head, j, x) : 0);
        sum += d * d;
    }
    return sqrt(sum);
}

/* For rows rounded to a unit e: each adds an error of at most |k| |u| (2 e + e^2) to its column. */
static void add_rows(const struct layer *m, const struct record *r, const struct accepted *n,
                     double e, double *bound)
{
    const int64_t H = state_heads(m);
    for (int s = 0; s < B; s++)
        for (int64_t i = 0; slots[s] >= 0 && i < n->n[s]; i++) {
            const int64_t row = slots[s] * R + count_of(r, slots[s]) - n->n[s] + i;
            for (int64_t at = 0; at < H * m->V; at++)
                bound[slots[s] * H * m->V + at] +=
                    (2 * e + e * e) * fabs(ring2_get(&r->u, row * H * m->V + at));
        }
}

/*
 * Against float32 records and states. Keys have length 1 or less, beta is 0 to 1 and g <= 0, so
 * an error that a column has never grows in length; it is at most the sum of what records add
 * (above), of the roundings of each fold, |S| e and half the least number, and of float32: of
 * that, 2^-24 (8 + K / 16 + 8) times |S| + |u| for each token, both ways.
 */
static void rounded(const struct layer *m)
{
    struct layer  f32 = *m;
    f32.dtype = f32.record = GDN_F32;
    const int64_t H = state_heads(m), columns = P * H * m->V;
    const double  e = unit_of(m->dtype), least = m->dtype == GDN_F16 ? 0x1p-25 : 0;
    double       *bound = ring2_heap((size_t)columns * sizeof *bound), largest = 0;
    struct way    w = { .state = pool(m, m->dtype, P) }, ref = { .state = pool(&f32, GDN_F32, P) };
    struct record r = new_record(m, m->record), want = new_record(&f32, GDN_F32);
    ring2_copy(&ref.state, &w.state);
    for (int round = 0; round < 12 && !ring2_failed(); round++) {
        const struct tokens   t   = draft(m, true);
        const struct accepted n   = accept_some(&t);
        const gdn_batch       b   = drafts(&t, true);
        const bool            due = is_full(&r, &t) || ring2_below(3) == 0;
        if (due) fold(m, &r, &w.state), fold(&f32, &want, &ref.state);
        for (int64_t c = 0; due && c < columns; c++) {
            const double S = column_norm(m, &ref.state, NULL, c / m->V, c % m->V);
            const double d = column_norm(m, &w.state, &ref.state, c / m->V, c % m->V);
            if (m->dtype != GDN_F32)
                bound[c] += e * (S + bound[c]) + sqrt((double)m->K) * least;
            CHECK(d <= bound[c], "column %d is off by %g, at most %g", (int)c, d, bound[c]);
            largest = fmax(largest, d);
        }
        record_drafts(m, &t, &t.x, &r, &w.state, &b);
        record_drafts(&f32, &t, &t.x, &want, &ref.state, &b);
        commit(&r, &n, true, t.T), commit(&want, &n, true, t.T);
        add_rows(m, &want, &n, m->record == GDN_F32 ? 0 : unit_of(m->record), bound);
        for (int64_t c = 0; c < columns; c++)
            bound[c] += 2 * MOST * 0x1p-24 * (16 + (double)m->K / 16) * 2 * sqrt((double)m->K);
    }
    CHECK(largest > 0, "nothing was rounded");
}

/* ---- Odd values: -0, denormals, a NaN behind a forgetting gate or a beta of 0 ---- */

static void odd_values(const struct layer *m)
{
    static const double odd[] = { -0.0, 0.0, 0x1p-149, -0x1p-140, 1e30, -1 };
    const int64_t       H = state_heads(m), D = channels(m);
    struct tokens       t = draft(m, false), one;
    struct record       r = new_record(m, GDN_F32);
    gdn_tensor          state = pool(m, GDN_F32, P), plain;
    t.T    = MOST;
    t.x    = ring2_new(GDN_F32, 0, 3, B, MOST, D, 0);
    t.g    = ring2_new(GDN_F32, 0, 3, B, MOST, H, 0);
    t.beta = ring2_new(GDN_F32, 0, 3, B, MOST, H, 0);
    for (int64_t i = 0; i < ring2_count(&t.x); i++)
        ring2_set(&t.x, i, ring2_below(2) ? odd[ring2_below(3)] : ring2_uniform(-1, 1));
    ring2_fill(&t.g, -40, 0), ring2_fill(&t.beta, 0, 1);
    for (int64_t i = 0; i < ring2_count(&state); i++) ring2_set(&state, i, odd[ring2_below(6)]);
    for (int s = 0; s < B; s++) {
        t.count[s] = MOST;
        for (int64_t i = 0; i < MOST; i++) {
            const int64_t at = s * MOST + i;
            const bool    silent = i == 1 || i == 4;
            for (int64_t h = 0; h < H; h++) {
                if (i == 3) ring2_set(&t.g, at * H + h, h % 2 ? -(double)INFINITY : 0);
                if (silent) ring2_set(&t.beta, at * H + h, 0);
            }
            for (int64_t d = m->heads[0] * m->K; d < D; d += 3) /* k and v */
                if (silent) ring2_set(&t.x, at * D + d, (double)NAN);
        }
    }
    one          = t;
    plain        = ring2_clone(&state);
    gdn_batch b  = drafts(&t, false), final = b;
    final.write  = GDN_WRITE_FINAL;
    gdn_rule_args a = rule_args(m, &one, &one.x, &plain, &final);
    a.norm          = GDN_NORM_NONE;
    decode(&a);
    a       = rule_args(m, &t, &t.x, &state, &b);
    a.norm  = GDN_NORM_NONE;
    a.record_k = r.k, a.record_u = r.u, a.record_g = r.g, a.record_count = r.count;
    decode(&a);
    const struct accepted all = { .n = { MOST, MOST, MOST, MOST } };
    commit(&r, &all, false, MOST);
    fold(m, &r, &state);
    ring2_expect_bits("state", &state, &plain);
    CHECK(isfinite(ring2_get(&state, 0)), "the state is not finite");
}

/* ---- G2, G3, G12, G13 ---- */

/* One of everything after three drafted and two committed rounds. */
struct ready {
    struct record        r;
    struct tokens        t;
    gdn_tensor           state;
    gdn_batch           *b, *slots;
    gdn_rule_args        a;
    gdn_record_fold_args f;
};

static struct ready make_ready(const struct layer *m)
{
    struct ready y = { .r = new_record(m, m->record), .state = pool(m, m->dtype, P) };
    y.b = ring2_heap(sizeof *y.b), y.slots = ring2_heap(sizeof *y.slots);
    for (int i = 0; i < 2; i++) {
        struct tokens t = draft(m, true);
        for (int s = 0; s < B; s++) t.count[s] = t.count[s] > 3 ? 3 : t.count[s];
        const struct accepted n = accept_some(&t);
        const gdn_batch       b = drafts(&t, true);
        record_drafts(m, &t, &t.x, &y.r, &y.state, &b);
        commit(&y.r, &n, true, t.T);
    }
    y.t = draft(m, true);
    for (int s = 0; s < B; s++) y.t.count[s] = y.t.count[s] > 3 ? 3 : y.t.count[s];
    *y.b     = drafts(&y.t, true);
    *y.slots = gdn_batch_init();
    y.slots->read_slots = y.b->read_slots;
    y.a = rule_args(m, &y.t, &y.t.x, &y.state, y.b);
    y.a.record_k = y.r.k, y.a.record_u = y.r.u, y.a.record_g = y.r.g;
    y.a.record_count = y.r.count;
    y.f = fold_args(m, &y.r, &y.state, y.slots);
    return y;
}

/* The same with outputs, records and states of its own. */
static struct ready again(const struct layer *m, const struct ready *y)
{
    struct ready z = *y;
    z.state = ring2_clone(&y->state);
    z.r = (struct record){ ring2_clone(&y->r.k), ring2_clone(&y->r.u), ring2_clone(&y->r.g),
                           ring2_clone(&y->r.count) };
    z.a.out = ring2_clone(&y->a.out), z.a.state = z.state;
    z.a.record_k = z.r.k, z.a.record_u = z.r.u, z.a.record_g = z.r.g;
    z.a.record_count = z.r.count;
    z.f = fold_args(m, &z.r, &z.state, y->slots);
    return z;
}

static void run_on(gdn_ctx *ctx, struct ready *y)
{
    ring2_status(ctx, "decode", gdn_decode(ctx, &y->a), GDN_OK);
    ring2_status(ctx, "fold", gdn_record_fold(ctx, &y->f), GDN_OK);
}

static void expect_ready(const char *what, const struct ready *got, const struct ready *want)
{
    ring2_expect_bits(what, &got->a.out, &want->a.out);
    ring2_expect_bits(what, &got->state, &want->state);
    ring2_expect_bits(what, &got->r.k, &want->r.k);
    ring2_expect_bits(what, &got->r.u, &want->r.u);
    ring2_expect_bits(what, &got->r.g, &want->r.g);
}

static void G2_G3_threads(void)
{
    for (int i = 0; i < N_LAYERS; i++) {
        const struct ready y = make_ready(&layers[i]);
        struct ready       want = again(&layers[i], &y);
        run_on(ring2_ctx(1), &want);
        for (int n = 1; n <= 4; n++) {
            struct ready got = again(&layers[i], &y);
            run_on(ring2_ctx(n), &got);
            expect_ready("threads", &got, &want);
        }
    }
}

struct mode_call {
    struct ready y;
};

static void call_in_mode(void *arg) { run_on(ring2_ctx(2), &((struct mode_call *)arg)->y); }

static void G12_float_environment(void)
{
    for (int i = 0; i < N_LAYERS; i++) {
        const struct ready y = make_ready(&layers[i]);
        struct ready       want = again(&layers[i], &y);
        run_on(ring2_ctx(2), &want);
        for (int mode = 0;; mode++) {
            struct mode_call c = { again(&layers[i], &y) };
            if (!ring2_float_mode(mode, call_in_mode, &c)) {
                if (!mode) ring2_skip("no MXCSR on this machine");
                break;
            }
            expect_ready("mode", &c.y, &want);
        }
    }
}

static void give_workspace(gdn_ctx *ctx, gdn_op op, const void *args, void **memory, size_t *bytes)
{
    ring2_status(ctx, "bytes", gdn_workspace_bytes(ctx, op, args, bytes), GDN_OK);
    *memory = ring2_alloc((*bytes + 63) / 64 * 64, 64);
}

static void G13_no_allocation(void)
{
    int                    n_allocs = 0, before;
    gdn_ctx               *ctx = ring2_counting_ctx(&n_allocs);
    const struct ready     y = make_ready(&layers[1]);
    struct ready           want = again(&layers[1], &y), got = want;
    gdn_record_commit_args c = gdn_record_commit_args_init();
    const int64_t          zeros[B] = { 0 };
    got = again(&layers[1], &y);
    c.record_k = got.r.k, c.record_u = got.r.u, c.record_g = got.r.g;
    c.record_count = got.r.count, c.batch = got.slots;
    c.n_accepted = ring2_indices(GDN_I64, B, zeros);
    give_workspace(ctx, GDN_OP_DECODE, &got.a, &got.a.workspace, &got.a.workspace_bytes);
    give_workspace(ctx, GDN_OP_RECORD_FOLD, &got.f, &got.f.workspace, &got.f.workspace_bytes);
    give_workspace(ctx, GDN_OP_RECORD_COMMIT, &c, &c.workspace, &c.workspace_bytes);
    before = n_allocs;
    ring2_status(ctx, "commit", gdn_record_commit(ctx, &c), GDN_OK);
    run_on(ctx, &got);
    CHECK(n_allocs == before, "%d allocations", n_allocs - before);
    run_on(ctx, &want);
    expect_ready("the context's own workspace", &got, &want);
    gdn_ctx_destroy(ctx);
}

/* ---- G1 ---- */

#define REFUSE(seen, op, args, what, want, needle, ...)                          \
    do {                                                                         \
        if (!ring2_begin("G1 record: %s", what)) break;                          \
        struct ready           y = make_ready(&layers[0]);                       \
        gdn_record_commit_args c = gdn_record_commit_args_init();                \
        gdn_rule_args         *a = &y.a;                                         \
        c.record_k = y.r.k, c.record_u = y.r.u, c.record_g = y.r.g;              \
        c.record_count = y.r.count, c.batch = y.slots;                           \
        c.n_accepted = ring2_indices(GDN_I32, B, (const int64_t[B]){ 1, 1 });    \
        c.path       = ring2_new(GDN_I32, 0, 2, B, 3, 0, 0);                     \
        ring2_fill_value(&c.path, 0);                                            \
        (void)a;                                                                 \
        __VA_ARGS__;                                                             \
        ring2_refused(ring2_ctx(2), op, args, seen, want, needle);               \
        ring2_end();                                                             \
    } while (0)
#define DECODE(...) REFUSE(RING2_STRUCT, GDN_OP_DECODE, a, "decode: " __VA_ARGS__)
#define COMMIT(...) REFUSE(RING2_STRUCT, GDN_OP_RECORD_COMMIT, &c, "commit: " __VA_ARGS__)
#define FOLD(...) REFUSE(RING2_STRUCT, GDN_OP_RECORD_FOLD, &y.f, "fold: " __VA_ARGS__)
#define DECODE_CONTENTS(...) REFUSE(RING2_CONTENTS, GDN_OP_DECODE, a, "decode: " __VA_ARGS__)
#define COMMIT_CONTENTS(...) \
    REFUSE(RING2_CONTENTS, GDN_OP_RECORD_COMMIT, &c, "commit: " __VA_ARGS__)
#define FOLD_CONTENTS(...) REFUSE(RING2_CONTENTS, GDN_OP_RECORD_FOLD, &y.f, "fold: " __VA_ARGS__)

static void refused_decode(void)
{
    const int64_t twice[B] = { 4, 0, 4, -1 }, ones[B] = { 1, 1, 1, 1 };
    DECODE("no u", GDN_E_ARG, "record_u", a->record_u.data = NULL);
    DECODE("no k", GDN_E_ARG, "record_k", a->record_k.data = NULL);
    DECODE("no g", GDN_E_ARG, "record_g", a->record_g.data = NULL);
    DECODE("no count", GDN_E_ARG, "record_count", a->record_count.data = NULL);
    DECODE("no state", GDN_E_ARG, "state", a->state.data = NULL);
    DECODE("final states", GDN_E_ARG, "write", y.b->write = GDN_WRITE_FINAL);
    DECODE("fresh starts", GDN_E_ARG, "has_initial_state",
           y.b->has_initial_state = ring2_indices(GDN_I32, B, ones));
    DECODE("accepted slots", GDN_E_ARG, "num_accepted_tokens",
           y.b->num_accepted_tokens = ring2_indices(GDN_I32, B, ones);
           y.b->read_slots = ring2_new(GDN_I32, 0, 2, B, 1, 0, 0));
    DECODE("EXACT on 16 bits", GDN_E_UNSUPPORTED, "GDN_EXACT", a->flags = GDN_EXACT;
           a->state = pool(&layers[0], GDN_BF16, P));
    DECODE("heads of k", GDN_E_SHAPE, "record_k", a->record_k.size[2] = 1);
    DECODE("size of u", GDN_E_SHAPE, "record_u", a->record_u.size[3]--);
    DECODE("rows of g", GDN_E_SHAPE, "record_g", a->record_g.size[1]--);
    DECODE("slots", GDN_E_SHAPE, "record_k", a->record_k.size[0]--);
    DECODE("count of floats", GDN_E_DTYPE, "record_count", a->record_count.dtype = GDN_F32);
    DECODE("k of indices", GDN_E_DTYPE, "record_k", a->record_k.dtype = GDN_I32);
    DECODE("g of 16 bits", GDN_E_DTYPE, "record_g", a->record_g.dtype = GDN_BF16);
    DECODE("u not dense", GDN_E_SHAPE, "record_u", a->record_u.stride[3] = 2);
    DECODE("rows at one address", GDN_E_SHAPE, "record_u", a->record_u.stride[1] = 0);
    DECODE("u in out", GDN_E_ARG, "overlap", a->record_u.data = a->out.data);
    DECODE("g in v", GDN_E_ARG, "overlap", a->record_g.data = a->v.data);
    DECODE("out in count", GDN_E_ARG, "overlap", a->record_count.data = a->out.data);
    DECODE("u in the state", GDN_E_ARG, "overlap", a->record_u.data = a->state.data);
    REFUSE(RING2_STRUCT, GDN_OP_PREFILL, a, "prefill", GDN_E_UNSUPPORTED, "record_k",
           y.b->parents.data = NULL);
    DECODE_CONTENTS("count -1", GDN_E_ARG, "record_count", ring2_set(&y.r.count, 4, -1));
    DECODE_CONTENTS("no rows left", GDN_E_ARG, "record_count",
                    ring2_set(&y.r.count, 0, R); ring2_set(&y.b->token_count, 1, 1));
    DECODE_CONTENTS("a slot twice", GDN_E_ARG, "read_slots",
                    y.b->read_slots = ring2_indices(GDN_I32, B, twice));
    DECODE_CONTENTS("slot P", GDN_E_ARG, "read_slots", ring2_set(&y.b->read_slots, 0, P));
}

static void refused_commit(void)
{
    COMMIT("flags", GDN_E_ARG, "flags", c.flags = 1);
    COMMIT("no counts", GDN_E_ARG, "n_accepted", c.n_accepted.data = NULL);
    COMMIT("no record", GDN_E_ARG, "record_k", c.record_k.data = NULL);
    COMMIT("heads of g", GDN_E_SHAPE, "record_g", c.record_g.size[2]--);
    COMMIT("path of one dimension", GDN_E_SHAPE, "path", c.path = ring2_select(&c.path, 1, 0));
    COMMIT("path of floats", GDN_E_DTYPE, "path", c.path.dtype = GDN_F32);
    COMMIT("counts in g", GDN_E_ARG, "overlap", c.n_accepted.data = c.record_g.data);
    COMMIT("sequences", GDN_E_ARG, "cu_seqlens",
           y.slots->cu_seqlens = ring2_indices(GDN_I32, B + 1, (const int64_t[B + 1]){ 0 }));
    COMMIT("masks", GDN_E_ARG, "token_count", y.slots->token_count = c.n_accepted);
    COMMIT("a tree", GDN_E_UNSUPPORTED, "parents", y.slots->parents = c.path);
    COMMIT_CONTENTS("-1 accepted", GDN_E_ARG, "n_accepted", ring2_set(&c.n_accepted, 0, -1));
    COMMIT_CONTENTS("too many accepted", GDN_E_ARG, "n_accepted",
                    ring2_set(&c.n_accepted, 0, R + 1));
    COMMIT_CONTENTS("path of too few", GDN_E_SHAPE, "path", ring2_set(&c.n_accepted, 0, 4);
                    ring2_set(&y.r.count, 4, 0));
    COMMIT_CONTENTS("path that stays", GDN_E_ARG, "path", ring2_set(&c.n_accepted, 0, 2));
    COMMIT_CONTENTS("path past the end", GDN_E_ARG, "path", ring2_set(&c.path, 0, R));
    COMMIT_CONTENTS("count -1", GDN_E_ARG, "record_count", ring2_set(&y.r.count, 3, -1));
    COMMIT_CONTENTS("count past the end", GDN_E_ARG, "record_count",
                    ring2_set(&y.r.count, 3, R + 1));
}

static void refused_fold(void)
{
    FOLD("flags", GDN_E_ARG, "flags", y.f.flags = GDN_EXACT);
    FOLD("reserved", GDN_E_ARG, "reserved", y.f.reserved = 1);
    FOLD("head_map", GDN_E_ARG, "head_map", y.f.head_map = 2);
    FOLD("state_layout", GDN_E_ARG, "state_layout", y.f.state_layout = -1);
    FOLD("rounding", GDN_E_ARG, "rounding", y.f.rounding = 2);
    FOLD("no state", GDN_E_ARG, "state", y.f.state.data = NULL);
    FOLD("scales", GDN_E_ARG, "state_scales", y.f.state_scales = y.f.record_g);
    FOLD("no count", GDN_E_ARG, "record_count", y.f.record_count.data = NULL);
    FOLD("heads of k", GDN_E_SHAPE, "record_k", y.f.record_k.size[2] = 3;
         y.f.record_k.stride[2] = 0);
    FOLD("size of the state", GDN_E_SHAPE, "state", y.f.state.size[3]--);
    FOLD("slots", GDN_E_SHAPE, "record_k", y.f.state.size[0]--);
    FOLD("state in u", GDN_E_ARG, "overlap", y.f.record_u.data = y.f.state.data);
    FOLD("count in g", GDN_E_ARG, "overlap", y.f.record_count.data = y.f.record_g.data);
    FOLD("starts", GDN_E_ARG, "token_start", y.slots->token_start = y.b->token_count);
    FOLD_CONTENTS("count -1", GDN_E_ARG, "record_count", ring2_set(&y.r.count, 4, -1));
    FOLD_CONTENTS("a slot twice", GDN_E_ARG, "read_slots", ring2_set(&y.slots->read_slots, 1, 4));
    FOLD_CONTENTS("slot P", GDN_E_ARG, "read_slots", ring2_set(&y.slots->read_slots, 1, P));
}

int main(int argc, char **argv)
{
    static const struct ring2_test others[] = {
        { "G2 G3 records, threads", G2_G3_threads },
        { "G12 float environment, records", G12_float_environment },
        { "G13 no allocation, records", G13_no_allocation },
    };
    ring2_options(argc, argv);
    for (int i = 0; i < N_EXACT_LAYERS; i++)
        for (int seed = 0; seed < 6; seed++)
            for (int tree = 0; tree < 2; tree++)
                if (ring2_begin("G20 rollback of a %s, layer %d, draw %d", tree ? "tree" : "chain",
                                i, seed)) {
                    G20_rollback(&layers[i], tree);
                    ring2_end();
                }
    for (int i = N_EXACT_LAYERS; i < N_LAYERS; i++)
        for (int seed = 0; seed < 4; seed++)
            if (ring2_begin("rounded records and states, layer %d, draw %d", i, seed)) {
                rounded(&layers[i]);
                ring2_end();
            }
    for (int i = 0; i < N_EXACT_LAYERS; i++)
        for (int seed = 0; seed < 5; seed++)
            if (ring2_begin("G7 G8 G20 odd values, layer %d, draw %d", i, seed)) {
                odd_values(&layers[i]);
                ring2_end();
            }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (ring2_begin("%s", others[i].name)) {
            others[i].run();
            ring2_end();
        }
    refused_decode();
    refused_commit();
    refused_fold();
    return ring2_summary();
}
