/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_block_backward: the layer forward again, then backward, all tokens at once:
 *
 *     x -> project y, gates -> conv c -> rule o -> norm n                    (n projects to out)
 *     dout -> dn -> norm do, dz -> rule dc, dgates -> conv dy -> dx
 *
 * Each arrow is an op or a matrix product; matrix gradients are products of what both lines have.
 * Qwen3-Next's weights keep rows of a key head together, so what is projected by them is woven in
 * that order, and what goes back to them is. z and a may be projected twice, through a low rank.
 */
#include "calls/chunk_stage.h"
#include "calls/conv.h"
#include "calls/layer.h"
#include "core/tensor_check.h"
#include "ops/checks.h"
#include "ops/entry.h"
#include "ops/family.h"
#include "ops/fields.h"
#include "ops/layer/backward.h"
#include "ops/layer/weights.h"
#include "ops/op_table.h"
#include "ops/parts.h"
#include "ops/tensors.h"

/* ---- Descriptors ------------------------------------------------------------------------- */

static gdn_status check_fields(gdn_ctx *ctx, struct gdn_layer_backward *c)
{
    const gdn_block_backward_args *a = &c->args;
    TRY(gdn_check_fields(ctx, GDN_OP_BLOCK_BACKWARD, a));
    TRY(gdn_check_layer(ctx, a->n_key_heads, a->n_value_heads, a->key_head_dim, a->value_head_dim));
    c->args.rms_eps = gdn_eps_of(a->rms_eps, a->flags);
    c->Hk = a->n_key_heads, c->Hv = a->n_value_heads;
    c->K = a->key_head_dim, c->V = a->value_head_dim;
    c->adds = a->flags & GDN_ACCUMULATE;
    return GDN_OK;
}

static gdn_status check_hidden(gdn_ctx *ctx, struct gdn_layer_backward *c)
{
    const gdn_block_backward_args *a = &c->args;
    TRY(gdn_check_present(ctx, GDN_OP_BLOCK_BACKWARD, &c->args));
    TRY(gdn_plan_tokens(ctx, &a->hidden, "hidden", 1, &c->tokens));
    TRY(gdn_check_dtype(ctx, &a->hidden, "hidden", GDN_FLOATS));
    c->hidden = a->hidden.size[a->hidden.ndim - 1];
    if (c->hidden < 1 || c->hidden > GDN_MAX_HIDDEN)
        return gdn_fail(ctx, GDN_E_SHAPE, "hidden: %lld columns, wanted 1 to 2^20",
                        (long long)c->hidden);
    c->N = c->tokens.padded ? c->tokens.B * c->tokens.T : c->tokens.N;
    if (c->N > INT32_MAX)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "hidden: %lld tokens, at most 2^31 - 1",
                        (long long)c->N);
    return gdn_stage_plan_padded(ctx, a->batch, &c->tokens, 0, &c->plan);
}

/* Checks the projections, and the shapes of all tensors. */
static gdn_status check_weights(gdn_ctx *ctx, struct gdn_layer_backward *c)
{
    const gdn_block_backward_args *a = &c->args;
    const struct gdn_layer_weights w = { GDN_PROJECTIONS(a, ), GDN_PROJECTIONS(a, d), &a->dt_bias };
    enum gdn_projections kind;
    struct gdn_sizes s = { .B = c->plan.B,
                           .H = c->Hv,
                           .K = c->K,
                           .V = c->V,
                           .hidden = c->hidden,
                           .tokens = &c->tokens,
                           .like = &c->args.hidden };
    TRY(gdn_check_weights(ctx, &w, &kind));
    TRY(gdn_weight_sizes(ctx, &w, c->Hk, &s));
    gdn_set_layout(&s, a->state_layout);
    c->fused = kind == GDN_FUSED;
    c->VV = s.z, c->D = s.qkv, c->qkvz = s.qkvz;
    c->n_gates = c->Hv + s.a, c->channels = s.a / c->Hv;
    c->rank[0] = a->in_proj_z_down.data ? s.z_in : 0;
    c->rank[1] = a->in_proj_a_down.data ? s.a_in : 0;
    TRY(gdn_check_shapes(ctx, GDN_OP_BLOCK_BACKWARD, a, &s));
    TRY(gdn_family_alike(ctx, &a->ddt_bias, "ddt_bias", &a->dt_bias, "dt_bias"));
    if (c->channels == 1) c->args.dt_bias.ndim = c->args.ddt_bias.ndim = 1; /* [H][1] is [H] */
    return GDN_OK;
}

