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
    TRY(gdn_check_tree(ctx, &m->plan.batch, r->exact, a->state.dtype));
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
static void describe_rule(struct gdn_mixer *m)
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
}

static struct gdn_plan_pools pools_of(const gdn_step_args *a)
{
    const gdn_tensor *pool = a->state.data ? &a->state : &a->conv_state;
    return gdn_plan_pools_of(pool, pool, &(gdn_tensor){ 0 });
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

static gdn_status describe(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_mixer *m    = call;
    *m                     = (struct gdn_mixer){ 0 };
    const gdn_step_args *a = &m->args;
    TRY(gdn_copy_args(ctx, &m->args, sizeof m->args, args, "gdn_step_args"));
    m->base = GDN_CALL_OF(a);
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
    describe_rule(m);
    TRY(check_states(ctx, m));
    describe_norm(ctx, m);
    m->pools = pools_of(a);
    return GDN_OK;
}

GDN_OP_ENTRY(STEP, step, gdn_step_args, describe, struct gdn_mixer)
