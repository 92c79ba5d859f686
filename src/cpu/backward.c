/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of the chunked form (docs/design/math.md). An item is a sequence and a family of heads.
 * A first walk leaves the states at the start of each segment; then, from the last segment to the
 * first, a second one leaves those of its chunks with R and U, and the chunks are swept backwards.
 * A gate that forgets begins a piece of a chunk, whose state is zero: nothing passes it.
 */
#include <math.h>
#include <string.h>

#include "calls/backward.h"
#include "state/strip.h"

enum { C = GDN_CHUNK, SEGMENT = 16 }; /* chunks of a segment */

/* Scratch of one thread; all 64-byte aligned. Rows of K are ld apart, of V ld_v. */
struct sweep {
    const struct gdn_backward *w;
    const struct gdn_kernels  *kr;
    const struct gdn_seq      *seq;
    int       family, n_strips;
    ptrdiff_t ld, ld_v;
    size_t    state; /* floats of a state, in strips */
    float *kq, *kt, *qt, *back, *gram, *ones, *unit;  /* rows and columns of k and q, grams */
    float *A, *B, *decay, *unused, *m1, *m2;          /* [16][16] */
    float *start, *end, *g, *beta, *minus;            /* [16] */
    float *p, *x, *dots, *v, *o;                      /* of tokens */
    float *dout_z, *u, *ut, *dot, *drt;               /* dO over Z; columns */
    float *by_q, *by_k, *by_j, *dk_r, *rows;          /* [K][16], then rows */
    float *S, *J, *flat, *strip;                      /* states; J of every head of the family */
    float *first, *states, *R, *U;                    /* of segments; of the chunks of one */
    float *dq, *dk, *dv;                              /* of a chunk, of all heads that are shared */
};

static size_t lay_out(struct sweep *s, const struct gdn_backward *w, const struct gdn_kernels *kr,
                      char *memory)
{
    const struct gdn_rule *r = &w->rule;
    const size_t strip = (size_t)kr->strip, K = (size_t)r->K, heads = (size_t)w->family_heads;
    s->w = w, s->kr = kr;
    s->n_strips = (r->V + kr->strip - 1) / kr->strip;
    s->ld       = gdn_strip_ld(r->K);
    s->ld_v     = (ptrdiff_t)strip * s->n_strips;
    s->state    = K * (size_t)s->ld_v;
    const size_t row_k = C * (size_t)s->ld, row_v = C * (size_t)s->ld_v, kc = C * (size_t)s->ld;
    const size_t segments = (size_t)(w->longest / (C * SEGMENT)) + 1;
    const struct gdn_part parts[] = {
        { &s->kq, 2 * row_k }, { &s->kt, kc }, { &s->qt, kc }, { &s->back, row_k },
        { &s->gram, 2 * C * C }, { &s->ones, 2 * C * C }, { &s->unit, C }, { &s->A, C * C },
        { &s->B, C * C }, { &s->decay, C * C }, { &s->unused, C * C }, { &s->m1, C * C },
        { &s->m2, C * C }, { &s->start, C }, { &s->end, C }, { &s->g, C }, { &s->beta, C },
        { &s->minus, C }, { &s->p, 2 * C * strip }, { &s->x, C * strip },
        { &s->dots, 2 * C * C }, { &s->v, row_v }, { &s->o, row_v }, { &s->dout_z, 2 * row_v },
        { &s->u, row_v }, { &s->ut, row_v }, { &s->dot, row_v }, { &s->drt, row_v },
        { &s->by_q, kc }, { &s->by_k, kc }, { &s->by_j, kc }, { &s->dk_r, row_k },
        { &s->rows, 3 * row_k }, { &s->S, s->state }, { &s->J, heads * s->state },
        { &s->flat, s->state }, { &s->strip, strip * (size_t)s->ld },
        { &s->first, segments * heads * s->state },
        { &s->states, SEGMENT * heads * s->state }, { &s->R, SEGMENT * heads * row_v },
        { &s->U, SEGMENT * heads * row_v }, { &s->dq, heads * row_k }, { &s->dk, heads * row_k },
        { &s->dv, heads * row_v },
    };
    return gdn_lay_out(parts, sizeof parts / sizeof *parts, memory);
}

