/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of a chunk of one head in the family (gdn.h): each channel has a decay, and a row is an
 * update. The forms are those of docs/design/math.md. A gate that forgets a channel is a factor of
 * 0, unless a product that it meets is not finite: then such a token begins a piece of the chunk,
 * before which the rows of the state are zeroed.
 */
#include <string.h>

#include "cpu/backward/sweep.h"

enum { C = GDN_CHUNK };

/* Rows of K of n updates; those after them are set to x. */
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
    kr->transpose(s->f.kt, C, s->kq, s->ld, C, r->K);
    kr->transpose(s->f.qt, C, s->kq + C * s->ld, s->ld, C, r->K);
}

/* Rows of a and e, and all that follows from them: A and B, which are of pairs, keys and queries by
 * their decays. `cut`: what the first token forgets has been zeroed already. Returns true if
 * something is forgotten. */
static bool load_vectors(struct gdn_sweep *s, const struct gdn_sweep_chunk *x, bool cut)
{
    const struct gdn_rule *r = &s->w->rule;
    const struct gdn_kernels *kr = s->kr;
    const struct gdn_sweep_vectors *f = &s->f;
    const int n = x->n * gdn_rule_updates(r);
    bool forgets = false;
    load_keys(s, x);
    gdn_family_load_gates(r, kr, s->seq, x->head, x->t, x->n, f->a, f->b, s->ld, f->alpha,
                          f->written);
    memcpy(f->first, f->a, (size_t)r->K * sizeof *f->a);
    for (int i = 0; cut && i < r->K; i++)
        if (f->a[i] == 0) f->a[i] = 1;
    for (int i = 0; i < n; i++) {
        forgets |= f->alpha[i] == 0 && !(cut && i == 0);
        kr->norm_row(f->e + i * s->ld, f->b + i * s->ld, 1, s->kq + i * s->ld, NULL, false,
                     (size_t)r->K);
    }
    fill_rows(s, f->a, n, 1);
    fill_rows(s, f->e, n, 0);
    kr->transpose(f->at, C, f->a, s->ld, C, r->K);
    kr->transpose(f->et, C, f->e, s->ld, C, r->K);
    kr->channel_scale(f->scaled, f->scaled + C * s->ld, f->decays, f->a, f->e, s->kq + C * s->ld,
                      s->ld, r->K);
    kr->channel_walk(s->A, s->B, f->columns, f->at, f->et, f->qt, f->kt, r->K);
    kr->transpose(f->end, s->ld, f->columns, C, r->K, C);
    return forgets;
}

/* Returns true if n numbers of each of some rows are finite. */
static bool are_finite(const float *rows, ptrdiff_t ld, int n_rows, int n)
{
    float sum = 0;
    for (int i = 0; i < n_rows; i++, rows += ld)
        for (int c = 0; c < n; c++) sum += 0 * rows[c];
    return sum == 0;
}

/* ---- Pieces -------------------------------------------------------------------------------- */

/* Writes the first tokens of the pieces of a chunk, then n. Returns the number of pieces. */
static int cut_pieces(const struct gdn_sweep *s, const struct gdn_sweep_chunk *x, int *at)
{
    const struct gdn_rule *r = &s->w->rule;
    const struct gdn_sweep_vectors *f = &s->f;
    int n_pieces = 1;
    gdn_family_load_gates(r, s->kr, s->seq, x->head, x->t, x->n, f->a, f->b, s->ld, f->alpha,
                          f->written);
    at[0] = 0;
    for (int i = 1; i < x->n; i++)
        if (f->alpha[i * gdn_rule_updates(r)] == 0) at[n_pieces++] = i;
    at[n_pieces] = x->n;
    return n_pieces;
}

