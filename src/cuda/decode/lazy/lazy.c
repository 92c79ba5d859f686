/* SPDX-License-Identifier: Apache-2.0 */
/* Launches up to eight tokens of each sequence, accepted beside a record: the two kernels of
 * lazy.cuh, or the one of few.cuh for one token of a few sequences. */
#include "cuda/decode/select.h"
#include "cuda/driver/shared_bytes.h"

enum {
    THREADS = 128,    /* of a block of the first kernel, a warp for each pair of heads */
    FACTS = 8,        /* numbers of a state head, see rows.cuh */
    WEIGHTS = 2,      /* numbers of each row, beside its decay */
    COLUMNS_F32 = 16, /* of V, of a block of the second kernel */
    COLUMNS_HALF = LAZY_COLUMNS,
    FEW_BYTES = 32, /* of the columns of V that a block of few.cuh has */
    LINE = 128,     /* bytes */
    EARLY_F32 = 16, /* blocks of the second kernel on a multiprocessor at a time */
    EARLY_HALF = 24,
    EARLY_HALF_TOKENS = 20, /* of several tokens */
    AHEAD_ROWS = 16,        /* as many as the first kernel has under way at a time */
    AHEAD_HEADS = 8,        /* for each multiprocessor */
    RECORD_ROWS = 64        /* of a record, for which that kernel has memory */
};

/* The two kernels wait for each other about 10 us. In that time a multiprocessor of an H200 moves
 * so many bytes (docs/gpu/decode-kernels.md). */
enum { LEAST_SAVED = 325 * 1024 };

/* Two tokens of a sequence take less time than to fold first, four take more. */
enum { MOST_TOKENS = 2 };

/* ---- What the kernels take ------------------------------------------------------------------- */

/* Checks that steps of a record fit 32 bits, and that rows are float32 or of dtype io. */
static const char *why_not_rows(const struct gdn_record_rows *rows, int32_t io)
{
    if (rows->dtype != GDN_F32 && rows->dtype != io)
        return "rows of the record are neither float32 nor of the dtype of k";
    return gdn_cuda_is_near(rows->slot, 1) && gdn_cuda_is_near(rows->row, 1) &&
                   gdn_cuda_is_near(rows->head, 1)
               ? NULL
               : "a stride of the record does not fit 32 bits";
}

/* Checks that rows of a record can be read in pieces of 16 bytes. */
static bool are_pieces(const struct gdn_record_rows *rows)
{
    return (uintptr_t)rows->data % 16 == 0 && rows->slot % 16 == 0 && rows->row % 16 == 0 &&
           rows->head % 16 == 0;
}

const char *gdn_decode_why_not_record(const struct gdn_cu_rule *r)
{
    if (!r->record_k.data) return "the call has no record";
    if (!gdn_decode_accepts(r)) return "the tokens are drafts";
    if (r->record_rows < 2) return "a record has one row";
    if (r->record_rows > RECORD_ROWS) return "a record has more than 64 rows";
    const char *why = why_not_rows(&r->record_k, r->k.dtype);
    if (!why) why = why_not_rows(&r->record_u, r->k.dtype);
    if (!why) why = why_not_rows(&r->record_g, r->k.dtype);
    if (!why && (!are_pieces(&r->record_k) || !are_pieces(&r->record_u)))
        why = "record_k or record_u is not aligned to 16 bytes";
    return !why && !gdn_cuda_is_near_vector(&r->record_count) ? "counts are too far apart" : why;
}

/* A state is written once in as many calls as fill a record, but on average half of a record is
 * read, or written. */
const char *gdn_decode_lazy_why_slower(const struct gdn_decode_call *c)
{
    if (c->warp.T > MOST_TOKENS) return "to fold first takes less time";
    const struct gdn_cu_rule *r = c->rule;
    const int64_t R = r->record_rows, T = r->batch.T, calls = (R + T - 1) / T;
    const int64_t columns = (int64_t)r->H * r->V, keys = (int64_t)r->Hk * r->K;
    const int64_t states = columns * r->K * (int64_t)gdn_dtype_bytes(c->pool->dtype);
    const int64_t row = keys * (int64_t)gdn_dtype_bytes(r->record_k.dtype) +
                        columns * (int64_t)gdn_dtype_bytes(r->record_u.dtype);
    const int64_t saved = states - states / calls - row * R / 2;
    return r->batch.B * saved > (int64_t)LEAST_SAVED * c->ctx->cuda->sm_count
               ? NULL
               : "it saves at most 325 KiB for each multiprocessor";
}

