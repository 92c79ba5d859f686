/* SPDX-License-Identifier: Apache-2.0 */
#include "calls/op_backends.h"
#include "cuda/decode/select.h"
#include "cuda/driver/contents.h"

/* Returns the map by which kernels find the heads of q, k and v for a state head. For a tensor of H
 * heads, or of one, grouped and interleaved are the same: h / 1 = h mod H, h / H = h mod 1. Fast
 * kernels take grouped heads alone. */
static int head_map(const struct gdn_rule *r)
{
    const int n[] = { r->Hq, r->Hk, r->Hv };
    for (int i = 0; i < 3; i++)
        if (n[i] != 1 && n[i] != r->H) return r->head_map;
    return GDN_HEADS_GROUPED;
}

void gdn_cuda_fill_rule(struct gdn_cu_rule *to, const struct gdn_rule *r, const gdn_tensor *A_log,
                        const gdn_tensor *dt_bias, const struct gdn_plan *plan,
                        const struct gdn_tokens *tokens, const struct gdn_plan_pools *pools)
{
    static const struct gdn_record none = { .R = 0 };
    const struct gdn_record *record = r->record ? r->record : &none;
    gdn_cuda_fill_batch(&to->batch, plan, tokens, pools);
    to->q = r->q;
    to->k = r->k;
    to->v = r->v;
    to->g = r->g;
    to->beta = r->beta;
    to->out = r->out;
    to->from = r->from;
    to->to = r->to;
    to->checkpoints = r->checkpoints;
    to->A_log = gdn_cuda_array(A_log);
    to->dt_bias = gdn_cuda_array(dt_bias);
    to->record_k = record->k;
    to->record_u = record->u;
    to->record_g = record->g;
    to->record_count = gdn_cuda_array(&record->count);
    to->record_rows = record->R;
    to->Hq = r->Hq;
    to->Hk = r->Hk;
    to->Hv = r->Hv;
    to->H = r->H;
    to->K = r->K;
    to->V = r->V;
    to->head_map = head_map(r);
    to->gate = r->gate;
    to->beta_kind = r->beta_kind;
    to->norm = r->norm;
    to->norm_eps = r->norm_eps;
    to->scale = r->scale;
    to->bound = r->bound;
    to->exact = r->exact;
    to->family = r->family;
}

void gdn_cuda_fill_call(struct gdn_cu_rule *to, const struct gdn_rule_call *c)
{
    gdn_cuda_fill_rule(to, &c->rule, &c->args.A_log, &c->args.dt_bias, &c->plan, &c->tokens,
                       &c->pools);
}

gdn_status gdn_cuda_check_family(gdn_ctx *ctx, const struct gdn_rule *r, const char *g,
                                 const gdn_tensor *A_log)
{
    const struct gdn_family *f = &r->family;
    if (f->g_rows || f->beta_rows)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "%s: a number per channel, wanted [..][H] on a GPU",
                        f->g_rows ? g : "beta");
    if (f->write.data)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "write_gate: given, wanted none on a GPU");
    if (f->is)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "updates: %d, wanted 1 on a GPU", f->updates);
    if (A_log && !A_log->data && r->gate == GDN_GATE_RAW)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "A_log: absent, wanted on a GPU");
    return GDN_OK;
}

gdn_status gdn_cuda_refuse_record(gdn_ctx *ctx, const struct gdn_rule *r)
{
    if (!r->record) return GDN_OK;
    return gdn_fail(ctx, GDN_E_UNSUPPORTED,
                    "record_k: given, wanted none here on a GPU: gdn_record_fold() first");
}

/* Refuses a tensor in a call of the family. */
static gdn_status refuse(gdn_ctx *ctx, const char *name, const char *what)
{
    return gdn_fail(ctx, GDN_E_UNSUPPORTED,
                    "%s: %s, wanted none with channels, a write gate or updates on a GPU", name,
                    what);
}

gdn_status gdn_cuda_check_channels(gdn_ctx *ctx, const struct gdn_rule *r)
{
    const struct {
        const struct gdn_pool_view *pool;
        const char *name;
    } pools[] = { { &r->from, "state" },
                  { &r->to, "state_out" },
                  { &r->checkpoints, "checkpoints" } };
    if (!r->family.is) return GDN_OK;
    if (r->tree) return refuse(ctx, "parents", "given");
    if (r->record) return refuse(ctx, "record_k", "given");
    for (int i = 0; i < 3; i++)
        if (pools[i].pool->data && gdn_is_q8(pools[i].pool->dtype))
            return refuse(ctx, pools[i].name, "8 bits");
    return GDN_OK;
}

gdn_status gdn_cuda_check_rule(gdn_ctx *ctx, const struct gdn_rule_call *c)
{
    return c->rule.record
               ? gdn_cuda_check_record(ctx, &c->plan, &c->tokens, &c->pools, &c->record,
                                       c->base.stream)
               : gdn_cuda_check_batch(ctx, &c->plan, &c->tokens, &c->pools, c->base.stream);
}

gdn_status gdn_cuda_check_tree(gdn_ctx *ctx, const gdn_batch *b, const struct gdn_tokens *tokens)
{
    if (!b->parents.data || tokens->N <= INT32_MAX - 1) return GDN_OK;
    return gdn_fail(ctx, GDN_E_UNSUPPORTED, "parents: %lld tokens, at most 2^31 - 2",
                    (long long)tokens->N);
}

gdn_status gdn_cuda_check_split(gdn_ctx *ctx, const struct gdn_rule *r)
{
    if (!r->split) return GDN_OK;
    return gdn_fail(ctx, GDN_E_UNSUPPORTED, "flags: GDN_SPLIT_INVARIANT, wanted without on a GPU");
}

/* ---- gdn_decode ---------------------------------------------------------------------------- */

/* The decisions about a call. */
struct planned {
    struct gdn_cu_rule rule;
    struct gdn_cuda_decode_plan plan;
};
_Static_assert(sizeof(struct planned) <= GDN_PLAN_ROOM, "a plan has room");

static gdn_status plan(gdn_ctx *ctx, void *call)
{
    struct gdn_rule_call *c = call;
    struct planned *p = GDN_PLANNED(struct planned, &c->base);
    TRY(gdn_cuda_check_split(ctx, &c->rule));
    TRY(gdn_cuda_check_channels(ctx, &c->rule));
    TRY(gdn_cuda_check_tree(ctx, &c->plan.batch, &c->tokens));
    gdn_cuda_fill_call(&p->rule, c);
    gdn_cuda_decode_plan(ctx, c->base.op, &p->rule, &p->plan);
    c->base.bytes = p->plan.bytes;
    return GDN_OK;
}

static gdn_status run(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_rule_call *c = call;
    struct planned *p = GDN_PLANNED(struct planned, &c->base);
    TRY(gdn_cuda_check_rule(ctx, c));
    return gdn_cuda_decode_run(&p->plan, memory, c->base.stream);
}

const struct gdn_op_backend gdn_cuda_op_decode = { plan, run };
