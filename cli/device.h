/* SPDX-License-Identifier: Apache-2.0 */
/* Timing on a device: events on the stream, with 256 MB written before each call so that nothing
 * starts in the L2 cache. */
#ifndef DEVICE_H
#define DEVICE_H

#include "commands/bench.h"

/* The op on host memory, and the time of its kernels alone. */
gdn_status device_timed_call(gdn_ctx *ctx, gdn_op op, const void *args, double *seconds);

/* bench_rounds() for a context of GDN_BACKEND_CUDA. The yardsticks are scaling in place and a
 * bf16 matrix product; a copy is timed too. */
int device_rounds(struct bench *b);

#endif
