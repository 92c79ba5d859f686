/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_step: one check and one plan of the batch for the convolution, the rule and the norm, which
 * then run one after the other on the same sequences. What goes from the convolution to the rule
 * lies in the workspace, in the dtype of x.
 */
#include "calls/layer_step.h"

#include <stdio.h>

#include "batch/tree.h"
#include "calls/layer.h"
#include "ops/checks.h"
#include "ops/entry.h"
#include "ops/family.h"
#include "ops/fields.h"
#include "ops/op_table.h"
#include "ops/tensors.h"

/* ---- Descriptors ------------------------------------------------------------------------- */

static gdn_status check_fields(gdn_ctx *ctx, const gdn_step_args *a)
{
    TRY(gdn_check_fields(ctx, GDN_OP_STEP, a));
    TRY(gdn_check_layer(ctx, a->n_key_heads, a->n_value_heads, a->key_head_dim, a->value_head_dim));
    return gdn_check_forms(ctx, a->flags);
}

/* The rows of k and v are those of the convolution. */
static struct gdn_family_tensors family_of(struct gdn_step_call *m)
{
    gdn_step_args *a = &m->args;
    return (struct gdn_family_tensors){ &a->x, &a->x, &a->a, &a->b, &a->write_gate, &a->dt_bias };
}

static gdn_status check_tensors(gdn_ctx *ctx, struct gdn_step_call *m)
{
    const gdn_step_args *a = &m->args;
    TRY(gdn_check_present(ctx, GDN_OP_STEP, &m->args));
    TRY(gdn_plan_tokens(ctx, &a->x, "x", 1, &m->tokens));
    if (m->tokens.N > INT32_MAX)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "x: %lld tokens, at most 2^31 - 1",
                        (long long)m->tokens.N);
    TRY(gdn_check_dtype(ctx, &a->x, "x", GDN_FLOATS));
    const struct gdn_family_tensors t = family_of(m);
    struct gdn_tokens updates;
    TRY(gdn_family_tokens(ctx, &t, a->updates, &m->tokens, &updates));
    const struct gdn_sizes s = { .D = m->conv.D,
                                 .H = a->n_value_heads,
                                 .V = a->value_head_dim,
                                 .K = a->key_head_dim,
                                 .G = gdn_family_gate_size(&t, &m->tokens, a->key_head_dim),
                                 .Hk = a->n_key_heads,
                                 .P = a->state.data ? a->state.size[0] : -1,
                                 .R = a->record_k.ndim == 4 ? a->record_k.size[1] : -1,
                                 .tokens = &m->tokens,
                                 .updates = &updates,
                                 .like = &a->x };
    TRY(gdn_check_shapes(ctx, GDN_OP_STEP, a, &s));
    return gdn_plan_describe(ctx, a->batch, &m->tokens, GDN_PLAN_EACH | GDN_PLAN_TREE, &m->plan);
}

static gdn_status check_record(gdn_ctx *ctx, struct gdn_step_call *m)
{
    const gdn_step_args *a = &m->args;
    const struct gdn_record_use use = { .tensors = { &a->record_k, &a->record_u, &a->record_g,
                                                     &a->record_count },
                                        .state = &a->state,
                                        .state_out = &(gdn_tensor){ 0 },
                                        .batch = &m->plan.batch,
                                        .flags = a->flags,
                                        .is_step = true };
    return gdn_record_describe(ctx, &use, &m->rule, &m->record);
}

static gdn_status check_states(gdn_ctx *ctx, struct gdn_step_call *m)
{
    const gdn_step_args *a = &m->args;
    const bool writes = m->plan.batch.write != GDN_WRITE_NONE;
    const struct gdn_scaled state = { &a->state, &a->state_scales, "state", "state_scales" };
    struct gdn_rule *r = &m->rule;
    TRY(gdn_conv_state_view(ctx, &a->conv_state, "conv_state", &m->conv, &m->conv.from));
    TRY(gdn_scaled_view(ctx, &state, a->state_layout, r->H, r->K, r->V, &r->from));
    TRY(gdn_check_tree(ctx, &m->plan.batch, r->exact, a->state.dtype));
    TRY(gdn_check_pair(ctx, &a->state, "state", &a->conv_state, "conv_state"));
    if (!a->out.data && !r->record && !(writes && (a->state.data || a->conv_state.data)))
        return gdn_fail(ctx, GDN_E_ARG, "out: absent, and no state is written");
    TRY(gdn_check_written(ctx, GDN_OP_STEP, a, &m->plan.batch));
    r->from.random = a->rounding == GDN_ROUND_STOCHASTIC;
    r->from.seed = a->seed;
    r->to = r->from;
    m->conv.to = m->conv.from;
    return GDN_OK;
}

