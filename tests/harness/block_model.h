/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_block in float64, composed of the oracle's pieces; and what its result may differ by.
 *
 * On the CPU all is float32 between the steps. A device rounds what passes from one step to the
 * next to the dtype A of the activations, and its matrix products take such numbers. How far that
 * may move a result is asked of the model itself: with every such value moved by a random part of
 * half its ulp, some times over.
 */
#ifndef BLOCK_MODEL_H
#define BLOCK_MODEL_H

#include <math.h>
#include <string.h>

#include "calls/rule.h"
#include "oracle.h"
#include "oracle_family.h"
#include "ring2_batch.h"
#include "ring2_device.h"

#ifndef TEST_V /* that of another program of one source (tests/CMakeLists.txt) */
#define TEST_V 24
#endif
enum {
    HIDDEN = 40,
    HK = 2,
    HV = 4,
    K = TEST_V > 256 ? 12 : 16, /* 12: the rows of each key head are projected apart */
    V = TEST_V,
    W = 4,
    R = HV / HK,
    D = 2 * HK * K + HV * V
};

/* ---- The layer in float64 ---- */

/* Returns true if a device computes the rule token by token. For packed sequences the mean
 * length decides. */
static inline bool takes_tokens(const gdn_block_args *a)
{
    const bool packed = a->hidden.ndim == 2;
    const int64_t T = a->hidden.size[packed ? 0 : 1];
    const int64_t B =
        packed && a->batch && a->batch->cu_seqlens.data ? a->batch->cu_seqlens.size[0] - 1 : 1;
    return a->flags & GDN_EXACT || T <= GDN_SHORT_SEQUENCE || (packed && T <= B);
}

static inline int64_t taps_of(const gdn_block_args *a)
{
    return a->conv_weight.size[a->conv_weight.ndim - 1];
}

/* Returns the numbers of a gate: one, or K of KDA. */
static inline int channels_of(const gdn_block_args *a) { return a->dt_bias.ndim == 2 ? K : 1; }

/* Returns the logarithm of a gate; i counts the numbers of all heads. */
static inline double gate_of(const gdn_block_args *a, const double *raw, int i)
{
    return oracle_gate(raw[i], ring2_get(&a->A_log, i / channels_of(a)), ring2_get(&a->dt_bias, i),
                       a->gate_lower_bound);
}

/* One sequence of T tokens; conv [S][D] and state [HV][V][K] move on. noise: of what a device
 * rounds; NULL: nothing is. */
struct layer {
    const gdn_block_args *a;
    int64_t T, S;
    double *x;                  /* [T][HIDDEN] */
    double *conv, *state, *out; /* out [T][HIDDEN] */
    double *qkv, *z, *b, *alog; /* [T][D], [T][HV V], [T][HV] and its channels: projected */
    struct oracle_noise *noise;
};

/* Rounds what a device rounds to A. */
static inline void round_all(const struct layer *l, double *x, int64_t n)
{
    if (l->noise) oracle_move_all(l->noise, x, n);
}

static inline double *project(const double *x, const gdn_tensor *w, int64_t T)
{
    const int64_t n = w->size[0], m = w->size[1];
    double *y = ring2_heap((size_t)(T * n) * sizeof *y);
    oracle_linear(y, NULL, x, ring2_doubles(w), T, n, m);
    return y;
}

/* The rows of Qwen3-Next's fused projections, key head by key head: q, k, its value heads' v
 * and z; their b and a. */
static inline void split_fused(struct layer *l)
{
    const double *p = project(l->x, &l->a->in_proj_qkvz, l->T);
    const double *g = project(l->x, &l->a->in_proj_ba, l->T);
    const int per_head = 2 * K + 2 * R * V;
    for (int64_t t = 0; t < l->T; t++)
        for (int h = 0; h < HK; h++) {
            const double *from = p + (t * HK + h) * per_head, *ba = g + (t * HK + h) * 2 * R;
            double *row = l->qkv + t * D;
            for (int i = 0; i < K; i++) row[h * K + i] = from[i];
            for (int i = 0; i < K; i++) row[HK * K + h * K + i] = from[K + i];
            for (int i = 0; i < R * V; i++) {
                row[2 * HK * K + h * R * V + i] = from[2 * K + i];
                l->z[t * HV * V + h * R * V + i] = from[2 * K + R * V + i];
            }
            for (int i = 0; i < R; i++) {
                l->b[t * HV + h * R + i] = ba[i];
                l->alog[t * HV + h * R + i] = ba[R + i];
            }
        }
}

