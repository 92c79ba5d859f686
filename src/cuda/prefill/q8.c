/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_prefill in chunks with states of 8 bits, or without a stride of 1, see q8.cu. */
#include "batch/plan.h"
#include "core/tensor_check.h"
#include "cuda/prefill/forms.h"
#include "cuda/prefill/general.h"

enum { MOST_SLICES = 64 }; /* blocks that share the checkpoints of a sequence */

/* Returns the most checkpoints that a call can write, whatever its batch holds. */
static int64_t count_checkpoints(const struct gdn_cu_rule *r)
{
    const struct gdn_cu_batch *b = &r->batch;
    if (!gdn_cuda_prefill_apart(&r->checkpoints) || b->checkpoint_pool < 0) return 0;
    if (b->checkpoint_starts.data || b->n_checkpoints < b->N / b->checkpoint_every)
        return b->n_checkpoints;
    return b->N / b->checkpoint_every;
}

/* Returns true if chunks work on float32 states of sequences. Channels know no states by number,
 * so pools that are not apart are copied too. */
static bool has_wide_states(const struct gdn_cu_rule *r)
{
    if (r->family.is) return r->from.data || r->to.data;
    return gdn_cuda_prefill_apart(&r->from) || gdn_cuda_prefill_apart(&r->to);
}

/* The workspace: float32 states of sequences and of checkpoints, slots, memory for the chunks. */
struct rooms {
    char *states, *checkpoints, *slots, *rest;
};

static size_t lay_out(const struct gdn_cu_rule *r, size_t more, struct rooms *at, char *memory)
{
    const size_t state = (size_t)r->H * (size_t)r->K * (size_t)r->V * sizeof(float);
    const size_t B = (size_t)r->batch.B;
    const struct gdn_room rooms[] = {
        { &at->states, has_wide_states(r) ? B * state : 0 },
        { &at->checkpoints, (size_t)count_checkpoints(r) * state },
        { &at->slots, r->family.is ? B * sizeof(int64_t) : 0 },
        { &at->rest, more },
    };
    return gdn_lay_out_rooms(rooms, sizeof rooms / sizeof *rooms, memory);
}

