/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of a chunk of one head in the family (gdn.h): each channel has a decay, and a row is an
 * update. The forms are those of docs/design/math.md. A gate that forgets a channel is a factor of
 * 0. If a product of a chunk is not finite, the chunk goes token by token (tokens.c): there a
 * channel that forgets is zeroed, so that a NaN reaches only what depends on it.
 */
#include <string.h>

#include "cpu/backward/sweep.h"

enum { C = GDN_CHUNK };

/* Loads rows of K of n updates, and sets the rows behind them to x. */
static void fill_rows(const struct gdn_sweep *s, float *rows, int n, float x)
{
    for (ptrdiff_t i = n * s->ld; i < C * s->ld; i++) rows[i] = x;
}

/* Loads keys of n tokens and, for gradients, queries, unless a head before has done so. */
static void load_keys(struct gdn_sweep *s, const struct gdn_sweep_chunk *x)
{
    const struct gdn_rule *r = &s->w->rule;
    const struct gdn_kernels *kr = s->kr;
    const struct gdn_rule_item item = { .seq = s->seq, .group = x->head };
    const int u = gdn_rule_updates(r);
    if (gdn_sweep_has_keys(s, x->head, x->t, x->n, true)) return;
    if (x->n * u < C) memset(s->kq, 0, 2 * C * (size_t)s->ld * sizeof *s->kq);
    gdn_rule_load_kq(r, kr, &item, x->t, x->n, s->kq, s->ld, C);
}

/* Rows of a and e, and all that follows from them: A and B, which are of pairs, keys and queries by
 * their decays. */
static void load_vectors(struct gdn_sweep *s, const struct gdn_sweep_chunk *x)
{
    const struct gdn_rule *r = &s->w->rule;
    const struct gdn_kernels *kr = s->kr;
    const struct gdn_sweep_vectors *f = &s->f;
    const int n = x->n * gdn_rule_updates(r);
    load_keys(s, x);
    gdn_family_load_gates(r, kr, s->seq, x->head, x->t, x->n, f->a, f->b, s->ld, f->alpha,
                          f->written);
    for (int i = 0; i < n; i++)
        kr->norm_row(f->e + i * s->ld, f->b + i * s->ld, 1, s->kq + i * s->ld, NULL, false,
                     (size_t)r->K);
    fill_rows(s, f->a, n, 1);
    fill_rows(s, f->e, n, 0);
    kr->channel_scale(f->scaled, f->scaled + C * s->ld, f->decays, f->a, f->e, s->kq + C * s->ld,
                      s->ld, r->K);
    kr->channel_walk(s->A, s->B, f->end, f->a, f->e, s->kq + C * s->ld, s->kq, s->ld, r->K);
}

/* Returns true if n numbers, at most GDN_MAX_VALUE, of each of some rows are finite. */
static bool are_finite(const struct gdn_sweep *s, const float *rows, ptrdiff_t ld, int n_rows,
                       int n)
{
    static const float zeros[GDN_MAX_VALUE];
    float sum = 0;
    for (int i = 0; i < n_rows; i++) sum += s->kr->dot(zeros, rows + i * ld, (size_t)n);
    return sum == 0;
}

/* ---- Forward ------------------------------------------------------------------------------- */

/* U of columns from c on. */
static void write_u(struct gdn_sweep *s, const float *from, float *U, int c)
{
    const ptrdiff_t ld = s->ld_v;
    s->kr->strip_mul(s->p + c, ld, s->f.scaled, s->ld, from + c, ld, C, s->w->rule.K, s->kr->strip,
                     NULL);
    s->kr->chunk_write(s->r + c, U + c, s->x + c, ld, s->p + c, s->v + c, s->A, s->unit, s->unit,
                       s->unit);
}

