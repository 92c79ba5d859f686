/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of the chunked form (docs/design/math.md). An item is a sequence and a family of heads.
 * A first walk leaves the states at the start of each segment; then, from the last segment to the
 * first, a second one leaves those of its chunks with R and U, and the chunks are swept backwards.
 * A sequence of one segment has no first walk, nor has one whose segments begin at checkpoints of
 * the caller. A gate that forgets begins a piece of a chunk, whose state is zero: nothing passes
 * it.
 *
 * States and all that has columns of V are rows, ld_v apart, so that a state is a matrix on either
 * side of a product.
 */
#include <math.h>
#include <string.h>

#include "cpu/backward.h"

enum { C = GDN_CHUNK };

/* A segment has as many chunks as fit in these bytes, but no fewer than this. */
enum { SEGMENT_BYTES = 32 << 20, SEGMENT_LEAST = 16 };

/* The tokens whose keys are loaded. */
struct loaded {
    int hk, hq, n;
    int64_t t;
    bool queries, shared; /* by the head that is worked on, with the one before */
};

/* State, R and U that the next head works on. NULL: there is none. */
struct next {
    const float *S, *R, *U;
};

/* Scratch of one thread; all 64-byte aligned. */
struct sweep {
    const struct gdn_backward *w;
    const struct gdn_kernels *kr;
    const struct gdn_seq *seq;
    struct loaded loaded;
    struct next next;
    int family, n_strips;
    int64_t segment; /* chunks */
    bool saved;      /* segments begin at checkpoints */
    ptrdiff_t ld, ld_v;
    size_t state;                          /* floats of a state */
    int chunk;                             /* tokens */
    struct gdn_backward_tokens tokens;     /* of the family */
    float *kq, *kqt, *gram, *ones, *unit;  /* rows of k, then q; their columns */
    float *A, *B, *decay, *unused, *mixed; /* [16][16]; two of them */
    float *start, *end, *g, *beta;         /* [16] */
    float *p, *v, *r, *u;                  /* [16][ld_v] */
    float *dz, *x;                         /* [32][ld_v]: dO, Z; what J gets of k, q */
    float *ut, *xt, *dots;                 /* [V][16], [V][32], [32][16] */
    float *by, *rows;                      /* [K][32]: dK, dQ; as rows */
    float *S, *J, *strip, *column;         /* states of every head of the family */
    float *first, *states, *R, *U;         /* of segments; of the chunks of one */
    float *dq, *dk, *dv;                   /* of a chunk, of all heads that are shared */
};

/* Returns an odd number of 64-byte lines for rows: 128 of them would share few places of a
 * cache. */
static ptrdiff_t stride_v(const struct gdn_rule *r, const struct gdn_kernels *kr)
{
    const int wide = (r->V + kr->strip - 1) / kr->strip * kr->strip;
    return ((wide + 15) & ~15) | 16;
}

/* Returns the chunks of a segment: a multiple of those between checkpoints, if these fit. Which
 * checkpoints are read does not depend on other sequences. */
static int64_t segment_chunks(const struct gdn_backward *w, const struct gdn_kernels *kr, int chunk)
{
    const int64_t floats = (w->rule.K + 2 * C) * (int64_t)stride_v(&w->rule, kr) * w->family_heads;
    const int64_t fit = SEGMENT_BYTES / (floats * (int64_t)sizeof(float));
    const int64_t most = w->longest / chunk + 1;
    const int64_t chunks = fit < SEGMENT_LEAST ? SEGMENT_LEAST : fit, every = w->every / C;
    const int64_t whole = every && every <= chunks ? chunks - chunks % every : chunks;
    return whole < most ? whole : most;
}

