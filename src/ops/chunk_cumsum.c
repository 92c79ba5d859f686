/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_chunk_cumsum: checks its arguments. cpu/chunk_cumsum.c computes it. */
#include "calls/chunk_stage.h"
#include "ops/checks.h"
#include "ops/entry.h"
#include "ops/fields.h"
#include "ops/op_table.h"
#include "ops/tensors.h"

static gdn_status describe_chunk_cumsum(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_cumsum_call *c = call;
    *c = (struct gdn_cumsum_call){ 0 };
    const gdn_chunk_cumsum_args *a = &c->args;
    TRY(gdn_copy_args(ctx, &c->args, sizeof c->args, args, "gdn_chunk_cumsum_args"));
    c->base = GDN_CALL_OF(a);
    TRY(gdn_check_fields(ctx, GDN_OP_CHUNK_CUMSUM, a));
    if (a->chunk_size < 1)
        return gdn_fail(ctx, GDN_E_ARG, "chunk_size: %d, wanted 1 or more", (int)a->chunk_size);
    TRY(gdn_check_present(ctx, GDN_OP_CHUNK_CUMSUM, &c->args));
    TRY(gdn_plan_tokens(ctx, &a->g, "g", 1, &c->tokens));
    TRY(gdn_stage_plan(ctx, a->batch, &c->tokens, &c->plan));
    c->H = a->g.size[a->g.ndim - 1];
    const struct gdn_sizes s = { .H = c->H, .tokens = &c->tokens };
    TRY(gdn_check_shapes(ctx, GDN_OP_CHUNK_CUMSUM, a, &s));
    TRY(gdn_check_written(ctx, GDN_OP_CHUNK_CUMSUM, a, &c->plan.batch));
    c->g = gdn_rows_of(&a->g, &c->tokens);
    c->out = gdn_rows_of(&a->out, &c->tokens);
    c->scale = (double)gdn_scale_of(a->scale, 1, a->flags);
    return GDN_OK;
}

GDN_OP_ENTRY(CHUNK_CUMSUM, chunk_cumsum, gdn_chunk_cumsum_args, struct gdn_cumsum_call)
