/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_chunk_cumsum: sums of gates that start anew with every chunk. */
#include "calls/op_backends.h"
#include "cpu/chunk_stage.h"

struct run_arg {
    const struct gdn_cumsum_call *call;
    const struct gdn_kernels *kr;
};

/* Runs one chunk, all heads. */
static void run_chunk_cumsum_item(void *arg, int64_t item, int thread)
{
    (void)thread;
    const struct run_arg *r = arg;
    const struct gdn_cumsum_call *c = r->call;
    const struct gdn_chunk p = gdn_chunk_at(&c->list, item);
    for (int64_t h = 0; h < c->H; h++) {
        double sum = 0;
        for (int64_t t = p.t0; t < p.t0 + p.n; t++) {
            float g;
            r->kr->load_row[c->g.dtype](&g, gdn_row(&c->g, p.seq, t, h), 1);
            sum += g;
            g = (float)(sum * c->scale);
            r->kr->store_row[c->out.dtype](gdn_row(&c->out, p.seq, t, h), &g, 1);
        }
    }
}

static gdn_status plan_chunk_cumsum(gdn_ctx *ctx, void *call)
{
    struct gdn_cumsum_call *c = call;
    (void)ctx;
    c->base.bytes = gdn_stage_plan_bytes(&c->plan, &c->tokens);
    return GDN_OK;
}

static gdn_status run_chunk_cumsum(gdn_ctx *ctx, void *call, void *memory)
{
    struct gdn_cumsum_call *c = call;
    const struct run_arg arg = { c, ctx->kr };
    TRY(gdn_stage_chunks(ctx, &c->tokens, c->args.chunk_size, memory, &c->plan, &c->list));
    gdn_parallel_for(ctx->threads, gdn_chunk_total(&c->list), run_chunk_cumsum_item, (void *)&arg);
    gdn_plan_zero_rest(&c->plan, &c->tokens, &c->out, c->H, 1);
    return gdn_note_kernel(ctx, c->base.op, "load_row");
}

const struct gdn_op_backend gdn_cpu_op_chunk_cumsum = { plan_chunk_cumsum, run_chunk_cumsum };
