/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_record_commit and gdn_record_fold: what their arguments must be, and what a record must be.
 * cpu/record.c computes them.
 */
#include "calls/record.h"

#include "calls/chunk_stage.h"
#include "calls/rule.h"
#include "core/ctx.h"
#include "core/tensor_check.h"
#include "ops/entry.h"
#include "ops/op_table.h"

/* ---- Views --------------------------------------------------------------------------------- */

static struct gdn_record_rows rows_of(const gdn_tensor *t)
{
    return (struct gdn_record_rows){ .data  = t->data,
                                     .dtype = t->dtype,
                                     .slot  = gdn_step_bytes(t, 0),
                                     .row   = gdn_step_bytes(t, 1),
                                     .head  = gdn_step_bytes(t, 2) };
}

gdn_status gdn_record_view(gdn_ctx *ctx, const struct gdn_record_tensors *t, int64_t P, int64_t Hk,
                           int64_t H, int64_t K, int64_t V, struct gdn_record *record)
{
    const int64_t R = t->k->data && t->k->ndim == 4 ? t->k->size[1] : -1;
    const struct {
        const gdn_tensor *t;
        const char       *name;
        unsigned          dtypes;
        int               ndim;
        int64_t           size[4];
    } wanted[] = { { t->k, "record_k", GDN_FLOATS, 4, { P, R, Hk, K } },
                   { t->u, "record_u", GDN_FLOATS, 4, { P, R, H, V } },
                   { t->g, "record_g", 1u << GDN_F32, 3, { P, R, H } },
                   { t->count, "record_count", GDN_INDICES, 1, { P } } };
    for (int i = 0; i < 4; i++) {
        if (!wanted[i].t->data)
            return gdn_fail(ctx, GDN_E_ARG, "%s: absent, wanted with a record", wanted[i].name);
        TRY(gdn_check_tensor(ctx, wanted[i].t, wanted[i].name));
        TRY(gdn_check_dtype(ctx, wanted[i].t, wanted[i].name, wanted[i].dtypes));
        TRY(gdn_check_shape(ctx, wanted[i].t, wanted[i].name, wanted[i].ndim, wanted[i].size));
        if (i < 2) TRY(gdn_check_dense(ctx, wanted[i].t, wanted[i].name));
        TRY(gdn_check_injective(ctx, wanted[i].t, wanted[i].name));
    }
    *record = (struct gdn_record){ .k     = rows_of(t->k),
                                   .u     = rows_of(t->u),
                                   .g     = rows_of(t->g),
                                   .count = *t->count,
                                   .P     = t->count->size[0],
                                   .R     = R };
    return GDN_OK;
}

/* ---- Calls --------------------------------------------------------------------------------- */

