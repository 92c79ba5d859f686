/* SPDX-License-Identifier: Apache-2.0 */
#include "blas.h"

#include <dlfcn.h>

enum { TRANSPOSED = 1, AS_IT_IS = 0, COMPUTE_F32 = 68, ALGO_DEFAULT = -1 };

/* cudaDataType_t of a gdn_dtype */
static const int data_types[] = { [GDN_F32] = 0, [GDN_BF16] = 14, [GDN_F16] = 2 };

struct gdn_blas {
    void *library, *handle;
    int (*create)(void **);
    int (*destroy)(void *);
    int (*set_stream)(void *, void *);
    int (*gemm)(void *, int, int, int, int, int, const void *, const void *, int, int,
                const void *, int, int, const void *, void *, int, int, int, int);
};

static void *open_library(void)
{
    static const char *const names[] = { "libcublas.so.13", "libcublas.so.12", "libcublas.so" };
    void                    *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

static bool find(const struct gdn_blas *b, const char *name, void *pointer)
{
    void *symbol = dlsym(b->library, name);
    memcpy(pointer, &symbol, sizeof symbol);
    return symbol != NULL;
}

static gdn_status open_blas(gdn_ctx *ctx, struct gdn_blas *b)
{
    b->library = open_library();
    if (!b->library)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED,
                        "cuBLAS: not found, wanted libcublas.so.13 or .12 where dlopen() looks");
    if (!find(b, "cublasCreate_v2", &b->create) || !find(b, "cublasDestroy_v2", &b->destroy) ||
        !find(b, "cublasSetStream_v2", &b->set_stream) || !find(b, "cublasGemmEx", &b->gemm))
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "cuBLAS: a call is missing in this version");
    const int r = b->create(&b->handle);
    return r ? gdn_fail(ctx, GDN_E_CUDA, "cublasCreate: error %d", r) : GDN_OK;
}

gdn_status gdn_blas_open(gdn_ctx *ctx)
{
    const gdn_options *o = &ctx->options;
    bool               pushed;
    if (ctx->cuda->blas) return GDN_OK;
    struct gdn_blas *b = o->alloc(o->alloc_user, sizeof *b, 64);
    if (!b) return gdn_fail(ctx, GDN_E_MEMORY, "cuBLAS: no memory for %zu bytes", sizeof *b);
    memset(b, 0, sizeof *b);
    ctx->cuda->blas   = b;
    gdn_status status = gdn_cuda_enter(ctx, &pushed);
    if (status == GDN_OK) {
        status = open_blas(ctx, b);
        gdn_cuda_leave(ctx, pushed);
    }
    if (status != GDN_OK) gdn_blas_close(ctx);
    return status;
}

void gdn_blas_close(gdn_ctx *ctx)
{
    struct gdn_blas *b = ctx->cuda->blas;
    if (!b) return;
    if (b->handle) b->destroy(b->handle);
    if (b->library) dlclose(b->library);
    ctx->options.release(ctx->options.alloc_user, b);
    ctx->cuda->blas = NULL;
}

gdn_status gdn_blas_project(gdn_ctx *ctx, void *stream, const struct gdn_blas_matrix *out,
                            const struct gdn_blas_matrix *x, const struct gdn_blas_matrix *weight,
                            int64_t n_rows, int64_t n_out, int64_t n_in)
{
    const struct gdn_blas *b   = ctx->cuda->blas;
    const float            one = 1, zero = 0;
    union {
        const void *in;
        void       *out;
    } to = { .in = out->data };
    if (n_rows > INT32_MAX || n_out > INT32_MAX || n_in > INT32_MAX)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "projection: sizes of 2^31 and more");
    /* cuBLAS counts columns first: what it computes is out^T = weight x^T. */
    int r = b->set_stream(b->handle, stream);
    if (r == 0)
        r = b->gemm(b->handle, TRANSPOSED, AS_IT_IS, (int)n_out, (int)n_rows, (int)n_in, &one,
                    weight->data, data_types[weight->dtype], (int)weight->ld, x->data,
                    data_types[x->dtype], (int)x->ld, &zero, to.out, data_types[out->dtype],
                    (int)out->ld, COMPUTE_F32, ALGO_DEFAULT);
    return r ? gdn_fail(ctx, GDN_E_CUDA, "cublasGemmEx: error %d", r) : GDN_OK;
}
