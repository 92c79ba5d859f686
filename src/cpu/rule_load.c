/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the forms of the rule (prefill.c, decode.c, decode_exact.c) load for an item and store from
 * it: rows of q and k, gates, places of states, strips.
 */
#include <math.h>
#include <string.h>

#include "calls/record.h"
#include "core/tensor_check.h"
#include "cpu/rows.h"
#include "cpu/rule.h"

float gdn_rule_inverse_length(float sum_of_squares, int norm, float eps)
{
    switch (norm) {
    case GDN_NORM_L2: return 1.0f / sqrtf(sum_of_squares + eps);
    case GDN_NORM_L2_ADD: return 1.0f / (sqrtf(sum_of_squares) + eps);
    case GDN_NORM_L2_MAX: return 1.0f / fmaxf(sqrtf(sum_of_squares), eps);
    default: return 1.0f;
    }
}

void gdn_rule_load_rows(const struct gdn_rule *r, const struct gdn_kernels *kr,
                        const struct gdn_seq *seq, const struct gdn_rows *rows, int head,
                        int64_t t0, int n, float scale, float *to, ptrdiff_t ld)
{
    const size_t K = (size_t)r->K;
    for (int t = 0; t < n; t++, to += ld) {
        float by = scale;
        kr->load_row[rows->dtype](to, gdn_row(rows, seq, t0 + t, head), K);
        if (r->norm != GDN_NO_NORM)
            by *= gdn_rule_inverse_length(kr->dot(to, to, K), r->norm, r->norm_eps);
        if (by != 1) kr->norm_row(to, to, by, NULL, NULL, false, K);
    }
}

void gdn_rule_load_keys(const struct gdn_rule *r, const struct gdn_kernels *kr,
                        const struct gdn_seq *seq, int head, int64_t t0, int n, float *to,
                        ptrdiff_t ld)
{
    const int u = gdn_rule_updates(r);
    struct gdn_rows rows = r->k;
    for (int j = 0; j < u; j++, rows.data += r->family.k_update)
        gdn_rule_load_rows(r, kr, seq, &rows, head, t0, n, 1, to + j * ld, u * ld);
}

void gdn_rule_load_kq(const struct gdn_rule *r, const struct gdn_kernels *kr,
                      const struct gdn_rule_item *item, int64_t t0, int n, float *kq, ptrdiff_t ld,
                      int q_row)
{
    const int head = gdn_rule_head(r, item->group, 0);
    const int hk = gdn_rule_source(r, head, r->Hk), hq = gdn_rule_source(r, head, r->Hq);
    const int u = gdn_rule_updates(r);
    float *q = kq + q_row * ld;
    gdn_rule_load_keys(r, kr, item->seq, hk, t0, n, kq, ld);
    for (int i = 0; u > 1 && i < n * u; i++) memset(q + i * ld, 0, (size_t)r->K * sizeof *q);
    gdn_rule_load_rows(r, kr, item->seq, &r->q, hq, t0, n, r->scale, q + (u - 1) * ld, u * ld);
}

void gdn_rule_prefetch(const struct gdn_rows *rows, const struct gdn_seq *seq, int64_t t, int head,
                       int col, int n)
{
    if (!rows->data || t >= seq->n_valid) return;
    const size_t elem = gdn_dtype_bytes(rows->dtype);
    const char *at = (const char *)gdn_row(rows, seq, t, head) + (size_t)col * elem;
    for (size_t i = 0; i < (size_t)n * elem; i += 64) __builtin_prefetch(at + i, 0, 2);
}

/* Gathers n values of a [tokens][H] tensor for one head. */
static void gather(float *dst, const struct gdn_kernels *kr, const struct gdn_rows *rows,
                   const struct gdn_seq *seq, int head, int64_t t0, int n)
{
    for (int t = 0; t < n; t++)
        kr->load_row[rows->dtype](dst + t, gdn_row(rows, seq, t0 + t, head), 1);
}

void gdn_rule_load_decay(float *A, float *dt, const gdn_tensor *A_log, const gdn_tensor *dt_bias,
                         int64_t H, int64_t channels, float bound)
{
    gdn_tensor row = *dt_bias; /* of one head */
    gdn_load_vector(A, A_log, H, 0);
    if (row.ndim == 2) {
        row.ndim = 1, row.size[0] = row.size[1], row.stride[0] = row.stride[1];
        for (int64_t h = 0; h < H; h++) {
            row.data = row.data ? gdn_at(dt_bias, h * dt_bias->stride[0]) : NULL;
            gdn_load_vector(dt + h * channels, &row, channels, 0);
        }
    } else {
        gdn_load_vector(dt, dt_bias, H * channels, 0); /* or zeros */
    }
    for (int64_t h = 0; h < H; h++) A[h] = gdn_raw_factor(A[h], bound);
}

/* Raw gates of n tokens of a head become log gates. */
static void raw_gates(const struct gdn_rule *r, const struct gdn_kernels *kr, int head, float *g,
                      int n)
{
    float A[GDN_CHUNK], dt[GDN_CHUNK];
    for (int t = 0; t < n; t++) {
        A[t] = r->A[head];
        dt[t] = r->dt[head];
    }
    gdn_raw_gates(kr, g, A, dt, r->bound, (size_t)n);
}

void gdn_rule_load_gates(const struct gdn_rule *r, const struct gdn_kernels *kr,
                         const struct gdn_seq *seq, int head, int64_t t0, int n, bool linear,
                         float *g, float *beta)
{
    const size_t len = (size_t)n;
    if (r->g.data) gather(g, kr, &r->g, seq, head, t0, n);
    for (int t = 0; !r->g.data && t < n; t++) g[t] = linear ? 1 : 0;
    if (r->gate == GDN_GATE_RAW) raw_gates(r, kr, head, g, n);
    if (r->g.data && linear && r->gate != GDN_GATE_LINEAR) kr->exp_row(g, g, len);
    if (r->g.data && !linear && r->gate == GDN_GATE_LINEAR)
        for (int t = 0; t < n; t++) g[t] = logf(g[t]);

    if (r->beta.data) gather(beta, kr, &r->beta, seq, head, t0, n);
    for (int t = 0; !r->beta.data && t < n; t++) beta[t] = 1;
    if (r->beta_kind != GDN_NO_SIGMOID)
        kr->sigmoid_row(beta, beta, r->beta_kind == GDN_BETA_TWICE_SIGMOID ? 2.0f : 1.0f, len);
}

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
    const int n = r->V - col < kr->strip ? r->V - col : kr->strip;
    const struct gdn_place from = gdn_rule_from(r, seq, head);
    if (gdn_are_twins(&from, &to) && are_idle(r, kr, seq, head, n_tokens))
        gdn_copy_columns(to, col, from, col, r->K, n);
    else
        gdn_store_strip(S, kr, to, r->K, col, n, rows);
}
