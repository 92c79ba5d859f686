/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_record_commit and gdn_record_fold: check their arguments and the record.
 * cpu/record/record.c computes them.
 */
#include "calls/record.h"

#include "calls/chunk_stage.h"
#include "calls/rule.h"
#include "core/ctx.h"
#include "core/tensor_check.h"
#include "ops/checks.h"
#include "ops/entry.h"
#include "ops/fields.h"
#include "ops/op_table.h"
#include "ops/tensors.h"

/* ---- Views --------------------------------------------------------------------------------- */

static struct gdn_record_rows rows_of(const gdn_tensor *t)
{
    return (struct gdn_record_rows){ .data = t->data,
                                     .dtype = t->dtype,
                                     .channel = 1,
                                     .slot = gdn_step_bytes(t, 0),
                                     .row = gdn_step_bytes(t, 1),
                                     .head = gdn_step_bytes(t, 2) };
}

gdn_status gdn_record_view(gdn_ctx *ctx, const struct gdn_record_tensors *t,
                           struct gdn_record *record)
{
    const struct {
        const gdn_tensor *t;
        const char *name;
    } all[] = { { t->k, "record_k" },
                { t->u, "record_u" },
                { t->g, "record_g" },
                { t->count, "record_count" } };
    for (int i = 0; i < 4; i++) {
        if (!all[i].t->data)
            return gdn_fail(ctx, GDN_E_ARG, "%s: absent, wanted with a record", all[i].name);
        TRY(gdn_check_injective(ctx, all[i].t, all[i].name));
    }
    *record = (struct gdn_record){ .k = rows_of(t->k),
                                   .u = rows_of(t->u),
                                   .g = rows_of(t->g),
                                   .count = *t->count,
                                   .P = t->count->size[0],
                                   .R = t->k->size[1],
                                   .channels = t->g->ndim == 4 ? t->g->size[3] : 1,
                                   .g_channel = gdn_step_bytes(t->g, 3) };
    /* a GPU's, which refuses what does not fit */
    record->g.channel = (int32_t)(record->g_channel / (int64_t)sizeof(float));
    return GDN_OK;
}

gdn_status gdn_check_open_rows(gdn_ctx *ctx, const gdn_tensor *k)
{
    if (k->size[1] < GDN_RECORD_SPLIT_ROWS)
        return gdn_fail(ctx, GDN_E_SHAPE,
                        "record_k: %lld rows, wanted at least %d with GDN_SPLIT_INVARIANT",
                        (long long)k->size[1], GDN_RECORD_SPLIT_ROWS);
    return GDN_OK;
}

gdn_status gdn_check_split_state(gdn_ctx *ctx, const gdn_tensor *state, const char *name)
{
    if (!state->data || state->dtype == GDN_F32) return GDN_OK;
    return gdn_fail(ctx, GDN_E_UNSUPPORTED, "%s: not float32, wanted that with GDN_SPLIT_INVARIANT",
                    name);
}

/* ---- A record beside the tokens of a call --------------------------------------------------- */

static gdn_status check_write(gdn_ctx *ctx, const struct gdn_record_use *use)
{
    if (use->batch->write == GDN_WRITE_FINAL) return GDN_OK;
    if (use->batch->write == GDN_WRITE_NONE && use->is_step) return GDN_OK;
    return gdn_fail(ctx, GDN_E_ARG, "write: GDN_WRITE_%s, wanted %sGDN_WRITE_FINAL with a record",
                    use->batch->write == GDN_WRITE_NONE ? "NONE" : "EACH",
                    use->is_step ? "GDN_WRITE_NONE or " : "");
}

/* Refuses what a record cannot have: beside drafts, and beside tokens that are accepted at once. */
static gdn_status check_others(gdn_ctx *ctx, const struct gdn_record_use *use)
{
    const gdn_batch *b = use->batch;
    const bool accepts = b->write == GDN_WRITE_FINAL;
    const bool stays = use->is_step || use->flags & GDN_SPLIT_INVARIANT;
    const struct {
        bool given;
        const char *name, *with;
    } others[] = {
        { b->num_accepted_tokens.data, "num_accepted_tokens", "" },
        { stays && b->has_initial_state.data, "has_initial_state", "" },
        { stays && accepts && b->write_slots.data, "write_slots", " and GDN_WRITE_FINAL" },
        { accepts && b->parents.data, "parents", " and GDN_WRITE_FINAL" },
        { accepts && use->state_out->data && use->state_out->data != use->state->data, "state_out",
          " and GDN_WRITE_FINAL" },
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i].given)
            return gdn_fail(ctx, GDN_E_ARG, "%s: given, wanted none with a record%s",
                            others[i].name, others[i].with);
    return GDN_OK;
}

