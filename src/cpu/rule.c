/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_prefill and gdn_decode: lays out the workspace of a call, and runs it (rule_run.c). */
#include "batch/tree.h"
#include "calls/op_backends.h"
#include "calls/rule_call.h"
#include "cpu/record/open_chunk.h"
#include "cpu/record/record.h"
#include "cpu/rule.h"

static gdn_status plan_rule(gdn_ctx *ctx, void *call)
{
    struct gdn_rule_call *c = call;
    struct gdn_rule *r = &c->rule;
    if (r->split && r->record) TRY(gdn_open_check_rows(ctx, r->record));
    r->products = c->args.flags & GDN_BF16_PRODUCTS && !r->family.is ? ctx->products : NULL;
    c->record.chunk = r->split ? GDN_CHUNK : 0;
    gdn_rule_cut(r, ctx->kr, gdn_threads_count(ctx->threads));
    c->plan_bytes = gdn_align64(gdn_plan_bytes(&c->plan, &c->tokens));
    c->gate_bytes = gdn_align64(gdn_rule_decay_bytes(r));
    c->tree_bytes = r->tree ? gdn_tree_bytes(&c->tokens) : 0;
    c->record_bytes = r->record ? gdn_record_slots_bytes(&c->record) : 0;
    c->base.bytes = c->plan_bytes + c->gate_bytes + c->tree_bytes + c->record_bytes +
                    gdn_rule_scratch(r, ctx->kr) * (size_t)gdn_threads_count(ctx->threads);
    return GDN_OK;
}

static gdn_status run_rule(gdn_ctx *ctx, void *call, void *memory)
{
    struct gdn_rule_call *c = call;
    struct gdn_rule *r = &c->rule;
    const gdn_rule_args *a = &c->args;
    char *at = memory;
    TRY(gdn_plan_batch(ctx, &c->tokens, &c->pools, at, &c->plan));
    at += c->plan_bytes;
    char *slots = at;
    at += c->record_bytes;
    if (r->tree) {
        gdn_tree_order(&c->plan, &c->tokens, at);
        r->tokens = &c->tokens;
        r->visits = (const struct gdn_visit *)(const void *)at;
    }
    at += c->tree_bytes;
    if (a->gate == GDN_GATE_RAW) {
        float *A = (float *)at, *dt = A + r->H;
        gdn_rule_load_decay(A, dt, &a->A_log, &a->dt_bias, r->H, gdn_rule_channels(r), r->bound);
        r->A = A, r->dt = dt;
    }
    at += c->gate_bytes;
    r->plan = &c->plan;
    r->seqs = c->plan.seqs;
    if (r->record) TRY(gdn_record_begin(ctx, r, &c->plan, slots, at, gdn_rule_scratch(r, ctx->kr)));
    gdn_rule_run(ctx, r, at);
    if (r->record && r->split) gdn_open_leave_rows(ctx, r);
    if (r->record) gdn_record_accept(r->record, &c->plan, c->pools.checkpoint_in_write);
    gdn_plan_zero_rest(&c->plan, &c->tokens, &r->out, r->H, r->V);
    return gdn_note_kernel(ctx, c->base.op, gdn_rule_loops(r));
}

const struct gdn_op_backend gdn_cpu_op_prefill = { plan_rule, run_rule };
const struct gdn_op_backend gdn_cpu_op_decode = { plan_rule, run_rule };
