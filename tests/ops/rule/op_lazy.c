/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 --every=5, sm_90 --every=5 */
/*
 * Records whose tokens are accepted at once: gdn_decode() with GDN_WRITE_FINAL and a record. Many
 * tokens, forks, evictions, folds and empty sequences, beside plain decode and the recurrence in
 * float64.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/os/program.h"
#include "gdn_record.h"
#include "ring2.h"
#include "ring2_device.h"

enum { B = 5, P = 7, MOST = 8 }; /* sequences of a call, slots, tokens of a sequence */

static const struct layer {
    int32_t state, rows, layout, map;
    bool channels, exact;
    int heads[3];
    int64_t K, V, R;
    bool gated; /* a write gate */
    int32_t io; /* of q, k, v and out; 16 bits: sequences have as many tokens */
} layers[] = {
    { GDN_F32, GDN_F32, GDN_STATE_VK, GDN_HEADS_GROUPED, 0, 0, { 2, 2, 4 }, 64, 64, 16, 0, 0 },
    { GDN_F32, GDN_F32, GDN_STATE_KV, GDN_HEADS_GROUPED, 0, 0, { 2, 2, 4 }, 64, 64, 40, 0, 0 },
    { GDN_F32, GDN_F32, GDN_STATE_VK, GDN_HEADS_INTERLEAVED, 0, 0, { 2, 2, 4 }, 33, 20, 5, 0, 0 },
    { GDN_F32, GDN_BF16, GDN_STATE_KV, GDN_HEADS_INTERLEAVED, 0, 0, { 4, 2, 2 }, 20, 150, 9, 0, 0 },
    { GDN_BF16, GDN_F32, GDN_STATE_VK, GDN_HEADS_GROUPED, 0, 0, { 1, 1, 2 }, 128, 128, 16, 0, 0 },
    { GDN_BF16, GDN_BF16, GDN_STATE_KV, GDN_HEADS_GROUPED, 0, 0, { 1, 1, 2 }, 64, 32, 8, 0, 0 },
    { GDN_F16, GDN_F16, GDN_STATE_VK, GDN_HEADS_GROUPED, 0, 0, { 1, 1, 3 }, 32, 17, 12, 0, 0 },
    { GDN_I8, GDN_F32, GDN_STATE_VK, GDN_HEADS_GROUPED, 0, 0, { 2, 2, 4 }, 32, 32, 16, 0, 0 },
    { GDN_E4M3, GDN_BF16, GDN_STATE_KV, GDN_HEADS_GROUPED, 0, 0, { 2, 1, 2 }, 32, 32, 11, 0, 0 },
    { GDN_F32, GDN_F32, GDN_STATE_VK, GDN_HEADS_GROUPED, 1, 0, { 2, 2, 4 }, 64, 64, 16, 0, 0 },
    { GDN_BF16, GDN_BF16, GDN_STATE_KV, GDN_HEADS_GROUPED, 1, 0, { 2, 2, 2 }, 32, 32, 7, 0, 0 },
    { GDN_F32, GDN_F32, GDN_STATE_VK, GDN_HEADS_GROUPED, 0, 1, { 2, 2, 4 }, 24, 12, 16, 0, 0 },
    { GDN_F32, GDN_F32, GDN_STATE_KV, GDN_HEADS_GROUPED, 0, 1, { 2, 2, 4 }, 32, 32, 3, 0, 0 },
    { GDN_F32, GDN_F32, GDN_STATE_VK, GDN_HEADS_GROUPED, 0, 0, { 2, 2, 4 }, 64, 64, 1, 0, 0 },
    { GDN_BF16, GDN_BF16, GDN_STATE_KV, GDN_HEADS_GROUPED, 0, 0, { 2, 2, 4 }, 32, 32, 1, 0, 0 },
    { GDN_I8, GDN_F32, GDN_STATE_VK, GDN_HEADS_GROUPED, 0, 0, { 2, 2, 4 }, 64, 64, 1, 0, 0 },
    { GDN_F32, GDN_F32, GDN_STATE_VK, GDN_HEADS_GROUPED, 0, 0, { 2, 2, 4 }, 32, 32, 16, 1, 0 },
    { GDN_F32, GDN_F32, GDN_STATE_KV, GDN_HEADS_GROUPED, 1, 0, { 2, 2, 4 }, 32, 32, 7, 1, 0 },
    { GDN_F32, GDN_F32, GDN_STATE_KV, GDN_HEADS_GROUPED, 0, 0, { 2, 2, 4 }, 32, 20, 9, 1, 0 },
    { GDN_F32, GDN_F32, GDN_STATE_VK, GDN_HEADS_GROUPED, 1, 0, { 2, 2, 4 }, 1, 8, 5, 0, 0 },
    { GDN_F32, GDN_F32, GDN_STATE_VK, 0, 0, 0, { 1, 1, 2 }, 128, 128, 16, 0, GDN_BF16 },
    { GDN_F32, GDN_BF16, GDN_STATE_VK, 0, 0, 0, { 2, 1, 2 }, 128, 64, 9, 0, GDN_BF16 },
    { GDN_F32, GDN_F16, GDN_STATE_VK, 0, 0, 0, { 1, 2, 6 }, 128, 16, 37, 0, GDN_F16 },
    { GDN_BF16, GDN_BF16, GDN_STATE_VK, 0, 0, 0, { 1, 1, 3 }, 128, 128, 16, 0, GDN_BF16 },
    { GDN_BF16, GDN_F32, GDN_STATE_VK, 0, 0, 0, { 4, 2, 2 }, 128, 96, 33, 0, GDN_BF16 },
    { GDN_F16, GDN_F16, GDN_STATE_VK, 0, 0, 0, { 1, 1, 3 }, 128, 32, 2, 0, GDN_F16 },
    { GDN_F32, GDN_F32, GDN_STATE_VK, 0, 0, 0, { 1, 1, 2 }, 128, 16, 64, 0, GDN_BF16 },
    { GDN_BF16, GDN_BF16, GDN_STATE_KV, 0, 0, 0, { 2, 2, 4 }, 128, 64, 16, 0, GDN_BF16 },
    { GDN_F32, GDN_F32, GDN_STATE_KV, 0, 0, 0, { 2, 1, 2 }, 128, 64, 9, 0, GDN_F16 },
};
enum { N_LAYERS = sizeof layers / sizeof *layers };

