/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of a chunk of one head (docs/design/math.md). A gate that forgets begins a piece of the
 * chunk. The state of a piece starts from zero, so that nothing passes such a gate.
 */
#include <math.h>
#include <string.h>

#include "cpu/backward/sweep.h"

enum { C = GDN_CHUNK };

/* ---- Forward ------------------------------------------------------------------------------- */

/* Loads gates of n tokens. The first gate may forget, the others do not. */
static void load_gates(struct gdn_sweep *s, int head, int64_t t, int n)
{
    memset(s->g, 0, C * sizeof *s->g);
    memset(s->beta, 0, C * sizeof *s->beta);
    gdn_rule_load_gates(&s->w->rule, s->kr, s->seq, head, t, n, false, s->g, s->beta);
    if (gdn_forgets(s->g[0])) s->g[0] = 0;
    s->kr->chunk_gates(s->A, s->B, s->start, s->end, s->g, s->beta, s->gram);
}

/* Computes R and U of a piece, and the state after it. `to` may be `from`. */
static void forward(struct gdn_sweep *s, const float *from, float *to, float *R, float *U, int head,
                    int64_t t, int n)
{
    const struct gdn_rule *r = &s->w->rule;
    const struct gdn_kernels *kr = s->kr;
    const ptrdiff_t ld = s->ld_v;
    const int hv = gdn_rule_source(r, head, r->Hv), hk = gdn_rule_source(r, head, r->Hk);
    float *const r_all = n < C ? s->r : R, *const u_all = n < C ? s->u : U;
    gdn_sweep_load_keys(s, head, t, n, false);
    load_gates(s, head, t, n);
    gdn_sweep_load_v(s, s->v, &r->v, t, n, hv, s->beta);
    for (int c = 0; c < r->V; c += kr->strip) {
        gdn_sweep_prefetch(s, &r->v, hv, r->V, t + C, c / kr->strip, s->n_strips);
        if (!s->loaded.shared)
            gdn_sweep_prefetch(s, &r->k, hk, r->K, t + C, c / kr->strip, s->n_strips);
        kr->strip_mul(s->p + c, ld, s->kq, s->ld, from + c, ld, C, r->K, kr->strip, NULL);
        kr->chunk_write(r_all + c, u_all + c, s->x + c, ld, s->p + c, s->v + c, s->A, s->start,
                        s->end, s->beta);
        kr->chunk_update(to + c, from + c, ld, s->start[C - 1], s->kq, s->ld, s->x + c, ld, C,
                         r->K);
    }
    if (n == C) return;
    memcpy(R, s->r, (size_t)(n * ld) * sizeof *R);
    memcpy(U, s->u, (size_t)(n * ld) * sizeof *U);
}

/* Writes the starts of the pieces of a chunk of n tokens, then n. Returns the number of pieces. */
static int cut_pieces(struct gdn_sweep *s, int head, int64_t t0, int n, int *at, bool *forgets)
{
    int n_pieces = 1;
    gdn_rule_load_gates(&s->w->rule, s->kr, s->seq, head, t0, n, false, s->g, s->beta);
    at[0] = 0;
    *forgets = gdn_forgets(s->g[0]);
    for (int i = 1; i < n; i++)
        if (gdn_forgets(s->g[i])) at[n_pieces++] = i;
    at[n_pieces] = n;
    return n_pieces;
}

void gdn_sweep_forward(struct gdn_sweep *s, const struct gdn_sweep_chunk *x, const float *from,
                       float *to)
{
    int at[C + 1];
    bool forgets;
    const int n_pieces = cut_pieces(s, x->head, x->t, x->n, at, &forgets);
    for (int i = 0; i < n_pieces; i++) {
        if (i || forgets) from = memset(to, 0, s->state * sizeof *to);
        forward(s, from, to, x->R + at[i] * s->ld_v, x->U + at[i] * s->ld_v, x->head, x->t + at[i],
                at[i + 1] - at[i]);
        from = to;
    }
}

/* ---- Backward ------------------------------------------------------------------------------ */

/* Solves for Z, which is stored below dO, with P = K J, and for -start dR: the substitution of U
 * with the tokens in reverse. */
