/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_prefill_backward: checks its arguments. cpu/backward/prefill_backward.c computes it. */
#include "calls/backward.h"
#include "calls/chunk_stage.h"
#include "core/tensor_check.h"
#include "ops/checks.h"
#include "ops/entry.h"
#include "ops/family.h"
#include "ops/fields.h"
#include "ops/op_table.h"
#include "ops/parts.h"
#include "ops/tensors.h"

/* Checks which tensors are given together. */
static gdn_status check_presence(gdn_ctx *ctx, const gdn_prefill_backward_args *a)
{
    const bool raw = a->gate == GDN_GATE_RAW;
    if (!a->dq.data && !a->dk.data && !a->dv.data && !a->dg.data && !a->dbeta.data &&
        !a->dA_log.data && !a->ddt_bias.data && !a->dstate.data && !a->dwrite_gate.data)
        return gdn_fail(ctx, GDN_E_ARG, "dq: absent, and every other gradient too");
    if (raw && !a->g.data) return gdn_fail(ctx, GDN_E_ARG, "g: absent, wanted a for GDN_GATE_RAW");
    if (a->dwrite_gate.data && !a->write_gate.data)
        return gdn_fail(ctx, GDN_E_ARG, "dwrite_gate: given, but write_gate is absent");
    if (raw && !a->A_log.data && a->gate_lower_bound == 0)
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

/* Checkpoints must be at multiples of the chunks of gdn_prefill() and of its gradients. */
static gdn_status check_checkpoints(gdn_ctx *ctx, const gdn_prefill_backward_args *a,
                                    const gdn_batch *b)
{
    if (!a->checkpoints.data) return GDN_OK;
    if (b->checkpoint_slots.data)
        return gdn_fail(ctx, GDN_E_ARG,
                        "checkpoint_slots: given, wanted none: gradients take "
                        "checkpoint c from slot c");
    if (b->checkpoint_positions.data)
        return gdn_fail(ctx, GDN_E_ARG, "checkpoint_positions: given, wanted checkpoint_every");
    if (b->checkpoint_every % 64)
        return gdn_fail(ctx, GDN_E_ARG, "checkpoint_every: %lld, wanted a multiple of 64",
                        (long long)b->checkpoint_every);
    return GDN_OK;
}

static struct gdn_family_tensors family_of(gdn_prefill_backward_args *a)
{
    return (
        struct gdn_family_tensors){ &a->k, &a->v, &a->g, &a->beta, &a->write_gate, &a->dt_bias };
}

/* Checks that gradients of gates have the dimensions of the gates. */
static gdn_status check_gates(gdn_ctx *ctx, const gdn_prefill_backward_args *a)
{
    TRY(gdn_family_alike(ctx, &a->dg, "dg", &a->g, "g"));
    TRY(gdn_family_alike(ctx, &a->dbeta, "dbeta", &a->beta, "beta"));
    return gdn_family_alike(ctx, &a->ddt_bias, "ddt_bias", &a->dt_bias, "dt_bias");
}

static gdn_status check_tensors(gdn_ctx *ctx, struct gdn_backward_call *c)
{
    const gdn_prefill_backward_args *a = &c->args;
    struct gdn_rule *r = &c->work.rule;
    TRY(gdn_check_present(ctx, GDN_OP_PREFILL_BACKWARD, &c->args));
    TRY(gdn_plan_tokens(ctx, &a->q, "q", 2, &c->tokens));
    TRY(gdn_stage_head_size(ctx, &a->q, "q", GDN_MAX_HEAD, &r->K));
    const struct gdn_family_tensors t = family_of(&c->args);
    struct gdn_tokens updates;
    TRY(gdn_family_tokens(ctx, &t, a->updates, &c->tokens, &updates));
    const struct gdn_family_tensors d = { .g = &c->args.dg, .beta = &c->args.dbeta };
    TRY(gdn_family_tokens(ctx, &d, a->updates, &c->tokens, &updates));
    TRY(gdn_plan_check(ctx, &updates, &a->k, "k", 2, (int64_t[]){ -1, -1 }));
    TRY(gdn_plan_check(ctx, &updates, &a->v, "v", 2, (int64_t[]){ -1, -1 }));
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
    struct gdn_sizes s = { .B = c->plan.B,
                           .H = H,
                           .Hq = Hq,
                           .Hk = Hk,
                           .Hv = Hv,
                           .K = K,
                           .V = V,
                           .tokens = &c->tokens,
                           .updates = &updates,
                           .like = &a->q };
    gdn_set_layout(&s, a->state_layout);
    TRY(gdn_check_shapes(ctx, GDN_OP_PREFILL_BACKWARD, a, &s));
    TRY(check_gates(ctx, a));
    TRY(gdn_family_fill(ctx, &t, a->updates, &c->tokens, r));
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
    struct gdn_backward *w = &c->work;
    struct gdn_rule *r = &w->rule;
    r->q = gdn_rows_of(&a->q, &c->tokens), w->dout = gdn_rows_of(&a->dout, &c->tokens);
    const int n = gdn_rule_updates(r), lead = c->tokens.padded ? 2 : 1;
    w->dq = gdn_rows_of(&a->dq, &c->tokens), w->dg = gdn_rows_of(&a->dg, &c->tokens);
    w->dk_update = gdn_family_rows(&a->dk, &c->tokens, n, &w->dk);
    w->dv_update = gdn_family_rows(&a->dv, &c->tokens, n, &w->dv);
    w->dbeta_update = gdn_family_rows(&a->dbeta, &c->tokens, n, &w->dbeta);
    w->dwrite_update = gdn_family_rows(&a->dwrite_gate, &c->tokens, n, &w->dwrite);
    if (a->dg.data) w->dg_channel = gdn_step_bytes(&a->dg, lead + 1);
    if (a->dbeta.data) w->dbeta_channel = gdn_step_bytes(&a->dbeta, lead + 1);
    gdn_rule_set_formulas(r,
                          &(struct gdn_rule_formulas){ a->head_map, a->gate, a->beta_kind, a->norm,
                                                       a->norm_eps, a->scale, a->gate_lower_bound,
                                                       a->flags },
                          GDN_BETA_GIVEN, GDN_NORM_NONE);
    r->n_seqs = c->plan.B;
    w->longest = c->tokens.padded ? c->tokens.T : c->tokens.N;
    w->every = r->family.is ? 0 : c->plan.batch.checkpoint_every;
    w->window_mib = a->window_mib;
    w->adds = a->flags & GDN_ACCUMULATE;
}

static gdn_status describe_prefill_backward(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_backward_call *c = call;
    *c = (struct gdn_backward_call){ 0 };
    TRY(gdn_copy_args(ctx, &c->args, sizeof c->args, args, "gdn_prefill_backward_args"));
    c->base = GDN_CALL_OF(&c->args);
    TRY(gdn_check_fields(ctx, GDN_OP_PREFILL_BACKWARD, &c->args));
    TRY(check_presence(ctx, &c->args));
    TRY(check_tensors(ctx, c));
    fill(c);
    const gdn_prefill_backward_args *a = &c->args;
    c->pools =
        (struct gdn_plan_pools){ a->state.data ? c->plan.B : -1, -1,
                                 a->checkpoints.data ? a->checkpoints.size[0] : -1, false, false };
    return GDN_OK;
}

GDN_OP_ENTRY(PREFILL_BACKWARD, prefill_backward, gdn_prefill_backward_args,
             struct gdn_backward_call)
GDN_OP_PART(prefill_backward, gdn_prefill_backward_args, struct gdn_backward_call)
