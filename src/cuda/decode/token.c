/* SPDX-License-Identifier: Apache-2.0 */
/* Launches the kernels of one token (token.cuh, token_slots.cuh, token_packed.cuh), and of windows
 * with K = 128 (window_k128.cuh). Their arguments begin with struct gdn_cu_token. */
#include "cuda/decode/select.h"

enum {
    BLOCK_BYTES = 32,  /* of the columns of V that a block has, if states are k-last */
    SINGLE_ROWS = 48,  /* blocks of token_single.cuh for each multiprocessor, if states are
                          k-last */
    SINGLE_COLUMNS = 8 /* the same, if states are k-first */
};

/* ---- Arguments ----------------------------------------------------------------------------- */

/* Returns the address and steps of rows by sequence and head, for sequences of one token. */
static struct gdn_cu_at at_of(const struct gdn_cu_near *r, bool packed)
{
    return (struct gdn_cu_at){ r->data, packed ? r->token : r->row, r->head };
}

static struct gdn_cu_at at_pool(const struct gdn_cu_pool *p)
{
    return (struct gdn_cu_at){ p->data, p->slot, p->head };
}

struct gdn_cu_at gdn_cuda_at_vector(const struct gdn_cu_array *a)
{
    const int64_t step = a->stride[0] * (int64_t)gdn_dtype_bytes(a->dtype);
    union {
        const void *in;
        char *out;
    } data = { .in = a->data };
    return (struct gdn_cu_at){ data.out, 0, (int32_t)step };
}

static int32_t bytes_of(const void *data, int32_t dtype)
{
    return data ? (int32_t)gdn_dtype_bytes(dtype) : 0;
}

/* Returns 2^22 / the number of state heads that share one of n heads, rounded up. */
static uint32_t group_of(const struct gdn_cu_rule *r, int n)
{
    return ((1u << 22) + (uint32_t)(r->H / n) - 1) / (uint32_t)(r->H / n);
}

/* Returns the arguments of one token. An absent gate reads as 0, and its kind makes 1 of that:
 * exp(0), 2 sigmoid(0). */
struct gdn_cu_token gdn_cuda_token_args(const struct gdn_cu_rule *r, const struct gdn_cu_warp *a)
{
    const bool packed = a->cu_seqlens.data;
    return (struct gdn_cu_token){
        .from = at_pool(&a->from),
        .to = at_pool(&a->to),
        .k = at_of(&a->k, packed),
        .q = at_of(&a->q, packed),
        .v = at_of(&a->v, packed),
        .g = at_of(&a->g, packed),
        .beta = at_of(&a->beta, packed),
        .A_log = gdn_cuda_at_vector(&a->A_log),
        .dt_bias = gdn_cuda_at_vector(&a->dt_bias),
        .out = at_of(&a->out, packed),
        .from_row = a->from.row,
        .to_row = a->to.row,
        .group_k = group_of(r, r->Hk),
        .group_q = group_of(r, r->Hq),
        .group_v = group_of(r, r->Hv),
        .g_bytes = bytes_of(a->g.data, a->g.dtype),
        .beta_bytes = bytes_of(a->beta.data, a->beta.dtype),
        .A_log_bytes = bytes_of(a->A_log.data, a->A_log.dtype),
        .dt_bias_bytes = bytes_of(a->dt_bias.data, a->dt_bias.dtype),
        .gate = a->g.data ? a->gate : GDN_GATE_LOG,
        .beta_kind = a->beta.data ? a->beta_kind : GDN_BETA_TWICE_SIGMOID,
        .norm = a->norm,
        .norm_eps = a->norm_eps,
        .scale = a->scale,
        .bound = a->bound,
        .read_slots = a->read_slots.data,
        .write_slots = a->write_slots.data,
        .read_step = (int32_t)a->read_slots.stride[0],
        .write_step = (int32_t)a->write_slots.stride[0],
        .read_pool = a->read_pool,
        .write_pool = a->write_pool,
        .first_slot = (int32_t)a->first_slot,
        .keep = a->keep,
    };
}

/* ---- Launches ------------------------------------------------------------------------------ */

/* Launches one block for so many columns of each state. */
static gdn_status launch_parts(const struct gdn_decode_call *c, enum gdn_kernel_id kernel,
                               const void *args, int columns)
{
    const struct gdn_cu_rule *r = c->rule;
    const struct gdn_cuda_call call = {
        .kernel = kernel,
        .grid = { r->V / columns, r->H, gdn_decode_sequences(r) },
        .stream = c->stream,
        .args = args,
        .overlaps = true,
    };
    TRY(gdn_cuda_launch(c->ctx, &call));
    return gdn_cuda_note(c->ctx, c->op, kernel);
}

static gdn_status launch(const struct gdn_decode_call *c, enum gdn_kernel_id kernel,
                         const void *args)
{
    const int bytes = (int)gdn_dtype_bytes(c->pool->dtype);
    return launch_parts(c, kernel, args, c->pool->k_first ? TOKEN_COLUMNS : BLOCK_BYTES / bytes);
}

