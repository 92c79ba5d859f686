/* SPDX-License-Identifier: Apache-2.0 */
/* Errors of the driver, and the context that is current in a thread. */
#include "core/tensor_check.h"
#include "cuda/driver/launch.h"

gdn_status gdn_cuda_fail(gdn_ctx *ctx, gdn_cu_result result, const char *call, const char *what)
{
    const struct gdn_cu_api *api = &ctx->cuda->api;
    const char *name = NULL, *text = NULL;
    api->cuGetErrorName(result, &name);
    api->cuGetErrorString(result, &text);
    return gdn_fail(ctx, GDN_E_CUDA, "%s: %s (%s), %s", call, name ? name : "an unknown error",
                    text ? text : "no text", what);
}

gdn_status gdn_cuda_enter(gdn_ctx *ctx, bool *pushed)
{
    gdn_cu_context current = NULL;
    GDN_CU(ctx, "in a call", cuCtxGetCurrent, (&current));
    *pushed = current != ctx->cuda->context;
    if (*pushed) GDN_CU(ctx, "in a call", cuCtxPushCurrent, (ctx->cuda->context));
    return GDN_OK;
}

void gdn_cuda_leave(gdn_ctx *ctx, bool pushed)
{
    gdn_cu_context popped;
    if (pushed) ctx->cuda->api.cuCtxPopCurrent(&popped);
}
