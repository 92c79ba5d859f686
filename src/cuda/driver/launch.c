/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/driver/launch.h"

#include <stdio.h>

#include "core/tensor_check.h"
#include "cuda/driver/blas.h"
#include "cuda/driver/load.h"
#include "cuda/driver/shared_bytes.h"

#define TEXT(x) #x
#define TEXT_OF(name) TEXT(name)

static const struct kernel_row {
    const char *name;
    enum gdn_image_id image;
    int threads, shared_bytes; /* shared_bytes: dynamic, at most */
} rows[GDN_N_KERNELS + 1] = {
#define GDN_KERNEL(image, threads, shared, ...) \
    { TEXT_OF(GDN_CU_JOIN(gdn, __VA_ARGS__)), GDN_IMAGE_##image, threads, shared },
#include "cuda/driver/kernels.def"
    [GDN_CU_cublas] = { .name = "cublas" },
};

const char *gdn_cuda_kernel_name(enum gdn_kernel_id kernel) { return rows[kernel].name; }

enum gdn_image_id gdn_cuda_kernel_image(enum gdn_kernel_id kernel) { return rows[kernel].image; }

int gdn_cuda_kernel_threads(enum gdn_kernel_id kernel) { return rows[kernel].threads; }

int gdn_cuda_kernel_shared(enum gdn_kernel_id kernel) { return rows[kernel].shared_bytes; }

bool gdn_cuda_has_kernel(const gdn_ctx *ctx, enum gdn_kernel_id kernel)
{
    return gdn_cuda_has_image(ctx->cuda, rows[kernel].image);
}

/* ---- The driver ---------------------------------------------------------------------------- */

gdn_status gdn_cuda_fail(gdn_ctx *ctx, gdn_cu_result result, const char *call, const char *what)
{
    const struct gdn_cu_api *api = &ctx->cuda->api;
    const char *name = NULL, *text = NULL;
    api->cuGetErrorName(result, &name);
    api->cuGetErrorString(result, &text);
    return gdn_fail(ctx, GDN_E_CUDA, "%s: %s (%s), %s", call, name ? name : "an unknown error",
                    text ? text : "no text", what);
}

/* ---- Opening ------------------------------------------------------------------------------- */

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
    if (status == GDN_OK) status = gdn_cuda_read_families(ctx);
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

/* ---- Calls --------------------------------------------------------------------------------- */

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

/* Replaces the buffer by a larger one. cuMemFree() waits for the device, so no kernel still reads
 * the old one. */
static gdn_status grow(gdn_ctx *ctx, size_t needed)
{
    struct gdn_cuda *c = ctx->cuda;
    if (c->workspace) GDN_CU(ctx, "workspace", cuMemFree, (c->workspace));
    c->workspace = 0;
    c->workspace_bytes = 0;
    const gdn_cu_result r = c->api.cuMemAlloc(&c->workspace, needed);
    if (r != 0)
        return gdn_fail(ctx, GDN_E_MEMORY, "workspace: no device memory for %zu bytes", needed);
    c->workspace_bytes = needed;
    gdn_log_workspace(ctx, needed);
    return GDN_OK;
}

gdn_status gdn_cuda_get_workspace(gdn_ctx *ctx, void *given, size_t given_bytes, size_t needed,
                                  void **memory)
{
    struct gdn_cuda *c = ctx->cuda;
    bool pushed;
    if (given) return gdn_get_workspace(ctx, given, given_bytes, needed, memory);
    if (needed > c->workspace_bytes) {
        TRY(gdn_cuda_enter(ctx, &pushed));
        const gdn_status status = grow(ctx, needed);
        gdn_cuda_leave(ctx, pushed);
        TRY(status);
    }
    *memory = (void *)(uintptr_t)c->workspace;
    return GDN_OK;
}

static gdn_status check_call(gdn_ctx *ctx, const struct gdn_cuda_call *call)
{
    static const int64_t most[] = { INT32_MAX, 65535, 65535 };
    if (!ctx->cuda->kernels[call->kernel]) TRY(gdn_cuda_load(ctx, call->kernel));
    if (!ctx->cuda->kernels[call->kernel])
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "%s: not for this device (capability %d)",
                        rows[call->kernel].name, ctx->cuda->capability);
    for (int i = 0; i < 3; i++)
        if (call->grid[i] < 0 || call->grid[i] > most[i])
            return gdn_fail(ctx, GDN_E_UNSUPPORTED, "%s: %lld blocks in dimension %d, at most %d",
                            rows[call->kernel].name, (long long)call->grid[i], i, (int)most[i]);
    return GDN_OK;
}

