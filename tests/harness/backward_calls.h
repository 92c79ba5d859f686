/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of gdn_prefill_backward() to start from. */
#ifndef BACKWARD_CALLS_H
#define BACKWARD_CALLS_H

#include <math.h>

#include "oracle.h"
#include "ring2_device.h"
#include "ring2_gradients.h"
#include "ring2_rule.h"

static const int64_t three[] = { 37, 300, 5 };

/* Packed sequences of 2 heads of q and k and 4 of v, raw gates and betas, normalised keys. */
static inline gdn_prefill_backward_args make_call(int n, const int64_t *lengths_of, int64_t K,
                                                  int64_t V)
{
    gdn_prefill_backward_args a = gdn_prefill_backward_args_init();
    gdn_batch *t = ring2_heap(sizeof *t);
    int64_t cu[16] = { 0 };
    for (int i = 0; i < n; i++) cu[i + 1] = cu[i] + lengths_of[i];
    const int64_t N = cu[n];
    *t = gdn_batch_init(), t->cu_seqlens = ring2_indices(GDN_I32, n + 1, cu), a.batch = t;
    gdn_tensor *const given[] = { &a.q,    &a.k,     &a.v,       &a.dout,  &a.g,
                                  &a.beta, &a.A_log, &a.dt_bias, &a.state, &a.dstate_out };
    a.q = ring2_new(GDN_F32, 0, 3, N, 2, K, 0), a.k = ring2_new(GDN_F32, 0, 3, N, 2, K, 0);
    a.v = ring2_new(GDN_F32, 0, 3, N, 4, V, 0), a.dout = ring2_new(GDN_F32, 0, 3, N, 4, V, 0);
    a.g = ring2_new(GDN_F32, 0, 2, N, 4, 0, 0), a.beta = ring2_new(GDN_F32, 0, 2, N, 4, 0, 0);
    a.A_log = ring2_new(GDN_F32, 0, 1, 4, 0, 0, 0);
    a.dt_bias = ring2_new(GDN_F32, 0, 1, 4, 0, 0, 0);
    a.state = ring2_new(GDN_F32, 0, 4, n, 4, V, K);
    a.dstate_out = ring2_new(GDN_F32, 0, 4, n, 4, V, K);
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) ring2_fill(given[i], -1, 1);
    a.gate = GDN_GATE_RAW, a.beta_kind = GDN_BETA_SIGMOID, a.norm = GDN_NORM_L2;
    return a;
}

/* Fresh gradients, of numbers that mean nothing. */
static inline void new_gradients(gdn_prefill_backward_args *a)
{
    a->dq = ring2_clone(&a->q), a->dk = ring2_clone(&a->k), a->dv = ring2_clone(&a->v);
    a->dg = ring2_clone(&a->g), a->dbeta = ring2_clone(&a->beta);
    a->dA_log = ring2_clone(&a->A_log), a->ddt_bias = ring2_clone(&a->dt_bias);
    a->dstate = ring2_clone(&a->dstate_out);
    for (int i = 0; i < N_GRADIENTS; i++)
        if (ring2_gradient(a, i)->data) ring2_fill_value(ring2_gradient(a, i), 7);
}

static inline void run(gdn_ctx *ctx, gdn_prefill_backward_args *a)
{
    ring2_status(ctx, "gdn_prefill_backward", gdn_prefill_backward(ctx, a), GDN_OK);
}

static inline void expect_bits(const char *what, const gdn_prefill_backward_args *got,
                               const gdn_prefill_backward_args *want)
{
    for (int i = 0; i < N_GRADIENTS; i++)
        if (ring2_gradient(want, i)->data)
            ring2_expect_bits(what, ring2_gradient(got, i), ring2_gradient(want, i));
}

/* Fills keys: of length near 1, if `unit`; near one direction, if `alike`, which is hard with
 * beta near 2. */
static inline void fill_keys(const gdn_tensor *k, bool unit, bool alike)
{
    const int64_t K = k->size[k->ndim - 1];
    double *x = ring2_heap((size_t)K * sizeof *x);
    for (int64_t r = 0; r < ring2_count(k) / K; r++) {
        for (int64_t d = 0; d < K; d++)
            x[d] = alike ? 1 + ring2_uniform(-0.05, 0.05) : ring2_uniform(-1, 1);
        if (unit) oracle_l2norm(x, x, K, GDN_NORM_L2, 1e-30);
        for (int64_t d = 0; d < K; d++) ring2_set(k, r * K + d, x[d]);
    }
}

