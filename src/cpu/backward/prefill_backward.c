/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_prefill_backward: the gradients of gdn_prefill, by run.c, and their sums. */
#include <string.h>

#include "calls/op_backends.h"
#include "core/tensor_check.h"
#include "cpu/backward/backward.h"

/* Stores n sums of each head over sequences, in their order, from number `first` on. */
static void store_sums(const struct gdn_backward_call *c, const gdn_tensor *t, int64_t first,
                       int64_t n)
{
    const struct gdn_rule *r = &c->work.rule;
    const int64_t size = 1 + gdn_rule_channels(r);
    for (int64_t i = 0; t->data && i < r->H * n; i++) {
        const int64_t h = i / n, x = i % n;
        float *to = (float *)(void *)((char *)t->data + h * gdn_step_bytes(t, 0) +
                                      x * gdn_step_bytes(t, 1));
        double sum = c->work.adds ? (double)*to : 0;
        for (int64_t b = 0; b < r->n_seqs; b++)
            sum += c->work.sums[size * (b * r->H + h) + first + x];
        *to = (float)sum;
    }
}

/* Zeroes rows of n elements that no token has, update by update. */
static void zero_updates(const struct gdn_backward_call *c, const struct gdn_rows *rows,
                         int64_t step, int64_t heads, int64_t n)
{
    struct gdn_rows of = *rows;
    for (int j = 0; j < gdn_rule_updates(&c->work.rule); j++) {
        gdn_plan_zero_gradients(&c->plan, &c->tokens, &of, heads, n);
        if (of.data) of.data += step;
    }
}

/* Zeroes gates, whose channels may lie anywhere. */
static void zero_gates(const struct gdn_backward_call *c, const struct gdn_rows *rows, int64_t step,
                       int64_t channels, int64_t channel)
{
    struct gdn_rows of = *rows;
    for (int64_t x = 0; x < channels; x++) {
        zero_updates(c, &of, step, c->work.rule.H, 1);
        if (of.data) of.data += channel;
    }
}

static void zero_rest(const struct gdn_backward_call *c)
{
    const struct gdn_backward *w = &c->work;
    const struct gdn_rule *r = &w->rule;
    if (w->adds) return;
    gdn_plan_zero_gradients(&c->plan, &c->tokens, &w->dq, r->Hq, r->K);
    zero_updates(c, &w->dk, w->dk_update, r->Hk, r->K);
    zero_updates(c, &w->dv, w->dv_update, r->Hv, r->V);
    zero_updates(c, &w->dwrite, w->dwrite_update, r->H, r->V);
    for (int64_t x = 0; x < gdn_rule_channels(r); x++) {
        struct gdn_rows dg = w->dg;
        if (dg.data) dg.data += x * w->dg_channel;
        gdn_plan_zero_gradients(&c->plan, &c->tokens, &dg, r->H, 1);
    }
    zero_gates(c, &w->dbeta, w->dbeta_update, r->family.beta_rows ? r->K : 1, w->dbeta_channel);
}

static gdn_status plan_prefill_backward(gdn_ctx *ctx, void *call)
{
    struct gdn_backward_call *c = call;
    const size_t H = (size_t)c->work.rule.H;
    const bool sums = c->args.dA_log.data || c->args.ddt_bias.data;
    c->work.rule.n_groups = c->work.rule.H; /* each head is a group of its own */
    c->work.rule.group_heads = 1;
    gdn_backward_sets(&c->work);
    c->plan_bytes = gdn_align64(gdn_plan_bytes(&c->plan, &c->tokens));
    c->gate_bytes = gdn_align64(gdn_rule_decay_bytes(&c->work.rule));
    const size_t each = (size_t)(1 + gdn_rule_channels(&c->work.rule)) * sizeof(double);
    c->sum_bytes = sums ? gdn_align64(each * H * (size_t)c->plan.B) : 0;
    c->base.bytes =
        c->plan_bytes + c->gate_bytes + c->sum_bytes +
        gdn_backward_scratch(&c->work, ctx->kr) * (size_t)gdn_threads_count(ctx->threads);
    return GDN_OK;
}

static gdn_status run_prefill_backward(gdn_ctx *ctx, void *call, void *memory)
{
    struct gdn_backward_call *c = call;
    const gdn_prefill_backward_args *a = &c->args;
    struct gdn_rule *r = &c->work.rule;
    TRY(gdn_plan_batch(ctx, &c->tokens, &c->pools, memory, &c->plan));
    char *at = (char *)memory + c->plan_bytes;
    if (a->gate == GDN_GATE_RAW) {
        float *A = (float *)(void *)at, *dt = A + r->H;
        gdn_rule_load_decay(A, dt, &a->A_log, &a->dt_bias, r->H, gdn_rule_channels(r), r->bound);
        r->A = A, r->dt = dt;
    }
    at += c->gate_bytes;
    if (c->sum_bytes) c->work.sums = memset(at, 0, c->sum_bytes);
    at += c->sum_bytes;
    r->plan = &c->plan;
    r->seqs = c->plan.seqs;
    gdn_backward_run(ctx, &c->work, at);
    store_sums(c, &a->dA_log, 0, 1);
    store_sums(c, &a->ddt_bias, 1, gdn_rule_channels(r));
    zero_rest(c);
    return gdn_note_kernel(ctx, c->base.op, r->family.is ? "add_outer strip_mul" : "chunk_solve");
}

const struct gdn_op_backend gdn_cpu_op_prefill_backward = { plan_prefill_backward,
                                                            run_prefill_backward };
