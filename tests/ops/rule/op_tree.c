/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 --every=4 */
/* Trees of drafted tokens in gdn_decode: G19, and the other guarantees for trees. */
#include <math.h>

#include "ring2_rule.h"

/* Storage, sizes, heads. */
static const struct shape {
    int32_t dtype, state, layout, head_map, exact;
    int heads[3];
    int64_t K, V;
} shapes[] = { { GDN_F32, GDN_F32, GDN_STATE_VK, GDN_HEADS_GROUPED, 0, { 2, 2, 4 }, 32, 40 },
               { GDN_F32, GDN_F32, GDN_STATE_KV, GDN_HEADS_INTERLEAVED, 0, { 2, 2, 4 }, 33, 7 },
               { GDN_BF16, GDN_BF16, GDN_STATE_VK, GDN_HEADS_GROUPED, 0, { 4, 2, 2 }, 16, 33 },
               { GDN_F16, GDN_F16, GDN_STATE_KV, GDN_HEADS_GROUPED, GDN_EXACT, { 1, 1, 2 }, 20, 9 },
               { GDN_BF16, GDN_F32, GDN_STATE_KV, GDN_HEADS_GROUPED, 0, { 1, 1, 1 }, 18, 290 } };
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

enum kind { CHAIN, STAR, BINARY, COMB, RANDOM, N_KINDS };
static const char *const kind_names[] = { "chain", "star", "binary", "comb", "random" };

static int64_t parent_of(enum kind kind, int64_t t)
{
    switch (kind) {
    case CHAIN: return t - 1;
    case STAR: return -1;
    case BINARY: return (t + 1) / 2 - 1;
    case COMB: return t % 2 ? t - 1 : t - 2 < 0 ? -1 : t - 2;
    default: return ring2_below(t + 1) - 1;
    }
}

/* ---- A call on trees: three sequences from slots 0 to 2, token n of all leaves slot 3 + n ---- */

enum { N_SEQS = 3 };

struct trees {
    const struct shape *s;
    int64_t lengths[N_SEQS], first[N_SEQS], longest;
    int64_t *parents; /* [N_SEQS][longest] */
    gdn_rule_args a;
    gdn_batch *t;
};

static gdn_tensor pool(const struct shape *s, int64_t P, int H)
{
    const bool vk = s->layout == GDN_STATE_VK;
    gdn_tensor t = ring2_new(s->state, 1, 4, P, H, vk ? s->V : s->K, vk ? s->K : s->V);
    ring2_fill(&t, -1, 1);
    return t;
}

/* Some gates forget, some tokens write nothing; there v is NaN. */
static void spice(const gdn_rule_args *a, int64_t H, int64_t Hv, int64_t V)
{
    for (int64_t i = 0; i < ring2_count(&a->g); i++) {
        if (ring2_below(9) == 0) ring2_set(&a->g, i, -(double)INFINITY);
        if (ring2_below(9) == 0 && H == Hv) {
            ring2_set(&a->beta, i, 0);
            ring2_set(&a->v, i * V, (double)NAN);
        }
    }
}

static struct trees make(const struct shape *s, enum kind kind, int64_t T)
{
    struct trees m = { .s = s, .lengths = { T, T / 3, 1 + ring2_below(T) }, .longest = T };
    const int H = s->heads[0] > s->heads[2] ? s->heads[0] : s->heads[2];
    int64_t N = 0, slots[N_SEQS] = { 0, 1, 2 };
    m.a = ring2_rule_packed(s->dtype, s->state, N_SEQS, m.lengths, s->heads, s->K, s->V, &m.t);
    for (int b = 0; b < N_SEQS; b++) m.first[b] = N, N += m.lengths[b];
    m.a.state = pool(s, N_SEQS + N, H);
    m.a.state_layout = s->layout;
    m.a.head_map = s->head_map;
    m.a.flags = (uint32_t)s->exact;
    m.a.norm = GDN_NORM_L2;
    spice(&m.a, H, s->heads[2], s->V);
    m.t->read_slots = ring2_indices(GDN_I64, N_SEQS, slots);
    m.t->write_slots = ring2_new(GDN_I32, 1, 2, N_SEQS, T, 0, 0);
    m.t->parents = ring2_new(T % 2 ? GDN_I32 : GDN_I64, 2, 2, N_SEQS, T, 0, 0);
    m.t->write = GDN_WRITE_EACH;
    m.parents = ring2_heap((size_t)(N_SEQS * T) * sizeof *m.parents);
    for (int64_t i = 0; i < N_SEQS * T; i++) {
        const int64_t b = i / T, t = i % T;
        m.parents[i] = parent_of(kind, t);
        ring2_set(&m.t->write_slots, i, t < m.lengths[b] ? (double)(N_SEQS + m.first[b] + t) : -1);
        ring2_set(&m.t->parents, i, t < m.lengths[b] ? (double)m.parents[i] : 77);
    }
    return m;
}

