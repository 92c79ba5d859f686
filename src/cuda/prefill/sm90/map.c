/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor maps, by which tiles are copied, and which tensors can have one. */
#include <string.h>

#include "cuda/driver/launch.h"
#include "cuda/prefill/sm90/cache.h"

enum { TILE = 64 };

/* Returns the bytes from one item to the next of n; a single item has no next. */
static uint64_t step_of(int64_t n, int64_t step) { return n > 1 ? (uint64_t)step : 16; }

bool gdn_cuda_is_mapped(const struct gdn_rows *r, const struct gdn_cu_batch *b, int64_t n_heads)
{
    const int64_t n_tokens = b->padded ? b->T : b->N, n_rows = b->padded ? b->B : 1;
    const uint64_t steps[] = { step_of(n_heads, r->head), step_of(n_tokens, r->token),
                               step_of(n_rows, r->batch) };
    if (!r->data) return true;
    for (int i = 0; i < 3; i++)
        if (steps[i] % 16 || steps[i] == 0 || steps[i] >= (uint64_t)1 << 40) return false;
    return (uintptr_t)r->data % 16 == 0;
}

/* Finds the map of tensor i. It is encoded only if it differs from the call before: callers come
 * back with the same memory, and the driver takes longer than the rest of this file. */
gdn_status gdn_cuda_find_map(gdn_ctx *ctx, const char *name, int i, const struct gdn_rows *r,
                             const struct gdn_cu_batch *b, int64_t n_heads, int64_t n_columns,
                             struct gdn_cu_map *map)
{
    struct gdn_cuda_map *known = &ctx->cuda->sm90->maps[i];
    const int64_t rows = b->padded ? b->B : 1, tokens = b->padded ? b->T : b->N;
    const uint64_t of[] = { (uintptr_t)r->data,        (uint64_t)r->dtype,
                            (uint64_t)n_columns,       (uint64_t)n_heads,
                            (uint64_t)tokens,          (uint64_t)rows,
                            step_of(n_heads, r->head), step_of(tokens, r->token),
                            step_of(rows, r->batch) };
    const uint32_t box[] = { TILE, 1, TILE, 1 }, each[] = { 1, 1, 1, 1 };
    bool pushed;
    _Static_assert(sizeof of == sizeof known->of, "a map is of these");
    if (!r->data) return GDN_OK;
    if (!gdn_cuda_is_key(known->of, of, sizeof of / sizeof *of)) {
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
