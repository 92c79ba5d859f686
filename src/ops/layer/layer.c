/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_block: checks its arguments. cpu/layer.c computes it. */
#include "calls/layer.h"
#include "core/tensor_check.h"
#include "ops/checks.h"
#include "ops/entry.h"
#include "ops/fields.h"
#include "ops/layer/weights.h"
#include "ops/op_table.h"
#include "ops/tensors.h"

gdn_status gdn_check_layer(gdn_ctx *ctx, int32_t Hk, int32_t Hv, int32_t K, int32_t V)
{
    const struct {
        const char *name;
        int32_t value, most;
    } sizes[] = {
        { "n_key_heads", Hk, 1 << 16 },
        { "n_value_heads", Hv, 1 << 16 },
        { "key_head_dim", K, GDN_MAX_HEAD },
        { "value_head_dim", V, GDN_MAX_VALUE },
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < 1 || sizes[i].value > sizes[i].most)
            return gdn_fail(ctx, sizes[i].value < 1 ? GDN_E_ARG : GDN_E_UNSUPPORTED,
                            "%s: %d, wanted 1 to %d", sizes[i].name, (int)sizes[i].value,
                            (int)sizes[i].most);
    if (Hv % Hk)
        return gdn_fail(ctx, GDN_E_ARG, "n_value_heads: %d, wanted a multiple of n_key_heads %d",
                        (int)Hv, (int)Hk);
    return GDN_OK;
}

static gdn_status check_sizes(gdn_ctx *ctx, struct gdn_block_call *c)
{
    const gdn_block_args *a = &c->args;
    struct gdn_block *b = &c->block;
    TRY(gdn_check_fields(ctx, GDN_OP_BLOCK, a));
    TRY(gdn_check_layer(ctx, a->n_key_heads, a->n_value_heads, a->key_head_dim, a->value_head_dim));
    TRY(gdn_check_forms(ctx, a->flags));
    TRY(gdn_check_products(ctx, a->flags, a->hidden.dtype));
    b->Hk = a->n_key_heads, b->Hv = a->n_value_heads;
    b->K = a->key_head_dim, b->V = a->value_head_dim;
    return GDN_OK;
}

/* Sets where the columns of a projected row are. */
static void set_columns(struct gdn_block *b, const struct gdn_sizes *s)
{
    struct gdn_block_columns *at = &b->columns;
    at->k = s->keys, at->v = 2 * s->keys, at->z = s->qkv;
    at->b = s->qkvz, at->a = at->b + b->Hv, at->all = at->a + s->a;
}

/* Checks the projections, and the shapes of all tensors. */
static gdn_status check_weights(gdn_ctx *ctx, struct gdn_block_call *c)
{
    const gdn_block_args *a = &c->args;
    struct gdn_block *b = &c->block;
    const struct gdn_layer_weights w = { .of = GDN_PROJECTIONS(a, ), .dt_bias = &a->dt_bias };
    struct gdn_sizes s = { .hidden = b->hidden,
                           .H = b->Hv,
                           .Hk = b->Hk,
                           .K = b->K,
                           .V = b->V,
                           .P = a->state.data ? a->state.size[0] : -1,
                           .R = a->record_k.ndim == 4 ? a->record_k.size[1] : -1,
                           .tokens = &c->tokens,
                           .like = &c->args.hidden };
    TRY(gdn_check_weights(ctx, &w, &b->projections));
    TRY(gdn_weight_sizes(ctx, &w, b->Hk, &s));
    set_columns(b, &s);
    b->channels = s.a / b->Hv;
    s.G = b->channels > 1 ? b->K : -1; /* -1: record_g has no such size */
    if (a->in_proj_z_down.data) b->rank = s.z_in;
    if (a->in_proj_a_down.data && s.a_in > b->rank) b->rank = s.a_in;
    TRY(gdn_check_shapes(ctx, GDN_OP_BLOCK, a, &s));
    if (b->channels == 1) c->args.dt_bias.ndim = 1; /* [H][1] is [H] */
    return GDN_OK;
}

static gdn_status check_tokens(gdn_ctx *ctx, struct gdn_block_call *c)
{
    const gdn_block_args *a = &c->args;
    TRY(gdn_plan_tokens(ctx, &a->hidden, "hidden", 1, &c->tokens));
    TRY(gdn_check_dtype(ctx, &a->hidden, "hidden", GDN_FLOATS));
    c->block.hidden = a->hidden.size[a->hidden.ndim - 1];
    if (c->block.hidden < 1 || c->block.hidden > GDN_MAX_HIDDEN)
        return gdn_fail(ctx, GDN_E_SHAPE, "hidden: %lld columns, wanted 1 to 2^20",
                        (long long)c->block.hidden);
    TRY(check_weights(ctx, c));
    const bool leaves = a->checkpoints.data || a->conv_checkpoints.data;
    return gdn_plan_describe(ctx, a->batch, &c->tokens,
                             leaves ? GDN_PLAN_CHECKPOINTS : GDN_PLAN_NO_TENSOR, &c->plan);
}

