/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that the stages and summaries share; see checks.h. */
#include "ops/checks.h"

#include "calls/chunk_stage.h"
#include "core/tensor_check.h"

gdn_status gdn_stage_plan_padded(gdn_ctx *ctx, const gdn_batch *batch,
                                 const struct gdn_tokens *tokens, unsigned takes,
                                 struct gdn_plan *plan)
{
    TRY(gdn_plan_describe(ctx, batch, tokens, takes, plan));
    const gdn_batch *b = &plan->batch;
    const struct {
        const gdn_tensor *t;
        const char *name;
    } others[] = { { &b->read_slots, "read_slots" },
                   { &b->write_slots, "write_slots" },
                   { &b->has_initial_state, "has_initial_state" },
                   { &b->num_accepted_tokens, "num_accepted_tokens" } };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i].t->data)
            return gdn_fail(ctx, GDN_E_ARG, "%s: given, wanted none: this op takes sequences alone",
                            others[i].name);
    if (b->write != GDN_WRITE_FINAL)
        return gdn_fail(ctx, GDN_E_ARG, "write: %d, wanted 0", (int)b->write);
    return GDN_OK;
}

gdn_status gdn_stage_plan(gdn_ctx *ctx, const gdn_batch *batch, const struct gdn_tokens *tokens,
                          struct gdn_plan *plan)
{
    TRY(gdn_stage_plan_padded(ctx, batch, tokens, 0, plan));
    if (plan->batch.token_start.data)
        return gdn_fail(ctx, GDN_E_ARG, "token_start: given, wanted none: this op takes none");
    return GDN_OK;
}

gdn_status gdn_stage_head_size(gdn_ctx *ctx, const gdn_tensor *t, const char *name, int most,
                               int *size)
{
    const int64_t n = t->size[t->ndim - 1];
    if (n < 1) return gdn_fail(ctx, GDN_E_SHAPE, "%s: head size 0, wanted 1 to %d", name, most);
    if (n > most)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "%s: head size %lld, the largest is %d", name,
                        (long long)n, most);
    *size = (int)n;
    return GDN_OK;
}

gdn_status gdn_stage_all_heads(gdn_ctx *ctx, int64_t n, const char *name, int *H)
{
    if (n < 1 || n > INT32_MAX)
        return gdn_fail(ctx, GDN_E_SHAPE, "%s: %lld heads, wanted at least 1", name, (long long)n);
    *H = (int)n;
    return GDN_OK;
}

gdn_status gdn_stage_heads(gdn_ctx *ctx, const gdn_tensor *t, const char *name, int64_t H, int *n)
{
    const int64_t heads = t->size[t->ndim - 2];
    if (heads < 1 || heads > H || H % heads)
        return gdn_fail(ctx, GDN_E_SHAPE, "%s: %lld heads, wanted a divisor of %lld", name,
                        (long long)heads, (long long)H);
    *n = (int)heads;
    return GDN_OK;
}

gdn_status gdn_stage_describe_uw(gdn_ctx *ctx, const gdn_tensor *u, const gdn_tensor *w,
                                 const gdn_batch *batch, struct gdn_tokens *tokens,
                                 struct gdn_plan *plan, struct gdn_rule *r)
{
    TRY(gdn_plan_tokens(ctx, u, "u", 2, tokens));
    TRY(gdn_stage_head_size(ctx, u, "u", GDN_MAX_VALUE, &r->V));
    TRY(gdn_stage_plan(ctx, batch, tokens, plan));
    TRY(gdn_plan_check(ctx, tokens, w, "w", 2, (int64_t[]){ -1, -1 }));
    TRY(gdn_stage_head_size(ctx, w, "w", GDN_MAX_HEAD, &r->K));
    return gdn_stage_all_heads(ctx, u->size[u->ndim - 2], "u", &r->H);
}

gdn_status gdn_stage_chunk_size(gdn_ctx *ctx, int32_t C)
{
    if (C == 16 || C == 32 || C == 64) return GDN_OK;
    return gdn_fail(ctx, GDN_E_UNSUPPORTED, "chunk_size: %d, wanted 16, 32 or 64", (int)C);
}

gdn_status gdn_stage_states(gdn_ctx *ctx, const gdn_tensor *states, const struct gdn_plan *plan,
                            const struct gdn_tokens *tokens, int32_t C)
{
    const int64_t each = tokens->T / C + (tokens->T % C != 0);
    if (!states->data || plan->batch.cu_seqlens.data) return GDN_OK;
    return gdn_stage_check_states(ctx, states, plan->B * each);
}
