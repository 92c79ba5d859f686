/* SPDX-License-Identifier: Apache-2.0 */
#include "ops.h"

enum {
    COLUMNS   = 32,   /* of V: a block's part of a state (decode_tokens.cuh) */
    MOST_ROWS = 65535 /* of a grid, in its second dimension */
};

/* The kernel for the layout, a dtype or (wide false) any, and the size of K. */
static enum gdn_kernel_id kernel_of(bool k_first, int dtype, bool wide, int K)
{
#define SIZES(name) { name##_64, name##_128, name##_256 }
#define DTYPES(name) { SIZES(name##_F32), SIZES(name##_BF16), SIZES(name##_F16), SIZES(name##_ANY) }
    static const enum gdn_kernel_id kernels[2][4][3] = { DTYPES(GDN_CU_DECODE_VK),
                                                         DTYPES(GDN_CU_DECODE_KV) };
    return kernels[k_first][wide ? dtype : 3][K <= 64 ? 0 : K <= 128 ? 1 : 2];
}

/* Can a kernel for `like` read and write the pool, if there is one, in chunks of four? */
static bool is_wide_pool(const struct gdn_pool_view *view, const struct gdn_pool_view *like,
                         int columns)
{
    const int64_t chunk = 4 * (int64_t)gdn_dtype_bytes(view->dtype);
    if (!view->data) return true;
    return view->dtype == like->dtype && view->k_first == like->k_first &&
           (uintptr_t)view->data % (uintptr_t)chunk == 0 && columns % 4 == 0 &&
           view->slot % 4 == 0 && view->head % 4 == 0 && view->ld % 4 == 0;
}

/* The same of rows of q or k. */
static bool are_wide_rows(const struct gdn_rows *rows, int K)
{
    const int64_t chunk = 4 * (int64_t)gdn_dtype_bytes(rows->dtype);
    return K % 4 == 0 && (uintptr_t)rows->data % (uintptr_t)chunk == 0 &&
           rows->batch % chunk == 0 && rows->token % chunk == 0 && rows->head % chunk == 0;
}

static bool is_wide(const struct gdn_cu_rule *r, const struct gdn_pool_view *like)
{
    const int columns = like->k_first ? r->V : r->K;
    return is_wide_pool(&r->from, like, columns) && is_wide_pool(&r->to, like, columns) &&
           is_wide_pool(&r->checkpoints, like, columns) && are_wide_rows(&r->q, r->K) &&
           are_wide_rows(&r->k, r->K);
}

static bool is_simple(const struct gdn_cu_batch *b)
{
    return !b->has_initial_state.data && !b->num_accepted_tokens.data && !b->token_start.data &&
           !b->token_count.data && b->checkpoint_pool < 0 && b->pad_policy != GDN_PAD_SINK;
}

gdn_status gdn_cuda_decode(gdn_ctx *ctx, const char *op, const struct gdn_cu_rule *args,
                           void *stream)
{
    /* What a state is rounded to; absent ones are as if of float32, with rows of v. */
    const struct gdn_pool_view *like = args->to.data ? &args->to : &args->from;
    if (args->batch.parents.data || args->record_k.data || gdn_is_eight(args->from.dtype) ||
        gdn_is_eight(like->dtype) || gdn_is_eight(args->checkpoints.dtype))
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "%s: trees, records and 8 bits are not there yet",
                        op);
    const struct gdn_cu_decode a = {
        .rule     = *args,
        .n_parts  = (args->V + COLUMNS - 1) / COLUMNS,
        .rounding = args->exact ? like->dtype : GDN_F32,
        .simple   = is_simple(&args->batch),
    };
    /* One row of blocks more zeroes what is behind the last sequence. */
    const int64_t n = args->batch.B + (args->out.data && args->batch.cu_seqlens.data);
    const int64_t rows = n < MOST_ROWS ? n : MOST_ROWS;
    const struct gdn_cuda_call call = {
        .kernel   = kernel_of(like->k_first, like->dtype, is_wide(args, like), args->K),
        .grid     = { (int64_t)args->H * a.n_parts, rows, rows ? (n + rows - 1) / rows : 0 },
        .stream   = stream,
        .args     = &a,
        .overlaps = true,
    };
    TRY(gdn_cuda_launch(ctx, &call));
    return gdn_cuda_note(ctx, op, call.kernel);
}
