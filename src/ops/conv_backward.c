/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_conv1d_backward: checks its arguments. cpu/backward/conv_backward.c computes it. */
#include "calls/conv_backward.h"

#include "calls/chunk_stage.h"
#include "calls/conv.h"
#include "core/tensor_check.h"
#include "ops/checks.h"
#include "ops/entry.h"
#include "ops/fields.h"
#include "ops/op_table.h"
#include "ops/parts.h"
#include "ops/tensors.h"

static gdn_status check_fields(gdn_ctx *ctx, const gdn_conv1d_backward_args *a)
{
    TRY(gdn_check_fields(ctx, GDN_OP_CONV1D_BACKWARD, a));
    if (!a->dx.data && !a->dweight.data && !a->dbias.data && !a->dstate.data)
        return gdn_fail(ctx, GDN_E_ARG, "dx: absent, and every other gradient too, wanted one");
    return GDN_OK;
}

static gdn_status check_tensors(gdn_ctx *ctx, struct gdn_conv_backward_call *c)
{
    const gdn_conv1d_backward_args *a = &c->args;
    const gdn_tensor *w = &a->weight;
    const struct gdn_sizes s = { .B = c->plan.B, .D = c->work.D, .tokens = &c->tokens };
    TRY(gdn_check_shapes(ctx, GDN_OP_CONV1D_BACKWARD, a, &s));
    TRY(gdn_check_shape(ctx, &a->dweight, "dweight", w->ndim, w->size));
    return gdn_check_written(ctx, GDN_OP_CONV1D_BACKWARD, a, &c->plan.batch);
}

/* Finds the states, all of one length. */
static gdn_status find_states(gdn_ctx *ctx, struct gdn_conv_backward_call *c,
                              const struct gdn_conv *shape)
{
    const gdn_conv1d_backward_args *a = &c->args;
    const struct {
        const gdn_tensor *t;
        const char *name;
        struct gdn_conv_view *view;
    } states[] = { { &a->state, "state", &c->work.state },
                   { &a->dstate_out, "dstate_out", &c->work.dstate_out },
                   { &a->dstate, "dstate", &c->work.dstate } };
    int first = -1;
    for (int i = 0; i < 3; i++) {
        TRY(gdn_conv_state_view(ctx, states[i].t, states[i].name, shape, states[i].view));
        if (!states[i].t->data) continue;
        if (first >= 0 && states[i].view->length != states[first].view->length)
            return gdn_fail(ctx, GDN_E_SHAPE, "%s: %lld entries per channel, but %s has %lld",
                            states[i].name, (long long)states[i].view->length, states[first].name,
                            (long long)states[first].view->length);
        if (first < 0) first = i;
    }
    return GDN_OK;
}

static struct gdn_conv_view view_of(const gdn_tensor *t, int64_t length)
{
    return (struct gdn_conv_view){ .data = t->data,
                                   .dtype = t->dtype,
                                   .channel = t->data ? t->stride[0] : 0,
                                   .entry = t->data && t->ndim > 1 ? t->stride[t->ndim - 1] : 0,
                                   .length = length };
}

static gdn_status describe_conv1d_backward(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_conv_backward_call *c = call;
    const gdn_conv1d_backward_args *a = &c->args;
    struct gdn_conv_backward *w = &c->work;
    struct gdn_conv shape = { 0 };
    *c = (struct gdn_conv_backward_call){ 0 };
    TRY(gdn_copy_args(ctx, &c->args, sizeof c->args, args, "gdn_conv1d_backward_args"));
    c->base = GDN_CALL_OF(a);
    TRY(check_fields(ctx, a));
    TRY(gdn_check_present(ctx, GDN_OP_CONV1D_BACKWARD, &c->args));
    TRY(gdn_plan_tokens(ctx, &a->x, "x", 1, &c->tokens));
    w->D = shape.D = a->x.size[a->x.ndim - 1];
    TRY(gdn_conv_weights(ctx, &a->weight, "weight", &a->bias, &shape));
    w->W = shape.W, w->weight = shape.weight, w->bias = shape.bias;
    TRY(gdn_stage_plan_padded(ctx, a->batch, &c->tokens, 0, &c->plan));
    TRY(check_tensors(ctx, c));
    TRY(find_states(ctx, c, &shape));
    w->x = gdn_rows_of(&a->x, &c->tokens);
    w->dout = gdn_rows_of(&a->dout, &c->tokens);
    w->dx = gdn_rows_of(&a->dx, &c->tokens);
    w->dweight = view_of(&a->dweight, w->W);
    w->dbias = view_of(&a->dbias, 1);
    w->n_seqs = c->plan.B;
    w->silu = a->activation == GDN_ACT_SILU;
    w->adds = a->flags & GDN_ACCUMULATE;
    c->pools = (struct gdn_plan_pools){ a->state.data ? c->plan.B : -1, -1, -1, false, false };
    return GDN_OK;
}

GDN_OP_ENTRY(CONV1D_BACKWARD, conv1d_backward, gdn_conv1d_backward_args,
             struct gdn_conv_backward_call)
GDN_OP_PART(conv1d_backward, gdn_conv1d_backward_args, struct gdn_conv_backward_call)
