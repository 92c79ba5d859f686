/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_step on a device: in one launch (step_rows.cuh, step_general.cuh), or by the kernels of its
 * parts one after the other. If states of the convolution move in one launch, then blocks that
 * share q and k are a cluster: all of them have read the old states before one moves them. */
#include "calls/layer_step.h"
#include "calls/op_backends.h"
#include "cuda/conv/conv.h"
#include "cuda/decode/decode.h"
#include "cuda/driver/choice.h"
#include "cuda/driver/contents.h"
#include "cuda/layer/args.h"
#include "cuda/rowwise/rowwise.h"

static struct gdn_plan_pools pools_of(const gdn_tensor *state)
{
    return gdn_plan_pools_of(state, state, &(gdn_tensor){ 0 });
}

static void fill_rule(struct gdn_cu_rule *to, const struct gdn_step_call *m,
                      const struct gdn_rule *rule)
{
    const struct gdn_plan_pools pools = pools_of(&m->args.state);
    gdn_cuda_fill_rule(to, rule, &m->args.A_log, &m->args.dt_bias, &m->plan, &m->tokens, &pools);
}

/* ---- One launch ---------------------------------------------------------------------------- */

/* TAPS, MOST (of K and V), COLUMNS: as in step_general.cuh. CLUSTER: the most blocks of a cluster.
 * MOST_ROWS: the most blocks in the second dimension of a grid. */
enum { TAPS = 4, MOST = 128, COLUMNS = 16, CLUSTER = 8, MOST_ROWS = 65535 };

/* Fills in the rule for kernels that take x in place of q, k and v. */
static void fill_whole(struct gdn_cu_rule *to, const struct gdn_step_call *m)
{
    fill_rule(to, m, &m->rule);
    to->q = to->k = to->v = m->conv.x;
}

/* Returns true if offsets inside a slot, and the step to the next one, fit 32 bits. */
static bool are_near_taps(const struct gdn_conv_view *v, int64_t n_channels)
{
    return !v->data || (v->length < INT32_MAX / 8 && gdn_cuda_is_near(v->slot, 4) &&
                        gdn_cuda_is_near(v->channel, 8 * n_channels) &&
                        gdn_cuda_is_near(v->entry, 8 * (v->length + 1)));
}

static struct gdn_cu_taps taps_of(const struct gdn_conv_view *v)
{
    const int64_t bytes = v->data ? (int64_t)gdn_dtype_bytes(v->dtype) : 0;
    return (struct gdn_cu_taps){ v->data, v->dtype, (int32_t)(v->slot * bytes),
                                 (int32_t)(v->channel * bytes), (int32_t)(v->entry * bytes) };
}

/* Returns true if the blocks of a key head can wait for each other: there is one, or they are a
 * cluster. */
static bool are_together(const gdn_ctx *ctx, int n_blocks)
{
    return n_blocks == 1 || (gdn_cuda_runs_sm_90a(ctx->cuda) && n_blocks <= CLUSTER);
}

/* Returns true if the call writes states of the convolution. */
static bool writes_conv(const struct gdn_step_call *m)
{
    return m->conv.from.data && m->plan.batch.write != GDN_WRITE_NONE;
}

/* Returns why a call is not one launch, as text for the log; NULL: it is one. */
static const char *why_not_one_launch(const gdn_ctx *ctx, const struct gdn_step_call *m,
                                      const struct gdn_cu_rule *r)
{
    const struct gdn_cu_array norm_weight = gdn_cuda_array(&m->args.norm_weight);
    const struct gdn_rows z = gdn_rows_of(&m->args.z, &m->tokens);
    if (m->norm.sigmoid) return "the gate of the norm is a sigmoid";
    if (r->record_k.data) return "the call has a record";
    if (!r->from.data) return "state is absent";
    if (r->K > MOST || r->V > MOST) return "K or V is above 128";
    if (m->conv.W != TAPS) return "the convolution has not 4 taps";
    if (!gdn_cuda_takes_warps(r)) return "the warp form of decode does not take the rule";
    if (writes_conv(m) && !are_together(ctx, r->H / r->Hk))
        return "conv_state moves, but blocks that share q and k are no cluster";
    if (!gdn_cuda_are_near(&z) || !gdn_cuda_is_near_vector(&norm_weight) ||
        !are_near_taps(&m->conv.weight, m->conv.D) || !are_near_taps(&m->conv.bias, m->conv.D) ||
        !are_near_taps(&m->conv.from, m->conv.D))
        return "strides of z, of the convolution or of norm_weight do not fit 32 bits";
    return NULL;
}

