/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu --every=40, gpu --every=10, sm_80 --every=399, sm_90 --every=399 */
/*
 * GDN_SPLIT_INVARIANT: sequences go through random calls of gdn_prefill, gdn_decode, folds, and
 * drafts of which some are accepted. They have strangers beside them and slots of their own.
 * Outputs, and states at multiples of 64 tokens, have the bits of one gdn_prefill.
 */
#include <math.h>
#include <string.h>

#include "gdn_record.h"
#include "ring2.h"
#include "ring2_device.h"

enum { B = 3, P = 5, T = 200, UNIT = 64, CALLS = 120, SEEDS = 400 };

static const struct layer {
    int32_t A, layout, map, raw;
    int heads[3];
    int64_t K, V, R; /* R: rows of a record */
    double keys;     /* the largest element; the norm makes them short */
} layers[] = {
    { GDN_F32, GDN_STATE_VK, GDN_HEADS_GROUPED, 0, { 1, 1, 2 }, 32, 32, 64, 1 },
    { GDN_F32, GDN_STATE_KV, GDN_HEADS_INTERLEAVED, 0, { 1, 1, 3 }, 17, 40, 64, 1 },
    { GDN_BF16, GDN_STATE_VK, GDN_HEADS_GROUPED, 1, { 2, 1, 2 }, 48, 19, 96, 1 },
    { GDN_F16, GDN_STATE_KV, GDN_HEADS_GROUPED, 1, { 2, 2, 2 }, 16, 33, 64, 1 },
    { GDN_F32, GDN_STATE_VK, GDN_HEADS_INTERLEAVED, 0, { 4, 2, 2 }, 24, 8, 130, 1 },
    { GDN_BF16, GDN_STATE_VK, GDN_HEADS_GROUPED, 1, { 1, 1, 2 }, 64, 64, 64, 1 },
    { GDN_F16, GDN_STATE_KV, GDN_HEADS_GROUPED, 1, { 2, 1, 2 }, 128, 128, 64, 500 },
    { GDN_BF16, GDN_STATE_VK, GDN_HEADS_GROUPED, 0, { 1, 1, 2 }, 128, 72, 100, 500 },
};
enum { N_LAYERS = sizeof layers / sizeof *layers };

static int64_t state_heads(const struct layer *m)
{
    return m->heads[0] > m->heads[2] ? m->heads[0] : m->heads[2];
}

/* A GPU keeps rows as the call gives them. */
static int32_t row_dtype(const struct layer *m) { return ring2_on_device() ? m->A : GDN_F32; }

/* ---- Tokens -------------------------------------------------------------------------------- */

struct tokens {
    gdn_tensor q, k, v, g, beta, out; /* [B][n] */
};

struct run {
    const struct layer *m;
    int32_t layout;            /* of the splits' pool; the states may have another */
    struct tokens all;         /* and the outputs that each split must have */
    gdn_tensor states;         /* [B T / 64]: after each 64 tokens */
    gdn_tensor A_log, dt_bias; /* of raw gates */
    gdn_tensor state, k, u, g, count;
    int64_t at[B], slots[B];
};

static struct tokens new_tokens(const struct layer *m, int64_t n)
{
    const int64_t H = state_heads(m);
    return (struct tokens){ ring2_new(m->A, 0, 4, B, n, m->heads[0], m->K),
                            ring2_new(m->A, 0, 4, B, n, m->heads[1], m->K),
                            ring2_new(m->A, 0, 4, B, n, m->heads[2], m->V),
                            ring2_new(GDN_F32, 0, 3, B, n, H, 0),
                            ring2_new(GDN_F32, 0, 3, B, n, H, 0),
                            ring2_new(m->A, 0, 4, B, n, H, m->V) };
}

