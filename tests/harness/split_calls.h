/* SPDX-License-Identifier: Apache-2.0 */
/* Layers, tokens and calls of the tests of GDN_SPLIT_INVARIANT. Include it once. */
#ifndef SPLIT_CALLS_H
#define SPLIT_CALLS_H

#include <math.h>
#include <string.h>

#include "gdn_record.h"
#include "ring2.h"
#include "ring2_device.h"

enum { B = 3, P = 5, T = 200, UNIT = 64 };
enum { LOG = GDN_GATE_LOG, LINEAR = GDN_GATE_LINEAR, RAW = GDN_GATE_RAW };

static const struct layer {
    int32_t A, layout, map, gate;
    int heads[3];
    int64_t K, V, R; /* R: rows of a record */
    double keys; /* the largest element. Up to 0.1 they have no norm, else it makes them short */
} layers[] = {
    { GDN_F32, GDN_STATE_VK, GDN_HEADS_GROUPED, LOG, { 1, 1, 2 }, 32, 32, 64, 1 },
    { GDN_F32, GDN_STATE_KV, GDN_HEADS_INTERLEAVED, LOG, { 1, 1, 3 }, 17, 40, 64, 1 },
    { GDN_BF16, GDN_STATE_VK, GDN_HEADS_GROUPED, RAW, { 2, 1, 2 }, 48, 19, 96, 1 },
    { GDN_F16, GDN_STATE_KV, GDN_HEADS_GROUPED, RAW, { 2, 2, 2 }, 16, 33, 64, 1 },
    { GDN_F32, GDN_STATE_VK, GDN_HEADS_INTERLEAVED, LOG, { 4, 2, 2 }, 24, 8, 130, 1 },
    { GDN_BF16, GDN_STATE_VK, GDN_HEADS_GROUPED, RAW, { 1, 1, 2 }, 64, 64, 64, 1 },
    { GDN_F16, GDN_STATE_KV, GDN_HEADS_GROUPED, RAW, { 2, 1, 2 }, 128, 128, 64, 500 },
    { GDN_BF16, GDN_STATE_VK, GDN_HEADS_GROUPED, LOG, { 1, 1, 2 }, 128, 72, 100, 500 },
    { GDN_BF16, GDN_STATE_KV, GDN_HEADS_INTERLEAVED, LINEAR, { 1, 1, 2 }, 128, 128, 64, 0.1 },
    { GDN_F16, GDN_STATE_VK, GDN_HEADS_GROUPED, LINEAR, { 1, 2, 2 }, 128, 136, 128, 1 },
    { GDN_BF16, GDN_STATE_VK, GDN_HEADS_GROUPED, LOG, { 1, 1, 1 }, 256, 24, 192, 0.05 },
};
enum { N_LAYERS = sizeof layers / sizeof *layers };

static inline int64_t state_heads(const struct layer *m)
{
    return m->heads[0] > m->heads[2] ? m->heads[0] : m->heads[2];
}

static inline int32_t norm_of(const struct layer *m)
{
    return m->keys > 0.1 ? GDN_NORM_L2 : GDN_NORM_NONE;
}

/* A GPU keeps rows as the call gives them. */
static inline int32_t row_dtype(const struct layer *m)
{
    return ring2_on_device() ? m->A : GDN_F32;
}

struct tokens {
    gdn_tensor q, k, v, g, beta, out; /* [B][n] */
};

struct run {
    const struct layer *m;
    int32_t layout;    /* of the splits' pool, which may be another one than that of states */
    struct tokens all; /* and the outputs that each split must have */
    gdn_tensor states; /* [B T / 64]: after each 64 tokens */
    gdn_tensor A_log, dt_bias; /* of raw gates */
    gdn_tensor state, k, u, g, count;
    int64_t at[B], slots[B];
};

