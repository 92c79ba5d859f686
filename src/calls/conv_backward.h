/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_conv1d_backward as it is once checked. */
#ifndef GDN_CONV_BACKWARD_H
#define GDN_CONV_BACKWARD_H

#include "batch/plan.h"
#include "core/backend.h"
#include "core/ctx.h"
#include "gdn_train.h"

struct gdn_conv_backward {
    struct gdn_rows x, dout, dx; /* rows of D channels */
    struct gdn_conv_view weight, bias, dweight, dbias;
    struct gdn_conv_view state, dstate_out, dstate; /* [sequence][channel][S] */
    const struct gdn_seq *seqs;
    int64_t n_seqs, D;
    int W;
    bool silu, adds;
};

/* A checked call. */
struct gdn_conv_backward_call {
    struct gdn_call base;
    gdn_conv1d_backward_args args;
    struct gdn_tokens tokens;
    struct gdn_plan plan;
    struct gdn_plan_pools pools;
    struct gdn_conv_backward work;
};

#endif
