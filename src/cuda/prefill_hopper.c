/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which calls of gdn_prefill the kernels of prefill_hopper.cuh take: those whose rows a tensor map
 * can describe, whatever the batch holds. Which it is follows from dtypes, head sizes and alignment
 * alone, so that the guarantees about bits hold across calls.
 */
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

static enum gdn_kernel_id kernel_of(const struct gdn_cu_rule *r)
{
    return r->q.dtype == GDN_BF16 ? GDN_CU_prefill_hopper_BF16 : GDN_CU_prefill_hopper_F16;
}

bool gdn_cuda_prefill_hopper_takes(const gdn_ctx *ctx, const struct gdn_cu_rule *r)
{
    const struct gdn_cu_batch *b = &r->batch;
    return r->q.dtype != GDN_F32 && ctx->cuda->kernels[kernel_of(r)] &&
           ctx->cuda->shared_most >= SHARED && r->K % 8 == 0 && r->K <= 2 * TILE &&
           r->V % 8 == 0 && r->V <= 2 * TILE && b->N > 0 && b->N <= INT32_MAX - TILE &&
           is_mapped(&r->q, b, r->Hq) && is_mapped(&r->k, b, r->Hk) &&
           is_mapped(&r->v, b, r->Hv) && is_mapped(&r->out, b, r->H);
}

static gdn_status make_map(gdn_ctx *ctx, const char *name, const struct gdn_rows *r,
                           const struct gdn_cu_batch *b, int64_t n_heads, int64_t n_columns,
                           struct gdn_cu_map *map)
{
    const uint64_t rows = b->padded ? (uint64_t)b->B : 1;
    const uint64_t tokens = (uint64_t)(b->padded ? b->T : b->N);
    const uint64_t sizes[]  = { (uint64_t)n_columns, (uint64_t)n_heads, tokens, rows };
    const uint64_t steps[]  = { step_of(n_heads, r->head), step_of((int64_t)tokens, r->token),
                                step_of((int64_t)rows, r->batch) };
    const uint32_t box[]    = { TILE, 1, TILE, 1 }, each[] = { 1, 1, 1, 1 };
    if (!r->data) return GDN_OK;
    GDN_CU(ctx, name, cuTensorMapEncodeTiled,
           (map, r->dtype == GDN_BF16 ? GDN_CU_MAP_BF16 : GDN_CU_MAP_F16, 4, r->data, sizes, steps,
            box, each, 0, GDN_CU_MAP_SWIZZLE_128B, GDN_CU_MAP_L2_256B, 0));
    return GDN_OK;
}

/* The driver makes them for the context that is current. */
static gdn_status make_maps(gdn_ctx *ctx, const struct gdn_cu_rule *r,
                            struct gdn_cu_prefill_hopper *p)
{
    const struct gdn_cu_batch *b = &r->batch;
    bool                       pushed;
    TRY(gdn_cuda_enter(ctx, &pushed));
    gdn_status status = make_map(ctx, "q", &r->q, b, r->Hq, r->K, &p->q);
    if (!status) status = make_map(ctx, "k", &r->k, b, r->Hk, r->K, &p->k);
    if (!status) status = make_map(ctx, "v", &r->v, b, r->Hv, r->V, &p->v);
    if (!status) status = make_map(ctx, "out", &r->out, b, r->H, r->V, &p->out);
    gdn_cuda_leave(ctx, pushed);
    return status;
}

gdn_status gdn_cuda_prefill_hopper(gdn_ctx *ctx, const struct gdn_cu_rule *r, void *stream)
{
    const struct gdn_cu_batch   *b = &r->batch;
    struct gdn_cu_prefill_hopper p = { .rule = *r };
    TRY(make_maps(ctx, r, &p));
    const struct gdn_cuda_call call = {
        .kernel = kernel_of(r),
        .grid   = { 2 * r->H * (b->B + (r->out.data && b->cu_seqlens.data)), 1, 1 },
        .shared_bytes = SHARED,
        .stream       = stream,
        .args         = &p,
    };
    TRY(gdn_cuda_launch(ctx, &call));
    return gdn_cuda_note(ctx, "prefill", call.kernel);
}
