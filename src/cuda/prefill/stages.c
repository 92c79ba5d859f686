/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/driver/backend.h"

enum { STRIP = 32 }; /* columns of a state that a block has (stages.cu) */

static int strips_of(int64_t columns) { return (int)((columns + STRIP - 1) / STRIP); }

struct gdn_cu_stage gdn_cuda_stage_args(const struct gdn_rule *rule, const struct gdn_plan *plan,
                                        const struct gdn_tokens *tokens, int64_t C)
{
    static const struct gdn_plan_pools none = { -1, -1, -1, false, false };
    const gdn_rule_args                args = { 0 };
    const int64_t                      each = tokens->T / C + (tokens->T % C != 0);
    return (struct gdn_cu_stage){
        .rule     = gdn_cuda_rule_args(rule, &args, plan, tokens, &none),
        .C        = C,
        .n_chunks = plan->batch.cu_seqlens.data ? tokens->N / C + plan->B + 1 : plan->B * each,
    };
}

static gdn_status launch(gdn_ctx *ctx, const char *op, const struct gdn_cuda_call *call)
{
    TRY(gdn_cuda_launch(ctx, call));
    return gdn_cuda_note(ctx, op, call->kernel);
}

gdn_status gdn_cuda_chunk_cumsum(gdn_ctx *ctx, const struct gdn_cu_stage *args, void *stream)
{
    enum { WARPS = 8 };
    const int64_t items = args->n_chunks * ((args->rule.H + 31) / 32);
    const struct gdn_cuda_call call = {
        .kernel = GDN_CU_stage_cumsum,
        .grid   = { (items + WARPS - 1) / WARPS, 1, 1 },
        .stream = stream,
        .args   = args,
    };
    return launch(ctx, "chunk_cumsum", &call);
}

gdn_status gdn_cuda_chunk_uw(gdn_ctx *ctx, const struct gdn_cu_stage *args, void *stream)
{
    const struct gdn_cuda_call call = {
        .kernel       = GDN_CU_stage_uw,
        .grid         = { args->n_chunks * args->rule.H, 1, 1 },
        .shared_bytes = GDN_CU_COLUMNS_BYTES,
        .stream       = stream,
        .args         = args,
    };
    return launch(ctx, "chunk_uw", &call);
}

gdn_status gdn_cuda_chunk_output(gdn_ctx *ctx, const struct gdn_cu_stage *args, void *stream)
{
    const struct gdn_cuda_call call = {
        .kernel       = GDN_CU_stage_output,
        .grid         = { args->n_chunks * args->rule.H, 1, 1 },
        .shared_bytes = GDN_CU_STRIP_BYTES,
        .stream       = stream,
        .args         = args,
    };
    return launch(ctx, "chunk_output", &call);
}

gdn_status gdn_cuda_chunk_states(gdn_ctx *ctx, struct gdn_cu_stage *args, void *stream)
{
    args->n_strips = args->n_before = strips_of(args->rule.V);
    const struct gdn_cuda_call call = {
        .kernel       = GDN_CU_stage_states,
        .grid         = { args->rule.batch.B * args->rule.H * args->n_strips, 1, 1 },
        .shared_bytes = GDN_CU_STRIP_BYTES,
        .stream       = stream,
        .args         = args,
    };
    return launch(ctx, "chunk_states", &call);
}

gdn_status gdn_cuda_summary(gdn_ctx *ctx, struct gdn_cu_stage *args, void *stream)
{
    args->n_before = args->rule.to.data ? strips_of(args->rule.V) : 0;
    args->n_strips = args->n_before + (args->M.data ? strips_of(args->rule.K) : 0);
    const struct gdn_cuda_call call = {
        .kernel       = GDN_CU_stage_summary,
        .grid         = { args->rule.batch.B * args->rule.H * args->n_strips, 1, 1 },
        .shared_bytes = GDN_CU_STRIP_BYTES,
        .stream       = stream,
        .args         = args,
    };
    return launch(ctx, "summary", &call);
}

gdn_status gdn_cuda_product(gdn_ctx *ctx, const char *op, struct gdn_cu_product *args, int64_t B,
                            void *stream)
{
    args->n_strips = strips_of(args->V);
    const struct gdn_cuda_call call = {
        .kernel       = GDN_CU_product_strip,
        .grid         = { B * args->H * args->n_strips, 1, 1 },
        .shared_bytes = GDN_CU_STRIP_BYTES,
        .stream       = stream,
        .args         = args,
    };
    return launch(ctx, op, &call);
}
