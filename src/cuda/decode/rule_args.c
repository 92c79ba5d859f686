/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of kernels from a checked call of the rule. */
#include "core/tensor_check.h"
#include "cuda/decode/decode.h"

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

gdn_status gdn_cuda_check_channels(gdn_ctx *ctx, const struct gdn_record *record)
{
    const int64_t apart = record ? record->g_channel / (int64_t)sizeof(float) : 0;
    if (apart <= INT32_MAX && apart >= -INT32_MAX) return GDN_OK;
    return gdn_fail(ctx, GDN_E_UNSUPPORTED,
                    "record_g: channels %lld apart, at most 2^31 - 1 on a GPU", (long long)apart);
}

gdn_status gdn_cuda_check_tree(gdn_ctx *ctx, const gdn_batch *b, const struct gdn_tokens *tokens)
{
    if (!b->parents.data || tokens->N <= INT32_MAX - 1) return GDN_OK;
    return gdn_fail(ctx, GDN_E_UNSUPPORTED, "parents: %lld tokens, at most 2^31 - 2",
                    (long long)tokens->N);
}
