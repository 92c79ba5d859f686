/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_prefill in chunks with states of 8 bits, or without a stride of 1, see q8.cu. */
#include "batch/plan.h"
#include "core/tensor_check.h"
#include "cuda/prefill/forms.h"
#include "cuda/prefill/general.h"

enum { MOST_SLICES = 64 }; /* blocks that share the checkpoints of a sequence */

/* Returns a view of dense float32 states, [H][V][K] each. */
static struct gdn_pool_view wide_view(const struct gdn_cu_rule *r, char *data)
{
    const int64_t head = (int64_t)r->K * r->V;
    return (struct gdn_pool_view){
        .data = data, .dtype = GDN_F32, .slot = r->H * head, .head = head, .ld = r->K
    };
}

/* Returns true if chunks cannot work on the pool as it lies. */
static bool is_apart(const struct gdn_pool_view *view)
{
    return view->data && (gdn_is_q8(view->dtype) || view->gap);
}

bool gdn_cuda_prefill_is_apart(const struct gdn_cu_rule *r)
{
    return is_apart(&r->from) || is_apart(&r->to) || is_apart(&r->checkpoints);
}

/* Returns the most checkpoints that a call can write, whatever its batch holds. */
static int64_t count_checkpoints(const struct gdn_cu_rule *r)
{
    const struct gdn_cu_batch *b = &r->batch;
    if (!is_apart(&r->checkpoints) || b->checkpoint_pool < 0) return 0;
    if (b->checkpoint_starts.data || b->n_checkpoints < b->N / b->checkpoint_every)
        return b->n_checkpoints;
    return b->N / b->checkpoint_every;
}

/* Lays out the workspace: float32 states of sequences and of checkpoints, then memory for the
 * chunks. */
static size_t lay_out(const struct gdn_cu_rule *r, size_t more, char **states, char **checkpoints,
                      char **rest, char *memory)
{
    const size_t state = (size_t)r->H * (size_t)r->K * (size_t)r->V * sizeof(float);
    const struct gdn_room rooms[] = {
        { states, is_apart(&r->from) || is_apart(&r->to) ? (size_t)r->batch.B * state : 0 },
        { checkpoints, (size_t)count_checkpoints(r) * state },
        { rest, more },
    };
    return gdn_lay_out_rooms(rooms, sizeof rooms / sizeof *rooms, memory);
}

size_t gdn_cuda_prefill_q8_bytes(const struct gdn_cu_rule *r, const struct gdn_cuda_chunks *how)
{
    char *states, *checkpoints, *rest;
    return lay_out(r, how->bytes, &states, &checkpoints, &rest, NULL);
}

static gdn_status launch(gdn_ctx *ctx, enum gdn_kernel_id kernel, const struct gdn_cu_prefill_q8 *a,
                         int64_t n_slices, void *stream)
{
    const struct gdn_cuda_call call = {
        .kernel = kernel,
        .grid = { a->rule.batch.B * a->rule.H * a->n_parts, n_slices, 1 },
        .stream = stream,
        .args = a,
    };
    return gdn_cuda_launch(ctx, &call);
}

gdn_status gdn_cuda_prefill_q8(gdn_ctx *ctx, const struct gdn_cu_rule *r,
                               const struct gdn_cuda_chunks *planned, void *memory, void *stream)
{
    char *states, *checkpoints, *rest;
    struct gdn_cu_rule inner = *r;
    struct gdn_cuda_chunks how = *planned;
    struct gdn_cuda_ran ran = { .n = 0 };
    lay_out(r, how.bytes, &states, &checkpoints, &rest, memory);
    how.memory = rest;
    if (is_apart(&r->checkpoints)) inner.batch.n_checkpoints = count_checkpoints(r);
    struct gdn_cu_prefill_q8 a = { .rule = *r };
    a.rule.batch = inner.batch;
    a.n_parts = (r->V + GDN_PREFILL_EIGHT_COLUMNS - 1) / GDN_PREFILL_EIGHT_COLUMNS;
    if (is_apart(&r->from))
        a.from = inner.from = wide_view(r, states), how.by_number |= GDN_PREFILL_FROM;
    if (is_apart(&r->to)) a.to = inner.to = wide_view(r, states), how.by_number |= GDN_PREFILL_TO;
    if (is_apart(&r->checkpoints)) {
        a.checkpoints = inner.checkpoints = wide_view(r, checkpoints);
        how.by_number |= GDN_PREFILL_CHECKPOINTS;
    }
    if (a.from.data) {
        gdn_cuda_ran_add(&ran, GDN_CU_prefill_q8_load);
        TRY(launch(ctx, GDN_CU_prefill_q8_load, &a, 1, stream));
    }
    TRY(gdn_cuda_prefill_chunks(ctx, &inner, &how, &ran, stream));
    if (a.to.data || a.checkpoints.data) {
        const int64_t slices = count_checkpoints(r) < 1 ? 1 : count_checkpoints(r);
        gdn_cuda_ran_add(&ran, GDN_CU_prefill_q8_store);
        TRY(launch(ctx, GDN_CU_prefill_q8_store, &a, slices < MOST_SLICES ? slices : MOST_SLICES,
                   stream));
    }
    return gdn_cuda_note_all(ctx, "prefill", ran.kernels, ran.n);
}