/* Returns log2 of the parts that the columns of a state are divided into. More parts spread few
 * blocks over the device. A norm needs all columns of a head, so it has one part. */
static int part_bits(const gdn_ctx *ctx, const struct gdn_step_call *m, const struct gdn_cu_rule *r)
{
    const int group = r->H / r->Hk;
    int bits = 0;
    while (!m->normed && r->V % (2 * COLUMNS << bits) == 0 &&
           are_together(ctx, group << (bits + 1)) &&
           r->batch.B * r->H << (bits + 1) <= ctx->cuda->sm_count)
        bits++;
    return bits;
}

static void fill_step(struct gdn_cu_step_general *a, const gdn_ctx *ctx,
                      const struct gdn_step_call *m, const struct gdn_cu_rule *r)
{
    const struct gdn_rows z = gdn_rows_of(&m->args.z, &m->tokens);
    const int group = r->H / r->Hk;
    const int bits = part_bits(ctx, m, r);
    const int blocks = group << bits;
    gdn_cuda_fill_warp(&a->rule, r);
    a->rule.n_rows = (int32_t)r->batch.B + (r->out.data && r->batch.cu_seqlens.data);
    a->x = gdn_cuda_near(&r->k, &r->batch);
    a->z = gdn_cuda_near(&z, &r->batch);
    a->weight = taps_of(&m->conv.weight);
    a->bias = taps_of(&m->conv.bias);
    a->conv = taps_of(&m->conv.from);
    a->norm_weight = gdn_cuda_array(&m->args.norm_weight);
    a->Hk = r->Hk;
    a->group = group;
    a->n_columns = r->V >> bits;
    a->part_bits = bits;
    a->n_blocks = blocks;
    a->key_blocks = gdn_cuda_inverse(blocks);
    a->share = (2 * r->K + blocks - 1) / blocks;
    a->length = (int32_t)m->conv.from.length;
    a->moves = writes_conv(m);
    a->normed = m->normed;
    a->rms_eps = m->norm.eps;
}

/* Returns true if the address and the steps are multiples of n elements. */
static bool is_even(const void *data, int64_t steps, int32_t dtype, int n)
{
    return (((uint64_t)(uintptr_t)data) | (uint64_t)steps) % (n * gdn_dtype_bytes(dtype)) == 0;
}

/* Returns true if the four taps of a channel can be loaded at once. */
static bool are_even_taps(const struct gdn_cu_taps *w)
{
    return w->entry == (int32_t)gdn_dtype_bytes(w->dtype) &&
           is_even(w->data, w->channel, w->dtype, TAPS);
}

/* Return true if biases, and states of three entries, can be loaded at once: two channels of an
 * entry, or the entries of two channels. */
static bool are_even_channels(const struct gdn_cu_taps *p)
{
    return !p->data || (p->channel == (int32_t)gdn_dtype_bytes(p->dtype) &&
                        is_even(p->data, p->slot | p->entry, p->dtype, 2));
}
static bool are_even_states(const struct gdn_cu_step_general *a)
{
    const struct gdn_cu_taps *p = &a->conv;
    const int32_t bytes = p->data ? (int32_t)gdn_dtype_bytes(p->dtype) : 0;
    if (!p->data) return true;
    if (a->length != TAPS - 1) return false;
    return p->entry == bytes ? p->channel == 3 * bytes && is_even(p->data, p->slot, p->dtype, 2)
                             : p->entry > bytes && are_even_channels(p);
}

/* Returns true if every sequence has one token and channels can be taken in pairs. */
#define NOT_ONE_TOKEN "sequences are of several tokens, or channels not in aligned pairs"
static bool is_one_token(const struct gdn_cu_step_general *a, const struct gdn_cu_rule *r)
{
    return r->batch.T == 1 && !r->batch.cu_seqlens.data && !a->rule.each && r->K % 2 == 0 &&
           r->V % 2 == 0 && is_even(a->x.data, a->x.row | a->x.token, a->x.dtype, 2) &&
           are_even_taps(&a->weight) && are_even_channels(&a->bias) && are_even_states(a);
}

