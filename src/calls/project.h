/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers: rows of float32 times a weight [out][in] as it is stored. */
#ifndef GDN_PROJECT_H
#define GDN_PROJECT_H

#include "core/ctx.h"

/* Rows [row, row + n) of a weight make columns [column, column + n) of the result. */
struct gdn_segment {
    const gdn_tensor *weight; /* [out][in], dense */
    int64_t           row, n, column;
};

/* Returns scratch bytes of one thread. */
size_t gdn_project_scratch(void);

/* Computes y[t][column + i] = sum_k x[t][k] weight[row + i][k] for every segment; x [n_tokens][in]
 * and y float32. An element's bits depend on its two rows alone. */
void gdn_project(gdn_ctx *ctx, float *y, int64_t ld_y, const float *x, int64_t n_tokens, int64_t in,
                 const struct gdn_segment *segments, int n_segments, void *scratch);

#endif
