/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_chunk_uw: checks its arguments. cpu/chunk_uw.c computes it. */
#include "calls/chunk_stage.h"
#include "core/tensor_check.h"
#include "ops/checks.h"
#include "ops/entry.h"
#include "ops/fields.h"
#include "ops/op_table.h"
#include "ops/tensors.h"

enum { U = GDN_UW_U, W = GDN_UW_W, T = GDN_UW_T };

static gdn_status check_tensors(gdn_ctx *ctx, struct gdn_uw_call *c)
{
    const gdn_chunk_uw_args *a = &c->args;
    struct gdn_rule *r = &c->rule;
    const gdn_tensor *like = a->u.data ? &a->u : a->w.data ? &a->w : &a->T;
    const char *name = a->u.data ? "u" : a->w.data ? "w" : "T";
    TRY(gdn_check_present(ctx, GDN_OP_CHUNK_UW, &c->args));
    TRY(gdn_plan_tokens(ctx, &a->k, "k", 2, &c->tokens));
    TRY(gdn_stage_head_size(ctx, &a->k, "k", GDN_MAX_HEAD, &r->K));
    TRY(gdn_stage_plan(ctx, a->batch, &c->tokens, &c->plan));
    if (!like->data) return gdn_fail(ctx, GDN_E_ARG, "u: absent, and w and T too, wanted one");
    if (!a->v.data != !a->u.data)
        return gdn_fail(ctx, GDN_E_ARG, "%s: absent, but %s is given", a->v.data ? "u" : "v",
                        a->v.data ? "v" : "u");
    TRY(gdn_plan_check(ctx, &c->tokens, like, name, 2, (int64_t[]){ -1, -1 }));
    if (a->v.data) {
        TRY(gdn_plan_check(ctx, &c->tokens, &a->v, "v", 2, (int64_t[]){ -1, -1 }));
        TRY(gdn_stage_head_size(ctx, &a->v, "v", GDN_MAX_VALUE, &r->V));
    }
    TRY(gdn_stage_all_heads(ctx, like->size[like->ndim - 2], name, &r->H));
    TRY(gdn_stage_heads(ctx, &a->k, "k", r->H, &r->Hk));
    if (a->v.data) TRY(gdn_stage_heads(ctx, &a->v, "v", r->H, &r->Hv));
    const struct gdn_sizes s = {
        .Hk = r->Hk, .Hv = r->Hv, .H = r->H, .K = r->K, .V = r->V, .C = c->C, .tokens = &c->tokens
    };
    TRY(gdn_check_shapes(ctx, GDN_OP_CHUNK_UW, a, &s));
    return gdn_check_written(ctx, GDN_OP_CHUNK_UW, a, &c->plan.batch);
}

static gdn_status describe_chunk_uw(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_uw_call *c = call;
    *c = (struct gdn_uw_call){ 0 };
    const gdn_chunk_uw_args *a = &c->args;
    struct gdn_rule *r = &c->rule;
    TRY(gdn_copy_args(ctx, &c->args, sizeof c->args, args, "gdn_chunk_uw_args"));
    c->base = GDN_CALL_OF(a);
    TRY(gdn_check_fields(ctx, GDN_OP_CHUNK_UW, a));
    TRY(gdn_stage_chunk_size(ctx, a->chunk_size));
    c->C = a->chunk_size;
    TRY(check_tensors(ctx, c));
    r->k = gdn_rows_of(&a->k, &c->tokens), r->v = gdn_rows_of(&a->v, &c->tokens);
    r->g = gdn_rows_of(&a->g, &c->tokens), r->beta = gdn_rows_of(&a->beta, &c->tokens);
    r->head_map = a->head_map;
    r->n_groups = r->Hk;
    r->group_heads = r->H / r->Hk;
    c->to[U] = gdn_rows_of(&a->u, &c->tokens), c->columns[U] = a->u.data ? r->V : 0;
    c->to[W] = gdn_rows_of(&a->w, &c->tokens), c->columns[W] = a->w.data ? r->K : 0;
    c->to[T] = gdn_rows_of(&a->T, &c->tokens), c->columns[T] = a->T.data ? c->C : 0;
    return GDN_OK;
}

GDN_OP_ENTRY(CHUNK_UW, chunk_uw, gdn_chunk_uw_args, struct gdn_uw_call)
