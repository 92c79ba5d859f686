/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu --every=60, gpu --every=12, sm_80 --every=401, sm_90 --every=10 " 6" */
/*
 * GDN_SPLIT_INVARIANT: sequences go through random calls of gdn_prefill, gdn_decode, folds, and
 * drafts of which some are accepted. They have strangers beside them and slots of their own.
 * Outputs, and states at multiples of 64 tokens, have the bits of one gdn_prefill.
 */
#include "split_calls.h"

enum { CALLS = 120, SEEDS = 400 };

/* Makes the tokens of sequence b as bad as they can be. */
static void spoil(const struct tokens *t, int64_t b)
{
    static const double bad[] = { NAN, INFINITY, -INFINITY, 6e4 };
    const gdn_tensor *const all[] = { &t->q, &t->k, &t->v, &t->g, &t->beta };
    for (int i = 0; i < 5; i++) {
        const gdn_tensor its = ring2_narrow(all[i], 0, b, 1);
        const int64_t n = ring2_count(&its);
        for (int j = 0; j < 3; j++) ring2_set(&its, ring2_below(n), bad[ring2_below(4)]);
    }
}

/* Copies n tokens of sequence b between tensors, from token `from` to token `to`. */
static void copy_tokens(const struct tokens *to, int64_t to_at, const struct tokens *from,
                        int64_t from_at, int64_t b, int64_t n)
{
    const gdn_tensor *const x[] = { &to->q, &to->k, &to->v, &to->g, &to->beta };
    const gdn_tensor *const y[] = { &from->q, &from->k, &from->v, &from->g, &from->beta };
    for (int i = 0; i < 5 && n > 0; i++) {
        const gdn_tensor a = ring2_narrow(x[i], 0, b, 1), c = ring2_narrow(y[i], 0, b, 1);
        const gdn_tensor its = ring2_narrow(&a, 1, to_at, n),
                         other = ring2_narrow(&c, 1, from_at, n);
        ring2_copy(&its, &other);
    }
}

/* ---- One call of a split ------------------------------------------------------------------- */

enum way { DECODE, PREFILL, DRAFTS };

/* One call: n of the `drawn` tokens of each sequence count, and the rest are rejected. */
struct step {
    enum way way;
    int64_t most, before[B], drawn[B], n[B], slots[B]; /* before: tokens of padding */
};

static struct step draw_step(const struct run *r)
{
    struct step s = { .way = (enum way)ring2_below(3), .most = 1 };
    const bool starts = ring2_below(4) == 0;
    for (int64_t b = 0; b < B; b++) {
        const int64_t rest = T - r->at[b],
                      rows = r->m->R - (int64_t)ring2_get(&r->count, r->slots[b]);
        const int64_t some = ring2_below(4)   ? ring2_below(6)
                             : ring2_below(2) ? ring2_below(90)
                                              : UNIT - r->at[b] % UNIT;
        const int64_t n = some < rest ? some : rest;
        s.slots[b] = ring2_below(8) ? r->slots[b] : -1;
        s.drawn[b] = s.way == DRAFTS ? ring2_below((rows < 20 ? rows : 20) + 1) : n;
        s.n[b] = s.way != DRAFTS ? n : ring2_below((rest < s.drawn[b] ? rest : s.drawn[b]) + 1);
        s.before[b] = starts ? ring2_below(3) : 0;
        if (s.before[b] + s.drawn[b] > s.most) s.most = s.before[b] + s.drawn[b];
    }
    return s;
}

static struct tokens tokens_of(const struct run *r, const struct step *s)
{
    struct tokens t = new_tokens(r->m, s->most);
    fill_tokens(r->m, &t);
    /* Sequences of which nothing counts; those beside them keep their bits. */
    for (int64_t b = 0; b < B; b++)
        if (s->slots[b] < 0 || s->n[b] == 0) spoil(&t, b);
    for (int64_t b = 0; b < B; b++) copy_tokens(&t, s->before[b], &r->all, r->at[b], b, s->n[b]);
    return t;
}

static void commit(const struct run *r, const struct step *s)
{
    gdn_record_commit_args a = gdn_record_commit_args_init();
    gdn_batch b = gdn_batch_init();
    b.read_slots = ring2_indices(GDN_I32, B, s->slots);
    a.record_k = r->k, a.record_u = r->u, a.record_g = r->g, a.record_count = r->count;
    a.n_accepted = ring2_indices(GDN_I32, B, s->n);
    a.batch = &b;
    ring2_status(ring2_ctx(2), "commit", gdn_record_commit(ring2_ctx(2), &a), GDN_OK);
}

static void fold(const struct run *r, int64_t slot)
{
    gdn_batch b = gdn_batch_init();
    const int64_t before = (int64_t)ring2_get(&r->count, slot);
    b.read_slots = ring2_indices(GDN_I32, 1, &slot);
    gdn_record_fold_args a = fold_args(r, &b);
    if (ring2_below(2)) ring2_give_workspace(ring2_ctx(2), GDN_OP_RECORD_FOLD, &a);
    ring2_status(ring2_ctx(2), "fold", gdn_record_fold(ring2_ctx(2), &a), GDN_OK);
    const int64_t after = (int64_t)ring2_get(&r->count, slot);
    CHECK(after <= before && after < UNIT && (after < before || before < UNIT),
          "%d rows were folded to %d", (int)before, (int)after);
}