static gdn_tensor slot_of(const gdn_tensor *state, int64_t slot)
{
    return ring2_narrow(state, 0, slot, 1);
}

/* The ancestors of token t of sequence b and the token itself, as one sequence. */
static gdn_rule_args chain_of(const struct trees *m, int b, int64_t t)
{
    int64_t n = 0, at;
    gdn_rule_args c;
    for (int64_t p = t; p >= 0; p = m->parents[b * m->longest + p]) n++;
    c = ring2_rule_packed(m->s->dtype, m->s->state, 1, &n, m->s->heads, m->s->K, m->s->V, NULL);
    c.state_layout = m->a.state_layout;
    c.head_map = m->a.head_map;
    c.flags = m->a.flags;
    c.norm = m->a.norm;
    at = n;
    for (int64_t p = t; p >= 0; p = m->parents[b * m->longest + p]) {
        const gdn_rule_args to = ring2_rule_slice(&c, --at, 1);
        const gdn_rule_args from = ring2_rule_slice(&m->a, m->first[b] + p, 1);
        ring2_copy(&to.q, &from.q), ring2_copy(&to.k, &from.k), ring2_copy(&to.v, &from.v);
        ring2_copy(&to.g, &from.g), ring2_copy(&to.beta, &from.beta);
    }
    const gdn_tensor start = slot_of(&m->a.state, b);
    c.state = ring2_clone(&start);
    return c;
}

/* ---- G19 ---- */

static void expect_token(const struct trees *m, const gdn_rule_args *done, int b, int64_t t)
{
    gdn_rule_args c = chain_of(m, b, t);
    const int64_t n = c.q.size[0], at = m->first[b] + t;
    const gdn_rule_args got = ring2_rule_slice(done, at, 1);
    const gdn_tensor S = slot_of(&done->state, N_SEQS + at);
    if (t % 7 == 0 && !m->s->exact)
        ring2_rule_check(ring2_ctx(1), &c, true); /* the oracle */
    else
        ring2_status(ring2_ctx(1), "chain", gdn_decode(ring2_ctx(1), &c), GDN_OK);
    const gdn_rule_args want = ring2_rule_slice(&c, n - 1, 1);
    ring2_expect_bits("out", &got.out, &want.out);
    ring2_expect_bits("state", &S, &c.state);
}

/* Each token has the bits of the chain of its ancestors, and nothing else is written. */
static void G19_tree(const struct shape *s, enum kind kind, int64_t T)
{
    struct trees m = make(s, kind, T);
    gdn_rule_args done = ring2_rule_clone(&m.a);
    gdn_tensor S = m.a.state;
    done.state = pool(s, S.size[0], (int)S.size[1]);
    ring2_copy(&done.state, &S);
    ring2_call_begin();
    ring2_may_write(&done.out);
    for (int64_t i = N_SEQS; i < S.size[0]; i++) {
        const gdn_tensor slot = slot_of(&done.state, i);
        ring2_may_write(&slot);
    }
    ring2_status(ring2_ctx(3), "tree", gdn_decode(ring2_ctx(3), &done), GDN_OK);
    ring2_call_end();
    for (int b = 0; b < N_SEQS && !ring2_failed(); b++)
        for (int64_t t = 0; t<m.lengths[b]; t += T> 64 ? 23 : 1) expect_token(&m, &done, b, t);
}

