/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu */
/*
 * Rolling back: draft, accept some, go on, for the convolution and the rule together. The ways
 * of gdn.h (a slot for each token, the accepted ones again, from inputs at hand or kept by slot,
 * records) against plain decode of what was accepted: G20.
 */
#include <math.h>
#include <string.h>

#include "ring2_record.h"

enum { TAPS = 4 };

static void conv(const struct ring2_tokens *t, const gdn_tensor *weight, const gdn_tensor *state,
                 const gdn_tensor *out, const gdn_batch *batch)
{
    gdn_conv1d_args a = gdn_conv1d_args_init();
    a.x = t->x, a.weight = *weight, a.state = *state, a.batch = batch;
    a.activation = GDN_ACT_SILU;
    if (out) a.out = *out;
    ring2_status(ring2_ctx(2), "gdn_conv1d", gdn_conv1d(ring2_ctx(2), &a), GDN_OK);
}

/* ---- The ways, each with states of its own ---- */

struct way {
    gdn_tensor conv, state, out;
};

/* Decodes the accepted tokens as if no draft had been beside them. */
static void plain_round(const struct ring2_layer *m, const gdn_tensor *weight,
                        const struct ring2_tokens *t, const struct ring2_accepted *n, struct way *w)
{
    struct ring2_tokens some = *t;
    gdn_tensor act = ring2_new(GDN_F32, 0, 3, B, t->T, ring2_channels(m), 0);
    const gdn_tensor *to[] = { &some.x, &some.g, &some.beta }, *from[] = { &t->x, &t->g, &t->beta };
    gdn_batch b;
    some.x = ring2_clone(&t->x), some.g = ring2_clone(&t->g), some.beta = ring2_clone(&t->beta);
    memcpy(some.count, n->n, sizeof some.count);
    for (int s = 0; s < B; s++)
        for (int64_t i = 0; i < n->n[s]; i++)
            for (int j = 0; j < 3; j++) {
                gdn_tensor d = ring2_narrow(to[j], 0, s, 1), f = ring2_narrow(from[j], 0, s, 1);
                d = ring2_narrow(&d, 1, i, 1), f = ring2_narrow(&f, 1, n->path[s][i], 1);
                ring2_copy(&d, &f);
            }
    b = ring2_drafts(&some, false);
    b.write = GDN_WRITE_FINAL;
    conv(&some, weight, &w->conv, &act, &b);
    const gdn_rule_args a = ring2_layer_args(m, &some, &act, &w->state, &b);
    ring2_decode(&a);
    w->out = a.out;
}

static void record_round(const struct ring2_layer *m, const gdn_tensor *weight,
                         const struct ring2_tokens *t, const struct ring2_accepted *n, bool tree,
                         struct way *w, const struct ring2_record *r)
{
    gdn_tensor act = ring2_new(GDN_F32, 0, 3, B, t->T, ring2_channels(m), 0);
    gdn_batch b = ring2_drafts(t, tree), done;
    conv(t, weight, &w->conv, &act, &b);
    w->out = ring2_record_drafts(m, t, &act, r, &w->state, &b);
    ring2_commit(r, n, tree, t->T);
    done = gdn_batch_init();
    done.read_slots = b.read_slots;
    done.token_count = ring2_indices(GDN_I32, B, n->n);
    if (tree) done.path = ring2_paths(t->T, n->path[0]);
    conv(t, weight, &w->conv, NULL, &done);
}

/* Runs a chain twice: once for its output, then its accepted tokens for the state. */
static void again_round(const struct ring2_layer *m, const gdn_tensor *weight,
                        const struct ring2_tokens *t, const struct ring2_accepted *n, struct way *w)
{
    gdn_tensor act = ring2_new(GDN_F32, 0, 3, B, t->T, ring2_channels(m), 0);
    gdn_batch b = ring2_drafts(t, false);
    gdn_rule_args a;
    conv(t, weight, &w->conv, &act, &b);
    a = ring2_layer_args(m, t, &act, &w->state, &b);
    ring2_decode(&a);
    w->out = a.out;
    b.write = GDN_WRITE_FINAL;
    b.token_count = ring2_indices(GDN_I32, B, n->n);
    a.out.data = NULL;
    ring2_decode(&a);
    conv(t, weight, &w->conv, NULL, &b);
}