/* Tokens that do not count have outputs of zero. */
static void expect_padding(const struct step *s, const gdn_tensor *out, int64_t b)
{
    const gdn_tensor its = ring2_narrow(out, 0, b, 1);
    const int64_t n = ring2_count(&its), size = n / its.size[1];
    for (int64_t i = 0; i < n; i++) {
        const int64_t t = i / size - s->before[b];
        CHECK((t >= 0 && t < s->drawn[b]) || ring2_get(&its, i) == 0, "out of token %d is %g",
              (int)t, ring2_get(&its, i));
    }
}

/* Outputs of tokens that count; and the state where the sequence ended a unit. */
static void expect(const struct run *r, const struct step *s, const struct tokens *t, int64_t b)
{
    const gdn_tensor got = ring2_narrow(&t->out, 0, b, 1);
    const gdn_tensor want = ring2_narrow(&r->all.out, 0, b, 1);
    const int64_t n = s->n[b], end = r->at[b];
    if (n > 0) {
        const gdn_tensor x = ring2_narrow(&got, 1, s->before[b], n),
                         y = ring2_narrow(&want, 1, end - n, n);
        ring2_expect_bits("out", &x, &y);
    }
    if (n == 0 || end % UNIT) return;
    CHECK(ring2_get(&r->count, r->slots[b]) == 0, "rows at a multiple of %d", UNIT);
    const gdn_tensor x = ring2_narrow(&r->state, 0, r->slots[b], 1);
    gdn_tensor y = ring2_narrow(&r->states, 0, b * (T / UNIT) + end / UNIT - 1, 1);
    if (r->layout != r->m->layout) y = ring2_swap(&y, 2, 3);
    ring2_expect_bits("state", &x, &y);
}

static void call(struct run *r, const struct step *s)
{
    struct tokens t = tokens_of(r, s);
    gdn_ctx *ctx = ring2_ctx(1 + (int)ring2_below(3));
    gdn_batch b = gdn_batch_init();
    const gdn_op op = s->way == PREFILL ? GDN_OP_PREFILL : GDN_OP_DECODE;
    if (r->m->heads[2] == state_heads(r->m) && ring2_below(4) == 0) t.out = t.v;
    ring2_open_chunks(1 + ring2_below(B));
    b.pad_policy = ring2_below(2) ? GDN_PAD_KEEP : GDN_PAD_ZERO;
    b.read_slots = ring2_indices(GDN_I32, B, s->slots);
    b.token_start = ring2_indices(GDN_I64, B, s->before);
    b.token_count = ring2_indices(GDN_I32, B, s->drawn);
    b.write = s->way == DRAFTS ? GDN_WRITE_NONE : GDN_WRITE_FINAL;
    gdn_rule_args a = args_of(r, &t, &b);
    a.state = r->state;
    a.record_k = r->k, a.record_u = r->u, a.record_g = r->g, a.record_count = r->count;
    if (ring2_below(4) == 0) pack(&a, &b, s->most);
    if (ring2_below(2)) ring2_give_workspace(ctx, op, &a);
    ring2_call_begin();
    ring2_may_write(&a.out);
    if (a.workspace) ring2_may_write_bytes(a.workspace, a.workspace_bytes);
    const gdn_tensor *const all[] = { &a.record_k, &a.record_u, &a.record_g, &a.record_count,
                                      &a.state };
    for (int64_t i = 0; i < B; i++)
        for (int j = 0; j < (s->way == DRAFTS ? 3 : 5) && s->slots[i] >= 0 && s->drawn[i]; j++) {
            const gdn_tensor one = ring2_narrow(all[j], 0, s->slots[i], 1);
            ring2_may_write(&one);
        }
    ring2_status(ctx, "call", gdn_run_op(ctx, op, &a), GDN_OK);
    ring2_call_end();
    if (s->way == DRAFTS) commit(r, s);
    for (int64_t i = 0; i < B; i++) {
        if (s->slots[i] < 0) continue;
        r->at[i] += s->n[i];
        if (ring2_below(6) == 0 || (s->n[i] > 0 && r->at[i] % UNIT == 0)) fold(r, s->slots[i]);
        expect(r, s, &t, i);
        expect_padding(s, &t.out, i);
    }
}

/* ---- Tests --------------------------------------------------------------------------------- */

static void splits(int number)
{
    struct run r = new_run(&layers[number % N_LAYERS]);
    for (int i = 0; i < CALLS && !ring2_failed(); i++) {
        const struct step s = draw_step(&r);
        call(&r, &s);
        int64_t left = 0;
        for (int64_t b = 0; b < B; b++) left += T - r.at[b];
        if (left == 0) return;
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_cases tests[] = { { "G23 any split", splits, N_LAYERS * SEEDS } };
    return ring2_cases_main(argc, argv, tests, 1);
}