static int64_t state_heads(const struct layer *m)
{
    return m->heads[0] > m->heads[2] ? m->heads[0] : m->heads[2];
}

/* ---- Pools, three times: with a record, plain, and float64 ---- */

struct states {
    gdn_tensor state, scales;
};
struct lazy {
    struct states s;
    gdn_tensor k, u, g, count;
};
struct run {
    const struct layer *m;
    struct lazy lazy;
    struct states plain;
    double *S;                      /* [P][H][K][V] */
    double errors[2], sum, largest; /* of lazy and plain: squares of errors of outputs */
};

static struct states new_states(const struct layer *m)
{
    const bool vk = m->layout == GDN_STATE_VK, codes = m->state >= GDN_I8;
    const int64_t H = state_heads(m);
    struct states s = { .state =
                            ring2_new(m->state, 0, 4, P, H, vk ? m->V : m->K, vk ? m->K : m->V) };
    ring2_fill_value(&s.state, 0);
    if (codes) s.scales = ring2_new(GDN_F32, 0, 3, P, H, m->V, 0);
    if (codes) ring2_fill_value(&s.scales, 0);
    return s;
}

/* Rows of a head lie together. */
static struct lazy new_lazy(const struct layer *m)
{
    const int64_t H = state_heads(m), zeros[P] = { 0 };
    struct lazy z = { .s = new_states(m) };
    z.k = ring2_new(m->rows, m->io ? 8 : 1, 4, P, m->heads[1], m->R, m->K);
    z.u = ring2_new(m->rows, 0, 4, P, H, m->R, m->V);
    z.g = ring2_new(GDN_F32, 0, m->channels ? 4 : 3, P, H, m->R, m->K);
    z.k = ring2_swap(&z.k, 1, 2), z.u = ring2_swap(&z.u, 1, 2), z.g = ring2_swap(&z.g, 1, 2);
    gdn_tensor *const rows[] = { &z.k, &z.u, &z.g };
    for (int i = 0; i < 3; i++) ring2_fill_value(rows[i], (double)NAN);
    z.count = ring2_indices(m->K % 2 ? GDN_I64 : GDN_I32, P, zeros);
    return z;
}

static double *state_of(const struct run *r, int64_t slot)
{
    return r->S + slot * state_heads(r->m) * r->m->K * r->m->V;
}

/* ---- Tokens ---- */

struct tokens {
    int64_t T, slots[B], count[B];
    gdn_tensor q, k, v, g, beta, write_gate;
};