static size_t lay_out(struct sweep *s, const struct gdn_backward *w, const struct gdn_kernels *kr,
                      char *memory)
{
    const struct gdn_rule *r = &w->rule;
    const size_t strip = (size_t)kr->strip, K = (size_t)r->K, heads = (size_t)w->family_heads;
    s->w = w, s->kr = kr;
    s->n_strips = (r->V + kr->strip - 1) / kr->strip;
    s->ld = gdn_strip_ld(r->K);
    s->ld_v = stride_v(r, kr);
    s->state = K * (size_t)s->ld_v;
    s->chunk = C;
    while (s->chunk * gdn_rule_updates(r) > C) s->chunk /= 2;
    s->segment = segment_chunks(w, kr, s->chunk);
    s->saved = w->every && s->segment % (w->every / C) == 0;
    const size_t row_k = C * (size_t)s->ld, row_v = C * (size_t)s->ld_v, kc = C * (size_t)s->ld;
    const size_t vc = C * (size_t)s->ld_v, chunks = heads * (size_t)s->segment;
    const size_t segments = (size_t)(w->longest / (s->chunk * s->segment)) + 1;
    const size_t tokens =
        r->family.is ? gdn_backward_tokens_lay_out(&s->tokens, w, s->ld_v, NULL) : 0;
    float *token_memory;
    const struct gdn_part parts[] = {
        { &s->kq, 2 * row_k },
        { &s->kqt, 2 * kc },
        { &s->gram, 2 * C * C },
        { &s->ones, 2 * C * C },
        { &s->unit, 2 * C },
        { &s->A, C * C },
        { &s->B, C * C },
        { &s->decay, C * C },
        { &s->unused, C * C },
        { &s->mixed, 2 * C * C },
        { &s->start, C },
        { &s->end, C },
        { &s->g, C },
        { &s->beta, C },
        { &s->p, row_v },
        { &s->v, row_v },
        { &s->r, row_v },
        { &s->u, row_v },
        { &s->dz, 2 * row_v },
        { &s->x, 2 * row_v },
        { &s->ut, vc },
        { &s->xt, 2 * vc },
        { &s->dots, 2 * C * C },
        { &s->by, 2 * kc },
        { &s->rows, 2 * row_k },
        { &s->S, heads * s->state },
        { &s->J, heads * s->state },
        { &s->strip, strip * (size_t)s->ld },
        { &s->column, strip * K },
        { &s->first, segments * heads * s->state },
        { &s->states, chunks * s->state },
        { &s->R, chunks * row_v },
        { &s->U, chunks * row_v },
        { &s->dq, heads * row_k },
        { &s->dk, heads * row_k },
        { &s->dv, heads * row_v },
        { &token_memory, tokens / sizeof(float) },
    };
    const size_t bytes = gdn_lay_out(parts, sizeof parts / sizeof *parts, memory);
    if (tokens)
        gdn_backward_tokens_lay_out(&s->tokens, w, s->ld_v, memory ? (char *)token_memory : NULL);
    s->tokens.kr = kr;
    return bytes;
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
    w->n_families = gcd(gcd(r->Hq, r->Hk), r->Hv);
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

/* Prefetches the i-th of n parts of the rows of the chunk at token t, if the chunk is there. */
static void prefetch(const struct sweep *s, const struct gdn_rows *rows, int head, int D, int64_t t,
                     int i, int n)
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

/* Prefetches the i-th of n parts of what is next. */
static void prefetch_next(const struct sweep *s, int i, int n)
{
    prefetch_floats(s->next.S, s->state, i, n);
    prefetch_floats(s->next.R, C * (size_t)s->ld_v, i, n);
    prefetch_floats(s->next.U, C * (size_t)s->ld_v, i, n);
}

/* Loads rows of n tokens. Rows after them, and rows where `but` (may be NULL) is zero, are zero. */
static void load_v(const struct sweep *s, float *to, const struct gdn_rows *rows, int64_t t, int n,
                   int head, const float *but)
{
    const size_t V = (size_t)s->w->rule.V;
    for (int i = 0; i < C; i++) {
        float *row = to + i * s->ld_v;
        const bool some = i < n && !(but && but[i] == 0);
        if (some) s->kr->load_row[rows->dtype](row, gdn_row(rows, s->seq, t + i, head), V);
        memset(row + (some ? V : 0), 0, ((size_t)s->ld_v - (some ? V : 0)) * sizeof *row);
    }
}

/* Loads keys of n tokens and computes their products, unless a head before has done so. */
static void load_keys(struct sweep *s, int head, int64_t t, int n, bool queries)
{
    const struct gdn_rule *r = &s->w->rule;
    const struct gdn_kernels *kr = s->kr;
    const int hk = gdn_rule_source(r, head, r->Hk), hq = gdn_rule_source(r, head, r->Hq);
    const int rows = queries ? 2 * C : C;
    const struct loaded *l = &s->loaded;
    s->loaded.shared =
        l->n == n && l->t == t && l->hk == hk && (!queries || (l->queries && l->hq == hq));
    if (l->shared) return;
    s->loaded = (struct loaded){ hk, hq, n, t, queries, false };
    if (n < C) memset(s->kq, 0, 2 * C * (size_t)s->ld * sizeof *s->kq);
    gdn_rule_load_rows(r, kr, s->seq, &r->k, hk, t, n, 1, s->kq, s->ld);
    if (queries)
        gdn_rule_load_rows(r, kr, s->seq, &r->q, hq, t, n, r->scale, s->kq + C * s->ld, s->ld);
    kr->transpose(s->kqt, 2 * C, s->kq, s->ld, rows, r->K);
    kr->strip_mul(s->gram, C, s->kq, s->ld, s->kqt, 2 * C, rows, r->K, C, NULL);
}

/* Loads gates of n tokens. The first gate may forget, the others do not. */
static void load_gates(struct sweep *s, int head, int64_t t, int n)
{
    memset(s->g, 0, C * sizeof *s->g);
    memset(s->beta, 0, C * sizeof *s->beta);
    gdn_rule_load_gates(&s->w->rule, s->kr, s->seq, head, t, n, false, s->g, s->beta);
    if (gdn_forgets(s->g[0])) s->g[0] = 0;
    s->kr->chunk_gates(s->A, s->B, s->start, s->end, s->g, s->beta, s->gram);
}

/* Computes R and U of a piece, and the state after it. `to` may be `from`. */
static void forward(struct sweep *s, const float *from, float *to, float *R, float *U, int head,
                    int64_t t, int n)
{
    const struct gdn_rule *r = &s->w->rule;
    const struct gdn_kernels *kr = s->kr;
    const ptrdiff_t ld = s->ld_v;
    const int hv = gdn_rule_source(r, head, r->Hv), hk = gdn_rule_source(r, head, r->Hk);
    float *const r_all = n < C ? s->r : R, *const u_all = n < C ? s->u : U;
    load_keys(s, head, t, n, false);
    load_gates(s, head, t, n);
    load_v(s, s->v, &r->v, t, n, hv, s->beta);
    for (int c = 0; c < r->V; c += kr->strip) {
        prefetch(s, &r->v, hv, r->V, t + C, c / kr->strip, s->n_strips);
        if (!s->loaded.shared) prefetch(s, &r->k, hk, r->K, t + C, c / kr->strip, s->n_strips);
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
static int cut_pieces(struct sweep *s, int head, int64_t t0, int n, int *at, bool *forgets)
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

static int tokens_at(const struct sweep *s, int64_t chunk)
{
    const int64_t left = s->seq->n_valid - chunk * s->chunk;
    return left < s->chunk ? (int)left : s->chunk;
}

static void forward_chunk(struct sweep *s, const float *from, float *to, float *R, float *U,
                          int head, int64_t chunk)
{
    int at[C + 1];
    bool forgets;
    if (s->w->rule.family.is) {
        gdn_backward_tokens_forward(&s->tokens, s->seq, head, chunk * s->chunk, tokens_at(s, chunk),
                                    from, to);
        return;
    }
    const int n_pieces = cut_pieces(s, head, chunk * C, tokens_at(s, chunk), at, &forgets);
    for (int i = 0; i < n_pieces; i++) {
        if (i || forgets) from = memset(to, 0, s->state * sizeof *to);
        forward(s, from, to, R + at[i] * s->ld_v, U + at[i] * s->ld_v, head, chunk * C + at[i],
                at[i + 1] - at[i]);
        from = to;
    }
}

static void load_state(struct sweep *s, float *S, struct gdn_place from)
{
    const struct gdn_rule *r = &s->w->rule;
    const int width = s->kr->strip;
    for (int c = 0; c < r->V; c += width) {
        gdn_load_strip(s->column, s->kr, from, r->K, c, r->V - c < width ? r->V - c : width,
                       s->strip);
        for (int x = 0; x < r->K; x++)
            memcpy(S + x * s->ld_v + c, s->column + x * width, (size_t)width * sizeof *S);
    }
}

/* ---- Backward ------------------------------------------------------------------------------ */

/* Solves for Z, which is stored below dO, with P = K J, and for -start dR: the substitution of U
 * with the tokens in reverse. */
static void solve_z(struct sweep *s, const float *J)
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
        prefetch_next(s, c / kr->strip, 2 * s->n_strips);
        kr->strip_mul(s->p + c, ld, s->kq, s->ld, J + c, ld, C, s->w->rule.K, kr->strip, NULL);
        kr->strip_mul(s->v + c, ld, Bt, C, s->dz + c, ld, C, C, kr->strip, NULL);
        kr->chunk_return(Z + c, s->x + c, ld, s->p + c, s->v + c, s->A, minus, scale);
    }
}

/* Computes Z of a piece from J after it, and the terms of k and q in J before it. */
static void return_u(struct sweep *s, const float *J, int head, int64_t t, int n)
{
    const ptrdiff_t ld = s->ld_v;
    load_keys(s, head, t, n, true);
    load_gates(s, head, t, n);
    load_v(s, s->dz, &s->w->dout, t, n, head, NULL);
    solve_z(s, J);
    for (int i = 0; i < C; i++)
        s->kr->norm_row(s->x + (C + i) * ld, s->dz + i * ld, s->start[i], NULL, NULL, false,
                        (size_t)ld);
}

/* Computes J before the piece. Call return_u() first. */
static void step_j(struct sweep *s, float *J, int head, int64_t t)
{
    const struct gdn_rule *r = &s->w->rule;
    const ptrdiff_t ld = s->ld_v;
    const int hk = gdn_rule_source(r, head, r->Hk), hq = gdn_rule_source(r, head, r->Hq);
    for (int c = 0; c < r->V; c += s->kr->strip) {
        const int strip = c / s->kr->strip;
        prefetch_next(s, s->n_strips + strip, 2 * s->n_strips);
        prefetch(s, &s->w->dout, head, r->V, t - C, strip, s->n_strips);
        if (!s->loaded.shared) {
            prefetch(s, &r->k, hk, r->K, t - C, strip, s->n_strips);
            prefetch(s, &r->q, hq, r->K, t - C, strip, s->n_strips);
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
static void mix(struct sweep *s, const float *R, float *dbeta, float *dG)
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
static double inner(const struct sweep *s, const float *a, const float *b)
{
    double sum = 0;
    for (int x = 0; x < s->w->rule.K; x++, a += s->ld_v, b += s->ld_v)
        sum += (double)s->kr->dot(a, b, (size_t)s->w->rule.V);
    return sum;
}

/* Adds the terms of q . dQ and k . dKr that come from S to dG. */
static void add_gates(const struct sweep *s, float *dG)
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
static void multiply(struct sweep *s, const float *S, const float *J, float *dG)
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

static void add_rows(struct sweep *s, int n, float *dq, float *dk, float *dv)
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
static void add_unwritten(struct sweep *s, int head, int64_t t, int n, float *dbeta)
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
static void backward(struct sweep *s, const float *S, float *J, const float *R, const float *U,
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

/* ---- Sequences ----------------------------------------------------------------------------- */

/* Rows of a gradient, and of what it is the gradient of: `updates` of each token, by bytes. */
struct gradient {
    const struct gdn_rows *rows, *of;
    int updates;
    int64_t step, of_step;
};

/* norm: it goes through the norm of its tensor. */
static void store_rows(struct sweep *s, const struct gradient *g, bool norm, float *all,
                       ptrdiff_t ld, int heads, int D, int64_t t, int n)
{
    for (int i = 0; g->rows->data && i < heads / s->w->n_families; i++)
        for (int j = 0; j < n * g->updates; j++) {
            const int head = global(s, i, heads), update = j % g->updates;
            const int64_t token = t + j / g->updates;
            float *x = all + (i * C + j) * ld;
            if (norm)
                gdn_backward_norm(&s->w->rule, s->kr,
                                  (char *)gdn_row(g->of, s->seq, token, head) + update * g->of_step,
                                  g->of->dtype, x, s->rows);
            gdn_backward_store(s->kr,
                               (char *)gdn_row(g->rows, s->seq, token, head) + update * g->step,
                               g->rows->dtype, s->w->adds, x, D);
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
    const struct gdn_rule *r = &w->rule;
    const int64_t t0 = chunk * s->chunk, in = chunk % s->segment;
    const int n = tokens_at(s, chunk), heads = w->family_heads;
    const size_t row_k = C * (size_t)s->ld, row_v = C * (size_t)s->ld_v;
    memset(s->dq, 0, (size_t)heads * row_k * sizeof *s->dq);
    memset(s->dk, 0, (size_t)heads * row_k * sizeof *s->dk);
    memset(s->dv, 0, (size_t)heads * row_v * sizeof *s->dv);
    for (int h = 0; h < heads; h++) {
        const int head = head_at(s, h), place = (int)in * heads + h;
        const float *S = of_head(s->states, s->state, place);
        float *J = of_head(s->J, s->state, h), dg[C], dbeta[C];
        float *dq = of_head(s->dq, row_k, local(s, gdn_rule_source(r, head, r->Hq), r->Hq));
        float *dk = of_head(s->dk, row_k, local(s, gdn_rule_source(r, head, r->Hk), r->Hk));
        float *dv = of_head(s->dv, row_v, local(s, gdn_rule_source(r, head, r->Hv), r->Hv));
        const int next = h + 1 < heads ? place + 1 : (int)(in - 1) * heads;
        int at[C + 1];
        bool forgets;
        s->next = (struct next){ NULL, NULL, NULL };
        if (next >= 0)
            s->next = (struct next){ of_head(s->states, s->state, next), of_head(s->R, row_v, next),
                                     of_head(s->U, row_v, next) };
        if (r->family.is) {
            gdn_backward_tokens_chunk(&s->tokens, s->seq, head, t0, n, S, J, dq, dk, dv, s->ld);
            continue;
        }
        for (int i = cut_pieces(s, head, t0, n, at, &forgets) - 1; i >= 0; i--) {
            const int a = at[i], m = at[i + 1] - a;
            const bool zero = i || forgets;
            backward(s, zero ? NULL : S, J, of_head(s->R, row_v, place) + a * s->ld_v,
                     of_head(s->U, row_v, place) + a * s->ld_v, head, t0 + a, m, dq + a * s->ld,
                     dk + a * s->ld, dv + a * s->ld_v, dg, dbeta);
            if (zero) memset(J, 0, s->state * sizeof *J);
            store_gates(s, head, t0 + a, m, dg, dbeta);
        }
    }
    const int u = gdn_rule_updates(r);
    const struct gradient dq = { &w->dq, &r->q, 1, 0, 0 };
    const struct gradient dk = { &w->dk, &r->k, u, w->dk_update, r->family.k_update };
    const struct gradient dv = { &w->dv, &r->v, u, w->dv_update, r->family.v_update };
    store_rows(s, &dq, true, s->dq, s->ld, r->Hq, r->K, t0, n);
    store_rows(s, &dk, true, s->dk, s->ld, r->Hk, r->K, t0, n);
    store_rows(s, &dv, false, s->dv, s->ld_v, r->Hv, r->V, t0, n);
}

/* Computes the states, R and U of chunks [from, end) of all heads, starting from the states S. */
static void walk(struct sweep *s, int64_t from, int64_t end)
{
    const int heads = s->w->family_heads;
    const size_t row_v = C * (size_t)s->ld_v;
    for (int64_t c = from; c < end; c++)
        for (int h = 0; h < heads; h++) {
            const int place = (int)(c - from) * heads + h;
            float *next = c + 1 < end ? of_head(s->states, s->state, place + heads)
                                      : of_head(s->S, s->state, h);
            forward_chunk(s, of_head(s->states, s->state, place), next, of_head(s->R, row_v, place),
                          of_head(s->U, row_v, place), head_at(s, h), c);
        }
}

/* Computes the states at the start of each segment, up to the segment of chunk `end`. */
static void walk_segments(struct sweep *s, int64_t end)
{
    const size_t heads = (size_t)s->w->family_heads, all = heads * s->state;
    for (int64_t c = 0; c < end; c++) {
        if (c % s->segment == 0)
            memcpy(of_head(s->first, all, (int)(c / s->segment)), s->S, all * sizeof *s->S);
        for (int h = 0; h < (int)heads; h++) {
            float *S = of_head(s->S, s->state, h);
            forward_chunk(s, S, S, s->R, s->U, head_at(s, h), c);
        }
    }
    memcpy(of_head(s->first, all, (int)(end / s->segment)), s->S, all * sizeof *s->S);
}

static void store_state(struct sweep *s, int h)
{
    const struct gdn_backward *w = s->w;
    const struct gdn_rule *r = &w->rule;
    const struct gdn_place to = gdn_place_of(&w->dstate, s->seq->row, head_at(s, h), 0);
    const int width = s->kr->strip;
    float *J = of_head(s->J, s->state, h);
    if (w->adds) load_state(s, s->S, to);
    for (size_t i = 0; w->adds && i < s->state; i++) J[i] += s->S[i];
    for (int c = 0; c < r->V; c += width) {
        for (int x = 0; x < r->K; x++)
            memcpy(s->column + x * width, J + x * s->ld_v + c, (size_t)width * sizeof *J);
        gdn_store_strip(s->column, s->kr, to, r->K, c, r->V - c < width ? r->V - c : width,
                        s->strip);
    }
}

static void load_states(struct sweep *s)
{
    const struct gdn_backward *w = s->w;
    for (int h = 0; h < w->family_heads; h++) {
        const int head = head_at(s, h);
        struct gdn_place end = { .view = &w->dstate_out };
        if (w->dstate_out.data) end = gdn_place_of(&w->dstate_out, s->seq->row, head, 0);
        load_state(s, of_head(s->J, s->state, h), end);
        load_state(s, of_head(s->S, s->state, h), gdn_rule_from(&w->rule, s->seq, head));
    }
}

/* Sets values that stay the same for the whole call, and marks that no keys are loaded. */
static void prepare(struct sweep *s)
{
    for (int i = 0; i < 2 * C; i++) s->unit[i] = 1;
    for (int i = 0; i < 2 * C * C; i++) s->ones[i] = 1;
    memset(s->kq, 0, 2 * C * (size_t)s->ld * sizeof *s->kq);
    memset(s->gram, 0, 2 * C * C * sizeof *s->gram);
    s->loaded = (struct loaded){ .n = 0 };
}

/* Returns true if dstate is the only gradient. It does not depend on any state. */
static bool wants_state_alone(const struct gdn_backward *w)
{
    return !w->dq.data && !w->dk.data && !w->dv.data && !w->dg.data && !w->dbeta.data && !w->sums;
}

/* Computes J before the chunks of a head. */
static void sweep_state(struct sweep *s, int h, int64_t n_chunks)
{
    const int head = head_at(s, h);
    float *J = of_head(s->J, s->state, h);
    for (int64_t c = n_chunks - 1; c >= 0; c--) {
        int at[C + 1];
        bool forgets;
        for (int i = cut_pieces(s, head, c * C, tokens_at(s, c), at, &forgets) - 1; i >= 0; i--) {
            return_u(s, J, head, c * C + at[i], at[i + 1] - at[i]);
            step_j(s, J, head, c * C + at[i]);
            if (i || forgets) memset(J, 0, s->state * sizeof *J);
        }
    }
}

/* Loads the states before the segment of chunk `first`. */
static void load_segment(struct sweep *s, int64_t first)
{
    const struct gdn_backward *w = s->w;
    const size_t all = (size_t)w->family_heads * s->state;
    if (!s->saved || first == 0) {
        memcpy(s->states, of_head(s->first, all, (int)(first / s->segment)), all * sizeof *s->S);
        return;
    }
    const int64_t slot = s->seq->first_checkpoint + first * C / w->every - 1;
    for (int h = 0; h < w->family_heads; h++)
        load_state(s, of_head(s->states, s->state, h),
                   gdn_place_of(&w->checkpoints, slot, head_at(s, h), 0));
}

static void sweep_all(struct sweep *s, int64_t n_chunks)
{
    const int64_t last = n_chunks ? (n_chunks - 1) / s->segment * s->segment : 0;
    walk_segments(s, s->saved ? 0 : last);
    for (int64_t first = last; n_chunks && first >= 0; first -= s->segment) {
        const int64_t end = first + s->segment < n_chunks ? first + s->segment : n_chunks;
        load_segment(s, first);
        walk(s, first, end);
        for (int64_t c = end - 1; c >= first; c--) sweep_chunk(s, c);
    }
}

static void run_item(struct sweep *s)
{
    s->next = (struct next){ NULL, NULL, NULL };
    const int64_t n_chunks = (s->seq->n_valid + s->chunk - 1) / s->chunk;
    const bool alone = wants_state_alone(s->w) && !s->w->rule.family.is;
    prepare(s);
    load_states(s);
    if (!alone) sweep_all(s, n_chunks);
    for (int h = 0; alone && h < s->w->family_heads; h++) sweep_state(s, h, n_chunks);
    for (int h = 0; s->w->dstate.data && h < s->w->family_heads; h++) store_state(s, h);
}

struct run_arg {
    const struct gdn_backward *w;
    const struct gdn_kernels *kr;
    char *scratch;
    size_t bytes;
};

static void run_any(void *arg, int64_t i, int thread)
{
    const struct run_arg *a = arg;
    struct sweep s;
    lay_out(&s, a->w, a->kr, a->scratch + (size_t)thread * a->bytes);
    s.seq = &a->w->rule.seqs[i / a->w->n_families];
    s.family = (int)(i % a->w->n_families);
    run_item(&s);
}

void gdn_backward_run(gdn_ctx *ctx, const struct gdn_backward *w, void *scratch)
{
    struct run_arg arg = { w, ctx->kr, scratch, gdn_backward_scratch(w, ctx->kr) };
    gdn_parallel_for(ctx->threads, w->rule.n_seqs * w->n_families, run_any, &arg);
}
