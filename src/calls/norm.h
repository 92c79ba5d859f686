/* SPDX-License-Identifier: Apache-2.0 */
/* Rows scaled by a number made of their sum of squares: gdn_l2norm, gdn_rmsnorm_gated, gdn_step. */
#ifndef GDN_NORM_H
#define GDN_NORM_H

#include "batch/rowwise.h"

/* weight and z may be absent. */
struct gdn_norm_job {
    gdn_tensor                x, z, weight, out;
    const struct gdn_kernels *kr;
    int                       formula; /* gdn_norm; GDN_NORM_NONE: root mean square */
    bool                      sigmoid;
    float                     eps;
    int64_t                   n_rows, D, rows_per_item;
};

/* Rows [first, end). */
void gdn_norm_rows(const struct gdn_norm_job *s, int64_t first, int64_t end);

/* All of them on a device. */
struct gdn_cu_norm gdn_cuda_norm_args(const struct gdn_norm_job *s);

#endif
