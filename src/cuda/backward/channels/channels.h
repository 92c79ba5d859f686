/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of the family on a device. */
#ifndef GDN_CUDA_BACKWARD_CHANNELS_H
#define GDN_CUDA_BACKWARD_CHANNELS_H

#include "calls/backward.h"
#include "cuda/backward/channels/args.h"
#include "cuda/driver/launch.h"

/* plan: plans a call and returns the bytes of its workspace. run: runs it. base: the arguments that
 * all forms have. chunks: the call goes by chunks on tensor cores, else token by token. */
size_t gdn_cuda_channels_plan(const gdn_ctx *ctx, const struct gdn_backward *work,
                              const struct gdn_cu_backward *base, bool chunks,
                              struct gdn_cu_backward_channels *args);
gdn_status gdn_cuda_channels_run(gdn_ctx *ctx, struct gdn_cu_backward_channels *args, void *memory,
                                 void *stream);

#endif
