/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of cuBLAS that cuda/driver/blas.c makes, beside the driver of fake_cuda.c. They compute
 * nothing. */
#include <stddef.h>

#define FAKE(name, ...)                                           \
    __attribute__((visibility("default"))) int name(__VA_ARGS__); \
    int name(__VA_ARGS__)

typedef const void *in;

FAKE(cublasCreate_v2, void **handle)
{
    *handle = handle;
    return 0;
}
FAKE(cublasDestroy_v2, void *handle)
{
    (void)handle;
    return 0;
}
FAKE(cublasSetStream_v2, void *handle, void *stream)
{
    (void)handle, (void)stream;
    return 0;
}
FAKE(cublasSetWorkspace_v2, void *handle, void *memory, size_t bytes)
{
    (void)handle, (void)memory, (void)bytes;
    return 0;
}
FAKE(cublasSetMathMode, void *handle, int mode)
{
    (void)handle, (void)mode;
    return 0;
}
FAKE(cublasGemmEx, void *handle, int a, int b, int m, int n, int k, in alpha, in A, int A_type,
     int lda, in B, int B_type, int ldb, in beta, void *C, int C_type, int ldc, int type, int how)
{
    (void)handle, (void)a, (void)b, (void)m, (void)n, (void)k, (void)alpha, (void)A, (void)A_type;
    (void)lda, (void)B, (void)B_type, (void)ldb, (void)beta, (void)C, (void)C_type, (void)ldc;
    (void)type, (void)how;
    return 0;
}
FAKE(cublasGemmStridedBatchedEx, void *handle, int a, int b, int m, int n, int k, in alpha, in A,
     int A_type, int lda, long long A_step, in B, int B_type, int ldb, long long B_step, in beta,
     void *C, int C_type, int ldc, long long C_step, int n_matrices, int type, int how)
{
    (void)handle, (void)a, (void)b, (void)m, (void)n, (void)k, (void)alpha, (void)A, (void)A_type;
    (void)lda, (void)A_step, (void)B, (void)B_type, (void)ldb, (void)B_step, (void)beta, (void)C;
    (void)C_type, (void)ldc, (void)C_step, (void)n_matrices, (void)type, (void)how;
    return 0;
}
