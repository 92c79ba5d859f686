/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers: rows of float32 times a weight [out][in] as it is stored. */
#ifndef GDN_CPU_PROJECT_H
#define GDN_CPU_PROJECT_H

#include "calls/project.h"
#include "core/ctx.h"
#include "cpu/loops/kernels.h"

/* Returns scratch bytes of one thread. */
size_t gdn_project_scratch(void);

/* Computes y[t][column + i] = sum_k x[t][k] weight[row + i][k] for every segment; x [n_tokens][in]
 * and y float32. An element's bits depend on its two rows alone. */
void gdn_project(gdn_ctx *ctx, float *y, int64_t ld_y, const float *x, int64_t n_tokens, int64_t in,
                 const struct gdn_segment *segments, int n_segments, void *scratch);

#endif