static bool has_gradient(const gdn_block_backward_args *a)
{
    for (const gdn_tensor *t = &a->dhidden; t <= &a->dstate; t++)
        if (t->data) return true;
    for (const gdn_tensor *t = &a->din_proj_q; t <= &a->din_proj_a_down; t++)
        if (t->data) return true;
    return false;
}

/* Checks the states and their gradients. Those of the convolution all have one length. */
static gdn_status check_states(gdn_ctx *ctx, const struct gdn_layer_backward *c,
                               const struct gdn_conv *conv)
{
    const gdn_block_backward_args *a = &c->args;
    const struct {
        const gdn_tensor *conv, *rule;
        const char *conv_name, *rule_name;
    } all[] = { { &a->conv_state, &a->state, "conv_state", "state" },
                { &a->dconv_state_out, &a->dstate_out, "dconv_state_out", "dstate_out" },
                { &a->dconv_state, &a->dstate, "dconv_state", "dstate" } };
    int64_t length = 0;
    for (int i = 0; i < 3; i++) {
        struct gdn_conv_view entries;
        struct gdn_pool_view states;
        TRY(gdn_conv_state_view(ctx, all[i].conv, all[i].conv_name, conv, &entries));
        TRY(gdn_state_view(ctx, all[i].rule, all[i].rule_name, a->state_layout, c->Hv, c->K, c->V,
                           &states));
        if (!all[i].conv->data) continue;
        if (length && entries.length != length)
            return gdn_fail(ctx, GDN_E_SHAPE, "%s: %lld entries per channel, wanted %lld as before",
                            all[i].conv_name, (long long)entries.length, (long long)length);
        length = entries.length;
    }
    return GDN_OK;
}

static gdn_status check_tensors(gdn_ctx *ctx, struct gdn_layer_backward *c)
{
    const gdn_block_backward_args *a = &c->args;
    TRY(check_weights(ctx, c));
    struct gdn_conv conv = { .D = c->D };
    TRY(gdn_conv_weights(ctx, &a->conv_weight, "conv_weight", &a->conv_bias, &conv));
    TRY(gdn_check_shape(ctx, &a->dconv_weight, "dconv_weight", a->conv_weight.ndim,
                        a->conv_weight.size));
    TRY(check_states(ctx, c, &conv));
    if (!has_gradient(a))
        return gdn_fail(ctx, GDN_E_ARG,
                        "dhidden: absent, and every other gradient too, wanted one");
    return gdn_check_written(ctx, GDN_OP_BLOCK_BACKWARD, a, &c->plan.batch);
}

/* ---- Memory -------------------------------------------------------------------------------- */

static size_t lay_out(struct gdn_layer_backward *c, char *memory)
{
    struct gdn_layer_buffers *m = &c->m;
    const size_t N = (size_t)c->N, unit = gdn_dtype_bytes(c->dtype);
    const size_t rows = N * (size_t)c->hidden, qkvz = N * (size_t)c->qkvz * unit;
    const size_t gates = N * (size_t)c->n_gates * sizeof(float), VV = N * (size_t)c->VV * unit;
    const size_t z = N * (size_t)c->rank[0] * unit, a = N * (size_t)c->rank[1] * unit;
    const bool moved = c->fused || c->dtype != GDN_F32;
    const struct gdn_room rooms[] = {
        { &m->plan, gdn_plan_bytes(&c->plan, &c->tokens) },
        { &m->x, rows * unit },
        { &m->dout, rows * unit },
        { &m->y, qkvz },
        { &m->dy, qkvz },
        { &m->woven, c->fused ? qkvz : 0 },
        { &m->gates, gates },
        { &m->dgates, gates },
        { &m->woven_gates, moved ? gates : 0 },
        { &m->low[0], z },
        { &m->low[1], a },
        { &m->dlow, z > a ? z : a },
        { &m->c, N * (size_t)c->D * unit },
        { &m->dc, N * (size_t)c->D * unit },
        { &m->o, VV },
        { &m->n, VV },
        { &m->dn, VV },
        { &m->dx, rows * sizeof(float) },
        { &m->part, c->part_bytes },
        { &m->products, c->base.products.scratch_bytes },
    };
    return gdn_lay_out_rooms(rooms, sizeof rooms / sizeof *rooms, memory);
}