/* Without write slots for each: the final state is that after the last token, in place. */
static void final_state(const struct shape *s, enum kind kind, int64_t T)
{
    struct trees m = make(s, kind, T);
    gdn_rule_args each = m.a, final = m.a, none = m.a;
    gdn_batch t = *m.t, n;
    each.state = ring2_clone(&m.a.state);
    final.state = ring2_clone(&m.a.state);
    none.state = ring2_clone(&m.a.state);
    each.out = ring2_clone(&m.a.out), final.out = ring2_clone(&m.a.out);
    none.out = ring2_clone(&m.a.out);
    t.write = GDN_WRITE_FINAL;
    t.write_slots = ring2_indices(GDN_I32, N_SEQS, (const int64_t[]){ 0, 1, 2 });
    n = t;
    n.write = GDN_WRITE_NONE;
    final.batch = &t, none.batch = &n;
    ring2_status(ring2_ctx(2), "each", gdn_decode(ring2_ctx(2), &each), GDN_OK);
    ring2_status(ring2_ctx(1), "final", gdn_decode(ring2_ctx(1), &final), GDN_OK);
    ring2_status(ring2_ctx(4), "none", gdn_decode(ring2_ctx(4), &none), GDN_OK);
    ring2_expect_bits("G2 out", &final.out, &each.out);
    ring2_expect_bits("G2 out, frozen", &none.out, &each.out);
    ring2_expect_bits("frozen", &none.state, &m.a.state);
    for (int b = 0; b < N_SEQS; b++) {
        const int64_t last = N_SEQS + m.first[b] + m.lengths[b] - 1;
        const gdn_tensor got = slot_of(&final.state, b), want = slot_of(&each.state, last);
        if (m.lengths[b]) ring2_expect_bits("final", &got, &want);
    }
}

/* ---- States that no token changed ---- */

/* A pool of a dtype, of 8 bits too, with its scales. */
struct stored {
    gdn_tensor t, scales;
};

static struct stored any_pool(const struct shape *s, int H)
{
    const bool vk = s->layout == GDN_STATE_VK;
    struct stored p = { ring2_new(s->state, 0, 4, 3, H, vk ? s->V : s->K, vk ? s->K : s->V),
                        { .data = NULL } };
    if (s->state != GDN_I8 && s->state != GDN_E4M3) {
        ring2_fill(&p.t, -1, 1);
        for (int64_t i = 0; i < ring2_count(&p.t); i += 5) ring2_set(&p.t, i, -0.0);
        return p;
    }
    p.scales = ring2_new(GDN_F32, 0, 3, 3, H, s->V, 0);
    ring2_fill(&p.scales, 0.001, 0.02);
    for (int64_t i = 0; i < ring2_count(&p.t); i++) /* no code is the largest */
        *(uint8_t *)ring2_element(&p.t, i) = (uint8_t)(ring2_bits() & 0xbf);
    return p;
}

static struct stored slot_bits(const struct stored *p, int64_t slot)
{
    const gdn_tensor t = slot_of(&p->t, slot);
    struct stored c = { ring2_clone(&t), { .data = NULL } };
    if (!p->scales.data) return c;
    const gdn_tensor scales = slot_of(&p->scales, slot);
    c.scales = ring2_clone(&scales);
    return c;
}

static void expect_stored(const char *what, const struct stored *p, int64_t slot,
                          const struct stored *want)
{
    const struct stored got = slot_bits(p, slot);
    ring2_expect_bits(what, &got.t, &want->t);
    if (want->scales.data) ring2_expect_bits(what, &got.scales, &want->scales);
}

/*
 * Tokens 0 and 1 are a chain that changes nothing: they leave the initial state in slots 1 and 2.
 * Token 2 beside them may come first, and leaves another state where the initial state was. All
 * states go by write slots; or one is the final state, and the others are checkpoints.
 */
