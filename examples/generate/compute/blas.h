/* SPDX-License-Identifier: Apache-2.0 */
/* Products of float32 matrices by cuBLAS, which is opened at run time. */
#ifndef BLAS_H
#define BLAS_H

#include <stdint.h>

struct blas {
    void *library, *handle;
    int (*create)(void **);
    int (*destroy)(void *);
    int (*set_math)(void *, int);
    int (*gemm)(void *, int, int, int, int, int, const void *, const void *, int, int, const void *,
                int, int, const void *, void *, int, int, int, int);
};

/* On the thread's current device. CLI_OK, or CLI_BAD after one line. */
int blas_open(struct blas *b);
void blas_close(struct blas *b); /* of a zeroed one too */

/* Enqueues y [tokens][out] = x [tokens][in] w^T, w [out][in], dense in the device's memory. */
int blas_product(const struct blas *b, const void *w, const void *x, void *y, int64_t tokens,
                 int64_t out, int64_t in);

#endif