/* Different slots, some of them padding; different lengths, some of them 0. */
static struct tokens draw(const struct layer *m, int64_t most)
{
    struct tokens t = { .T = 1 + ring2_below(most) };
    const int64_t H = state_heads(m), first = ring2_below(P);
    t.q = ring2_new(m->io, 0, 4, B, t.T, m->heads[0], m->K);
    t.k = ring2_new(m->io, 0, 4, B, t.T, m->heads[1], m->K);
    /* With a gap, v and its rows are at odd multiples of an element. */
    t.v = ring2_new(m->io, ring2_below(2), 4, B, t.T, m->heads[2], m->V);
    t.g = ring2_new(GDN_F32, 0, m->channels ? 4 : 3, B, t.T, H, m->K);
    t.beta = ring2_new(GDN_F32, 0, 3, B, t.T, H, 0);
    ring2_fill(&t.q, -1, 1), ring2_fill(&t.k, -1, 1), ring2_fill(&t.v, -1, 1);
    ring2_fill(&t.g, -0.2, 0), ring2_fill(&t.beta, 0, 1);
    if (m->gated) t.write_gate = ring2_new(GDN_F32, 0, 4, B, t.T, H, m->V);
    if (m->gated) ring2_fill(&t.write_gate, 0, 1);
    for (int64_t i = 0; i < ring2_count(&t.g); i++)
        if (ring2_below(m->channels ? 20000 : 60) == 0) ring2_set(&t.g, i, -(double)INFINITY);
    for (int64_t i = 0; i < ring2_count(&t.beta); i++)
        if (ring2_below(10) == 0) ring2_set(&t.beta, i, 0);
    for (int b = 0; b < B; b++) {
        t.slots[b] = ring2_below(6) ? (first + b) % P : -1;
        t.count[b] = m->io ? (t.slots[b] < 0 ? 0 : t.T) : ring2_below(8) ? 1 + ring2_below(t.T) : 0;
    }
    return t;
}

static gdn_rule_args args_of(const struct layer *m, const struct tokens *t, const struct states *s,
                             gdn_batch *b)
{
    gdn_rule_args a = gdn_rule_args_init();
    *b = gdn_batch_init();
    b->read_slots = ring2_indices(GDN_I32, B, t->slots);
    if (!m->io) b->token_count = ring2_indices(GDN_I32, B, t->count);
    a.q = t->q, a.k = t->k, a.v = t->v, a.g = t->g, a.beta = t->beta;
    a.write_gate = t->write_gate;
    a.state = s->state, a.state_scales = s->scales;
    a.out = ring2_new(m->io, 0, 4, B, t->T, state_heads(m), m->V);
    a.norm = GDN_NORM_L2;
    a.head_map = m->map, a.state_layout = m->layout;
    a.flags = m->exact ? GDN_EXACT : 0;
    a.batch = b;
    return a;
}

static gdn_rule_args lazy_args(const struct layer *m, const struct tokens *t, const struct lazy *z,
                               gdn_batch *b)
{
    gdn_rule_args a = args_of(m, t, &z->s, b);
    a.record_k = z->k, a.record_u = z->u, a.record_g = z->g, a.record_count = z->count;
    return a;
}

/* ---- The recurrence ---- */

static int64_t source(const struct layer *m, int64_t head, int64_t n)
{
    return m->map == GDN_HEADS_GROUPED ? head / (state_heads(m) / n) : head % n;
}

static double inverse_length(const gdn_tensor *t, int64_t at, int64_t K)
{
    double sum = 1e-6;
    for (int64_t x = 0; x < K; x++) sum += ring2_get(t, at + x) * ring2_get(t, at + x);
    return 1 / sqrt(sum);
}

/* Judges one token of one head. row: the token's number in all tensors. */
static void judge_token(struct run *r, const struct tokens *t, double *S, int64_t row, int64_t h,
                        const gdn_tensor out[2])
{
    const struct layer *m = r->m;
    const int64_t H = state_heads(m), K = m->K, V = m->V;
    const int64_t qa = (row * m->heads[0] + source(m, h, m->heads[0])) * K;
    const int64_t ka = (row * m->heads[1] + source(m, h, m->heads[1])) * K;
    const int64_t va = (row * m->heads[2] + source(m, h, m->heads[2])) * V;
    const double q_scale = inverse_length(&t->q, qa, K) / sqrt((double)K);
    const double k_scale = inverse_length(&t->k, ka, K), beta = ring2_get(&t->beta, row * H + h);
    double k[64 * 4], q[64 * 4];
    for (int64_t x = 0; x < K; x++) {
        const double g = ring2_get(&t->g, m->channels ? (row * H + h) * K + x : row * H + h);
        k[x] = ring2_get(&t->k, ka + x) * k_scale, q[x] = ring2_get(&t->q, qa + x) * q_scale;
        for (int64_t j = 0; j < V; j++) S[x * V + j] *= exp(g);
    }
    for (int64_t j = 0; j < V; j++) {
        double p = 0, o = 0;
        for (int64_t x = 0; x < K; x++) p += S[x * V + j] * k[x];
        const double w = m->gated ? ring2_get(&t->write_gate, (row * H + h) * V + j) : beta;
        const double u = w * ring2_get(&t->v, va + j) - beta * p;
        for (int64_t x = 0; x < K; x++) {
            S[x * V + j] += k[x] * u;
            o += S[x * V + j] * q[x];
        }
        for (int i = 0; i < 2; i++) {
            const double d = ring2_get(&out[i], (row * H + h) * V + j) - o;
            r->errors[i] += d * d;
            if (i == 0 && !(fabs(d) <= r->largest)) r->largest = fabs(d);
        }
        r->sum += o * o;
    }
}