gdn_status gdn_record_describe(gdn_ctx *ctx, const struct gdn_record_use *use, struct gdn_rule *r,
                               struct gdn_record *record)
{
    const struct gdn_record_tensors *t = &use->tensors;
    if (!t->k->data && !t->u->data && !t->g->data && !t->count->data) return GDN_OK;
    if (!use->state->data) return gdn_fail(ctx, GDN_E_ARG, "state: absent, wanted with a record");
    TRY(check_write(ctx, use));
    TRY(check_others(ctx, use));
    const gdn_tensor *final = use->state_out->data ? use->state_out : use->state;
    if (use->flags & GDN_EXACT && final->dtype != GDN_F32)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED,
                        "flags: GDN_EXACT, wanted a float32 state with a record");
    const bool split = use->flags & GDN_SPLIT_INVARIANT;
    /* One channel is one number for each head, as in g. */
    const bool rows = t->g->ndim == 4 && (split || t->g->size[3] > 1);
    if (rows != (r->family.g_rows || split))
        return gdn_fail(ctx, GDN_E_SHAPE, "record_g: %d dimensions, wanted %s", (int)t->g->ndim,
                        split              ? "[P][R][H][2] with GDN_SPLIT_INVARIANT"
                        : r->family.g_rows ? "[P][R][H][K], as g has channels"
                                           : "[P][R][H], as g has no channels");
    TRY(gdn_record_view(ctx, t, record));
    record->accepts = use->batch->write == GDN_WRITE_FINAL;
    record->lazy_tokens = use->is_step || split ? INT64_MAX : use->lazy_tokens;
    r->record = record;
    return GDN_OK;
}

/* Checks the ranks that sizes are read from. */
static gdn_status check_ranks(gdn_ctx *ctx, const struct gdn_record_tensors *t)
{
    static const int64_t any[] = { -1, -1, -1, -1 };
    TRY(gdn_check_shape(ctx, t->k, "record_k", 4, any));
    TRY(gdn_check_shape(ctx, t->u, "record_u", 4, any));
    return gdn_check_shape(ctx, t->count, "record_count", 1, any);
}

/* ---- Calls --------------------------------------------------------------------------------- */

static gdn_status describe_plan(gdn_ctx *ctx, const gdn_batch *batch, int64_t B,
                                struct gdn_record_call *c)
{
    c->tokens = (struct gdn_tokens){ .B = B, .T = 1, .N = B };
    TRY(gdn_plan_describe(ctx, batch, &c->tokens, 0, &c->plan));
    const gdn_batch *b = &c->plan.batch;
    const struct {
        const gdn_tensor *t;
        const char *name;
    } others[] = { { &b->cu_seqlens, "cu_seqlens" },
                   { &b->write_slots, "write_slots" },
                   { &b->has_initial_state, "has_initial_state" },
                   { &b->num_accepted_tokens, "num_accepted_tokens" },
                   { &b->token_start, "token_start" },
                   { &b->token_count, "token_count" } };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i].t->data)
            return gdn_fail(ctx, GDN_E_ARG, "%s: given, wanted none: a record has slots alone",
                            others[i].name);
    c->plan.batch.write = GDN_WRITE_NONE;
    c->plan.batch.pad_policy = GDN_PAD_ZERO;
    c->plan_bytes = gdn_align64(gdn_plan_bytes(&c->plan, &c->tokens));
    return GDN_OK;
}

/* Returns the numbers of a gate in a record: of GDN_SPLIT_INVARIANT, g and beta. */
static int64_t gate_size(const gdn_tensor *record_g, int64_t K)
{
    return record_g->ndim == 4 && record_g->size[3] == 2 ? 2 : K;
}

/* ---- Commit -------------------------------------------------------------------------------- */

