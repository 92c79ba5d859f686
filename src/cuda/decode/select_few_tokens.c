/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_decode of one token of each sequence and of a few, as kernels of their own take them
 * (token.cuh, token_slots.cuh, token_packed.cuh, window_k128.cuh).
 */
#include "cuda/decode/select.h"

/* Value columns of a block: so many of states whose rows are k, else elements of so many bytes. */
enum { ONE_COLUMNS = 64, ONE_COLUMN_BYTES = 32, SLOTS_K = 128, PACKED_K = 128, FOUR_K = 128 };

/* So many blocks of a multiprocessor are few (docs/log/cuda-speed.md); bits are the same (G2). */
enum { SLOTS_BLOCKS = 64 };

/* What a sequence of one token and a head have there; as warps see it. */
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
        char       *out;
    } data = { .in = a->data };
    return (struct gdn_cu_at){ data.out, 0, (int32_t)step };
}

static int32_t bytes_of(const void *data, int32_t dtype)
{
    return data ? (int32_t)gdn_dtype_bytes(dtype) : 0;
}

/* Is it of float32, or of the other dtype, or not there? */
static bool is_either(const void *data, int32_t dtype, int32_t other)
{
    return !data || dtype == GDN_F32 || dtype == other;
}

/* Indices that are there, of that dtype or int32, or none; those of all rows within 32 bits. */
static bool is_index(const struct gdn_cu_array *a, int32_t dtype)
{
    return !a->data || ((a->dtype == GDN_I32 || a->dtype == dtype) &&
                        gdn_cuda_is_near(a->stride[0], MOST_ROWS));
}

/* A table of them, rows and columns together. */
static bool is_near_table(const struct gdn_cu_array *a)
{
    return !a->data || (gdn_cuda_is_near(a->stride[0], 2 * MOST_ROWS) &&
                        gdn_cuda_is_near(a->stride[1], 2 * ((int64_t)a->n_columns + 1)));
}

/* Is it of that kind, in whatever tokens? Without read_slots nobody looks whether slots exist. */
static bool is_one(const struct gdn_cu_rule *r, const struct gdn_cu_warp *a)
{
    const int32_t io = a->k.dtype, state = gdn_cuda_like(r)->dtype;
    return a->from.data && a->B <= MOST_ROWS &&
           is_index(&a->read_slots, GDN_I32) && is_index(&a->write_slots, GDN_I32) &&
           (a->read_slots.data || (gdn_cuda_has_slots(a) && (!a->write_slots.data || a->each))) &&
           io != GDN_F32 &&
           (state == GDN_F32 || state == io) && a->q.dtype == io && a->v.dtype == io &&
           is_either(a->g.data, a->g.dtype, io) && is_either(a->beta.data, a->beta.dtype, io) &&
           is_either(a->A_log.data, a->A_log.dtype, io) &&
           is_either(a->dt_bias.data, a->dt_bias.dtype, io) &&
           (!a->out.data || a->out.dtype == io) &&
           r->V % (gdn_cuda_like(r)->k_first ? ONE_COLUMNS : WARP_COLUMNS) == 0;
}

/* By rows, all with a state; or by cu_seqlens or with initial states (token_packed.cuh). */
bool gdn_cuda_takes_one(const struct gdn_cu_rule *r, const struct gdn_cu_warp *a)
{
    return a->whole && is_one(r, a) && a->T == 1 && !a->cu_seqlens.data &&
           !a->has_initial_state.data && !a->num_accepted_tokens.data;
}
static bool takes_packed(const struct gdn_cu_rule *r, const struct gdn_cu_warp *a)
{
    return a->whole && is_one(r, a) && r->K == PACKED_K && a->read_pool > 0 &&
           a->B < MOST_ROWS && !a->num_accepted_tokens.data &&
           is_index(&a->has_initial_state, GDN_U8) &&
           (a->cu_seqlens.data ? a->N == a->B && is_index(&a->cu_seqlens, GDN_I64) : a->T == 1);
}

/* Rows of up to four tokens, or more where all states of float32 are kept; states whose rows are v
 * may all be (window_k128.cuh)? */
static bool takes_four(const struct gdn_cu_rule *r, const struct gdn_cu_warp *a)
{
    const struct gdn_pool_view *like = gdn_cuda_like(r);
    return is_one(r, a) && gdn_cuda_is_whole(r, a) && r->K == FOUR_K && !a->cu_seqlens.data &&
           a->T > 0 && (a->T <= FEW_TOKENS || (a->each && like->dtype == GDN_F32)) &&
           !a->has_initial_state.data &&
           is_index(&a->num_accepted_tokens, GDN_I32) &&
           is_near_table(&a->read_slots) && is_near_table(&a->write_slots) &&
           (like->dtype == GDN_F32 || a->each ? !like->k_first : like->dtype == GDN_BF16);
}

/* 2^22 / the state heads that share one of n, rounded up. */
static uint32_t group_of(const struct gdn_cu_rule *r, int n)
{
    return ((1u << 22) + (uint32_t)(r->H / n) - 1) / (uint32_t)(r->H / n);
}

