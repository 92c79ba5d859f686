/* SPDX-License-Identifier: Apache-2.0 */
#include "calls/rule_call.h"
#include "cuda/driver/backend.h"

/* Returns the map by which kernels find a state head's q, k and v. Grouped and interleaved are the
 * same for a tensor of H heads (h / 1 = h mod H) and for one of a single head (h / H = h mod 1).
 * Fast kernels take grouped heads alone. */
static int head_map(const struct gdn_rule *r)
{
    const int n[] = { r->Hq, r->Hk, r->Hv };
    for (int i = 0; i < 3; i++)
        if (n[i] != 1 && n[i] != r->H) return r->head_map;
    return GDN_HEADS_GROUPED;
}

struct gdn_cu_rule gdn_cuda_rule_args(const struct gdn_rule *r, const gdn_rule_args *args,
                                      const struct gdn_plan *plan, const struct gdn_tokens *tokens,
                                      const struct gdn_plan_pools *pools)
{
    struct gdn_cu_rule c = {
        .batch       = gdn_cuda_batch(plan, tokens, pools),
        .q           = r->q,
        .k           = r->k,
        .v           = r->v,
        .g           = r->g,
        .beta        = r->beta,
        .out         = r->out,
        .from        = r->from,
        .to          = r->to,
        .checkpoints = r->checkpoints,
        .A_log       = gdn_cuda_array(&args->A_log),
        .dt_bias     = gdn_cuda_array(&args->dt_bias),
        .Hq          = r->Hq,
        .Hk          = r->Hk,
        .Hv          = r->Hv,
        .H           = r->H,
        .K           = r->K,
        .V           = r->V,
        .head_map    = head_map(r),
        .gate        = r->gate,
        .beta_kind   = r->beta_kind,
        .norm        = r->norm,
        .norm_eps    = r->norm_eps,
        .scale       = r->scale,
        .bound       = r->bound,
        .exact       = r->exact,
    };
    if (r->record) {
        c.record_k     = r->record->k;
        c.record_u     = r->record->u;
        c.record_g     = r->record->g;
        c.record_count = gdn_cuda_array(&r->record->count);
        c.record_rows  = r->record->R;
    }
    return c;
}

struct gdn_cu_rule gdn_cuda_call_args(const struct gdn_rule_call *c)
{
    return gdn_cuda_rule_args(&c->rule, &c->args, &c->plan, &c->tokens, &c->pools);
}

gdn_status gdn_cuda_check_rule(gdn_ctx *ctx, const struct gdn_rule_call *c)
{
    return c->rule.record ? gdn_cuda_check_record(ctx, &c->plan, &c->tokens, &c->record,
                                                  c->base.stream)
                          : gdn_cuda_check_batch(ctx, &c->plan, &c->tokens, &c->pools,
                                                 c->base.stream);
}

gdn_status gdn_cuda_check_tree(gdn_ctx *ctx, const gdn_batch *b, const struct gdn_tokens *tokens)
{
    if (!b->parents.data || tokens->N <= INT32_MAX - 1) return GDN_OK;
    return gdn_fail(ctx, GDN_E_UNSUPPORTED, "parents: %lld tokens, at most 2^31 - 2",
                    (long long)tokens->N);
}

/* ---- gdn_decode ---------------------------------------------------------------------------- */

_Static_assert(sizeof(struct gdn_cu_rule) <= GDN_PLAN_ROOM, "a plan has room");

/* Kernels keep all they need on the chip, but for trees. */
static gdn_status plan(gdn_ctx *ctx, void *call)
{
    struct gdn_rule_call *c    = call;
    struct gdn_cu_rule   *args = GDN_PLANNED(struct gdn_cu_rule, &c->base);
    TRY(gdn_cuda_check_tree(ctx, &c->plan.batch, &c->tokens));
    *args = gdn_cuda_call_args(c);
    if (c->rule.tree) c->base.bytes = gdn_cuda_decode_bytes(ctx, args);
    return GDN_OK;
}

static gdn_status run(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_rule_call *c = call;
    TRY(gdn_cuda_check_rule(ctx, c));
    return gdn_cuda_decode(ctx, c->base.op, GDN_PLANNED(struct gdn_cu_rule, &c->base), memory,
                           c->base.stream);
}

const struct gdn_op_backend gdn_cuda_op_decode = { plan, run };
