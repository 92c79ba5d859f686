/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_step: one check and one plan of the batch for the convolution, the rule and the norm, which
 * then run one after the other on the same sequences. What goes from the convolution to the rule
 * lies in the workspace, in the dtype of x.
 */
#include "calls/layer_step.h"

#include <math.h>
#include <stdio.h>

#include "batch/tree.h"
#include "calls/layer.h"
#include "cuda/driver/backend.h"
#include "ops/entry.h"
#include "ops/op_table.h"

/* ---- Descriptors ------------------------------------------------------------------------- */

static gdn_status check_fields(gdn_ctx *ctx, const gdn_step_args *a)
{
    const struct {
        const char *name;
        int32_t     value, end;
    } enums[] = {
        { "beta_kind", a->beta_kind, GDN_BETA_TWICE_SIGMOID },
        { "head_map", a->head_map, GDN_HEADS_INTERLEAVED },
        { "state_layout", a->state_layout, GDN_STATE_KV },
        { "norm", a->norm, GDN_NORM_L2_MAX },
        { "rounding", a->rounding, GDN_ROUND_STOCHASTIC },
        { "reserved", a->reserved, 0 },
    };
    const struct {
        const char *name;
        float       value;
        int         sign; /* 0: any */
    } floats[] = { { "scale", a->scale, 0 },
                   { "norm_eps", a->norm_eps, 1 },
                   { "rms_eps", a->rms_eps, 1 },
                   { "gate_lower_bound", a->gate_lower_bound, -1 } };
    TRY(gdn_check_layer(ctx, a->n_key_heads, a->n_value_heads, a->key_head_dim,
                        a->value_head_dim));
    TRY(gdn_check_flags(ctx, a->flags));
    for (size_t i = 0; i < sizeof enums / sizeof *enums; i++)
        if (enums[i].value < 0 || enums[i].value > enums[i].end)
            return gdn_fail(ctx, GDN_E_ARG, "%s: %d, wanted 0 to %d", enums[i].name,
                            (int)enums[i].value, (int)enums[i].end);
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
        if (!isfinite(floats[i].value) || (float)floats[i].sign * floats[i].value < 0)
            return gdn_fail(ctx, GDN_E_ARG, "%s: %g, wanted a number %s", floats[i].name,
                            (double)floats[i].value,
                            floats[i].sign > 0   ? "from 0 up"
                            : floats[i].sign < 0 ? "up to 0"
                                                 : "that is finite");
    return GDN_OK;
}

/* A tensor of the tokens: absent ones pass unless needed. */
struct wanted {
    const gdn_tensor *t;
    const char       *name;
    bool              needed;
    unsigned          dtypes;
    int               n; /* dimensions of a token */
    int64_t           size[2];
};

static gdn_status check_tokens(gdn_ctx *ctx, struct gdn_mixer *m)
{
    const gdn_step_args *a  = &m->args;
    const int64_t        Hv = a->n_value_heads, V = a->value_head_dim, D = m->conv.D;
    TRY(gdn_plan_tokens(ctx, &a->x, "x", 1, true, &m->tokens));
    TRY(gdn_check_dtype(ctx, &a->x, "x", GDN_FLOATS));
    if (m->tokens.N > INT32_MAX)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "x: %lld tokens, at most 2^31 - 1",
                        (long long)m->tokens.N);
    const unsigned      same = 1u << a->x.dtype, gate = same | 1u << GDN_F32;
    const struct wanted tensors[] = { { &a->x, "x", true, same, 1, { D } },
                                      { &a->a, "a", true, gate, 1, { Hv } },
                                      { &a->b, "b", true, gate, 1, { Hv } },
                                      { &a->z, "z", false, same, 2, { Hv, V } },
                                      { &a->out, "out", false, same, 2, { Hv, V } } };
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        const struct wanted *w = &tensors[i];
        if (!w->t->data && w->needed) return gdn_fail(ctx, GDN_E_ARG, "%s: absent", w->name);
        if (!w->t->data) continue;
        TRY(gdn_check_tensor(ctx, w->t, w->name));
        TRY(gdn_check_dtype(ctx, w->t, w->name, w->dtypes));
        TRY(gdn_plan_check(ctx, &m->tokens, w->t, w->name, w->n, w->size));
        if (w->dtypes == same) TRY(gdn_check_dense(ctx, w->t, w->name));
    }
    return gdn_plan_describe(ctx, a->batch, &m->tokens, GDN_PLAN_EACH | GDN_PLAN_TREE, &m->plan);
}