size_t gdn_backward_scratch(const struct gdn_backward *w, const struct gdn_kernels *kr)
{
    struct sweep s;
    return gdn_align64(lay_out(&s, w, kr, NULL));
}

static int gcd(int a, int b) { return b ? gcd(b, a % b) : a; }

void gdn_backward_families(struct gdn_backward *w)
{
    const struct gdn_rule *r = &w->rule;
    w->n_families   = gcd(gcd(r->Hq, r->Hk), r->Hv);
    w->family_heads = r->H / w->n_families;
}

static int head_at(const struct sweep *s, int i)
{
    const struct gdn_backward *w = s->w;
    return w->rule.head_map == GDN_HEADS_GROUPED ? s->family * w->family_heads + i
                                                 : i * w->n_families + s->family;
}

/* Head `of` n heads of a tensor, by its number in the family; and back. */
static int local(const struct sweep *s, int of, int n)
{
    const int f = s->w->n_families;
    return s->w->rule.head_map == GDN_HEADS_GROUPED ? of - s->family * (n / f) : of / f;
}
static int global(const struct sweep *s, int i, int n)
{
    const int f = s->w->n_families;
    return s->w->rule.head_map == GDN_HEADS_GROUPED ? s->family * (n / f) + i : i * f + s->family;
}

static float *of_head(float *all, size_t size, int i) { return all + (size_t)i * size; }

/* ---- Forward ------------------------------------------------------------------------------- */

static void load_v(struct sweep *s, float *to, const struct gdn_rows *rows, int64_t t, int n,
                   int head)
{
    memset(to, 0, C * (size_t)s->ld_v * sizeof *to);
    for (int i = 0; i < n; i++)
        s->kr->load_row[rows->dtype](to + i * s->ld_v, gdn_row(rows, s->seq, t + i, head),
                                     (size_t)s->w->rule.V);
}

/* Keys, queries, grams, gates of n tokens of a head. */
static void load_piece(struct sweep *s, int head, int64_t t, int n)
{
    const struct gdn_rule     *r = &s->w->rule;
    const struct gdn_kernels  *kr = s->kr;
    const struct gdn_rule_item item = { .seq = s->seq, .group = head };
    memset(s->kq, 0, 2 * C * (size_t)s->ld * sizeof *s->kq);
    gdn_rule_load_kq(r, kr, &item, t, n, s->kq, s->ld, C);
    kr->transpose(s->kt, C, s->kq, s->ld, C, r->K);
    kr->transpose(s->qt, C, s->kq + C * s->ld, s->ld, C, r->K);
    kr->strip_mul(s->gram, C, s->kq, s->ld, s->kt, 2 * C, r->K, C);
    memset(s->g, 0, C * sizeof *s->g);
    memset(s->beta, 0, C * sizeof *s->beta);
    gdn_rule_load_gates(r, kr, s->seq, head, t, n, false, s->g, s->beta);
    if (gdn_forgets(s->g[0])) s->g[0] = 0;
    for (int i = 0; i < C; i++) s->unit[i] = 1;
    for (int i = 0; i < 2 * C * C; i++) s->ones[i] = 1;
    kr->chunk_gates(s->unused, s->decay, s->start, s->end, s->g, s->unit, s->ones);
    kr->chunk_gates(s->A, s->B, s->start, s->end, s->g, s->beta, s->gram);
}

