/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The chunked form of the rule (docs/design/math.md): 16 tokens at a time, with S at their start,
 *
 *     P = [K; Q] S;   U by forward substitution;   O = Q S + lower(Q K^T) U;   S' = gamma S + K^T U
 *
 * An item keeps its part of the state in strips of columns, float32 and k-first, from the
 * first chunk to the last. The Gram matrices are made once per chunk and group of heads.
 *
 * A checkpoint inside a chunk takes P as it is and ends the chunk early, on a copy of the strip.
 * That is what a call computes whose tokens end there.
 *
 * In the family (gdn.h) each head has a decay per channel. So K and Q are scaled for each head by
 * the decays from the start, and products of pairs come from a walk (channel_walk()). A row is an
 * update. If b and w are one number, it stays apart from keys and values, as for one decay. A gate
 * that forgets a channel is a factor of 0 there, unless U is not finite then: the
 * rows run one after the other.
 */
#include <math.h>
#include <string.h>

#include "cpu/loops/bf16.h"
#include "cpu/rule.h"

enum { C = GDN_CHUNK };

/* Scratch of one thread; all 64-byte aligned. */
struct chunk {
    float *kq;               /* [32][ld]: 16 rows of k, 16 of q */
    float *kt;               /* [K][16] */
    float *gram;             /* [32][16] */
    float *A, *B;            /* [16][16] */
    float *all_g, *all_beta; /* [16] of the chunk */
    float *g, *beta, *start; /* [16] of the tokens that run together */
    float *p;                /* [32][strip] */
    float *v, *o;            /* [16][ld_v] */
    float *w;                /* [16][strip] */
    float *rows;             /* [strip][ld]: state rows on their way */
    float *S;                /* strips of [K][strip] */
    float *a, *e, *decays;   /* of the family: [16][ld] twice, [K] */
    float *scaled;           /* [32][ld]; keys and decays for a checkpoint */
    float *alpha, *dots;     /* [16] of the chunk */
    float *rows16, *pairs;   /* kq and S rounded (cpu/loops/bf16.h), with r->products */
    float *copy, *copy_k;    /* a strip up to a checkpoint; k of some tokens */
    ptrdiff_t ld, ld_v;
    int64_t first, last; /* checkpoints of the chunk */
};

/* Returns the floats of one strip. */
static size_t pair_floats(const struct gdn_rule *r) { return ((size_t)r->K + 31) / 32 * 32 * 16; }

static size_t lay_out(struct chunk *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                      char *memory)
{
    const size_t strip = (size_t)kr->strip, K = (size_t)r->K;
    c->ld = gdn_strip_ld(r->K);
    c->ld_v = (ptrdiff_t)(strip * (size_t)r->n_strips);
    const size_t row = r->family.is ? C * (size_t)c->ld : 0, channels = r->family.is ? K : 0;
    const struct gdn_part parts[] = {
        { &c->kq, 2 * C * (size_t)c->ld },
        { &c->kt, K * C },
        { &c->gram, 2 * C * C },
        { &c->A, C * C },
        { &c->B, C * C },
        { &c->g, C },
        { &c->beta, C },
        { &c->all_g, C },
        { &c->all_beta, C },
        { &c->start, C },
        { &c->p, 2 * C * strip },
        { &c->v, C * (size_t)c->ld_v },
        { &c->o, C * (size_t)c->ld_v },
        { &c->w, C * strip },
        { &c->rows, strip * (size_t)c->ld },
        { &c->copy, K * strip },
        { &c->copy_k, C * (size_t)c->ld },
        { &c->S, (size_t)r->part_strips * K * strip },
        { &c->a, row },
        { &c->e, row },
        { &c->scaled, 3 * row + channels },
        { &c->decays, channels },
        { &c->alpha, channels ? C : 0 },
        { &c->dots, channels ? C : 0 },
        { &c->rows16, r->products ? C * GDN_MAX_HEAD : 0 },
        { &c->pairs, r->products ? (size_t)r->part_strips * pair_floats(r) : 0 },
    };
    return gdn_lay_out(parts, sizeof parts / sizeof *parts, memory);
}

