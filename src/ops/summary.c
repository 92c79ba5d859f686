/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_summary: checks its arguments. cpu/summary.c computes it. */
#include "calls/chunk_stage.h"
#include "core/tensor_check.h"
#include "ops/checks.h"
#include "ops/entry.h"
#include "ops/family.h"
#include "ops/fields.h"
#include "ops/op_table.h"
#include "ops/parts.h"
#include "ops/tensors.h"

static struct gdn_family_tensors family_of(gdn_summary_args *a)
{
    return (struct gdn_family_tensors){ &a->k, &a->v, &a->g, &a->beta, &a->write_gate, NULL };
}

/* Reads tokens from k, which has a row for each of their updates. */
static gdn_status find_tokens(gdn_ctx *ctx, struct gdn_summary_call *c, struct gdn_tokens *updates)
{
    gdn_summary_args *a = &c->args;
    const struct gdn_family_tensors t = family_of(a);
    const int64_t n = a->updates > 1 ? a->updates : 1;
    TRY(gdn_plan_tokens(ctx, &a->k, "k", 2, updates));
    c->tokens = *updates;
    c->tokens.T /= n, c->tokens.N /= n;
    if (c->tokens.T * n != updates->T)
        return gdn_fail(ctx, GDN_E_SHAPE, "k: %lld rows, wanted a multiple of %lld updates",
                        (long long)updates->T, (long long)n);
    return gdn_family_tokens(ctx, &t, a->updates, &c->tokens, updates);
}

static gdn_status check_tensors(gdn_ctx *ctx, struct gdn_summary_call *c)
{
    const gdn_summary_args *a = &c->args;
    struct gdn_rule *r = &c->offset;
    const gdn_tensor *like = a->M.data ? &a->M : &a->U;
    TRY(gdn_check_present(ctx, GDN_OP_SUMMARY, &c->args));
    struct gdn_tokens updates;
    TRY(find_tokens(ctx, c, &updates));
    TRY(gdn_stage_head_size(ctx, &a->k, "k", GDN_MAX_HEAD, &r->K));
    TRY(gdn_stage_plan(ctx, a->batch, &c->tokens, &c->plan));
    if (!like->data) return gdn_fail(ctx, GDN_E_ARG, "M: absent, and U too, wanted at least one");
    if (!a->v.data != !a->U.data)
        return gdn_fail(ctx, GDN_E_ARG, "%s: absent, but %s is given", a->v.data ? "U" : "v",
                        a->v.data ? "v" : "U");
    if (a->v.data) {
        TRY(gdn_plan_check(ctx, &updates, &a->v, "v", 2, (int64_t[]){ -1, -1 }));
        TRY(gdn_stage_head_size(ctx, &a->v, "v", GDN_MAX_VALUE, &r->V));
    }
    TRY(gdn_check_shape(ctx, like, a->M.data ? "M" : "U", 4, (int64_t[]){ c->plan.B, -1, -1, -1 }));
    TRY(gdn_stage_all_heads(ctx, like->size[1], a->M.data ? "M" : "U", &r->H));
    TRY(gdn_stage_heads(ctx, &a->k, "k", r->H, &r->Hk));
    r->Hq = r->Hv = r->Hk;
    if (a->v.data) TRY(gdn_stage_heads(ctx, &a->v, "v", r->H, &r->Hv));
    struct gdn_sizes s = { .B = c->plan.B,
                           .H = r->H,
                           .Hk = r->Hk,
                           .Hv = r->Hv,
                           .K = r->K,
                           .V = r->V,
                           .tokens = &c->tokens,
                           .updates = &updates };
    const struct gdn_family_tensors t = family_of(&c->args);
    gdn_set_layout(&s, a->state_layout);
    TRY(gdn_check_shapes(ctx, GDN_OP_SUMMARY, a, &s));
    TRY(gdn_family_fill(ctx, &t, a->updates, &c->tokens, r));
    return gdn_check_written(ctx, GDN_OP_SUMMARY, a, &c->plan.batch);
}

/* Summaries do not use q; k stands in, so that loaders have valid rows. */
static void fill_rules(struct gdn_summary_call *c)
{
    const gdn_summary_args *a = &c->args;
    struct gdn_rule *r = &c->offset, *m = &c->transition;
    r->q = r->k;
    r->head_map = a->head_map;
    r->norm = gdn_norm_of(a->norm, GDN_NORM_NONE);
    r->norm_eps = gdn_eps_of(a->norm_eps, a->flags);
    r->scale = 1;
    r->n_seqs = c->plan.B;

    const struct gdn_pool_view M = m->to;
    *m = *r;
    m->to = M;
    m->v = (struct gdn_rows){ .dtype = GDN_F32 };
    m->family.v_update = 0;
    m->family.write.data = NULL;
    m->Hv = m->Hk;
    m->V = m->K;
    m->from = (struct gdn_pool_view){ .dtype = GDN_F32, .k_first = M.k_first, .ld = m->K };
}

static gdn_status describe_summary(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_summary_call *c = call;
    *c = (struct gdn_summary_call){ 0 };
    const gdn_summary_args *a = &c->args;
    struct gdn_rule *r = &c->offset;
    TRY(gdn_copy_args(ctx, &c->args, sizeof c->args, args, "gdn_summary_args"));
    c->base = GDN_CALL_OF(a);
    TRY(gdn_check_fields(ctx, GDN_OP_SUMMARY, a));
    TRY(check_tensors(ctx, c));
    TRY(gdn_state_view(ctx, &a->U, "U", a->state_layout, r->H, r->K, r->V, &r->to));
    TRY(gdn_state_view(ctx, &a->M, "M", GDN_STATE_KV, r->H, r->K, r->K, &c->transition.to));
    fill_rules(c);
    return GDN_OK;
}

GDN_OP_ENTRY(SUMMARY, summary, gdn_summary_args, struct gdn_summary_call)
GDN_OP_PART(summary, gdn_summary_args, struct gdn_summary_call)
