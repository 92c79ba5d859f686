/* SPDX-License-Identifier: Apache-2.0 */
/* Rows scaled by a number made of their sum of squares: gdn_l2norm, gdn_rmsnorm_gated, gdn_step. */
#ifndef GDN_NORM_H
#define GDN_NORM_H

#include "batch/rowwise.h"
#include "core/backend.h"
#include "core/formulas.h"
#include "gdn_train.h"

/* weight and z may be absent. */
struct gdn_norm_job {
    gdn_tensor x, z, weight, out;
    const struct gdn_kernels *kr;
    int formula; /* gdn_norm; GDN_NO_NORM: root mean square */
    bool sigmoid;
    float eps;
    int64_t n_rows, D, rows_per_item;
};

/* A checked call of gdn_l2norm or gdn_rmsnorm_gated; of their gradients. */
struct gdn_norm_call {
    struct gdn_call base;
    struct gdn_norm_job job;
};
struct gdn_l2norm_backward {
    struct gdn_call base;
    gdn_l2norm_backward_args args;
    const struct gdn_kernels *kr;
    int64_t n_rows, D, rows_per_item;
};

struct gdn_rmsnorm_backward {
    struct gdn_call base;
    gdn_rmsnorm_gated_backward_args args;
    const struct gdn_kernels *kr;
    int64_t n_rows, D, rows, n_blocks; /* rows of a block */
    float *sums;                       /* [block][D], or NULL */
    bool sigmoid, adds;
};

/* Cuts the rows of a gradient into blocks of at least so many. */
static inline void gdn_rmsnorm_backward_cut(struct gdn_rmsnorm_backward *call, int64_t least_rows)
{
    call->rows = gdn_rows_per_block(call->n_rows, least_rows);
    call->n_blocks = (call->n_rows + call->rows - 1) / call->rows;
    if (call->args.dweight.data)
        call->base.bytes = (size_t)(call->n_blocks * call->D) * sizeof(float);
}

#endif
