/* SPDX-License-Identifier: Apache-2.0 */
/* Conditions that several forms of decode have: strides, alignment, states, and the batch. */
#include "core/limits.h"
#include "cuda/decode/select.h"

/* ---- Strides of 32 bits -------------------------------------------------------------------- */

bool gdn_cuda_is_near(int64_t step, int64_t n)
{
    return step >= INT32_MIN / n && step <= INT32_MAX / n;
}

bool gdn_cuda_are_near(const struct gdn_rows *r)
{
    return !r->data || (gdn_cuda_is_near(r->batch, 1) && gdn_cuda_is_near(r->token, 1) &&
                        gdn_cuda_is_near(r->head, 1));
}

bool gdn_cuda_is_near_vector(const struct gdn_cu_array *a)
{
    return !a->data || gdn_cuda_is_near(a->stride[0], (int64_t)gdn_dtype_bytes(a->dtype));
}

/* Checks that all steps from line to line of a state fit 32 bits. */
static bool is_near_pool(const struct gdn_pool_view *p, int V)
{
    const int most_lines = V > GDN_MAX_HEAD ? GDN_MAX_VALUE : GDN_MAX_HEAD;
    return !p->data || (gdn_cuda_is_near(p->slot, 4) && gdn_cuda_is_near(p->head, 4) &&
                        gdn_cuda_is_near(p->ld, 4 * most_lines));
}

bool gdn_decode_is_near_list(const struct gdn_cu_array *a)
{
    return !a->data || gdn_cuda_is_near(a->stride[0], MOST_ROWS);
}

/* Checks a table by the sum of its steps along rows and along columns. */
bool gdn_decode_is_near_table(const struct gdn_cu_array *a)
{
    return !a->data || (gdn_cuda_is_near(a->stride[0], 2 * MOST_ROWS) &&
                        gdn_cuda_is_near(a->stride[1], 2 * ((int64_t)a->n_columns + 1)));
}

static bool are_near(const struct gdn_cu_rule *r)
{
    return gdn_cuda_are_near(&r->q) && gdn_cuda_are_near(&r->k) && gdn_cuda_are_near(&r->v) &&
           gdn_cuda_are_near(&r->g) && gdn_cuda_are_near(&r->beta) && gdn_cuda_are_near(&r->out) &&
           is_near_pool(&r->from, r->V) && is_near_pool(&r->to, r->V) &&
           gdn_cuda_is_near_vector(&r->A_log) && gdn_cuda_is_near_vector(&r->dt_bias);
}

/* ---- Alignment ----------------------------------------------------------------------------- */

bool gdn_decode_is_wide(const struct gdn_rows *rows, int K)
{
    const uint64_t all = (uint64_t)(uintptr_t)rows->data | (uint64_t)rows->batch |
                         (uint64_t)rows->token | (uint64_t)rows->head;
    return K % 4 == 0 && (all & (4 * gdn_dtype_bytes(rows->dtype) - 1)) == 0;
}

bool gdn_decode_are_pieces(const struct gdn_cu_near *r)
{
    return (uintptr_t)r->data % 16 == 0 && r->row % 16 == 0 && r->token % 16 == 0 &&
           r->head % 16 == 0;
}

/* Checks that states can be read in pieces of 16 bytes. */
static bool is_pieces(const struct gdn_cu_pool *p)
{
    return (uintptr_t)p->data % 16 == 0 && p->slot % 16 == 0 && p->head % 16 == 0 &&
           p->row % 16 == 0;
}

const char *gdn_decode_why_not_whole(const struct gdn_cu_rule *r, const struct gdn_cu_warp *a)
{
    if (r->exact) return "GDN_EXACT is set";
    if (r->K != 64 && r->K != 128 && r->K != 256) return "K is not 64, 128 or 256";
    if (r->V % WARP_COLUMNS) return "V is not a multiple of 16";
    if (!is_pieces(&a->from) || !is_pieces(&a->to)) return "states are not aligned to 16 bytes";
    return NULL;
}