static void judge(struct run *r, const struct tokens *t, const gdn_tensor out[2])
{
    const int64_t H = state_heads(r->m), size = r->m->K * r->m->V;
    for (int64_t b = 0; b < B; b++)
        for (int64_t i = 0; t->slots[b] >= 0 && i < t->count[b]; i++)
            for (int64_t h = 0; h < H; h++)
                judge_token(r, t, state_of(r, t->slots[b]) + h * size, b * t->T + i, h, out);
}

/* ---- What an engine does between two calls ---- */

static void copy_slot(const gdn_tensor *t, int64_t to, int64_t from)
{
    if (!t->data) return;
    const gdn_tensor a = ring2_narrow(t, 0, to, 1), b = ring2_narrow(t, 0, from, 1);
    for (int64_t i = 0; i < ring2_count(&a); i++)
        memcpy(ring2_element(&a, i), ring2_element(&b, i),
               t->dtype >= GDN_I8 && t->dtype <= GDN_E5M2    ? 1
               : t->dtype == GDN_BF16 || t->dtype == GDN_F16 ? 2
               : t->dtype == GDN_I64                         ? 8
                                                             : 4);
}

static void fold(const struct layer *m, const struct lazy *z, int64_t slot)
{
    gdn_record_fold_args f = gdn_record_fold_args_init();
    gdn_batch b = gdn_batch_init();
    b.read_slots = ring2_indices(GDN_I32, 1, &slot);
    f.state = z->s.state, f.state_scales = z->s.scales;
    f.record_k = z->k, f.record_u = z->u, f.record_g = z->g, f.record_count = z->count;
    f.head_map = m->map, f.state_layout = m->layout, f.batch = &b;
    ring2_status(ring2_ctx(2), "fold", gdn_record_fold(ring2_ctx(2), &f), GDN_OK);
}

/* Slot `to` becomes slot `from`: rows and all, or the folded state alone. */
static void fork(struct run *r, int64_t to, int64_t from, bool folded)
{
    struct lazy *z = &r->lazy;
    const gdn_tensor *const all[] = {
        &z->s.state, &z->s.scales, &z->k, &z->u, &z->g, &z->count, &r->plain.state, &r->plain.scales
    };
    if (folded) fold(r->m, z, from);
    for (int i = 0; i < 8; i++) copy_slot(all[i], to, from);
    memcpy(state_of(r, to), state_of(r, from),
           (size_t)(state_heads(r->m) * r->m->K * r->m->V) * sizeof(double));
}

/* A new sequence in a slot: no rows, a state of zeros. */
static void evict(struct run *r, int64_t slot)
{
    const gdn_tensor *const all[] = { &r->lazy.s.state, &r->lazy.s.scales, &r->plain.state,
                                      &r->plain.scales };
    for (int i = 0; i < 4; i++)
        if (all[i]->data) {
            const gdn_tensor one = ring2_narrow(all[i], 0, slot, 1);
            ring2_fill_value(&one, 0);
        }
    ring2_set(&r->lazy.count, slot, 0);
    memset(state_of(r, slot), 0, (size_t)(state_heads(r->m) * r->m->K * r->m->V) * sizeof(double));
}

static void between(struct run *r)
{
    const int64_t a = ring2_below(P), b = ring2_below(P);
    if (ring2_below(12) == 0 && a != b) fork(r, a, b, ring2_below(2));
    if (ring2_below(20) == 0) evict(r, a);
    if (ring2_below(12) == 0) fold(r->m, &r->lazy, a);
}

/* ---- Many calls ---- */

/* Returns true if a GPU has kernels for the layer that do not fold at once. */
static bool is_lazy(const struct layer *m)
{
    return ring2_on_device() && m->io && m->layout == GDN_STATE_VK;
}

/* Draws whether calls may fold at once. A GPU folds at once if it has no other kernels for the
 * layer, or if sequences are few. */
