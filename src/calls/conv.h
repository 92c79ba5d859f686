/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The short convolution as the CPU runs it. gdn_conv1d and gdn_block fill a struct gdn_conv;
 * gdn_conv_run() computes it.
 */
#ifndef GDN_CONV_H
#define GDN_CONV_H

#include "batch/plan.h"
#include "core/backend.h"
#include "core/ctx.h"

struct gdn_conv {
    struct gdn_rows        x, out; /* rows of D channels, one dtype; out may be x or absent */
    bool                   strided; /* heads are the steps of channels; else these are dense */
    struct gdn_conv_view   weight, bias;
    struct gdn_conv_view   from, to, checkpoints;
    struct gdn_conv_view   carry_from, carry_to; /* one slot each, for windows of a sequence */
    const struct gdn_plan *plan; /* for trees, paths and the slots of states, not its seqs */
    const struct gdn_seq  *seqs;
    int64_t                n_seqs, D;
    int                    W;
    bool                   silu;
};

/* A checked call of gdn_conv1d. */
struct gdn_conv_call {
    struct gdn_call       base;
    gdn_conv1d_args       args;
    struct gdn_tokens     tokens;
    struct gdn_plan       plan;
    struct gdn_plan_pools pools;
    struct gdn_conv       conv;
    size_t                plan_bytes;
};

/* Checks the shape of the weights, [D][W] or [D][1][W], and fills W, weight and bias. conv->D is
 * set already. */
gdn_status gdn_conv_weights(gdn_ctx *ctx, const gdn_tensor *weight, const char *weight_name,
                            const gdn_tensor *bias, struct gdn_conv *conv);

/* Checks the shape of a state tensor, [P][D][S], S >= W - 1, and makes it a view; absent: data
 * NULL. */
gdn_status gdn_conv_state_view(gdn_ctx *ctx, const gdn_tensor *t, const char *name,
                               const struct gdn_conv *conv, struct gdn_conv_view *view);

/*
 * Bytes per thread, at most 64 KiB, or 128 with more than 8 taps; scratch is 64-byte aligned, that
 * much for every thread.
 * A sequence's state after its n_valid tokens goes to `to` (or carry_to): as many inputs as
 * the view is long, those before the first token from `from` (or carry_from), and zero where
 * that has none. So a carry must be as long as the pool that it will be written to.
 */
size_t gdn_conv_scratch(const struct gdn_conv *conv);
void   gdn_conv_run(gdn_ctx *ctx, const struct gdn_conv *conv, void *scratch);

#endif