size_t gdn_chunk_scratch(const struct gdn_rule *r, const struct gdn_kernels *kr)
{
    struct chunk c;
    return lay_out(&c, r, kr, NULL);
}

/* Returns the tokens of a chunk: a power of two, so that calls may be cut at multiples of 16. */
static int tokens_of(const struct gdn_rule *r)
{
    const int updates = gdn_rule_updates(r);
    int n = C;
    while (n * updates > C) n /= 2;
    return n;
}

/* Returns strip s of the item. */
static float *strip_at(const struct chunk *c, const struct gdn_rule *r,
                       const struct gdn_kernels *kr, const struct gdn_rule_item *item, int s)
{
    return c->S + (ptrdiff_t)(s - item->first) * r->K * kr->strip;
}

static uint16_t *pairs_at(const struct chunk *c, const struct gdn_rule *r,
                          const struct gdn_rule_item *item, int s)
{
    if (!r->products) return NULL;
    return (uint16_t *)(void *)(c->pairs + (size_t)(s - item->first) * pair_floats(r));
}

/* ---- The state: pool <-> strips ----------------------------------------------------------- */

static void load_strip(float *S, const struct chunk *c, const struct gdn_rule *r,
                       const struct gdn_kernels *kr, const struct gdn_seq *seq, int head, int col)
{
    gdn_load_strip(S, kr, gdn_rule_from(r, seq, head), r->K, col, gdn_strip_columns(r, kr, col),
                   c->rows);
}

/* Stores the state after n_tokens. */
static void store_strip(const float *S, const struct chunk *c, const struct gdn_rule *r,
                        const struct gdn_kernels *kr, const struct gdn_seq *seq, int head, int col,
                        struct gdn_place to, int64_t n_tokens)
{
    gdn_rule_store_strip(r, kr, seq, head, col, S, to, n_tokens, c->rows);
}

/* ---- One chunk ------------------------------------------------------------------------------ */

/* Loads k, q and their products: rows past n tokens are zero, so they change nothing. */
static void load_chunk(struct chunk *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                       const struct gdn_rule_item *item, int64_t t0, int n)
{
    if (n * gdn_rule_updates(r) < C) memset(c->kq, 0, 2 * C * (size_t)c->ld * sizeof *c->kq);
    gdn_rule_load_kq(r, kr, item, t0, n, c->kq, c->ld, C);
    if (r->family.is) return;
    kr->transpose(c->kt, C, c->kq, c->ld, C, r->K);
    kr->strip_mul(c->gram, C, c->kq, c->ld, c->kt, C, 2 * C, r->K, C, NULL);
    if (r->products) r->products->round_rows((uint16_t *)(void *)c->rows16, c->kq, c->ld, r->K);
}

/* load_v() for the family. Rows past n tokens are zero. */
static void load_written(struct chunk *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                         const struct gdn_seq *seq, const struct gdn_rule_piece *p, int64_t t0,
                         int n)
{
    const int wide = (p->last - p->first) * kr->strip, rows = n * gdn_rule_updates(r);
    const bool one = gdn_family_has_one_beta(r);
    (one ? gdn_family_load_v : gdn_family_load_written)(r, kr, seq, p->head, t0, n, p->col, p->n,
                                                        c->v, c->ld_v);
    for (int i = 0; i < C; i++) {
        const bool writes = i < rows && !(one && c->all_beta[i] == 0);
        const int from = writes ? p->n : 0;
        memset(c->v + i * c->ld_v + from, 0, (size_t)(wide - from) * sizeof *c->v);
    }
}

/* Loads v of a piece, zero where beta is zero (G8). */
static void load_v(struct chunk *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                   const struct gdn_seq *seq, const struct gdn_rule_piece *p, int64_t t0)
{
    const int hv = gdn_rule_source(r, p->head, r->Hv);
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
                    const struct gdn_seq *seq, const struct gdn_rule_piece *p, int64_t t0, int a,
                    int b)
{
    const size_t elem = gdn_dtype_bytes(r->out.dtype);
    const int u = gdn_rule_updates(r);
    for (int t = a; t < b; t++) {
        char *to = gdn_row(&r->out, seq, t0 + t, p->head);
        const float *from = c->o + (t * u + u - 1) * c->ld_v;
        kr->store_row[r->out.dtype](to + (size_t)p->col * elem, from, (size_t)p->n);
    }
}