/* Returns some columns of a buffer of rows, from column `first` on. Its dimensions are those of
 * the tokens of hidden, then heads (0: none), then `size`. */
static gdn_tensor view(const struct gdn_layer_backward *c, const void *buffer, int32_t dtype,
                       int64_t columns, int64_t first, int64_t heads, int64_t size)
{
    union {
        const void *in;
        char *out;
    } at = { .in = buffer };
    gdn_tensor t = { .data = at.out + first * (int64_t)gdn_dtype_bytes(dtype), .dtype = dtype };
    if (c->tokens.padded) {
        t.size[t.ndim] = c->tokens.B;
        t.stride[t.ndim++] = c->tokens.T * columns;
    }
    t.size[t.ndim] = c->tokens.padded ? c->tokens.T : c->tokens.N;
    t.stride[t.ndim++] = columns;
    if (heads) {
        t.size[t.ndim] = heads;
        t.stride[t.ndim++] = size;
    }
    t.size[t.ndim] = size;
    t.stride[t.ndim++] = 1;
    return t;
}

static gdn_tensor values(const struct gdn_layer_backward *c, const void *buffer)
{
    return view(c, buffer, c->dtype, c->VV, 0, c->Hv, c->V);
}

/* Returns q, k and v, from column `first` of q, k, v. */
static gdn_tensor keys(const struct gdn_layer_backward *c, const void *buffer, int64_t first)
{
    return view(c, buffer, c->dtype, c->D, first, c->Hk, c->K);
}

static gdn_tensor of_conv(const struct gdn_layer_backward *c, const void *buffer, int64_t columns)
{
    return view(c, buffer, c->dtype, columns, 0, 0, c->D);
}

static gdn_tensor of_b(const struct gdn_layer_backward *c, const float *gates)
{
    return view(c, gates, GDN_F32, c->n_gates, 0, 0, c->Hv);
}

static gdn_tensor of_a(const struct gdn_layer_backward *c, const float *gates)
{
    if (c->channels > 1) return view(c, gates, GDN_F32, c->n_gates, c->Hv, c->Hv, c->channels);
    return view(c, gates, GDN_F32, c->n_gates, c->Hv, 0, c->Hv);
}

static gdn_tensor of_z(const struct gdn_layer_backward *c, const void *buffer)
{
    return view(c, buffer, c->dtype, c->qkvz, c->D, c->Hv, c->V);
}

static gdn_tensor of_v(const struct gdn_layer_backward *c, const void *buffer)
{
    return view(c, buffer, c->dtype, c->D, c->D - c->VV, c->Hv, c->V);
}

/* ---- The ops ------------------------------------------------------------------------------- */

/* Every op has the same workspace, and the stream of the call. */
#define IN_PART(a, c)                                                    \
    ((a).workspace = (c)->m.part, (a).workspace_bytes = (c)->part_bytes, \
     (a).stream = (c)->args.stream)

static gdn_conv1d_args conv(const struct gdn_layer_backward *c)
{
    gdn_conv1d_args a = gdn_conv1d_args_init();
    a.x = of_conv(c, c->m.y, c->qkvz), a.out = of_conv(c, c->m.c, c->D);
    a.weight = c->args.conv_weight, a.bias = c->args.conv_bias, a.state = c->args.conv_state;
    a.activation = GDN_ACT_SILU;
    a.batch = &c->batch;
    IN_PART(a, c);
    return a;
}

static int32_t beta_kind(const struct gdn_layer_backward *c)
{
    return c->args.beta_kind ? c->args.beta_kind : GDN_BETA_SIGMOID;
}

static gdn_rule_args rule(const struct gdn_layer_backward *c)
{
    gdn_rule_args a = gdn_rule_args_init();
    a.q = keys(c, c->m.c, 0), a.k = keys(c, c->m.c, c->Hk * c->K), a.v = of_v(c, c->m.c);
    a.beta = of_b(c, c->m.gates), a.g = of_a(c, c->m.gates);
    a.A_log = c->args.A_log, a.dt_bias = c->args.dt_bias, a.state = c->args.state;
    a.out = values(c, c->m.o);
    a.gate = GDN_GATE_RAW, a.beta_kind = beta_kind(c), a.norm = GDN_NORM_L2;
    a.gate_lower_bound = c->args.gate_lower_bound;
    a.state_layout = c->args.state_layout;
    a.batch = &c->batch;
    IN_PART(a, c);
    return a;
}

