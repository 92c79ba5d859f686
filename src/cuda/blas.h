/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products by cuBLAS, opened at run time when first asked for: the projections of a layer,
 * and the yardstick of gdn bench.
 */
#ifndef GDN_CUDA_BLAS_H
#define GDN_CUDA_BLAS_H

#include "launch.h"

/* Opens cuBLAS and makes its handle; does nothing if that was done. */
gdn_status gdn_blas_open(gdn_ctx *ctx);
void       gdn_blas_close(gdn_ctx *ctx);

/* Rows in memory, `ld` elements apart. */
struct gdn_blas_matrix {
    const void *data;
    int32_t     dtype;
    int64_t     ld;
};

/* out [n_rows][n_out] = x [n_rows][n_in] weight [n_out][n_in]^T, summed in float32. x and weight
 * have one dtype. Between gdn_cuda_enter() and gdn_cuda_leave(). */
gdn_status gdn_blas_project(gdn_ctx *ctx, void *stream, const struct gdn_blas_matrix *out,
                            const struct gdn_blas_matrix *x, const struct gdn_blas_matrix *weight,
                            int64_t n_rows, int64_t n_out, int64_t n_in);

#endif