/* Asks for rows that the chunk from t0 on will touch, a few with each strip. Those of v and out
 * come with the strips of their piece, those of k and q with the strips of the item. */
static void prefetch_rows(const struct gdn_rule *r, const struct gdn_rule_item *item,
                          const struct gdn_rule_piece *p, int s, int64_t t0)
{
    const struct gdn_seq *seq = item->seq;
    const int hq = gdn_rule_source(r, p->head, r->Hq), hk = gdn_rule_source(r, p->head, r->Hk);
    const int hv = gdn_rule_source(r, p->head, r->Hv), n = p->last - p->first, i = s - p->first;
    const int all = item->last - item->first, at = s - item->first;
    const int most = tokens_of(r);
    for (int64_t t = t0 + most * i / n; t < t0 + most * (i + 1) / n; t++) {
        gdn_rule_prefetch(&r->v, seq, t, hv, p->col, p->n);
        gdn_rule_prefetch(&r->out, seq, t, p->head, p->col, p->n);
        if (r->family.g_rows) gdn_rule_prefetch(&r->g, seq, t, p->head, 0, r->K);
    }
    for (int64_t t = t0 + most * at / all; t < t0 + most * (at + 1) / all; t++) {
        gdn_rule_prefetch(&r->k, seq, t, hk, 0, r->K);
        gdn_rule_prefetch(&r->q, seq, t, hq, 0, r->K);
    }
}

/* Tokens [a, m) of a chunk, none of which forgets; those before a have been forgotten. */
struct range {
    _Alignas(64) float end[C]; /* from each token to the last */
    float decay;               /* of all of them */
    int a, m;
    bool writes, stays, forgets; /* the last two, in the family */
    int64_t first, last;         /* checkpoints after the last token */
};

void gdn_forget_tokens(float *A, float *B, int a)
{
    const size_t bytes = (size_t)a * sizeof *A;
    memset(A, 0, C * bytes);
    for (int i = a; i < C && a > 0; i++) {
        memset(A + i * C, 0, bytes);
        memset(B + i * C, 0, bytes);
    }
}

bool gdn_cut_gates(float *g, float *beta, const float *all_g, const float *all_beta, int a, int m)
{
    bool writes = false;
    for (int t = 0; t < C; t++) {
        const bool in = t >= a && t < m;
        g[t] = in ? all_g[t] : 0;
        beta[t] = in ? all_beta[t] : 0;
        writes |= beta[t] != 0;
    }
    return writes;
}

/* Tokens outside of the range have g = 0 and beta = 0. A, B, start and beta are those of the
 * last call; up to token m they are the same for every m. */
static void start_range(struct chunk *c, const struct gdn_kernels *kr, struct range *x)
{
    x->writes = gdn_cut_gates(c->g, c->beta, c->all_g, c->all_beta, x->a, x->m);
    kr->chunk_gates(c->A, c->B, c->start, x->end, c->g, c->beta, c->gram);
    gdn_forget_tokens(c->A, c->B, x->a);
    x->decay = c->start[C - 1];
}

/* Finds what the decays of each of some rows do: alpha, as struct gdn_recur has it. If all write,
 * only zeros count, and a product that is finite and not 0 has no such factor. */
static void find_kinds(struct chunk *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                       int rows)
{
    static const float zeros[GDN_MAX_HEAD];
    const size_t K = (size_t)r->K;
    bool known = kr->decay_kind(c->decays, K) != 0 && kr->dot(c->decays, zeros, K) == 0;
    for (int i = 0; i < rows; i++) known &= c->all_beta[i] != 0;
    for (int i = 0; i < rows; i++) c->alpha[i] = known ? 0.5f : kr->decay_kind(c->a + i * c->ld, K);
}

/* Loads a and e = b k of a head. Rows past n tokens change nothing. With
 * one beta e is k. */
