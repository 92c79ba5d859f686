/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_prefill_backward as it is once checked: arguments resolved to rows, sequences and pools. */
#ifndef GDN_BACKWARD_H
#define GDN_BACKWARD_H

#include "calls/rule.h"
#include "core/backend.h"
#include "gdn_train.h"

struct gdn_backward {
    struct gdn_rule rule; /* the forward call */
    struct gdn_rows dout, dq, dk, dv, dg, dbeta;
    struct gdn_pool_view dstate_out, dstate, checkpoints;
    /* In the family: the gradient of the write gate; bytes between updates, and channels. */
    struct gdn_rows dwrite;
    int64_t dk_update, dv_update, dbeta_update, dwrite_update;
    int64_t dg_channel, dbeta_channel;
    double *sums;    /* [B][H][1 + channels], of dA_log and ddt_bias; NULL: not wanted */
    int64_t longest; /* tokens of a sequence, at most */
    int64_t every;   /* tokens between checkpoints; 0: there are none */
    uint32_t window_mib;
    bool adds; /* to what the gradients hold */

    /* The CPU's: sets, the heads that share a head of q, k or v, directly or by others. */
    int n_sets, set_heads;
};

/* A checked call. */
struct gdn_backward_call {
    struct gdn_call base;
    gdn_prefill_backward_args args;
    struct gdn_tokens tokens;
    struct gdn_plan plan;
    struct gdn_plan_pools pools;
    struct gdn_backward work;
    size_t plan_bytes, gate_bytes, sum_bytes;
};

#endif
