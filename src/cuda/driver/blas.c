/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/driver/blas.h"

#include "core/os/os.h"

enum {
    TRANSPOSED = 1,
    AS_IT_IS = 0,
    COMPUTE_F32 = 68,
    ALGO_DEFAULT = -1,
    FULL_PRECISION_REDUCTION = 16, /* partial sums keep float32 */
};

/* cudaDataType_t of a gdn_dtype */
static const int data_types[] = { [GDN_F32] = 0, [GDN_BF16] = 14, [GDN_F16] = 2 };

struct gdn_blas {
    void *library, *handle;
    void *stream, *scratch; /* as last set */
    bool begun;
    int (*create)(void **);
    int (*destroy)(void *);
    int (*set_stream)(void *, void *);
    int (*set_workspace)(void *, void *, size_t);
    int (*set_math)(void *, int);
    int (*gemm)(void *, int, int, int, int, int, const void *, const void *, int, int, const void *,
                int, int, const void *, void *, int, int, int, int);
    int (*gemms)(void *, int, int, int, int, int, const void *, const void *, int, int, long long,
                 const void *, int, int, long long, const void *, void *, int, int, long long, int,
                 int, int);
};

static void *open_library(void)
{
    static const char *const names[] = { "libcublas.so.13", "libcublas.so.12", "libcublas.so" };
    void *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++)
        library = gdn_os_library_open(names[i]);
    return library;
}

static bool find(const struct gdn_blas *b, const char *name, void *pointer)
{
    void *symbol = gdn_os_library_symbol(b->library, name);
    memcpy(pointer, &symbol, sizeof symbol);
    return symbol != NULL;
}

static gdn_status open_blas(gdn_ctx *ctx, struct gdn_blas *b)
{
    b->library = open_library();
    if (!b->library)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED,
                        "cuBLAS: not found, wanted libcublas.so.13 or .12 where dlopen() looks");
    const struct {
        const char *name;
        void *call;
    } calls[] = {
        { "cublasCreate_v2", &b->create },           { "cublasDestroy_v2", &b->destroy },
        { "cublasSetStream_v2", &b->set_stream },    { "cublasSetWorkspace_v2", &b->set_workspace },
        { "cublasSetMathMode", &b->set_math },       { "cublasGemmEx", &b->gemm },
        { "cublasGemmStridedBatchedEx", &b->gemms },
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (!find(b, calls[i].name, calls[i].call))
            return gdn_fail(ctx, GDN_E_UNSUPPORTED, "cuBLAS: no %s in this version", calls[i].name);
    int r = b->create(&b->handle);
    if (r == 0) r = b->set_math(b->handle, FULL_PRECISION_REDUCTION);
    return r ? gdn_fail(ctx, GDN_E_CUDA, "cublasCreate: error %d", r) : GDN_OK;
}

gdn_status gdn_blas_open(gdn_ctx *ctx)
{
    const gdn_options *o = &ctx->options;
    bool pushed;
    if (ctx->cuda->blas) return GDN_OK;
    struct gdn_blas *b = o->alloc(o->alloc_user, sizeof *b, 64);
    if (!b) return gdn_fail(ctx, GDN_E_MEMORY, "cuBLAS: no memory for %zu bytes", sizeof *b);
    memset(b, 0, sizeof *b);
    ctx->cuda->blas = b;
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
    if (b->library) gdn_os_library_close(b->library);
    ctx->options.release(ctx->options.alloc_user, b);
    ctx->cuda->blas = NULL;
}

size_t gdn_blas_scratch(gdn_ctx *ctx)
{
    return (size_t)(ctx->cuda->capability >= 90 ? 32 : 4) << 20; /* as its manual says */
}

gdn_status gdn_blas_begin(gdn_ctx *ctx, void *stream, void *scratch, size_t bytes)
{
    struct gdn_blas *b = ctx->cuda->blas;
    if (b->begun && b->stream == stream && b->scratch == scratch) return GDN_OK;
    int r = b->set_stream(b->handle, stream);
    if (r == 0 && scratch) r = b->set_workspace(b->handle, scratch, bytes);
    b->stream = stream;
    b->scratch = scratch;
    b->begun = r == 0;
    return r ? gdn_fail(ctx, GDN_E_CUDA, "cuBLAS: error %d for the stream and its scratch", r)
             : GDN_OK;
}

