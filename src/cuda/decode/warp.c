/* SPDX-License-Identifier: Apache-2.0 */
/* Launches the kernels of warps (warp.cuh) and of windows (window_vk.cuh, window_kv.cuh), which
 * take struct gdn_cu_warp. */
#include "cuda/decode/select.h"

enum {
    MOST_WARPS = 4, /* of a block */
    FEW_ROWS = 32   /* rows of K of a warp of window_kv.cuh */
};

/* ---- Arguments ----------------------------------------------------------------------------- */

struct gdn_cu_near gdn_cuda_near(const struct gdn_rows *r, const struct gdn_cu_batch *b)
{
    const int64_t row = b->padded ? r->batch : 0;
    return (struct gdn_cu_near){ r->data, r->dtype, (int32_t)row, (int32_t)r->token,
                                 (int32_t)r->head };
}

static struct gdn_cu_pool pool_of(const struct gdn_pool_view *p)
{
    const int64_t bytes = p->data ? (int64_t)gdn_dtype_bytes(p->dtype) : 0;
    return (struct gdn_cu_pool){ p->data, (int32_t)(p->slot * bytes), (int32_t)(p->head * bytes),
                                 (int32_t)(p->ld * bytes), 0 };
}

uint32_t gdn_cuda_inverse(int n) { return n == 1 ? 0 : (uint32_t)(((1ull << 32) + n - 1) / n); }

bool gdn_decode_has_slots(const struct gdn_cu_warp *a)
{
    return a->B <= a->read_pool && (a->each || a->B <= a->write_pool);
}

void gdn_cuda_fill_warp(struct gdn_cu_warp *a, const struct gdn_cu_rule *r)
{
    const struct gdn_cu_batch *b = &r->batch;
    a->q = gdn_cuda_near(&r->q, b);
    a->k = gdn_cuda_near(&r->k, b);
    a->v = gdn_cuda_near(&r->v, b);
    a->g = gdn_cuda_near(&r->g, b);
    a->beta = gdn_cuda_near(&r->beta, b);
    a->out = gdn_cuda_near(&r->out, b);
    a->from = pool_of(&r->from);
    a->to = pool_of(&r->to);
    a->cu_seqlens = b->cu_seqlens;
    a->read_slots = b->read_slots;
    a->write_slots = b->write_slots;
    a->has_initial_state = b->has_initial_state;
    a->num_accepted_tokens = b->num_accepted_tokens;
    a->A_log = r->A_log;
    a->dt_bias = r->dt_bias;
    a->N = (int32_t)(b->cu_seqlens.data ? b->N : b->T);
    a->read_pool = b->read_pool < 0 ? INT32_MAX : (int32_t)b->read_pool;
    a->write_pool = b->write_pool < 0 ? INT32_MAX : (int32_t)b->write_pool;
    a->B = (int32_t)b->B;
    a->T = (int32_t)b->T;
    a->K = r->K;
    a->V = r->V;
    a->first_slot = b->first_slot;
    a->each = b->write == GDN_WRITE_EACH;
    a->keep = b->pad_policy == GDN_PAD_KEEP;
    a->rounds = r->exact;
    a->group_q = gdn_cuda_inverse(r->H / r->Hq);
    a->group_k = gdn_cuda_inverse(r->H / r->Hk);
    a->group_v = gdn_cuda_inverse(r->H / r->Hv);
    a->gate = r->gate;
    a->beta_kind = r->beta_kind;
    a->norm = r->norm;
    a->norm_eps = r->norm_eps;
    a->scale = r->scale;
    a->bound = r->bound;
    a->n_rows = a->n_blocks = 0; /* the launch sets these */
    a->head_blocks = 0;
    if (b->write == GDN_WRITE_NONE) {
        a->to.data = NULL;
        a->write_slots.data = NULL;
        a->write_pool = INT32_MAX;
    }
    a->plain = !a->cu_seqlens.data && !a->read_slots.data && !a->write_slots.data &&
               !a->has_initial_state.data && !a->num_accepted_tokens.data &&
               gdn_decode_has_slots(a);
    a->whole = !a->each && !gdn_decode_why_not_whole(r, a);
    a->products = a->whole && r->k.dtype == GDN_BF16 && r->v.dtype == GDN_BF16;
}

/* ---- Launches ------------------------------------------------------------------------------ */

/* Returns the warps of a block, and sets *columns to the columns of V that a block has. The count
 * divides V's tiles, because kernels of whole tiles do not test for columns beyond V. It is halved
 * until there are enough blocks for every multiprocessor. `few`: for window_kv.cuh. */
static int warps_of(const gdn_ctx *ctx, const struct gdn_cu_rule *r, bool few, int64_t n,
                    int *columns)
{
    const int64_t parts = (r->V + WARP_COLUMNS - 1) / WARP_COLUMNS;
    int n_warps = MOST_WARPS;
    while (n_warps > 1 &&
           (parts % n_warps != 0 || n * r->H * parts < n_warps * ctx->cuda->sm_count))
        n_warps /= 2;
    *columns = few ? FEW_COLUMNS : n_warps * WARP_COLUMNS;
    return few ? r->K / FEW_ROWS : n_warps;
}

static gdn_status launch(const struct gdn_decode_call *c, enum gdn_kernel_id kernel, bool few)
{
    const struct gdn_cu_rule *r = c->rule;
    const int64_t n = gdn_decode_sequences(r), rows = n < MOST_ROWS ? n : MOST_ROWS;
    struct gdn_cu_warp a = c->warp;
    int columns;
    const int n_warps = warps_of(c->ctx, r, few, n, &columns);
    a.n_rows = (int32_t)n;
    a.n_blocks = (int32_t)((r->V + columns - 1) / columns);
    a.head_blocks = gdn_cuda_inverse(a.n_blocks);
    const struct gdn_cuda_call call = {
        .kernel = kernel,
        .grid = { (int64_t)r->H * a.n_blocks, rows, rows ? (n + rows - 1) / rows : 0 },
        .n_threads = 32 * n_warps,
        .stream = c->stream,
        .args = &a,
        .overlaps = true,
    };
    TRY(gdn_cuda_launch(c->ctx, &call));
    return gdn_cuda_note(c->ctx, c->op, kernel);
}

gdn_status gdn_decode_launch_window(const struct gdn_decode_call *c)
{
    static const enum gdn_kernel_id kernels[2][2][3] = {
        { { SIZES(GDN_CU_decode_window_vk_F32) }, { SIZES(GDN_CU_decode_window_vk_BF16) } },
        { { SIZES(GDN_CU_decode_window_kv_F32) }, { SIZES(GDN_CU_decode_window_kv_BF16) } },
    };
    const bool k_first = c->pool->k_first;
    const int size = gdn_decode_size(c->rule->K);
    return launch(c, kernels[k_first][c->pool->dtype == GDN_BF16][size], k_first);
}

#define DTYPES(name)                                                         \
    {                                                                        \
        { SIZES(name##_F32) }, { SIZES(name##_BF16) }, { SIZES(name##_F16) } \
    }

gdn_status gdn_decode_launch_warp(const struct gdn_decode_call *c)
{
    static const enum gdn_kernel_id kernels[2][3][3] = { DTYPES(GDN_CU_decode_warp_vk),
                                                         DTYPES(GDN_CU_decode_warp_kv) };
    const int size = gdn_decode_size(c->rule->K);
    return launch(c, kernels[c->pool->k_first][c->pool->dtype][size], false);
}