static gdn_status describe_record_commit(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_commit_call *m = call;
    *m = (struct gdn_commit_call){ 0 };
    gdn_record_commit_args *a = &m->args;
    TRY(gdn_copy_args(ctx, a, sizeof *a, args, "gdn_record_commit_args"));
    m->base = GDN_CALL_OF(a);
    TRY(gdn_check_fields(ctx, GDN_OP_RECORD_COMMIT, a));
    const struct gdn_record_tensors t = { &a->record_k, &a->record_u, &a->record_g,
                                          &a->record_count };
    TRY(gdn_check_present(ctx, GDN_OP_RECORD_COMMIT, a));
    TRY(check_ranks(ctx, &t));
    m->Hk = a->record_k.size[2], m->K = a->record_k.size[3];
    m->H = a->record_u.size[2], m->V = a->record_u.size[3];
    const struct gdn_sizes s = { .P = a->record_count.size[0],
                                 .R = a->record_k.size[1],
                                 .Hk = m->Hk,
                                 .K = m->K,
                                 .G = gate_size(&a->record_g, m->K),
                                 .H = m->H,
                                 .V = m->V,
                                 .B = a->n_accepted.size[0] };
    TRY(gdn_check_shapes(ctx, GDN_OP_RECORD_COMMIT, a, &s));
    TRY(gdn_record_view(ctx, &t, &m->c.record));
    TRY(describe_plan(ctx, a->batch, a->n_accepted.size[0], &m->c));
    TRY(gdn_check_written(ctx, GDN_OP_RECORD_COMMIT, a, &m->c.plan.batch));
    return GDN_OK;
}

GDN_OP_ENTRY(RECORD_COMMIT, record_commit, gdn_record_commit_args, struct gdn_commit_call)

/* ---- Fold ---------------------------------------------------------------------------------- */

static gdn_status describe_record_fold(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_fold_call *m = call;
    *m = (struct gdn_fold_call){ 0 };
    gdn_record_fold_args *a = &m->args;
    struct gdn_rule *r = &m->rule;
    TRY(gdn_copy_args(ctx, a, sizeof *a, args, "gdn_record_fold_args"));
    m->base = GDN_CALL_OF(a);
    TRY(gdn_check_fields(ctx, GDN_OP_RECORD_FOLD, a));
    TRY(gdn_check_present(ctx, GDN_OP_RECORD_FOLD, a));
    const struct gdn_record_tensors t = { &a->record_k, &a->record_u, &a->record_g,
                                          &a->record_count };
    TRY(check_ranks(ctx, &t));
    TRY(gdn_stage_head_size(ctx, &a->record_k, "record_k", GDN_MAX_HEAD, &r->K));
    TRY(gdn_stage_head_size(ctx, &a->record_u, "record_u", GDN_MAX_VALUE, &r->V));
    TRY(gdn_stage_all_heads(ctx, a->record_u.size[2], "record_u", &r->H));
    TRY(gdn_stage_heads(ctx, &a->record_k, "record_k", r->H, &r->Hk));
    const struct gdn_scaled state = { &a->state, &a->state_scales, "state", "state_scales" };
    TRY(gdn_scaled_view(ctx, &state, a->state_layout, r->H, r->K, r->V, &r->to));
    r->to.random = a->rounding == GDN_ROUND_STOCHASTIC;
    r->to.seed = a->seed;
    const struct gdn_sizes s = { .P = a->state.size[0],
                                 .R = a->record_k.size[1],
                                 .Hk = r->Hk,
                                 .K = r->K,
                                 .H = r->H,
                                 .V = r->V,
                                 .G = a->flags & GDN_SPLIT_INVARIANT ? 2 : r->K };
    TRY(gdn_check_shapes(ctx, GDN_OP_RECORD_FOLD, a, &s));
    TRY(gdn_record_view(ctx, &t, &m->c.record));

    gdn_batch batch = { 0 };
    if (a->batch) TRY(gdn_copy_args(ctx, &batch, sizeof batch, a->batch, "batch"));
    const gdn_tensor *slots = &batch.read_slots;
    TRY(describe_plan(ctx, a->batch, slots->data ? slots->size[0] : m->c.record.P, &m->c));
    TRY(gdn_check_written(ctx, GDN_OP_RECORD_FOLD, a, &m->c.plan.batch));
    r->head_map = a->head_map;
    r->record = &m->c.record;
    if (!(a->flags & GDN_SPLIT_INVARIANT)) return GDN_OK;
    if (a->record_g.ndim != 4)
        return gdn_fail(ctx, GDN_E_SHAPE,
                        "record_g: 3 dimensions, wanted [P][R][H][2] with GDN_SPLIT_INVARIANT");
    r->split = true;
    r->norm = gdn_norm_of(a->norm, GDN_NORM_NONE);
    r->norm_eps = gdn_eps_of(a->norm_eps, a->flags);
    r->from = r->to;
    r->Hq = r->Hv = r->H;
    r->n_seqs = m->c.plan.B;
    m->c.record.accepts = true;
    TRY(gdn_check_split_state(ctx, &a->state, "state"));
    return gdn_check_open_rows(ctx, &a->record_k);
}

GDN_OP_ENTRY(RECORD_FOLD, record_fold, gdn_record_fold_args, struct gdn_fold_call)
