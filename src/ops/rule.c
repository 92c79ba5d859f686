/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_prefill and gdn_decode: one struct, one check, one walk (cpu/rule_run.c) over (sequence,
 * group of heads, strips of columns). What differs is the form that an item runs: chunks
 * (cpu/prefill.c), tokens on the state where it lies (cpu/decode.c), or tokens on strips of it
 * (cpu/decode_exact.c).
 */
#include <math.h>

#include "batch/tree.h"
#include "calls/chunk_stage.h"
#include "calls/rule_call.h"
#include "core/tensor_check.h"
#include "ops/checks.h"
#include "ops/entry.h"
#include "ops/family.h"
#include "ops/fields.h"
#include "ops/op_table.h"
#include "ops/parts.h"
#include "ops/tensors.h"

gdn_status gdn_check_forms(gdn_ctx *ctx, uint32_t flags)
{
    if (flags & GDN_EXACT && flags & GDN_BF16_PRODUCTS)
        return gdn_fail(ctx, GDN_E_ARG,
                        "flags: GDN_EXACT and GDN_BF16_PRODUCTS, wanted one of the two");
    if (flags & GDN_SPLIT_INVARIANT && flags & (GDN_EXACT | GDN_BF16_PRODUCTS))
        return gdn_fail(ctx, GDN_E_ARG, "flags: GDN_SPLIT_INVARIANT and %s, wanted one of the two",
                        flags & GDN_EXACT ? "GDN_EXACT" : "GDN_BF16_PRODUCTS");
    return GDN_OK;
}

gdn_status gdn_check_products(gdn_ctx *ctx, uint32_t flags, int32_t dtype)
{
    if (flags & GDN_BF16_PRODUCTS && dtype != GDN_BF16)
        return gdn_fail(ctx, GDN_E_DTYPE, "flags: GDN_BF16_PRODUCTS, wanted for bf16 inputs alone");
    return GDN_OK;
}

void gdn_rule_set_formulas(struct gdn_rule *r, const struct gdn_rule_formulas *f,
                           int32_t default_beta, int32_t default_norm)
{
    r->head_map = f->head_map, r->gate = f->gate;
    r->beta_kind = gdn_beta_of(f->beta_kind, default_beta);
    r->norm = gdn_norm_of(f->norm, default_norm);
    r->norm_eps = gdn_eps_of(f->norm_eps, f->flags);
    r->scale = gdn_scale_of(f->scale, 1.0f / sqrtf((float)r->K), f->flags);
    r->bound = f->bound;
}

static struct gdn_family_tensors family_of(gdn_rule_args *a)
{
    return (
        struct gdn_family_tensors){ &a->k, &a->v, &a->g, &a->beta, &a->write_gate, &a->dt_bias };
}

/* Finds the numbers of heads and their sizes in q, k and v, after their ranks are checked. Their
 * shapes are checked later, with the other tensors. */
static gdn_status find_sizes(gdn_ctx *ctx, struct gdn_rule_call *c)
{
    const gdn_rule_args *a = &c->args;
    struct gdn_rule *r = &c->rule;
    TRY(gdn_plan_tokens(ctx, &a->q, "q", 2, &c->tokens));
    if (a->k.ndim != a->q.ndim)
        return gdn_plan_check(ctx, &c->tokens, &a->k, "k", 2, (int64_t[]){ -1, -1 });
    if (a->v.ndim != a->q.ndim)
        return gdn_plan_check(ctx, &c->tokens, &a->v, "v", 2, (int64_t[]){ -1, -1 });

    const int64_t Hq = a->q.size[a->q.ndim - 2], Hk = a->k.size[a->k.ndim - 2];
    const int64_t Hv = a->v.size[a->v.ndim - 2], H = Hq > Hv ? Hq : Hv;
    if (Hq < 1 || Hk < 1 || Hv < 1 || H > INT32_MAX)
        return gdn_fail(ctx, GDN_E_SHAPE, "q k v: %lld, %lld, %lld heads, wanted at least 1 each",
                        (long long)Hq, (long long)Hk, (long long)Hv);
    if (H % Hq || Hk > H || H % Hk || H % Hv)
        return gdn_fail(ctx, GDN_E_SHAPE, "q k v: %lld, %lld, %lld heads, wanted divisors of %lld",
                        (long long)Hq, (long long)Hk, (long long)Hv, (long long)H);
    r->Hq = (int)Hq, r->Hk = (int)Hk, r->Hv = (int)Hv, r->H = (int)H;
    TRY(gdn_stage_head_size(ctx, &a->q, "q", GDN_MAX_HEAD, &r->K));
    return gdn_stage_head_size(ctx, &a->v, "v", GDN_MAX_VALUE, &r->V);
}