static gdn_status check_vectors(gdn_ctx *ctx, const gdn_step_args *a)
{
    const int64_t Hv = a->n_value_heads, V = a->value_head_dim;
    const struct {
        const gdn_tensor *t;
        const char       *name;
        int64_t           size;
    } vectors[] = { { &a->A_log, "A_log", Hv },
                    { &a->dt_bias, "dt_bias", Hv },
                    { &a->norm_weight, "norm_weight", V } };
    if (!a->A_log.data) return gdn_fail(ctx, GDN_E_ARG, "A_log: absent");
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        if (!vectors[i].t->data) continue;
        TRY(gdn_check_tensor(ctx, vectors[i].t, vectors[i].name));
        TRY(gdn_check_dtype(ctx, vectors[i].t, vectors[i].name, GDN_FLOATS));
        TRY(gdn_check_shape(ctx, vectors[i].t, vectors[i].name, 1, &vectors[i].size));
    }
    return GDN_OK;
}

/* The tensors of a call, all checked. */
static void find_extents(const struct gdn_mixer *m, struct gdn_extents *all)
{
    const gdn_step_args *a = &m->args;
    const struct {
        const gdn_tensor *t;
        const char       *name;
    } tensors[] = {
        { &a->x, "x" },
        { &a->a, "a" },
        { &a->b, "b" },
        { &a->z, "z" },
        { &a->conv_weight, "conv_weight" },
        { &a->conv_bias, "conv_bias" },
        { &a->A_log, "A_log" },
        { &a->dt_bias, "dt_bias" },
        { &a->norm_weight, "norm_weight" },
        { &a->conv_state, "conv_state" },
        { &a->state, "state" },
        { &a->state_scales, "state_scales" },
        { &a->out, "out" },
    };
    all->n = 0;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        gdn_add_extent(all, tensors[i].t, tensors[i].name);
    gdn_plan_add_extents(&m->plan.batch, all);
}

static gdn_status check_states(gdn_ctx *ctx, struct gdn_mixer *m)
{
    const gdn_step_args    *a      = &m->args;
    const bool              writes = m->plan.batch.write != GDN_WRITE_NONE;
    const struct gdn_scaled state  = { &a->state, &a->state_scales, "state", "state_scales" };
    struct gdn_rule        *r      = &m->rule;
    TRY(gdn_check_tensor(ctx, &a->state, "state"));
    TRY(gdn_conv_state_view(ctx, &a->conv_state, "conv_state", &m->conv, &m->conv.from));
    TRY(gdn_scaled_view(ctx, &state, a->state_layout, r->H, r->K, r->V, &r->from));
    TRY(gdn_check_tree(ctx, &m->plan.batch, &m->tokens, r->exact, a->state.dtype));
    TRY(gdn_check_pair(ctx, &a->state, "state", &a->conv_state, "conv_state"));
    if (!a->out.data && !(writes && (a->state.data || a->conv_state.data)))
        return gdn_fail(ctx, GDN_E_ARG, "out: absent, and no state is written");
    const struct {
        const gdn_tensor *t;
        const char       *name;
        bool              is_written;
    } written[] = { { &a->out, "out", true },
                    { &a->conv_state, "conv_state", writes },
                    { &a->state, "state", writes },
                    { &a->state_scales, "state_scales", writes } };
    struct gdn_extents all;
    find_extents(m, &all);
    for (size_t i = 0; i < sizeof written / sizeof *written; i++) {
        if (!written[i].t->data || !written[i].is_written) continue;
        TRY(gdn_check_injective(ctx, written[i].t, written[i].name));
        TRY(gdn_check_apart(ctx, &all, written[i].t, written[i].name, NULL, NULL));
    }
    r->from.random = a->rounding == GDN_ROUND_STOCHASTIC;
    r->from.seed   = a->seed;
    r->to          = r->from;
    m->conv.to     = m->conv.from;
    return GDN_OK;
}

