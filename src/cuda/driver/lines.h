/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors as lines, see driver/args.h: what descriptors say of them. */
#ifndef GDN_CUDA_LINES_H
#define GDN_CUDA_LINES_H

#include "cuda/driver/args.h"

/* n tensors of one shape (those absent are left out), of which the first is there, as lines with
 * common leading dimensions. */
void gdn_cuda_lines(const gdn_tensor *const *tensors, int n, struct gdn_cu_leads *leads,
                    struct gdn_cu_lines *const *lines);

/* A vector as one line; its elements lie side by side if their step is 1. */
struct gdn_cu_lines gdn_cuda_line(const gdn_tensor *vector);

/* How much of memory at `data` with these steps (bytes) may be moved at once, see gdn_cu_lines,
 * in lines of n elements. */
int32_t gdn_cuda_access(const void *data, int32_t dtype, const int64_t *steps, int n_steps,
                        int64_t n);

#endif
