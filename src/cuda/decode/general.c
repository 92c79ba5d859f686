/* SPDX-License-Identifier: Apache-2.0 */
/* Launches the general kernels of gdn_decode (general.cuh), those of the family too. */
#include "cuda/decode/select.h"

static bool is_simple(const struct gdn_cu_batch *b)
{
    return !b->has_initial_state.data && !b->num_accepted_tokens.data && !b->token_start.data &&
           !b->token_count.data && b->checkpoint_pool < 0 && b->pad_policy != GDN_PAD_SINK;
}

/* Checks that a kernel for that layout can read and write the pool in chunks of four elements, if
 * there is a pool. */
static bool is_wide_pool(const struct gdn_pool_view *view, bool k_first, int columns)
{
    const int64_t chunk = 4 * (int64_t)gdn_dtype_bytes(view->dtype);
    if (!view->data) return true;
    return view->k_first == k_first && !view->gap &&
           (uintptr_t)view->data % (uintptr_t)chunk == 0 && columns % 4 == 0 &&
           view->slot % 4 == 0 && view->head % 4 == 0 && view->ld % 4 == 0;
}

/* Checks that rows of q and of every update of k can be read in chunks of four elements. */
static bool are_wide_rows(const struct gdn_cu_rule *r)
{
    const int64_t chunk = 4 * (int64_t)gdn_dtype_bytes(r->k.dtype);
    return gdn_decode_is_wide(&r->q, r->K) && gdn_decode_is_wide(&r->k, r->K) &&
           r->family.k_update % chunk == 0;
}

/* Returns the bits GDN_CU_WIDE_... of a call. Its states lie as in `pool`. */
static int what_is_wide(const struct gdn_cu_rule *r, const struct gdn_pool_view *pool)
{
    const bool k_first = pool->k_first;
    const int columns = k_first ? r->V : r->K;
    return (is_wide_pool(&r->from, k_first, columns) ? GDN_CU_WIDE_FROM : 0) |
           (is_wide_pool(&r->to, k_first, columns) ? GDN_CU_WIDE_TO : 0) |
           (is_wide_pool(&r->checkpoints, k_first, columns) ? GDN_CU_WIDE_CHECKPOINTS : 0) |
           (are_wide_rows(r) ? GDN_CU_WIDE_ROWS : 0);
}

struct gdn_cu_decode gdn_decode_general_args(const struct gdn_cu_rule *r)
{
    return (struct gdn_cu_decode){
        .rule = *r,
        .n_parts = (r->V + GENERAL_COLUMNS - 1) / GENERAL_COLUMNS,
        .rounding = r->exact ? gdn_decode_pool(r)->dtype : GDN_F32,
        .simple = is_simple(&r->batch),
        .wide = what_is_wide(r, gdn_decode_pool(r)),
    };
}

static gdn_status launch(const struct gdn_decode_call *c, const enum gdn_kernel_id kernels[2][3])
{
    const struct gdn_cu_decode a = gdn_decode_general_args(c->rule);
    const int64_t n = gdn_decode_sequences(c->rule);
    const int64_t rows = n < MOST_ROWS ? n : MOST_ROWS;
    const struct gdn_cuda_call call = {
        .kernel = kernels[c->pool->k_first][gdn_decode_size(c->rule->K)],
        .grid = { (int64_t)c->rule->H * a.n_parts, rows, rows ? (n + rows - 1) / rows : 0 },
        .stream = c->stream,
        .args = &a,
        .overlaps = true,
    };
    TRY(gdn_cuda_launch(c->ctx, &call));
    return gdn_cuda_note(c->ctx, c->op, call.kernel);
}

gdn_status gdn_decode_launch_general(const struct gdn_decode_call *c)
{
    static const enum gdn_kernel_id kernels[2][3] = { { SIZES(GDN_CU_decode_general_vk) },
                                                      { SIZES(GDN_CU_decode_general_kv) } };
    return launch(c, kernels);
}

gdn_status gdn_decode_launch_channels(const struct gdn_decode_call *c)
{
    static const enum gdn_kernel_id kernels[2][3] = { { SIZES(GDN_CU_decode_channels_vk) },
                                                      { SIZES(GDN_CU_decode_channels_kv) } };
    return launch(c, kernels);
}

gdn_status gdn_decode_launch_channels_few(const struct gdn_decode_call *c)
{
    static const enum gdn_kernel_id kernels[2][3] = { { SIZES(GDN_CU_decode_channels_few_vk) },
                                                      { SIZES(GDN_CU_decode_channels_few_kv) } };
    return launch(c, kernels);
}
