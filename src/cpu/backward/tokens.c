/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of the family (gdn.h), token by token: the recurrence in reverse (docs/design/math.md).
 * A row is an update. The states before the rows of a chunk are kept; states are rows of k, ld
 * floats apart, as in sweep.h.
 */
#include <string.h>

#include "cpu/backward/backward.h"

enum { C = GDN_CHUNK };

size_t gdn_backward_tokens_lay_out(struct gdn_backward_tokens *s, const struct gdn_backward *w,
                                   ptrdiff_t ld, char *memory)
{
    const struct gdn_rule *r = &w->rule;
    const size_t rows_k = C * (size_t)r->K, rows_v = C * (size_t)ld;
    const size_t state = (size_t)r->K * (size_t)ld;
    const struct gdn_part parts[] = {
        { &s->kq, 2 * rows_k },    { &s->a, rows_k },        { &s->b, rows_k },
        { &s->e, (size_t)r->K },   { &s->alpha, C },         { &s->beta, C },
        { &s->v, rows_v },         { &s->w, rows_v },        { &s->u, rows_v },
        { &s->dout, rows_v },      { &s->du, (size_t)ld },   { &s->dw, (size_t)ld },
        { &s->dk, (size_t)r->K },  { &s->de, (size_t)r->K }, { &s->dg, (size_t)r->K },
        { &s->before, C * state }, { &s->after, state },
    };
    s->work = w, s->ld = ld;
    return gdn_lay_out(parts, sizeof parts / sizeof *parts, memory);
}

static float *state_before(const struct gdn_backward_tokens *s, int row)
{
    return s->before + (ptrdiff_t)row * s->work->rule.K * s->ld;
}

/* Multiplies each row of a state by its decay. A decay of 0 sets the row to 0, also from NaN. */
static void decay_rows(const struct gdn_backward_tokens *s, const float *a, float *S)
{
    for (int x = 0; x < s->work->rule.K; x++, S += s->ld)
        if (a[x] == 0)
            memset(S, 0, (size_t)s->ld * sizeof *S);
        else if (a[x] != 1)
            s->kr->norm_row(S, S, a[x], NULL, NULL, false, (size_t)s->ld);
}

/* y [V] = S^T x */
static void columns_by(const struct gdn_backward_tokens *s, float *y, const float *x,
                       const float *S)
{
    const struct gdn_rule *r = &s->work->rule;
    for (int c = 0; c < r->V; c += s->kr->strip)
        s->kr->strip_mul(y + c, s->ld, x, r->K, S + c, s->ld, 1, r->K, s->kr->strip, NULL);
}

/* y [K] = S x */
static void rows_by(const struct gdn_backward_tokens *s, float *y, const float *x, const float *S)
{
    s->kr->gemv[GDN_F32](y, x, S, s->ld, s->work->rule.K, s->work->rule.V, false);
}

static void load(struct gdn_backward_tokens *s, const struct gdn_seq *seq, int head, int64_t t,
                 int n)
{
    const struct gdn_rule *r = &s->work->rule;
    const int u = gdn_rule_updates(r), rows = n * u;
    const struct gdn_rule_item item = { .seq = seq, .group = head };
    memset(s->v, 0, C * (size_t)s->ld * sizeof *s->v);
    memset(s->w, 0, C * (size_t)s->ld * sizeof *s->w);
    gdn_rule_load_kq(r, s->kr, &item, t, n, s->kq, r->K, rows);
    gdn_family_load_gates(r, s->kr, seq, head, t, n, s->a, s->b, r->K, s->alpha, s->beta);
    gdn_family_load_v(r, s->kr, seq, head, t, n, 0, r->V, s->v, s->ld);
    gdn_family_load_w(r, s->kr, seq, head, t, n, 0, r->V, s->w, s->ld);
}

/* Runs a row on S, and keeps u and the state before the row. */
static void forward_row(struct gdn_backward_tokens *s, int row, float *S)
{
    const struct gdn_rule *r = &s->work->rule;
    const float *k = s->kq + row * r->K, *b = s->b + row * r->K;
    const float *v = s->v + row * s->ld, *w = s->w + row * s->ld;
    float *u = s->u + row * s->ld;
    if (row % gdn_rule_updates(r) == 0) decay_rows(s, s->a + row * r->K, S);
    memcpy(state_before(s, row), S, (size_t)(r->K * s->ld) * sizeof *S);
    memset(u, 0, (size_t)s->ld * sizeof *u);
    if (s->beta[row] == 0) return;
    for (int x = 0; x < r->K; x++) s->e[x] = b[x] * k[x];
    columns_by(s, u, s->e, S);
    for (int i = 0; i < s->ld; i++) u[i] = i < r->V ? (w[i] == 0 ? 0 : w[i] * v[i]) - u[i] : 0;
    s->kr->add_outer(S, r->K, (int)s->ld, 1, k, u);
}

