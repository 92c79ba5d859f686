/* SPDX-License-Identifier: Apache-2.0 */
#include "calls/record.h"
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