/* Describes the parts that the ops of their own check too, on views of the projected row. */
static gdn_status describe_parts(gdn_ctx *ctx, struct gdn_block_call *c)
{
    const gdn_block_args *a = &c->args;
    struct gdn_block *b = &c->block;
    struct gdn_rule *r = &b->rule;
    struct gdn_conv *v = &b->conv;
    v->D = b->columns.z;
    TRY(gdn_conv_weights(ctx, &a->conv_weight, "conv_weight", &a->conv_bias, v));
    TRY(gdn_conv_state_view(ctx, &a->conv_state, "conv_state", v, &v->from));
    TRY(gdn_conv_state_view(ctx, &a->conv_checkpoints, "conv_checkpoints", v, &v->checkpoints));
    if (v->from.data && v->checkpoints.data && v->from.length != v->checkpoints.length)
        return gdn_fail(ctx, GDN_E_SHAPE,
                        "conv_checkpoints: %lld entries per channel, but conv_state has %lld",
                        (long long)v->checkpoints.length, (long long)v->from.length);
    v->to = v->from;
    v->silu = true;

    const struct gdn_scaled state = { &a->state, &a->state_scales, "state", "state_scales" };
    const struct gdn_scaled left = { &a->checkpoints, &a->checkpoint_scales, "checkpoints",
                                     "checkpoint_scales" };
    TRY(gdn_scaled_view(ctx, &state, a->state_layout, b->Hv, b->K, b->V, &r->from));
    TRY(gdn_scaled_view(ctx, &left, a->state_layout, b->Hv, b->K, b->V, &r->checkpoints));
    TRY(gdn_check_twins(ctx, &left, &state));
    r->from.random = r->checkpoints.random = a->rounding == GDN_ROUND_STOCHASTIC;
    r->from.seed = r->checkpoints.seed = a->seed;
    r->checkpoints.streamed = a->checkpoints.data;
    r->to = r->from;
    r->Hq = r->Hk = (int)b->Hk, r->Hv = r->H = (int)b->Hv, r->K = (int)b->K, r->V = (int)b->V;
    if (b->channels > 1) /* gates are float32, side by side */
        r->family = (struct gdn_family){
            .is = true, .g_rows = true, .updates = 1, .g_channel = sizeof(float)
        };
    gdn_rule_set_formulas(r,
                          &(struct gdn_rule_formulas){ .gate = GDN_GATE_RAW,
                                                       .beta_kind = a->beta_kind,
                                                       .bound = a->gate_lower_bound },
                          GDN_BETA_SIGMOID, GDN_NORM_L2);
    r->exact = a->flags & GDN_EXACT;
    r->n_seqs = 1;
    return GDN_OK;
}

/* Sequences that go token by token are lazy. */
static gdn_status check_record(gdn_ctx *ctx, struct gdn_block_call *c)
{
    const gdn_block_args *a = &c->args;
    const struct gdn_record_use use = { .tensors = { &a->record_k, &a->record_u, &a->record_g,
                                                     &a->record_count },
                                        .state = &a->state,
                                        .state_out = &(gdn_tensor){ 0 },
                                        .batch = &c->plan.batch,
                                        .flags = a->flags,
                                        .lazy_tokens = GDN_SHORT_SEQUENCE };
    return gdn_record_describe(ctx, &use, &c->block.rule, &c->record);
}

gdn_status gdn_check_pair(gdn_ctx *ctx, const gdn_tensor *a, const char *a_name,
                          const gdn_tensor *b, const char *b_name)
{
    if (!a->data || !b->data || a->size[0] == b->size[0]) return GDN_OK;
    return gdn_fail(ctx, GDN_E_SHAPE, "%s: %lld slots, but %s has %lld", b_name,
                    (long long)b->size[0], a_name, (long long)a->size[0]);
}

static gdn_status check_states(gdn_ctx *ctx, const struct gdn_block_call *c)
{
    const gdn_block_args *a = &c->args;
    TRY(gdn_check_written(ctx, GDN_OP_BLOCK, a, &c->plan.batch));
    TRY(gdn_check_pair(ctx, &a->state, "state", &a->conv_state, "conv_state"));
    return gdn_check_pair(ctx, &a->checkpoints, "checkpoints", &a->conv_checkpoints,
                          "conv_checkpoints");
}

static bool is_same(const gdn_tensor *a, const gdn_tensor *b)
{
    return a->data && a->data == b->data;
}

static struct gdn_plan_pools pools_of(const gdn_block_args *a)
{
    const gdn_tensor *pool = a->state.data ? &a->state : &a->conv_state;
    const gdn_tensor *left = a->checkpoints.data ? &a->checkpoints : &a->conv_checkpoints;
    const int64_t P = pool->data ? pool->size[0] : -1;
    return (struct gdn_plan_pools){
        .read = P,
        .write = P,
        .checkpoint = left->data ? left->size[0] : -1,
        .same = true,
        .checkpoint_in_write =
            is_same(&a->checkpoints, &a->state) || is_same(&a->conv_checkpoints, &a->conv_state),
    };
}

static gdn_status describe_block(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_block_call *c = call;
    const gdn_block_args *a = &c->args;
    struct gdn_block *b = &c->block;
    *b = (struct gdn_block){ 0 };
    TRY(gdn_copy_args(ctx, &c->args, sizeof c->args, args, "gdn_block_args"));
    c->base = GDN_CALL_OF(a);
    TRY(check_sizes(ctx, c));
    TRY(gdn_check_present(ctx, GDN_OP_BLOCK, &c->args));
    TRY(check_tokens(ctx, c));
    TRY(describe_parts(ctx, c));
    TRY(check_record(ctx, c));
    TRY(check_states(ctx, c));

    b->in = gdn_rows_of(&a->hidden, &c->tokens);
    b->out = gdn_rows_of(&a->out, &c->tokens);
    b->rms_eps = gdn_eps_of(a->rms_eps, a->flags);
    b->sigmoid = a->activation == GDN_ACT_SIGMOID;
    b->args = a;
    b->tokens = &c->tokens;
    b->plan = &c->plan;
    b->n_tokens = c->tokens.N;
    c->pools = pools_of(a);
    return GDN_OK;
}

GDN_OP_ENTRY(BLOCK, block, gdn_block_args, struct gdn_block_call)
