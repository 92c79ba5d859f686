/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_decode: plans a call and runs it. */
#include "calls/op_backends.h"
#include "cuda/decode/decode.h"
#include "cuda/driver/contents.h"

gdn_status gdn_cuda_check_rule(gdn_ctx *ctx, const struct gdn_rule_call *c)
{
    return c->rule.record
               ? gdn_cuda_check_record(ctx, &c->plan, &c->tokens, &c->pools, &c->record,
                                       c->base.stream)
               : gdn_cuda_check_batch(ctx, &c->plan, &c->tokens, &c->pools, c->base.stream);
}

/* The decisions about a call. */
struct planned {
    struct gdn_cu_rule rule;
    struct gdn_cuda_decode_plan plan;
};
_Static_assert(sizeof(struct planned) <= GDN_PLAN_ROOM, "a plan has room");

static gdn_status plan_decode(gdn_ctx *ctx, void *call)
{
    struct gdn_rule_call *c = call;
    struct planned *p = GDN_PLANNED(struct planned, &c->base);
    TRY(gdn_cuda_check_channels(ctx, c->rule.record));
    TRY(gdn_cuda_check_tree(ctx, &c->plan.batch, &c->tokens));
    gdn_cuda_fill_call(&p->rule, c);
    gdn_cuda_decode_plan(ctx, c->base.op, &p->rule, &p->plan);
    c->base.bytes = p->plan.bytes;
    return GDN_OK;
}

static gdn_status run_decode(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_rule_call *c = call;
    struct planned *p = GDN_PLANNED(struct planned, &c->base);
    TRY(gdn_cuda_check_rule(ctx, c));
    return gdn_cuda_decode_run(&p->plan, memory, c->base.stream);
}

const struct gdn_op_backend gdn_cuda_decode_op = { plan_decode, run_decode };