/* R, U and the state after a piece, from row a of its chunk on. */
static void forward(struct sweep *s, float *S, float *R, float *U, int head, int64_t t, int n)
{
    const struct gdn_rule    *r = &s->w->rule;
    const struct gdn_kernels *kr = s->kr;
    const int                 width = kr->strip;
    load_piece(s, head, t, n);
    load_v(s, s->v, &r->v, t, n, gdn_rule_source(r, head, r->Hv));
    memset(s->p, 0, 2 * C * (size_t)width * sizeof *s->p);
    for (int j = 0; j < s->n_strips; j++) {
        float *strip = S + (ptrdiff_t)j * r->K * width;
        kr->strip_mul(s->p, width, s->kq, s->ld, strip, C, r->K, width);
        for (int i = 0; i < n; i++)
            for (int c = 0; c < width; c++) {
                float *v = s->v + i * s->ld_v + j * width + c;
                R[i * s->ld_v + j * width + c] = *v - s->start[i] * s->p[i * width + c];
                if (s->beta[i] == 0) *v = 0;
            }
        kr->chunk_solve(s->o, s->ld_v, s->x, s->p, s->v + j * width, s->ld_v, s->A, s->B, s->start,
                        s->unit, s->beta);
        for (int i = 0; i < C; i++)
            for (int c = 0; c < width; c++) {
                float *u = s->x + i * width + c;
                if (i < n) U[i * s->ld_v + j * width + c] = *u;
                *u *= s->end[i];
            }
        kr->chunk_update(strip, s->start[C - 1], s->kq, s->ld, s->x, r->K);
    }
}

/* Where the pieces of a chunk of n tokens begin, with n at the end; returns how many they are. */
static int cut_pieces(struct sweep *s, int head, int64_t t0, int n, int *at, bool *forgets)
{
    int n_pieces = 1;
    gdn_rule_load_gates(&s->w->rule, s->kr, s->seq, head, t0, n, false, s->g, s->beta);
    at[0]    = 0;
    *forgets = gdn_forgets(s->g[0]);
    for (int i = 1; i < n; i++)
        if (gdn_forgets(s->g[i])) at[n_pieces++] = i;
    at[n_pieces] = n;
    return n_pieces;
}

static int tokens_at(const struct sweep *s, int64_t chunk)
{
    const int64_t left = s->seq->n_valid - chunk * C;
    return left < C ? (int)left : C;
}

static void forward_chunk(struct sweep *s, float *S, float *R, float *U, int head, int64_t chunk)
{
    int       at[C + 1];
    bool      forgets;
    const int n_pieces = cut_pieces(s, head, chunk * C, tokens_at(s, chunk), at, &forgets);
    for (int i = 0; i < n_pieces; i++) {
        if (i || forgets) memset(S, 0, s->state * sizeof *S);
        forward(s, S, R + at[i] * s->ld_v, U + at[i] * s->ld_v, head, chunk * C + at[i],
                at[i + 1] - at[i]);
    }
}

static void load_state(struct sweep *s, float *S, struct gdn_place from)
{
    const struct gdn_rule *r = &s->w->rule;
    const int              width = s->kr->strip;
    for (int col = 0; col < r->V; col += width)
        gdn_load_strip(S + (ptrdiff_t)col * r->K, s->kr, from, r->K, col,
                       r->V - col < width ? r->V - col : width, s->strip);
}

/* ---- Backward ------------------------------------------------------------------------------ */

/* Strips as rows of V. */
static void flatten(const struct sweep *s, const float *S)
{
    const int width = s->kr->strip, K = s->w->rule.K;
    for (int j = 0; j < s->n_strips; j++)
        for (int x = 0; x < K; x++)
            memcpy(s->flat + x * s->ld_v + j * width, S + ((ptrdiff_t)j * K + x) * width,
                   (size_t)width * sizeof *S);
}

