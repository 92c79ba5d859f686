/* SPDX-License-Identifier: Apache-2.0 */
/* A device that need not be there: its driver launches nothing. */
#include <stdio.h>
#include <string.h>

#include "core/backend.h"
#include "core/tensor_check.h"
#include "cuda/driver/launch.h"
#include "cuda/prefill/sm90/cache.h"
#include "internal/internal.h"

static gdn_cu_result no_current(gdn_cu_context *context)
{
    *context = NULL; /* as the context's own, so none is pushed */
    return 0;
}

static gdn_cu_result no_launch(const struct gdn_cu_config *config, gdn_cu_kernel kernel,
                               void **parameters, void **extra)
{
    (void)config, (void)kernel, (void)parameters, (void)extra;
    return 0;
}

static gdn_cu_result no_map(void *map, int dtype, uint32_t rank, void *data, const uint64_t *sizes,
                            const uint64_t *steps, const uint32_t *box, const uint32_t *each,
                            int interleave, int swizzle, int l2, int fill)
{
    (void)map, (void)dtype, (void)rank, (void)data, (void)sizes, (void)steps, (void)box;
    (void)each, (void)interleave, (void)swizzle, (void)l2, (void)fill;
    return 0;
}

static gdn_cu_result no_error(gdn_cu_result result, const char **text)
{
    (void)result;
    *text = "none";
    return 0;
}

static void fill_driver(struct gdn_cu_api *api)
{
    api->cuCtxGetCurrent = no_current;
    api->cuLaunchKernelEx = no_launch;
    api->cuTensorMapEncodeTiled = no_map;
    api->cuGetErrorName = no_error;
    api->cuGetErrorString = no_error;
}

/* Marks all images with code for the chip as loaded, and their kernels. */
static void fill_kernels(gdn_ctx *ctx)
{
    struct gdn_cuda *c = ctx->cuda;
    const bool hopper = c->capability == GDN_CHIPS_sm_90a && !gdn_cuda_is_off(ctx, GDN_CUDA_SM90);
    c->chips = hopper ? GDN_CHIPS_sm_90a : GDN_CHIPS_all;
    for (int i = 0; i < GDN_N_IMAGES; i++)
        if (!gdn_images[i].only || gdn_images[i].only == c->chips) c->libraries[i] = c;
    for (int i = 0; i < GDN_N_KERNELS; i++)
        c->kernels[i] = c->libraries[gdn_cuda_kernel_image((enum gdn_kernel_id)i)];
}

gdn_status gdn_internal_imagine(gdn_ctx *ctx, const char *name, int capability, int sm_count,
                                int shared_most)
{
    const gdn_options *o = &ctx->options;
    struct gdn_cuda *c = o->alloc(o->alloc_user, sizeof *c, 64);
    struct gdn_cuda_sm90 *sm90 = o->alloc(o->alloc_user, sizeof *sm90, 64);
    if (!c || !sm90) {
        if (c) o->release(o->alloc_user, c);
        if (sm90) o->release(o->alloc_user, sm90);
        return gdn_fail(ctx, GDN_E_MEMORY, "device: no memory for %zu bytes",
                        sizeof *c + sizeof *sm90);
    }
    memset(c, 0, sizeof *c);
    memset(sm90, 0, sizeof *sm90);
    c->sm90 = sm90;
    c->capability = capability;
    c->sm_count = sm_count;
    c->shared_most = shared_most;
    snprintf(c->name, sizeof c->name, "%s", name);
    snprintf(c->isa, sizeof c->isa, "sm_%d", capability);
    fill_driver(&c->api);
    ctx->cuda = c;
    ctx->backend = &gdn_cuda_backend;
    TRY(gdn_cuda_read_switches(ctx));
    fill_kernels(ctx);
    return GDN_OK;
}

const char *gdn_internal_choice(const gdn_ctx *ctx, int i)
{
    for (int c = 0; ctx->cuda && c < GDN_CUDA_N_CHOICES; c++)
        if (*ctx->cuda->choices[c] && i-- == 0) return ctx->cuda->choices[c];
    return NULL;
}
