/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The chunked form of the rule (docs/math.md): 16 tokens at a time, with S at their start,
 *
 *     P = [K; Q] S;   U by forward substitution;   O = Q S + lower(Q K^T) U;   S' = gamma S + K^T U
 *
 * An item keeps its part of the state in strips of columns, float32 and k-first, from the
 * first chunk to the last. The Gram matrices are made once per chunk and group of heads.
 */
#include <math.h>
#include <string.h>

#include "rule.h"
#include "strip.h"

enum { C = GDN_CHUNK };

/* Scratch of one thread; all 64-byte aligned. */
struct chunk {
    float    *kq;                       /* [32][ld]: 16 rows of k, 16 of q */
    float    *kt;                       /* [K][16] */
    float    *gram;                     /* [32][16] */
    float    *A, *B;                    /* [16][16] */
    float    *all_g, *all_beta;         /* [16] of the chunk */
    float    *g, *beta, *start, *end;   /* [16] of the tokens that run together */
    float    *p;                        /* [32][strip] */
    float    *v, *o;                    /* [16][ld_v] */
    float    *w;                        /* [16][strip] */
    float    *rows;                     /* [strip][ld]: state rows on their way */
    float    *S;                        /* strips of [K][strip] */
    ptrdiff_t ld, ld_v;
};

static size_t lay_out(struct chunk *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                      char *memory)
{
    const size_t strip = (size_t)kr->strip, K = (size_t)r->K;
    c->ld   = gdn_strip_ld(r->K);
    c->ld_v = (ptrdiff_t)(strip * (size_t)r->n_strips);
    const struct gdn_part parts[] = {
        { &c->kq, 2 * C * (size_t)c->ld },   { &c->kt, K * C },
        { &c->gram, 2 * C * C },             { &c->A, C * C },
        { &c->B, C * C },                    { &c->g, C },
        { &c->beta, C },                     { &c->all_g, C },
        { &c->all_beta, C },                 { &c->start, C },
        { &c->end, C },                      { &c->p, 2 * C * strip },
        { &c->v, C * (size_t)c->ld_v },      { &c->o, C * (size_t)c->ld_v },
        { &c->w, C * strip },                { &c->rows, strip * (size_t)c->ld },
        { &c->S, (size_t)r->part_strips * K * strip },
    };
    return gdn_lay_out(parts, sizeof parts / sizeof *parts, memory);
}

size_t gdn_chunk_scratch(const struct gdn_rule *r, const struct gdn_kernels *kr)
{
    struct chunk c;
    return lay_out(&c, r, kr, NULL);
}

/* Strip s of the item. */
static float *strip_at(const struct chunk *c, const struct gdn_rule *r,
                       const struct gdn_kernels *kr, const struct gdn_rule_item *item, int s)
{
    return c->S + (ptrdiff_t)(s - item->first) * r->K * kr->strip;
}

/* ---- The state: pool <-> strips ----------------------------------------------------------- */

static void load_strip(float *S, const struct chunk *c, const struct gdn_rule *r,
                       const struct gdn_kernels *kr, const void *from,
                       const struct gdn_pool_view *view, int col)
{
    const int n = r->V - col < kr->strip ? r->V - col : kr->strip;
    gdn_load_strip(S, kr, from, view, r->K, col, n, c->rows);
}

static void store_strip(const float *S, const struct chunk *c, const struct gdn_rule *r,
                        const struct gdn_kernels *kr, void *to, const struct gdn_pool_view *view,
                        int col)
{
    const int n = r->V - col < kr->strip ? r->V - col : kr->strip;
    gdn_store_strip(S, kr, to, view, r->K, col, n, c->rows);
}

/* ---- One chunk ------------------------------------------------------------------------------ */

/* Strips [first, last) of one head: columns [col, col + n) of it. */
struct piece {
    int head, first, last, col, n;
};

static struct piece piece_at(const struct gdn_rule *r, const struct gdn_kernels *kr,
                             const struct gdn_rule_item *item, int strip)
{
    struct piece p = { .head = gdn_rule_head(r, item->group, strip / r->n_strips) };
    const int    end = (strip / r->n_strips + 1) * r->n_strips;
    p.first = strip;
    p.last  = end < item->last ? end : item->last;
    p.col   = strip % r->n_strips * kr->strip;
    p.n     = (p.last - p.first) * kr->strip;
    if (p.n > r->V - p.col) p.n = r->V - p.col;
    return p;
}

/* k, q and their products: rows past n tokens are zero, so they change nothing. */
static void load_chunk(struct chunk *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                       const struct gdn_rule_item *item, int64_t t0, int n)
{
    if (n < C) memset(c->kq, 0, 2 * C * (size_t)c->ld * sizeof *c->kq);
    gdn_rule_load_kq(r, kr, item, t0, n, c->kq, c->ld, C);
    kr->transpose(c->kt, C, c->kq, c->ld, C, r->K);
    kr->strip_mul(c->gram, C, c->kq, c->ld, c->kt, 2 * C, r->K, C);
}

/* v of a piece, zero where beta is zero (G8). */
static void load_v(struct chunk *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                   const struct gdn_seq *seq, const struct piece *p, int64_t t0)
{
    const int    hv   = gdn_rule_source(r, p->head, r->Hv);
    const size_t elem = gdn_dtype_bytes(r->v.dtype);
    const size_t wide = (size_t)((p->last - p->first) * kr->strip);
    for (int t = 0; t < C; t++) {
        float *row = c->v + t * c->ld_v;
        if (c->beta[t] == 0) {
            memset(row, 0, wide * sizeof *row);
            continue;
        }
        const char *from = gdn_row(&r->v, seq, t0 + t, hv);
        kr->load_row[r->v.dtype](row, from + (size_t)p->col * elem, (size_t)p->n);
        memset(row + p->n, 0, (wide - (size_t)p->n) * sizeof *row);
    }
}