void gdn_sweep_family_forward(struct gdn_sweep *s, const struct gdn_sweep_chunk *x,
                              const float *from, float *to)
{
    const struct gdn_rule *r = &s->w->rule;
    const struct gdn_kernels *kr = s->kr;
    const int n = x->n * gdn_rule_updates(r), hv = gdn_rule_source(r, x->head, r->Hv);
    const int hk = gdn_rule_source(r, x->head, r->Hk), next = s->chunk;
    const ptrdiff_t ld = s->ld_v;
    float *const U = n < C ? s->u : x->U;
    load_vectors(s, x);
    memset(s->v, 0, C * (size_t)ld * sizeof *s->v);
    gdn_family_load_written(r, kr, s->seq, x->head, x->t, x->n, 0, r->V, s->v, ld);
    for (int c = 0; c < r->V; c += kr->strip) {
        const int strip = c / kr->strip;
        gdn_sweep_prefetch(s, &r->v, hv, r->V, x->t + next, strip, s->n_strips);
        if (r->family.g_rows)
            gdn_sweep_prefetch(s, &r->g, x->head, r->K, x->t + next, strip, s->n_strips);
        if (!s->loaded.shared)
            gdn_sweep_prefetch(s, &r->k, hk, r->K, x->t + next, strip, s->n_strips);
        write_u(s, from, U, c);
    }
    if (n < C) memcpy(x->U, s->u, (size_t)(n * ld) * sizeof *x->U);
    if (!are_finite(s, U, ld, C, r->V)) {
        gdn_backward_tokens_forward(&s->tokens, s->seq, x->head, x->t, x->n, from, to);
        return;
    }
    for (int c = 0; c < r->V; c += kr->strip)
        kr->channel_update(to + c, from + c, ld, s->f.decays, s->f.end, s->ld, U + c, ld, C, r->K);
}

/* ---- Backward ------------------------------------------------------------------------------ */

/* Computes Z of a chunk whose vectors are loaded from J after it; and -Z above dO in x, which is
 * what the rows of `scaled` get in J before it. Returns true if Z is finite. Then J and dO are. */
static bool return_u(struct gdn_sweep *s, const struct gdn_sweep_chunk *x, const float *J)
{
    static const float minus[C] = {
        -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1
    };
    const struct gdn_rule *r = &s->w->rule;
    const struct gdn_kernels *kr = s->kr;
    const int u = gdn_rule_updates(r);
    const ptrdiff_t ld = s->ld_v;
    float *Z = s->dz + C * ld, *dO = s->x + C * ld, *Bt = s->mixed;
    memset(dO, 0, C * (size_t)ld * sizeof *dO);
    for (int t = 0; t < x->n; t++)
        kr->load_row[s->w->dout.dtype](dO + (t * u + u - 1) * ld,
                                       gdn_row(&s->w->dout, s->seq, x->t + t, x->head),
                                       (size_t)r->V);
    kr->transpose(Bt, C, s->B, C, C, C);
    for (int c = 0; c < r->V; c += kr->strip) {
        gdn_sweep_prefetch_next(s, c / kr->strip, 2 * s->n_strips);
        kr->strip_mul(s->p + c, ld, s->f.end, s->ld, J + c, ld, C, r->K, kr->strip, NULL);
        kr->strip_mul(s->v + c, ld, Bt, C, dO + c, ld, C, C, kr->strip, NULL);
        kr->chunk_return(Z + c, s->x + c, ld, s->p + c, s->v + c, s->A, minus, minus);
    }
    return are_finite(s, Z, ld, C, r->V);
}

/* J before the chunk. */
static void step_j(struct gdn_sweep *s, const struct gdn_sweep_chunk *x, float *J)
{
    const struct gdn_rule *r = &s->w->rule;
    const int hk = gdn_rule_source(r, x->head, r->Hk), hq = gdn_rule_source(r, x->head, r->Hq);
    const int64_t before = x->t - s->chunk;
    const ptrdiff_t ld = s->ld_v;
    for (int c = 0; c < r->V; c += s->kr->strip) {
        const int strip = c / s->kr->strip, n = s->n_strips;
        gdn_sweep_prefetch_next(s, n + strip, 2 * n);
        gdn_sweep_prefetch(s, &s->w->dout, x->head, r->V, before, strip, n);
        if (r->family.g_rows) gdn_sweep_prefetch(s, &r->g, x->head, r->K, before, strip, n);
        if (!s->loaded.shared) {
            gdn_sweep_prefetch(s, &r->k, hk, r->K, before, strip, n);
            gdn_sweep_prefetch(s, &r->q, hq, r->K, before, strip, n);
        }
        s->kr->channel_update(J + c, J + c, ld, s->f.decays, s->f.scaled, s->ld, s->x + c, ld,
                              2 * C, r->K);
    }
}