const char *gdn_decode_why_not_tiles(const struct gdn_cu_rule *r, const struct gdn_cu_warp *a)
{
    if (!gdn_decode_are_pieces(&a->q) || !gdn_decode_are_pieces(&a->k))
        return "q or k is not aligned to 16 bytes";
    return gdn_decode_why_not_whole(r, a);
}

/* ---- Conditions of every form but general and walk ----------------------------------------- */

/* Returns why warps cannot read and write states in whole, aligned pieces of one dtype and
 * layout. */
static const char *why_not_pool(const struct gdn_cu_rule *r, const struct gdn_pool_view *view)
{
    const struct gdn_pool_view *pool = gdn_decode_pool(r);
    const int64_t bytes = (int64_t)gdn_dtype_bytes(pool->dtype);
    const int64_t piece = pool->k_first ? 16 / bytes : 4;
    if (!view->data) return NULL;
    if (view->gap) return "states have no stride of 1";
    if (view->dtype != pool->dtype || view->k_first != pool->k_first)
        return "states come and go in different dtypes or layouts";
    if ((uintptr_t)view->data % (uintptr_t)(piece * bytes) || view->slot % piece ||
        view->head % piece || view->ld % piece || (pool->k_first ? r->V : r->K) % piece)
        return "states are not in aligned pieces of 16 bytes or 4 elements";
    return NULL;
}

const char *gdn_decode_why_not_chain(const struct gdn_cu_rule *r)
{
    if (r->batch.parents.data) return "the batch is a tree";
    return r->record_k.data ? "the call has a record" : NULL;
}

const char *gdn_decode_why_eight(const struct gdn_cu_rule *r)
{
    return gdn_is_q8(r->from.dtype) || gdn_is_q8(r->to.dtype) || gdn_is_q8(r->checkpoints.dtype)
               ? "states have 8 bits"
               : NULL;
}

const char *gdn_decode_why_walk(const struct gdn_cu_rule *r)
{
    const char *why = gdn_decode_why_not_chain(r);
    return why ? why : gdn_decode_why_eight(r);
}

static const char *why_not_batch(const struct gdn_cu_batch *b)
{
    if (b->token_start.data) return "token_start is given";
    if (b->token_count.data) return "token_count is given";
    if (b->checkpoint_pool >= 0) return "checkpoints are written";
    if (b->pad_policy == GDN_PAD_SINK) return "pad_policy is GDN_PAD_SINK";
    if (b->B >= INT32_MAX || b->N > INT32_MAX || b->T > INT32_MAX || b->read_pool >= INT32_MAX ||
        b->write_pool >= INT32_MAX || b->first_slot >= INT32_MAX)
        return "more sequences, tokens or slots than 32 bits count";
    return NULL;
}

const char *gdn_decode_why_not_near(const struct gdn_cu_rule *r)
{
    const char *why = why_not_batch(&r->batch);
    if (!why && r->head_map != GDN_HEADS_GROUPED) why = "head_map is interleaved";
    if (!why && gdn_cuda_mixes_dtypes(r)) why = "q, k, v and out have several dtypes";
    if (!why && r->H > 1024) why = "H is above 1024";
    if (!why) why = why_not_pool(r, &r->from);
    if (!why) why = why_not_pool(r, &r->to);
    if (!why && !are_near(r)) why = "a stride does not fit 32 bits";
    return why;
}

static const char *why_not_form(const struct gdn_cu_rule *r)
{
    const char *why = gdn_decode_why_not_chain(r);
    return why ? why : gdn_decode_why_not_near(r);
}

const char *gdn_decode_why_not_gdn(const struct gdn_cu_rule *r)
{
    return r->family.is ? "the rule has channels, a write gate or updates" : NULL;
}

static const char *why_not_warps(const struct gdn_cu_rule *r)
{
    const char *why = gdn_decode_why_walk(r);
    if (!why) why = gdn_decode_why_not_gdn(r);
    return why ? why : why_not_form(r);
}

bool gdn_cuda_mixes_dtypes(const struct gdn_cu_rule *r)
{
    return r->k.dtype != r->q.dtype || r->v.dtype != r->q.dtype ||
           (r->out.data && r->out.dtype != r->q.dtype);
}

bool gdn_cuda_takes_warps(const struct gdn_cu_rule *args) { return !why_not_warps(args); }