static struct gdn_sweep_chunk piece_of(const struct gdn_sweep *s, const struct gdn_sweep_chunk *x,
                                       const int *at)
{
    const int u = gdn_rule_updates(&s->w->rule), row = at[0] * u;
    struct gdn_sweep_chunk p = *x;
    p.t += at[0], p.n = at[1] - at[0];
    p.U += row * s->ld_v;
    if (p.dq) p.dq += at[0] * s->ld, p.dk += row * s->ld, p.dv += row * s->ld_v;
    return p;
}

/* Zeroes the rows of a state that the first token of a piece forgets. Call load_vectors() first. */
static void forget_rows(const struct gdn_sweep *s, float *S)
{
    for (int i = 0; i < s->w->rule.K; i++, S += s->ld_v)
        if (s->f.first[i] == 0) memset(S, 0, (size_t)s->ld_v * sizeof *S);
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

/* Computes U of a piece whose vectors are loaded, and the state after it. `to` may be `from`.
 * Returns false, and leaves `to`, if U may not hold what has been forgotten. */
static bool forward(struct gdn_sweep *s, const struct gdn_sweep_chunk *x, bool forgets,
                    const float *from, float *to)
{
    const struct gdn_rule *r = &s->w->rule;
    const struct gdn_kernels *kr = s->kr;
    const int n = x->n * gdn_rule_updates(r), hv = gdn_rule_source(r, x->head, r->Hv);
    const int hk = gdn_rule_source(r, x->head, r->Hk), tokens = s->chunk;
    const ptrdiff_t ld = s->ld_v;
    float *const U = n < C ? s->u : x->U;
    memset(s->v, 0, C * (size_t)ld * sizeof *s->v);
    gdn_family_load_written(r, kr, s->seq, x->head, x->t, x->n, 0, r->V, s->v, ld);
    for (int c = 0; forgets && c < r->V; c += kr->strip) write_u(s, from, U, c);
    if (forgets && !are_finite(U, ld, C, r->V)) return false;
    for (int c = 0; c < r->V; c += kr->strip) {
        const int strip = c / kr->strip;
        gdn_sweep_prefetch(s, &r->v, hv, r->V, x->t + tokens, strip, s->n_strips);
        if (r->family.g_rows)
            gdn_sweep_prefetch(s, &r->g, x->head, r->K, x->t + tokens, strip, s->n_strips);
        if (!s->loaded.shared)
            gdn_sweep_prefetch(s, &r->k, hk, r->K, x->t + tokens, strip, s->n_strips);
        if (!forgets) write_u(s, from, U, c);
        kr->channel_update(to + c, from + c, ld, s->f.decays, s->f.end, s->ld, U + c, ld, C, r->K);
    }
    if (n < C) memcpy(x->U, s->u, (size_t)(n * ld) * sizeof *x->U);
    return true;
}

/* The same in pieces, up to the last of n. */
static void forward_pieces(struct gdn_sweep *s, const struct gdn_sweep_chunk *x, const int *at,
                           int n, const float *from, float *to)
{
    if (to != from) memcpy(to, from, s->state * sizeof *to);
    for (int i = 0; i < n; i++) {
        const struct gdn_sweep_chunk p = piece_of(s, x, at + i);
        load_vectors(s, &p, true);
        forget_rows(s, to);
        forward(s, &p, false, to, to);
    }
}

void gdn_sweep_family_forward(struct gdn_sweep *s, const struct gdn_sweep_chunk *x,
                              const float *from, float *to)
{
    int at[C + 1];
    const bool forgets = load_vectors(s, x, false);
    if (forward(s, x, forgets, from, to)) return;
    forward_pieces(s, x, at, cut_pieces(s, x, at), from, to);
}

/* ---- Backward ------------------------------------------------------------------------------ */

/* Computes Z of a piece whose vectors are loaded from J after it; and -Z above dO in x, which is
 * what the rows of `scaled` get in J before it. Returns false if Z may not hold what has been
 * forgotten. */
static bool return_u(struct gdn_sweep *s, const struct gdn_sweep_chunk *x, bool forgets,
                     const float *J)
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
    return !forgets || are_finite(Z, ld, C, r->V);
}