void gdn_backward_tokens_forward(struct gdn_backward_tokens *s, const struct gdn_seq *seq, int head,
                                 int64_t t, int n, const float *from, float *to)
{
    const struct gdn_rule *r = &s->work->rule;
    if (to != from) memcpy(to, from, (size_t)(r->K * s->ld) * sizeof *to);
    load(s, seq, head, t, n);
    for (int row = 0; row < n * gdn_rule_updates(r); row++) forward_row(s, row, to);
}

/* Stores the gradient of beta of update j of a token, from db [K] of b and dw [V]. */
static void store_dbeta(struct gdn_backward_tokens *s, const struct gdn_seq *seq, int head,
                        int64_t t, int j, float *db, const float *dw)
{
    const struct gdn_rule *r = &s->work->rule;
    double sum = 0;
    if (!s->work->dbeta.data || !r->beta.data) return;
    for (int x = 0; x < r->K; x++) sum += (double)db[x];
    for (int i = 0; !r->family.write.data && i < r->V; i++) sum += (double)dw[i];
    if (!r->family.beta_rows) db[0] = (float)sum;
    gdn_family_store_dbeta(s->work, s->kr, seq, head, t, j, db);
}

/* ---- Backward ------------------------------------------------------------------------------ */

/* The gradient J of the state after a row becomes that of the state before it, decays apart. Adds
 * to its dk and dv. */
static void backward_row(struct gdn_backward_tokens *s, const struct gdn_seq *seq, int head,
                         int64_t t, int row, float *J, float *dk, float *dv)
{
    const struct gdn_rule *r = &s->work->rule;
    const float one = 1, *before = state_before(s, row);
    const float *k = s->kq + row * r->K, *b = s->b + row * r->K, *u = s->u + row * s->ld;
    const float *v = s->v + row * s->ld, *w = s->w + row * s->ld;
    const int j = row % gdn_rule_updates(r);
    columns_by(s, s->du, k, J);
    rows_by(s, s->dk, u, J);
    rows_by(s, s->de, s->du, before);
    for (int x = 0; x < r->K; x++) {
        s->e[x] = -b[x] * k[x];
        s->dk[x] -= b[x] * s->de[x];
        s->de[x] *= -k[x];
    }
    for (int i = 0; i < r->V; i++) {
        s->dw[i] = s->du[i] * v[i];
        dv[i] += w[i] == 0 ? 0 : w[i] * s->du[i];
    }
    for (int i = r->V; i < s->ld; i++) s->du[i] = 0;
    s->kr->add_outer(J, r->K, (int)s->ld, 1, s->e, s->du);
    s->kr->add_outer(dk, 1, r->K, 1, &one, s->dk);
    store_dbeta(s, seq, head, t, j, s->de, s->dw);
    if (s->work->dwrite.data) gdn_family_store_dwrite(s->work, s->kr, seq, head, t, j, w, s->dw);
}

/* Adds the gradient of a token's output to J, and to dq. */
static void backward_output(struct gdn_backward_tokens *s, int row, const float *dout, float *J,
                            float *dq)
{
    const struct gdn_rule *r = &s->work->rule;
    const float *k = s->kq + row * r->K, one = 1;
    const float *q = s->kq + (s->rows + row) * r->K;
    memcpy(s->after, state_before(s, row), (size_t)(r->K * s->ld) * sizeof *s->after);
    if (s->beta[row] != 0) s->kr->add_outer(s->after, r->K, (int)s->ld, 1, k, s->u + row * s->ld);
    rows_by(s, s->dk, dout, s->after);
    for (int x = 0; x < r->K; x++) s->dk[x] *= r->scale;
    s->kr->add_outer(dq, 1, r->K, 1, &one, s->dk);
    s->kr->add_outer(J, r->K, (int)s->ld, 1, q, dout);
}

void gdn_backward_tokens_chunk(struct gdn_backward_tokens *s, const struct gdn_seq *seq, int head,
                               int64_t t0, int n, const float *S, float *J, float *dq, float *dk,
                               float *dv, ptrdiff_t ld_k)
{
    const struct gdn_backward *w = s->work;
    const struct gdn_rule *r = &w->rule;
    const int u = gdn_rule_updates(r);
    gdn_backward_tokens_forward(s, seq, head, t0, n, S, s->after);
    s->rows = n * u;
    for (int t = n - 1; t >= 0; t--) {
        const int first = t * u;
        memset(s->dout, 0, (size_t)s->ld * sizeof *s->dout);
        s->kr->load_row[w->dout.dtype](s->dout, gdn_row(&w->dout, seq, t0 + t, head), (size_t)r->V);
        backward_output(s, first + u - 1, s->dout, J, dq + t * ld_k);
        for (int row = first + u - 1; row >= first; row--)
            backward_row(s, seq, head, t0 + t, row, J, dk + row * ld_k, dv + row * s->ld);
        const float *a = s->a + first * r->K, *before = state_before(s, first);
        for (int x = 0; x < r->K; x++)
            s->dg[x] = a[x] == 0 ? 0 : s->kr->dot(J + x * s->ld, before + x * s->ld, (size_t)r->V);
        decay_rows(s, a, J);
        gdn_family_store_dg(w, s->kr, seq, head, t0 + t, s->dg);
    }
}
