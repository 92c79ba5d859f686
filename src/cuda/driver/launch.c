/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of kernels in their workspace, and the notes of what ran. */
#include "cuda/driver/launch.h"

#include <stdio.h>

#include "core/tensor_check.h"
#include "cuda/driver/load.h"

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
                        gdn_cuda_kernel_name(call->kernel), ctx->cuda->capability);
    for (int i = 0; i < 3; i++)
        if (call->grid[i] < 0 || call->grid[i] > most[i])
            return gdn_fail(ctx, GDN_E_UNSUPPORTED, "%s: %lld blocks in dimension %d, at most %d",
                            gdn_cuda_kernel_name(call->kernel), (long long)call->grid[i], i,
                            (int)most[i]);
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
        .block = { (unsigned)(call->n_threads ? call->n_threads
                                              : gdn_cuda_kernel_threads(call->kernel)),
                   1, 1 },
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
    if (r != 0)
        return gdn_cuda_fail(ctx, r, "cuLaunchKernelEx", gdn_cuda_kernel_name(call->kernel));
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
    struct gdn_cuda_ran own = { .n = 0 }, *ran = ctx->cuda->gathered ? ctx->cuda->gathered : &own;
    char names[sizeof ctx->kernel];
    size_t used = 0;
    for (int i = 0; i < n; i++) gdn_cuda_ran_add(ran, kernels[i]);
    if (ran != &own) return GDN_OK;
    for (int i = 0; i < ran->n; i++) {
        const char *name = gdn_cuda_kernel_name(ran->kernels[i]);
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

void gdn_cuda_gather(gdn_ctx *ctx, struct gdn_cuda_ran *ran)
{
    ran->n = 0;
    ran->outer = ctx->cuda->gathered;
    ctx->cuda->gathered = ran;
}

gdn_status gdn_cuda_note_gathered(gdn_ctx *ctx, const char *op, gdn_status status)
{
    const struct gdn_cuda_ran *ran = ctx->cuda->gathered;
    ctx->cuda->gathered = ran->outer;
    return status == GDN_OK ? gdn_cuda_note_all(ctx, op, ran->kernels, ran->n) : status;
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