/* ---- One token of each sequence, of rows of v (step_rows.cuh) -------------------------------- */

enum { ROWS_K = 128 };

static bool is_either(const void *data, int32_t dtype, int32_t other)
{
    return !data || dtype == GDN_F32 || dtype == other;
}

static bool has_rows_norm(const struct gdn_cu_step_general *a, const struct gdn_cu_rule *r)
{
    const int32_t io = a->x.dtype;
    return !a->normed || (r->V == ROWS_K && r->out.data && (!a->z.data || a->z.dtype == io) &&
                          is_either(a->norm_weight.data, a->norm_weight.dtype, io));
}

/* Returns why step_rows.cuh does not take a call of one launch. */
static const char *why_not_rows(const struct gdn_cu_step_general *a, const struct gdn_cu_rule *r)
{
    const int32_t io = a->x.dtype;
    if (r->from.k_first || r->K != ROWS_K) return "states are not rows of 128 keys";
    if (!is_one_token(a, r)) return NOT_ONE_TOKEN;
    if (!gdn_cuda_takes_one(r, &a->rule)) return "the token form of decode does not take the rule";
    if (a->weight.dtype != io || !is_either(a->bias.data, a->bias.dtype, io) ||
        !is_either(a->conv.data, a->conv.dtype, io))
        return "the convolution has another dtype than x";
    return has_rows_norm(a, r) ? NULL : "the norm has other columns or another dtype";
}

static struct gdn_cu_step_rows rows_args(const struct gdn_cu_step_general *a,
                                         const struct gdn_cu_rule *r)
{
    const int32_t entry = a->conv.entry;
    const bool by_entry = a->conv.channel > entry;
    return (struct gdn_cu_step_rows){
        .one = gdn_cuda_token_args(r, &a->rule),
        .x = { a->x.data, a->x.row, 0 },
        .z = { a->z.data, a->z.row, a->z.head },
        .norm_weight = gdn_cuda_at_vector(&a->norm_weight),
        .weight = a->weight,
        .bias = a->bias,
        .conv = a->conv,
        .norm_weight_bytes =
            a->norm_weight.data ? (int32_t)gdn_dtype_bytes(a->norm_weight.dtype) : 0,
        .Hk = a->Hk,
        .group = a->group,
        .V = r->V,
        .n_columns = a->n_columns,
        .part_bits = a->part_bits,
        .n_blocks = a->n_blocks,
        .share = a->share + a->share % 2,
        .pair_step = by_entry ? 2 * entry : entry,
        .by_entry = by_entry,
        .moves = a->moves,
        .normed = a->normed,
        .rms_eps = a->rms_eps,
    };
}

/* The launch of a call that is one launch. The first of the forms rows, pairs and general that
 * takes the call computes it. why_not_...: why a form does not, as text for the log; NULL: it
 * does. */
struct one_launch {
    const char *why_not_rows, *why_not_pairs;
    union {
        struct gdn_cu_step_rows rows;
        struct gdn_cu_step_general general;
    } args;
    struct gdn_cuda_call call; /* without args */
};

static void plan_rows(const gdn_ctx *ctx, const struct gdn_cu_rule *r,
                      const struct gdn_cu_step_general *step, struct one_launch *l)
{
    struct gdn_cu_step_rows *a = &l->args.rows;
    *a = rows_args(step, r);
    const bool f16 = step->x.dtype == GDN_F16;
    const int warps = (a->n_columns + COLUMNS - 1) / COLUMNS;
    const int conv = (2 * r->K + a->n_columns + 63) / 64; /* one more warp has the gates */
    l->call = (struct gdn_cuda_call){
        .kernel = r->from.dtype == GDN_F32
                      ? f16 ? GDN_CU_step_rows_F32_F16 : GDN_CU_step_rows_F32_BF16
                  : f16 ? GDN_CU_step_rows_F16_F16
                        : GDN_CU_step_rows_BF16_BF16,
        .grid = { a->n_blocks, r->Hk, r->batch.B },
        .n_threads = 32 * (warps > conv ? warps : conv + 1),
        .shared_bytes = (size_t)(a->n_columns * r->K) * gdn_dtype_bytes(r->from.dtype),
        .cluster = are_together(ctx, a->n_blocks) ? a->n_blocks : 1,
        .overlaps = true,
    };
}

