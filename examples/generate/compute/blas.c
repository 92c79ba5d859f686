/* SPDX-License-Identifier: Apache-2.0 */
#include "compute/blas.h"

#include <string.h>

#include "program/command_line.h"
#include "program/os.h"

/* Values of cuBLAS's enumerations. */
enum {
    TRANSPOSED = 1,
    AS_IT_IS = 0,
    FLOAT32 = 0,
    COMPUTE_F32 = 68,
    ALGO_DEFAULT = -1,
    FULL_PRECISION_REDUCTION = 16,
};

static void *open_library(void)
{
    static const char *const names[] = { "libcublas.so.13", "libcublas.so.12", "libcublas.so" };
    void *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++)
        library = os_library_open(names[i]);
    return library;
}

int blas_open(struct blas *b)
{
    const struct {
        const char *name;
        void *call;
    } calls[] = {
        { "cublasCreate_v2", &b->create },
        { "cublasDestroy_v2", &b->destroy },
        { "cublasSetMathMode", &b->set_math },
        { "cublasGemmEx", &b->gemm },
    };
    memset(b, 0, sizeof *b);
    b->library = open_library();
    if (!b->library)
        return cli_bad("cuBLAS: not found, wanted libcublas.so.13 or .12 where dlopen() looks");
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        void *found = os_library_symbol(b->library, calls[i].name);
        if (!found) return cli_bad("cuBLAS: no %s in this version", calls[i].name);
        memcpy(calls[i].call, &found, sizeof found);
    }
    int r = b->create(&b->handle);
    if (!r) r = b->set_math(b->handle, FULL_PRECISION_REDUCTION);
    return r ? cli_bad("cublasCreate: error %d", r) : CLI_OK;
}

void blas_close(struct blas *b)
{
    if (b->handle) b->destroy(b->handle);
    if (b->library) os_library_close(b->library);
    memset(b, 0, sizeof *b);
}

/* cuBLAS has columns where C has rows, so w is the transposed one. */
int blas_product(const struct blas *b, const void *w, const void *x, void *y, int64_t tokens,
                 int64_t out, int64_t in)
{
    const float one = 1, zero = 0;
    const int r = b->gemm(b->handle, TRANSPOSED, AS_IT_IS, (int)out, (int)tokens, (int)in, &one, w,
                          FLOAT32, (int)in, x, FLOAT32, (int)in, &zero, y, FLOAT32, (int)out,
                          COMPUTE_F32, ALGO_DEFAULT);
    return r ? cli_bad("cublasGemmEx: error %d", r) : CLI_OK;
}