size_t gdn_cuda_prefill_q8_bytes(const struct gdn_cu_rule *r, const struct gdn_cuda_chunks *how)
{
    struct rooms at;
    return lay_out(r, how->bytes, &at, NULL);
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

static int64_t count_parts(const struct gdn_cu_rule *r)
{
    return (r->V + GDN_PREFILL_EIGHT_COLUMNS - 1) / GDN_PREFILL_EIGHT_COLUMNS;
}

/* Launches the copies after the chunks, if there are any. */
static gdn_status store(gdn_ctx *ctx, const struct gdn_cu_prefill_q8 *a, struct gdn_cuda_ran *ran,
                        void *stream)
{
    const int64_t n = count_checkpoints(&a->rule), slices = n < 1 ? 1 : n;
    if (!a->to.data && !a->checkpoints.data) return GDN_OK;
    gdn_cuda_ran_add(ran, GDN_CU_prefill_q8_store);
    return launch(ctx, GDN_CU_prefill_q8_store, a, slices < MOST_SLICES ? slices : MOST_SLICES,
                  stream);
}

gdn_status gdn_cuda_prefill_q8(gdn_ctx *ctx, const struct gdn_cu_rule *r,
                               const struct gdn_cuda_chunks *planned, void *memory, void *stream)
{
    struct rooms at;
    struct gdn_cu_rule inner = *r;
    struct gdn_cuda_chunks how = *planned;
    struct gdn_cuda_ran ran = { .n = 0 };
    lay_out(r, how.bytes, &at, memory);
    how.memory = at.rest;
    if (gdn_cuda_prefill_apart(&r->checkpoints)) inner.batch.n_checkpoints = count_checkpoints(r);
    struct gdn_cu_prefill_q8 a = { .rule = *r };
    a.rule.batch = inner.batch;
    a.n_parts = count_parts(r);
    if (gdn_cuda_prefill_apart(&r->from))
        a.from = inner.from = gdn_cuda_dense_states(r, at.states),
        how.by_number |= GDN_PREFILL_FROM;
    if (gdn_cuda_prefill_apart(&r->to))
        a.to = inner.to = gdn_cuda_dense_states(r, at.states), how.by_number |= GDN_PREFILL_TO;
    if (gdn_cuda_prefill_apart(&r->checkpoints)) {
        a.checkpoints = inner.checkpoints = gdn_cuda_dense_states(r, at.checkpoints);
        how.by_number |= GDN_PREFILL_CHECKPOINTS;
    }
    if (a.from.data) {
        gdn_cuda_ran_add(&ran, GDN_CU_prefill_q8_load);
        TRY(launch(ctx, GDN_CU_prefill_q8_load, &a, 1, stream));
    }
    TRY(gdn_cuda_prefill_chunks(ctx, &inner, &how, &ran, stream));
    TRY(store(ctx, &a, &ran, stream));
    return gdn_cuda_note_all(ctx, "prefill", ran.kernels, ran.n);
}

/* ---- Channels -------------------------------------------------------------------------------- */

/* Replaces pools by float32 states at `at`, and their slots by numbers: the kernels of channels
 * take states by slots alone. */
static void widen(struct gdn_cu_rule *r, const struct rooms *at)
{
    struct gdn_cu_batch *b = &r->batch;
    const struct gdn_cu_rule was = *r;
    const struct gdn_cu_array none = { 0 };
    if (was.from.data) r->from = gdn_cuda_dense_states(r, at->states), b->read_pool = b->B;
    if (was.to.data) r->to = gdn_cuda_dense_states(r, at->states), b->write_pool = b->B;
    if (gdn_cuda_prefill_apart(&was.checkpoints)) {
        r->checkpoints = gdn_cuda_dense_states(r, at->checkpoints);
        b->n_checkpoints = b->checkpoint_pool = count_checkpoints(&was);
        b->checkpoint_slots = none;
    }
    b->read_slots = (struct gdn_cu_array){ .data = at->slots, .stride = { 1 }, .dtype = GDN_I64 };
    b->write_slots = b->has_initial_state = b->num_accepted_tokens = none;
    b->first_slot = 0;
    /* The sink's own row is a sequence like others here. */
    if (b->pad_policy == GDN_PAD_SINK) b->pad_policy = GDN_PAD_ZERO;
}

struct gdn_cu_rule gdn_cuda_prefill_channels_q8_rule(const struct gdn_cu_rule *r)
{
    struct gdn_cu_rule inner = *r;
    struct rooms at;
    lay_out(r, 0, &at, GDN_CUDA_NOWHERE);
    widen(&inner, &at);
    return inner;
}

size_t gdn_cuda_prefill_channels_q8_bytes(const struct gdn_cu_rule *r,
                                          const struct gdn_channels_windows *w)
{
    struct rooms at;
    return lay_out(r, gdn_cuda_prefill_channels_bytes(r, w), &at, NULL);
}

gdn_status gdn_cuda_prefill_channels_q8(gdn_ctx *ctx, const struct gdn_cu_rule *r,
                                        const struct gdn_channels_windows *w, void *memory,
                                        void *stream)
{
    struct rooms at;
    struct gdn_cu_rule inner = *r;
    struct gdn_cuda_ran ran = { .n = 0 };
    lay_out(r, gdn_cuda_prefill_channels_bytes(r, w), &at, memory);
    widen(&inner, &at);
    struct gdn_cu_prefill_q8 a = { .rule = *r,
                                   .from = inner.from,
                                   .to = inner.to,
                                   .n_parts = count_parts(r),
                                   .slots = (int64_t *)(void *)at.slots };
    if (gdn_cuda_prefill_apart(&r->checkpoints)) {
        a.checkpoints = inner.checkpoints;
        a.rule.batch.n_checkpoints = inner.batch.n_checkpoints;
    }
    gdn_cuda_ran_add(&ran, GDN_CU_prefill_q8_load);
    TRY(launch(ctx, GDN_CU_prefill_q8_load, &a, 1, stream));
    TRY(gdn_cuda_prefill_channels(ctx, &inner, w, at.rest, &ran, stream));
    TRY(store(ctx, &a, &ran, stream));
    return gdn_cuda_note_all(ctx, "prefill", ran.kernels, ran.n);
}
