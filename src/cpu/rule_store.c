/* SPDX-License-Identifier: Apache-2.0 */
/* Stores states, whatever the form of an item: places in pools, rounding, strips. */
#include "calls/record.h"
#include "cpu/rule.h"

static const struct gdn_pool_view *rounding_view(const struct gdn_rule *r)
{
    const struct gdn_pool_view *view = r->to.data ? &r->to : &r->from;
    return r->exact && view->data ? view : NULL;
}

int gdn_rule_rounding(const struct gdn_rule *r)
{
    const struct gdn_pool_view *view = rounding_view(r);
    return view && !gdn_is_q8(view->dtype) ? view->dtype : GDN_F32;
}

const struct gdn_pool_view *gdn_rule_rounding8(const struct gdn_rule *r)
{
    const struct gdn_pool_view *view = rounding_view(r);
    return view && gdn_is_q8(view->dtype) ? view : NULL;
}

struct gdn_place gdn_rule_from(const struct gdn_rule *r, const struct gdn_seq *s, int head)
{
    if (s->from_carry) return gdn_place_of(&r->carry_from, 0, head, 0);
    if (s->read >= 0) return gdn_place_of(&r->from, s->read, head, 0);
    return (struct gdn_place){ .view = &r->from };
}

struct gdn_place gdn_rule_to(const struct gdn_rule *r, const struct gdn_seq *s, int64_t t, int head)
{
    const struct gdn_pool_view *view = s->to_carry ? &r->carry_to : &r->to;
    int64_t slot = t == s->n_valid - 1 ? s->to_carry ? 0 : s->write : -1;
    if (r->record && s->slot >= 0 && !gdn_record_folds(r->record, s)) slot = -1;
    if (r->plan && r->plan->batch.write == GDN_WRITE_EACH)
        slot = t >= 0 && t < s->n_valid ? gdn_plan_each_slot(r->plan, s, t) : -1;
    if (slot >= 0) return gdn_place_of(view, slot, head, s->base + t + 1);
    return (struct gdn_place){ .view = view };
}

/* Returns true if n tokens leave every bit of the state (G9). */
static bool are_idle(const struct gdn_rule *r, const struct gdn_kernels *kr,
                     const struct gdn_seq *seq, int head, int64_t n)
{
    float alpha[GDN_CHUNK], beta[GDN_CHUNK], a[GDN_MAX_HEAD], b[GDN_MAX_HEAD];
    const int most = r->family.is ? 1 : GDN_CHUNK;
    for (int64_t t0 = 0; t0 < n; t0 += most) {
        const int some = n - t0 < most ? (int)(n - t0) : most;
        if (r->family.is)
            gdn_family_load_gates(r, kr, seq, head, t0, some, a, b, 0, alpha, beta);
        else
            gdn_rule_load_gates(r, kr, seq, head, t0, some, true, alpha, beta);
        for (int t = 0; t < some * gdn_rule_updates(r); t++)
            if (alpha[t] != 1 || beta[t] != 0) return false;
    }
    return true;
}

void gdn_rule_store_strip(const struct gdn_rule *r, const struct gdn_kernels *kr,
                          const struct gdn_seq *seq, int head, int col, const float *S,
                          struct gdn_place to, int64_t n_tokens, float *rows)
{
    const int n = gdn_strip_columns(r, kr, col);
    const struct gdn_place from = gdn_rule_from(r, seq, head);
    if (gdn_are_twins(&from, &to) && are_idle(r, kr, seq, head, n_tokens))
        gdn_copy_columns(to, col, from, col, r->K, n);
    else
        gdn_store_strip(S, kr, to, r->K, col, n, rows);
}