static void solve_z(struct gdn_sweep *s, const float *J)
{
    const struct gdn_kernels *kr = s->kr;
    const ptrdiff_t ld = s->ld_v;
    float *Z = s->dz + C * ld, *Bt = s->mixed, minus[C], scale[C];
    for (int i = 0; i < C; i++) {
        minus[i] = -s->end[i];
        scale[i] = -s->start[i] * s->beta[i];
    }
    kr->transpose(Bt, C, s->B, C, C, C);
    for (int c = 0; c < s->w->rule.V; c += kr->strip) {
        gdn_sweep_prefetch_next(s, c / kr->strip, 2 * s->n_strips);
        kr->strip_mul(s->p + c, ld, s->kq, s->ld, J + c, ld, C, s->w->rule.K, kr->strip, NULL);
        kr->strip_mul(s->v + c, ld, Bt, C, s->dz + c, ld, C, C, kr->strip, NULL);
        kr->chunk_return(Z + c, s->x + c, ld, s->p + c, s->v + c, s->A, minus, scale);
    }
}

/* Computes Z of a piece from J after it, and the terms of k and q in J before it. */
static void return_u(struct gdn_sweep *s, const float *J, int head, int64_t t, int n)
{
    const ptrdiff_t ld = s->ld_v;
    gdn_sweep_load_keys(s, head, t, n, true);
    load_gates(s, head, t, n);
    gdn_sweep_load_v(s, s->dz, &s->w->dout, t, n, head, NULL);
    solve_z(s, J);
    for (int i = 0; i < C; i++)
        s->kr->norm_row(s->x + (C + i) * ld, s->dz + i * ld, s->start[i], NULL, NULL, false,
                        (size_t)ld);
}

/* Computes J before the piece. Call return_u() first. */
static void step_j(struct gdn_sweep *s, float *J, int head, int64_t t)
{
    const struct gdn_rule *r = &s->w->rule;
    const ptrdiff_t ld = s->ld_v;
    const int hk = gdn_rule_source(r, head, r->Hk), hq = gdn_rule_source(r, head, r->Hq);
    for (int c = 0; c < r->V; c += s->kr->strip) {
        const int strip = c / s->kr->strip;
        gdn_sweep_prefetch_next(s, s->n_strips + strip, 2 * s->n_strips);
        gdn_sweep_prefetch(s, &s->w->dout, head, r->V, t - C, strip, s->n_strips);
        if (!s->loaded.shared) {
            gdn_sweep_prefetch(s, &r->k, hk, r->K, t - C, strip, s->n_strips);
            gdn_sweep_prefetch(s, &r->q, hq, r->K, t - C, strip, s->n_strips);
        }
        s->kr->chunk_update(J + c, J + c, ld, s->start[C - 1], s->kq, s->ld, s->x + c, ld, 2 * C,
                            r->K);
    }
}

/*
 * Computes X and Y from the products of Z and dO with U, and the factors of keys: X + X^T beside
 * Y^T. Adds their terms to dG: elements of A and B decay from token j to token i. (The element of a
 * token with itself does not decay. Its two terms cancel, so they are left out.)
 */
static void mix(struct gdn_sweep *s, const float *R, float *dbeta, float *dG)
{
    float *Y = s->dots, *X = Y + C * C, *keys = s->mixed; /* [16][32] */
    memset(dG, 0, C * sizeof *dG);
    for (int i = 0; i < C; i++) {
        const float *decay = s->decay + i * C, *kk = s->gram + i * C, *qk = kk + C * C;
        float *y = Y + i * C, *x = X + i * C, sum = 0, all = 0;
        for (int j = 0; j < i; j++) {
            const float by_beta = -x[j] * decay[j] * kk[j];
            x[j] *= -s->beta[i] * decay[j];
            y[j] *= decay[j];
            const float part = x[j] * kk[j] + y[j] * qk[j];
            sum += by_beta;
            all += part;
            dG[j] -= part;
        }
        dG[i] += all;
        memset(x + i, 0, (size_t)(C - i) * sizeof *x);
        memset(y + i + 1, 0, (size_t)(C - 1 - i) * sizeof *y);
        dbeta[i] =
            sum + s->kr->dot(s->dz + (C + i) * s->ld_v, R + i * s->ld_v, (size_t)s->w->rule.V);
    }
    s->kr->transpose(keys, 2 * C, X, C, C, C);
    s->kr->transpose(keys + C, 2 * C, Y, C, C, C);
    for (int i = 0; i < C; i++)
        for (int j = 0; j < C; j++) keys[i * 2 * C + j] += X[i * C + j];
}

