/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first launch of one of its kernels loads an image, so a context waits for the code of its
 * calls alone. If an image has no code for the device, the driver compiles its PTX. That takes
 * seconds, and the log has a line for each such image.
 */
#include "cuda/driver/load.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "core/tensor_check.h"

/* CUresult */
enum { NO_BINARY = 209, NOT_FOUND = 500 };

/* The least seconds of a load that the log reports. Code that needs no compiling takes less. */
static const double slow = 0.1;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

bool gdn_cuda_has_image(const struct gdn_cuda *c, enum gdn_image_id image)
{
    const struct gdn_image *i = &gdn_images[image];
    return c->libraries[image] || (i->fatbin && (!i->only || i->only == c->chips));
}

bool gdn_cuda_has_kernel(const gdn_ctx *ctx, enum gdn_kernel_id kernel)
{
    return gdn_cuda_has_image(ctx->cuda, gdn_cuda_kernel_image(kernel));
}

/* Returns true if this build has code for the device, so that it needs no PTX. Code for a chip runs
 * on later chips of the same major number; code for 90a runs on 9.0 alone. */
static bool has_own_code(int capability)
{
    const char *at = gdn_image_chips;
    char *end;
    for (long chip; (chip = strtol(at, &end, 10)) != 0; at = end) {
        const bool exact = *end == 'a';
        if (exact) end++;
        if (exact ? chip == capability : chip / 10 == capability / 10 && chip <= capability)
            return true;
    }
    return false;
}

const char *gdn_cuda_code_text(int capability)
{
    if (capability < GDN_CUDA_LEAST) return "too old: wanted 8.0";
    if (!has_own_code(capability))
        return "portable kernels, which the driver compiles when a call first needs them; untested";
    return capability == GDN_CHIPS_sm_90a ? "" : "portable kernels; untested";
}

static gdn_status fail_load(gdn_ctx *ctx, gdn_cu_result result, const char *call,
                            enum gdn_image_id image)
{
    if (result != NO_BINARY) return gdn_cuda_fail(ctx, result, call, gdn_images[image].name);
    return gdn_fail(ctx, GDN_E_UNSUPPORTED, "device: %s, this build has code for %s",
                    ctx->cuda->isa, gdn_image_chips);
}

#define LOAD(image, call, arguments)                            \
    do {                                                        \
        const gdn_cu_result r_ = ctx->cuda->api.call arguments; \
        if (r_ != 0) return fail_load(ctx, r_, #call, image);   \
    } while (0)

/* Finds a kernel and gives it as much shared memory as the device has. If the image lacks the
 * kernel, the result is NULL. */
static gdn_status find_kernel(gdn_ctx *ctx, enum gdn_kernel_id kernel, enum gdn_image_id image)
{
    struct gdn_cuda *c = ctx->cuda;
    gdn_cu_kernel found = NULL;
    const int wanted = gdn_cuda_kernel_shared(kernel);
    const int shared = wanted < c->shared_most ? wanted : c->shared_most;
    const gdn_cu_result r =
        c->api.cuLibraryGetKernel(&found, c->libraries[image], gdn_cuda_kernel_name(kernel));
    if (r == NOT_FOUND) return GDN_OK;
    if (r != 0) return fail_load(ctx, r, "cuLibraryGetKernel", image);
    if (shared)
        LOAD(image, cuKernelSetAttribute, (GDN_CU_MAX_DYNAMIC_SHARED, shared, found, c->device));
    c->kernels[kernel] = found;
    return GDN_OK;
}

static gdn_status load_image(gdn_ctx *ctx, enum gdn_image_id image)
{
    gdn_cu_library *library = &ctx->cuda->libraries[image];
    if (!*library)
        LOAD(image, cuLibraryLoadData,
             (library, gdn_images[image].fatbin, NULL, NULL, 0, NULL, NULL, 0));
    return GDN_OK;
}

static void log_slow(const gdn_ctx *ctx, enum gdn_kernel_id kernel, double seconds)
{
    const struct gdn_cuda *c = ctx->cuda;
    char line[200], why[80] = "";
    if (seconds < slow) return;
    if (c->from_ptx) snprintf(why, sizeof why, ": the driver compiled PTX, no code for %s", c->isa);
    snprintf(line, sizeof line, "device: %s took %.1f s to load%s", gdn_cuda_kernel_name(kernel),
             seconds, why);
    gdn_log_line(ctx, line);
}

static gdn_status load(gdn_ctx *ctx, enum gdn_kernel_id kernel)
{
    const enum gdn_image_id image = gdn_cuda_kernel_image(kernel);
    const double start = now();
    TRY(load_image(ctx, image));
    TRY(find_kernel(ctx, kernel, image));
    log_slow(ctx, kernel, now() - start);
    return GDN_OK;
}

gdn_status gdn_cuda_find_code(gdn_ctx *ctx)
{
    const enum gdn_kernel_id kernel = GDN_CU_yardstick_scale;
    const enum gdn_image_id image = gdn_cuda_kernel_image(kernel);
    struct gdn_cuda *c = ctx->cuda;
    int code = 0;
    if (!gdn_images[image].fatbin)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED,
                        "backend: no device code in this build (nvcc was not found)");
    TRY(load(ctx, kernel));
    if (c->kernels[kernel])
        LOAD(image, cuKernelGetAttribute,
             (&code, GDN_CU_PTX_VERSION, c->kernels[kernel], c->device));
    const bool hopper = c->capability == GDN_CHIPS_sm_90a && code == GDN_CHIPS_sm_90a;
    c->chips = hopper && !gdn_cuda_is_off(ctx, GDN_CUDA_SM90) ? GDN_CHIPS_sm_90a : GDN_CHIPS_all;
    c->from_ptx = c->capability == GDN_CHIPS_sm_90a ? !hopper : !has_own_code(c->capability);
    return GDN_OK;
}

/* Loads in relaxed mode: in that mode the driver lets this thread load while a graph is
 * captured. */
gdn_status gdn_cuda_load(gdn_ctx *ctx, enum gdn_kernel_id kernel)
{
    int mode = GDN_CU_CAPTURE_RELAXED;
    if (!gdn_cuda_has_image(ctx->cuda, gdn_cuda_kernel_image(kernel))) return GDN_OK;
    GDN_CU(ctx, "before an image is loaded", cuThreadExchangeStreamCaptureMode, (&mode));
    const gdn_status status = load(ctx, kernel);
    ctx->cuda->api.cuThreadExchangeStreamCaptureMode(&mode);
    return status;
}