static inline struct tokens new_tokens(const struct layer *m, int64_t n)
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
static inline void fill_tokens(const struct layer *m, const struct tokens *t)
{
    const int64_t forgets = ring2_below(3) ? 400 : 20;
    const bool raw = m->gate == RAW, linear = m->gate == LINEAR;
    const double off = linear ? 0 : -(double)INFINITY, idle = linear;
    ring2_fill(&t->q, -1, 1), ring2_fill(&t->v, -1, 1);
    ring2_fill(&t->k, -m->keys, m->keys);
    ring2_fill(&t->g, raw ? -3 : linear ? 0.8 : -0.2, raw ? 3 : idle);
    ring2_fill(&t->beta, raw ? -2 : 0, raw ? 2 : 1);
    for (int64_t i = 0; i < ring2_count(&t->g) && !raw; i++) {
        if (ring2_below(forgets) == 0) ring2_set(&t->g, i, off);
        if (ring2_below(10) == 0) ring2_set(&t->beta, i, 0);
        if (ring2_below(20) == 0) ring2_set(&t->g, i, idle), ring2_set(&t->beta, i, 0);
    }
}

static inline gdn_rule_args args_of(const struct run *r, const struct tokens *t, const gdn_batch *b)
{
    gdn_rule_args a = gdn_rule_args_init();
    a.q = t->q, a.k = t->k, a.v = t->v, a.g = t->g, a.beta = t->beta, a.out = t->out;
    a.A_log = r->A_log, a.dt_bias = r->dt_bias;
    a.gate = r->m->gate;
    a.beta_kind = r->m->gate == RAW ? GDN_BETA_SIGMOID : GDN_BETA_GIVEN;
    a.norm = norm_of(r->m), a.head_map = r->m->map, a.state_layout = r->layout;
    a.flags = GDN_SPLIT_INVARIANT;
    a.batch = b;
    return a;
}

static inline gdn_tensor new_pool(const struct layer *m, int32_t layout, int64_t n)
{
    const bool vk = layout == GDN_STATE_VK;
    return ring2_new(GDN_F32, 0, 4, n, state_heads(m), vk ? m->V : m->K, vk ? m->K : m->V);
}

/* One call, whose outputs and states all splits must have. */
static inline struct run new_run(const struct layer *m)
{
    struct run r = { .m = m, .layout = m->layout, .all = new_tokens(m, T) };
    const int64_t H = state_heads(m), zeros[P] = { 0 };
    gdn_batch batch = gdn_batch_init();
    batch.checkpoint_every = UNIT;
    if (m->gate == RAW) {
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

/* Returns rows [B][n] as rows [B n]. */
static inline gdn_tensor packed(gdn_tensor t)
{
    t.size[1] *= t.size[0], t.ndim--;
    for (int i = 0; i < t.ndim; i++) t.size[i] = t.size[i + 1], t.stride[i] = t.stride[i + 1];
    return t;
}

/* Makes the call one of packed tokens: rows of `most` tokens, of which some count. */
static inline void pack(gdn_rule_args *a, gdn_batch *b, int64_t most)
{
    gdn_tensor *const by_token[] = { &a->q, &a->k, &a->v, &a->g, &a->beta, &a->out };
    int64_t starts[B + 1];
    for (size_t i = 0; i < sizeof by_token / sizeof *by_token; i++)
        *by_token[i] = packed(*by_token[i]);
    for (int64_t i = 0; i <= B; i++) starts[i] = i * most;
    b->cu_seqlens = ring2_indices(GDN_I32, B + 1, starts);
}

static inline gdn_record_fold_args fold_args(const struct run *r, const gdn_batch *b)
{
    gdn_record_fold_args a = gdn_record_fold_args_init();
    a.flags = GDN_SPLIT_INVARIANT;
    a.state = r->state, a.state_layout = r->layout, a.head_map = r->m->map;
    a.norm = norm_of(r->m);
    a.record_k = r->k, a.record_u = r->u, a.record_g = r->g, a.record_count = r->count;
    a.batch = b;
    return a;
}

#endif