/* Returns the inner product of two states: rows in float32, their sum in float64. */
static double inner(const struct gdn_sweep *s, const float *a, const float *b)
{
    double sum = 0;
    for (int x = 0; x < s->w->rule.K; x++, a += s->ld_v, b += s->ld_v)
        sum += (double)s->kr->dot(a, b, (size_t)s->w->rule.V);
    return sum;
}

/* Adds the terms of q . dQ and k . dKr that come from S to dG. */
static void add_gates(const struct gdn_sweep *s, float *dG)
{
    float sum[2 * C];
    s->kr->conv_sums(sum, 2 * C, s->kqt, s->by, 2 * C, 1, s->w->rule.K, 2 * C); /* of one tap */
    for (int i = 0; i < C; i++) dG[i] += sum[i] + sum[C + i];
}

static void scale_columns(float *restrict x, const float *restrict by, int rows)
{
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < C; i++) x[r * C + i] *= by[i];
}

/* Computes dK and dQ, side by side in `by`. */
static void multiply(struct gdn_sweep *s, const float *S, const float *J, float *dG)
{
    const struct gdn_kernels *kr = s->kr;
    const int K = s->w->rule.K, V = s->w->rule.V, width = kr->strip < C ? C : kr->strip;
    const ptrdiff_t ld = s->ld_v, wide = 2 * C;
    for (int c = 0; S && c < wide; c += width)
        kr->strip_mul(s->by + c, wide, S, ld, s->xt + c, wide, K, V, width, NULL);
    if (S) add_gates(s, dG);
    for (int c = 0; c < wide; c += width)
        kr->strip_mul(s->by + c, wide, s->kqt, wide, s->mixed + c, wide, K, C, width,
                      S ? s->unit : NULL);
    scale_columns(s->ut, s->end, V);
    kr->strip_mul(s->by, wide, J, ld, s->ut, C, K, V, C, s->unit);
    kr->strip_mul(s->by, wide, s->kqt + C, wide, s->dots, C, K, C, C, s->unit);
}

static void add_rows(struct gdn_sweep *s, int n, float *dq, float *dk, float *dv)
{
    const struct gdn_kernels *kr = s->kr;
    const int K = s->w->rule.K, V = s->w->rule.V;
    const float one = 1;
    kr->transpose(s->rows, s->ld, s->by, 2 * C, K, 2 * C);
    for (int i = 0; i < n; i++) {
        const float *row = s->rows + i * s->ld;
        kr->add_outer(dk + i * s->ld, 1, K, 1, &one, row);
        kr->add_outer(dq + i * s->ld, 1, K, 1, &s->w->rule.scale, row + C * s->ld);
        kr->add_outer(dv + i * s->ld_v, 1, V, 1, &s->beta[i], s->dz + (C + i) * s->ld_v);
    }
}

/* Adds the terms of tokens whose beta is zero: R does not contain their v. */
static void add_unwritten(struct gdn_sweep *s, int head, int64_t t, int n, float *dbeta)
{
    const struct gdn_rule *r = &s->w->rule;
    for (int i = 0; i < n; i++) {
        if (s->beta[i] != 0) continue;
        s->kr->load_row[r->v.dtype](
            s->v, gdn_row(&r->v, s->seq, t + i, gdn_rule_source(r, head, r->Hv)), (size_t)r->V);
        dbeta[i] += s->kr->dot(s->dz + (C + i) * s->ld_v, s->v, (size_t)r->V);
    }
}