static void load_vectors(struct chunk *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                         const struct gdn_seq *seq, int head, int64_t t0, int n)
{
    const int rows = n * gdn_rule_updates(r);
    const bool one = gdn_family_has_one_beta(r);
    if (one) {
        gdn_family_load_decays(r, kr, seq, head, t0, n, c->a, c->ld);
        gdn_family_load_betas(r, kr, seq, head, t0, n, c->all_beta);
    } else {
        gdn_family_load_gates(r, kr, seq, head, t0, n, c->a, c->e, c->ld, c->alpha, c->all_beta);
    }
    for (int i = 0; i < C; i++) {
        float *a = c->a + i * c->ld, *e = c->e + i * c->ld;
        const float *k = c->kq + i * c->ld;
        if (i < rows && !one) kr->norm_row(e, e, 1, k, NULL, false, (size_t)r->K);
        for (int x = 0; i >= rows && x < r->K; x++) a[x] = 1, e[x] = 0;
        if (i >= rows) c->alpha[i] = 1, c->all_beta[i] = 0;
    }
    kr->channel_scale(c->scaled, c->scaled + C * c->ld, c->decays, c->a, one ? c->kq : c->e,
                      c->kq + C * c->ld, c->ld, r->K);
    if (one) find_kinds(c, r, kr, rows);
}

/* start_range() for the family, whose range begins with the chunk: finds out whether its tokens
 * write, forget, or leave the state as it is. */
static void start_vectors(struct chunk *c, const struct gdn_rule *r, struct range *x)
{
    x->writes = x->forgets = false;
    x->stays = true;
    for (int t = 0; t < x->m * gdn_rule_updates(r); t++) {
        x->writes |= c->all_beta[t] != 0;
        x->forgets |= c->alpha[t] == 0;
        x->stays &= c->alpha[t] == 1;
    }
    for (int t = 0; t < C; t++) {
        c->start[t] = x->end[t] = 1;
        c->beta[t] = gdn_family_has_one_beta(r) ? c->all_beta[t] : 1;
    }
}

/* Computes A, B and what is left of keys at the end, as rows of keys; both of the whole chunk. */
static void walk_pairs(struct chunk *c, const struct gdn_rule *r, const struct gdn_kernels *kr)
{
    const bool one = gdn_family_has_one_beta(r);
    kr->channel_walk(c->A, c->B, c->copy_k, c->a, one ? c->kq : c->e, c->kq + C * c->ld, c->kq,
                     c->ld, r->K);
    for (int i = 0; one && i < C; i++)
        kr->norm_row(c->A + i * C, c->A + i * C, c->all_beta[i], NULL, NULL, false, C);
}

/* Ends keys and decays after the first `rows` of the chunk, for a checkpoint. */
static void cut_keys(struct chunk *c, const struct gdn_rule *r, int rows, float *keys,
                     float *decays)
{
    memset(keys, 0, C * (size_t)c->ld * sizeof *keys);
    for (int x = 0; x < r->K; x++) decays[x] = 1;
    for (int i = 0; i < rows; i++)
        for (int x = 0; x < r->K; x++) {
            const float a = c->a[i * c->ld + x];
            for (int j = 0; j < i; j++) keys[j * c->ld + x] *= a;
            keys[i * c->ld + x] = c->kq[i * c->ld + x];
            decays[x] *= a;
        }
}

/* Computes P = [K; Q] S, of the tokens from a on. */
static void multiply(struct chunk *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                     const float *S, const uint16_t *pairs, int a)
{
    if (pairs)
        r->products->strip_mul(c->p, kr->strip, (const uint16_t *)(const void *)c->rows16, pairs,
                               r->K);
    else
        kr->strip_mul(c->p, kr->strip, r->family.is ? c->scaled : c->kq, c->ld, S, kr->strip, 2 * C,
                      r->K, kr->strip, NULL);
    memset(c->p, 0, (size_t)(a * kr->strip) * sizeof *c->p);
}

