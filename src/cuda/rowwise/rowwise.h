/* SPDX-License-Identifier: Apache-2.0 */
/* Rows by themselves on a device: what other families may call. */
#ifndef GDN_CUDA_ROWWISE_H
#define GDN_CUDA_ROWWISE_H

#include "calls/norm.h"
#include "cuda/driver/launch.h"
#include "cuda/rowwise/args.h"

/* Rows of a norm as kernels take them; the call fills in what depends on the kernel chosen. */
struct gdn_cu_norm gdn_cuda_norm_args(const struct gdn_norm_job *s);
gdn_status gdn_cuda_norm(gdn_ctx *ctx, const char *op, struct gdn_cu_norm *args, void *stream);

#endif
