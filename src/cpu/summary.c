/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_summary: two runs of the rule as gdn_prefill runs it. U is the final state from zero. M
 * is the final state from the identity with v = 0: the columns of the identity are value
 * columns like any others.
 */
#include <string.h>

#include "calls/op_backends.h"
#include "core/tensor_check.h"
#include "cpu/chunk_stage.h"

/* Writes the range without tokens: `start`, [K][V] dense in the orientation of the pool, or
 * zero. */
static void write_empty(const struct gdn_rule *r, const struct gdn_kernels *kr, int64_t b,
                        const float *start)
{
    const struct gdn_pool_view *to = &r->to;
    const int n_rows = to->k_first ? r->K : r->V, n = to->k_first ? r->V : r->K;
    const int64_t elem = (int64_t)gdn_dtype_bytes(to->dtype);
    for (int h = 0; h < r->H; h++)
        for (int i = 0; i < n_rows; i++) {
            char *row = (char *)gdn_pool_at(to, b, h) + i * to->ld * elem;
            if (start)
                kr->store_row[to->dtype](row, start + i * n, (size_t)n);
            else
                memset(row, 0, (size_t)(n * elem));
        }
}

static void run_rule(gdn_ctx *ctx, const struct gdn_summary_call *c, struct gdn_rule *r,
                     const float *start, void *scratch)
{
    if (!r->to.data) return;
    r->plan = &c->plan;
    r->seqs = c->plan.seqs;
    gdn_rule_run(ctx, r, scratch);
    for (int64_t b = 0; b < c->plan.B; b++)
        if (r->seqs[b].n_tokens == 0) write_empty(r, ctx->kr, b, start);
}

static gdn_status plan_summary(gdn_ctx *ctx, void *call)
{
    struct gdn_summary_call *c = call;
    const size_t K = (size_t)c->offset.K;
    size_t most = 0;
    for (int i = 0; i < 2; i++) {
        struct gdn_rule *run = i ? &c->transition : &c->offset;
        if (!run->to.data) continue;
        gdn_rule_cut(run, ctx->kr, gdn_threads_count(ctx->threads));
        const size_t bytes = gdn_rule_scratch(run, ctx->kr);
        most = bytes > most ? bytes : most;
    }
    c->scratch_bytes = most * (size_t)gdn_threads_count(ctx->threads);
    c->plan_bytes = gdn_align64(gdn_plan_bytes(&c->plan, &c->tokens));
    c->identity_bytes = gdn_align64(sizeof(float) * K * (K + 1));
    c->base.bytes = c->plan_bytes + c->identity_bytes + c->scratch_bytes;
    return GDN_OK;
}

static gdn_status run_summary(gdn_ctx *ctx, void *call, void *memory)
{
    struct gdn_summary_call *c = call;
    struct gdn_rule *m = &c->transition;
    const struct gdn_plan_pools pools = { -1, c->plan.B, -1, false, false };
    TRY(gdn_plan_batch(ctx, &c->tokens, &pools, memory, &c->plan));

    float *identity = (float *)((char *)memory + c->plan_bytes);
    float *zeros = identity + m->K * m->K; /* a row of v */
    char *scratch = (char *)identity + c->identity_bytes;
    memset(identity, 0, c->identity_bytes);
    for (int x = 0; x < m->K; x++) identity[x * m->K + x] = 1;
    run_rule(ctx, c, &c->offset, NULL, scratch);
    m->from.data = (char *)identity;
    m->v.data = (char *)zeros;
    for (int64_t b = 0; b < c->plan.B; b++) c->plan.seqs[b].read = 0;
    run_rule(ctx, c, m, identity, scratch);
    return gdn_note_kernel(ctx, c->base.op, gdn_rule_loops(c->args.M.data ? m : &c->offset));
}

const struct gdn_op_backend gdn_cpu_op_summary = { plan_summary, run_summary };
