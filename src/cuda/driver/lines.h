/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors as lines (driver/args.h), from their descriptors. */
#ifndef GDN_CUDA_LINES_H
#define GDN_CUDA_LINES_H

#include "cuda/driver/args.h"

/* Describes n tensors of one shape as lines with common leading dimensions. The first tensor
 * must be given; absent ones are left out. */
void gdn_cuda_lines(const gdn_tensor *const *tensors, int n, struct gdn_cu_leads *leads,
                    struct gdn_cu_lines *const *lines);

/* Returns a vector as one line. Its elements lie side by side if their step is 1. */
struct gdn_cu_lines gdn_cuda_line(const gdn_tensor *vector);

/* Returns the bytes of lines that may move at once, see gdn_cu_lines. The memory is at `data`, with
 * these steps in bytes, and lines have n elements. */
int32_t gdn_cuda_access(const void *data, int32_t dtype, const int64_t *steps, int n_steps,
                        int64_t n);

#endif
