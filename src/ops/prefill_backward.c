/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_prefill_backward: what its arguments must be. cpu/prefill_backward.c computes it. */
#include "calls/backward.h"
#include "calls/chunk_stage.h"
#include "core/tensor_check.h"
#include "ops/checks.h"
#include "ops/entry.h"
#include "ops/fields.h"
#include "ops/op_table.h"
#include "ops/parts.h"
#include "ops/tensors.h"

/* Checks which tensors are given together. */
static gdn_status check_presence(gdn_ctx *ctx, const gdn_prefill_backward_args *a)
{
    const bool raw = a->gate == GDN_GATE_RAW;
    if (!a->dq.data && !a->dk.data && !a->dv.data && !a->dg.data && !a->dbeta.data &&
        !a->dA_log.data && !a->ddt_bias.data && !a->dstate.data)
        return gdn_fail(ctx, GDN_E_ARG, "dq: absent, and every other gradient too");
    if (raw && !a->g.data) return gdn_fail(ctx, GDN_E_ARG, "g: absent, wanted a for GDN_GATE_RAW");
    if (raw && !a->A_log.data)
        return gdn_fail(ctx, GDN_E_ARG, "A_log: absent, wanted for GDN_GATE_RAW");
    if (gdn_beta_of(a->beta_kind, GDN_BETA_GIVEN) != GDN_NO_SIGMOID && !a->beta.data)
        return gdn_fail(ctx, GDN_E_ARG, "beta: absent, wanted its raw values for beta_kind %d",
                        (int)a->beta_kind);
    if (!raw && (a->A_log.data || a->dt_bias.data || a->dA_log.data || a->ddt_bias.data ||
                 a->gate_lower_bound != 0))
        return gdn_fail(ctx, GDN_E_ARG, "%s: given, but gate is %d, not GDN_GATE_RAW",
                        a->A_log.data      ? "A_log"
                        : a->dt_bias.data  ? "dt_bias"
                        : a->dA_log.data   ? "dA_log"
                        : a->ddt_bias.data ? "ddt_bias"
                                           : "gate_lower_bound",
                        (int)a->gate);
    return GDN_OK;
}

/* Checkpoints are those of gdn_prefill() at multiples of its chunks and of the kernels'. */
static gdn_status check_checkpoints(gdn_ctx *ctx, const gdn_prefill_backward_args *a,
                                    const gdn_batch *b)
{
    if (!a->checkpoints.data) return GDN_OK;
    if (b->checkpoint_slots.data)
        return gdn_fail(ctx, GDN_E_ARG, "checkpoint_slots: given, wanted none: gradients take "
                                        "checkpoint c from slot c");
    if (b->checkpoint_positions.data)
        return gdn_fail(ctx, GDN_E_ARG, "checkpoint_positions: given, wanted checkpoint_every");
    if (b->checkpoint_every % 64)
        return gdn_fail(ctx, GDN_E_ARG, "checkpoint_every: %lld, wanted a multiple of 64",
                        (long long)b->checkpoint_every);
    return GDN_OK;
}

