/* SPDX-License-Identifier: Apache-2.0 */
/* See ring2_record.h. */
#include "ring2_record.h"

#include <math.h>

const int64_t ring2_slots[B] = { 4, 0, 3, -1 };

const struct ring2_layer ring2_layers[] = {
    { GDN_F32, GDN_F32, GDN_STATE_VK, GDN_HEADS_GROUPED, 0, { 2, 2, 4 }, 16, 12 },
    { GDN_F32, GDN_F32, GDN_STATE_KV, GDN_HEADS_INTERLEAVED, 0, { 2, 2, 4 }, 33, 7 },
    { GDN_F32, GDN_F32, GDN_STATE_VK, GDN_HEADS_GROUPED, GDN_EXACT, { 4, 2, 2 }, 9, 300 },
    { GDN_F32, GDN_F32, GDN_STATE_KV, GDN_HEADS_INTERLEAVED, 0, { 4, 1, 2 }, 20, 17 },
    { GDN_F32, GDN_BF16, GDN_STATE_VK, GDN_HEADS_GROUPED, 0, { 2, 2, 4 }, 32, 20 },
    { GDN_BF16, GDN_F32, GDN_STATE_KV, GDN_HEADS_GROUPED, 0, { 1, 1, 3 }, 31, 20 },
    { GDN_F16, GDN_F16, GDN_STATE_VK, GDN_HEADS_INTERLEAVED, 0, { 2, 2, 4 }, 24, 9 },
};

int64_t ring2_state_heads(const struct ring2_layer *m)
{
    return m->heads[0] > m->heads[2] ? m->heads[0] : m->heads[2];
}

int64_t ring2_channels(const struct ring2_layer *m)
{
    return (m->heads[0] + m->heads[1]) * m->K + m->heads[2] * m->V;
}

gdn_tensor ring2_pool(const struct ring2_layer *m, int32_t dtype, int64_t n)
{
    const bool vk = m->layout == GDN_STATE_VK;
    const int64_t H = ring2_state_heads(m);
    gdn_tensor t = ring2_new(dtype, 1, 4, n, H, vk ? m->V : m->K, vk ? m->K : m->V);
    ring2_fill(&t, -1, 1);
    return t;
}

struct ring2_record ring2_record_new(const struct ring2_layer *m, int32_t dtype)
{
    struct ring2_record r;
    gdn_tensor *const all[] = { &r.k, &r.u, &r.g };
    const int64_t H = ring2_state_heads(m), zeros[P] = { 0 };
    r.k = ring2_new(dtype, 1, 4, P, R, m->heads[1], m->K);
    r.u = ring2_new(dtype, 0, 4, P, R, H, m->V);
    r.g = ring2_new(GDN_F32, 2, 3, P, R, H, 0);
    r.count = ring2_indices(m->K % 2 ? GDN_I64 : GDN_I32, P, zeros);
    for (int i = 0; i < 3; i++) ring2_fill_value(all[i], (double)NAN);
    return r;
}

int64_t ring2_record_count(const struct ring2_record *r, int64_t slot)
{
    return (int64_t)ring2_get(&r->count, slot);
}

