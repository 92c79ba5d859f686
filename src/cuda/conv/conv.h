/* SPDX-License-Identifier: Apache-2.0 */
/* The convolution on a device: the functions for other areas. */
#ifndef GDN_CUDA_CONV_H
#define GDN_CUDA_CONV_H

#include "calls/conv.h"
#include "cuda/conv/args.h"
#include "cuda/driver/launch.h"

/* A planned convolution. */
struct gdn_cuda_conv_plan {
    int form;     /* of the list in conv.c */
    size_t bytes; /* of workspace; 0 in calls of other ops */
    struct gdn_cu_conv args;
};

/* fill: fills in what a checked call says. plan: decides the form and the tiles of plan->args. run:
 * launches. edges: plan->bytes of memory; NULL if x and out are not one tensor. After plan, x and
 * out may move by multiples of 64 bytes. */
void gdn_cuda_fill_conv(struct gdn_cu_conv *to, const struct gdn_conv *conv,
                        const struct gdn_plan *plan, const struct gdn_tokens *tokens,
                        const struct gdn_plan_pools *pools);
void gdn_cuda_conv_plan(const gdn_ctx *ctx, struct gdn_cuda_conv_plan *plan);
gdn_status gdn_cuda_conv_run(gdn_ctx *ctx, struct gdn_cuda_conv_plan *plan, void *edges,
                             void *stream);

#endif