/* Describes the sizes and formulas of the rule, and its rows, except for those that the
 * convolution makes. */
static gdn_status describe_rule(gdn_ctx *ctx, struct gdn_step_call *m)
{
    const gdn_step_args *a = &m->args;
    struct gdn_rule *r = &m->rule;
    const struct gdn_family_tensors t = family_of(m);
    r->Hq = r->Hk = a->n_key_heads, r->Hv = r->H = a->n_value_heads;
    r->K = a->key_head_dim, r->V = a->value_head_dim;
    TRY(gdn_family_fill(ctx, &t, a->updates, &m->tokens, r));
    TRY(gdn_family_check_updates(ctx, a->updates, &m->plan.batch, &a->record_k));
    r->out = gdn_rows_of(&a->out, &m->tokens);
    gdn_rule_set_formulas(r,
                          &(struct gdn_rule_formulas){ a->head_map, GDN_GATE_RAW, a->beta_kind,
                                                       a->norm, a->norm_eps, a->scale,
                                                       a->gate_lower_bound, a->flags },
                          GDN_BETA_SIGMOID, GDN_NORM_L2);
    r->decode = true;
    r->tree = m->plan.batch.parents.data;
    r->exact = a->flags & GDN_EXACT;
    r->n_seqs = m->plan.B;
    return GDN_OK;
}

static struct gdn_plan_pools pools_of(const gdn_step_args *a)
{
    const gdn_tensor *pool = a->state.data ? &a->state : &a->conv_state;
    return gdn_plan_pools_of(pool, pool, &(gdn_tensor){ 0 });
}

static void describe_norm(struct gdn_step_call *m)
{
    const gdn_step_args *a = &m->args;
    m->normed = a->out.data && (a->z.data || a->norm_weight.data);
    m->norm = (struct gdn_norm_job){ .x = a->out,
                                     .z = a->z,
                                     .weight = a->norm_weight,
                                     .out = a->out,
                                     .formula = GDN_NO_NORM,
                                     .sigmoid = a->activation == GDN_ACT_SIGMOID,
                                     .D = m->rule.V };
    m->norm.eps = gdn_eps_of(a->rms_eps, a->flags);
    m->norm.n_rows = m->tokens.N * m->rule.H;
}

/* Describes the convolution, if the call has one. */
static gdn_status describe_conv(gdn_ctx *ctx, struct gdn_step_call *m)
{
    const gdn_step_args *a = &m->args;
    m->conv.x = gdn_rows_of(&a->x, &m->tokens);
    m->conv.silu = true;
    m->conv.n_seqs = m->plan.B;
    if (a->conv_weight.data)
        return gdn_conv_weights(ctx, &a->conv_weight, "conv_weight", &a->conv_bias, &m->conv);
    if (a->conv_bias.data || a->conv_state.data)
        return gdn_fail(ctx, GDN_E_ARG, "%s: given, wanted none without conv_weight",
                        a->conv_bias.data ? "conv_bias" : "conv_state");
    return GDN_OK;
}

/* Returns the channels of x. */
static int64_t channels_of(const gdn_step_args *a)
{
    const int64_t keys = (int64_t)a->n_key_heads * a->key_head_dim;
    const int64_t values = (int64_t)a->n_value_heads * a->value_head_dim;
    return keys + (a->updates > 1 ? a->updates : 1) * (keys + values);
}

static gdn_status describe_step(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_step_call *m = call;
    m->conv = (struct gdn_conv){ 0 };
    m->rule = (struct gdn_rule){ 0 };
    const gdn_step_args *a = &m->args;
    TRY(gdn_copy_args(ctx, &m->args, sizeof m->args, args, "gdn_step_args"));
    m->base = GDN_CALL_OF(a);
    TRY(check_fields(ctx, a));
    m->conv.D = channels_of(a);
    TRY(check_tensors(ctx, m));
    TRY(describe_conv(ctx, m));
    TRY(describe_rule(ctx, m));
    TRY(check_record(ctx, m));
    TRY(check_states(ctx, m));
    describe_norm(m);
    m->pools = pools_of(a);
    return GDN_OK;
}

GDN_OP_ENTRY(STEP, step, gdn_step_args, struct gdn_step_call)