/* Rows [first, first + n) of a slot may change. */
static void may_write_rows(const struct ring2_record *r, int64_t slot, int64_t first, int64_t n)
{
    const gdn_tensor *const all[] = { &r->k, &r->u, &r->g };
    for (int i = 0; i < 3; i++) {
        const gdn_tensor one = ring2_narrow(all[i], 0, slot, 1);
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

/* [B][T][D] of which some channels are [B][T][n][size]. */
static gdn_tensor heads_of(const gdn_tensor *act, int64_t from, int64_t n, int64_t size)
{
    gdn_tensor t = ring2_narrow(act, 2, from, n * size);
    t.ndim = 4;
    t.size[2] = n, t.size[3] = size;
    t.stride[2] = size, t.stride[3] = 1;
    return t;
}

gdn_rule_args ring2_layer_args(const struct ring2_layer *m, const struct ring2_tokens *t,
                               const gdn_tensor *act, const gdn_tensor *state,
                               const gdn_batch *batch)
{
    const int Hq = m->heads[0], Hk = m->heads[1];
    gdn_rule_args a = gdn_rule_args_init();
    a.q = heads_of(act, 0, Hq, m->K);
    a.k = heads_of(act, Hq * m->K, Hk, m->K);
    a.v = heads_of(act, (Hq + Hk) * m->K, m->heads[2], m->V);
    a.g = t->g;
    a.beta = t->beta;
    a.state = *state;
    a.out = ring2_new(GDN_F32, 0, 4, B, t->T, ring2_state_heads(m), m->V);
    a.norm = GDN_NORM_L2;
    a.head_map = m->map;
    a.state_layout = m->layout;
    a.flags = (uint32_t)m->exact;
    a.batch = batch;
    return a;
}

void ring2_decode(const gdn_rule_args *a)
{
    ring2_status(ring2_ctx(3), "gdn_decode", gdn_decode(ring2_ctx(3), a), GDN_OK);
}

gdn_tensor ring2_paths(int64_t n, const int64_t *values)
{
    gdn_tensor t = ring2_new(GDN_I32, 1, 2, B, n, 0, 0);
    for (int64_t i = 0; i < B * n; i++) ring2_set(&t, i, (double)values[i / n * MOST + i % n]);
    return t;
}

gdn_batch ring2_drafts(const struct ring2_tokens *t, bool tree)
{
    gdn_batch b = gdn_batch_init();
    b.write = GDN_WRITE_NONE;
    b.read_slots = ring2_indices(GDN_I32, B, ring2_slots);
    b.token_count = ring2_indices(GDN_I32, B, t->count);
    if (tree) b.parents = ring2_paths(t->T, t->parents[0]);
    return b;
}

void ring2_commit(const struct ring2_record *r, const struct ring2_accepted *n, bool tree,
                  int64_t T)
{
    gdn_record_commit_args a = gdn_record_commit_args_init();
    gdn_batch b = gdn_batch_init();
    b.read_slots = ring2_indices(GDN_I64, B, ring2_slots);
    a.record_k = r->k, a.record_u = r->u, a.record_g = r->g, a.record_count = r->count;
    a.n_accepted = ring2_indices(GDN_I32, B, n->n);
    a.batch = &b;
    if (tree) a.path = ring2_paths(T, n->path[0]);
    ring2_call_begin();
    for (int s = 0; s < B; s++) {
        if (ring2_slots[s] < 0) continue;
        if (tree) may_write_rows(r, ring2_slots[s], ring2_record_count(r, ring2_slots[s]), n->n[s]);
        may_write_slot(&r->count, ring2_slots[s]);
    }
    ring2_status(ring2_ctx(2), "commit", gdn_record_commit(ring2_ctx(2), &a), GDN_OK);
    ring2_call_end();
}

gdn_record_fold_args ring2_fold_args(const struct ring2_layer *m, const struct ring2_record *r,
                                     const gdn_tensor *state, const gdn_batch *batch)
{
    gdn_record_fold_args a = gdn_record_fold_args_init();
    a.state = *state, a.record_k = r->k, a.record_u = r->u, a.record_g = r->g;
    a.record_count = r->count;
    a.head_map = m->map, a.state_layout = m->layout, a.batch = batch;
    return a;
}

void ring2_fold(const struct ring2_layer *m, const struct ring2_record *r, const gdn_tensor *state)
{
    gdn_batch b = gdn_batch_init();
    b.read_slots = ring2_indices(GDN_I32, B, ring2_slots);
    const gdn_record_fold_args a = ring2_fold_args(m, r, state, &b);
    ring2_call_begin();
    for (int s = 0; s < B; s++) {
        if (ring2_slots[s] < 0) continue;
        may_write_slot(state, ring2_slots[s]);
        may_write_slot(&r->count, ring2_slots[s]);
    }
    ring2_status(ring2_ctx(3), "fold", gdn_record_fold(ring2_ctx(3), &a), GDN_OK);
    ring2_call_end();
    for (int64_t p = 0; p < P; p++)
        CHECK(ring2_record_count(r, p) == 0, "rows are left after the fold");
}

/* A decode that records; the state and earlier rows stay. */
gdn_tensor ring2_record_drafts(const struct ring2_layer *m, const struct ring2_tokens *t,
                               const gdn_tensor *act, const struct ring2_record *r,
                               const gdn_tensor *state, const gdn_batch *b)
{
    gdn_rule_args a = ring2_layer_args(m, t, act, state, b);
    a.record_k = r->k, a.record_u = r->u, a.record_g = r->g, a.record_count = r->count;
    ring2_call_begin();
    ring2_may_write(&a.out);
    for (int s = 0; s < B; s++) {
        const int64_t slot = ring2_slots[s];
        if (slot >= 0) may_write_rows(r, slot, ring2_record_count(r, slot), t->count[s]);
    }
    ring2_decode(&a);
    ring2_call_end();
    return a.out;
}

/* ---- Drafts ---- */

static int64_t random_parent(int64_t t) { return ring2_below(3) ? t - 1 : ring2_below(t + 1) - 1; }

struct ring2_tokens ring2_draft(const struct ring2_layer *m, bool tree)
{
    struct ring2_tokens t = { .T = 1 + ring2_below(MOST) };
    t.x = ring2_new(GDN_F32, 0, 3, B, t.T, ring2_channels(m), 0);
    t.g = ring2_new(GDN_F32, 0, 3, B, t.T, ring2_state_heads(m), 0);
    t.beta = ring2_new(GDN_F32, 0, 3, B, t.T, ring2_state_heads(m), 0);
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
struct ring2_accepted ring2_accept(const struct ring2_tokens *t)
{
    struct ring2_accepted n = { 0 };
    for (int s = 0; s < B; s++) {
        const int64_t last = ring2_slots[s] < 0 ? -1 : ring2_below(t->count[s] + 1) - 1;
        int64_t i;
        for (int64_t p = last; p >= 0; p = t->parents[s][p]) n.n[s]++;
        i = n.n[s];
        for (int64_t p = last; p >= 0; p = t->parents[s][p]) n.path[s][--i] = p;
    }
    return n;
}

bool ring2_record_is_full(const struct ring2_record *r, const struct ring2_tokens *t)
{
    for (int s = 0; s < B; s++) {
        const int64_t slot = ring2_slots[s];
        if (slot >= 0 && ring2_record_count(r, slot) + t->count[s] > R) return true;
    }
    return false;
}