/* J before the piece. */
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

/* Gradients of q, e, k and log a, from J after the piece and S before it. Returns false if they may
 * hold what has been forgotten. */
static bool return_vectors(struct gdn_sweep *s, bool forgets, const float *U, const float *S,
                           const float *J)
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
    if (forgets && !(are_finite(f->de, s->ld, 2 * C, r->K) && are_finite(f->dk, s->ld, C, r->K)))
        return false;
    for (int i = 0; i < r->K; i++)
        f->carried[i] =
            f->decays[i] == 0 ? 0 : f->decays[i] * kr->dot(S + i * ld, J + i * ld, (size_t)r->V);
    kr->channel_return(f->dq, f->de, f->dk, f->dg, f->carried, f->a, f->e, s->kq + C * s->ld, s->kq,
                       s->ld, s->dots, s->dots + C * C, r->K);
    return true;
}

/* ---- What is stored ------------------------------------------------------------------------ */

/* Stores or adds n numbers, step bytes apart. */
static void put(const struct gdn_sweep *s, char *to, int64_t step, float *x, int n)
{
    const int some = step == (int64_t)sizeof *x ? n : 1;
    for (int i = 0; i < n; i += some)
        gdn_backward_store(s->kr, to + i * step, GDN_F32, s->w->adds, x + i, some);
}

/* dg [K] of a token. */
static void store_dg(const struct gdn_sweep *s, const struct gdn_sweep_chunk *x, int t, float *dg)
{
    const struct gdn_backward *w = s->w;
    const struct gdn_rule *r = &w->rule;
    const int64_t n = gdn_rule_channels(r), size = 1 + n;
    double *sums = w->sums ? w->sums + size * (s->seq->row * r->H + x->head) : NULL, sum = 0;
    if (!r->g.data || !(w->dg.data || sums)) return;
    const char *g = gdn_row(&r->g, s->seq, x->t + t, x->head);
    if (n == 1) {
        for (int i = 0; i < r->K; i++) sum += (double)dg[i];
        dg[0] = (float)gdn_backward_gate(r, s->kr, g, x->head, 0, sum, sums);
    } else if (r->gate != GDN_GATE_LOG) {
        float given[GDN_MAX_HEAD];
        gdn_family_load_numbers(given, s->kr, r->g.dtype, g, r->family.g_channel, r->K);
        gdn_backward_gate_row(r, s->kr, given, x->head, dg, sums);
    }
    if (w->dg.data) put(s, gdn_row(&w->dg, s->seq, x->t + t, x->head), w->dg_channel, dg, (int)n);
}

/* The gradient of beta of update j of token t, from db: [K], or one number. */
static void store_dbeta(const struct gdn_sweep *s, const struct gdn_sweep_chunk *x, int t, int j,
                        float *db)
{
    const struct gdn_backward *w = s->w;
    const struct gdn_rule *r = &w->rule;
    const struct gdn_family *f = &r->family;
    const int n = f->beta_rows ? r->K : 1;
    const char *beta =
        (const char *)gdn_row(&r->beta, s->seq, x->t + t, x->head) + j * f->beta_update;
    char *to = (char *)gdn_row(&w->dbeta, s->seq, x->t + t, x->head) + j * w->dbeta_update;
    for (int i = 0; r->beta_kind != GDN_NO_SIGMOID && i < n; i++)
        db[i] = (float)gdn_backward_beta(r, s->kr, beta + i * f->beta_channel, (double)db[i]);
    put(s, to, w->dbeta_channel, db, n);
}

static void store_dwrite(const struct gdn_sweep *s, const struct gdn_sweep_chunk *x, int t, int j,
                         const float *w_row, float *dw)
{
    const struct gdn_backward *w = s->w;
    const int V = w->rule.V;
    char *to = (char *)gdn_row(&w->dwrite, s->seq, x->t + t, x->head) + j * w->dwrite_update;
    for (int i = 0; w->rule.beta_kind != GDN_NO_SIGMOID && i < V; i++)
        dw[i] *= w_row[i] * (1 - w_row[i]);
    gdn_backward_store(s->kr, to, GDN_F32, w->adds, dw, V);
}