/* Projects by `down` first, if it is given. */
static inline double *project_low(const struct layer *l, const gdn_tensor *down,
                                  const gdn_tensor *w)
{
    if (!down->data) return project(l->x, w, l->T);
    double *low = project(l->x, down, l->T);
    round_all(l, low, l->T * down->size[0]);
    return project(low, w, l->T);
}

/* q, k and v by a weight of each. */
static inline double *project_apart(const struct layer *l)
{
    const gdn_tensor *w[] = { &l->a->in_proj_q, &l->a->in_proj_k, &l->a->in_proj_v };
    double *qkv = ring2_heap((size_t)(l->T * D) * 8);
    int64_t first = 0;
    for (int i = 0; i < 3; first += w[i++]->size[0]) {
        const int64_t n = w[i]->size[0];
        const double *y = project(l->x, w[i], l->T);
        for (int64_t t = 0; t < l->T; t++) memcpy(qkv + t * D + first, y + t * n, (size_t)n * 8);
    }
    return qkv;
}

static inline void project_all(struct layer *l)
{
    const gdn_block_args *a = l->a;
    if (a->in_proj_qkvz.data) {
        l->qkv = ring2_heap((size_t)(l->T * D) * 8);
        l->z = ring2_heap((size_t)(l->T * HV * V) * 8);
        l->b = ring2_heap((size_t)(l->T * HV) * 8);
        l->alog = ring2_heap((size_t)(l->T * HV) * 8);
        split_fused(l);
    } else {
        l->qkv = a->in_proj_qkv.data ? project(l->x, &a->in_proj_qkv, l->T) : project_apart(l);
        l->z = project_low(l, &a->in_proj_z_down, &a->in_proj_z);
        l->b = project(l->x, &a->in_proj_b, l->T);
        l->alog = project_low(l, &a->in_proj_a_down, &a->in_proj_a);
    }
    round_all(l, l->qkv, l->T * D);
    round_all(l, l->z, l->T * HV * V);
}

/* qkv through the convolution; conv moves on. */
static inline double *convolve(struct layer *l)
{
    const gdn_block_args *a = l->a;
    double *y = ring2_heap((size_t)(l->T * D) * 8);
    double *moved = ring2_heap((size_t)(l->S * D) * 8);
    const int past = (int)taps_of(a) - 1;
    oracle_conv(y, NULL, l->qkv, l->conv + (l->S - past) * D, ring2_doubles(&a->conv_weight),
                a->conv_bias.data ? ring2_doubles(&a->conv_bias) : NULL, true, l->T, D, past + 1);
    for (int64_t e = 0; e < l->S; e++) {
        const int64_t t = l->T - l->S + e;
        memcpy(moved + e * D, t >= 0 ? l->qkv + t * D : l->conv + (t + l->S) * D, D * 8);
    }
    memcpy(l->conv, moved, (size_t)(l->S * D) * 8);
    round_all(l, y, l->T * D);
    return y;
}

/* The rule on a device: in chunks of 64, with normalised keys of f16 rounded; or by tokens. */
static inline void run_rounded(const struct layer *l, const struct oracle_rule *r, double *k)
{
    if (takes_tokens(l->a)) {
        oracle_rule(r);
        round_all(l, r->o, r->T * V);
        return;
    }
    if (l->a->hidden.dtype == GDN_F16) round_all(l, k, r->T * K);
    oracle_rule_chunks(r, 64, l->noise);
}

/* The rule with gates per channel. A device computes it in 16 bits as that of one gate: factors are
 * what the noise is of. */
static inline void run_channels(const struct layer *l, const struct oracle_rule *r, int h)
{
    double *g = ring2_heap((size_t)(r->T * K) * 8), *b = ring2_heap((size_t)(r->T * K) * 8);
    double *w = ring2_heap((size_t)(r->T * V) * 8);
    for (int64_t t = 0; t < r->T; t++) {
        for (int i = 0; i < K; i++) {
            g[t * K + i] = gate_of(l->a, l->alog + t * HV * K, h * K + i);
            b[t * K + i] = r->beta[t];
        }
        for (int i = 0; i < V; i++) w[t * V + i] = r->beta[t];
    }
    const struct oracle_family f = { .T = r->T,
                                     .K = K,
                                     .V = V,
                                     .n = 1,
                                     .scale = r->scale,
                                     .q = r->q,
                                     .g = g,
                                     .k = r->k,
                                     .b = b,
                                     .v = r->v,
                                     .w = w,
                                     .state = r->state,
                                     .o = r->o };
    if (l->noise) {
        round_all(l, (double *)(uintptr_t)r->q, r->T * K);
        round_all(l, (double *)(uintptr_t)r->k, r->T * K);
    }
    oracle_family(&f);
    round_all(l, r->o, r->T * V);
}