/* ---- Any ------------------------------------------------------------------------------------ */

/* Returns why step_pairs.cuh does not take a call of one launch. */
static const char *why_not_pairs(const struct gdn_cu_step_general *a, const struct gdn_cu_rule *r)
{
    if (!r->from.k_first) return "states are k-last";
    return is_one_token(a, r) ? NULL : NOT_ONE_TOKEN;
}

static void plan_general(const gdn_ctx *ctx, const struct gdn_cu_rule *r,
                         const struct gdn_cu_step_general *step, struct one_launch *l)
{
#define DTYPES(name)                        \
    {                                       \
        name##_F32, name##_BF16, name##_F16 \
    }
    static const enum gdn_kernel_id general[][3] = { DTYPES(GDN_CU_step_general_vk),
                                                     DTYPES(GDN_CU_step_general_kv) };
    static const enum gdn_kernel_id pairs[3] = DTYPES(GDN_CU_step_pairs_kv);
    const enum gdn_kernel_id *kernels = l->why_not_pairs ? general[r->from.k_first] : pairs;
    const struct gdn_cu_step_general *a = &l->args.general;
    l->args.general = *step;
    const int64_t n = a->rule.n_rows, rows = n < MOST_ROWS ? n : MOST_ROWS;
    /* A warp has sixteen columns, and a thread convolves at most two channels. */
    const int n_state = (a->n_columns + COLUMNS - 1) / COLUMNS;
    const int n_conv = (2 * r->K + a->n_columns + 63) / 64;
    l->call = (struct gdn_cuda_call){
        .kernel = kernels[r->from.dtype],
        .grid = { (int64_t)r->Hk * a->n_blocks, rows, rows ? (n + rows - 1) / rows : 0 },
        .n_threads = 32 * (n_state > n_conv ? n_state : n_conv),
        .cluster = are_together(ctx, a->n_blocks) ? a->n_blocks : 1,
        .overlaps = true,
    };
}

/* ---- Memory of several --------------------------------------------------------------------- */

static bool spares_padding(const struct gdn_step_call *m)
{
    return m->normed && m->plan.batch.pad_policy == GDN_PAD_KEEP;
}

static size_t out_bytes(const struct gdn_step_call *m)
{
    return (size_t)(m->norm.n_rows * m->rule.V) * gdn_dtype_bytes(m->conv.x.dtype);
}

/* The workspace of a call of several launches. */
struct buffers {
    char *convolved;
    char *out;  /* [N][Hv][V], if there is a norm and padding keeps its output */
    char *tree; /* memory of the rule, for trees */
};

static size_t lay_out(const struct gdn_step_call *m, size_t tree_bytes, struct buffers *b,
                      char *memory)
{
    const struct gdn_room rooms[] = {
        { &b->convolved, gdn_step_call_bytes(m) },
        { &b->out, spares_padding(m) ? out_bytes(m) : 0 },
        { &b->tree, tree_bytes },
    };
    return gdn_lay_out_rooms(rooms, sizeof rooms / sizeof *rooms, memory);
}

/* ---- The plan ------------------------------------------------------------------------------ */

/* The launches of a call of several launches. */
struct parts {
    size_t tree_bytes;
    struct gdn_cuda_conv_plan conv;
    struct gdn_cu_rule rule;
    struct gdn_cuda_decode_plan decode;
    struct gdn_cuda_norm_plan norm;
};

/* The decisions about a call. */
struct planned {
    const char *why_not_one; /* why the call takes several launches; NULL: it takes one */
    union {
        struct one_launch one;
        struct parts parts;
    };
};
_Static_assert(sizeof(struct planned) <= GDN_PLAN_ROOM, "a plan has room");

/* Plans the convolution of the channels. */
static void plan_conv(const gdn_ctx *ctx, const struct gdn_step_call *m, struct gdn_rows out,
                      struct gdn_cuda_conv_plan *plan)
{
    const struct gdn_plan_pools pools = pools_of(&m->args.conv_state);
    struct gdn_conv conv = m->conv;
    conv.out = out;
    gdn_cuda_fill_conv(&plan->args, &conv, &m->plan, &m->tokens, &pools);
    gdn_cuda_conv_plan(ctx, plan);
}