/* Checks the tensors that gates need, and no others. */
static gdn_status check_gates(gdn_ctx *ctx, const gdn_rule_args *a)
{
    if (gdn_beta_of(a->beta_kind, GDN_BETA_GIVEN) != GDN_NO_SIGMOID && !a->beta.data)
        return gdn_fail(ctx, GDN_E_ARG, "beta: absent, wanted its raw values for beta_kind %d",
                        (int)a->beta_kind);
    if (a->gate != GDN_GATE_RAW) {
        if (a->A_log.data || a->dt_bias.data || a->gate_lower_bound != 0)
            return gdn_fail(ctx, GDN_E_ARG, "%s: given, but gate is %d, not GDN_GATE_RAW",
                            a->A_log.data     ? "A_log"
                            : a->dt_bias.data ? "dt_bias"
                                              : "gate_lower_bound",
                            (int)a->gate);
        return GDN_OK;
    }
    if (!a->g.data) return gdn_fail(ctx, GDN_E_ARG, "g: absent, wanted a for GDN_GATE_RAW");
    if (!a->A_log.data && a->gate_lower_bound == 0)
        return gdn_fail(ctx, GDN_E_ARG, "A_log: absent, wanted for GDN_GATE_RAW");
    return GDN_OK;
}

/* Dtypes, shapes and strides by the rows of ops.def. */
static gdn_status check_shapes(gdn_ctx *ctx, gdn_op op, struct gdn_rule_call *c)
{
    gdn_rule_args *a = &c->args;
    const struct gdn_rule *r = &c->rule;
    const struct gdn_family_tensors t = family_of(a);
    struct gdn_tokens updates;
    TRY(gdn_family_tokens(ctx, &t, a->updates, &c->tokens, &updates));
    const struct gdn_sizes s = {
        .H = r->H,
        .Hq = r->Hq,
        .Hk = r->Hk,
        .Hv = r->Hv,
        .K = r->K,
        .V = r->V,
        .G = a->flags & GDN_SPLIT_INVARIANT ? 2 : gdn_family_gate_size(&t, &c->tokens, r->K),
        .P = a->state.data ? a->state.size[0] : -1,
        .R = a->record_k.data && a->record_k.ndim == 4 ? a->record_k.size[1] : -1,
        .tokens = &c->tokens,
        .updates = &updates,
        .like = &a->q,
    };
    return gdn_check_shapes(ctx, op, a, &s);
}

/* Returns the pool of final states, which may be absent. */
static const gdn_tensor *final_pool(const gdn_rule_args *a)
{
    return a->state_out.data ? &a->state_out : &a->state;
}

/* Refuses what GDN_SPLIT_INVARIANT does not allow. Decode needs a record for it, which is
 * checked before. */
static gdn_status check_split(gdn_ctx *ctx, const struct gdn_rule_call *c, bool decode)
{
    const gdn_rule_args *a = &c->args;
    const struct gdn_rule *r = &c->rule;
    if (!(a->flags & GDN_SPLIT_INVARIANT)) return GDN_OK;
    if (r->family.is)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED,
                        "%s: of the family, wanted g and beta of a number for each head and one "
                        "update with GDN_SPLIT_INVARIANT",
                        r->family.g_rows       ? "g"
                        : r->family.beta_rows  ? "beta"
                        : r->family.write.data ? "write_gate"
                                               : "updates");
    TRY(gdn_check_split_state(ctx, &a->state, "state"));
    TRY(gdn_check_split_state(ctx, &a->state_out, "state_out"));
    if (c->plan.batch.parents.data)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED,
                        "parents: given, wanted none with GDN_SPLIT_INVARIANT");
    if (!r->record && decode)
        return gdn_fail(ctx, GDN_E_ARG,
                        "record_k: absent, wanted in gdn_decode with GDN_SPLIT_INVARIANT");
    if (!r->record) return GDN_OK;
    if (a->checkpoints.data)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED,
                        "checkpoints: given, wanted none with a record and GDN_SPLIT_INVARIANT");
    return gdn_check_open_rows(ctx, &a->record_k);
}

/* In gdn_prefill all rows go into the state first, but not with GDN_SPLIT_INVARIANT. */
static gdn_status check_record(gdn_ctx *ctx, struct gdn_rule_call *c, bool decode)
{
    const gdn_rule_args *a = &c->args;
    const struct gdn_record_use use = { .tensors = { &a->record_k, &a->record_u, &a->record_g,
                                                     &a->record_count },
                                        .state = &a->state,
                                        .state_out = &a->state_out,
                                        .batch = &c->plan.batch,
                                        .flags = a->flags,
                                        .is_step = decode };
    return gdn_record_describe(ctx, &use, &c->rule, &c->record);
}