/* Keeps rows [B][T]... in windows by slot, [P][..][T].., as FlashInfer does. Returns these as
 * [P][T]... */
static gdn_tensor kept(const gdn_tensor *rows, const gdn_tensor *slots)
{
    const gdn_tensor from = ring2_swap(rows, 1, 2);
    gdn_state_copy_args c = gdn_state_copy_args_init();
    c.from_pool = from;
    c.to_pool = ring2_new(rows->dtype, 0, from.ndim, P, from.size[1], from.size[2],
                          from.ndim == 4 ? from.size[3] : 0);
    c.to_slots = *slots;
    ring2_status(ring2_ctx(2), "gdn_state_copy", gdn_state_copy(ring2_ctx(2), &c), GDN_OK);
    return ring2_swap(&c.to_pool, 1, 2);
}

/* Runs drafts whose raw inputs are kept by slot; then runs the accepted ones again from those
 * slots. */
static void windows_round(const struct ring2_layer *m, const gdn_tensor *weight,
                          const struct ring2_tokens *t, const struct ring2_accepted *n,
                          struct way *w)
{
    gdn_tensor act = ring2_new(GDN_F32, 0, 3, B, t->T, ring2_channels(m), 0);
    gdn_batch b = ring2_drafts(t, false), each = gdn_batch_init();
    int64_t slots[P], count[P] = { 0 };
    conv(t, weight, &w->conv, &act, &b);
    gdn_rule_args a = ring2_layer_args(m, t, &act, &w->state, &b);
    ring2_decode(&a);
    w->out = a.out;
    for (int64_t p = 0; p < P; p++) slots[p] = -1;
    for (int s = 0; s < B; s++)
        if (ring2_slots[s] >= 0) {
            slots[ring2_slots[s]] = ring2_slots[s];
            count[ring2_slots[s]] = n->n[s];
        }
    gdn_tensor *const rows[] = { &a.q, &a.k, &a.v, &a.g, &a.beta };
    for (int i = 0; i < 5; i++) *rows[i] = kept(rows[i], &b.read_slots);
    each.read_slots = ring2_indices(GDN_I32, P, slots);
    each.token_count = ring2_indices(GDN_I32, P, count);
    a.batch = &each;
    a.out.data = NULL;
    ring2_decode(&a);
    b.write = GDN_WRITE_FINAL;
    b.token_count = ring2_indices(GDN_I32, B, n->n);
    conv(t, weight, &w->conv, NULL, &b);
}

/* A slot for each token, in that of two halves where the sequence does not start from. */
enum { HALF = MOST + 1, EACH_SLOTS = B * 2 * HALF };

struct each {
    struct way w;
    int64_t read[B][HALF], n[B]; /* of the next call: its start is read[n - 1] */
};

static void each_round(const struct ring2_layer *m, const gdn_tensor *weight,
                       const struct ring2_tokens *t, const struct ring2_accepted *n, bool tree,
                       struct each *e)
{
    gdn_tensor act = ring2_new(GDN_F32, 0, 3, B, t->T, ring2_channels(m), 0);
    gdn_batch b = ring2_drafts(t, tree);
    b.write = GDN_WRITE_EACH;
    b.read_slots = ring2_new(GDN_I64, 0, 2, B, HALF, 0, 0);
    b.write_slots = ring2_new(GDN_I32, 0, 2, B, t->T, 0, 0);
    b.num_accepted_tokens = ring2_indices(GDN_I32, B, e->n);
    for (int s = 0; s < B; s++) {
        const int64_t start = e->read[s][e->n[s] - 1];
        for (int64_t i = 0; i < HALF; i++)
            ring2_set(&b.read_slots, s * HALF + i, ring2_slots[s] < 0 ? -1 : (double)e->read[s][i]);
        const int64_t half = 1 - start / HALF % 2;
        e->read[s][0] = start;
        for (int64_t i = 0; i < t->T; i++) {
            e->read[s][i + 1] = (s * 2 + half) * HALF + i;
            ring2_set(&b.write_slots, s * t->T + i, (double)e->read[s][i + 1]);
        }
        e->n[s] = n->n[s] ? n->path[s][n->n[s] - 1] + 2 : 1;
    }
    conv(t, weight, &e->w.conv, &act, &b);
    const gdn_rule_args a = ring2_layer_args(m, t, &act, &e->w.state, &b);
    ring2_decode(&a);
    e->w.out = a.out;
}

