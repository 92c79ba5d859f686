/* SPDX-License-Identifier: Apache-2.0 */
/* The ops with GDN_SPLIT_INVARIANT: calls that continue from a record go to split.c. */
#include "calls/op_backends.h"
#include "cuda/prefill/prefill.h"
#include "cuda/split/split.h"

static gdn_status plan_rule(gdn_ctx *ctx, struct gdn_rule_call *c, const struct gdn_op_backend *op)
{
    return c->rule.split && c->rule.record ? gdn_cuda_split_plan(ctx, c) : op->plan(ctx, c);
}

static gdn_status run_rule(gdn_ctx *ctx, struct gdn_rule_call *c, void *memory,
                           const struct gdn_op_backend *op)
{
    return c->rule.split && c->rule.record ? gdn_cuda_split_run(ctx, c, memory)
                                           : op->run(ctx, c, memory);
}

static gdn_status plan_prefill(gdn_ctx *ctx, void *call)
{
    return plan_rule(ctx, call, &gdn_cuda_prefill_op);
}
static gdn_status run_prefill(gdn_ctx *ctx, void *call, void *memory)
{
    return run_rule(ctx, call, memory, &gdn_cuda_prefill_op);
}
const struct gdn_op_backend gdn_cuda_op_prefill = { plan_prefill, run_prefill };

static gdn_status plan_decode(gdn_ctx *ctx, void *call)
{
    return plan_rule(ctx, call, &gdn_cuda_decode_op);
}
static gdn_status run_decode(gdn_ctx *ctx, void *call, void *memory)
{
    return run_rule(ctx, call, memory, &gdn_cuda_decode_op);
}
const struct gdn_op_backend gdn_cuda_op_decode = { plan_decode, run_decode };

static gdn_status plan_record_fold(gdn_ctx *ctx, void *call)
{
    const struct gdn_fold_call *const m = call;
    return m->rule.split ? gdn_cuda_split_plan_fold(ctx, call)
                         : gdn_cuda_record_fold_op.plan(ctx, call);
}
static gdn_status run_record_fold(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_fold_call *const m = call;
    return m->rule.split ? gdn_cuda_split_run_fold(ctx, call, memory)
                         : gdn_cuda_record_fold_op.run(ctx, call, memory);
}
const struct gdn_op_backend gdn_cuda_op_record_fold = { plan_record_fold, run_record_fold };
