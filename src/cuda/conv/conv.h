/* SPDX-License-Identifier: Apache-2.0 */
/* The convolution on a device: what other families may call. */
#ifndef GDN_CUDA_CONV_H
#define GDN_CUDA_CONV_H

#include "calls/conv.h"
#include "cuda/conv/args.h"
#include "cuda/driver/launch.h"

/* The convolution: fills in its arguments; and the call; edges: workspace of gdn_conv1d. */
void gdn_cuda_fill_conv(struct gdn_cu_conv *to, const gdn_ctx *ctx, const struct gdn_conv *conv,
                        const struct gdn_plan *plan, const struct gdn_tokens *tokens,
                        const struct gdn_plan_pools *pools);
gdn_status gdn_cuda_conv(gdn_ctx *ctx, struct gdn_cu_conv *args, void *edges, void *stream);

#endif