gdn_status gdn_cuda_launch(gdn_ctx *ctx, const struct gdn_cuda_call *call)
{
    struct gdn_cu_attribute attributes[2];
    unsigned n = 0;
    if (call->overlaps && gdn_cuda_runs_sm_90a(ctx->cuda))
        attributes[n++] =
            (struct gdn_cu_attribute){ .id = GDN_CU_PROGRAMMATIC_STREAM, .value.flag = 1 };
    if (call->cluster > 1)
        attributes[n++] =
            (struct gdn_cu_attribute){ .id = GDN_CU_CLUSTER_DIMENSION,
                                       .value.dims = { (unsigned)call->cluster, 1, 1 } };
    struct gdn_cu_config config = {
        .block = { (unsigned)(call->n_threads ? call->n_threads : rows[call->kernel].threads), 1,
                   1 },
        .shared_bytes = (unsigned)call->shared_bytes,
        .stream = call->stream,
        .attributes = attributes,
        .n_attributes = n,
    };
    union {
        const void *in;
        void *out;
    } args = { .in = call->args };
    void *parameters[] = { args.out };
    bool pushed;

    TRY(check_call(ctx, call));
    for (int i = 0; i < 3; i++) config.grid[i] = (unsigned)call->grid[i];
    if (!call->grid[0] || !call->grid[1] || !call->grid[2]) return GDN_OK;
    TRY(gdn_cuda_enter(ctx, &pushed));
    const gdn_cu_result r = ctx->cuda->api.cuLaunchKernelEx(
        &config, ctx->cuda->kernels[call->kernel], parameters, NULL);
    gdn_cuda_leave(ctx, pushed);
    if (r != 0) return gdn_cuda_fail(ctx, r, "cuLaunchKernelEx", rows[call->kernel].name);
    return GDN_OK;
}

void gdn_cuda_ran_add(struct gdn_cuda_ran *ran, enum gdn_kernel_id kernel)
{
    for (int i = 0; i < ran->n; i++)
        if (ran->kernels[i] == kernel) return;
    if (ran->n < GDN_CUDA_MAX_RAN) ran->kernels[ran->n++] = kernel;
}

gdn_status gdn_cuda_note_all(gdn_ctx *ctx, const char *op, const enum gdn_kernel_id *kernels, int n)
{
    struct gdn_cuda_ran own = { .n = 0 }, *ran = ctx->cuda->layer ? ctx->cuda->layer : &own;
    char names[sizeof ctx->kernel];
    size_t used = 0;
    for (int i = 0; i < n; i++) gdn_cuda_ran_add(ran, kernels[i]);
    if (ran != &own) return GDN_OK;
    for (int i = 0; i < ran->n; i++) {
        const char *name = rows[ran->kernels[i]].name;
        const size_t more = strlen(name);
        if (used + more + 2 > sizeof names) break;
        if (i) names[used++] = ' ';
        memcpy(names + used, name, more);
        used += more;
    }
    names[used] = 0;
    return gdn_note_line(ctx, op, names);
}

gdn_status gdn_cuda_note(gdn_ctx *ctx, const char *op, enum gdn_kernel_id kernel)
{
    return gdn_cuda_note_all(ctx, op, &kernel, 1);
}

void gdn_cuda_log_choice(gdn_ctx *ctx, enum gdn_cuda_choice choice, const char *line)
{
    char *const last = ctx->cuda->choices[choice];
    if (!strcmp(line, last)) return;
    snprintf(last, GDN_CUDA_CHOICE, "%s", line);
    gdn_log_line(ctx, line);
}

/* ---- What kernels read --------------------------------------------------------------------- */

/* Fills in place: a copy of the struct takes time, see gdn_rows_of(). */
static void fill_array(struct gdn_cu_array *to, const gdn_tensor *t)
{
    *to = (struct gdn_cu_array){ .data = t->data };
    if (!t->data) return;
    to->dtype = t->dtype;
    for (int i = 0; i < 2 && i < t->ndim; i++) to->stride[i] = t->size[i] > 1 ? t->stride[i] : 0;
    if (t->ndim > 1) to->n_columns = t->size[1] < INT32_MAX ? (int32_t)t->size[1] : INT32_MAX;
}

struct gdn_cu_array gdn_cuda_array(const gdn_tensor *t)
{
    struct gdn_cu_array a;
    fill_array(&a, t);
    return a;
}

void gdn_cuda_fill_batch(struct gdn_cu_batch *to, const struct gdn_plan *plan,
                         const struct gdn_tokens *tokens, const struct gdn_plan_pools *pools)
{
    const gdn_batch *b = &plan->batch;
    fill_array(&to->cu_seqlens, &b->cu_seqlens);
    fill_array(&to->read_slots, &b->read_slots);
    fill_array(&to->write_slots, &b->write_slots);
    fill_array(&to->has_initial_state, &b->has_initial_state);
    fill_array(&to->num_accepted_tokens, &b->num_accepted_tokens);
    fill_array(&to->token_start, &b->token_start);
    fill_array(&to->token_count, &b->token_count);
    fill_array(&to->parents, &b->parents);
    fill_array(&to->path, &b->path);
    fill_array(&to->checkpoint_starts, &b->checkpoint_starts);
    fill_array(&to->checkpoint_positions, &b->checkpoint_positions);
    fill_array(&to->checkpoint_slots, &b->checkpoint_slots);
    to->B = plan->B;
    to->T = tokens->T;
    to->N = tokens->N;
    to->read_pool = pools->read;
    to->write_pool = pools->write;
    to->checkpoint_pool = plan->max_checkpoints ? pools->checkpoint : -1;
    to->checkpoint_every = b->checkpoint_every;
    to->sink_slot = b->sink_slot;
    to->first_slot = b->first_slot;
    to->n_checkpoints = b->checkpoint_slots.data       ? b->checkpoint_slots.size[0]
                        : b->checkpoint_positions.data ? b->checkpoint_positions.size[0]
                                                       : INT64_MAX;
    to->pad_policy = b->pad_policy;
    to->write = pools->write < 0 ? GDN_WRITE_NONE : b->write;
    to->padded = tokens->padded;
    to->pad = 0;
}