/* Absent gates make 1 of 0: exp(0), 2 sigmoid(0). */
struct gdn_cu_one gdn_cuda_one_args(const struct gdn_cu_rule *r, const struct gdn_cu_warp *a)
{
    const bool packed = a->cu_seqlens.data;
    return (struct gdn_cu_one){
        .from          = at_pool(&a->from),
        .to            = at_pool(&a->to),
        .k             = at_of(&a->k, packed),
        .q             = at_of(&a->q, packed),
        .v             = at_of(&a->v, packed),
        .g             = at_of(&a->g, packed),
        .beta          = at_of(&a->beta, packed),
        .A_log         = gdn_cuda_at_vector(&a->A_log),
        .dt_bias       = gdn_cuda_at_vector(&a->dt_bias),
        .out           = at_of(&a->out, packed),
        .from_row      = a->from.row,
        .to_row        = a->to.row,
        .group_k       = group_of(r, r->Hk),
        .group_q       = group_of(r, r->Hq),
        .group_v       = group_of(r, r->Hv),
        .g_bytes       = bytes_of(a->g.data, a->g.dtype),
        .beta_bytes    = bytes_of(a->beta.data, a->beta.dtype),
        .A_log_bytes   = bytes_of(a->A_log.data, a->A_log.dtype),
        .dt_bias_bytes = bytes_of(a->dt_bias.data, a->dt_bias.dtype),
        .gate          = a->g.data ? a->gate : GDN_GATE_LOG,
        .beta_kind     = a->beta.data ? a->beta_kind : GDN_BETA_TWICE_SIGMOID,
        .norm          = a->norm,
        .norm_eps      = a->norm_eps,
        .scale         = a->scale,
        .bound         = a->bound,
        .read_slots    = a->read_slots.data,
        .write_slots   = a->write_slots.data,
        .read_step     = (int32_t)a->read_slots.stride[0],
        .write_step    = (int32_t)a->write_slots.stride[0],
        .read_pool     = a->read_pool,
        .write_pool    = a->write_pool,
        .keep          = a->keep,
    };
}

static enum gdn_kernel_id one_kernel(const struct gdn_pool_view *like, int32_t io, int K)
{
#define IO(name) { { SIZES(name##_BF16) }, { SIZES(name##_F16) } }
    static const enum gdn_kernel_id mixed[2][2][3] = { IO(GDN_CU_decode_one_vk_F32),
                                                       IO(GDN_CU_decode_one_kv_F32) };
    static const enum gdn_kernel_id alike[2][2][3] = {
        { { SIZES(GDN_CU_decode_one_vk_BF16_BF16) }, { SIZES(GDN_CU_decode_one_vk_F16_F16) } },
        { { SIZES(GDN_CU_decode_one_kv_BF16_BF16) }, { SIZES(GDN_CU_decode_one_kv_F16_F16) } },
    };
    return (like->dtype == GDN_F32 ? mixed : alike)[like->k_first][io == GDN_F16][gdn_cuda_size(K)];
}

static enum gdn_kernel_id packed_kernel(const struct gdn_pool_view *like, int32_t io)
{
    static const enum gdn_kernel_id kernels[2][2][2] = {
        { { GDN_CU_decode_one_packed_vk_BF16_BF16_128, GDN_CU_decode_one_packed_vk_F16_F16_128 },
          { GDN_CU_decode_one_packed_vk_F32_BF16_128, GDN_CU_decode_one_packed_vk_F32_F16_128 } },
        { { GDN_CU_decode_one_packed_kv_BF16_BF16_128, GDN_CU_decode_one_packed_kv_F16_F16_128 },
          { GDN_CU_decode_one_packed_kv_F32_BF16_128, GDN_CU_decode_one_packed_kv_F32_F16_128 } },
    };
    return kernels[like->k_first][like->dtype == GDN_F32][io == GDN_F16];
}

/* Are slots what the call waits for? */
static bool takes_slots(const gdn_ctx *ctx, const struct gdn_cu_rule *r,
                        const struct gdn_cu_warp *a)
{
    const struct gdn_pool_view *like = gdn_cuda_like(r);
    const int64_t blocks = gdn_cuda_sequences(r) * r->H * (r->V / WARP_COLUMNS);
    return a->read_slots.data && a->read_pool > 0 && r->K == SLOTS_K && like->dtype == r->k.dtype &&
           !like->k_first && blocks <= (int64_t)SLOTS_BLOCKS * ctx->cuda->sm_count;
}