static void idle_beside_a_write(const struct shape *s, bool each)
{
    static const int64_t parents[] = { -1, 0, -1 }, three = 3, one = 1, start = 0;
    gdn_batch *t, *alone;
    gdn_rule_args a = ring2_rule_packed(s->dtype, GDN_F32, 1, &three, s->heads, s->K, s->V, &t), c;
    struct stored p = any_pool(s, s->heads[2]), read = slot_bits(&p, 0), last = read;
    a.state = p.t, a.state_scales = p.scales, a.state_layout = s->layout;
    for (int i = 0; i < 2 * s->heads[2]; i++) ring2_set(&a.g, i, 0), ring2_set(&a.beta, i, 0);
    t->read_slots = ring2_indices(GDN_I32, 1, &start);
    t->parents = ring2_new(GDN_I32, 0, 2, 1, 3, 0, 0);
    for (int i = 0; i < 3; i++) ring2_set(&t->parents, i, (double)parents[i]);
    if (each) {
        t->write = GDN_WRITE_EACH;
        t->write_slots = ring2_new(GDN_I32, 0, 2, 1, 3, 0, 0);
        for (int i = 0; i < 3; i++) ring2_set(&t->write_slots, i, (i + 1) % 3);
    } else {
        a.checkpoints = a.state, a.checkpoint_scales = a.state_scales;
        t->checkpoint_every = 1;
        t->checkpoint_slots = ring2_indices(GDN_I32, 3, (const int64_t[]){ 1, 2, -1 });
    }
    c = ring2_rule_packed(s->dtype, GDN_F32, 1, &one, s->heads, s->K, s->V, &alone);
    const gdn_rule_args token = ring2_rule_slice(&a, 2, 1);
    c.q = token.q, c.k = token.k, c.v = token.v, c.g = token.g, c.beta = token.beta;
    c.state = last.t, c.state_scales = last.scales, c.state_layout = s->layout;
    read = slot_bits(&p, 0);
    ring2_status(ring2_ctx(1), "token 2", gdn_decode(ring2_ctx(1), &c), GDN_OK);
    ring2_status(ring2_ctx(2), "tree", gdn_decode(ring2_ctx(2), &a), GDN_OK);
    expect_stored("after token 0", &p, 1, &read);
    expect_stored("after token 1", &p, 2, &read);
    expect_stored("after token 2", &p, 0, &last);
}

static void G9_idle_tokens(void)
{
    static const int32_t dtypes[] = { GDN_F32, GDN_BF16, GDN_F16, GDN_I8, GDN_E4M3 };
    for (int i = 0; i < 5 * 2 * 2; i++) {
        const struct shape s = { GDN_F32, dtypes[i % 5], i / 5 % 2, GDN_HEADS_GROUPED,
                                 0,       { 1, 1, 2 },   20,        9 };
        if (!ring2_begin("G9 idle tokens, dtype %d, %s, %s", (int)s.state, i / 5 % 2 ? "kv" : "vk",
                         i / 10 ? "each" : "final"))
            continue;
        idle_beside_a_write(&s, i / 10);
        ring2_end();
    }
}

/* A NaN reaches the descendants of its token and nothing else. */
static void nan_stays(void)
{
    const struct shape *s = &shapes[0];
    struct trees m = make(s, BINARY, 31), with = m;
    with.a = ring2_rule_clone(&m.a);
    with.a.out = ring2_clone(&m.a.out);
    const gdn_rule_args bad = ring2_rule_slice(&with.a, 2, 1);
    ring2_fill_value(&bad.q, (double)NAN), ring2_fill_value(&bad.beta, 1);
    ring2_fill_value(&bad.k, (double)NAN), ring2_fill_value(&bad.g, 0);
    ring2_status(ring2_ctx(2), "plain", gdn_decode(ring2_ctx(2), &m.a), GDN_OK);
    ring2_status(ring2_ctx(2), "NaN", gdn_decode(ring2_ctx(2), &with.a), GDN_OK);
    for (int64_t t = 0; t < 31; t++) {
        int64_t p = t;
        while (p > 2) p = m.parents[p];
        const gdn_rule_args got = ring2_rule_slice(&with.a, t, 1);
        const gdn_rule_args want = ring2_rule_slice(&m.a, t, 1);
        if (p == 2) {
            CHECK(t > 2 || isnan(ring2_get(&got.out, 0)), "token 2 is not NaN");
            continue;
        }
        ring2_expect_bits("not a descendant", &got.out, &want.out);
    }
}