bool gdn_blas_counts(const struct gdn_blas_projection *p)
{
    const int64_t sizes[] = {
        p->n, p->n_rows, p->n_out, p->n_in, p->out.ld, p->x.ld, p->weight.ld
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] > INT32_MAX) return false;
    return true;
}

/* cuBLAS wants columns first, so it computes out^T = weight x^T. */
gdn_status gdn_blas_project(gdn_ctx *ctx, const struct gdn_blas_projection *p)
{
    const struct gdn_blas *b = ctx->cuda->blas;
    const struct gdn_blas_matrix *x = &p->x, *w = &p->weight;
    const float one = 1, zero = 0;
    const int w_type = data_types[w->dtype], x_type = data_types[x->dtype];
    const int out_type = data_types[p->out.dtype];
    const int rows = (int)p->n_rows, columns = (int)p->n_out, depth = (int)p->n_in;
    const int w_ld = (int)w->ld, x_ld = (int)x->ld, out_ld = (int)p->out.ld;
    union {
        const void *in;
        void *out;
    } to = { .in = p->out.data };
    const int r =
        p->n == 1 ? b->gemm(b->handle, TRANSPOSED, AS_IT_IS, columns, rows, depth, &one, w->data,
                            w_type, w_ld, x->data, x_type, x_ld, &zero, to.out, out_type, out_ld,
                            COMPUTE_F32, ALGO_DEFAULT)
                  : b->gemms(b->handle, TRANSPOSED, AS_IT_IS, columns, rows, depth, &one, w->data,
                             w_type, w_ld, 0, x->data, x_type, x_ld, x->batch, &zero, to.out,
                             out_type, out_ld, p->out.batch, (int)p->n, COMPUTE_F32, ALGO_DEFAULT);
    return r ? gdn_fail(ctx, GDN_E_CUDA, "cublasGemmEx: error %d", r) : GDN_OK;
}

/* ---- Products of matrices in either order -------------------------------------------------- */

/* Returns the elements from one row or column to the next, whichever lies side by side. */
static int64_t ld_of(const struct gdn_matrix *m) { return m->column == 1 ? m->row : m->column; }

/* Returns true if no rows of the matrix overlap, nor columns that lie side by side. */
static bool is_apart(const struct gdn_matrix *m, int64_t rows, int64_t columns)
{
    return m->column == 1 ? m->row >= columns : m->row == 1 && m->column >= rows;
}

const char *gdn_blas_why_not(const struct gdn_matrix_product *p)
{
    const int64_t sizes[] = { p->m, p->n, p->depth, ld_of(&p->out), ld_of(&p->a), ld_of(&p->b) };
    if (p->m < 1 || p->n < 1 || p->depth < 1) return "a product is empty";
    if (p->a.dtype != p->b.dtype) return "a product has two dtypes";
    if (p->out.dtype != GDN_F32 && p->out.dtype != p->a.dtype)
        return "a gradient has another dtype than its product";
    if (!is_apart(&p->out, p->m, p->n) || !is_apart(&p->a, p->m, p->depth) ||
        !is_apart(&p->b, p->n, p->depth))
        return "rows overlap or go backwards";
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] > INT32_MAX) return "a size or stride does not fit 32 bits";
    return NULL;
}

/* Computes out^T = b a^T, columns first. */
gdn_status gdn_blas_multiply(gdn_ctx *ctx, const struct gdn_matrix_product *p)
{
    const struct gdn_blas *b = ctx->cuda->blas;
    const float one = 1, old = p->adds ? 1 : 0;
    const int r = b->gemm(b->handle, p->b.column == 1 ? TRANSPOSED : AS_IT_IS,
                          p->a.column == 1 ? AS_IT_IS : TRANSPOSED, (int)p->n, (int)p->m,
                          (int)p->depth, &one, p->b.data, data_types[p->b.dtype], (int)ld_of(&p->b),
                          p->a.data, data_types[p->a.dtype], (int)ld_of(&p->a), &old, p->out.data,
                          data_types[p->out.dtype], (int)p->out.row, COMPUTE_F32, ALGO_DEFAULT);
    return r ? gdn_fail(ctx, GDN_E_CUDA, "cublasGemmEx: error %d", r) : GDN_OK;
}
