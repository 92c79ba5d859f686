/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the device of a context, and closes it. */
#include <stdio.h>

#include "core/tensor_check.h"
#include "cuda/driver/blas.h"
#include "cuda/driver/load.h"

static gdn_status open_device(gdn_ctx *ctx)
{
    struct gdn_cuda *c = ctx->cuda;
    int n = 0, major = 0, minor = 0;
    GDN_CU(ctx, "at start", cuInit, (0));
    GDN_CU(ctx, "at start", cuDeviceGetCount, (&n));
    if (ctx->options.device < 0 || ctx->options.device >= n)
        return gdn_fail(ctx, GDN_E_ARG, "device: %d, wanted 0 to %d", (int)ctx->options.device,
                        n - 1);
    GDN_CU(ctx, "at start", cuDeviceGet, (&c->device, ctx->options.device));
    GDN_CU(ctx, "at start", cuDeviceGetAttribute, (&major, GDN_CU_MAJOR, c->device));
    GDN_CU(ctx, "at start", cuDeviceGetAttribute, (&minor, GDN_CU_MINOR, c->device));
    GDN_CU(ctx, "at start", cuDeviceGetAttribute, (&c->sm_count, GDN_CU_SM_COUNT, c->device));
    GDN_CU(ctx, "at start", cuDeviceGetAttribute, (&c->shared_most, GDN_CU_SHARED_MOST, c->device));
    GDN_CU(ctx, "at start", cuDeviceGetName, (c->name, (int)sizeof c->name, c->device));
    c->capability = 10 * major + minor;
    snprintf(c->isa, sizeof c->isa, "sm_%d", c->capability);
    if (c->capability < GDN_CUDA_LEAST)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "device: compute capability %d.%d, wanted 8.0",
                        major, minor);
    GDN_CU(ctx, "at start", cuDevicePrimaryCtxRetain, (&c->context, c->device));
    return GDN_OK;
}

static void log_code(const gdn_ctx *ctx)
{
    const struct gdn_cuda *c = ctx->cuda;
    const char *text = gdn_cuda_code_text(c->capability);
    char line[160];
    if (!*text) return;
    snprintf(line, sizeof line, "device: %s, %s, %s", c->name, c->isa, text);
    gdn_log_line(ctx, line);
}

gdn_status gdn_cuda_create(gdn_ctx *ctx)
{
    const gdn_options *o = &ctx->options;
    const char *missing;
    ctx->cuda = o->alloc(o->alloc_user, sizeof *ctx->cuda, 64);
    if (!ctx->cuda)
        return gdn_fail(ctx, GDN_E_MEMORY, "context: no memory for %zu bytes", sizeof *ctx->cuda);
    memset(ctx->cuda, 0, sizeof *ctx->cuda);
    gdn_status status = GDN_OK;
    if (gdn_cu_open(&ctx->cuda->api, &missing) != 0)
        status = gdn_fail(ctx, GDN_E_UNSUPPORTED, "backend: no %s, wanted NVIDIA's driver %s",
                          missing, "for CUDA 12 or newer");
    if (status == GDN_OK) status = open_device(ctx);
    if (status == GDN_OK) status = gdn_cuda_read_switches(ctx);
    if (status == GDN_OK) status = gdn_cuda_find_code(ctx);
    if (status != GDN_OK)
        gdn_cuda_destroy(ctx);
    else
        log_code(ctx);
    return status;
}

void gdn_cuda_destroy(gdn_ctx *ctx)
{
    struct gdn_cuda *c = ctx->cuda;
    const gdn_options *o = &ctx->options;
    if (!c) return;
    if (c->context && c->api.cuCtxPushCurrent(c->context) == 0) {
        gdn_cu_context popped;
        gdn_blas_close(ctx);
        if (c->workspace) c->api.cuMemFree(c->workspace);
        for (int i = 0; i < GDN_N_IMAGES; i++)
            if (c->libraries[i]) c->api.cuLibraryUnload(c->libraries[i]);
        c->api.cuCtxPopCurrent(&popped);
    }
    if (c->context) c->api.cuDevicePrimaryCtxRelease(c->device);
    gdn_cu_close(&c->api);
    o->release(o->alloc_user, c);
    ctx->cuda = NULL;
}
