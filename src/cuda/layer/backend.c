/* SPDX-License-Identifier: Apache-2.0 */
/* The backend CUDA: one row for each op, gdn_cuda_op_<name>, which the host code of an area
 * defines. */
#include <string.h>

#include "calls/op_backends.h"
#include "core/ctx.h"
#include "cuda/driver/launch.h"
#include "cuda/prefill/prefill.h"

static const struct gdn_op_backend *const ops[] = {
#define GDN_OP_ROW(NUMBER, name, args) [GDN_OP_##NUMBER] = &gdn_cuda_op_##name,
#include "calls/ops.def"
};

/* Closes the device, and releases the caches of areas. */
static void close(gdn_ctx *ctx)
{
    struct gdn_cuda_sm90 *sm90 = ctx->cuda->sm90;
    gdn_cuda_destroy(ctx);
    if (sm90) ctx->options.release(ctx->options.alloc_user, sm90);
}

static gdn_status open(gdn_ctx *ctx)
{
    struct gdn_cuda_sm90 *sm90;
    TRY(gdn_cuda_create(ctx));
    sm90 = ctx->options.alloc(ctx->options.alloc_user, sizeof *sm90, 64);
    if (!sm90) {
        close(ctx);
        return gdn_fail(ctx, GDN_E_MEMORY, "context: no memory for %zu bytes", sizeof *sm90);
    }
    memset(sm90, 0, sizeof *sm90);
    ctx->cuda->sm90 = sm90;
    return GDN_OK;
}

static const char *isa(const gdn_ctx *ctx) { return ctx->cuda->isa; }

/* ---- Copies of host memory ----------------------------------------------------------------- */

static gdn_status upload_current(gdn_ctx *ctx, const void *host, size_t bytes, void **device)
{
    gdn_cu_memory memory = 0;
    GDN_CU(ctx, "a copy of the tensors", cuMemAlloc, (&memory, bytes ? bytes : 1));
    *device = (void *)(uintptr_t)memory;
    GDN_CU(ctx, "a copy of the tensors", cuMemcpyHtoD, (memory, host, bytes));
    return GDN_OK;
}

static gdn_status upload(gdn_ctx *ctx, const void *host, size_t bytes, void **device)
{
    bool pushed;
    *device = NULL;
    TRY(gdn_cuda_enter(ctx, &pushed));
    const gdn_status status = upload_current(ctx, host, bytes, device);
    gdn_cuda_leave(ctx, pushed);
    return status;
}

static gdn_status download_current(gdn_ctx *ctx, void *host, const void *device, size_t bytes)
{
    GDN_CU(ctx, "after the call", cuCtxSynchronize, ());
    GDN_CU(ctx, "the results", cuMemcpyDtoH, (host, (gdn_cu_memory)(uintptr_t)device, bytes));
    return GDN_OK;
}

static gdn_status download(gdn_ctx *ctx, void *host, const void *device, size_t bytes)
{
    bool pushed;
    TRY(gdn_cuda_enter(ctx, &pushed));
    const gdn_status status = download_current(ctx, host, device, bytes);
    gdn_cuda_leave(ctx, pushed);
    return status;
}

static void release(gdn_ctx *ctx, void *device)
{
    bool pushed;
    if (!device || gdn_cuda_enter(ctx, &pushed) != GDN_OK) return;
    ctx->cuda->api.cuMemFree((gdn_cu_memory)(uintptr_t)device);
    gdn_cuda_leave(ctx, pushed);
}

const struct gdn_backend_table gdn_cuda_backend = {
    .name = "cuda",
    .open = open,
    .close = close,
    .isa = isa,
    .get_workspace = gdn_cuda_get_workspace,
    .upload = upload,
    .download = download,
    .release = release,
    .ops = ops,
};