/* The rule's sizes and formulas; its rows but those of the convolution. */
static void describe_rule(gdn_ctx *ctx, struct gdn_mixer *m)
{
    const gdn_step_args *a = &m->args;
    struct gdn_rule     *r = &m->rule;
    r->Hq = r->Hk = a->n_key_heads, r->Hv = r->H = a->n_value_heads;
    r->K = a->key_head_dim, r->V = a->value_head_dim;
    r->g = gdn_rows_of(&a->a, &m->tokens), r->beta = gdn_rows_of(&a->b, &m->tokens);
    r->out       = gdn_rows_of(&a->out, &m->tokens);
    r->head_map  = a->head_map;
    r->gate      = GDN_GATE_RAW;
    r->beta_kind = a->beta_kind != GDN_BETA_GIVEN ? a->beta_kind : GDN_BETA_SIGMOID;
    r->norm      = a->norm != GDN_NORM_NONE ? a->norm : GDN_NORM_L2;
    r->norm_eps  = a->norm_eps > 0 ? a->norm_eps : 1e-6f;
    r->scale     = a->scale != 0 ? a->scale : 1.0f / sqrtf((float)r->K);
    r->bound     = a->gate_lower_bound;
    r->decode    = true;
    r->tree      = m->plan.batch.parents.data;
    r->exact     = a->flags & GDN_EXACT;
    r->n_seqs    = m->plan.B;
    gdn_rule_cut(r, ctx->kr, gdn_pool_threads(ctx->pool));
}

static void describe_norm(gdn_ctx *ctx, struct gdn_mixer *m)
{
    const gdn_step_args *a = &m->args;
    m->normed              = a->out.data && (a->z.data || a->norm_weight.data);
    m->norm = (struct gdn_norm_job){ .x = a->out, .z = a->z, .weight = a->norm_weight,
                                     .out = a->out, .kr = ctx->kr, .formula = GDN_NORM_NONE,
                                     .D = m->rule.V };
    m->norm.eps    = a->rms_eps > 0 ? a->rms_eps : 1e-6f;
    m->norm.n_rows = m->tokens.N * m->rule.H;
}

static gdn_status describe_parts(gdn_ctx *ctx, const gdn_step_args *args, struct gdn_mixer *m)
{
    *m                     = (struct gdn_mixer){ 0 };
    const gdn_step_args *a = &m->args;
    TRY(gdn_copy_args(ctx, &m->args, sizeof m->args, args, "gdn_step_args"));
    TRY(check_fields(ctx, a));
    m->conv.D = 2 * (int64_t)a->n_key_heads * a->key_head_dim +
                (int64_t)a->n_value_heads * a->value_head_dim;
    TRY(check_tokens(ctx, m));
    TRY(check_vectors(ctx, a));
    TRY(gdn_conv_weights(ctx, &a->conv_weight, "conv_weight", &a->conv_bias, "conv_bias",
                         &m->conv));
    m->conv.x      = gdn_rows_of(&a->x, &m->tokens);
    m->conv.silu   = true;
    m->conv.n_seqs = m->plan.B;
    describe_rule(ctx, m);
    TRY(check_states(ctx, m));
    describe_norm(ctx, m);
    return GDN_OK;
}

/* ---- From the convolution to the rule ------------------------------------------------------ */

struct gdn_rows gdn_mixer_rows(const struct gdn_mixer *m, char *memory, int64_t channel,
                               int64_t head)
{
    const int64_t unit = (int64_t)gdn_dtype_bytes(m->conv.x.dtype), token = m->conv.D * unit;
    return (struct gdn_rows){ .data  = memory + channel * unit,
                              .dtype = m->conv.x.dtype,
                              .batch = m->tokens.padded ? m->tokens.T * token : 0,
                              .token = token,
                              .head  = head * unit };
}

size_t gdn_mixer_bytes(const struct gdn_mixer *m)
{
    return gdn_align64((size_t)(m->tokens.N * m->conv.D) * gdn_dtype_bytes(m->conv.x.dtype));
}

void gdn_mixer_connect(const struct gdn_mixer *m, char *memory, struct gdn_rule *rule)
{
    const int64_t K = rule->K, keys = rule->Hk * K;
    rule->q = gdn_mixer_rows(m, memory, 0, K);
    rule->k = gdn_mixer_rows(m, memory, keys, K);
    rule->v = gdn_mixer_rows(m, memory, 2 * keys, rule->V);
}

/* ---- The call ------------------------------------------------------------------------------ */

/* What a run keeps in the workspace. */
struct buffers {
    char  *plan, *tree, *convolved, *threads;
    float *A, *dt;
};