static gdn_status check_tensors(gdn_ctx *ctx, struct gdn_backward_call *c)
{
    const gdn_prefill_backward_args *a = &c->args;
    struct gdn_rule                 *r = &c->work.rule;
    TRY(gdn_check_present(ctx, GDN_OP_PREFILL_BACKWARD, &c->args));
    TRY(gdn_plan_tokens(ctx, &a->q, "q", 2, &c->tokens));
    TRY(gdn_stage_head_size(ctx, &a->q, "q", GDN_MAX_HEAD, &r->K));
    TRY(gdn_plan_check(ctx, &c->tokens, &a->k, "k", 2, (int64_t[]){ -1, -1 }));
    TRY(gdn_plan_check(ctx, &c->tokens, &a->v, "v", 2, (int64_t[]){ -1, -1 }));
    TRY(gdn_stage_head_size(ctx, &a->v, "v", GDN_MAX_VALUE, &r->V));
    TRY(gdn_stage_plan_padded(ctx, a->batch, &c->tokens,
                              a->checkpoints.data ? GDN_PLAN_CHECKPOINTS : GDN_PLAN_NO_TENSOR,
                              &c->plan));
    TRY(check_checkpoints(ctx, a, &c->plan.batch));
    const int64_t Hq = a->q.size[a->q.ndim - 2], Hk = a->k.size[a->k.ndim - 2];
    const int64_t Hv = a->v.size[a->v.ndim - 2], H = Hq > Hv ? Hq : Hv, K = r->K, V = r->V;
    if (H > INT32_MAX)
        return gdn_fail(ctx, GDN_E_SHAPE, "q: %lld heads, wanted fewer", (long long)H);
    r->H = (int)H;
    TRY(gdn_stage_heads(ctx, &a->q, "q", H, &r->Hq));
    TRY(gdn_stage_heads(ctx, &a->k, "k", H, &r->Hk));
    TRY(gdn_stage_heads(ctx, &a->v, "v", H, &r->Hv));
    struct gdn_sizes s = { .B = c->plan.B, .H = H, .Hq = Hq, .Hk = Hk, .Hv = Hv, .K = K, .V = V,
                           .tokens = &c->tokens, .like = &a->q };
    gdn_set_layout(&s, a->state_layout);
    TRY(gdn_check_shapes(ctx, GDN_OP_PREFILL_BACKWARD, a, &s));
    TRY(gdn_check_written(ctx, GDN_OP_PREFILL_BACKWARD, a, &c->plan.batch));
    TRY(gdn_state_view(ctx, &a->state, "state", a->state_layout, H, K, V, &r->from));
    TRY(gdn_state_view(ctx, &a->dstate_out, "dstate_out", a->state_layout, H, K, V,
                       &c->work.dstate_out));
    TRY(gdn_state_view(ctx, &a->checkpoints, "checkpoints", a->state_layout, H, K, V,
                       &c->work.checkpoints));
    return gdn_state_view(ctx, &a->dstate, "dstate", a->state_layout, H, K, V, &c->work.dstate);
}

static void fill(struct gdn_backward_call *c)
{
    const gdn_prefill_backward_args *a = &c->args;
    struct gdn_backward             *w = &c->work;
    struct gdn_rule                 *r = &w->rule;
    r->q = gdn_rows_of(&a->q, &c->tokens), r->k = gdn_rows_of(&a->k, &c->tokens);
    r->v = gdn_rows_of(&a->v, &c->tokens), r->g = gdn_rows_of(&a->g, &c->tokens);
    r->beta = gdn_rows_of(&a->beta, &c->tokens), w->dout = gdn_rows_of(&a->dout, &c->tokens);
    w->dq = gdn_rows_of(&a->dq, &c->tokens), w->dk = gdn_rows_of(&a->dk, &c->tokens);
    w->dv = gdn_rows_of(&a->dv, &c->tokens), w->dg = gdn_rows_of(&a->dg, &c->tokens);
    w->dbeta = gdn_rows_of(&a->dbeta, &c->tokens);
    gdn_rule_set_formulas(r,
                          &(struct gdn_rule_formulas){ a->head_map, a->gate, a->beta_kind, a->norm,
                                                       a->norm_eps, a->scale, a->gate_lower_bound,
                                                       a->flags },
                          GDN_BETA_GIVEN, GDN_NORM_NONE);
    r->n_seqs   = c->plan.B;
    w->longest  = c->tokens.padded ? c->tokens.T : c->tokens.N;
    w->every    = c->plan.batch.checkpoint_every;
    w->adds     = a->flags & GDN_ACCUMULATE;
}

static gdn_status describe(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_backward_call *c = call;
    *c             = (struct gdn_backward_call){ 0 };
    TRY(gdn_copy_args(ctx, &c->args, sizeof c->args, args, "gdn_prefill_backward_args"));
    c->base = GDN_CALL_OF(&c->args);
    TRY(gdn_check_fields(ctx, GDN_OP_PREFILL_BACKWARD, &c->args));
    TRY(check_presence(ctx, &c->args));
    TRY(check_tensors(ctx, c));
    fill(c);
    const gdn_prefill_backward_args *a = &c->args;
    c->pools = (struct gdn_plan_pools){ a->state.data ? c->plan.B : -1, -1,
                                        a->checkpoints.data ? a->checkpoints.size[0] : -1, false,
                                        false };
    return GDN_OK;
}

GDN_OP_ENTRY(PREFILL_BACKWARD, prefill_backward, gdn_prefill_backward_args, describe,
             struct gdn_backward_call)
GDN_OP_PART(prefill_backward, gdn_prefill_backward_args, struct gdn_backward_call)