/* Z, below dO; with the tokens in reverse order it is a forward substitution like U. */
static void solve_z(struct sweep *s, const float *J)
{
    const struct gdn_kernels *kr = s->kr;
    const int                 width = kr->strip, K = s->w->rule.K;
    float                    *Z = s->dout_z + C * s->ld_v;
    for (int i = 0; i < C; i++) {
        memcpy(s->back + i * s->ld, s->kq + (C - 1 - i) * s->ld, (size_t)s->ld * sizeof *s->back);
        s->minus[i] = -s->end[C - 1 - i];
        for (int j = 0; j < C; j++) {
            s->m1[i * C + j] = s->B[j * C + C - 1 - i];
            s->m2[i * C + j] = s->A[(C - 1 - j) * C + C - 1 - i];
        }
    }
    memset(s->p, 0, 2 * C * (size_t)width * sizeof *s->p);
    memset(s->unused, 0, C * C * sizeof *s->unused);
    for (int j = 0; j < s->n_strips; j++) {
        for (int i = 0; i < C; i++)
            memcpy(s->x + i * width, s->dout_z + i * s->ld_v + j * width,
                   (size_t)width * sizeof *s->x);
        kr->strip_mul(s->v + j * width, s->ld_v, s->m1, C, s->x, C, C, width);
        kr->strip_mul(s->p, width, s->back, s->ld, J + (ptrdiff_t)j * K * width, C, K, width);
        kr->chunk_solve(s->o, s->ld_v, s->x, s->p, s->v + j * width, s->ld_v, s->m2, s->unused,
                        s->minus, s->unit, s->unit);
        for (int i = 0; i < C; i++)
            memcpy(Z + i * s->ld_v + j * width, s->x + (C - 1 - i) * width,
                   (size_t)width * sizeof *s->x);
    }
}

/* x[K][16] = scale_i x + kt m, the scales being `sign` times those of the tokens. */
static void add_mixed(struct sweep *s, float *x, float sign, const float *scale, const float *rows,
                      const float *m)
{
    const int K = s->w->rule.K;
    s->kr->strip_mul(s->rows, C, rows, C, m, K, C, C);
    for (int i = 0; i < K * C; i++) x[i] = sign * scale[i % C] * x[i] + s->rows[i];
}

/* J before the piece. */
static void step_j(struct sweep *s, float *J, const float *dR)
{
    const struct gdn_kernels *kr = s->kr;
    const int                 width = kr->strip, K = s->w->rule.K;
    for (int j = 0; j < s->n_strips; j++) {
        float *strip = J + (ptrdiff_t)j * K * width;
        for (int side = 0; side < 2; side++) {
            const float *from = side ? dR : s->dout_z;
            for (int i = 0; i < C; i++)
                for (int c = 0; c < width; c++)
                    s->x[i * width + c] = (side ? -s->start[i] : s->start[i]) *
                                          from[i * s->ld_v + j * width + c];
            kr->chunk_update(strip, side ? 1 : s->start[C - 1], side ? s->kq : s->kq + C * s->ld,
                             s->ld, s->x, K);
        }
    }
}

/* dO, Z and dR = beta Z of a piece from J after it; and J before it is step_j(). */
static void return_u(struct sweep *s, const float *J, int head, int64_t t, int n)
{
    const int    W = (int)s->ld_v;
    const float *Z = s->dout_z + C * W;
    float       *dR = s->o;
    load_piece(s, head, t, n);
    load_v(s, s->dout_z, &s->w->dout, t, n, head);
    solve_z(s, J);
    for (int i = 0; i < C; i++)
        for (int c = 0; c < W; c++) dR[i * W + c] = s->beta[i] * Z[i * W + c];
}

/* Returns the inner product of two states: short runs in float32, their sum in float64. */
static double inner(const struct sweep *s, const float *a, const float *b)
{
    const size_t run = 8 * (size_t)s->kr->strip;
    double       sum = 0;
    size_t       at  = 0;
    for (; at + run <= s->state; at += run) sum += (double)s->kr->dot(a + at, b + at, run);
    return sum + (double)s->kr->dot(a + at, b + at, s->state - at);
}