static gdn_rmsnorm_gated_args norm(const struct gdn_layer_backward *c)
{
    gdn_rmsnorm_gated_args a = gdn_rmsnorm_gated_args_init();
    a.x = values(c, c->m.o), a.z = of_z(c, c->m.y), a.out = values(c, c->m.n);
    a.weight = c->args.norm_weight;
    a.eps = c->args.rms_eps, a.activation = c->args.activation;
    IN_PART(a, c);
    return a;
}

static gdn_rmsnorm_gated_backward_args norm_backward(const struct gdn_layer_backward *c)
{
    gdn_rmsnorm_gated_backward_args a = gdn_rmsnorm_gated_backward_args_init();
    a.x = values(c, c->m.o), a.z = of_z(c, c->m.y), a.dout = values(c, c->m.dn);
    a.dx = values(c, c->m.n), a.dz = of_z(c, c->m.dy);
    a.weight = c->args.norm_weight, a.dweight = c->args.dnorm_weight;
    a.eps = c->args.rms_eps, a.activation = c->args.activation;
    a.flags = c->args.flags & GDN_ACCUMULATE;
    IN_PART(a, c);
    return a;
}

static gdn_prefill_backward_args rule_backward(const struct gdn_layer_backward *c)
{
    gdn_prefill_backward_args a = gdn_prefill_backward_args_init();
    a.q = keys(c, c->m.c, 0), a.k = keys(c, c->m.c, c->Hk * c->K), a.v = of_v(c, c->m.c);
    a.beta = of_b(c, c->m.gates), a.g = of_a(c, c->m.gates);
    a.A_log = c->args.A_log, a.dt_bias = c->args.dt_bias, a.state = c->args.state;
    a.dout = values(c, c->m.n), a.dstate_out = c->args.dstate_out;
    a.dq = keys(c, c->m.dc, 0), a.dk = keys(c, c->m.dc, c->Hk * c->K), a.dv = of_v(c, c->m.dc);
    a.dbeta = of_b(c, c->m.dgates), a.dg = of_a(c, c->m.dgates);
    a.dA_log = c->args.dA_log, a.ddt_bias = c->args.ddt_bias, a.dstate = c->args.dstate;
    a.gate = GDN_GATE_RAW, a.beta_kind = beta_kind(c), a.norm = GDN_NORM_L2;
    a.gate_lower_bound = c->args.gate_lower_bound;
    a.state_layout = c->args.state_layout;
    a.batch = c->args.batch;
    a.flags = c->args.flags & GDN_ACCUMULATE;
    IN_PART(a, c);
    return a;
}

static gdn_conv1d_backward_args conv_backward(const struct gdn_layer_backward *c)
{
    gdn_conv1d_backward_args a = gdn_conv1d_backward_args_init();
    a.x = of_conv(c, c->m.y, c->qkvz), a.dout = of_conv(c, c->m.dc, c->D);
    a.dx = of_conv(c, c->m.dy, c->qkvz);
    a.weight = c->args.conv_weight, a.bias = c->args.conv_bias, a.state = c->args.conv_state;
    a.dstate_out = c->args.dconv_state_out, a.dstate = c->args.dconv_state;
    a.dweight = c->args.dconv_weight, a.dbias = c->args.dconv_bias;
    a.activation = GDN_ACT_SILU;
    a.batch = c->args.batch;
    a.flags = c->args.flags & GDN_ACCUMULATE;
    IN_PART(a, c);
    return a;
}

