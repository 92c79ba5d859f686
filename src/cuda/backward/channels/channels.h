/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of the family on a device. */
#ifndef GDN_CUDA_BACKWARD_CHANNELS_H
#define GDN_CUDA_BACKWARD_CHANNELS_H

#include "calls/backward.h"
#include "cuda/backward/channels/args.h"
#include "cuda/driver/launch.h"

/* The call's plan and its launches, as those of a gdn_op_backend. base: what the arguments of all
 * forms have. The struct that is planned begins with one like it. chunks: by chunks on tensor
 * cores, else token by token. */
void gdn_cuda_channels_plan(const gdn_ctx *ctx, struct gdn_backward_call *call,
                            const struct gdn_cu_backward *base, bool chunks);
gdn_status gdn_cuda_channels_run(gdn_ctx *ctx, const struct gdn_backward_call *call, void *memory);

#endif