/* ---- Arguments ------------------------------------------------------------------------------- */

/* Returns the rows that may come before a token: those of the record, and earlier tokens of the
 * call. */
static int32_t places_of(const struct gdn_cu_rule *r)
{
    return (int32_t)(r->record_rows + r->batch.T - 1 + 3) / 4 * 4;
}

/* Returns the numbers of a state head: of each token the facts and two weights of each row; and the
 * decays of rows. */
static int32_t step_of(const struct gdn_cu_rule *r)
{
    return (int32_t)r->batch.T * (FACTS + WEIGHTS * places_of(r)) + places_of(r);
}

size_t gdn_decode_lazy_bytes(const gdn_ctx *ctx, const struct gdn_cu_rule *r)
{
    (void)ctx;
    return (size_t)(r->batch.B * r->H * step_of(r)) * sizeof(float);
}

static struct gdn_cu_lazy_rows rows_of(const struct gdn_record_rows *r)
{
    return (struct gdn_cu_lazy_rows){ r->data, (int32_t)r->slot, (int32_t)r->row, (int32_t)r->head,
                                      (int32_t)gdn_dtype_bytes(r->dtype) };
}

/* Returns how many pairs of a key head and a query head the state heads read: H, if neither
 * number of heads divides the other. */
static int pairs_of(const struct gdn_cu_rule *r)
{
    if (r->Hq % r->Hk == 0) return r->Hq;
    return r->Hk % r->Hq == 0 ? r->Hk : r->H;
}

/* Returns true if few heads wait for memory longer than for its bandwidth. */
static bool is_ahead(const struct gdn_decode_call *c)
{
    const struct gdn_cu_rule *r = c->rule;
    return r->record_rows <= AHEAD_ROWS &&
           r->batch.B * r->H <= (int64_t)AHEAD_HEADS * c->ctx->cuda->sm_count;
}

/* Returns how many blocks of the second kernel are on the device at a time. */
static int early_of(const struct gdn_decode_call *c)
{
    const int half = c->warp.T > 1 ? EARLY_HALF_TOKENS : EARLY_HALF;
    return (c->pool->dtype == GDN_F32 ? EARLY_F32 : half) * c->ctx->cuda->sm_count;
}

/* Returns the columns of V that a block of the second kernel has. */
static int columns_of(const struct gdn_decode_call *c)
{
    return c->pool->dtype == GDN_F32 ? COLUMNS_F32 : COLUMNS_HALF;
}

static struct gdn_cu_lazy args_of(const struct gdn_decode_call *c)
{
    const struct gdn_cu_rule *r = c->rule;
    const struct gdn_cu_at count = gdn_cuda_at_vector(&r->record_count);
    return (struct gdn_cu_lazy){
        .one = gdn_cuda_token_args(r, &c->warp),
        .k = rows_of(&r->record_k),
        .u = rows_of(&r->record_u),
        .g = rows_of(&r->record_g),
        .count = count.data,
        .memory = c->memory,
        .count_step = count.head,
        .count_bytes = (int32_t)gdn_dtype_bytes(r->record_count.dtype),
        .n_rows = (int32_t)r->record_rows,
        .n_places = places_of(r),
        .n_heads = r->H,
        .step = step_of(r),
        .n_pairs = pairs_of(r),
        .n_sharing = r->H / pairs_of(r),
        .n_k_pairs = pairs_of(r) / r->Hk,
        .ahead = is_ahead(c),
        .n_parts = r->V / columns_of(c),
        .row_lines = r->K * (int32_t)gdn_dtype_bytes(c->pool->dtype) / LINE,
        .n_early = early_of(c),
        .n_tokens = c->warp.T,
        .k_token = c->warp.k.token,
        .q_token = c->warp.q.token,
        .v_token = c->warp.v.token,
        .g_token = c->warp.g.token,
        .beta_token = c->warp.beta.token,
        .out_token = c->warp.out.token,
    };
}

/* ---- Launches -------------------------------------------------------------------------------- */

