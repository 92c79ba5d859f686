/* SPDX-License-Identifier: Apache-2.0 */
/* Rows by themselves on a device: what other families may call. */
#ifndef GDN_CUDA_ROWWISE_H
#define GDN_CUDA_ROWWISE_H

#include "calls/norm.h"
#include "cuda/driver/launch.h"
#include "cuda/rowwise/args.h"

/* Rows of a norm as kernels take them; the call fills in what depends on the kernel chosen. */
struct gdn_cu_norm gdn_cuda_norm_args(const struct gdn_norm_job *s);
/* Refuses, by the name of its tensor, gates per channel and an A_log that is absent. */
gdn_status gdn_cuda_check_gates(gdn_ctx *ctx, int64_t channels, const gdn_tensor *a,
                                const gdn_tensor *A_log);
gdn_status gdn_cuda_norm(gdn_ctx *ctx, const char *op, struct gdn_cu_norm *args, void *stream);

#endif