static bool draw_at_once(const struct layer *m)
{
    return ring2_on_device() && (!is_lazy(m) || ring2_below(2));
}

/* Returns a context whose calls may fold at once. Without at_once, its calls never do, so that a
 * fold at once finds rows of other calls. */
static gdn_ctx *ctx_of(bool at_once)
{
    enum { ANY = 3, NEVER = 4 };
    const char *name = "GDN_CUDA_WITHOUT", *given = getenv(name);
    char before[96], without[128];
    if (at_once || !ring2_on_device()) return ring2_ctx(ANY);
    snprintf(before, sizeof before, "%s", given ? given : "");
    snprintf(without, sizeof without, "%s%slazy few", before, given ? "," : "");
    gdn_os_set_environment(name, without);
    gdn_ctx *const ctx = ring2_ctx(NEVER);
    gdn_os_set_environment(name, given ? before : NULL);
    return ctx;
}

/* full: the count of a slot for which the call folds it. */
static void expect_counts(const struct run *r, const struct tokens *t, const int64_t *before,
                          int64_t full)
{
    for (int64_t b = 0; b < B; b++) {
        if (t->slots[b] < 0) continue;
        const int64_t c = before[t->slots[b]] + t->count[b];
        const int64_t want = t->count[b] == 0 ? before[t->slots[b]] : c >= full ? 0 : c;
        const int64_t got = (int64_t)ring2_get(&r->lazy.count, t->slots[b]);
        CHECK(got == want, "slot %d counts %d rows, wanted %d", (int)t->slots[b], (int)got,
              (int)want);
    }
}

/* Checks that a call of T tokens takes the fast kernel, if there is one for it. */
static void expect_kernel(const struct layer *m, int64_t T, bool at_once)
{
    const char *kernel = gdn_last_kernel(ctx_of(at_once));
    if (!ring2_on_device()) return;
    const bool few = m->io && at_once && T == 1, lazy = is_lazy(m) && !at_once;
    CHECK(!strstr(kernel, "gdn_decode_lazy_") == !(few || lazy), "kernel %s", kernel);
    CHECK(!strstr(kernel, "gdn_decode_lazy_few_") == !few, "kernel %s", kernel);
    CHECK(!strstr(kernel, "gdn_decode_lazy_tokens_") == !(lazy && T > 1), "kernel %s", kernel);
    CHECK(!strstr(kernel, "gdn_decode_record_forget") == (few || lazy), "kernel %s", kernel);
}

/* Accepts the tokens of a call in two steps, if the record has room. It does so often if the
 * device has no other way to leave rows, else for full records. Returns true if it did. */
static bool drafts(const struct layer *m, const struct tokens *t, const int64_t *counts,
                   gdn_rule_args *a)
{
    if (!ring2_on_device() || m->R == 1 || ring2_below(is_lazy(m) ? 6 : 2)) return false;
    for (int64_t b = 0; b < B; b++)
        if (t->slots[b] >= 0 && counts[t->slots[b]] + t->count[b] > m->R) return false;
    const gdn_batch *const own = a->batch;
    gdn_batch draft = *own, slots = gdn_batch_init();
    gdn_record_commit_args c = gdn_record_commit_args_init();
    draft.write = GDN_WRITE_NONE, slots.read_slots = draft.read_slots;
    c.record_k = a->record_k, c.record_u = a->record_u, c.record_g = a->record_g;
    c.record_count = a->record_count, c.batch = &slots;
    c.n_accepted = ring2_indices(GDN_I32, B, t->count);
    a->batch = &draft;
    ring2_status(ring2_ctx(3), "drafts", gdn_decode(ring2_ctx(3), a), GDN_OK);
    a->batch = own;
    ring2_status(ring2_ctx(3), "commit", gdn_record_commit(ring2_ctx(3), &c), GDN_OK);
    return true;
}