gdn_status gdn_decode_launch_lazy(const struct gdn_decode_call *c)
{
    static const enum gdn_kernel_id rows[2][2] = {
        { GDN_CU_decode_lazy_rows_BF16_128, GDN_CU_decode_lazy_rows_F16_128 },
        { GDN_CU_decode_lazy_tokens_rows_BF16_128, GDN_CU_decode_lazy_tokens_rows_F16_128 },
    };
    static const enum gdn_kernel_id tokens[2][2][2] = {
        { { GDN_CU_decode_lazy_F32_BF16_128, GDN_CU_decode_lazy_F32_F16_128 },
          { GDN_CU_decode_lazy_BF16_BF16_128, GDN_CU_decode_lazy_F16_F16_128 } },
        { { GDN_CU_decode_lazy_tokens_F32_BF16_128, GDN_CU_decode_lazy_tokens_F32_F16_128 },
          { GDN_CU_decode_lazy_tokens_BF16_BF16_128, GDN_CU_decode_lazy_tokens_F16_F16_128 } },
    };
    static const int unused[2][2] = {
        { GDN_CU_LAZY_ROWS_BYTES, GDN_CU_LAZY_ROWS_F32_BYTES },
        { GDN_CU_LAZY_TOKENS_ROWS_BYTES, GDN_CU_LAZY_TOKENS_ROWS_F32_BYTES },
    };
    const struct gdn_cu_rule *r = c->rule;
    const struct gdn_cu_lazy a = args_of(c);
    const bool f16 = r->k.dtype == GDN_F16, f32 = c->pool->dtype == GDN_F32;
    const bool several = a.n_tokens > 1;
    const int warps = THREADS / 32;
    const struct gdn_cuda_call first = {
        .kernel = rows[several][f16],
        .grid = { (a.n_pairs + warps - 1) / warps, r->batch.B, 1 },
        .shared_bytes = unused[several][f32],
        .stream = c->stream,
        .args = &a,
        .overlaps = true,
    };
    const struct gdn_cuda_call second = {
        .kernel = tokens[several][!f32][f16],
        .grid = { a.n_parts, r->H, r->batch.B },
        .shared_bytes = f32                            ? 0
                        : r->record_k.dtype == GDN_F32 ? GDN_CU_LAZY_WIDE_BYTES
                                                       : GDN_CU_LAZY_BYTES,
        .stream = c->stream,
        .args = &a,
        .overlaps = true,
    };
    const enum gdn_kernel_id kernels[] = { first.kernel, second.kernel };
    TRY(gdn_cuda_launch(c->ctx, &first));
    TRY(gdn_cuda_launch(c->ctx, &second));
    return gdn_cuda_note_all(c->ctx, c->op, kernels, 2);
}

gdn_status gdn_decode_launch_lazy_few(const struct gdn_decode_call *c)
{
    static const enum gdn_kernel_id kernels[2][2][2] = {
        { { GDN_CU_decode_lazy_few_F32_BF16_128, GDN_CU_decode_lazy_few_F32_F16_128 },
          { GDN_CU_decode_lazy_few_BF16_BF16_128, GDN_CU_decode_lazy_few_F16_F16_128 } },
        { { GDN_CU_decode_lazy_few_kv_F32_BF16_128, GDN_CU_decode_lazy_few_kv_F32_F16_128 },
          { GDN_CU_decode_lazy_few_kv_BF16_BF16_128, GDN_CU_decode_lazy_few_kv_F16_F16_128 } },
    };
    const struct gdn_cu_rule *r = c->rule;
    const struct gdn_cu_lazy a = args_of(c);
    const bool f16 = r->k.dtype == GDN_F16, k_first = c->pool->k_first;
    const int columns = k_first ? TOKEN_COLUMNS : FEW_BYTES / (int)gdn_dtype_bytes(c->pool->dtype);
    const struct gdn_cuda_call call = {
        .kernel = kernels[k_first][c->pool->dtype != GDN_F32][f16],
        .grid = { r->V / columns, r->H, r->batch.B },
        .stream = c->stream,
        .args = &a,
        .overlaps = true,
    };
    TRY(gdn_cuda_launch(c->ctx, &call));
    return gdn_cuda_note(c->ctx, c->op, call.kernel);
}
