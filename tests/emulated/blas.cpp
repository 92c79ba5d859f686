/* SPDX-License-Identifier: Apache-2.0 */
/* The part of cuBLAS that the library uses, in float64: out^T = weight x^T, columns first. */
#include <cstdint>

extern "C" {
#include "gdn.h"
#include "oracle.h"
}

static int dtype_of(int type) { return type == 0 ? GDN_F32 : type == 14 ? GDN_BF16 : GDN_F16; }

#define EXPORT extern "C" __attribute__((visibility("default"))) int
EXPORT cublasCreate_v2(void **handle) { return *handle = &handle, 0; }
EXPORT cublasDestroy_v2(void *) { return 0; }
EXPORT cublasSetStream_v2(void *, void *) { return 0; }
EXPORT cublasSetWorkspace_v2(void *, void *, size_t) { return 0; }
EXPORT cublasSetMathMode(void *, int) { return 0; }

/* Element i of row r, which lies side by side or across. */
static double element(const void *data, int type, int64_t ld, int64_t r, int64_t i, bool across)
{
    return oracle_load(data, dtype_of(type), across ? i * ld + r : r * ld + i);
}

static void *add(void *data, int type, long long elements)
{
    return (char *)data + elements * (type == 0 ? 4 : 2);
}

/* 1: a transposed matrix; columns first, rows of the weight lie side by side if it is. */
EXPORT cublasGemmEx(void *, int a, int b, int columns, int rows, int depth, const void *,
                    const void *weight, int w_type, int w_ld, const void *x, int x_type, int x_ld,
                    const void *beta, void *out, int type, int ld, int, int)
{
    const double old = *(const float *)beta;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++) {
            double sum = old != 0 ? old * oracle_load(out, dtype_of(type), r * ld + c) : 0;
            for (int64_t i = 0; i < depth; i++)
                sum += element(weight, w_type, w_ld, c, i, a == 0) *
                       element(x, x_type, x_ld, r, i, b == 1);
            oracle_store(out, dtype_of(type), r * ld + c, sum);
        }
    return 0;
}

EXPORT cublasGemmStridedBatchedEx(void *handle, int a, int b, int columns, int rows, int depth,
                                  const void *one, const void *weight, int w_type, int w_ld,
                                  long long w_step, const void *x, int x_type, int x_ld,
                                  long long x_step, const void *beta, void *out, int type, int ld,
                                  long long step, int n, int compute, int algorithm)
{
    for (int i = 0; i < n; i++)
        cublasGemmEx(handle, a, b, columns, rows, depth, one,
                     add(const_cast<void *>(weight), w_type, i * w_step), w_type, w_ld,
                     add(const_cast<void *>(x), x_type, i * x_step), x_type, x_ld, beta,
                     add(out, type, i * step), type, ld, compute, algorithm);
    return 0;
}
