/* SPDX-License-Identifier: Apache-2.0 */
/* The short convolution of a checked call. gdn_conv1d, gdn_step and gdn_block fill one. */
#ifndef GDN_CONV_H
#define GDN_CONV_H

#include "batch/plan.h"
#include "core/backend.h"
#include "core/ctx.h"

struct gdn_conv {
    struct gdn_rows x, out; /* rows of D channels, one dtype; out may be x or absent */
    bool strided;           /* heads are the steps of channels; else these are dense */
    struct gdn_conv_view weight, bias;
    struct gdn_conv_view from, to, checkpoints;
    struct gdn_conv_view carry_from, carry_to; /* one slot: between windows of a sequence */
    const struct gdn_plan *plan;               /* has the trees, paths and slots of states */
    const struct gdn_seq *seqs;
    int64_t n_seqs, D;
    int W;
    bool silu;
};

/* A checked call of gdn_conv1d. */
struct gdn_conv_call {
    struct gdn_call base;
    gdn_conv1d_args args;
    struct gdn_tokens tokens;
    struct gdn_plan plan;
    struct gdn_plan_pools pools;
    struct gdn_conv conv;
    size_t plan_bytes;
};

/* Returns true if channels do not lie side by side. */
static inline bool gdn_is_strided(const struct gdn_rows *rows, int64_t n_channels)
{
    return rows->data && n_channels > 1 && rows->head != (int64_t)gdn_dtype_bytes(rows->dtype);
}

#endif