/* Tokens [first, first + n) as one sequence, with the states of row b. */
static inline gdn_prefill_backward_args slice(const gdn_prefill_backward_args *args, int64_t b,
                                              int64_t first, int64_t n)
{
    gdn_prefill_backward_args a = *args;
    gdn_tensor *const rows_of[] = { &a.q, &a.k, &a.v, &a.g, &a.beta, &a.dout };
    for (int i = 0; i < 6; i++) *rows_of[i] = ring2_narrow(rows_of[i], 0, first, n);
    a.state = ring2_narrow(&a.state, 0, b, 1), a.dstate_out = ring2_narrow(&a.dstate_out, 0, b, 1);
    a.batch = NULL;
    return a;
}

static inline void expect_rows(const gdn_prefill_backward_args *part,
                               const gdn_prefill_backward_args *all, int64_t first, int64_t n)
{
    for (int i = DQ; i <= DBETA; i++) {
        const gdn_tensor want = ring2_narrow(ring2_gradient(all, i), 0, first, n);
        ring2_expect_bits(ring2_gradient_names[i], ring2_gradient(part, i), &want);
    }
}

/* The same, with 256 units of the largest. */
static inline void expect_near(const gdn_prefill_backward_args *part,
                               const gdn_prefill_backward_args *all, int64_t first, int64_t n)
{
    for (int i = DQ; i <= DBETA; i++) {
        const gdn_tensor t = ring2_narrow(ring2_gradient(all, i), 0, first, n);
        const int64_t count = ring2_count(&t);
        double *want = ring2_heap((size_t)count * sizeof *want), most = 0;
        double *limit = ring2_heap((size_t)count * sizeof *limit);
        for (int64_t j = 0; j < count; j++) {
            want[j] = ring2_get(&t, j);
            most = fmax(most, fabs(want[j]));
        }
        for (int64_t j = 0; j < count; j++) limit[j] = 256 * 0x1p-24 * most;
        ring2_compare(ring2_gradient_names[i], ring2_gradient(part, i), want, limit, NULL, NULL);
    }
}

/* Returns the call with the states that gdn_prefill() saves after each `every` tokens. */
static inline gdn_prefill_backward_args with_states(const gdn_prefill_backward_args *call,
                                                    int64_t every)
{
    gdn_prefill_backward_args a = *call;
    gdn_batch *t = ring2_heap(sizeof *t), forward;
    gdn_rule_args f = gdn_rule_args_init();
    const int64_t V = a.v.size[a.v.ndim - 1], K = a.q.size[a.q.ndim - 1];
    const int64_t N = ring2_count(&a.dout) / a.dout.size[a.dout.ndim - 2] / V;
    *t = a.batch ? *a.batch : gdn_batch_init();
    a.batch = t, t->checkpoint_every = every;
    forward = *t, forward.write = GDN_WRITE_NONE;
    f.q = a.q, f.k = a.k, f.v = a.v, f.g = a.g, f.beta = a.beta;
    f.A_log = a.A_log, f.dt_bias = a.dt_bias, f.state = a.state;
    f.out = ring2_clone(&a.dout), f.batch = &forward;
    f.gate = a.gate, f.beta_kind = a.beta_kind, f.head_map = a.head_map, f.norm = a.norm;
    f.norm_eps = a.norm_eps;
    a.checkpoints = ring2_new(GDN_F32, 0, 4, N / every, a.dout.size[a.dout.ndim - 2], V, K);
    f.checkpoints = a.checkpoints;
    ring2_status(ring2_ctx(1), "gdn_prefill", gdn_prefill(ring2_ctx(1), &f), GDN_OK);
    return a;
}

static inline bool has_nan(const gdn_tensor *t)
{
    for (int64_t i = 0; i < ring2_count(t); i++)
        if (isnan(ring2_get(t, i))) return true;
    return false;
}

/* Checks that a call reads its checkpoints: a NaN in them reaches dq. */
static inline void expect_read(const gdn_prefill_backward_args *call)
{
    gdn_prefill_backward_args a = *call;
    a.checkpoints = ring2_clone(&call->checkpoints), a.dq = ring2_clone(&call->dq);
    ring2_fill_value(&a.checkpoints, NAN);
    run(ring2_ctx(1), &a);
    CHECK(has_nan(&a.dq), "checkpoints were not read");
}

