/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_chunk_output: checks its arguments. cpu/chunk_output.c computes it. */
#include <math.h>

#include "calls/chunk_stage.h"
#include "core/tensor_check.h"
#include "ops/checks.h"
#include "ops/entry.h"
#include "ops/fields.h"
#include "ops/op_table.h"
#include "ops/tensors.h"

static gdn_status check_tensors(gdn_ctx *ctx, struct gdn_output_call *c)
{
    const gdn_chunk_output_args *a = &c->args;
    struct gdn_rule *r = &c->rule;
    TRY(gdn_check_present(ctx, GDN_OP_CHUNK_OUTPUT, &c->args));
    TRY(gdn_stage_describe_uw(ctx, &a->u, &a->w, a->batch, &c->tokens, &c->plan, r));
    TRY(gdn_plan_check(ctx, &c->tokens, &a->q, "q", 2, (int64_t[]){ -1, r->K }));
    TRY(gdn_plan_check(ctx, &c->tokens, &a->k, "k", 2, (int64_t[]){ -1, r->K }));
    TRY(gdn_stage_heads(ctx, &a->q, "q", r->H, &r->Hq));
    TRY(gdn_stage_heads(ctx, &a->k, "k", r->H, &r->Hk));
    struct gdn_sizes s = {
        .H = r->H, .Hq = r->Hq, .Hk = r->Hk, .K = r->K, .V = r->V, .tokens = &c->tokens
    };
    gdn_set_layout(&s, a->state_layout);
    TRY(gdn_check_shapes(ctx, GDN_OP_CHUNK_OUTPUT, a, &s));
    return gdn_check_written(ctx, GDN_OP_CHUNK_OUTPUT, a, &c->plan.batch);
}

static gdn_status describe_chunk_output(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_output_call *c = call;
    *c = (struct gdn_output_call){ 0 };
    const gdn_chunk_output_args *a = &c->args;
    struct gdn_rule *r = &c->rule;
    TRY(gdn_copy_args(ctx, &c->args, sizeof c->args, args, "gdn_chunk_output_args"));
    c->base = GDN_CALL_OF(a);
    TRY(gdn_check_fields(ctx, GDN_OP_CHUNK_OUTPUT, a));
    TRY(gdn_stage_chunk_size(ctx, a->chunk_size));
    c->C = a->chunk_size;
    TRY(check_tensors(ctx, c));
    TRY(gdn_stage_states(ctx, &a->states, &c->plan, &c->tokens, a->chunk_size));
    TRY(gdn_state_view(ctx, &a->states, "states", a->state_layout, r->H, r->K, r->V, &c->states));
    r->q = gdn_rows_of(&a->q, &c->tokens), r->k = gdn_rows_of(&a->k, &c->tokens);
    r->g = gdn_rows_of(&a->g, &c->tokens), r->out = gdn_rows_of(&a->out, &c->tokens);
    c->u = gdn_rows_of(&a->u, &c->tokens), c->w = gdn_rows_of(&a->w, &c->tokens);
    r->head_map = a->head_map;
    r->scale = gdn_scale_of(a->scale, 1.0f / sqrtf((float)r->K), a->flags);
    return GDN_OK;
}

GDN_OP_ENTRY(CHUNK_OUTPUT, chunk_output, gdn_chunk_output_args, struct gdn_output_call)