static gdn_status describe_plan(gdn_ctx *ctx, const gdn_batch *batch, int64_t B,
                                struct gdn_record_call *c)
{
    c->tokens = (struct gdn_tokens){ .single = true, .B = B, .T = 1, .N = B };
    TRY(gdn_plan_describe(ctx, batch, &c->tokens, 0, &c->plan));
    const gdn_batch *b = &c->plan.batch;
    const struct {
        const gdn_tensor *t;
        const char       *name;
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
    c->plan.batch.write      = GDN_WRITE_NONE;
    c->plan.batch.pad_policy = GDN_PAD_ZERO;
    c->plan_bytes            = gdn_align64(gdn_plan_bytes(&c->plan, &c->tokens));
    return GDN_OK;
}

/* No tensor that is written (bits of `written`) overlaps another or an array of the batch. */
static gdn_status check_overlaps(gdn_ctx *ctx, const gdn_tensor *const *t, const char *const *names,
                                 int n, unsigned written, const gdn_batch *batch)
{
    for (int i = 0; i < n; i++) {
        if (!(written >> i & 1)) continue;
        for (int j = 0; j < n; j++)
            if (j != i) TRY(gdn_check_no_overlap(ctx, t[i], names[i], t[j], names[j], false));
        TRY(gdn_plan_check_overlaps(ctx, batch, t[i], names[i]));
    }
    return GDN_OK;
}

/* ---- Commit -------------------------------------------------------------------------------- */

static gdn_status describe_commit(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_commit_call *m = call;
    *m = (struct gdn_commit_call){ 0 };
    gdn_record_commit_args *a = &m->args;
    TRY(gdn_copy_args(ctx, a, sizeof *a, args, "gdn_record_commit_args"));
    m->base = GDN_CALL_OF(a);
    if (a->flags) return gdn_fail(ctx, GDN_E_ARG, "flags: 0x%x, wanted 0", (unsigned)a->flags);
    const struct gdn_record_tensors t = { &a->record_k, &a->record_u, &a->record_g,
                                          &a->record_count };
    TRY(gdn_record_view(ctx, &t, a->record_count.size[0], -1, -1, -1, -1, &m->c.record));
    m->Hk = a->record_k.size[2], m->K = a->record_k.size[3];
    m->H = a->record_u.size[2], m->V = a->record_u.size[3];
    TRY(gdn_check_shape(ctx, &a->record_g, "record_g", 3, (int64_t[]){ -1, -1, m->H }));

    if (!a->n_accepted.data) return gdn_fail(ctx, GDN_E_ARG, "n_accepted: absent");
    TRY(gdn_check_tensor(ctx, &a->n_accepted, "n_accepted"));
    TRY(gdn_check_dtype(ctx, &a->n_accepted, "n_accepted", GDN_INDICES));
    TRY(gdn_check_shape(ctx, &a->n_accepted, "n_accepted", 1, (int64_t[]){ -1 }));
    if (a->path.data) {
        TRY(gdn_check_tensor(ctx, &a->path, "path"));
        TRY(gdn_check_dtype(ctx, &a->path, "path", GDN_INDICES));
        TRY(gdn_check_shape(ctx, &a->path, "path", 2, (int64_t[]){ a->n_accepted.size[0], -1 }));
    }
    TRY(describe_plan(ctx, a->batch, a->n_accepted.size[0], &m->c));
    const gdn_tensor *const all[]   = { &a->record_k,     &a->record_u,   &a->record_g,
                                        &a->record_count, &a->n_accepted, &a->path };
    static const char *const names[] = { "record_k",     "record_u",   "record_g",
                                         "record_count", "n_accepted", "path" };
    TRY(check_overlaps(ctx, all, names, 6, 0xf, &m->c.plan.batch));
    return GDN_OK;
}

GDN_OP_ENTRY(RECORD_COMMIT, record_commit, gdn_record_commit_args, describe_commit,
             struct gdn_commit_call)

/* ---- Fold ---------------------------------------------------------------------------------- */

static gdn_status describe_fold(gdn_ctx *ctx, const void *args, void *call)
{
    struct gdn_fold_call *m = call;
    *m = (struct gdn_fold_call){ .kr = ctx->kr };
    gdn_record_fold_args *a = &m->args;
    struct gdn_rule      *r = &m->rule;
    TRY(gdn_copy_args(ctx, a, sizeof *a, args, "gdn_record_fold_args"));
    m->base = GDN_CALL_OF(a);
    if (a->flags || a->reserved)
        return gdn_fail(ctx, GDN_E_ARG, "%s: 0x%x, wanted 0", a->flags ? "flags" : "reserved",
                        (unsigned)(a->flags ? a->flags : (uint32_t)a->reserved));
    TRY(gdn_stage_enum(ctx, "head_map", a->head_map, GDN_HEADS_INTERLEAVED));
    TRY(gdn_stage_enum(ctx, "state_layout", a->state_layout, GDN_STATE_KV));
    TRY(gdn_stage_enum(ctx, "rounding", a->rounding, GDN_ROUND_STOCHASTIC));
    if (!a->state.data) return gdn_fail(ctx, GDN_E_ARG, "state: absent");
    TRY(gdn_check_tensor(ctx, &a->state, "state"));
    const struct gdn_record_tensors t = { &a->record_k, &a->record_u, &a->record_g,
                                          &a->record_count };
    TRY(gdn_record_view(ctx, &t, -1, -1, -1, -1, -1, &m->c.record));
    TRY(gdn_stage_head_size(ctx, &a->record_k, "record_k", &r->K));
    TRY(gdn_stage_head_size(ctx, &a->record_u, "record_u", &r->V));
    const int64_t H = a->record_u.size[2];
    if (H < 1 || H > INT32_MAX)
        return gdn_fail(ctx, GDN_E_SHAPE, "record_u: %lld heads, wanted at least 1", (long long)H);
    r->H = (int)H;
    TRY(gdn_stage_heads(ctx, &a->record_k, "record_k", H, &r->Hk));
    const struct gdn_scaled state = { &a->state, &a->state_scales, "state", "state_scales" };
    TRY(gdn_scaled_view(ctx, &state, a->state_layout, H, r->K, r->V, &r->to));
    r->to.random = a->rounding == GDN_ROUND_STOCHASTIC;
    r->to.seed   = a->seed;
    TRY(gdn_check_injective(ctx, &a->state, "state"));
    TRY(gdn_check_injective(ctx, &a->state_scales, "state_scales"));
    TRY(gdn_record_view(ctx, &t, a->state.size[0], r->Hk, H, r->K, r->V, &m->c.record));

    gdn_batch batch = { 0 };
    if (a->batch) TRY(gdn_copy_args(ctx, &batch, sizeof batch, a->batch, "batch"));
    const gdn_tensor *slots = &batch.read_slots;
    TRY(describe_plan(ctx, a->batch, slots->data ? slots->size[0] : m->c.record.P, &m->c));
    const gdn_tensor *const  all[]   = { &a->state, &a->state_scales, &a->record_count,
                                         &a->record_k, &a->record_u, &a->record_g };
    static const char *const names[] = { "state", "state_scales", "record_count", "record_k",
                                         "record_u", "record_g" };
    TRY(check_overlaps(ctx, all, names, 6, 7, &m->c.plan.batch));
    r->head_map = a->head_map;
    r->record   = &m->c.record;
    return GDN_OK;
}

GDN_OP_ENTRY(RECORD_FOLD, record_fold, gdn_record_fold_args, describe_fold,
             struct gdn_fold_call)
