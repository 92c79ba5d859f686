/* SPDX-License-Identifier: Apache-2.0 */
/* Stores the gradients of a token's gates in the family (gdn.h), through how they were given. */
#include "cpu/backward/backward.h"

/* Stores or adds n numbers, step bytes apart. */
static void put(const struct gdn_backward *w, const struct gdn_kernels *kr, char *to, int64_t step,
                float *x, int n)
{
    const int some = step == (int64_t)sizeof *x ? n : 1;
    for (int i = 0; i < n; i += some)
        gdn_backward_store(kr, to + i * step, GDN_F32, w->adds, x + i, some);
}

void gdn_family_store_dg(const struct gdn_backward *w, const struct gdn_kernels *kr,
                         const struct gdn_seq *seq, int head, int64_t t, float *dg)
{
    const struct gdn_rule *r = &w->rule;
    const int64_t n = gdn_rule_channels(r), size = 1 + n;
    double *sums = w->sums ? w->sums + size * (seq->row * r->H + head) : NULL, sum = 0;
    if (!r->g.data || !(w->dg.data || sums)) return;
    const char *g = gdn_row(&r->g, seq, t, head);
    if (n == 1) {
        for (int i = 0; i < r->K; i++) sum += (double)dg[i];
        dg[0] = (float)gdn_backward_gate(r, kr, g, head, sum, sums);
    } else if (r->gate != GDN_GATE_LOG) {
        float given[GDN_MAX_HEAD];
        gdn_family_load_numbers(given, kr, r->g.dtype, g, r->family.g_channel, r->K);
        gdn_backward_gate_row(r, kr, given, head, dg, sums);
    }
    if (w->dg.data) put(w, kr, gdn_row(&w->dg, seq, t, head), w->dg_channel, dg, (int)n);
}

void gdn_family_store_dbeta(const struct gdn_backward *w, const struct gdn_kernels *kr,
                            const struct gdn_seq *seq, int head, int64_t t, int j, float *db)
{
    const struct gdn_rule *r = &w->rule;
    const struct gdn_family *f = &r->family;
    const int n = f->beta_rows ? r->K : 1;
    const char *beta = (const char *)gdn_row(&r->beta, seq, t, head) + j * f->beta_update;
    char *to = (char *)gdn_row(&w->dbeta, seq, t, head) + j * w->dbeta_update;
    for (int i = 0; r->beta_kind != GDN_NO_SIGMOID && i < n; i++)
        db[i] = (float)gdn_backward_beta(r, kr, beta + i * f->beta_channel, (double)db[i]);
    put(w, kr, to, w->dbeta_channel, db, n);
}

void gdn_family_store_dwrite(const struct gdn_backward *w, const struct gdn_kernels *kr,
                             const struct gdn_seq *seq, int head, int64_t t, int j,
                             const float *w_row, float *dw)
{
    const int V = w->rule.V;
    char *to = (char *)gdn_row(&w->dwrite, seq, t, head) + j * w->dwrite_update;
    for (int i = 0; w->rule.beta_kind != GDN_NO_SIGMOID && i < V; i++)
        dw[i] *= w_row[i] * (1 - w_row[i]);
    gdn_backward_store(kr, to, GDN_F32, w->adds, dw, V);
}
