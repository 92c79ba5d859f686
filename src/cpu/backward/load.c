/* SPDX-License-Identifier: Apache-2.0 */
/* Loads for the gradients of a chunk of one head, and prefetches for the next one. */
#include <string.h>

#include "cpu/backward/sweep.h"

enum { C = GDN_CHUNK };

void gdn_sweep_prefetch(const struct gdn_sweep *s, const struct gdn_rows *rows, int head, int D,
                        int64_t t, int i, int n)
{
    if (t < 0) return;
    for (int64_t at = t + C * i / n; at < t + C * (i + 1) / n; at++)
        gdn_rule_prefetch(rows, s->seq, at, head, 0, D);
}

static void prefetch_floats(const float *x, size_t n, int i, int parts)
{
    const size_t all = n / 16, from = all * (size_t)i / (size_t)parts;
    for (size_t j = from; x && j < all * (size_t)(i + 1) / (size_t)parts; j++)
        __builtin_prefetch(x + 16 * j, 0, 2);
}

void gdn_sweep_prefetch_next(const struct gdn_sweep *s, int i, int n)
{
    prefetch_floats(s->next.S, s->state, i, n);
    prefetch_floats(s->next.R, C * (size_t)s->ld_v, i, n);
    prefetch_floats(s->next.U, C * (size_t)s->ld_v, i, n);
}

void gdn_sweep_load_v(const struct gdn_sweep *s, float *to, const struct gdn_rows *rows, int64_t t,
                      int n, int head, const float *but)
{
    const size_t V = (size_t)s->w->rule.V;
    for (int i = 0; i < C; i++) {
        float *row = to + i * s->ld_v;
        const bool some = i < n && !(but && but[i] == 0);
        if (some) s->kr->load_row[rows->dtype](row, gdn_row(rows, s->seq, t + i, head), V);
        memset(row + (some ? V : 0), 0, ((size_t)s->ld_v - (some ? V : 0)) * sizeof *row);
    }
}

bool gdn_sweep_has_keys(struct gdn_sweep *s, int head, int64_t t, int n, bool queries)
{
    const struct gdn_rule *r = &s->w->rule;
    const int hk = gdn_rule_source(r, head, r->Hk), hq = gdn_rule_source(r, head, r->Hq);
    const struct gdn_sweep_loaded *l = &s->loaded;
    const bool same = l->n == n && l->t == t && l->hk == hk;
    const bool shared = same && (!queries || (l->queries && l->hq == hq));
    if (!shared) s->loaded = (struct gdn_sweep_loaded){ hk, hq, n, t, queries, false };
    s->loaded.shared = shared;
    return shared;
}

void gdn_sweep_load_keys(struct gdn_sweep *s, int head, int64_t t, int n, bool queries)
{
    const struct gdn_rule *r = &s->w->rule;
    const struct gdn_kernels *kr = s->kr;
    const int hk = gdn_rule_source(r, head, r->Hk), hq = gdn_rule_source(r, head, r->Hq);
    const int rows = queries ? 2 * C : C;
    if (gdn_sweep_has_keys(s, head, t, n, queries)) return;
    if (n < C) memset(s->kq, 0, 2 * C * (size_t)s->ld * sizeof *s->kq);
    gdn_rule_load_rows(r, kr, s->seq, &r->k, hk, t, n, 1, s->kq, s->ld);
    if (queries)
        gdn_rule_load_rows(r, kr, s->seq, &r->q, hq, t, n, r->scale, s->kq + C * s->ld, s->ld);
    kr->transpose(s->kqt, 2 * C, s->kq, s->ld, rows, r->K);
    kr->strip_mul(s->gram, C, s->kq, s->ld, s->kqt, 2 * C, rows, r->K, C, NULL);
}
