/* SPDX-License-Identifier: Apache-2.0 */
/* What the library takes of cuBLAS, in float64: out^T = weight x^T, columns first. */
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

EXPORT cublasGemmStridedBatchedEx(void *, int, int, int columns, int rows, int depth, const void *,
                                  const void *weight, int w_type, int w_ld, long long w_step,
                                  const void *x, int x_type, int x_ld, long long x_step,
                                  const void *, void *out, int type, int ld, long long step,
                                  int n, int, int)
{
    for (int64_t b = 0; b < n; b++)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < columns; c++) {
                double sum = 0;
                for (int64_t i = 0; i < depth; i++)
                    sum += oracle_load(weight, dtype_of(w_type), b * w_step + c * w_ld + i) *
                           oracle_load(x, dtype_of(x_type), b * x_step + r * x_ld + i);
                oracle_store(out, dtype_of(type), b * step + r * ld + c, sum);
            }
    return 0;
}

EXPORT cublasGemmEx(void *handle, int a, int b, int columns, int rows, int depth, const void *one,
                    const void *weight, int w_type, int w_ld, const void *x, int x_type, int x_ld,
                    const void *zero, void *out, int type, int ld, int compute, int algorithm)
{
    return cublasGemmStridedBatchedEx(handle, a, b, columns, rows, depth, one, weight, w_type, w_ld,
                                      0, x, x_type, x_ld, 0, zero, out, type, ld, 0, 1, compute,
                                      algorithm);
}