static size_t lay_out(gdn_ctx *ctx, const struct gdn_mixer *m, struct buffers *b, char *memory)
{
    const size_t rule   = gdn_rule_scratch(&m->rule, ctx->kr), conv = gdn_conv_scratch(&m->conv);
    const size_t thread = rule > conv ? rule : conv, gates = (size_t)m->rule.H * sizeof(float);
    const struct gdn_room rooms[] = {
        { &b->plan, gdn_plan_bytes(&m->plan, &m->tokens) },
        { &b->tree, m->rule.tree ? gdn_tree_bytes(&m->tokens) : 0 },
        { &b->convolved, gdn_mixer_bytes(m) },
        { &b->A, gates },
        { &b->dt, gates },
        { &b->threads, thread * (size_t)gdn_pool_threads(ctx->pool) },
    };
    return gdn_lay_out_rooms(rooms, sizeof rooms / sizeof *rooms, memory);
}

static gdn_status describe(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_mixer *m = call;
    struct buffers    b;
    TRY(describe_parts(ctx, args, m));
    if (ctx->cuda) return gdn_cuda_step_check(ctx, m, &m->bytes);
    m->bytes = lay_out(ctx, m, &b, NULL);
    return GDN_OK;
}

/* The norm of one sequence's rows of out. */
static void norm_item(void *arg, int64_t item, int thread)
{
    (void)thread;
    const struct gdn_mixer *m = arg;
    const struct gdn_seq   *s = &m->plan.seqs[item];
    const int64_t first = (s->batch * m->tokens.T + s->first) * m->rule.H;
    gdn_norm_rows(&m->norm, first, first + s->n_valid * m->rule.H);
}

static struct gdn_plan_pools pools_of(const gdn_step_args *a)
{
    const gdn_tensor *pool = a->state.data ? &a->state : &a->conv_state;
    return gdn_plan_pools_of(pool, pool, &(gdn_tensor){ 0 });
}

static gdn_status run(gdn_ctx *ctx, void *call)
{
    struct gdn_mixer           *m     = call;
    const gdn_step_args        *a     = &m->args;
    const struct gdn_plan_pools pools = pools_of(a);
    struct gdn_rule            *r = &m->rule;
    struct buffers              b;
    void                       *memory;
    TRY(gdn_get_workspace(ctx, a->workspace, a->workspace_bytes, m->bytes, &memory));
    lay_out(ctx, m, &b, memory);
    TRY(gdn_plan_batch(ctx, &m->tokens, &pools, b.plan, &m->plan));
    if (r->tree) {
        gdn_tree_order(&m->plan, &m->tokens, b.tree);
        r->tokens = &m->tokens;
        r->visits = (const struct gdn_visit *)(const void *)b.tree;
    }
    gdn_rule_load_decay(b.A, b.dt, &a->A_log, &a->dt_bias, r->H, r->bound);
    gdn_mixer_connect(m, b.convolved, r);
    r->A = b.A, r->dt = b.dt;
    r->plan = m->conv.plan = &m->plan;
    r->seqs = m->conv.seqs = m->plan.seqs;
    m->conv.out            = gdn_mixer_rows(m, b.convolved, 0, 0);
    gdn_conv_run(ctx, &m->conv, b.threads);
    gdn_rule_run(ctx, r, b.threads);
    if (m->normed) gdn_parallel_for(ctx->pool, m->plan.B, norm_item, m);
    gdn_plan_zero_rest(&m->plan, &m->tokens, &r->out, r->H, r->V);
    return GDN_OK;
}

static const char *find_loops(void *call, char text[GDN_LOOPS_BYTES])
{
    const struct gdn_mixer *m = call;
    snprintf(text, GDN_LOOPS_BYTES, "conv %s%s", gdn_rule_loops(&m->rule),
             m->normed ? " norm_row" : "");
    return text;
}

static gdn_status enqueue(gdn_ctx *ctx, void *call)
{
    const struct gdn_mixer     *m     = call;
    const gdn_step_args        *a     = &m->args;
    const struct gdn_plan_pools pools = pools_of(a);
    void                       *memory;
    TRY(gdn_cuda_check_batch(ctx, &m->plan, &m->tokens, &pools, a->stream));
    TRY(gdn_cuda_get_workspace(ctx, a->workspace, a->workspace_bytes, m->bytes, &memory));
    return gdn_cuda_step(ctx, m, memory);
}

static const struct gdn_frame frame = {
    .describe   = describe,
    .run        = run,
    .enqueue    = enqueue,
    .bytes_at   = offsetof(struct gdn_mixer, bytes),
    .find_loops = find_loops,
};
GDN_OP_ENTRY(step, gdn_step_args, frame, struct gdn_mixer)