/* A block for each of a state's parts. */
static gdn_status launch_one(gdn_ctx *ctx, const char *op, const struct gdn_cu_rule *r,
                             enum gdn_kernel_id kernel, const void *args, void *stream)
{
    const struct gdn_pool_view *like = gdn_cuda_like(r);
    const int columns = like->k_first ? ONE_COLUMNS
                                      : ONE_COLUMN_BYTES / (int)gdn_dtype_bytes(like->dtype);
    const struct gdn_cuda_call  call = {
        .kernel   = kernel,
        .grid     = { r->V / columns, r->H, gdn_cuda_sequences(r) },
        .stream   = stream,
        .args     = args,
        .overlaps = true,
    };
    TRY(gdn_cuda_launch(ctx, &call));
    return gdn_cuda_note(ctx, op, kernel);
}

static gdn_status decode_one(gdn_ctx *ctx, const char *op, const struct gdn_cu_rule *r,
                             const struct gdn_cu_warp *warp, void *stream)
{
    static const enum gdn_kernel_id slots[] = { GDN_CU_decode_one_slots_BF16_BF16_128,
                                                GDN_CU_decode_one_slots_F16_F16_128 };
    const struct gdn_cu_one         a       = gdn_cuda_one_args(r, warp);
    const enum gdn_kernel_id        kernel  = takes_slots(ctx, r, warp)
                                                  ? slots[r->k.dtype == GDN_F16]
                                                  : one_kernel(gdn_cuda_like(r), r->k.dtype, r->K);
    return launch_one(ctx, op, r, kernel, &a, stream);
}

static gdn_status decode_packed(gdn_ctx *ctx, const char *op, const struct gdn_cu_rule *r,
                                const struct gdn_cu_warp *warp, void *stream)
{
    const struct gdn_cu_packed a = {
        .one           = gdn_cuda_one_args(r, warp),
        .cu_seqlens    = gdn_cuda_at_vector(&warp->cu_seqlens),
        .initial       = gdn_cuda_at_vector(&warp->has_initial_state),
        .initial_bytes = bytes_of(warp->has_initial_state.data, warp->has_initial_state.dtype),
        .n             = warp->B,
    };
    return launch_one(ctx, op, r, packed_kernel(gdn_cuda_like(r), r->k.dtype), &a, stream);
}

static enum gdn_kernel_id four_kernel(const struct gdn_pool_view *like, int32_t io, int T,
                                      bool each)
{
    static const enum gdn_kernel_id kept[]  = { GDN_CU_decode_four_each_BF16_BF16_128,
                                                GDN_CU_decode_four_each_F16_F16_128 };
    static const enum gdn_kernel_id mixed[] = { GDN_CU_decode_four_vk_F32_BF16_128,
                                                GDN_CU_decode_four_vk_F32_F16_128 };
    static const enum gdn_kernel_id many[]  = { GDN_CU_decode_four_many_F32_BF16_128,
                                                GDN_CU_decode_four_many_F32_F16_128 };
    if (T > FEW_TOKENS) return many[io == GDN_F16];
    if (like->k_first) return GDN_CU_decode_four_kv_BF16_BF16_128;
    if (like->dtype == GDN_F32) return mixed[io == GDN_F16];
    return each ? kept[io == GDN_F16] : GDN_CU_decode_four_vk_BF16_BF16_128;
}

static gdn_status decode_four(gdn_ctx *ctx, const char *op, const struct gdn_cu_rule *r,
                              const struct gdn_cu_warp *warp, void *stream)
{
    const struct gdn_pool_view *like = gdn_cuda_like(r);
    const struct gdn_cu_four    a    = {
        .one           = gdn_cuda_one_args(r, warp),
        .k_token       = warp->k.token,
        .q_token       = warp->q.token,
        .v_token       = warp->v.token,
        .g_token       = warp->g.token,
        .beta_token    = warp->beta.token,
        .out_token     = warp->out.token,
        .T             = warp->T,
        .each          = warp->each,
        .write_token   = (int32_t)warp->write_slots.stride[1],
        .n_writes      = warp->write_slots.n_columns,
        .accepted      = warp->num_accepted_tokens.data,
        .accepted_step = (int32_t)warp->num_accepted_tokens.stride[0],
        .read_token    = (int32_t)warp->read_slots.stride[1],
        .n_reads       = warp->read_slots.n_columns,
    };
    return launch_one(ctx, op, r, four_kernel(like, r->k.dtype, warp->T, warp->each),
                      &a, stream);
}

enum gdn_cuda_few gdn_cuda_few_of(const struct gdn_cu_rule *r, const struct gdn_cu_warp *a)
{
    if (gdn_cuda_takes_one(r, a)) return GDN_CUDA_ONE;
    if (takes_packed(r, a)) return GDN_CUDA_PACKED;
    return takes_four(r, a) ? GDN_CUDA_FOUR : GDN_CUDA_MANY;
}

gdn_status gdn_cuda_decode_few(gdn_ctx *ctx, const char *op, const struct gdn_cu_rule *r,
                               const struct gdn_cu_warp *a, enum gdn_cuda_few few, void *stream)
{
    if (few == GDN_CUDA_ONE) return decode_one(ctx, op, r, a, stream);
    return few == GDN_CUDA_PACKED ? decode_packed(ctx, op, r, a, stream)
                                  : decode_four(ctx, op, r, a, stream);
}