/* Checks the parts. Only descriptors are used, so buffers may be anywhere. */
static gdn_status check_parts(gdn_ctx *ctx, struct gdn_layer_backward *c)
{
    size_t bytes[6];
    lay_out(c, (char *)GDN_LAYER_NOWHERE);
    const gdn_conv1d_args conv_args = conv(c);
    const gdn_rule_args rule_args = rule(c);
    const gdn_rmsnorm_gated_args norm_args = norm(c);
    const gdn_rmsnorm_gated_backward_args norm_back = norm_backward(c);
    const gdn_prefill_backward_args rule_back = rule_backward(c);
    const gdn_conv1d_backward_args conv_back = conv_backward(c);
    TRY(gdn_conv1d_check(ctx, &conv_args, &bytes[0]));
    TRY(gdn_prefill_check(ctx, &rule_args, &bytes[1]));
    TRY(gdn_rmsnorm_gated_check(ctx, &norm_args, &bytes[2]));
    TRY(gdn_rmsnorm_gated_backward_check(ctx, &norm_back, &bytes[3]));
    TRY(gdn_prefill_backward_check(ctx, &rule_back, &bytes[4]));
    TRY(gdn_conv1d_backward_check(ctx, &conv_back, &bytes[5]));
    for (int i = 0; i < 6; i++)
        if (bytes[i] > c->part_bytes) c->part_bytes = bytes[i];
    return GDN_OK;
}

/* ---- Rows in the order of weights ---------------------------------------------------------- */

static gdn_status weave(const struct gdn_layer_backward *c, struct gdn_matrix from,
                        struct gdn_matrix to, bool of_gates, bool weaves)
{
    const int64_t group = c->Hv / c->Hk, rV = group * c->V;
    struct gdn_weave w = { from, to, c->N, c->Hk, { c->K, c->K, rV, rV }, weaves };
    if (of_gates) w = (struct gdn_weave){ from, to, c->N, c->Hk, { group, group, 0, 0 }, weaves };
    if (!c->fused) w.heads = 1, w.part[0] = c->n_gates, w.part[1] = 0; /* only another dtype */
    return c->steps->weave(&c->run, &w);
}

/* ---- Running ----------------------------------------------------------------------------- */

static gdn_status multiply(const struct gdn_layer_backward *c, enum gdn_layer_phase phase)
{
    for (int i = c->first[phase]; i < c->first[phase + 1]; i++)
        TRY(c->steps->multiply(&c->run, &c->base.products.all[i]));
    return GDN_OK;
}

static gdn_status project(const struct gdn_layer_backward *c)
{
    TRY(multiply(c, GDN_LAYER_FORWARD));
    if (!c->fused) return GDN_OK;
    TRY(weave(c, gdn_layer_matrix(c->m.woven, c->dtype, c->qkvz, 0),
              gdn_layer_matrix(c->m.y, c->dtype, c->qkvz, 0), false, false));
    return weave(c, gdn_layer_matrix(c->m.woven_gates, GDN_F32, c->n_gates, 0),
                 gdn_layer_matrix(c->m.gates, GDN_F32, c->n_gates, 0), true, false);
}

static gdn_status run_forward(const struct gdn_layer_backward *c)
{
    gdn_ctx *ctx = c->run.ctx;
    const gdn_conv1d_args conv_args = conv(c);
    const gdn_rule_args rule_args = rule(c);
    const gdn_rmsnorm_gated_args norm_args = norm(c);
    TRY(project(c));
    TRY(gdn_conv1d_part(ctx, &conv_args));
    if (c->batch.cu_seqlens.data) /* tokens before the first sequence get no output */
        TRY(c->steps->clear(&c->run, c->m.o, (size_t)(c->N * c->VV) * gdn_dtype_bytes(c->dtype)));
    TRY(gdn_prefill_part(ctx, &rule_args));
    return gdn_rmsnorm_gated_part(ctx, &norm_args);
}

/* Zeroes the gradients within the layer, if the ops add to them. */
static gdn_status clear(const struct gdn_layer_backward *c)
{
    const size_t N = (size_t)c->N, unit = gdn_dtype_bytes(c->dtype);
    if (!c->adds) return GDN_OK;
    TRY(c->steps->clear(&c->run, c->m.n, N * (size_t)c->VV * unit));
    TRY(c->steps->clear(&c->run, c->m.dy, N * (size_t)c->qkvz * unit));
    TRY(c->steps->clear(&c->run, c->m.dgates, N * (size_t)c->n_gates * sizeof(float)));
    return c->steps->clear(&c->run, c->m.dc, N * (size_t)c->D * unit);
}