/* Outputs of what was accepted, against those of plain decode. */
static void expect_out(const char *what, const gdn_tensor *got, const gdn_tensor *want,
                       const struct ring2_accepted *n)
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

static struct each each_of(const struct ring2_layer *m, const struct way *w)
{
    struct each e = { 0 };
    e.w.conv = ring2_new(GDN_F32, 0, 3, EACH_SLOTS, ring2_channels(m), TAPS - 1, 0);
    e.w.state = ring2_pool(m, m->dtype, EACH_SLOTS);
    ring2_fill_value(&e.w.conv, (double)NAN), ring2_fill_value(&e.w.state, (double)NAN);
    for (int s = 0; s < B; s++) {
        e.read[s][0] = s * 2 * HALF + HALF - 1; /* no half writes it */
        e.n[s] = 1;
        if (ring2_slots[s] < 0) continue;
        gdn_tensor to = ring2_narrow(&e.w.conv, 0, e.read[s][0], 1);
        gdn_tensor from = ring2_narrow(&w->conv, 0, ring2_slots[s], 1);
        ring2_copy(&to, &from);
        to = ring2_narrow(&e.w.state, 0, e.read[s][0], 1);
        from = ring2_narrow(&w->state, 0, ring2_slots[s], 1);
        ring2_copy(&to, &from);
    }
    return e;
}

static void expect_each(const struct each *e, const struct way *plain)
{
    for (int s = 0; s < B; s++) {
        if (ring2_slots[s] < 0) continue;
        const int64_t slot = e->read[s][e->n[s] - 1];
        const gdn_tensor got = ring2_narrow(&e->w.state, 0, slot, 1);
        const gdn_tensor want = ring2_narrow(&plain->state, 0, ring2_slots[s], 1);
        const gdn_tensor c = ring2_narrow(&e->w.conv, 0, slot, 1);
        const gdn_tensor want_c = ring2_narrow(&plain->conv, 0, ring2_slots[s], 1);
        ring2_expect_bits("slots: state", &got, &want);
        ring2_expect_bits("slots: convolution", &c, &want_c);
    }
}

static void G20_rollback(const struct ring2_layer *m, bool tree)
{
    struct way plain = { .conv = ring2_new(GDN_F32, 1, 3, P, ring2_channels(m), TAPS - 1, 0),
                         .state = ring2_pool(m, m->dtype, P) };
    struct ring2_record r = ring2_record_new(m, m->record);
    gdn_tensor weight = ring2_new(GDN_F32, 0, 2, ring2_channels(m), TAPS, 0, 0);
    ring2_fill(&plain.conv, -1, 1);
    ring2_fill(&weight, -1, 1);
    struct way record = copy_of(&plain), again = copy_of(&plain), windows = copy_of(&plain);
    struct each each = each_of(m, &plain);
    for (int round = 0; round < 8 && !ring2_failed(); round++) {
        const struct ring2_tokens t = ring2_draft(m, tree);
        const struct ring2_accepted n = ring2_accept(&t);
        if (ring2_record_is_full(&r, &t) || ring2_below(4) == 0) {
            ring2_fold(m, &r, &record.state);
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
        windows_round(m, &weight, &t, &n, &windows);
        expect_out("windows: out", &windows.out, &plain.out, &n);
        ring2_expect_bits("windows: state", &windows.state, &plain.state);
    }
    ring2_fold(m, &r, &record.state);
    ring2_expect_bits("record: last state", &record.state, &plain.state);
}

int main(int argc, char **argv)
{
    ring2_options(argc, argv);
    for (int i = 0; i < N_EXACT_LAYERS; i++)
        for (int seed = 0; seed < 6; seed++)
            for (int tree = 0; tree < 2; tree++)
                if (ring2_begin("G20 rollback of a %s, layer %d, draw %d", tree ? "tree" : "chain",
                                i, seed)) {
                    G20_rollback(&ring2_layers[i], tree);
                    ring2_end();
                }
    return ring2_summary();
}