/* Gradients of a piece; J becomes that of the state before it. S NULL: it was zero. */
static void backward(struct sweep *s, const float *S, float *J, const float *R, const float *U,
                     int head, int64_t t, int n, float *dq, float *dk, float *dv, float *dg,
                     float *dbeta)
{
    const struct gdn_rule    *r = &s->w->rule;
    const struct gdn_kernels *kr = s->kr;
    const int                 K = r->K, W = (int)s->ld_v;
    float                    *Z = s->dout_z + C * s->ld_v, *dR = s->o, *ZU = s->dots + C * C;
    float                     dG[C];
    return_u(s, J, head, t, n);
    memset(s->u, 0, C * (size_t)W * sizeof *s->u);
    memcpy(s->u, U, (size_t)(n * W) * sizeof *U);
    kr->transpose(s->ut, C, s->u, W, C, W);
    kr->transpose(s->dot, C, s->dout_z, W, C, W);
    kr->transpose(s->drt, C, dR, W, C, W);

    kr->strip_mul(s->dots, C, s->dout_z, W, s->ut, 2 * C, W, C);
    for (int i = 0; i < C; i++) {
        dbeta[i] = i < n ? kr->dot(Z + i * W, R + i * W, (size_t)W) : 0;
        for (int j = 0; j < C; j++) {
            const float decay = s->decay[i * C + j];
            s->dots[i * C + j] = j <= i ? s->dots[i * C + j] * decay : 0;
            ZU[i * C + j]      = j < i ? -ZU[i * C + j] * decay : 0;
            dbeta[i] += ZU[i * C + j] * s->gram[i * C + j];
            ZU[i * C + j] *= s->beta[i];
        }
    }
    for (int i = 0; i < C * C; i++) {
        s->m1[i] = s->dots[i % C * C + i / C];
        s->m2[i] = ZU[i % C * C + i / C];
    }
    flatten(s, J);
    kr->strip_mul(s->by_j, C, s->flat, W, s->ut, K, W, C);
    double carried = 0;
    if (S) {
        carried = (double)s->start[C - 1] * inner(s, S, J);
        flatten(s, S);
        kr->strip_mul(s->by_q, C, s->flat, W, s->dot, K, W, C);
        kr->strip_mul(s->by_k, C, s->flat, W, s->drt, K, W, C);
    } else {
        memset(s->by_q, 0, (size_t)(K * C) * sizeof *s->by_q);
        memset(s->by_k, 0, (size_t)(K * C) * sizeof *s->by_k);
    }
    step_j(s, J, dR);
    for (int i = 0; i < K * C; i++)
        carried += (double)(s->kt[i] * s->end[i % C] * s->by_j[i]);
    add_mixed(s, s->by_q, 1, s->start, s->kt, s->m1);
    add_mixed(s, s->by_k, -1, s->start, s->kt, s->m2);
    add_mixed(s, s->by_j, 1, s->end, s->qt, s->dots);
    add_mixed(s, s->by_j, 1, s->unit, s->kt, ZU);

    float *rows_q = s->rows, *rows_k = rows_q + C * s->ld, *rows_w = rows_k + C * s->ld;
    kr->transpose(rows_q, s->ld, s->by_q, C, K, C);
    kr->transpose(rows_k, s->ld, s->by_k, C, K, C);
    kr->transpose(rows_w, s->ld, s->by_j, C, K, C);
    for (int i = 0; i < n; i++) {
        const float *k = s->kq + i * s->ld, *q = s->kq + (C + i) * s->ld;
        const ptrdiff_t at = i * s->ld;
        dG[i] = kr->dot(q, rows_q + at, (size_t)K) + kr->dot(k, rows_k + at, (size_t)K) -
                kr->dot(k, rows_w + at, (size_t)K);
        for (int x = 0; x < K; x++) {
            dq[at + x] += r->scale * rows_q[at + x];
            dk[at + x] += rows_k[at + x] + rows_w[at + x];
        }
        for (int c = 0; c < W; c++) dv[i * W + c] += dR[i * W + c];
    }
    for (int i = n - 1; i >= 0; i--) {
        carried += (double)dG[i];
        dg[i] = (float)carried;
    }
    if (!S) dg[0] = 0; /* of the gate that forgot */
}

/* ---- Sequences ----------------------------------------------------------------------------- */

static void store_rows(struct sweep *s, const struct gdn_rows *rows, const struct gdn_rows *norm,
                       float *all, ptrdiff_t ld, int heads, int D, int64_t t, int n)
{
    for (int i = 0; rows->data && i < heads / s->w->n_families; i++)
        for (int j = 0; j < n; j++) {
            const int head = global(s, i, heads);
            float    *x = all + (i * C + j) * ld;
            if (norm)
                gdn_backward_norm(&s->w->rule, s->kr, gdn_row(norm, s->seq, t + j, head),
                                  norm->dtype, x, s->rows);
            gdn_backward_store(s->kr, gdn_row(rows, s->seq, t + j, head), rows->dtype, s->w->adds,
                               x, D);
        }
}