/* ---- Tensor cores -------------------------------------------------------------------------- */

/* The calls in 16 bits that tensor cores take. */
enum { MOST_ROWS = 72, EMPTY = -1 };
struct wide_call {
    const char *name;
    int64_t T[MOST_ROWS];
    int Hk, H, gate, norm, map, beta;
    double strength;        /* of log gates: from -strength to 0; below 0: some forget */
    bool states, adds, f32; /* f32: gradients */
    int K, V, dtype;
};

static inline gdn_prefill_backward_args make_wide(const struct wide_call *w)
{
    gdn_prefill_backward_args a = gdn_prefill_backward_args_init();
    gdn_batch *t = ring2_heap(sizeof *t);
    int64_t cu[MOST_ROWS + 1] = { 0 }, n = 0;
    for (; n < MOST_ROWS && w->T[n]; n++) cu[n + 1] = cu[n] + (w->T[n] == EMPTY ? 0 : w->T[n]);
    const int64_t N = cu[n], H = w->H, K = w->K, V = w->V;
    const int32_t A = w->dtype, out = w->f32 ? GDN_F32 : A;
    *t = gdn_batch_init(), t->cu_seqlens = ring2_indices(GDN_I32, n + 1, cu), a.batch = t;
    a.q = ring2_new(A, 0, 3, N, w->Hk, K, 0), a.dq = ring2_new(out, 0, 3, N, w->Hk, K, 0);
    a.k = ring2_new(A, 0, 3, N, w->Hk, K, 0), a.dk = ring2_new(out, 0, 3, N, w->Hk, K, 0);
    a.v = ring2_new(A, 0, 3, N, H, V, 0), a.dv = ring2_new(out, 0, 3, N, H, V, 0);
    a.dout = ring2_new(A, 0, 3, N, H, V, 0);
    a.g = ring2_new(GDN_F32, 0, 2, N, H, 0, 0), a.dg = ring2_new(GDN_F32, 0, 2, N, H, 0, 0);
    a.beta = ring2_new(GDN_F32, 0, 2, N, H, 0, 0), a.dbeta = ring2_clone(&a.dg);
    a.dstate = ring2_new(GDN_F32, 0, 4, n, H, V, K);
    if (w->states) {
        a.state = ring2_clone(&a.dstate), a.dstate_out = ring2_clone(&a.dstate);
        ring2_fill(&a.state, -1, 1);
        ring2_fill(&a.dstate_out, -1, 1);
    }
    fill_keys(&a.q, !oracle_normalises(w->norm), false);
    fill_keys(&a.k, !oracle_normalises(w->norm), false);
    ring2_fill(&a.v, -1, 1);
    ring2_fill(&a.dout, -1, 1);
    a.gate = w->gate, a.norm = w->norm, a.head_map = w->map, a.beta_kind = w->beta;
    if (w->gate == GDN_GATE_RAW) {
        a.A_log = ring2_new(GDN_F32, 0, 1, H, 0, 0, 0), a.dA_log = ring2_clone(&a.A_log);
        a.dt_bias = ring2_new(GDN_F32, 0, 1, H, 0, 0, 0), a.ddt_bias = ring2_clone(&a.dt_bias);
        ring2_fill(&a.A_log, -1, 1);
        ring2_fill(&a.dt_bias, -1, 1);
        ring2_fill(&a.g, -4, 1);
    } else {
        ring2_fill(&a.g, -fabs(w->strength), 0);
    }
    for (int64_t i = 0; w->strength < 0 && i < ring2_count(&a.g); i++)
        if (ring2_below(20) == 0) ring2_set(&a.g, i, -INFINITY);
    if (!oracle_squashes(w->beta))
        for (int64_t i = 0; i < ring2_count(&a.beta); i++)
            ring2_set(&a.beta, i, ring2_below(8) ? ring2_uniform(0, 1) : 0);
    else
        ring2_fill(&a.beta, -3, 3);
    if (w->adds) a.flags = GDN_ACCUMULATE;
    for (int i = 0; i < N_GRADIENTS; i++)
        if (ring2_gradient(&a, i)->data) ring2_fill(ring2_gradient(&a, i), -1, 1);
    return a;
}

enum { RAW_G = GDN_GATE_RAW, LOG_G = GDN_GATE_LOG, L2 = GDN_NORM_L2 };
enum { B16 = GDN_BF16, H16 = GDN_F16 };

#endif