/* One value head: the rule and the gated norm, into its columns of y [T][HV V]. */
static inline void run_head(const struct layer *l, const double *conv, int h, double *y)
{
    const gdn_block_args *a = l->a;
    const size_t T = (size_t)l->T;
    const double *w = ring2_doubles(&a->norm_weight);
    double *q = ring2_heap(T * K * 8), *k = ring2_heap(T * K * 8), *v = ring2_heap(T * V * 8);
    double *alpha = ring2_heap(T * 8), *beta = ring2_heap(T * 8), *o = ring2_heap(T * V * 8);
    struct oracle_rule r = { .T = l->T,
                             .K = K,
                             .V = V,
                             .scale = 1 / sqrt(K),
                             .q = q,
                             .k = k,
                             .v = v,
                             .alpha = alpha,
                             .beta = beta,
                             .o = o,
                             .state = l->state + h * V * K };
    for (int64_t t = 0; t < l->T; t++) {
        const double *row = conv + t * D;
        oracle_l2norm(q + t * K, row + h / R * K, K, GDN_NORM_L2, 1e-6);
        oracle_l2norm(k + t * K, row + HK * K + h / R * K, K, GDN_NORM_L2, 1e-6);
        memcpy(v + t * V, row + 2 * HK * K + h * V, V * 8);
        if (channels_of(a) == 1) alpha[t] = exp(gate_of(a, l->alog + t * HV, h));
        beta[t] = oracle_sigmoid(l->b[t * HV + h]);
        if (a->beta_kind == GDN_BETA_TWICE_SIGMOID) beta[t] *= 2;
    }
    if (channels_of(a) > 1)
        run_channels(l, &r, h);
    else if (l->noise)
        run_rounded(l, &r, k);
    else
        oracle_rule(&r);
    for (int64_t t = 0; t < l->T; t++)
        oracle_rmsnorm_gated(y + (t * HV + h) * V, o + t * V, w, l->z + (t * HV + h) * V,
                             a->activation == GDN_ACT_SIGMOID, 1e-6, V);
}

static inline void run_layer(struct layer *l)
{
    double *y = ring2_heap((size_t)(l->T * HV * V) * 8), *conv;
    project_all(l);
    conv = convolve(l);
    for (int h = 0; h < HV; h++) run_head(l, conv, h, y);
    round_all(l, y, l->T * HV * V);
    l->out = project(y, &l->a->out_proj, l->T);
}

/* ---- The model ---- */

enum { RUNS = 32 }; /* with noise */

/* The wanted values of a tensor. kept: elements that stay. noise: the effect of rounding on the
 * way, as a root mean square over the runs; NULL: there is none. room: what an element may
 * differ by for that reason. */
struct expected {
    int64_t n;
    double *want, *noise, *room;
    bool *kept;
};

struct model {
    struct expected out, state, conv;
};

static inline int64_t state_at(const gdn_block_args *a, int64_t slot, int h, int j, int x)
{
    return (slot * HV + h) * V * K + (a->state_layout == GDN_STATE_VK ? j * K + x : x * V + j);
}

static inline void move_states(const gdn_block_args *a, struct layer *l, int64_t slot,
                               struct model *m)
{
    for (int h = 0; a->state.data && h < HV; h++)
        for (int j = 0; j < V; j++)
            for (int x = 0; x < K; x++) {
                const int64_t at = state_at(a, slot, h, j, x);
                double *S = &l->state[(h * V + j) * K + x];
                if (m)
                    m->state.want[at] = *S, m->state.kept[at] = false;
                else
                    *S = ring2_get(&a->state, at);
            }
    for (int64_t e = 0; a->conv_state.data && e < l->S; e++)
        for (int d = 0; d < D; d++) {
            const int64_t at = (slot * D + d) * l->S + e;
            if (m)
                m->conv.want[at] = l->conv[e * D + d], m->conv.kept[at] = false;
            else
                l->conv[e * D + d] = ring2_get(&a->conv_state, at);
        }
}