static void store_gates(struct sweep *s, int head, int64_t t, int n, float *dg, float *dbeta)
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

static void sweep_chunk(struct sweep *s, int64_t chunk)
{
    const struct gdn_backward *w = s->w;
    const struct gdn_rule     *r = &w->rule;
    const int64_t              t0 = chunk * C, in = chunk % SEGMENT;
    const int    n = tokens_at(s, chunk), heads = w->family_heads;
    const size_t row_k = C * (size_t)s->ld, row_v = C * (size_t)s->ld_v;
    memset(s->dq, 0, (size_t)heads * row_k * sizeof *s->dq);
    memset(s->dk, 0, (size_t)heads * row_k * sizeof *s->dk);
    memset(s->dv, 0, (size_t)heads * row_v * sizeof *s->dv);
    for (int h = 0; h < heads; h++) {
        const int    head = head_at(s, h), place = (int)in * heads + h;
        const float *S = of_head(s->states, s->state, place);
        float       *J = of_head(s->J, s->state, h), dg[C], dbeta[C];
        float *dq = of_head(s->dq, row_k, local(s, gdn_rule_source(r, head, r->Hq), r->Hq));
        float *dk = of_head(s->dk, row_k, local(s, gdn_rule_source(r, head, r->Hk), r->Hk));
        float *dv = of_head(s->dv, row_v, local(s, gdn_rule_source(r, head, r->Hv), r->Hv));
        int    at[C + 1];
        bool   forgets;
        for (int i = cut_pieces(s, head, t0, n, at, &forgets) - 1; i >= 0; i--) {
            const int  a = at[i], m = at[i + 1] - a;
            const bool zero = i || forgets;
            backward(s, zero ? NULL : S, J, of_head(s->R, row_v, place) + a * s->ld_v,
                     of_head(s->U, row_v, place) + a * s->ld_v, head, t0 + a, m, dq + a * s->ld,
                     dk + a * s->ld, dv + a * s->ld_v, dg, dbeta);
            if (zero) memset(J, 0, s->state * sizeof *J);
            store_gates(s, head, t0 + a, m, dg, dbeta);
        }
    }
    store_rows(s, &w->dq, &r->q, s->dq, s->ld, r->Hq, r->K, t0, n);
    store_rows(s, &w->dk, &r->k, s->dk, s->ld, r->Hk, r->K, t0, n);
    store_rows(s, &w->dv, NULL, s->dv, s->ld_v, r->Hv, r->V, t0, n);
}

/* Chunks [from, end) of all heads: their states, R and U; or, `first`, those of segments. */
static void walk(struct sweep *s, int h, int64_t from, int64_t end, bool first)
{
    const int    heads = s->w->family_heads;
    const size_t row_v = C * (size_t)s->ld_v, bytes = s->state * sizeof *s->S;
    for (int64_t c = from; c < end; c++) {
        const int64_t place = (first ? 0 : c % SEGMENT) * heads + h;
        if (first && c % SEGMENT == 0)
            memcpy(of_head(s->first, s->state, (int)(c / SEGMENT) * heads + h), s->S, bytes);
        if (!first) memcpy(of_head(s->states, s->state, (int)place), s->S, bytes);
        forward_chunk(s, s->S, of_head(s->R, row_v, (int)place), of_head(s->U, row_v, (int)place),
                      head_at(s, h), c);
    }
}

static void store_state(struct sweep *s, int h)
{
    const struct gdn_backward *w = s->w;
    const struct gdn_rule     *r = &w->rule;
    const struct gdn_place     to = gdn_place_of(&w->dstate, s->seq->row, head_at(s, h), 0);
    const int                  width = s->kr->strip;
    float                     *J = of_head(s->J, s->state, h);
    if (w->adds) load_state(s, s->S, to);
    for (size_t i = 0; w->adds && i < s->state; i++) J[i] += s->S[i];
    for (int col = 0; col < r->V; col += width)
        gdn_store_strip(J + (ptrdiff_t)col * r->K, s->kr, to, r->K, col,
                        r->V - col < width ? r->V - col : width, s->strip);
}

