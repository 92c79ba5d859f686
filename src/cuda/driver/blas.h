/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products by cuBLAS, which the first product opens at run time: the projections of a layer,
 * and the yardstick of gdn bench.
 */
#ifndef GDN_CUDA_BLAS_H
#define GDN_CUDA_BLAS_H

#include "calls/layer_backward.h"
#include "cuda/driver/launch.h"

/* Opens cuBLAS and makes its handle, unless it is open. */
gdn_status gdn_blas_open(gdn_ctx *ctx);
void gdn_blas_close(gdn_ctx *ctx);

/* Returns the bytes of scratch with which cuBLAS can choose any algorithm, and their alignment. */
size_t gdn_blas_scratch(gdn_ctx *ctx);
enum { GDN_BLAS_ALIGN = 256 };

/* Matrices with rows `ld` elements apart. Those of a batch are `batch` apart. */
struct gdn_blas_matrix {
    const void *data;
    int32_t dtype;
    int64_t ld, batch;
};

/* n products out [n_rows][n_out] = x [n_rows][n_in] weight [n_out][n_in]^T, summed in float32. All
 * have one weight. x and weight have one dtype, and out has it or is float32. */
struct gdn_blas_projection {
    struct gdn_blas_matrix out, x, weight;
    int64_t n, n_rows, n_out, n_in;
};

/* Returns true if all sizes of the products are below 2^31, the limit of cuBLAS. */
bool gdn_blas_counts(const struct gdn_blas_projection *p);

/* Returns why cuBLAS does not compute the product; NULL: it does. */
const char *gdn_blas_why_not(const struct gdn_matrix_product *p);

/* The functions below are called between gdn_cuda_enter() and gdn_cuda_leave(). */

/* Sets the stream and the scratch of later products. scratch NULL: cuBLAS has its own. With scratch
 * of the caller, products allocate nothing, and contexts on two streams share nothing. */
gdn_status gdn_blas_begin(gdn_ctx *ctx, void *stream, void *scratch, size_t bytes);

/* gdn_blas_counts() must be true. */
gdn_status gdn_blas_project(gdn_ctx *ctx, const struct gdn_blas_projection *p);

/* gdn_blas_why_not() must be NULL. */
gdn_status gdn_blas_multiply(gdn_ctx *ctx, const struct gdn_matrix_product *p);

#endif