/* Masks: what does not count has no parent; tokens are numbered from the first that counts. */
static void masks(void)
{
    static const int64_t starts[] = { 3, 0, 0 }, counts[] = { 7, 2, 0 }, three[] = { 0, 1, 2 };
    const struct shape *s = &shapes[1];
    struct trees m = make(s, COMB, 12), part;
    gdn_batch t = *m.t;
    t.token_start = ring2_indices(GDN_I32, N_SEQS, starts);
    t.token_count = ring2_indices(GDN_I32, N_SEQS, counts);
    t.write = GDN_WRITE_FINAL;
    t.write_slots = ring2_indices(GDN_I32, N_SEQS, three);
    part = m;
    part.first[0] = 3; /* the tree on the tokens that count, as a plain call */
    gdn_rule_args c = chain_of(&part, 0, 6);
    m.a.batch = &t;
    ring2_status(ring2_ctx(2), "masked", gdn_decode(ring2_ctx(2), &m.a), GDN_OK);
    ring2_status(ring2_ctx(2), "chain", gdn_decode(ring2_ctx(2), &c), GDN_OK);
    const gdn_rule_args got = ring2_rule_slice(&m.a, 9, 1);
    const gdn_rule_args want = ring2_rule_slice(&c, c.q.size[0] - 1, 1);
    const gdn_tensor S = slot_of(&m.a.state, 0);
    ring2_expect_bits("out", &got.out, &want.out);
    ring2_expect_bits("state", &S, &c.state);
    for (int64_t i = 0; i < 3 * 4 * s->V; i++)
        CHECK(ring2_get(&m.a.out, i) == 0, "a masked token has an output");
}

/* ---- G1 ---- */

#define REFUSE(seen, op, what, want, needle, ...)                  \
    do {                                                           \
        if (!ring2_begin("G1 tree: %s", what)) break;              \
        struct trees m = make(&shapes[0], BINARY, 9);              \
        __VA_ARGS__;                                               \
        ring2_refused(ring2_ctx(2), op, &m.a, seen, want, needle); \
        ring2_end();                                               \
    } while (0)

static void refusals(void)
{
    const gdn_op op = GDN_OP_DECODE;
    REFUSE(RING2_CONTENTS, op, "its own parent", GDN_E_ARG, "parents",
           ring2_set(&m.t->parents, 4, 4));
    REFUSE(RING2_CONTENTS, op, "parent -2", GDN_E_ARG, "parents", ring2_set(&m.t->parents, 0, -2));
    REFUSE(RING2_CONTENTS, op, "too few columns", GDN_E_SHAPE, "parents",
           m.t->parents = ring2_narrow(&m.t->parents, 1, 0, 8));
    REFUSE(RING2_STRUCT, op, "one dimension", GDN_E_SHAPE, "parents",
           m.t->parents = ring2_select(&m.t->parents, 1, 0));
    REFUSE(RING2_STRUCT, op, "floats", GDN_E_DTYPE, "parents", m.t->parents.dtype = GDN_F32);
    REFUSE(RING2_STRUCT, op, "out over parents", GDN_E_ARG, "parents",
           m.t->parents.data = m.a.out.data);
    REFUSE(RING2_STRUCT, GDN_OP_PREFILL, "prefill", GDN_E_UNSUPPORTED, "parents",
           m.t->write = GDN_WRITE_NONE);
}

int main(int argc, char **argv)
{
    static const int64_t counts[] = { 1, 2, 5, 16, 17, 33, 64 };
    static const struct ring2_test others[] = {
        { "a NaN stays among descendants", nan_stays },
        { "G11 masked trees", masks },
    };
    ring2_options(argc, argv);
    for (int i = 0; i < N_SHAPES; i++)
        for (int kind = 0; kind < N_KINDS; kind++)
            for (int c = 0; c < 7; c++) {
                if (ring2_begin("G19 %s of %d, shape %d", kind_names[kind], (int)counts[c], i)) {
                    G19_tree(&shapes[i], (enum kind)kind, counts[c]);
                    ring2_end();
                }
                if (c % 2 && ring2_begin("%s of %d, final state, shape %d", kind_names[kind],
                                         (int)counts[c], i)) {
                    final_state(&shapes[i], (enum kind)kind, counts[c]);
                    ring2_end();
                }
            }
    for (int kind = 0; kind < N_KINDS; kind++)
        if (ring2_begin("G19 %s of 300", kind_names[kind])) {
            static const struct shape big = { GDN_F32, GDN_F32,     GDN_STATE_VK, 0,
                                              0,       { 1, 1, 1 }, 256,          40 };
            G19_tree(&big, (enum kind)kind, 300);
            ring2_end();
        }
    G9_idle_tokens();
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (ring2_begin("%s", others[i].name)) {
            others[i].run();
            ring2_end();
        }
    refusals();
    return ring2_summary();
}