/* Returns k of the range alone: in the update others would meet zeros, and may not be finite. */
static const float *keys_of(struct chunk *c, const struct range *x)
{
    const size_t bytes = (size_t)c->ld * sizeof *c->kq;
    memset(c->copy_k, 0, C * bytes);
    memcpy(c->copy_k + x->a * c->ld, c->kq + x->a * c->ld, (size_t)(x->m - x->a) * bytes);
    return c->copy_k;
}

static bool are_finite(const float *x, int n)
{
    float sum = 0;
    for (int i = 0; i < n; i++) sum += 0 * x[i];
    return sum == 0;
}

/* Runs the tokens of a range on S one by one. A gate that forgets zeroes S. */
static void run_rows(struct chunk *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                     const struct range *x, float *S, ptrdiff_t at)
{
    float ak[GDN_MAX_HEAD], aq[GDN_MAX_HEAD], v[GDN_MAX_STRIP];
    const bool one = gdn_family_has_one_beta(r);
    for (int i = 0; i < x->m * gdn_rule_updates(r); i++) {
        const float *a = c->a + i * c->ld, *k = c->kq + i * c->ld, *q = k + C * c->ld;
        const float *e = one ? k : c->e + i * c->ld, by = one ? c->all_beta[i] : 1;
        for (int j = 0; j < r->K; j++)
            ak[j] = by == 0 ? 0 : a[j] * (by * e[j]), aq[j] = a[j] * q[j];
        for (int j = 0; j < kr->strip; j++) v[j] = by * c->v[i * c->ld_v + at + j];
        const float kq = kr->dot(k, q, (size_t)r->K), writes = c->all_beta[i] != 0;
        const struct gdn_recur step = {
            .q = q,
            .k = k,
            .a = a,
            .ak = ak,
            .aq = aq,
            .v = v,
            .o = c->o + i * c->ld_v + at,
            .alpha = c->alpha + i,
            .beta = &writes,
            .kq = &kq,
            .T = 1,
            .K = r->K,
            .n = kr->strip,
        };
        kr->recur_strip[GDN_F32](S, &step);
    }
}

/* finish_range() for the family. k and decays: after the range. */
static void finish_vectors(struct chunk *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                           const struct range *x, float *S, const float *k, const float *decays,
                           ptrdiff_t at)
{
    const int rows = x->m * gdn_rule_updates(r);
    kr->chunk_solve(c->o + at, c->ld_v, c->w, c->p, c->v + at, c->ld_v, c->A, c->B, c->start,
                    x->end, c->beta);
    memset(c->w + rows * kr->strip, 0, (size_t)((C - rows) * kr->strip) * sizeof *c->w);
    if (x->forgets && !are_finite(c->w, rows * kr->strip))
        run_rows(c, r, kr, x, S, at);
    else if (x->writes || !x->stays) /* else every bit of S stays (G9) */
        kr->channel_update(S, S, kr->strip, decays, k, c->ld, c->w, kr->strip, C, r->K);
}

/* Takes S, the columns of the piece from `at` on, from the state before the range to the state
 * after it. pairs: the rounded copy of S, or NULL. */
static void finish_range(struct chunk *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                         const struct range *x, float *S, uint16_t *pairs, const float *k,
                         ptrdiff_t at)
{
    kr->chunk_solve(c->o + at, c->ld_v, c->w, c->p, c->v + at, c->ld_v, c->A, c->B, c->start,
                    x->end, c->beta);
    memset(c->w + x->m * kr->strip, 0, (size_t)((C - x->m) * kr->strip) * sizeof *c->w);
    if (!x->writes && x->decay == 1) return; /* every bit of S stays (G9) */
    if (pairs)
        r->products->chunk_update(S, pairs, x->decay, k, c->ld, c->w, r->K);
    else
        kr->chunk_update(S, S, kr->strip, x->decay, k, c->ld, c->w, kr->strip, C, r->K);
}