static void plan_one(const gdn_ctx *ctx, const struct gdn_step_call *m,
                     const struct gdn_cu_rule *whole, struct planned *p)
{
    struct gdn_cu_step_general step;
    fill_step(&step, ctx, m, whole);
    p->one.why_not_rows = why_not_rows(&step, whole);
    p->one.why_not_pairs = why_not_pairs(&step, whole);
    (p->one.why_not_rows ? plan_general : plan_rows)(ctx, whole, &step, &p->one);
}

/* Returns the buffer in the shape of out. */
static gdn_tensor before_out(const struct gdn_step_call *m, const struct buffers *b)
{
    const gdn_tensor *t = &m->args.out;
    return gdn_dense(b->out, t->dtype, t->ndim, t->size[0], t->size[1], t->size[2], t->size[3]);
}

/* Returns the rule. Its rows are in the buffers, or in x and out. */
static struct gdn_rule rule_of(const struct gdn_step_call *m, const struct buffers *b)
{
    const gdn_tensor before = before_out(m, b);
    struct gdn_rule rule = m->rule;
    gdn_step_call_connect(m, b->convolved, &rule);
    if (spares_padding(m)) rule.out = gdn_rows_of(&before, &m->tokens);
    return rule;
}

/* The norm is in place. Tokens that are not valid have o = 0, and any z; their o stays zero. */
static void plan_norm(const struct gdn_step_call *m, const struct buffers *b,
                      struct gdn_cuda_norm_plan *plan)
{
    struct gdn_norm_job norm = m->norm;
    if (spares_padding(m)) norm.x = norm.out = before_out(m, b);
    gdn_cuda_fill_norm(&plan->args, &norm);
    plan->args.zeros = true;
    gdn_cuda_norm_plan(plan);
}

/* Returns the bytes of all buffers. */
static size_t plan_parts(gdn_ctx *ctx, const struct gdn_step_call *m, struct planned *p)
{
    struct parts *parts = &p->parts;
    struct buffers b;
    lay_out(m, 0, &b, GDN_CUDA_NOWHERE);
    if (gdn_step_convolves(m))
        plan_conv(ctx, m, gdn_step_call_rows(m, b.convolved, 0, 0), &parts->conv);
    const struct gdn_rule rule = rule_of(m, &b);
    fill_rule(&parts->rule, m, &rule);
    if (spares_padding(m)) parts->rule.batch.pad_policy = GDN_PAD_ZERO;
    gdn_cuda_decode_plan(ctx, "step", &parts->rule, &parts->decode);
    if (m->normed) plan_norm(m, &b, &parts->norm);
    parts->tree_bytes = parts->decode.bytes;
    return lay_out(m, parts->tree_bytes, &b, NULL);
}

static gdn_status plan_step(gdn_ctx *ctx, void *call)
{
    struct gdn_step_call *m = call;
    struct planned *p = GDN_PLANNED(struct planned, &m->base);
    struct gdn_cu_rule whole;
    TRY(gdn_cuda_check_channels(ctx, m->rule.record));
    TRY(gdn_cuda_check_tree(ctx, &m->plan.batch, &m->tokens));
    fill_whole(&whole, m);
    p->why_not_one = why_not_one_launch(ctx, m, &whole);
    if (p->why_not_one)
        m->base.bytes = plan_parts(ctx, m, p);
    else if (m->tokens.N > 0)
        plan_one(ctx, m, &whole, p);
    return GDN_OK;
}

/* ---- The call ------------------------------------------------------------------------------ */

static gdn_status run_one(gdn_ctx *ctx, const struct gdn_step_call *m, const struct planned *p)
{
    const struct gdn_cuda_form list[] = { { "rows", p->one.why_not_rows },
                                          { "pairs", p->one.why_not_pairs },
                                          { "general", NULL } };
    struct gdn_cuda_call call = p->one.call;
    call.args = &p->one.args;
    call.stream = m->args.stream;
    gdn_cuda_log_forms(ctx, GDN_CUDA_STEP_CHOICE, "step", list);
    TRY(gdn_cuda_launch(ctx, &call));
    return gdn_cuda_note(ctx, "step", call.kernel);
}