static void store_o(const struct chunk *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                    const struct gdn_seq *seq, const struct piece *p, int64_t t0, int a, int b)
{
    const size_t elem = gdn_dtype_bytes(r->out.dtype);
    for (int t = a; t < b; t++) {
        char *to = gdn_row(&r->out, seq, t0 + t, p->head);
        kr->store_row[r->out.dtype](to + (size_t)p->col * elem, c->o + t * c->ld_v, (size_t)p->n);
    }
}

/* Asks for the rows of v and out that the next chunk touches. */
static void prefetch_rows(const struct gdn_rule *r, const struct gdn_seq *seq,
                          const struct piece *p, int64_t t0)
{
    const int    hv    = gdn_rule_source(r, p->head, r->Hv);
    const size_t elem  = gdn_dtype_bytes(r->v.dtype);
    const size_t first = (size_t)p->col * elem, end = first + (size_t)p->n * elem;
    for (int64_t t = t0; t < t0 + C && t < seq->n_valid; t++) {
        const char *v = gdn_row(&r->v, seq, t, hv);
        const char *o = r->out.data ? gdn_row(&r->out, seq, t, p->head) : NULL;
        for (size_t i = first; i < end; i += 64) {
            __builtin_prefetch(v + i, 0, 2);
            if (o) __builtin_prefetch(o + i, 1, 2);
        }
    }
}

/* Tokens [a, b) of a chunk, none of which forgets: the others have g = 0 and beta = 0. */
static void run_tokens(struct chunk *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                       const struct gdn_rule_item *item, const struct piece *p, int64_t t0, int a,
                       int b)
{
    bool writes = false;
    for (int t = 0; t < C; t++) {
        const bool in = t >= a && t < b;
        c->g[t]       = in ? c->all_g[t] : 0;
        c->beta[t]    = in ? c->all_beta[t] : 0;
        writes |= c->beta[t] != 0;
    }
    kr->chunk_gates(c->A, c->B, c->start, c->end, c->g, c->beta, c->gram);
    const float decay = c->start[C - 1];
    load_v(c, r, kr, item->seq, p, t0);
    for (int s = p->first; s < p->last; s++) {
        float    *S  = strip_at(c, r, kr, item, s);
        ptrdiff_t at = (s - p->first) * kr->strip;
        kr->strip_mul(c->p, kr->strip, c->kq, c->ld, S, 2 * C, r->K, kr->strip);
        kr->chunk_solve(c->o + at, c->ld_v, c->w, c->p, c->v + at, c->ld_v, c->A, c->B, c->start,
                        c->end, c->beta);
        if (writes || decay != 1) /* else every bit of S stays (G9) */
            kr->chunk_update(S, decay, c->kq, c->ld, c->w, r->K);
    }
    if (r->out.data) store_o(c, r, kr, item->seq, p, t0, a, b);
}

/*
 * One chunk of one piece. At a gate that forgets the chunk is cut in two and the state zeroed
 * between them: nothing of the old state or the tokens before can reach those after, were it
 * NaN (G7).
 */
static void chunk_piece(struct chunk *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                        const struct gdn_rule_item *item, const struct piece *p, int64_t t0, int n)
{
    gdn_rule_load_gates(r, kr, item->seq, p->head, t0, n, false, c->all_g, c->all_beta);
    for (int a = 0, b; a < n; a = b) {
        if (gdn_forgets(c->all_g[a])) {
            memset(strip_at(c, r, kr, item, p->first), 0,
                   (size_t)((p->last - p->first) * r->K * kr->strip) * sizeof *c->S);
            c->all_g[a] = 0;
        }
        for (b = a + 1; b < n && !gdn_forgets(c->all_g[b]);) b++;
        run_tokens(c, r, kr, item, p, t0, a, b);
    }
    prefetch_rows(r, item->seq, p, t0 + C);
}

void gdn_chunk_item(const struct gdn_rule *r, const struct gdn_kernels *kr,
                    const struct gdn_rule_item *item, void *scratch)
{
    struct chunk                c;
    const struct gdn_seq       *seq = item->seq;
    const struct gdn_pool_view *view;
    struct piece                p;
    lay_out(&c, r, kr, scratch);

    for (int s = item->first; s < item->last; s++) {
        p                = piece_at(r, kr, item, s);
        const void *from = gdn_rule_from(r, seq, p.head, &view);
        load_strip(strip_at(&c, r, kr, item, s), &c, r, kr, from, view, p.col);
    }
    for (int64_t t0 = 0; t0 < seq->n_valid; t0 += C) {
        const int n = seq->n_valid - t0 < C ? (int)(seq->n_valid - t0) : C;
        load_chunk(&c, r, kr, item, t0, n);
        for (int s = item->first; s < item->last; s = p.last) {
            p = piece_at(r, kr, item, s);
            chunk_piece(&c, r, kr, item, &p, t0, n);
        }
    }
    for (int s = item->first; s < item->last; s++) {
        p        = piece_at(r, kr, item, s);
        void *to = gdn_rule_to(r, seq, seq->n_valid - 1, p.head, &view);
        if (to) store_strip(strip_at(&c, r, kr, item, s), &c, r, kr, to, view, p.col);
    }
}