/* Adds to dk and dv of an update, from the gradients of its e and of what it writes: Z. w: a row of
 * V, with one beta not read. */
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
        store_dbeta(s, x, t, j, de);
    }
    if (!s->w->dwrite.data) return;
    kr->norm_row(dw, Z, 1, v, NULL, false, (size_t)r->V);
    store_dwrite(s, x, t, j, w, dw);
}

static void store_all(struct gdn_sweep *s, const struct gdn_sweep_chunk *x, bool cut)
{
    const struct gdn_rule *r = &s->w->rule;
    const struct gdn_kernels *kr = s->kr;
    const struct gdn_sweep_vectors *f = &s->f;
    const int u = gdn_rule_updates(r);
    float *v = s->v, *w = s->r; /* free by now */
    gdn_family_load_v(r, kr, s->seq, x->head, x->t, x->n, 0, r->V, v, s->ld_v);
    if (!gdn_family_has_one_beta(r))
        gdn_family_load_w(r, kr, s->seq, x->head, x->t, x->n, 0, r->V, w, s->ld_v);
    for (int i = 0; cut && i < r->K; i++)
        if (f->first[i] == 0) f->dg[i] = 0;
    for (int t = 0; t < x->n; t++) {
        const ptrdiff_t row = t * u;
        kr->add_outer(x->dq + t * s->ld, 1, r->K, 1, &r->scale, f->dq + (row + u - 1) * s->ld);
        for (int j = 0; j < u; j++)
            store_update(s, x, t, j, v + (row + j) * s->ld_v, w + (row + j) * s->ld_v);
        store_dg(s, x, t, f->dg + row * s->ld);
    }
}

/* ---- Chunks -------------------------------------------------------------------------------- */

/* Gradients of a piece. J becomes that of the state before it. Returns false, and has changed
 * nothing, if it may not be done at once. */
static bool backward(struct gdn_sweep *s, const struct gdn_sweep_chunk *x, bool cut, const float *S,
                     float *J)
{
    const int n = x->n * gdn_rule_updates(&s->w->rule);
    const bool forgets = load_vectors(s, x, cut);
    const float *U = x->U;
    if (n < C) {
        memset(s->u, 0, C * (size_t)s->ld_v * sizeof *s->u);
        U = memcpy(s->u, U, (size_t)(n * s->ld_v) * sizeof *U);
    }
    if (!return_u(s, x, forgets, J) || !return_vectors(s, forgets, U, S, J)) return false;
    step_j(s, x, J);
    store_all(s, x, cut);
    return true;
}

void gdn_sweep_family_backward(struct gdn_sweep *s, const struct gdn_sweep_chunk *x, const float *S,
                               float *J)
{
    int at[C + 1];
    if (backward(s, x, false, S, J)) return;
    for (int i = cut_pieces(s, x, at) - 1; i >= 0; i--) {
        const struct gdn_sweep_chunk p = piece_of(s, x, at + i);
        forward_pieces(s, x, at, i, S, s->S); /* the state before this one */
        load_vectors(s, &p, true);
        forget_rows(s, s->S);
        backward(s, &p, true, s->S, J);
        forget_rows(s, J);
    }
}

void gdn_sweep_family_state(struct gdn_sweep *s, const struct gdn_sweep_chunk *x, float *J)
{
    int at[C + 1];
    if (return_u(s, x, load_vectors(s, x, false), J)) {
        step_j(s, x, J);
        return;
    }
    for (int i = cut_pieces(s, x, at) - 1; i >= 0; i--) {
        const struct gdn_sweep_chunk p = piece_of(s, x, at + i);
        load_vectors(s, &p, true);
        return_u(s, &p, false, J);
        step_j(s, &p, J);
        forget_rows(s, J);
    }
}
