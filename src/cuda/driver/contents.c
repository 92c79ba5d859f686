/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/driver/contents.h"

#include "core/tensor_check.h"
#include "cuda/driver/launch.h"

/* The extent of a view: from low to high, in elements from its data. */
struct span {
    int64_t low, high;
};

static struct span span_of(const gdn_tensor *t)
{
    struct span s = { 0, 0 };
    if (!t->data || gdn_count(t) == 0) return s;
    for (int i = 0; i < t->ndim; i++) {
        const int64_t reach = (t->size[i] - 1) * t->stride[i];
        *(reach < 0 ? &s.low : &s.high) += reach;
    }
    s.high++;
    return s;
}

static size_t bytes_of(const gdn_tensor *t)
{
    const struct span s = span_of(t);
    return gdn_align64((size_t)(s.high - s.low) * gdn_dtype_bytes(t->dtype));
}

static gdn_status copy_arrays(gdn_ctx *ctx, void *stream, gdn_tensor *const *arrays, int n,
                              char *at)
{
    GDN_CU(ctx, "before contents are checked", cuStreamSynchronize, (stream));
    for (int i = 0; i < n; i++) {
        gdn_tensor *t = arrays[i];
        const struct span s = span_of(t);
        const int64_t size = (int64_t)gdn_dtype_bytes(t->dtype);
        const size_t bytes = bytes_of(t);
        if (!t->data) continue;
        if (s.high > s.low)
            GDN_CU(ctx, "contents to be checked", cuMemcpyDtoH,
                   (at, (gdn_cu_memory)(uintptr_t)((char *)t->data + s.low * size),
                    (size_t)((s.high - s.low) * size)));
        t->data = at - s.low * size;
        at += bytes;
    }
    return GDN_OK;
}

/* Sets *captured to whether a graph is captured from the stream. Then nothing may wait for the
 * stream. */
static gdn_status is_captured(gdn_ctx *ctx, void *stream, bool *captured)
{
    int status = 0;
    GDN_CU(ctx, "whether a graph is captured", cuStreamIsCapturing, (stream, &status));
    *captured = status != 0;
    return GDN_OK;
}

static gdn_status open_current(gdn_ctx *ctx, void *stream, gdn_tensor *const *arrays, int n,
                               size_t extra, void **memory)
{
    const gdn_options *o = &ctx->options;
    size_t bytes = gdn_align64(extra + 1);
    bool captured = false;
    TRY(is_captured(ctx, stream, &captured));
    if (captured) {
        gdn_log_line(ctx, "contents: not checked, a graph is being captured from the stream");
        return GDN_OK;
    }
    for (int i = 0; i < n; i++) bytes += bytes_of(arrays[i]);
    *memory = o->alloc(o->alloc_user, bytes, 64);
    if (!*memory) return gdn_fail(ctx, GDN_E_MEMORY, "contents: no memory for %zu bytes", bytes);
    const gdn_status status =
        copy_arrays(ctx, stream, arrays, n, (char *)*memory + gdn_align64(extra + 1));
    if (status != GDN_OK) gdn_cuda_contents_close(ctx, *memory);
    return status;
}

static bool checks(const gdn_ctx *ctx) { return ctx->options.flags & GDN_CTX_CHECK_CONTENTS; }

gdn_status gdn_cuda_contents_open(gdn_ctx *ctx, void *stream, gdn_tensor *const *arrays, int n,
                                  size_t extra, void **memory)
{
    bool pushed;
    *memory = NULL;
    if (!checks(ctx)) return GDN_OK;
    TRY(gdn_cuda_enter(ctx, &pushed));
    const gdn_status status = open_current(ctx, stream, arrays, n, extra, memory);
    gdn_cuda_leave(ctx, pushed);
    return status;
}

void gdn_cuda_contents_close(gdn_ctx *ctx, void *memory)
{
    if (memory) ctx->options.release(ctx->options.alloc_user, memory);
}

static gdn_status check_copies(gdn_ctx *ctx, const struct gdn_plan *plan,
                               const struct gdn_tokens *tokens, const struct gdn_plan_pools *pools,
                               void *stream)
{
    struct gdn_plan own = *plan;
    gdn_tensor *arrays[GDN_BATCH_ARRAYS];
    void *memory;
    for (int i = 0; i < GDN_BATCH_ARRAYS; i++) arrays[i] = &own.batch.cu_seqlens + i;
    TRY(gdn_cuda_contents_open(ctx, stream, arrays, GDN_BATCH_ARRAYS, gdn_plan_bytes(plan, tokens),
                               &memory));
    if (!memory) return GDN_OK;
    const gdn_status status = gdn_plan_batch(ctx, tokens, pools, memory, &own);
    gdn_cuda_contents_close(ctx, memory);
    return status;
}

gdn_status gdn_cuda_check_batch(gdn_ctx *ctx, const struct gdn_plan *plan,
                                const struct gdn_tokens *tokens, const struct gdn_plan_pools *pools,
                                void *stream)
{
    return checks(ctx) ? check_copies(ctx, plan, tokens, pools, stream) : GDN_OK;
}