gdn_status gdn_decode_launch_token(const struct gdn_decode_call *c)
{
#define IO(name)                                      \
    {                                                 \
        { SIZES(name##_BF16) }, { SIZES(name##_F16) } \
    }
    static const enum gdn_kernel_id mixed[2][2][3] = { IO(GDN_CU_decode_token_vk_F32),
                                                       IO(GDN_CU_decode_token_kv_F32) };
    static const enum gdn_kernel_id alike[2][2][3] = {
        { { SIZES(GDN_CU_decode_token_vk_BF16_BF16) }, { SIZES(GDN_CU_decode_token_vk_F16_F16) } },
        { { SIZES(GDN_CU_decode_token_kv_BF16_BF16) }, { SIZES(GDN_CU_decode_token_kv_F16_F16) } },
    };
    const struct gdn_cu_token a = gdn_cuda_token_args(c->rule, &c->warp);
    const bool f16 = c->rule->k.dtype == GDN_F16;
    const int size = gdn_decode_size(c->rule->K);
    return launch(c, (c->pool->dtype == GDN_F32 ? mixed : alike)[c->pool->k_first][f16][size], &a);
}

gdn_status gdn_decode_launch_channels_token(const struct gdn_decode_call *c)
{
    static const enum gdn_kernel_id kernels[2][2] = {
        { GDN_CU_decode_channels_token_F32_BF16_128, GDN_CU_decode_channels_token_F32_F16_128 },
        { GDN_CU_decode_channels_token_BF16_BF16_128, GDN_CU_decode_channels_token_F16_F16_128 },
    };
    const struct gdn_cu_token a = gdn_cuda_token_args(c->rule, &c->warp);
    return launch_parts(c, kernels[c->pool->dtype != GDN_F32][c->rule->k.dtype == GDN_F16], &a,
                        GDN_CU_CHANNELS_ROWS);
}

gdn_status gdn_decode_launch_token_slots(const struct gdn_decode_call *c)
{
    static const enum gdn_kernel_id kernels[] = { GDN_CU_decode_token_slots_BF16_BF16_128,
                                                  GDN_CU_decode_token_slots_F16_F16_128 };
    const struct gdn_cu_token a = gdn_cuda_token_args(c->rule, &c->warp);
    return launch(c, kernels[c->rule->k.dtype == GDN_F16], &a);
}

gdn_status gdn_decode_launch_token_packed(const struct gdn_decode_call *c)
{
    static const enum gdn_kernel_id mixed[2][2][3] = { IO(GDN_CU_decode_token_packed_vk_F32),
                                                       IO(GDN_CU_decode_token_packed_kv_F32) };
    static const enum gdn_kernel_id rows[2][3] = {
        { SIZES(GDN_CU_decode_token_packed_vk_BF16_BF16) },
        { SIZES(GDN_CU_decode_token_packed_vk_F16_F16) },
    };
    static const enum gdn_kernel_id columns[2] = {
        /* K is 128 */
        GDN_CU_decode_token_packed_kv_BF16_BF16_128,
        GDN_CU_decode_token_packed_kv_F16_F16_128,
    };
    const struct gdn_cu_warp *warp = &c->warp;
    const struct gdn_cu_token_packed a = {
        .one = gdn_cuda_token_args(c->rule, warp),
        .cu_seqlens = gdn_cuda_at_vector(&warp->cu_seqlens),
        .initial = gdn_cuda_at_vector(&warp->has_initial_state),
        .initial_bytes = bytes_of(warp->has_initial_state.data, warp->has_initial_state.dtype),
        .n = warp->B,
    };
    const bool f16 = c->rule->k.dtype == GDN_F16, k_first = c->pool->k_first;
    const int size = gdn_decode_size(c->rule->K);
    if (c->pool->dtype == GDN_F32) return launch(c, mixed[k_first][f16][size], &a);
    return launch(c, k_first ? columns[f16] : rows[f16][size], &a);
}

/* Plans the sequences of one token. SINGLE_ROWS or SINGLE_COLUMNS blocks for each multiprocessor
 * share them. */
struct gdn_cuda_singles gdn_decode_singles_of(const struct gdn_decode_call *c)
{
    static const enum gdn_kernel_id mixed[2][2] = {
        { GDN_CU_decode_token_single_vk_F32_BF16_128, GDN_CU_decode_token_single_vk_F32_F16_128 },
        { GDN_CU_decode_token_single_kv_F32_BF16_128, GDN_CU_decode_token_single_kv_F32_F16_128 },
    };
    static const enum gdn_kernel_id alike[2][2] = {
        { GDN_CU_decode_token_single_vk_BF16_BF16_128, GDN_CU_decode_token_single_vk_F16_F16_128 },
        { GDN_CU_decode_token_single_kv_BF16_BF16_128, GDN_CU_decode_token_single_kv_F16_F16_128 },
    };
    const struct gdn_cu_rule *r = c->rule;
    const struct gdn_cu_warp *warp = &c->warp;
    const bool f16 = r->k.dtype == GDN_F16, k_first = c->pool->k_first;
    const int columns =
        k_first ? TOKEN_COLUMNS : BLOCK_BYTES / (int)gdn_dtype_bytes(c->pool->dtype);
    const int64_t each = (int64_t)(r->V / columns) * r->H;
    const int64_t most = (int64_t)c->ctx->cuda->sm_count * (k_first ? SINGLE_COLUMNS : SINGLE_ROWS);
    const int64_t n = most / each > 0 ? most / each : 1;
    return (struct gdn_cuda_singles){
        .args.one = gdn_cuda_token_args(r, warp),
        .args.cu_seqlens = gdn_cuda_at_vector(&warp->cu_seqlens),
        .args.initial = gdn_cuda_at_vector(&warp->has_initial_state),
        .args.initial_bytes = bytes_of(warp->has_initial_state.data, warp->has_initial_state.dtype),
        .args.n = warp->B,
        .args.n_tokens = warp->N,
        .call.kernel = (c->pool->dtype == GDN_F32 ? mixed : alike)[k_first][f16],
        .call.grid = { r->V / columns, r->H, n < warp->B ? n : warp->B },
        .call.overlaps = true,
    };
}

gdn_status gdn_cuda_decode_singles(gdn_ctx *ctx, const struct gdn_cuda_singles *singles,
                                   struct gdn_cuda_ran *ran, void *stream)
{
    struct gdn_cuda_call call = singles->call;
    call.args = &singles->args;
    call.stream = stream;
    TRY(gdn_cuda_launch(ctx, &call));
    gdn_cuda_ran_add(ran, call.kernel);
    return GDN_OK;
}

/* Returns the address of scales, by slot and head. */
static struct gdn_cu_at at_scales(const struct gdn_pool_view *p)
{
    return (struct gdn_cu_at){ (char *)p->scales, 4 * (int32_t)p->scales_slot,
                               4 * (int32_t)p->scales_head };
}

gdn_status gdn_decode_launch_token_eight(const struct gdn_decode_call *c)
{
    static const enum gdn_kernel_id kernels[2][2] = {
        { GDN_CU_decode_token_eight_I8_BF16_128, GDN_CU_decode_token_eight_I8_F16_128 },
        { GDN_CU_decode_token_eight_E4M3_BF16_128, GDN_CU_decode_token_eight_E4M3_F16_128 },
    };
    const struct gdn_cu_rule *r = c->rule;
    const struct gdn_cu_token_eight a = {
        .one = gdn_cuda_token_args(r, &c->warp),
        .from_scales = at_scales(&r->from),
        .to_scales = at_scales(&r->to),
        .seed = r->to.seed,
        .random = r->to.random,
    };
    return launch(c, kernels[c->pool->dtype == GDN_E4M3][r->k.dtype == GDN_F16], &a);
}

static enum gdn_kernel_id k128_kernel(const struct gdn_decode_call *c)
{
    static const enum gdn_kernel_id kept[] = { GDN_CU_decode_window_k128_each_BF16_BF16_128,
                                               GDN_CU_decode_window_k128_each_F16_F16_128 };
    static const enum gdn_kernel_id mixed[] = { GDN_CU_decode_window_k128_vk_F32_BF16_128,
                                                GDN_CU_decode_window_k128_vk_F32_F16_128 };
    static const enum gdn_kernel_id many[] = { GDN_CU_decode_window_k128_many_F32_BF16_128,
                                               GDN_CU_decode_window_k128_many_F32_F16_128 };
    const bool f16 = c->rule->k.dtype == GDN_F16;
    if (c->warp.T > FEW_TOKENS) return many[f16];
    if (c->pool->k_first) return GDN_CU_decode_window_k128_kv_BF16_BF16_128;
    if (c->pool->dtype == GDN_F32) return mixed[f16];
    return c->warp.each ? kept[f16] : GDN_CU_decode_window_k128_vk_BF16_BF16_128;
}

gdn_status gdn_decode_launch_window_k128(const struct gdn_decode_call *c)
{
    const struct gdn_cu_warp *warp = &c->warp;
    const struct gdn_cu_window_k128 a = {
        .one = gdn_cuda_token_args(c->rule, warp),
        .k_token = warp->k.token,
        .q_token = warp->q.token,
        .v_token = warp->v.token,
        .g_token = warp->g.token,
        .beta_token = warp->beta.token,
        .out_token = warp->out.token,
        .T = warp->T,
        .each = warp->each,
        .write_token = (int32_t)warp->write_slots.stride[1],
        .n_writes = warp->write_slots.n_columns,
        .accepted = warp->num_accepted_tokens.data,
        .accepted_step = (int32_t)warp->num_accepted_tokens.stride[0],
        .read_token = (int32_t)warp->read_slots.stride[1],
        .n_reads = warp->read_slots.n_columns,
    };
    return launch(c, k128_kernel(c), &a);
}