/* The call with a record may write its outputs, its rows and the states of its slots. */
static void call(struct run *r, const struct tokens *t, gdn_tensor out[2])
{
    gdn_batch b, plain_batch;
    const bool at_once = draw_at_once(r->m);
    int64_t before[P];
    gdn_rule_args a = lazy_args(r->m, t, &r->lazy, &b);
    gdn_rule_args plain = args_of(r->m, t, &r->plain, &plain_batch);
    const gdn_tensor *const all[] = { &a.state,    &a.state_scales, &a.record_k,
                                      &a.record_u, &a.record_g,     &a.record_count };
    for (int64_t p = 0; p < P; p++) before[p] = (int64_t)ring2_get(&r->lazy.count, p);
    if (drafts(r->m, t, before, &a)) {
        expect_counts(r, t, before, r->m->R + 1);
        ring2_status(ctx_of(true), "plain", gdn_decode(ctx_of(true), &plain), GDN_OK);
        out[0] = a.out, out[1] = plain.out;
        return;
    }
    ring2_call_begin();
    ring2_may_write(&a.out);
    for (int64_t s = 0; s < B; s++)
        for (int i = 0; t->slots[s] >= 0 && t->count[s] > 0 && i < 6; i++) {
            const bool folds = at_once || before[t->slots[s]] + t->count[s] >= r->m->R;
            if (!all[i]->data || (folds ? i >= 2 && i <= 4 : i < 2)) continue;
            const gdn_tensor one = ring2_narrow(all[i], 0, t->slots[s], 1);
            ring2_may_write(&one);
        }
    ring2_status(ctx_of(at_once), "lazy", gdn_decode(ctx_of(at_once), &a), GDN_OK);
    ring2_call_end();
    expect_kernel(r->m, t->T, at_once);
    expect_counts(r, t, before, at_once ? 0 : r->m->R);
    ring2_status(ring2_ctx(3), "plain", gdn_decode(ring2_ctx(3), &plain), GDN_OK);
    out[0] = a.out, out[1] = plain.out;
}

/* Bits are those of plain decode if each call folds, or with GDN_EXACT. */
static bool has_plain_bits(const struct layer *m) { return m->R == 1 || m->exact; }

/* Compares states, which are folded, with the recurrence. */
static void expect_states(const struct run *r, double rows)
{
    const struct layer *m = r->m;
    const struct states *const all[] = { &r->lazy.s, &r->plain };
    const int64_t H = state_heads(m);
    double errors[2] = { 0 }, sum = 0;
    for (int64_t h = 0; h < P * H; h++)
        for (int64_t x = 0; x < m->K; x++)
            for (int64_t j = 0; j < m->V; j++) {
                const double want = r->S[(h * m->K + x) * m->V + j];
                const int64_t at = (h * m->K + x) * m->V + j, turned = (h * m->V + j) * m->K + x;
                sum += want * want;
                for (int i = 0; i < 2; i++) {
                    const double scale =
                        all[i]->scales.data ? ring2_get(&all[i]->scales, h * m->V + j) : 1;
                    const double d =
                        scale * ring2_get(&all[i]->state, m->layout == GDN_STATE_VK ? turned : at) -
                        want;
                    errors[i] += d * d;
                }
            }
    const double size = sqrt(sum), lazy = sqrt(errors[0]), plain = sqrt(errors[1]);
    CHECK(lazy <= 1.1 * plain + (0x1p-22 + rows) * size,
          "errors of %g of the states, and of %g in plain decode", lazy / size, plain / size);
}

static struct run new_run(const struct layer *m)
{
    struct run r = { .m = m, .lazy = new_lazy(m), .plain = new_states(m) };
    r.S = ring2_heap((size_t)(P * state_heads(m) * m->K * m->V) * sizeof *r.S);
    return r;
}

/*
 * Errors of outputs, root mean square beside float64: those of plain decode, of which a state of
 * less than float32 has one for each token, and a record for each fold; and those of its rows.
 */
static void compare(const struct layer *m, double k_size, double v_size)
{
    struct run r = new_run(m);
    const double rows = m->rows == GDN_F32 ? 0 : m->rows == GDN_BF16 ? 0x1p-8 : 0x1p-11;
    for (int i = 0; i < 60 && !ring2_failed(); i++) {
        const struct tokens t = draw(m, i % 4 ? MOST : 1);
        gdn_tensor out[2];
        if (k_size != 1) ring2_fill(&t.k, -k_size, k_size), ring2_fill(&t.v, -v_size, v_size);
        call(&r, &t, out);
        if (has_plain_bits(m)) ring2_expect_bits("out", &out[0], &out[1]);
        judge(&r, &t, out);
        between(&r);
    }
    const double size = sqrt(r.sum), lazy = sqrt(r.errors[0]), plain = sqrt(r.errors[1]);
    CHECK(size > 0 && isfinite(lazy), "no outputs, or no numbers");
    CHECK(lazy <= 1.1 * plain + (0x1p-22 + rows) * size,
          "errors of %g of the outputs, and of %g in plain decode", lazy / size, plain / size);
    for (int64_t p = 0; p < P; p++) fold(m, &r.lazy, p);
    expect_states(&r, rows);
    if (has_plain_bits(m)) ring2_expect_bits("state", &r.lazy.s.state, &r.plain.state);
}

static void many(int number) { compare(&layers[number], 1, 1); }