static gdn_status run_backward(const struct gdn_layer_backward *c)
{
    gdn_ctx *ctx = c->run.ctx;
    const gdn_rmsnorm_gated_backward_args norm_args = norm_backward(c);
    const gdn_prefill_backward_args rule_args = rule_backward(c);
    const gdn_conv1d_backward_args conv_args = conv_backward(c);
    TRY(multiply(c, GDN_LAYER_OUTPUT));
    TRY(clear(c));
    TRY(gdn_rmsnorm_gated_backward_part(ctx, &norm_args));
    TRY(gdn_prefill_backward_part(ctx, &rule_args));
    return gdn_conv1d_backward_part(ctx, &conv_args);
}

/* Brings gradients of projected rows into the order of the weights' rows. */
static gdn_status weave_gradients(const struct gdn_layer_backward *c)
{
    if (c->fused)
        TRY(weave(c, gdn_layer_matrix(c->m.dy, c->dtype, c->qkvz, 0),
                  gdn_layer_matrix(c->m.woven, c->dtype, c->qkvz, 0), false, true));
    if (!c->fused && c->dtype == GDN_F32) return GDN_OK;
    return weave(c, gdn_layer_matrix(c->m.dgates, GDN_F32, c->n_gates, 0),
                 gdn_layer_matrix(c->m.woven_gates, c->dtype, c->n_gates, 0), true, true);
}

static gdn_status load(const struct gdn_layer_backward *c, const gdn_tensor *from, char *to)
{
    const struct gdn_token_rows rows = { gdn_rows_of(from, &c->tokens),
                                         gdn_layer_matrix(to, c->dtype, c->hidden, 0), c->hidden,
                                         false };
    return c->steps->load(&c->run, &rows);
}

static gdn_status run_steps(const struct gdn_layer_backward *c)
{
    TRY(c->steps->begin(&c->run));
    TRY(load(c, &c->args.hidden, c->m.x));
    TRY(load(c, &c->args.dout, c->m.dout));
    TRY(run_forward(c));
    TRY(run_backward(c));
    TRY(weave_gradients(c));
    TRY(multiply(c, GDN_LAYER_BACKWARD));
    if (!c->args.dhidden.data) return GDN_OK;
    const struct gdn_token_rows dx = { gdn_rows_of(&c->args.dhidden, &c->tokens),
                                       gdn_layer_matrix(c->m.dx, GDN_F32, c->hidden, 0), c->hidden,
                                       c->adds };
    return c->steps->store(&c->run, &dx);
}

/* ---- For the backends ---------------------------------------------------------------------- */

static gdn_status plan_parts(gdn_ctx *ctx, void *call, const struct gdn_layer_steps *steps)
{
    struct gdn_layer_backward *c = call;
    c->steps = steps;
    c->dtype = steps->is_f32 ? GDN_F32 : c->args.hidden.dtype;
    TRY(check_parts(ctx, c));
    gdn_layer_list_products(c);
    TRY(steps->plan(ctx, &c->base));
    c->base.call.bytes = lay_out(c, NULL);
    return GDN_OK;
}

static gdn_status run_parts(gdn_ctx *ctx, void *call, void *memory)
{
    struct gdn_layer_backward *c = call;
    lay_out(c, memory);
    gdn_layer_move_products(c, memory);
    c->run = (struct gdn_layer_run){
        .ctx = ctx,
        .plan = &c->plan,
        .tokens = &c->tokens,
        .plan_memory = c->m.plan,
        .reads_states = c->args.state.data || c->args.conv_state.data,
        .scratch = c->m.products,
        .scratch_bytes = c->base.products.scratch_bytes,
        .stream = c->base.call.stream,
    };
    return run_steps(c);
}

static gdn_status describe_block_backward(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_layer_backward *c = call;
    *c = (struct gdn_layer_backward){ 0 };
    TRY(gdn_copy_args(ctx, &c->args, sizeof c->args, args, "gdn_block_backward_args"));
    c->base = (struct gdn_layer_backward_call){ .call = GDN_CALL_OF(&c->args),
                                                .plan = plan_parts,
                                                .run = run_parts };
    c->base.products.exact = c->args.flags & GDN_EXACT;
    TRY(check_fields(ctx, c));
    TRY(check_hidden(ctx, c));
    TRY(check_tensors(ctx, c));
    c->batch = c->plan.batch;
    c->batch.struct_size = sizeof c->batch;
    c->batch.write = GDN_WRITE_NONE;
    return GDN_OK;
}

GDN_OP_ENTRY(BLOCK_BACKWARD, block_backward, gdn_block_backward_args, struct gdn_layer_backward)