/* y = the products of n columns, [V][n], with a state, as rows of K. */
static void multiply(struct gdn_sweep *s, float *y, const float *state, const float *columns, int n)
{
    const struct gdn_kernels *kr = s->kr;
    const int K = s->w->rule.K, V = s->w->rule.V, width = kr->strip < n ? kr->strip : n;
    for (int c = 0; c < n; c += width)
        kr->strip_mul(s->by + c, n, state, s->ld_v, columns + c, n, K, V, width, NULL);
    kr->transpose(y, s->ld, s->by, n, K, n);
}

/* Gradients of q, e, k and log a, from J after the chunk and S before it. Returns true if they are
 * finite. */
static bool return_vectors(struct gdn_sweep *s, const float *U, const float *S, const float *J)
{
    const struct gdn_rule *r = &s->w->rule;
    const struct gdn_kernels *kr = s->kr;
    const struct gdn_sweep_vectors *f = &s->f;
    const ptrdiff_t ld = s->ld_v;
    kr->transpose(s->ut, C, U, ld, C, r->V);
    kr->transpose(s->xt, 2 * C, s->x, ld, 2 * C, r->V);
    kr->strip_mul(s->dots, C, s->x, ld, s->ut, C, 2 * C, r->V, C, NULL);
    multiply(s, f->de, S, s->xt, 2 * C); /* and dq, behind it */
    multiply(s, f->dk, J, s->ut, C);
    for (int i = 0; i < r->K; i++) f->carried[i] = kr->dot(S + i * ld, J + i * ld, (size_t)r->V);
    kr->channel_return(f->dq, f->de, f->dk, f->dg, f->carried, f->a, f->e, s->kq + C * s->ld, s->kq,
                       s->ld, s->dots, s->dots + C * C, r->K);
    return are_finite(s, f->de, s->ld, 2 * C, r->K) && are_finite(s, f->dk, s->ld, C, r->K) &&
           are_finite(s, f->dg, s->ld, C, r->K);
}

/* ---- What is stored ------------------------------------------------------------------------ */

/* Adds the part of an update to dk and dv. de is the gradient of its e, Z that of the vector that
 * it writes. w is a row of V, which is not read if the update has one beta. */
static void add_update(struct gdn_sweep *s, ptrdiff_t at, float *dk, float *dv, const float *de,
                       const float *Z, const float *w)
{
    const struct gdn_rule *r = &s->w->rule;
    const struct gdn_kernels *kr = s->kr;
    const float one = 1, *b = s->f.b + at;
    kr->add_outer(dk, 1, r->K, 1, &one, s->f.dk + at);
    if (gdn_family_has_one_beta(r)) {
        if (*b == 0) return;
        kr->add_outer(dk, 1, r->K, 1, b, de);
        kr->add_outer(dv, 1, r->V, 1, b, Z);
        return;
    }
    for (int i = 0; i < r->V; i++) dv[i] += w[i] == 0 ? 0 : w[i] * Z[i];
    kr->norm_row(s->rows, de, 1, b, NULL, false, (size_t)r->K);
    kr->add_outer(dk, 1, r->K, 1, &one, s->rows);
}

/* Adds to dk and dv of update j of token t, and stores the gradients of its b and w. v and w are
 * rows of V. */
