/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_conv1d: checks its arguments. cpu/conv.c computes it. */
#include "calls/conv.h"

#include "core/tensor_check.h"
#include "ops/checks.h"
#include "ops/entry.h"
#include "ops/fields.h"
#include "ops/op_table.h"
#include "ops/parts.h"
#include "ops/tensors.h"

/* ---- Descriptors ------------------------------------------------------------------------- */

gdn_status gdn_conv_weights(gdn_ctx *ctx, const gdn_tensor *weight, const char *weight_name,
                            const gdn_tensor *bias, struct gdn_conv *conv)
{
    const int64_t D = conv->D, size[] = { D, -1, -1 };
    const int last = weight->ndim - 1;
    TRY(gdn_check_shape(ctx, weight, weight_name, last == 2 ? 3 : 2, size));
    if (last == 2 && weight->size[1] != 1)
        return gdn_fail(ctx, GDN_E_SHAPE, "%s: [%lld][%lld][%lld], wanted 1 in the middle",
                        weight_name, (long long)D, (long long)weight->size[1],
                        (long long)weight->size[2]);
    const int64_t W = weight->size[last];
    if (W < 2 || W > GDN_MAX_TAPS)
        return gdn_fail(ctx, W < 2 ? GDN_E_SHAPE : GDN_E_UNSUPPORTED,
                        "%s: %lld taps, wanted 2 to %d", weight_name, (long long)W, GDN_MAX_TAPS);
    conv->W = (int)W;
    conv->weight = (struct gdn_conv_view){ .data = weight->data,
                                           .dtype = weight->dtype,
                                           .channel = weight->stride[0],
                                           .entry = weight->stride[last],
                                           .length = W };
    conv->bias = (struct gdn_conv_view){ 0 };
    if (!bias->data) return GDN_OK;
    conv->bias = (struct gdn_conv_view){
        .data = bias->data, .dtype = bias->dtype, .channel = bias->stride[0], .length = 1
    };
    return GDN_OK;
}

gdn_status gdn_conv_state_view(gdn_ctx *ctx, const gdn_tensor *t, const char *name,
                               const struct gdn_conv *conv, struct gdn_conv_view *view)
{
    const int64_t size[] = { -1, conv->D, -1 };
    *view = (struct gdn_conv_view){ 0 };
    if (!t->data) return GDN_OK;
    TRY(gdn_check_shape(ctx, t, name, 3, size));
    if (t->size[2] < conv->W - 1)
        return gdn_fail(ctx, GDN_E_SHAPE, "%s: %lld entries per channel, wanted at least %d", name,
                        (long long)t->size[2], conv->W - 1);
    *view = (struct gdn_conv_view){ .data = t->data,
                                    .dtype = t->dtype,
                                    .slot = t->stride[0],
                                    .channel = t->stride[1],
                                    .entry = t->stride[2],
                                    .length = t->size[2] };
    return GDN_OK;
}

/* ---- The call ------------------------------------------------------------------------------ */

static gdn_status check_rows(gdn_ctx *ctx, struct gdn_conv_call *c)
{
    const gdn_conv1d_args *a = &c->args;
    TRY(gdn_check_present(ctx, GDN_OP_CONV1D, &c->args));
    TRY(gdn_plan_tokens(ctx, &a->x, "x", 1, &c->tokens));
    c->conv.D = a->x.size[a->x.ndim - 1];
    const struct gdn_sizes s = { .D = c->conv.D, .tokens = &c->tokens, .like = &a->x };
    return gdn_check_shapes(ctx, GDN_OP_CONV1D, a, &s);
}

/* Returns the pool of final states, which may be absent. */
static const gdn_tensor *final_pool(const gdn_conv1d_args *a)
{
    return a->state_out.data ? &a->state_out : &a->state;
}

static gdn_status check_states(gdn_ctx *ctx, struct gdn_conv_call *c)
{
    const gdn_conv1d_args *a = &c->args;
    struct gdn_conv *r = &c->conv;
    const gdn_tensor *final = final_pool(a);
    const struct {
        const gdn_tensor *t;
        const char *name;
        struct gdn_conv_view *view;
    } pools[] = { { &a->state, "state", &r->from },
                  { &a->state_out, "state_out", &r->to },
                  { &a->checkpoints, "checkpoints", &r->checkpoints } };
    int64_t length = -1; /* of the first one there */
    for (size_t i = 0; i < sizeof pools / sizeof *pools; i++) {
        TRY(gdn_conv_state_view(ctx, pools[i].t, pools[i].name, r, pools[i].view));
        if (!pools[i].t->data) continue;
        if (length >= 0 && pools[i].view->length != length)
            return gdn_fail(ctx, GDN_E_SHAPE, "%s: %lld entries per channel, but %s has %lld",
                            pools[i].name, (long long)pools[i].view->length,
                            a->state.data ? "state" : "state_out", (long long)length);
        length = pools[i].view->length;
    }
    if (!r->to.data) r->to = r->from;

    const bool writes = final->data && c->plan.batch.write != GDN_WRITE_NONE;
    if (!a->out.data && !writes && !a->checkpoints.data)
        return gdn_fail(ctx, GDN_E_ARG, "out: absent, and no state is written");
    if (a->out.data && c->plan.batch.path.data)
        return gdn_fail(ctx, GDN_E_ARG, "out: given, wanted none with path");
    /* Checkpoints may be in the pool of final states alone. */
    if (a->state_out.data && a->state_out.data != a->state.data)
        TRY(gdn_check_no_overlap(ctx, &a->checkpoints, "checkpoints", &a->state, "state", false));
    return gdn_check_written(ctx, GDN_OP_CONV1D, a, &c->plan.batch);
}

static gdn_status describe_conv1d(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_conv_call *c = call;
    const gdn_conv1d_args *a = &c->args;
    c->conv = (struct gdn_conv){ 0 };
    TRY(gdn_copy_args(ctx, &c->args, sizeof c->args, args, "gdn_conv1d_args"));
    c->base = GDN_CALL_OF(a);
    TRY(gdn_check_fields(ctx, GDN_OP_CONV1D, a));
    TRY(check_rows(ctx, c));
    TRY(gdn_conv_weights(ctx, &a->weight, "weight", &a->bias, &c->conv));
    const unsigned takes = GDN_PLAN_EACH | GDN_PLAN_TREE | GDN_PLAN_PATH |
                           (a->checkpoints.data ? GDN_PLAN_CHECKPOINTS : GDN_PLAN_NO_TENSOR);
    TRY(gdn_plan_describe(ctx, a->batch, &c->tokens, takes, &c->plan));
    TRY(check_states(ctx, c));

    struct gdn_conv *r = &c->conv;
    r->x = gdn_rows_of(&a->x, &c->tokens);
    r->out = gdn_rows_of(&a->out, &c->tokens);
    r->strided = gdn_is_strided(&r->x, r->D) || gdn_is_strided(&r->out, r->D);
    r->silu = a->activation == GDN_ACT_SILU;
    r->n_seqs = c->plan.B;
    c->pools = gdn_plan_pools_of(&a->state, final_pool(a), &a->checkpoints);
    return GDN_OK;
}

GDN_OP_ENTRY(CONV1D, conv1d, gdn_conv1d_args, struct gdn_conv_call)
GDN_OP_PART(conv1d, gdn_conv1d_args, struct gdn_conv_call)