/* Computes gradients of a piece. J becomes the gradient of the state before it. S NULL: zero. */
static void backward(struct gdn_sweep *s, const float *S, float *J, const float *R, const float *U,
                     int head, int64_t t, int n, float *dq, float *dk, float *dv, float *dg,
                     float *dbeta)
{
    const struct gdn_rule *r = &s->w->rule;
    const struct gdn_kernels *kr = s->kr;
    const ptrdiff_t ld = s->ld_v;
    const size_t V = (size_t)r->V;
    float dG[C];
    return_u(s, J, head, t, n);
    kr->chunk_gates(s->unused, s->decay, s->start, s->end, s->g, s->unit, s->ones);
    if (n < C) {
        memset(s->r, 0, C * (size_t)ld * sizeof *s->r);
        memset(s->u, 0, C * (size_t)ld * sizeof *s->u);
        R = memcpy(s->r, R, (size_t)(n * ld) * sizeof *R);
        U = memcpy(s->u, U, (size_t)(n * ld) * sizeof *U);
    }
    kr->transpose(s->ut, C, U, ld, C, r->V);
    kr->transpose(s->xt, 2 * C, s->x, ld, 2 * C, r->V);
    kr->strip_mul(s->dots, C, s->dz, ld, s->ut, C, 2 * C, r->V, C, NULL);
    mix(s, R, dbeta, dG);
    add_unwritten(s, head, t, n, dbeta);

    double carried = S ? (double)s->start[C - 1] * inner(s, S, J) : 0;
    for (int i = 0; i < n; i++) {
        const float part = s->end[i] * kr->dot(s->p + i * ld, U + i * ld, V);
        carried += (double)part;
        dG[i] -= part;
    }
    multiply(s, S, J, dG);
    step_j(s, J, head, t);
    add_rows(s, n, dq, dk, dv);
    for (int i = n - 1; i >= 0; i--) {
        carried += (double)dG[i];
        dg[i] = (float)carried;
    }
    if (!S) dg[0] = 0; /* the gate that forgets */
}

static void store_gates(struct gdn_sweep *s, int head, int64_t t, int n, float *dg, float *dbeta)
{
    const struct gdn_backward *w = s->w;
    double *sums = w->sums ? w->sums + 2 * (s->seq->row * w->rule.H + head) : NULL;
    gdn_backward_gates(&w->rule, s->kr, s->seq, head, t, n, dg, dbeta, sums);
    for (int i = 0; i < n; i++) {
        if (w->dg.data)
            gdn_backward_store(s->kr, gdn_row(&w->dg, s->seq, t + i, head), GDN_F32, w->adds,
                               &dg[i], 1);
        if (w->dbeta.data)
            gdn_backward_store(s->kr, gdn_row(&w->dbeta, s->seq, t + i, head), GDN_F32, w->adds,
                               &dbeta[i], 1);
    }
}

void gdn_sweep_backward(struct gdn_sweep *s, const struct gdn_sweep_chunk *x, const float *S,
                        float *J)
{
    float dg[C], dbeta[C];
    int at[C + 1];
    bool forgets;
    for (int i = cut_pieces(s, x->head, x->t, x->n, at, &forgets) - 1; i >= 0; i--) {
        const int a = at[i], m = at[i + 1] - a;
        const bool zero = i || forgets;
        backward(s, zero ? NULL : S, J, x->R + a * s->ld_v, x->U + a * s->ld_v, x->head, x->t + a,
                 m, x->dq + a * s->ld, x->dk + a * s->ld, x->dv + a * s->ld_v, dg, dbeta);
        if (zero) memset(J, 0, s->state * sizeof *J);
        store_gates(s, x->head, x->t + a, m, dg, dbeta);
    }
}

void gdn_sweep_state(struct gdn_sweep *s, const struct gdn_sweep_chunk *x, float *J)
{
    int at[C + 1];
    bool forgets;
    for (int i = cut_pieces(s, x->head, x->t, x->n, at, &forgets) - 1; i >= 0; i--) {
        return_u(s, J, x->head, x->t + at[i], at[i + 1] - at[i]);
        step_j(s, J, x->head, x->t + at[i]);
        if (i || forgets) memset(J, 0, s->state * sizeof *J);
    }
}