/* Keys before their norm, and values, may be as large and as small as float16 allows. */
static void sizes(int number)
{
    static const struct layer f16[] = {
        { GDN_F16, GDN_F16, GDN_STATE_VK, 0, 0, 0, { 1, 1, 2 }, 128, 32, 3, 0, GDN_F16 },
        { GDN_F16, GDN_F32, GDN_STATE_VK, 0, 0, 0, { 1, 1, 2 }, 128, 32, 3, 0, GDN_F16 },
    };
    compare(&f16[number % 2], number < 2 ? 3e4 : 1e-4, number < 2 ? 1 : 400);
}

/* ---- G2: threads, batch mates and their order ---- */

static void alone(int number)
{
    const struct layer *m = &layers[number];
    struct lazy a = new_lazy(m), b = new_lazy(m);
    for (int i = 0; i < 12 && !ring2_failed(); i++) {
        const struct tokens t = draw(m, MOST);
        gdn_batch batch, each;
        gdn_rule_args all = lazy_args(m, &t, &a, &batch), one = lazy_args(m, &t, &b, &each);
        const bool at_once = draw_at_once(m);
        gdn_ctx *const alone = is_lazy(m) ? ctx_of(at_once) : ring2_ctx(1);
        ring2_status(ctx_of(at_once), "all", gdn_decode(ctx_of(at_once), &all), GDN_OK);
        for (int64_t s = B - 1; s >= 0; s--) {
            gdn_rule_args x = one;
            gdn_tensor *const rows[] = { &x.q, &x.k, &x.v, &x.g, &x.beta, &x.out, &x.write_gate };
            gdn_batch its = each;
            for (int j = 0; j < 6 + m->gated; j++) *rows[j] = ring2_narrow(rows[j], 0, s, 1);
            its.read_slots = ring2_narrow(&its.read_slots, 0, s, 1);
            if (its.token_count.data) its.token_count = ring2_narrow(&its.token_count, 0, s, 1);
            x.batch = &its;
            ring2_status(alone, "one", gdn_decode(alone, &x), GDN_OK);
        }
        ring2_expect_bits("out", &one.out, &all.out);
        ring2_expect_bits("state", &b.s.state, &a.s.state);
        ring2_expect_bits("count", &b.count, &a.count);
    }
}

/* ---- G7, G8, G10: odd values ---- */

/* A NaN of a state, of u or of a gate goes when a gate forgets, in the same call too. v of a beta
 * of 0 is not read, and k writes nothing then. */
static void odd(int number)
{
    const struct layer *m = &layers[number];
    struct run r = new_run(m);
    for (int i = 0; i < 24 && !ring2_failed(); i++) {
        struct tokens t = draw(m, 3);
        const int64_t H = state_heads(m);
        const bool off = i % 4 == 3, bad = i % 8 == 4, forgets = i % 8 == 5;
        const bool next = i % 8 == 2 && t.T > 1; /* the second token forgets v of the first */
        /* k of the first token is no number, and u is 0. Their product makes its output NaN, but
         * plain decode of several tokens leaves it out on a GPU. */
        const bool silent = i % 8 == 7, spared = ring2_on_device() && m->io && t.T > 1;
        for (int64_t b = 0; b < B; b++) {
            const int64_t last = (b + 1) * t.T - 1;
            t.slots[b] = b, t.count[b] = t.T;
            for (int64_t h = 0; h < H; h++) {
                const int64_t at = b * t.T * H + h;
                if (off) ring2_set(&t.beta, at, 0);
                for (int64_t j = 0; off && m->gated && j < m->V; j++)
                    ring2_set(&t.write_gate, at * m->V + j, 0);
                for (int64_t x = 0; x < (m->channels ? m->K : 1); x++) {
                    const int64_t g = m->channels ? at * m->K + x : at;
                    if (bad && h % 2) ring2_set(&t.g, g, (double)NAN);
                    if (forgets) ring2_set(&t.g, g, -(double)INFINITY);
                    if (next) ring2_set(&t.g, g + (m->channels ? H * m->K : H), -(double)INFINITY);
                }
            }
            for (int64_t x = 0; off && x < m->heads[2] * m->V; x++)
                ring2_set(&t.v, b * t.T * m->heads[2] * m->V + x, (double)NAN);
            for (int64_t x = 0; next && x < m->heads[2] * m->V; x++)
                ring2_set(&t.v, b * t.T * m->heads[2] * m->V + x, (double)NAN);
            for (int64_t x = 0; bad && x < m->heads[2] * m->V; x++)
                ring2_set(&t.v, last * m->heads[2] * m->V + x, (double)NAN);
            for (int64_t x = 0; silent && x < m->heads[1] * m->K; x++)
                ring2_set(&t.k, b * t.T * m->heads[1] * m->K + x, (double)NAN);
        }
        gdn_tensor out[2];
        call(&r, &t, out);
        for (int64_t j = 0; j < ring2_count(&out[0]) && !bad; j++)
            CHECK((silent && spared && j / (H * m->V) % t.T == 0) ||
                      isfinite(ring2_get(&out[0], j)) == isfinite(ring2_get(&out[1], j)),
                  "call %d: output %d is %g, plain %g", i, (int)j, ring2_get(&out[0], j),
                  ring2_get(&out[1], j));
    }
}

