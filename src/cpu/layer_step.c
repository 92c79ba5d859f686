/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_step: the convolution, the rule and the norm of one token of each sequence, or a few. */
#include "calls/layer_step.h"

#include <stdio.h>

#include "batch/tree.h"
#include "calls/op_backends.h"
#include "cpu/conv.h"
#include "cpu/norm.h"
#include "cpu/record/record.h"
#include "cpu/rule.h"

/* The workspace of a run. */
struct buffers {
    char *plan, *record, *tree, *convolved, *threads;
    float *A;
};

static size_t lay_out(gdn_ctx *ctx, const struct gdn_step_call *m, struct buffers *b, char *memory)
{
    const size_t rule = gdn_rule_scratch(&m->rule, ctx->kr);
    const size_t conv = gdn_step_convolves(m) ? gdn_conv_scratch(&m->conv) : 0;
    const size_t thread = rule > conv ? rule : conv;
    const struct gdn_room rooms[] = {
        { &b->plan, gdn_plan_bytes(&m->plan, &m->tokens) },
        { &b->record, m->rule.record ? gdn_record_slots_bytes(&m->record) : 0 },
        { &b->tree, m->rule.tree ? gdn_tree_bytes(&m->tokens) : 0 },
        { &b->convolved, gdn_step_call_bytes(m) },
        { &b->A, gdn_rule_decay_bytes(&m->rule) },
        { &b->threads, thread * (size_t)gdn_threads_count(ctx->threads) },
    };
    return gdn_lay_out_rooms(rooms, sizeof rooms / sizeof *rooms, memory);
}

static gdn_status plan_step(gdn_ctx *ctx, void *call)
{
    struct gdn_step_call *m = call;
    struct buffers b;
    m->norm.kr = ctx->kr;
    gdn_rule_cut(&m->rule, ctx->kr, gdn_threads_count(ctx->threads));
    m->base.bytes = lay_out(ctx, m, &b, NULL);
    return GDN_OK;
}

/* Computes the norm of one sequence's rows of out. */
static void norm_item(void *arg, int64_t item, int thread)
{
    (void)thread;
    const struct gdn_step_call *m = arg;
    const struct gdn_seq *s = &m->plan.seqs[item];
    const int64_t first = (s->batch * m->tokens.T + s->first) * m->rule.H;
    gdn_norm_rows(&m->norm, first, first + s->n_valid * m->rule.H);
}

static gdn_status note(gdn_ctx *ctx, const struct gdn_step_call *m)
{
    char text[sizeof ctx->kernel];
    snprintf(text, sizeof text, "%s%s%s", gdn_step_convolves(m) ? "conv " : "",
             gdn_rule_loops(&m->rule), m->normed ? " norm_row" : "");
    return gdn_note_kernel(ctx, m->base.op, text);
}

static gdn_status run_step(gdn_ctx *ctx, void *call, void *memory)
{
    struct gdn_step_call *m = call;
    const gdn_step_args *a = &m->args;
    struct gdn_rule *r = &m->rule;
    struct buffers b;
    lay_out(ctx, m, &b, memory);
    TRY(gdn_plan_batch(ctx, &m->tokens, &m->pools, b.plan, &m->plan));
    if (r->record)
        TRY(gdn_record_begin(ctx, r, &m->plan, b.record, b.threads, gdn_rule_scratch(r, ctx->kr)));
    if (r->tree) {
        gdn_tree_order(&m->plan, &m->tokens, b.tree);
        r->tokens = &m->tokens;
        r->visits = (const struct gdn_visit *)(const void *)b.tree;
    }
    gdn_rule_load_decay(b.A, b.A + r->H, &a->A_log, &a->dt_bias, r->H, gdn_rule_channels(r),
                        r->bound);
    gdn_step_call_connect(m, b.convolved, r);
    r->A = b.A, r->dt = b.A + r->H;
    r->plan = m->conv.plan = &m->plan;
    r->seqs = m->conv.seqs = m->plan.seqs;
    m->conv.out = gdn_step_call_rows(m, b.convolved, 0, 0);
    if (gdn_step_convolves(m)) gdn_conv_run(ctx, &m->conv, b.threads);
    gdn_rule_run(ctx, r, b.threads);
    if (r->record) gdn_record_accept(r->record, &m->plan, false);
    if (m->normed) gdn_parallel_for(ctx->threads, m->plan.B, norm_item, m);
    gdn_plan_zero_rest(&m->plan, &m->tokens, &r->out, r->H, r->V);
    return note(ctx, m);
}

const struct gdn_op_backend gdn_cpu_op_step = { plan_step, run_step };
