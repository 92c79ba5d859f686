/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of a form for gradients: the first form without a reason against the call. */
#ifndef GDN_CUDA_BACKWARD_SELECT_H
#define GDN_CUDA_BACKWARD_SELECT_H

#include "cuda/backward/args.h"
#include "cuda/driver/launch.h"

/* Forms for Gated DeltaNet: Hopper's products, mma.sync, float32. Forms for the family: chunks by
 * mma.sync, float32. */
enum gdn_backward_form {
    GDN_BACKWARD_SM90,
    GDN_BACKWARD_PORTABLE,
    GDN_BACKWARD_GENERAL,
    GDN_BACKWARD_CHUNKS,
    GDN_BACKWARD_CHANNELS
};

enum gdn_backward_form gdn_cuda_backward_form(const gdn_ctx *ctx, const struct gdn_cu_backward *a);

/* Returns true if one kernel of Hopper's form can have the walk in reverse and the gradients. The
 * plan decides whether it does, because two kernels may take less time. */
bool gdn_cuda_backward_can_fuse(const gdn_ctx *ctx, const struct gdn_cu_backward *a);

/* Logs the form, and why the forms before it do not take the call. */
void gdn_cuda_backward_log(gdn_ctx *ctx, const struct gdn_cu_backward *a,
                           enum gdn_backward_form form);

#endif
