/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of the family (gdn.h), of HK heads of q and k and HV state heads, beside float64. */
#ifndef FAMILY_JUDGE_H
#define FAMILY_JUDGE_H

#include <math.h>
#include <string.h>

#include "oracle.h"
#include "oracle_family.h"
#include "ring2.h"

enum { HK = 2, HV = 4 };

static inline void run(const gdn_rule_args *a, bool decode)
{
    gdn_ctx *ctx = ring2_ctx(1);
    ring2_call_begin();
    ring2_may_write(&a->out);
    ring2_may_write(&a->state);
    if (a->checkpoints.data) ring2_may_write(&a->checkpoints);
    ring2_status(ctx, "call", decode ? gdn_decode(ctx, a) : gdn_prefill(ctx, a), GDN_OK);
    ring2_call_end();
}

/* ---- Beside float64 ------------------------------------------------------------------------ */

/* Element [row][head][x] of a tensor that may have no channels, or be absent. */
static inline double at(const gdn_tensor *t, int64_t row, int64_t h, int64_t H, int64_t x,
                        int64_t n, double absent)
{
    if (!t->data) return absent;
    return ring2_get(t, t->ndim == 3 ? (row * H + h) * n + x : row * H + h);
}

/* Rows [first, first + n) of one head. */
static inline double *rows_of(const gdn_tensor *t, int64_t first, int64_t n, int64_t h, int64_t H,
                              int64_t size, double absent)
{
    double *x = ring2_heap((size_t)(n * size + 1) * sizeof *x);
    for (int64_t i = 0; i < n * size; i++)
        x[i] = at(t, first + i / size, h, H, i % size, size, absent);
    return x;
}

static inline double *normalised(double *x, int64_t n, int64_t K)
{
    for (int64_t i = 0; i < n; i++) oracle_l2norm(x + i * K, x + i * K, K, GDN_NORM_L2, 1e-6);
    return x;
}

/* Head h of sequence s, from a call's inputs. */
static inline struct oracle_family head_of(const gdn_rule_args *a, int s, int64_t h)
{
    const int64_t K = a->q.size[2], V = a->v.size[2], u = a->updates, hk = h / (HV / HK);
    const int64_t first = (int64_t)ring2_get(&a->batch->cu_seqlens, s);
    const int64_t T = (int64_t)ring2_get(&a->batch->cu_seqlens, s + 1) - first;
    const bool apart = a->write_gate.data || a->beta.ndim == 3; /* w is not beta */
    const gdn_tensor *write = apart ? &a->write_gate : &a->beta;
    struct oracle_family r = { .T = T, .K = (int)K, .V = (int)V, .n = (int)u };
    r.scale = 1 / sqrt((double)K);
    r.q = normalised(rows_of(&a->q, first, T, hk, HK, K, 0), T, K);
    r.k = normalised(rows_of(&a->k, first * u, T * u, hk, HK, K, 0), T * u, K);
    r.v = rows_of(&a->v, first * u, T * u, h, HV, V, 0);
    r.g = rows_of(&a->g, first, T, h, HV, K, 0);
    r.b = rows_of(&a->beta, first * u, T * u, h, HV, K, 1);
    r.w = rows_of(write, first * u, T * u, h, HV, V, 1);
    r.o = ring2_heap((size_t)(T * V + 1) * sizeof *r.o);
    r.state = ring2_heap((size_t)(K * V) * sizeof *r.state);
    for (int64_t i = 0; i < K * V; i++) r.state[i] = ring2_get(&a->state, (s * HV + h) * K * V + i);
    return r;
}

static inline double *zeros(const gdn_tensor *t)
{
    return ring2_heap((size_t)(ring2_count(t) + 1) * sizeof(double));
}

/* Compares with the limits of the vectors: a share of the root mean square. */
static inline void near(const char *what, const gdn_tensor *got, const double *want, double share)
{
    const int64_t n = ring2_count(got);
    double sum = 0, worst = 0;
    for (int64_t i = 0; i < n; i++) {
        const double error = fabs(ring2_get(got, i) - want[i]);
        sum += want[i] * want[i];
        worst = error <= worst ? worst : isnan(error) ? (double)INFINITY : error;
    }
    const double limit = share * sqrt(sum / (double)n) + 1e-6;
    CHECK(worst <= limit, "%s: off by %g, limit %g", what, worst, limit);
}

#endif