/* ---- G6: contents that a GPU does not refuse ---- */

/* Slots that do not exist, slots named twice, and counts below 0 and above R. */
static void outside(int number)
{
    const struct layer *m = &layers[number];
    if (!ring2_on_device()) {
        ring2_skip("a CPU refuses them");
        return;
    }
    const struct lazy z = new_lazy(m);
    for (int i = 0; i < 8 && !ring2_failed(); i++) {
        struct tokens t = draw(m, MOST);
        for (int b = 0; b < B; b++) t.slots[b] = ring2_below(2 * P) - 2;
        for (int p = 0; p < P; p++) ring2_set(&z.count, p, (double)(ring2_below(3 * m->R) - m->R));
        gdn_batch b;
        const gdn_rule_args a = lazy_args(m, &t, &z, &b);
        const gdn_tensor *const written[] = { &a.out,         &a.state,    &a.state_scales,
                                              &a.record_k,    &a.record_u, &a.record_g,
                                              &a.record_count };
        const bool at_once = draw_at_once(m);
        ring2_call_begin();
        for (int j = 0; j < 7; j++)
            if (written[j]->data) ring2_may_write(written[j]);
        ring2_status(ctx_of(at_once), "lazy", gdn_decode(ctx_of(at_once), &a), GDN_OK);
        ring2_call_end();
        expect_kernel(m, t.T, at_once);
        fold(m, &z, P + ring2_below(P));
    }
}

/* ---- G1 ---- */

#define REFUSE(what, seen, want, needle, ...)                               \
    do {                                                                    \
        gdn_batch b;                                                        \
        struct lazy z = new_lazy(&layers[0]);                               \
        const struct tokens t = draw(&layers[0], 1);                        \
        gdn_rule_args a = lazy_args(&layers[0], &t, &z, &b);                \
        __VA_ARGS__;                                                        \
        ring2_refused(ring2_ctx(2), GDN_OP_DECODE, &a, seen, want, needle); \
    } while (0)

static void refused(int number)
{
    const int64_t zeros[B] = { 0 };
    (void)number;
    REFUSE("slots to write", RING2_STRUCT, GDN_E_ARG, "write_slots", b.write_slots = b.read_slots);
    REFUSE("a tree", RING2_STRUCT, GDN_E_ARG, "parents",
           b.parents = ring2_new(GDN_I32, 0, 2, B, 1, 0, 0));
    REFUSE("another pool", RING2_STRUCT, GDN_E_ARG, "state_out",
           a.state_out = ring2_clone(&a.state));
    REFUSE("starts", RING2_STRUCT, GDN_E_ARG, "has_initial_state",
           b.has_initial_state = ring2_indices(GDN_I32, B, zeros));
    REFUSE("each state", RING2_STRUCT, GDN_E_ARG, "write", b.write = GDN_WRITE_EACH;
           b.write_slots = ring2_new(GDN_I32, 0, 2, B, 1, 0, 0));
    REFUSE("out in count", RING2_STRUCT, GDN_E_ARG, "overlap", a.record_count.data = a.out.data);
    REFUSE("count R + 1", RING2_CONTENTS, GDN_E_ARG, "record_count",
           b.read_slots = ring2_indices(GDN_I32, B, (const int64_t[B]){ 0, 1, 2, 3, 4 });
           ring2_set(&z.count, 2, (double)layers[0].R + 1));
    REFUSE("a slot twice", RING2_CONTENTS, GDN_E_ARG, "slot 0",
           b.read_slots = ring2_indices(GDN_I32, B, (const int64_t[B]){ 0, 1, 2, 3, 0 }));
}

int main(int argc, char **argv)
{
    static const struct ring2_cases tests[] = {
        { "many calls beside plain decode and float64", many, N_LAYERS },
        { "large and small keys", sizes, 4 },
        { "G2 records accepted at once", alone, N_LAYERS },
        { "G7 G8 records accepted at once", odd, N_LAYERS },
        { "G6 records accepted at once", outside, N_LAYERS },
        { "G1 records accepted at once", refused, 1 },
    };
    return ring2_cases_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
