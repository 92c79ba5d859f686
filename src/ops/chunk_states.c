/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_chunk_states: checks its arguments. cpu/chunk_states.c computes it. */
#include "calls/chunk_stage.h"
#include "core/tensor_check.h"
#include "ops/checks.h"
#include "ops/entry.h"
#include "ops/fields.h"
#include "ops/op_table.h"
#include "ops/tensors.h"

static gdn_status check_tensors(gdn_ctx *ctx, struct gdn_states_call *c)
{
    const gdn_chunk_states_args *a = &c->args;
    struct gdn_rule *r = &c->rule;
    TRY(gdn_check_present(ctx, GDN_OP_CHUNK_STATES, &c->args));
    TRY(gdn_stage_describe_uw(ctx, &a->u, &a->w, a->batch, &c->tokens, &c->plan, r));
    if (!a->states.data && !a->state_out.data)
        return gdn_fail(ctx, GDN_E_ARG, "states: absent, and state_out too, wanted at least one");
    TRY(gdn_plan_check(ctx, &c->tokens, &a->k, "k", 2, (int64_t[]){ -1, r->K }));
    TRY(gdn_stage_heads(ctx, &a->k, "k", r->H, &r->Hk));
    struct gdn_sizes s = {
        .B = c->plan.B, .H = r->H, .Hk = r->Hk, .K = r->K, .V = r->V, .tokens = &c->tokens
    };
    gdn_set_layout(&s, a->state_layout);
    TRY(gdn_check_shapes(ctx, GDN_OP_CHUNK_STATES, a, &s));
    return gdn_check_written(ctx, GDN_OP_CHUNK_STATES, a, &c->plan.batch);
}

static gdn_status describe_chunk_states(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_states_call *c = call;
    *c = (struct gdn_states_call){ 0 };
    const gdn_chunk_states_args *a = &c->args;
    struct gdn_rule *r = &c->rule;
    TRY(gdn_copy_args(ctx, &c->args, sizeof c->args, args, "gdn_chunk_states_args"));
    c->base = GDN_CALL_OF(a);
    TRY(gdn_check_fields(ctx, GDN_OP_CHUNK_STATES, a));
    TRY(gdn_stage_chunk_size(ctx, a->chunk_size));
    c->C = a->chunk_size;
    TRY(check_tensors(ctx, c));
    TRY(gdn_stage_states(ctx, &a->states, &c->plan, &c->tokens, a->chunk_size));
    const int64_t H = r->H, K = r->K, V = r->V;
    TRY(gdn_state_view(ctx, &a->state, "state", a->state_layout, H, K, V, &c->state));
    TRY(gdn_state_view(ctx, &a->states, "states", a->state_layout, H, K, V, &c->states));
    TRY(gdn_state_view(ctx, &a->state_out, "state_out", a->state_layout, H, K, V, &c->state_out));
    r->k = gdn_rows_of(&a->k, &c->tokens), r->g = gdn_rows_of(&a->g, &c->tokens);
    c->u = gdn_rows_of(&a->u, &c->tokens), c->w = gdn_rows_of(&a->w, &c->tokens);
    r->head_map = a->head_map;
    return GDN_OK;
}

GDN_OP_ENTRY(CHUNK_STATES, chunk_states, gdn_chunk_states_args, struct gdn_states_call)