static inline void run_sequence(const gdn_block_args *a, const struct ring2_sequence *s,
                                struct oracle_noise *noise, struct model *m)
{
    struct layer l = { .a = a, .T = s->valid, .noise = noise };
    l.S = a->conv_state.data ? a->conv_state.size[2] : taps_of(a) - 1;
    l.conv = ring2_heap((size_t)(l.S * D) * 8);
    l.state = ring2_heap(HV * V * K * 8);
    l.x = ring2_heap((size_t)(s->valid * HIDDEN) * 8);
    for (int64_t i = 0; i < s->valid * HIDDEN; i++)
        l.x[i] = ring2_get(&a->hidden, s->first * HIDDEN + i);
    if (s->read >= 0) move_states(a, &l, s->read, NULL);
    run_layer(&l);
    memcpy(m->out.want + s->first * HIDDEN, l.out, (size_t)(s->valid * HIDDEN) * 8);
    if (s->write >= 0) move_states(a, &l, s->write, m);
}

static inline void expect_none(struct expected *e, const gdn_tensor *t, bool kept)
{
    *e = (struct expected){ .n = t->data ? ring2_count(t) : 0 };
    e->want = ring2_heap((size_t)e->n * 8);
    e->room = ring2_heap((size_t)e->n * 8);
    e->kept = ring2_heap((size_t)e->n);
    memset(e->kept, kept, (size_t)e->n);
}

static inline void run_model(const gdn_block_args *a, struct oracle_noise *noise, struct model *m)
{
    struct ring2_sequence *seqs;
    const bool any = a->state.data || a->conv_state.data;
    const int64_t B = ring2_sequences(a->batch, &a->hidden, 1, any, &seqs);
    expect_none(&m->out, &a->out, false);
    expect_none(&m->state, &a->state, true);
    expect_none(&m->conv, &a->conv_state, true);
    for (int64_t b = 0; b < B; b++) {
        const struct ring2_sequence *s = &seqs[b];
        if (s->kept) memset(m->out.kept + s->first * HIDDEN, 1, (size_t)(s->T * HIDDEN));
        if (!s->skipped && s->T) run_sequence(a, s, noise, m);
    }
}

/* Adds what the model says with values moved. */
static inline void add_noise(struct expected *e, const struct expected *moved)
{
    if (!e->noise) e->noise = ring2_heap((size_t)e->n * 8);
    for (int64_t i = 0; i < e->n; i++)
        e->noise[i] = hypot(e->noise[i], (moved->want[i] - e->want[i]) / sqrt(RUNS));
}

/* Makes the limit 8 times the noise. If runs show half of the noise, as one element in 10^5 may,
 * 4 times is left. */
static inline void make_room(struct expected *e)
{
    for (int64_t i = 0; i < e->n; i++) e->room[i] = 8 * e->noise[i];
}

static inline void make_model(const gdn_block_args *a, struct model *m)
{
    struct oracle_noise noise = { .dtype = a->hidden.dtype };
    run_model(a, NULL, m);
    if (!ring2_on_device() || a->hidden.dtype == GDN_F32) return;
    for (int i = 0; i < RUNS; i++) {
        struct model moved;
        run_model(a, &noise, &moved);
        add_noise(&m->out, &moved.out);
        add_noise(&m->state, &moved.state);
    }
    make_room(&m->out), make_room(&m->state);
    for (int64_t i = 0; i < m->conv.n; i++) /* inputs of the convolution, rounded once */
        m->conv.room[i] = oracle_half_ulp(a->hidden.dtype, m->conv.want[i]);
}

/* The project's limit for float32 inside (docs/design/numerics.md): 2e-5 of the tensor's root mean
 * square and 1e-6; the stored dtype adds half an ulp. Where 16 bits pass from step to step, that
 * and the room for it, and twice the noise as root mean square. */
static inline void compare(const char *what, const gdn_tensor *got, const struct expected *e)
{
    double *limit = ring2_heap((size_t)e->n * 8), *noise = ring2_heap((size_t)e->n * 8), sum = 0;
    int64_t judged = 0;
    for (int64_t i = 0; i < e->n; i++)
        if (!e->kept[i]) sum += e->want[i] * e->want[i], judged++;
    for (int64_t i = 0; judged && i < e->n; i++) {
        limit[i] = 2e-5 * sqrt(sum / (double)judged) + 1e-6;
        noise[i] = limit[i] + (e->noise ? 2 * e->noise[i] : 0);
        limit[i] += e->room[i];
    }
    if (got->data) ring2_compare(what, got, e->want, limit, e->noise ? noise : NULL, e->kept);
}

#endif