/* Sets the addresses of rows in buffers. */
static void move_parts(const struct gdn_step_call *m, const struct buffers *b, struct planned *p)
{
    struct parts *parts = &p->parts;
    const struct gdn_rule rule = rule_of(m, b);
    parts->rule.q.data = rule.q.data;
    parts->rule.k.data = rule.k.data;
    parts->rule.v.data = rule.v.data;
    parts->rule.out.data = rule.out.data;
    if (gdn_step_convolves(m)) parts->conv.args.out.data = b->convolved;
    if (spares_padding(m)) parts->norm.args.x.data = parts->norm.args.out.data = b->out;
    gdn_cuda_decode_move(&parts->decode);
}

static gdn_status store(gdn_ctx *ctx, const struct gdn_step_call *m, const struct buffers *b)
{
    enum { TOKENS = 256 / 32 }; /* of a block, see layer.cu */
    const gdn_tensor *pool = m->args.state.data ? &m->args.state : &m->args.conv_state;
    const struct gdn_plan_pools pools = pools_of(pool);
    struct gdn_cu_layer_store a = {
        .out = m->rule.out,
        .from = b->out,
        .n = (int64_t)m->rule.H * m->rule.V,
        .head = m->rule.V,
    };
    gdn_cuda_fill_batch(&a.batch, &m->plan, &m->tokens, &pools);
    const struct gdn_cuda_call call = {
        .kernel = GDN_CU_layer_store,
        .grid = { (m->tokens.N + TOKENS - 1) / TOKENS, 1, 1 },
        .stream = m->args.stream,
        .args = &a,
    };
    TRY(gdn_cuda_launch(ctx, &call));
    return gdn_cuda_note(ctx, "step", call.kernel);
}

static gdn_status run_parts(gdn_ctx *ctx, const struct gdn_step_call *m, struct planned *p,
                            char *memory)
{
    struct parts *parts = &p->parts;
    struct buffers b;
    lay_out(m, parts->tree_bytes, &b, memory);
    move_parts(m, &b, p);
    if (gdn_step_convolves(m)) TRY(gdn_cuda_conv_run(ctx, &parts->conv, NULL, m->args.stream));
    TRY(gdn_cuda_decode_run(&parts->decode, b.tree, m->args.stream));
    if (m->normed) TRY(gdn_cuda_norm_run(ctx, "step", &parts->norm, m->args.stream));
    return spares_padding(m) ? store(ctx, m, &b) : GDN_OK;
}

static gdn_status run_several(gdn_ctx *ctx, const struct gdn_step_call *m, struct planned *p,
                              char *memory)
{
    const struct gdn_cuda_form list[] = { { "rows, pairs, general", p->why_not_one },
                                          { "parts", NULL } };
    bool pushed;
    gdn_cuda_log_forms(ctx, GDN_CUDA_STEP_CHOICE, "step", list);
    TRY(gdn_cuda_enter(ctx, &pushed));
    const gdn_status status = run_parts(ctx, m, p, memory);
    gdn_cuda_leave(ctx, pushed);
    return status;
}

static gdn_status check_contents(gdn_ctx *ctx, const struct gdn_step_call *m)
{
    return m->rule.record
               ? gdn_cuda_check_record(ctx, &m->plan, &m->tokens, &m->pools, &m->record,
                                       m->base.stream)
               : gdn_cuda_check_batch(ctx, &m->plan, &m->tokens, &m->pools, m->base.stream);
}

static gdn_status run_step(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_step_call *m = call;
    struct planned *p = GDN_PLANNED(struct planned, &m->base);
    struct gdn_cuda_ran ran;
    TRY(check_contents(ctx, m));
    if (m->tokens.N == 0) return gdn_note_line(ctx, "step", "none");
    gdn_cuda_gather(ctx, &ran);
    return gdn_cuda_note_gathered(
        ctx, "step", p->why_not_one ? run_several(ctx, m, p, memory) : run_one(ctx, m, p));
}

const struct gdn_op_backend gdn_cuda_op_step = { plan_step, run_step };
