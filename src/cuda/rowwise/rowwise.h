/* SPDX-License-Identifier: Apache-2.0 */
/* Ops on rows (gates, norms) on a device: the functions for other areas. */
#ifndef GDN_CUDA_ROWWISE_H
#define GDN_CUDA_ROWWISE_H

#include "calls/norm.h"
#include "cuda/driver/launch.h"
#include "cuda/rowwise/args.h"

/* Returns the lanes of a line of D elements. Each has 8 elements, and they are at least as many as
 * the lines that are summed at once. */
int gdn_cuda_lanes_of(int64_t D);

/* A planned norm. */
struct gdn_cuda_norm_plan {
    int form; /* of the list in norm.c */
    struct gdn_cu_norm args;
};

/* fill: fills in what a checked call says. plan: decides the form and the lanes of plan->args. run:
 * launches. After plan, rows may move by multiples of 64 bytes. */
void gdn_cuda_fill_norm(struct gdn_cu_norm *to, const struct gdn_norm_job *job);
void gdn_cuda_norm_plan(struct gdn_cuda_norm_plan *plan);
gdn_status gdn_cuda_norm_run(gdn_ctx *ctx, const char *op, const struct gdn_cuda_norm_plan *plan,
                             void *stream);

#endif
