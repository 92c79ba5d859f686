/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which calls of gdn_prefill the kernels of prefill_hopper.cuh take: those whose rows a tensor map
 * can describe, whatever the batch holds. Which it is follows from dtypes, head sizes and alignment
 * alone, so that the guarantees about bits hold across calls.
 */
#include <string.h>

#include "ops.h"
#include "prefill_hopper.h"
#include "tensor.h"

enum { SHARED = 232448, TILE = 64 };

/* Bytes from one to the next, of which there are n; a single one has no next. */
static uint64_t step_of(int64_t n, int64_t step) { return n > 1 ? (uint64_t)step : 16; }

static bool is_mapped(const struct gdn_rows *r, const struct gdn_cu_batch *b, int64_t n_heads)
{
    const int64_t  n_tokens = b->padded ? b->T : b->N, n_rows = b->padded ? b->B : 1;
    const uint64_t steps[]  = { step_of(n_heads, r->head), step_of(n_tokens, r->token),
                                step_of(n_rows, r->batch) };
    if (!r->data) return true;
    for (int i = 0; i < 3; i++)
        if (steps[i] % 16 || steps[i] == 0 || steps[i] >= (uint64_t)1 << 40) return false;
    return (uintptr_t)r->data % 16 == 0;
}

/* A row per form: blocks that take a sequence and head, what a chunk takes them beside the other
 * where the device is full, and the kernels. Both give the same bits. */
static const struct form {
    int                n_blocks, cost;
    enum gdn_kernel_id bf16, f16;
} forms[] = { { 2, 3, GDN_CU_prefill_hopper_BF16, GDN_CU_prefill_hopper_F16 },
              { 1, 5, GDN_CU_prefill_hopper_wide_BF16, GDN_CU_prefill_hopper_wide_F16 } };

/* n sequences and heads, all of one length as far as the host knows: so many at a time. */
static int64_t cost_of(const gdn_ctx *ctx, const struct form *f, int64_t n)
{
    const int64_t most = ctx->cuda->sm_count / f->n_blocks, at_once = most ? most : 1;
    return (n + at_once - 1) / at_once * f->cost;
}
static const struct form *find_form(const gdn_ctx *ctx, int64_t n)
{
    return cost_of(ctx, &forms[1], n) < cost_of(ctx, &forms[0], n) ? &forms[1] : &forms[0];
}
static enum gdn_kernel_id kernel_of(const struct form *f, const struct gdn_cu_rule *r)
{
    return r->q.dtype == GDN_BF16 ? f->bf16 : f->f16;
}

bool gdn_cuda_prefill_hopper_takes(const gdn_ctx *ctx, const struct gdn_cu_rule *r)
{
    const struct gdn_cu_batch *b = &r->batch;
    return r->q.dtype != GDN_F32 && ctx->cuda->kernels[kernel_of(forms, r)] &&
           ctx->cuda->shared_most >= SHARED && r->K % 8 == 0 && r->K <= 2 * TILE &&
           r->V % 8 == 0 && r->V <= 2 * TILE && b->N > 0 && b->N <= INT32_MAX - TILE &&
           is_mapped(&r->q, b, r->Hq) && is_mapped(&r->k, b, r->Hk) &&
           is_mapped(&r->v, b, r->Hv) && is_mapped(&r->out, b, r->H);
}

/* The map of tensor i; encoded where it is not that of the call before: callers come back with the
 * same memory, and the driver takes longer than all the rest here. */
static gdn_status find_map(gdn_ctx *ctx, const char *name, int i, const struct gdn_rows *r,
                           const struct gdn_cu_batch *b, int64_t n_heads, int64_t n_columns,
                           struct gdn_cu_map *map)
{
    struct gdn_cuda_map *known = &ctx->cuda->maps[i];
    const int64_t        rows = b->padded ? b->B : 1, tokens = b->padded ? b->T : b->N;
    const uint64_t       of[] = { (uintptr_t)r->data,        (uint64_t)r->dtype,
                                  (uint64_t)n_columns,       (uint64_t)n_heads,
                                  (uint64_t)tokens,          (uint64_t)rows,
                                  step_of(n_heads, r->head), step_of(tokens, r->token),
                                  step_of(rows, r->batch) };
    const uint32_t       box[] = { TILE, 1, TILE, 1 }, each[] = { 1, 1, 1, 1 };
    bool                 pushed;
    _Static_assert(sizeof of == sizeof known->of, "a map is of these");
    if (!r->data) return GDN_OK;
    if (memcmp(known->of, of, sizeof of) != 0) {
        TRY(gdn_cuda_enter(ctx, &pushed)); /* maps are made for the context that is current */
        const gdn_cu_result result = ctx->cuda->api.cuTensorMapEncodeTiled(
            map, r->dtype == GDN_BF16 ? GDN_CU_MAP_BF16 : GDN_CU_MAP_F16, 4, r->data, of + 2,
            of + 6, box, each, 0, GDN_CU_MAP_SWIZZLE_128B, GDN_CU_MAP_L2_256B, 0);
        gdn_cuda_leave(ctx, pushed);
        if (result != 0) return gdn_cuda_fail(ctx, result, "cuTensorMapEncodeTiled", name);
        known->map = *map;
        memcpy(known->of, of, sizeof of);
    }
    *map = known->map;
    return GDN_OK;
}

gdn_status gdn_cuda_prefill_hopper(gdn_ctx *ctx, const struct gdn_cu_rule *r, int by_number,
                                   enum gdn_kernel_id *ran, void *stream)
{
    const struct gdn_cu_batch   *b = &r->batch;
    struct gdn_cu_prefill_hopper p = { .rule = *r, .by_number = by_number };
    TRY(find_map(ctx, "q", 0, &r->q, b, r->Hq, r->K, &p.q));
    TRY(find_map(ctx, "k", 1, &r->k, b, r->Hk, r->K, &p.k));
    TRY(find_map(ctx, "v", 2, &r->v, b, r->Hv, r->V, &p.v));
    TRY(find_map(ctx, "out", 3, &r->out, b, r->H, r->V, &p.out));
    const int64_t           n_rows = b->B + (r->out.data && b->cu_seqlens.data);
    const struct form      *f      = find_form(ctx, b->B * r->H);
    const struct gdn_cuda_call call = {
        .kernel = kernel_of(f, r),
        .grid   = { f->n_blocks * r->H * n_rows, 1, 1 },
        .shared_bytes = SHARED,
        .stream       = stream,
        .args         = &p,
    };
    *ran = call.kernel;
    return gdn_cuda_launch(ctx, &call);
}