/* The ranges from a to checkpoints within [a, b], except the end of the chunk's n tokens. */
static int find_inside(const struct chunk *c, const struct gdn_rule *r, const struct gdn_seq *seq,
                       int64_t t0, int a, int b, int n, struct range *inside)
{
    int n_inside = 0;
    for (int64_t i = c->first; i < c->last; i++) {
        int64_t slot;
        const int64_t m = gdn_plan_checkpoint(r->plan, seq, i, &slot) - t0;
        if (slot < 0 || m <= a || m > b || m == n) continue;
        if (!n_inside || inside[n_inside - 1].m != m) {
            inside[n_inside].a = a;
            inside[n_inside].m = (int)m;
            inside[n_inside++].first = i;
        }
        inside[n_inside - 1].last = i + 1;
    }
    return n_inside;
}

static void store_checkpoints(const struct chunk *c, const struct gdn_rule *r,
                              const struct gdn_kernels *kr, const struct gdn_rule_item *item,
                              int strip, int64_t first, int64_t last, const float *S)
{
    const struct gdn_rule_piece p = gdn_rule_piece_at(r, kr, item, strip);
    for (int64_t i = first; i < last; i++) {
        int64_t slot;
        const int64_t n = gdn_plan_checkpoint(r->plan, item->seq, i, &slot);
        if (slot >= 0)
            store_strip(S, c, r, kr, item->seq, p.head, p.col,
                        gdn_place_of(&r->checkpoints, slot, p.head, item->seq->base + n), n);
    }
}

/* Stores checkpoints within the chunk. Copies of the state and of keys leave out the tokens behind
 * each one. */
static void leave_checkpoints(struct chunk *c, const struct gdn_rule *r,
                              const struct gdn_kernels *kr, const struct gdn_rule_item *item,
                              const struct range *x, int strip, ptrdiff_t at)
{
    memcpy(c->copy, strip_at(c, r, kr, item, strip), (size_t)(r->K * kr->strip) * sizeof *c->S);
    if (r->family.is) {
        float *keys = c->scaled + 2 * C * c->ld, *decays = keys + C * c->ld;
        cut_keys(c, r, x->m * gdn_rule_updates(r), keys, decays);
        finish_vectors(c, r, kr, x, c->copy, keys, decays, at);
    } else {
        finish_range(c, r, kr, x, c->copy, NULL, keys_of(c, x), at);
    }
    store_checkpoints(c, r, kr, item, strip, x->first, x->last, c->copy);
}

/* Runs tokens [a, b) of the chunk's n, none of which forgets. */
static void run_tokens(struct chunk *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                       const struct gdn_rule_item *item, const struct gdn_rule_piece *p, int64_t t0,
                       int a, int b, int n)
{
    struct range whole = { .a = a, .m = b }, inside[C];
    const int n_inside = find_inside(c, r, item->seq, t0, a, b, n, inside);
    for (int i = 0; i < n_inside; i++)
        if (r->family.is)
            start_vectors(c, r, &inside[i]);
        else
            start_range(c, kr, &inside[i]);
    if (r->family.is)
        start_vectors(c, r, &whole), walk_pairs(c, r, kr);
    else
        start_range(c, kr, &whole);
    if (r->family.is)
        load_written(c, r, kr, item->seq, p, t0, n);
    else
        load_v(c, r, kr, item->seq, p, t0);
    for (int s = p->first; s < p->last; s++) {
        float *S = strip_at(c, r, kr, item, s);
        const ptrdiff_t at = (s - p->first) * kr->strip;
        uint16_t *pairs = pairs_at(c, r, item, s);
        prefetch_rows(r, item, p, s, t0 + tokens_of(r));
        multiply(c, r, kr, S, pairs, a);
        for (int i = 0; i < n_inside; i++) leave_checkpoints(c, r, kr, item, &inside[i], s, at);
        if (r->family.is)
            finish_vectors(c, r, kr, &whole, S, c->copy_k, c->decays, at);
        else
            finish_range(c, r, kr, &whole, S, pairs, a ? keys_of(c, &whole) : c->kq, at);
    }
    if (r->out.data) store_o(c, r, kr, item->seq, p, t0, a, b);
}

/*
 * Runs one chunk of one piece. A gate that forgets cuts the chunk in two, and the state is zeroed
 * between. Nothing before the gate may reach tokens after it, even NaN (G7). Products with
 * forgotten tokens are zeroed by selection too.
 */
