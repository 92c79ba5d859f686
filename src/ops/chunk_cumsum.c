/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_chunk_cumsum: sums of gates that start anew with every chunk. */
#include <math.h>

#include "calls/chunk_stage.h"
#include "cuda/driver/backend.h"
#include "ops/entry.h"
#include "ops/op_table.h"

struct call {
    gdn_chunk_cumsum_args args;
    struct gdn_tokens     tokens;
    struct gdn_plan       plan;
    struct gdn_chunk_list list;
    struct gdn_rows       g, out;
    double                scale;
    int64_t               H;
    size_t                bytes;
};

static gdn_status describe(gdn_ctx *ctx, const void *args, void *call)
{
    struct call *c = call;
    *c                             = (struct call){ 0 };
    const gdn_chunk_cumsum_args *a = &c->args;
    TRY(gdn_copy_args(ctx, &c->args, sizeof c->args, args, "gdn_chunk_cumsum_args"));
    if (a->flags) return gdn_fail(ctx, GDN_E_ARG, "flags: 0x%x, wanted 0", (unsigned)a->flags);
    if (a->chunk_size < 1)
        return gdn_fail(ctx, GDN_E_ARG, "chunk_size: %d, wanted 1 or more", (int)a->chunk_size);
    if (!isfinite(a->scale)) return gdn_fail(ctx, GDN_E_ARG, "scale: not finite");
    TRY(gdn_plan_tokens(ctx, &a->g, "g", 1, false, &c->tokens));
    TRY(gdn_stage_plan(ctx, a->batch, &c->tokens, &c->plan));
    c->H = a->g.size[a->g.ndim - 1];
    if (ctx->cuda && c->H > INT32_MAX)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "g: %lld heads, on a device at most 2^31 - 1",
                        (long long)c->H);
    const struct gdn_stage_tensor list[] = {
        { &a->g, "g", true, false, true, 1, { c->H }, 0 },
        { &a->out, "out", true, true, true, 1, { c->H }, 1 },
    };
    TRY(gdn_stage_check(ctx, list, 2, &c->tokens, &c->plan.batch));
    c->g     = gdn_rows_of(&a->g, &c->tokens);
    c->out   = gdn_rows_of(&a->out, &c->tokens);
    c->scale = a->scale != 0 ? (double)a->scale : 1;
    c->bytes = ctx->cuda ? 0 : gdn_stage_plan_bytes(&c->plan, &c->tokens);
    return GDN_OK;
}

struct run_arg {
    const struct call        *call;
    const struct gdn_kernels *kr;
};

/* One chunk, all heads. */
static void run_item(void *arg, int64_t item, int thread)
{
    (void)thread;
    const struct run_arg  *r = arg;
    const struct call     *c = r->call;
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

static gdn_status run(gdn_ctx *ctx, void *call)
{
    struct call *c = call;
    const struct run_arg arg = { c, ctx->kr };
    void                *memory;
    TRY(gdn_get_workspace(ctx, c->args.workspace, c->args.workspace_bytes, c->bytes, &memory));
    TRY(gdn_stage_chunks(ctx, &c->tokens, c->args.chunk_size, memory, &c->plan, &c->list));
    gdn_parallel_for(ctx->pool, gdn_chunk_total(&c->list), run_item, (void *)&arg);
    gdn_plan_zero_rest(&c->plan, &c->tokens, &c->out, c->H, 1);
    return GDN_OK;
}

/* The same on a device. */
static gdn_status enqueue(gdn_ctx *ctx, void *call)
{
    const struct call *c = call;
    const struct gdn_rule rule = { .g = c->g, .out = c->out, .scale = (float)c->scale,
                                   .H = (int)c->H };
    const struct gdn_cu_stage a =
        gdn_cuda_stage_args(&rule, &c->plan, &c->tokens, c->args.chunk_size);
    TRY(gdn_stage_check_contents(ctx, &c->plan, &c->tokens, c->args.stream));
    return gdn_cuda_chunk_cumsum(ctx, &a, c->args.stream);
}

static const struct gdn_frame frame = {
    .describe = describe,
    .run      = run,
    .enqueue  = enqueue,
    .bytes_at = offsetof(struct call, bytes),
    .loops    = "load_row",
};
GDN_OP_ENTRY(chunk_cumsum, gdn_chunk_cumsum_args, frame, struct call)
