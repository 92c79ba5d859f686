/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradients of the rule as the CPU computes them: arguments resolved to rows, sequences and
 * pools. gdn_prefill_backward() fills one; gdn_backward_run() computes it.
 */
#ifndef GDN_BACKWARD_H
#define GDN_BACKWARD_H

#include "calls/rule.h"
#include "core/backend.h"
#include "gdn_train.h"

struct gdn_backward {
    struct gdn_rule      rule; /* the forward call; each head is a group of its own */
    struct gdn_rows      dout, dq, dk, dv, dg, dbeta;
    struct gdn_pool_view dstate_out, dstate, checkpoints;
    double              *sums; /* [B][H][2], of dA_log and ddt_bias; NULL: not wanted */
    int64_t              longest; /* tokens of a sequence, at most */
    int64_t              every;   /* tokens between checkpoints; 0: there are none */
    bool                 adds;    /* to what the gradients hold */

    /* Families: the heads that share a head of q, k or v, directly or by others. */
    int n_families, family_heads;
};

/* A checked call. */
struct gdn_backward_call {
    struct gdn_call           base;
    gdn_prefill_backward_args args;
    struct gdn_tokens         tokens;
    struct gdn_plan           plan;
    struct gdn_plan_pools     pools;
    struct gdn_backward       work;
    size_t                    plan_bytes, gate_bytes, sum_bytes;
};

void   gdn_backward_families(struct gdn_backward *w);
size_t gdn_backward_scratch(const struct gdn_backward *w, const struct gdn_kernels *kr);
void   gdn_backward_run(gdn_ctx *ctx, const struct gdn_backward *w, void *scratch);

/* ---- Rows: backward_rows.c ----------------------------------------------------------------- */

/* Stores n floats in a row of the dtype, or adds them to what is there. x is changed. */
void gdn_backward_store(const struct gdn_kernels *kr, void *row, int32_t dtype, bool adds, float *x,
                        int n);

/* dy, the gradient of y = x / the length of x, becomes that of x, which is a row of the dtype.
 * y: K floats of scratch. */
void gdn_backward_norm(const struct gdn_rule *r, const struct gdn_kernels *kr, const void *x,
                       int32_t dtype, float *dy, float *y);

/* Changes dg and dbeta of n tokens of one head: from the gradients of log alpha and beta to the
 * gradients of the given gates. sums (NULL: not wanted) gets the parts of A_log and dt_bias. */
void gdn_backward_gates(const struct gdn_rule *r, const struct gdn_kernels *kr,
                        const struct gdn_seq *seq, int head, int64_t t0, int n, float *dg,
                        float *dbeta, double *sums);

#endif
