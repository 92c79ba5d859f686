/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_prefill_backward: the gradients of gdn_prefill, by backward.c, and their sums. */
#include <string.h>

#include "calls/op_backends.h"
#include "core/tensor_check.h"
#include "cpu/backward.h"

/* Stores one of the two sums over sequences, in their order. */
static void store_sums(const struct gdn_backward_call *c, const gdn_tensor *t, int which)
{
    const struct gdn_rule *r = &c->work.rule;
    for (int64_t h = 0; t->data && h < r->H; h++) {
        float *to = (float *)(void *)((char *)t->data + h * gdn_step_bytes(t, 0));
        double sum = c->work.adds ? (double)*to : 0;
        for (int64_t b = 0; b < r->n_seqs; b++) sum += c->work.sums[2 * (b * r->H + h) + which];
        *to = (float)sum;
    }
}

static void zero_rest(const struct gdn_backward_call *c)
{
    const struct gdn_backward *w = &c->work;
    const struct gdn_rule     *r = &w->rule;
    if (w->adds) return;
    gdn_plan_zero_gradients(&c->plan, &c->tokens, &w->dq, r->Hq, r->K);
    gdn_plan_zero_gradients(&c->plan, &c->tokens, &w->dk, r->Hk, r->K);
    gdn_plan_zero_gradients(&c->plan, &c->tokens, &w->dv, r->Hv, r->V);
    gdn_plan_zero_gradients(&c->plan, &c->tokens, &w->dg, r->H, 1);
    gdn_plan_zero_gradients(&c->plan, &c->tokens, &w->dbeta, r->H, 1);
}

static gdn_status plan(gdn_ctx *ctx, void *call)
{
    struct gdn_backward_call *c    = call;
    const size_t              H    = (size_t)c->work.rule.H;
    const bool                sums = c->args.dA_log.data || c->args.ddt_bias.data;
    c->work.rule.n_groups    = c->work.rule.H; /* each head is a group of its own */
    c->work.rule.group_heads = 1;
    gdn_backward_families(&c->work);
    c->plan_bytes = gdn_align64(gdn_plan_bytes(&c->plan, &c->tokens));
    c->gate_bytes = gdn_align64(2 * sizeof(float) * H);
    c->sum_bytes  = sums ? gdn_align64(2 * sizeof(double) * H * (size_t)c->plan.B) : 0;
    c->base.bytes = c->plan_bytes + c->gate_bytes + c->sum_bytes +
                    gdn_backward_scratch(&c->work, ctx->kr) *
                        (size_t)gdn_threads_count(ctx->threads);
    return GDN_OK;
}

static gdn_status run(gdn_ctx *ctx, void *call, void *memory)
{
    struct gdn_backward_call        *c = call;
    const gdn_prefill_backward_args *a = &c->args;
    struct gdn_rule                 *r = &c->work.rule;
    TRY(gdn_plan_batch(ctx, &c->tokens, &c->pools, memory, &c->plan));
    char *at = (char *)memory + c->plan_bytes;
    if (a->gate == GDN_GATE_RAW) {
        float *A = (float *)(void *)at, *dt = A + r->H;
        gdn_rule_load_decay(A, dt, &a->A_log, &a->dt_bias, r->H, r->bound);
        r->A = A, r->dt = dt;
    }
    at += c->gate_bytes;
    if (c->sum_bytes) c->work.sums = memset(at, 0, c->sum_bytes);
    at += c->sum_bytes;
    r->plan = &c->plan;
    r->seqs = c->plan.seqs;
    gdn_backward_run(ctx, &c->work, at);
    store_sums(c, &a->dA_log, 0);
    store_sums(c, &a->ddt_bias, 1);
    zero_rest(c);
    return gdn_note_kernel(ctx, c->base.op, "chunk_solve");
}

const struct gdn_op_backend gdn_cpu_op_prefill_backward = { plan, run };
