/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of gdn_summary and states of summaries, for their tests. */
#ifndef SUMMARY_CALL_H
#define SUMMARY_CALL_H

#include "gdn_research.h"
#include "oracle.h"
#include "ring2_rule.h"

enum { N_DIMS = 8, N_WIDE_DIMS = 2 }; /* the last ones: V above 256 */
static const int dims[N_DIMS][2] = { { 16, 16 },  { 1, 3 },    { 33, 7 },   { 20, 65 },
                                     { 128, 40 }, { 60, 100 }, { 24, 512 }, { 9, 1000 } };

static inline gdn_tensor pool(int32_t dtype, bool swapped, int64_t B, int64_t H, int64_t r,
                              int64_t s)
{
    return ring2_turned(swapped, dtype, swapped ? 0 : 3, 4, B, H, r, s);
}

static inline void fill_unit(const gdn_tensor *k)
{
    const int64_t K = k->size[k->ndim - 1];
    double *x = ring2_heap((size_t)K * sizeof *x);
    for (int64_t r = 0; r < ring2_count(k) / K; r++) {
        for (int64_t d = 0; d < K; d++) x[d] = ring2_uniform(-1, 1);
        oracle_l2norm(x, x, K, GDN_NORM_L2, 1e-30);
        for (int64_t d = 0; d < K; d++) ring2_set(k, r * K + d, x[d]);
    }
}

/* One sequence of N tokens, float32. */
static inline gdn_summary_args plain_call(int64_t N, int64_t H, int64_t K, int64_t V, double beta)
{
    gdn_summary_args a = gdn_summary_args_init();
    a.k = ring2_new(GDN_F32, 0, 3, N, H, K, 0), a.v = ring2_new(GDN_F32, 0, 3, N, H, V, 0);
    a.g = ring2_new(GDN_F32, 0, 2, N, H, 0, 0), a.beta = ring2_new(GDN_F32, 0, 2, N, H, 0, 0);
    a.M = ring2_new(GDN_F32, 0, 4, 1, H, K, K), a.U = ring2_new(GDN_F32, 0, 4, 1, H, V, K);
    fill_unit(&a.k);
    ring2_fill(&a.v, -1, 1), ring2_fill(&a.g, -0.05, 0), ring2_fill(&a.beta, 0, beta);
    return a;
}

static inline gdn_summary_args part_of(const gdn_summary_args *a, int64_t first, int64_t n)
{
    gdn_summary_args p = *a;
    gdn_tensor *t[] = { &p.k, &p.v, &p.g, &p.beta };
    for (int i = 0; i < 4; i++) *t[i] = ring2_narrow(t[i], 0, first, n);
    p.M = ring2_clone(&a->M), p.U = ring2_clone(&a->U);
    return p;
}

static inline gdn_summary_args fresh(const gdn_summary_args *a)
{
    gdn_summary_args p = *a;
    p.M = ring2_clone(&a->M), p.U = ring2_clone(&a->U);
    return p;
}

static inline void call(gdn_ctx *ctx, const gdn_summary_args *a)
{
    ring2_status(ctx, "gdn_summary", gdn_summary(ctx, a), GDN_OK);
}

/* k with H heads; its contents are not used, because states do not depend on q. */
static inline gdn_tensor any_q(const gdn_summary_args *a, int64_t H)
{
    gdn_tensor q = ring2_select(&a->k, a->k.ndim - 2, 0);
    q.size[q.ndim] = q.size[q.ndim - 1];
    q.stride[q.ndim] = q.stride[q.ndim - 1];
    q.size[q.ndim - 1] = H;
    q.stride[q.ndim - 1] = 0;
    q.ndim++;
    return q;
}

/* The prefill whose final states are M or U. */
static inline gdn_rule_args as_rule(const gdn_summary_args *a, bool transition)
{
    const gdn_tensor *to = transition ? &a->M : &a->U;
    const int64_t B = to->size[0], H = to->size[1], K = a->k.size[a->k.ndim - 1];
    gdn_rule_args r = gdn_rule_args_init();
    r.q = any_q(a, H), r.k = a->k, r.v = a->v, r.g = a->g, r.beta = a->beta;
    r.batch = a->batch, r.head_map = a->head_map, r.state_layout = a->state_layout;
    r.norm = a->norm, r.norm_eps = a->norm_eps;
    r.state_out = *to;
    if (!transition) return r;
    r.state_layout = GDN_STATE_KV;
    r.v = ring2_clone(&a->k);
    r.state = ring2_new(GDN_F32, 0, 4, B, H, K, K);
    ring2_fill_value(&r.v, 0);
    for (int64_t i = 0; i < ring2_count(&r.state); i++) ring2_set(&r.state, i, i / K % K == i % K);
    return r;
}

#endif