static gdn_status check_states(gdn_ctx *ctx, struct gdn_rule_call *c)
{
    const gdn_rule_args *a = &c->args;
    struct gdn_rule *r = &c->rule;
    const struct gdn_scaled pools[] = {
        { &a->state, &a->state_scales, "state", "state_scales" },
        { &a->state_out, &a->state_out_scales, "state_out", "state_out_scales" },
        { &a->checkpoints, &a->checkpoint_scales, "checkpoints", "checkpoint_scales" },
    }, *to = a->state_out.data ? &pools[1] : &pools[0], *left = &pools[2];
    struct gdn_pool_view *views[] = { &r->from, &r->to, &r->checkpoints };
    for (int i = 0; i < 3; i++) {
        TRY(gdn_scaled_view(ctx, &pools[i], a->state_layout, r->H, r->K, r->V, views[i]));
        views[i]->random = a->rounding == GDN_ROUND_STOCHASTIC;
        views[i]->seed = a->seed;
        for (int j = 0; j < i; j++) TRY(gdn_check_twins(ctx, &pools[i], &pools[j]));
    }
    if (!a->state_out.data) r->to = r->from;
    r->checkpoints.streamed = a->checkpoints.data;

    TRY(gdn_check_tree(ctx, &c->plan.batch, a->flags & GDN_EXACT, to->t->dtype));
    const bool final = to->t->data && c->plan.batch.write != GDN_WRITE_NONE;
    if (!a->out.data && !final && !a->checkpoints.data && !r->record)
        return gdn_fail(ctx, GDN_E_ARG, "out: absent, and no state is written");
    /* Checkpoints may be in the pool of final states alone. */
    if (a->state_out.data && a->state_out.data != a->state.data)
        TRY(gdn_check_no_overlap(ctx, left->t, left->name, &a->state, "state", false));
    return gdn_check_written(ctx, GDN_OP_PREFILL, a, &c->plan.batch);
}

static gdn_status describe(gdn_ctx *ctx, const gdn_rule_args *args, bool decode,
                           struct gdn_rule_call *c)
{
    const gdn_op op = decode ? GDN_OP_DECODE : GDN_OP_PREFILL;
    const gdn_rule_args *a = &c->args;
    c->rule = (struct gdn_rule){ 0 };
    TRY(gdn_copy_args(ctx, &c->args, sizeof c->args, args, "gdn_rule_args"));
    c->base = GDN_CALL_OF(a);
    TRY(gdn_check_fields(ctx, op, a));
    TRY(gdn_check_forms(ctx, a->flags));
    if (!decode) TRY(gdn_check_products(ctx, a->flags, a->q.dtype));
    TRY(gdn_check_present(ctx, op, &c->args));
    TRY(find_sizes(ctx, c));
    TRY(check_shapes(ctx, op, c));
    TRY(check_gates(ctx, a));
    const unsigned takes = (decode ? GDN_PLAN_EACH | GDN_PLAN_TREE : 0) |
                           (a->checkpoints.data ? GDN_PLAN_CHECKPOINTS : GDN_PLAN_NO_TENSOR);
    TRY(gdn_plan_describe(ctx, a->batch, &c->tokens, takes, &c->plan));
    struct gdn_rule *r = &c->rule;
    const struct gdn_family_tensors t = family_of(&c->args);
    TRY(gdn_family_fill(ctx, &t, a->updates, &c->tokens, r));
    TRY(gdn_family_check_updates(ctx, a->updates, &c->plan.batch, &a->record_k));
    TRY(check_record(ctx, c, decode));
    TRY(check_split(ctx, c, decode));
    TRY(check_states(ctx, c));

    r->q = gdn_rows_of(&a->q, &c->tokens), r->out = gdn_rows_of(&a->out, &c->tokens);
    gdn_rule_set_formulas(r,
                          &(struct gdn_rule_formulas){ a->head_map, a->gate, a->beta_kind, a->norm,
                                                       a->norm_eps, a->scale, a->gate_lower_bound,
                                                       a->flags },
                          GDN_BETA_GIVEN, GDN_NORM_NONE);
    r->decode = decode;
    r->tree = c->plan.batch.parents.data;
    r->exact = a->flags & GDN_EXACT;
    r->split = a->flags & GDN_SPLIT_INVARIANT;
    r->n_seqs = c->plan.B;
    c->pools = gdn_plan_pools_of(&a->state, final_pool(a), &a->checkpoints);
    return GDN_OK;
}

static gdn_status describe_prefill(gdn_ctx *ctx, const void *args, void *call)
{
    return describe(ctx, args, false, call);
}

static gdn_status describe_decode(gdn_ctx *ctx, const void *args, void *call)
{
    return describe(ctx, args, true, call);
}

GDN_OP_ENTRY(PREFILL, prefill, gdn_rule_args, struct gdn_rule_call)
GDN_OP_ENTRY(DECODE, decode, gdn_rule_args, struct gdn_rule_call)
GDN_OP_PART(prefill, gdn_rule_args, struct gdn_rule_call)