static void store_update(struct gdn_sweep *s, const struct gdn_sweep_chunk *x, int t, int j,
                         const float *v, const float *w)
{
    const struct gdn_rule *r = &s->w->rule;
    const struct gdn_kernels *kr = s->kr;
    const ptrdiff_t row = t * gdn_rule_updates(r) + j, at = row * s->ld;
    float *de = s->f.de + at, dw[GDN_MAX_VALUE];
    const float *Z = s->dz + (C + row) * s->ld_v;
    add_update(s, at, x->dk + at, x->dv + row * s->ld_v, de, Z, w);
    if (s->w->dbeta.data && r->beta.data) {
        const float *k = s->kq + at;
        if (r->family.beta_rows)
            kr->norm_row(de, de, 1, k, NULL, false, (size_t)r->K);
        else
            de[0] = kr->dot(k, de, (size_t)r->K) +
                    (r->family.write.data ? 0 : kr->dot(Z, v, (size_t)r->V));
        gdn_family_store_dbeta(s->w, kr, s->seq, x->head, x->t + t, j, de);
    }
    if (!s->w->dwrite.data) return;
    kr->norm_row(dw, Z, 1, v, NULL, false, (size_t)r->V);
    gdn_family_store_dwrite(s->w, kr, s->seq, x->head, x->t + t, j, w, dw);
}

static void store_all(struct gdn_sweep *s, const struct gdn_sweep_chunk *x)
{
    const struct gdn_rule *r = &s->w->rule;
    const struct gdn_kernels *kr = s->kr;
    const struct gdn_sweep_vectors *f = &s->f;
    const int u = gdn_rule_updates(r);
    float *v = s->v, *w = s->r; /* free by now */
    gdn_family_load_v(r, kr, s->seq, x->head, x->t, x->n, 0, r->V, v, s->ld_v);
    if (!gdn_family_has_one_beta(r))
        gdn_family_load_w(r, kr, s->seq, x->head, x->t, x->n, 0, r->V, w, s->ld_v);
    for (int t = 0; t < x->n; t++) {
        const ptrdiff_t row = t * u;
        kr->add_outer(x->dq + t * s->ld, 1, r->K, 1, &r->scale, f->dq + (row + u - 1) * s->ld);
        for (int j = 0; j < u; j++)
            store_update(s, x, t, j, v + (row + j) * s->ld_v, w + (row + j) * s->ld_v);
        gdn_family_store_dg(s->w, kr, s->seq, x->head, x->t + t, f->dg + row * s->ld);
    }
}

/* ---- Chunks -------------------------------------------------------------------------------- */

static void by_tokens(struct gdn_sweep *s, const struct gdn_sweep_chunk *x, const float *S,
                      float *J)
{
    gdn_backward_tokens_chunk(&s->tokens, s->seq, x->head, x->t, x->n, S, J, x->dq, x->dk, x->dv,
                              s->ld);
}

/* The form of J is chosen by J and Z alone, so that dstate has the same bits if it is the only
 * gradient. */
void gdn_sweep_family_backward(struct gdn_sweep *s, const struct gdn_sweep_chunk *x, const float *S,
                               float *J)
{
    const int n = x->n * gdn_rule_updates(&s->w->rule);
    const float *U = x->U;
    load_vectors(s, x);
    if (!return_u(s, x, J)) {
        by_tokens(s, x, S, J);
        return;
    }
    if (n < C) {
        memset(s->u, 0, C * (size_t)s->ld_v * sizeof *s->u);
        U = memcpy(s->u, U, (size_t)(n * s->ld_v) * sizeof *U);
    }
    if (return_vectors(s, U, S, J))
        store_all(s, x);
    else
        by_tokens(s, x, S, memcpy(s->S, J, s->state * sizeof *J));
    step_j(s, x, J);
}

void gdn_sweep_family_state(struct gdn_sweep *s, const struct gdn_sweep_chunk *x, float *J)
{
    load_vectors(s, x);
    if (return_u(s, x, J))
        step_j(s, x, J);
    else
        by_tokens(s, x, s->S, J);
}