/* The gradients of the final states. */
static void load_ends(struct sweep *s)
{
    const struct gdn_backward *w = s->w;
    for (int h = 0; h < w->family_heads; h++) {
        struct gdn_place end = { .view = &w->dstate_out };
        if (w->dstate_out.data) end = gdn_place_of(&w->dstate_out, s->seq->row, head_at(s, h), 0);
        load_state(s, of_head(s->J, s->state, h), end);
    }
}

/* Is dstate all that is wanted? No state has a part in it. */
static bool wants_state_alone(const struct gdn_backward *w)
{
    return !w->dq.data && !w->dk.data && !w->dv.data && !w->dg.data && !w->dbeta.data && !w->sums;
}

/* J before the chunks of a head. */
static void sweep_state(struct sweep *s, int h, int64_t n_chunks)
{
    const int head = head_at(s, h);
    float    *J = of_head(s->J, s->state, h);
    for (int64_t c = n_chunks - 1; c >= 0; c--) {
        int  at[C + 1];
        bool forgets;
        for (int i = cut_pieces(s, head, c * C, tokens_at(s, c), at, &forgets) - 1; i >= 0; i--) {
            return_u(s, J, head, c * C + at[i], at[i + 1] - at[i]);
            step_j(s, J, s->o);
            if (i || forgets) memset(J, 0, s->state * sizeof *J);
        }
    }
}

static void sweep_all(struct sweep *s, int64_t n_chunks)
{
    const struct gdn_backward *w = s->w;
    const int64_t              last = n_chunks ? (n_chunks - 1) / SEGMENT * SEGMENT : 0;
    for (int h = 0; h < w->family_heads; h++) {
        const int64_t place = last / SEGMENT * w->family_heads + h;
        load_state(s, s->S, gdn_rule_from(&w->rule, s->seq, head_at(s, h)));
        walk(s, h, 0, last, true);
        memcpy(of_head(s->first, s->state, (int)place), s->S, s->state * sizeof *s->S);
    }
    for (int64_t first = last; n_chunks && first >= 0; first -= SEGMENT) {
        const int64_t end = first + SEGMENT < n_chunks ? first + SEGMENT : n_chunks;
        for (int h = 0; h < w->family_heads; h++) {
            const int64_t place = first / SEGMENT * w->family_heads + h;
            memcpy(s->S, of_head(s->first, s->state, (int)place), s->state * sizeof *s->S);
            walk(s, h, first, end, false);
        }
        for (int64_t c = end - 1; c >= first; c--) sweep_chunk(s, c);
    }
}

static void run_item(struct sweep *s)
{
    const struct gdn_backward *w = s->w;
    const int64_t              n_chunks = (s->seq->n_valid + C - 1) / C;
    load_ends(s);
    if (!wants_state_alone(w)) sweep_all(s, n_chunks);
    for (int h = 0; wants_state_alone(w) && h < w->family_heads; h++) sweep_state(s, h, n_chunks);
    for (int h = 0; w->dstate.data && h < w->family_heads; h++) store_state(s, h);
}

struct run_arg {
    const struct gdn_backward *w;
    const struct gdn_kernels  *kr;
    char                      *scratch;
    size_t                     bytes;
};

static void run_any(void *arg, int64_t i, int thread)
{
    const struct run_arg *a = arg;
    struct sweep          s;
    lay_out(&s, a->w, a->kr, a->scratch + (size_t)thread * a->bytes);
    s.seq    = &a->w->rule.seqs[i / a->w->n_families];
    s.family = (int)(i % a->w->n_families);
    run_item(&s);
}

void gdn_backward_run(gdn_ctx *ctx, const struct gdn_backward *w, void *scratch)
{
    struct run_arg arg = { w, ctx->kr, scratch, gdn_backward_scratch(w, ctx->kr) };
    gdn_parallel_for(ctx->pool, w->rule.n_seqs * w->n_families, run_any, &arg);
}