/* Random tokens. Some forget, some do not write, some do neither. */
static void fill_tokens(const struct layer *m, const struct tokens *t)
{
    const int64_t forgets = ring2_below(3) ? 400 : 20;
    ring2_fill(&t->q, -1, 1), ring2_fill(&t->v, -1, 1);
    ring2_fill(&t->k, -m->keys, m->keys);
    ring2_fill(&t->g, m->raw ? -3 : -0.2, m->raw ? 3 : 0);
    ring2_fill(&t->beta, m->raw ? -2 : 0, m->raw ? 2 : 1);
    for (int64_t i = 0; i < ring2_count(&t->g) && !m->raw; i++) {
        if (ring2_below(forgets) == 0) ring2_set(&t->g, i, -(double)INFINITY);
        if (ring2_below(10) == 0) ring2_set(&t->beta, i, 0);
        if (ring2_below(20) == 0) ring2_set(&t->g, i, 0), ring2_set(&t->beta, i, 0);
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

static gdn_rule_args args_of(const struct run *r, const struct tokens *t, const gdn_batch *b)
{
    gdn_rule_args a = gdn_rule_args_init();
    a.q = t->q, a.k = t->k, a.v = t->v, a.g = t->g, a.beta = t->beta, a.out = t->out;
    a.A_log = r->A_log, a.dt_bias = r->dt_bias;
    a.gate = r->m->raw ? GDN_GATE_RAW : GDN_GATE_LOG;
    a.beta_kind = r->m->raw ? GDN_BETA_SIGMOID : GDN_BETA_GIVEN;
    a.norm = GDN_NORM_L2, a.head_map = r->m->map, a.state_layout = r->layout;
    a.flags = GDN_SPLIT_INVARIANT;
    a.batch = b;
    return a;
}

static gdn_tensor new_pool(const struct layer *m, int32_t layout, int64_t n)
{
    const bool vk = layout == GDN_STATE_VK;
    return ring2_new(GDN_F32, 0, 4, n, state_heads(m), vk ? m->V : m->K, vk ? m->K : m->V);
}

/* One call, whose outputs and states all splits must have. */
static struct run new_run(const struct layer *m)
{
    struct run r = { .m = m, .layout = m->layout, .all = new_tokens(m, T) };
    const int64_t H = state_heads(m), zeros[P] = { 0 };
    gdn_batch batch = gdn_batch_init();
    batch.checkpoint_every = UNIT;
    if (m->raw) {
        r.A_log = ring2_new(GDN_F32, 0, 1, H, 0, 0, 0), ring2_fill(&r.A_log, -2, 0);
        r.dt_bias = ring2_new(GDN_F32, 0, 1, H, 0, 0, 0), ring2_fill(&r.dt_bias, -1, 1);
    }
    r.states = new_pool(m, m->layout, B * (T / UNIT));
    fill_tokens(m, &r.all);
    gdn_rule_args a = args_of(&r, &r.all, &batch);
    a.checkpoints = r.states;
    ring2_status(ring2_ctx(2), "whole", gdn_prefill(ring2_ctx(2), &a), GDN_OK);
    if (ring2_below(2)) r.layout = m->layout == GDN_STATE_VK ? GDN_STATE_KV : GDN_STATE_VK;
    r.state = new_pool(m, r.layout, P);
    r.k = ring2_new(row_dtype(m), 3, 4, P, m->R, m->heads[1], m->K);
    r.u = ring2_new(row_dtype(m), 0, 4, P, m->R, H, m->V);
    r.g = ring2_new(GDN_F32, 0, 4, P, m->R, H, 2);
    r.count = ring2_indices(m->K % 2 ? GDN_I64 : GDN_I32, P, zeros);
    ring2_fill_value(&r.state, 0);
    const int64_t first = ring2_below(P);
    for (int64_t b = 0; b < B; b++) r.slots[b] = (first + b * (1 + ring2_below(2))) % P;
    r.slots[1] = (r.slots[0] + 1) % P, r.slots[2] = (r.slots[0] + 3) % P;
    return r;
}

/* ---- One call of a split ------------------------------------------------------------------- */

enum way { DECODE, PREFILL, DRAFTS };

/* One call: n of the `drawn` tokens of each sequence count, and the rest are rejected. */
struct step {
    enum way way;
    int64_t most, drawn[B], n[B], slots[B];
};

static struct step draw_step(const struct run *r)
{
    struct step s = { .way = (enum way)ring2_below(3), .most = 1 };
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
        if (s.drawn[b] > s.most) s.most = s.drawn[b];
    }
    return s;
}

static struct tokens tokens_of(const struct run *r, const struct step *s)
{
    struct tokens t = new_tokens(r->m, s->most);
    fill_tokens(r->m, &t);
    ring2_set(&t.v, ring2_below(ring2_count(&t.v)), (double)NAN);
    for (int64_t b = 0; b < B; b++) copy_tokens(&t, 0, &r->all, r->at[b], b, s->n[b]);
    return t;
}

/* Returns rows [B][n] as rows [B n]. */
static gdn_tensor packed(gdn_tensor t)
{
    t.size[1] *= t.size[0], t.ndim--;
    for (int i = 0; i < t.ndim; i++) t.size[i] = t.size[i + 1], t.stride[i] = t.stride[i + 1];
    return t;
}

/* Makes the call one of packed tokens: rows of `most` tokens, of which some count. */
static void pack(gdn_rule_args *a, gdn_batch *b, int64_t most)
{
    gdn_tensor *const by_token[] = { &a->q, &a->k, &a->v, &a->g, &a->beta, &a->out };
    int64_t starts[B + 1];
    for (size_t i = 0; i < sizeof by_token / sizeof *by_token; i++)
        *by_token[i] = packed(*by_token[i]);
    for (int64_t i = 0; i <= B; i++) starts[i] = i * most;
    b->cu_seqlens = ring2_indices(GDN_I32, B + 1, starts);
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
    gdn_record_fold_args a = gdn_record_fold_args_init();
    gdn_batch b = gdn_batch_init();
    const int64_t before = (int64_t)ring2_get(&r->count, slot);
    b.read_slots = ring2_indices(GDN_I32, 1, &slot);
    a.flags = GDN_SPLIT_INVARIANT;
    a.state = r->state, a.state_layout = r->layout, a.head_map = r->m->map;
    a.norm = GDN_NORM_L2;
    a.record_k = r->k, a.record_u = r->u, a.record_g = r->g, a.record_count = r->count;
    a.batch = &b;
    ring2_status(ring2_ctx(2), "fold", gdn_record_fold(ring2_ctx(2), &a), GDN_OK);
    const int64_t after = (int64_t)ring2_get(&r->count, slot);
    CHECK(after <= before && after < UNIT && (after < before || before < UNIT),
          "%d rows were folded to %d", (int)before, (int)after);
}

/* Checks outputs of tokens that count, and the state if the sequence ended a chunk. */
static void expect(const struct run *r, const struct step *s, const struct tokens *t, int64_t b)
{
    const gdn_tensor got = ring2_narrow(&t->out, 0, b, 1);
    const gdn_tensor want = ring2_narrow(&r->all.out, 0, b, 1);
    const int64_t n = s->n[b], end = r->at[b];
    if (n > 0) {
        const gdn_tensor x = ring2_narrow(&got, 1, 0, n), y = ring2_narrow(&want, 1, end - n, n);
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
    const struct tokens t = tokens_of(r, s);
    gdn_ctx *ctx = ring2_ctx(1 + (int)ring2_below(3));
    gdn_batch b = gdn_batch_init();
    b.read_slots = ring2_indices(GDN_I32, B, s->slots);
    b.token_count = ring2_indices(GDN_I32, B, s->drawn);
    b.write = s->way == DRAFTS ? GDN_WRITE_NONE : GDN_WRITE_FINAL;
    gdn_rule_args a = args_of(r, &t, &b);
    a.state = r->state;
    a.record_k = r->k, a.record_u = r->u, a.record_g = r->g, a.record_count = r->count;
    if (ring2_below(4) == 0) pack(&a, &b, s->most);
    ring2_call_begin();
    ring2_may_write(&a.out);
    const gdn_tensor *const all[] = { &a.record_k, &a.record_u, &a.record_g, &a.record_count,
                                      &a.state };
    for (int64_t i = 0; i < B; i++)
        for (int j = 0; j < (s->way == DRAFTS ? 3 : 5) && s->slots[i] >= 0 && s->drawn[i]; j++) {
            const gdn_tensor one = ring2_narrow(all[j], 0, s->slots[i], 1);
            ring2_may_write(&one);
        }
    ring2_status(ctx, "call", s->way == PREFILL ? gdn_prefill(ctx, &a) : gdn_decode(ctx, &a),
                 GDN_OK);
    ring2_call_end();
    if (s->way == DRAFTS) commit(r, s);
    for (int64_t i = 0; i < B; i++) {
        if (s->slots[i] < 0) continue;
        r->at[i] += s->n[i];
        if (ring2_below(6) == 0 || (s->n[i] > 0 && r->at[i] % UNIT == 0)) fold(r, s->slots[i]);
        expect(r, s, &t, i);
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

/* Tokens that belong to no sequence: their output is zero. */
static void behind(int number)
{
    struct run r = new_run(&layers[number]);
    struct tokens t = new_tokens(r.m, 3);
    const int64_t starts[] = { 0, 1, 2 }, slots[] = { 3, 1 };
    gdn_batch b = gdn_batch_init();
    gdn_rule_args a = args_of(&r, &t, &b);
    fill_tokens(r.m, &t);
    ring2_fill_value(&t.out, 7);
    pack(&a, &b, 3);
    b.cu_seqlens = ring2_indices(GDN_I32, 3, starts);
    b.read_slots = ring2_indices(GDN_I32, 2, slots);
    a.state = r.state;
    a.record_k = r.k, a.record_u = r.u, a.record_g = r.g, a.record_count = r.count;
    ring2_status(ring2_ctx(2), "behind", gdn_decode(ring2_ctx(2), &a), GDN_OK);
    for (int64_t i = 0, H = state_heads(r.m); i < ring2_count(&a.out); i++)
        CHECK((ring2_get(&a.out, i) == 0) == (i >= 2 * H * r.m->V), "out [%d]: %g", (int)i,
              ring2_get(&a.out, i));
}

/* Without a record, chunks begin with the sequence: the bits of gdn_prefill. */
static void plain(int number)
{
    struct run r = new_run(&layers[number]);
    const gdn_tensor out = ring2_clone(&r.all.out);
    gdn_rule_args a = args_of(&r, &r.all, NULL);
    a.flags = GDN_BATCH_INVARIANT;
    ring2_status(ring2_ctx(2), "plain", gdn_prefill(ring2_ctx(2), &a), GDN_OK);
    ring2_expect_bits("out", &out, &r.all.out);
}

/* ---- Refusals ------------------------------------------------------------------------------ */

#define REFUSE(op, want, needle, ...)                                                   \
    do {                                                                                \
        struct run r = new_run(&layers[0]);                                             \
        const struct tokens t = new_tokens(r.m, 2);                                     \
        gdn_batch b = gdn_batch_init();                                                 \
        b.read_slots = ring2_indices(GDN_I32, B, r.slots);                              \
        gdn_rule_args a = args_of(&r, &t, &b);                                          \
        a.state = r.state;                                                              \
        a.record_k = r.k, a.record_u = r.u, a.record_g = r.g, a.record_count = r.count; \
        __VA_ARGS__;                                                                    \
        ring2_refused(ring2_ctx(2), GDN_OP_##op, &a, RING2_STRUCT, want, needle);       \
    } while (0)

static void refused(int number)
{
    const int64_t H = state_heads(&layers[0]), K = layers[0].K, V = layers[0].V, R = layers[0].R;
    const gdn_tensor none = { 0 };
    (void)number;
    REFUSE(DECODE, GDN_E_ARG, "GDN_EXACT", a.flags |= GDN_EXACT);
    REFUSE(DECODE, GDN_E_ARG, "record_k: absent",
           a.record_k = a.record_u = a.record_g = a.record_count = none);
    REFUSE(DECODE, GDN_E_UNSUPPORTED, "g: of the family",
           a.g = ring2_new(GDN_F32, 0, 4, B, 2, H, K));
    REFUSE(DECODE, GDN_E_UNSUPPORTED, "state: not float32",
           a.state = ring2_new(GDN_BF16, 0, 4, P, H, V, K), a.state_layout = GDN_STATE_VK);
    REFUSE(DECODE, GDN_E_UNSUPPORTED, "parents", b.write = GDN_WRITE_NONE,
           b.parents = ring2_new(GDN_I32, 0, 2, B, 2, 0, 0));
    REFUSE(DECODE, GDN_E_SHAPE, "record_g", a.record_g = ring2_new(GDN_F32, 0, 3, P, R, H, 0));
    REFUSE(DECODE, ring2_on_device() ? GDN_E_DTYPE : GDN_E_UNSUPPORTED, "record_u: not",
           a.record_u = ring2_new(GDN_BF16, 0, 4, P, R, H, V));
    REFUSE(DECODE, GDN_E_SHAPE, "record_k: 63 rows", a.record_k = ring2_narrow(&r.k, 1, 0, 63),
           a.record_u = ring2_narrow(&r.u, 1, 0, 63), a.record_g = ring2_narrow(&r.g, 1, 0, 63));
    REFUSE(PREFILL, GDN_E_ARG, "write", b.write = GDN_WRITE_NONE);
    REFUSE(PREFILL, GDN_E_ARG, "has_initial_state",
           b.has_initial_state = ring2_new(GDN_I32, 0, 1, B, 0, 0, 0));
    REFUSE(PREFILL, GDN_E_UNSUPPORTED, "checkpoints", b.checkpoint_every = UNIT,
           a.checkpoints = new_pool(r.m, r.layout, P));
}

int main(int argc, char **argv)
{
    static const struct ring2_cases tests[] = {
        { "G23 any split", splits, N_LAYERS * SEEDS },
        { "G23 one call", plain, N_LAYERS },
        { "G23 tokens of no sequence", behind, N_LAYERS },
        { "G1 refused", refused, 1 },
    };
    return ring2_cases_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