static void chunk_piece(struct chunk *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                        const struct gdn_rule_item *item, const struct gdn_rule_piece *p,
                        int64_t t0, int n)
{
    if (r->family.is) {
        load_vectors(c, r, kr, item->seq, p->head, t0, n);
        run_tokens(c, r, kr, item, p, t0, 0, n, n);
        return;
    }
    gdn_rule_load_gates(r, kr, item->seq, p->head, t0, n, false, c->all_g, c->all_beta);
    for (int a = 0, b; a < n; a = b) {
        if (gdn_forgets(c->all_g[a])) {
            memset(strip_at(c, r, kr, item, p->first), 0,
                   (size_t)((p->last - p->first) * r->K * kr->strip) * sizeof *c->S);
            if (r->products)
                memset(pairs_at(c, r, item, p->first), 0,
                       (size_t)(p->last - p->first) * pair_floats(r) * sizeof *c->pairs);
            c->all_g[a] = 0;
        }
        for (b = a + 1; b < n && !gdn_forgets(c->all_g[b]);) b++;
        run_tokens(c, r, kr, item, p, t0, a, b, n);
    }
}

/* Finds the checkpoints after tokens t0 + 1 to t0 + n; those before are known. */
static void find_checkpoints(struct chunk *c, const struct gdn_rule *r, const struct gdn_seq *seq,
                             int64_t t0, int n)
{
    int64_t slot;
    if (!r->checkpoints.data) return;
    c->first = t0 == 0 ? gdn_plan_checkpoint_after(r->plan, seq, 0) : c->last;
    c->last = c->first;
    while (c->last < seq->n_checkpoints &&
           gdn_plan_checkpoint(r->plan, seq, c->last, &slot) <= t0 + n)
        c->last++;
}

/* Stores the states after the last of the chunk's n tokens. */
static void leave_at_end(const struct chunk *c, const struct gdn_rule *r,
                         const struct gdn_kernels *kr, const struct gdn_rule_item *item,
                         int64_t end)
{
    int64_t first = c->last, slot;
    while (first > c->first && gdn_plan_checkpoint(r->plan, item->seq, first - 1, &slot) == end)
        first--;
    for (int s = item->first; first < c->last && s < item->last; s++)
        store_checkpoints(c, r, kr, item, s, first, c->last, strip_at(c, r, kr, item, s));
}

void gdn_chunk_item(const struct gdn_rule *r, const struct gdn_kernels *kr,
                    const struct gdn_rule_item *item, void *scratch)
{
    struct chunk c = { .first = 0 };
    const struct gdn_seq *seq = item->seq;
    struct gdn_rule_piece p;
    lay_out(&c, r, kr, scratch);

    for (int s = item->first; s < item->last; s++) {
        p = gdn_rule_piece_at(r, kr, item, s);
        load_strip(strip_at(&c, r, kr, item, s), &c, r, kr, seq, p.head, p.col);
        if (r->products)
            r->products->round_strip(pairs_at(&c, r, item, s), strip_at(&c, r, kr, item, s), r->K);
    }
    const int most = tokens_of(r);
    for (int64_t t0 = 0; t0 < seq->n_valid; t0 += most) {
        const int n = seq->n_valid - t0 < most ? (int)(seq->n_valid - t0) : most;
        load_chunk(&c, r, kr, item, t0, n);
        find_checkpoints(&c, r, seq, t0, n);
        for (int s = item->first; s < item->last; s = p.last) {
            p = gdn_rule_piece_at(r, kr, item, s);
            chunk_piece(&c, r, kr, item, &p, t0, n);
        }
        leave_at_end(&c, r, kr, item, t0 + n);
    }
    for (int s = item->first; s < item->last; s++) {
        p = gdn_rule_piece_at(r, kr, item, s);
        const struct gdn_place to = gdn_rule_to(r, seq, seq->n_valid - 1, p.head);
        if (to.data)
            store_strip(strip_at(&c, r, kr, item, s), &c, r, kr, seq, p.head, p.col, to,
                        seq->n_valid);
    }
}
