/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See open_chunk.h. A record holds the tokens since the last multiple of 16: k, u, g and beta, as
 * the chunked form has them. The pool holds the state there. Row i of a chunk is a function of that
 * state and of rows 0 to i alone, so new rows are computed from the old ones:
 *
 *     u_i = beta_i (v_i - from_start_i S^T k_i) - sum_{j<i} A_ij u_j
 *     o_i = from_start_i S^T q_i + sum_{j<=i} B_ij u_j
 *
 * in the order of chunk_solve(), by products of one row. When row 15 is there, the chunk is closed:
 * S becomes what chunk_update() makes of it. Whole chunks of a call run as in prefill.c.
 */
#include "cpu/record/open_chunk.h"

#include <string.h>

#include "cpu/record/record.h"

enum { C = GDN_CHUNK, ROWS = 4 /* of a tile of strip_mul() */ };
enum { SLICE = 32, LINE = 16 /* keys, floats */ };

/* Scratch of one thread; all 64-byte aligned. */
struct open {
    float *kq;                 /* [32][ld]: rows of k; q of new rows from row 16 on */
    float *few;                /* [32][ld]: k, then q, of new rows alone */
    float *kt;                 /* [K][16] */
    float *gram, *pairs;       /* [32][16]: of all rows; of the new ones */
    float *A, *B;              /* [16][16] */
    float *all_g, *all_beta;   /* [16] of the chunk */
    float *g, *beta;           /* ... of a range */
    float *start, *end, *ones; /* [16], [16], [strip] */
    float *p;                  /* [32][strip]: few S */
    float *v, *o, *u;          /* [16][ld_v] */
    float *w;                  /* [16][strip] */
    float *keys;               /* [16][ld]: those of a range */
    float *rows;               /* [strip][ld]: state rows on their way */
    float *S;                  /* strips of [K][strip] */
    ptrdiff_t ld, ld_v;
    bool keeps; /* strips stay in scratch from window to window: the pool is not written */
};

/* Rows of a chunk: the record holds h of them, n tokens from t0 on follow. */
struct window {
    int64_t row; /* of the record: where the chunk begins */
    int64_t t0;
    int h, n;
};

static size_t lay_out(struct open *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                      char *memory)
{
    const size_t strip = (size_t)kr->strip, K = (size_t)r->K;
    c->ld = gdn_strip_ld(r->K);
    c->ld_v = (ptrdiff_t)(strip * (size_t)r->n_strips);
    const struct gdn_part parts[] = {
        { &c->kq, 2 * C * (size_t)c->ld },
        { &c->few, 2 * C * (size_t)c->ld },
        { &c->kt, K * C },
        { &c->gram, 2 * C * C },
        { &c->pairs, 2 * C * C },
        { &c->A, C * C },
        { &c->B, C * C },
        { &c->all_g, C },
        { &c->all_beta, C },
        { &c->g, C },
        { &c->beta, C },
        { &c->start, C },
        { &c->end, C },
        { &c->ones, strip },
        { &c->p, 2 * C * strip },
        { &c->v, C * (size_t)c->ld_v },
        { &c->o, C * (size_t)c->ld_v },
        { &c->u, C * (size_t)c->ld_v },
        { &c->w, C * strip },
        { &c->keys, C * (size_t)c->ld },
        { &c->rows, strip * (size_t)c->ld },
        { &c->S, (size_t)r->part_strips * K * strip },
    };
    return gdn_lay_out(parts, sizeof parts / sizeof *parts, memory);
}

gdn_status gdn_open_check_rows(gdn_ctx *ctx, const struct gdn_record *record)
{
    const bool k = record->k.dtype == GDN_F32;
    if (k && record->u.dtype == GDN_F32) return GDN_OK;
    return gdn_fail(ctx, GDN_E_UNSUPPORTED,
                    "%s: not float32, wanted that with GDN_SPLIT_INVARIANT on a CPU",
                    k ? "record_u" : "record_k");
}

size_t gdn_open_scratch(const struct gdn_rule *r, const struct gdn_kernels *kr)
{
    struct open c;
    return lay_out(&c, r, kr, NULL);
}

/* ---- Keys ---------------------------------------------------------------------------------- */

/* Returns the rows of few: a multiple of a tile, so that k and q of a token are one. */
static int few_rows(const struct window *w) { return (2 * w->n + ROWS - 1) / ROWS * ROWS; }

/* Products of the new rows with all keys, in the order of a whole chunk. */
static void multiply_keys(struct open *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                          const struct window *w)
{
    const size_t bytes = (size_t)w->n * C * sizeof *c->gram;
    kr->transpose(c->kt, C, c->kq, c->ld, C, r->K);
    kr->strip_mul(c->pairs, C, c->few, c->ld, c->kt, C, few_rows(w), r->K, C, NULL);
    memset(c->gram, 0, 2 * C * C * sizeof *c->gram);
    memcpy(c->gram + w->h * C, c->pairs, bytes);
    memcpy(c->gram + (C + w->h) * C, c->pairs + w->n * C, bytes);
}

/* Loads keys and queries of the window, which the heads of the item share. */
static void load_keys(struct open *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                      const struct gdn_rule_item *item, const struct window *w)
{
    const struct gdn_record *rec = r->record;
    const int hk = gdn_rule_source(r, gdn_rule_head(r, item->group, 0), r->Hk);
    const size_t row = (size_t)c->ld * sizeof *c->kq;
    memset(c->kq, 0, C * row);
    for (int i = 0; i < w->h; i++)
        memcpy(c->kq + i * c->ld, gdn_record_at(&rec->k, item->seq->slot, w->row + i, hk),
               (size_t)r->K * sizeof *c->kq);
    if (w->n == 0) return;
    gdn_rule_load_kq(r, kr, item, w->t0, w->n, c->kq + w->h * c->ld, c->ld, C);
    memset(c->few, 0, (size_t)few_rows(w) * row);
    memcpy(c->few, c->kq + w->h * c->ld, (size_t)w->n * row);
    memcpy(c->few + w->n * c->ld, c->kq + (C + w->h) * c->ld, (size_t)w->n * row);
    multiply_keys(c, r, kr, w);
}

/* ---- Strips of a head ---------------------------------------------------------------------- */

static float *u_at(const struct gdn_rule *r, int64_t slot, int64_t row,
                   const struct gdn_rule_piece *p)
{
    return (float *)gdn_record_at(&r->record->u, slot, row, p->head) + p->col;
}

/* Loads gates of the window: raw, as the record keeps them. */
static void load_gates(struct open *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                       const struct gdn_seq *seq, int head, const struct window *w)
{
    const struct gdn_record *rec = r->record;
    for (int i = 0; i < w->h; i++) {
        c->all_g[i] = *gdn_record_gate(rec, seq->slot, w->row + i, head, 0);
        c->all_beta[i] = *gdn_record_gate(rec, seq->slot, w->row + i, head, 1);
    }
    if (w->n > 0)
        gdn_rule_load_gates(r, kr, seq, head, w->t0, w->n, false, c->all_g + w->h,
                            c->all_beta + w->h);
}

/* Loads u of the record, and v of new rows: zero where beta is zero (G8). */
static void load_columns(struct open *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                         const struct gdn_seq *seq, const struct gdn_rule_piece *p,
                         const struct window *w)
{
    const int hv = gdn_rule_source(r, p->head, r->Hv);
    const size_t wide = (size_t)((p->last - p->first) * kr->strip) * sizeof(float);
    const size_t at = (size_t)p->col * gdn_dtype_bytes(r->v.dtype);
    for (int i = 0; i < w->h; i++) {
        float *u = c->u + i * c->ld_v;
        memset(u, 0, wide);
        memcpy(u, u_at(r, seq->slot, w->row + i, p), (size_t)p->n * sizeof *u);
    }
    for (int t = 0; t < w->n; t++) {
        float *v = c->v + (w->h + t) * c->ld_v;
        memset(v, 0, wide);
        if (c->all_beta[w->h + t] == 0) continue;
        kr->load_row[r->v.dtype](v, (const char *)gdn_row(&r->v, seq, w->t0 + t, hv) + at,
                                 (size_t)p->n);
    }
}

/* Stores rows [a, b) of u, unless the call closes the chunk: then the state has them. */
static void store_u(const struct open *c, const struct gdn_rule *r, const struct gdn_seq *seq,
                    const struct gdn_rule_piece *p, const struct window *w, int a, int b)
{
    const bool closes = r->record->accepts && w->h + w->n == C;
    const int64_t row = r->record->accepts ? 0 : w->row;
    for (int i = a; i < b && !closes; i++)
        memcpy(u_at(r, seq->slot, row + i, p), c->u + i * c->ld_v, (size_t)p->n * sizeof(float));
}

static void store_o(const struct open *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                    const struct gdn_seq *seq, const struct gdn_rule_piece *p,
                    const struct window *w)
{
    const size_t at = (size_t)p->col * gdn_dtype_bytes(r->out.dtype);
    for (int t = 0; r->out.data && t < w->n; t++) {
        char *o = gdn_row(&r->out, seq, w->t0 + t, p->head);
        kr->store_row[r->out.dtype](o + at, c->o + (w->h + t) * c->ld_v, (size_t)p->n);
    }
}

/* ---- Rows ---------------------------------------------------------------------------------- */

/* Rows [a, b) of a chunk, none of which forgets but perhaps row a; rows before a are forgotten.
 * Those from row `first` on are new. */
struct range {
    int a, b, first;
    bool forgets, writes;
};

static struct range start_range(struct open *c, const struct gdn_kernels *kr, int a, int b, int h)
{
    struct range x = { .a = a, .b = b, .first = a > h ? a : h };
    x.forgets = gdn_forgets(c->all_g[a]);
    if (x.forgets) c->all_g[a] = 0;
    x.writes = gdn_cut_gates(c->g, c->beta, c->all_g, c->all_beta, a, b);
    kr->chunk_gates(c->A, c->B, c->start, c->end, c->g, c->beta, c->gram);
    gdn_forget_tokens(c->A, c->B, a);
    for (int i = 0; i < a; i++) memset(c->u + i * c->ld_v, 0, (size_t)c->ld_v * sizeof *c->u);
    return x;
}

/* Computes u and o of row i, in columns from `at` on; p and z: S^T k and S^T q. */
static void run_row(struct open *c, const struct gdn_kernels *kr, int i, const float *p,
                    const float *z, ptrdiff_t at)
{
    const int strip = kr->strip;
    const float taken = -c->start[i], *U = c->u + at;
    float *u = c->u + i * c->ld_v + at, *o = c->o + i * c->ld_v + at, minus[C];
    for (int j = 0; j < i; j++) minus[j] = -c->A[i * C + j];
    memcpy(u, c->v + i * c->ld_v + at, (size_t)strip * sizeof *u);
    kr->strip_mul(u, c->ld_v, &taken, 1, p, strip, 1, 1, strip, c->ones);
    kr->norm_row(u, u, c->beta[i], NULL, NULL, false, (size_t)strip);
    kr->strip_mul(u, c->ld_v, minus, C, U, c->ld_v, 1, i, strip, c->ones);
    kr->norm_row(o, z, c->start[i], NULL, NULL, false, (size_t)strip);
    kr->strip_mul(o, c->ld_v, c->B + i * C, C, U, c->ld_v, 1, i + 1, strip, c->ones);
}

/* Returns keys of the range alone: others may not be finite. */
static const float *keys_of(struct open *c, const struct range *x)
{
    const size_t row = (size_t)c->ld * sizeof *c->kq;
    if (x->a == 0) return c->kq;
    memset(c->keys, 0, C * row);
    memcpy(c->keys + x->a * c->ld, c->kq + x->a * c->ld, (size_t)(C - x->a) * row);
    return c->keys;
}

/* Ends S after row 15. */
static void close_chunk(struct open *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                        const struct range *x, float *S, ptrdiff_t at)
{
    const float decay = c->start[C - 1];
    if (!x->writes && decay == 1) return; /* every bit of S stays (G9) */
    for (int i = 0; i < C; i++)
        kr->norm_row(c->w + i * kr->strip, c->u + i * c->ld_v + at, c->end[i], NULL, NULL, false,
                     (size_t)kr->strip);
    kr->chunk_update(S, S, kr->strip, decay, keys_of(c, x), c->ld, c->w, kr->strip, C, r->K);
}

/* ---- Windows ------------------------------------------------------------------------------- */

/* Returns strip s with the state before the range. */
static float *load_strip(struct open *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                         const struct gdn_rule_item *item, const struct gdn_rule_piece *p,
                         const struct window *w, const struct range *x, int s)
{
    float *S = c->S + (c->keeps ? (ptrdiff_t)(s - item->first) * r->K * kr->strip : 0);
    const int col = s % r->n_strips * kr->strip;
    if (x->forgets)
        memset(S, 0, (size_t)(r->K * kr->strip) * sizeof *S);
    else if (!c->keeps || w->row == 0)
        gdn_load_strip(S, kr, gdn_place_of(&r->from, item->seq->slot, p->head, 0), r->K, col,
                       gdn_strip_columns(r, kr, col), c->rows);
    return S;
}

/* A strip as it lies in the pool. */
struct lying {
    const float *at;
    ptrdiff_t ld;
    bool k_first;
};

static struct lying lying_at(const struct gdn_rule *r, const struct gdn_kernels *kr,
                             const struct gdn_rule_item *item, int s)
{
    const struct gdn_pool_view *v = &r->from;
    const int head = gdn_rule_head(r, item->group, s / r->n_strips);
    const int64_t col = s % r->n_strips * kr->strip;
    const float *S = gdn_pool_at(v, item->seq->slot, head);
    return (struct lying){ S + (v->k_first ? col : col * v->ld), v->ld, v->k_first };
}

/* Requests a part of strip s from memory, if the item has the strip. The part of its rows is to
 * all rows as [x, x + n) is to [0, K). */
static void prefetch(const struct gdn_rule *r, const struct gdn_kernels *kr,
                     const struct gdn_rule_item *item, int s, int x, int n)
{
    if (s >= item->last || r->from.gap) return;
    const struct lying S = lying_at(r, kr, item, s);
    const int cols = gdn_strip_columns(r, kr, s % r->n_strips * kr->strip);
    const int rows = S.k_first ? r->K : cols, wide = S.k_first ? cols : r->K;
    for (int i = rows * x / r->K; i < rows * (x + n) / r->K; i++)
        for (int j = 0; j < wide; j += LINE) __builtin_prefetch(S.at + i * S.ld + j, 0, 2);
}

/* Computes few S, a slice of keys at a time: the slice of the next strip is on its way meanwhile.
 * The sums go on from slice to slice, so their order is that of one product. */
static void multiply_lying(struct open *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                           const struct gdn_rule_item *item, const struct window *w, int s)
{
    const struct lying S = lying_at(r, kr, item, s);
    for (int x = 0; x < r->K; x += SLICE) {
        const int n = r->K - x < SLICE ? r->K - x : SLICE;
        prefetch(r, kr, item, s + 1, x, n);
        if (!S.k_first) kr->transpose(c->S, kr->strip, S.at + x, S.ld, kr->strip, n);
        kr->strip_mul(c->p, kr->strip, c->few + x, c->ld, S.k_first ? S.at + x * S.ld : c->S,
                      S.k_first ? S.ld : kr->strip, few_rows(w), n, kr->strip,
                      x > 0 ? c->ones : NULL);
    }
}

/* Returns true if strip s is only read, and lies as the loops take it. */
static bool stays(const struct open *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                  const struct range *x, int s)
{
    return !c->keeps && !x->forgets && x->b < C && !r->from.gap &&
           gdn_strip_columns(r, kr, s % r->n_strips * kr->strip) == kr->strip;
}

static void store_strip(const struct open *c, const struct gdn_rule *r,
                        const struct gdn_kernels *kr, const struct gdn_rule_item *item,
                        const struct gdn_rule_piece *p, int s, const float *S)
{
    const int col = s % r->n_strips * kr->strip;
    gdn_store_strip(S, kr, gdn_place_of(&r->to, item->seq->slot, p->head, 0), r->K, col,
                    gdn_strip_columns(r, kr, col), c->rows);
}

static void run_range(struct open *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                      const struct gdn_rule_item *item, const struct gdn_rule_piece *p,
                      const struct window *w, int a, int b)
{
    const struct range x = start_range(c, kr, a, b, w->h);
    for (int s = p->first; s < p->last; s++) {
        const ptrdiff_t at = (s - p->first) * kr->strip;
        const bool lies = stays(c, r, kr, &x, s);
        float *S = lies ? NULL : load_strip(c, r, kr, item, p, w, &x, s);
        if (lies)
            multiply_lying(c, r, kr, item, w, s);
        else if (w->n > 0)
            kr->strip_mul(c->p, kr->strip, c->few, c->ld, S, kr->strip, few_rows(w), r->K,
                          kr->strip, NULL);
        for (int i = x.first; i < b; i++)
            run_row(c, kr, i, c->p + (i - w->h) * kr->strip, c->p + (w->n + i - w->h) * kr->strip,
                    at);
        if (b < C) continue;
        close_chunk(c, r, kr, &x, S, at);
        if (r->record->accepts) store_strip(c, r, kr, item, p, s, S);
    }
    store_u(c, r, item->seq, p, w, x.first, b);
}

/* A gate that forgets begins a range, as in prefill.c. Of old rows the last range counts. */
static void run_piece(struct open *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                      const struct gdn_rule_item *item, const struct gdn_rule_piece *p,
                      const struct window *w)
{
    const int rows = w->h + w->n;
    int a = 0, b;
    load_gates(c, r, kr, item->seq, p->head, w);
    load_columns(c, r, kr, item->seq, p, w);
    if (w->row > 0) store_u(c, r, item->seq, p, w, 0, w->h);
    for (int i = 1; i <= w->h && i < rows; i++)
        if (gdn_forgets(c->all_g[i])) a = i;
    for (; a < rows; a = b) {
        b = (a > w->h ? a : w->h) + 1;
        if (b > rows) b = rows;
        while (b < rows && !gdn_forgets(c->all_g[b])) b++;
        run_range(c, r, kr, item, p, w, a, b);
    }
    store_o(c, r, kr, item->seq, p, w);
}

static void run_window(struct open *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                       const struct gdn_rule_item *item, const struct window *w)
{
    struct gdn_rule_piece p;
    prefetch(r, kr, item, item->first, 0, r->K);
    load_keys(c, r, kr, item, w);
    for (int s = item->first; s < item->last; s = p.last) {
        p = gdn_rule_piece_at(r, kr, item, s);
        run_piece(c, r, kr, item, &p, w);
    }
}

/* Runs n tokens from t0 on, whole chunks, on the state in its slot. */
static void run_whole(const struct gdn_rule *r, const struct gdn_kernels *kr,
                      const struct gdn_rule_item *item, int64_t t0, int64_t n, void *scratch)
{
    struct gdn_seq seq = *item->seq;
    struct gdn_rule_item whole = *item;
    seq.first += t0, seq.base += t0;
    seq.n_valid = n;
    seq.read = seq.write = seq.slot;
    whole.seq = &seq;
    gdn_chunk_item(r, kr, &whole, scratch);
}

static int least(int64_t a, int64_t b) { return (int)(a < b ? a : b); }

/* Runs what the record holds and the tokens of the item, chunk by chunk. */
static void run_item(const struct gdn_rule *r, const struct gdn_kernels *kr,
                     const struct gdn_rule_item *item, void *scratch)
{
    const struct gdn_record *rec = r->record;
    const int64_t count = gdn_record_count(rec, item->seq->slot), T = item->seq->n_valid;
    struct open c = { .keeps = !rec->accepts };
    lay_out(&c, r, kr, scratch);
    for (int64_t row = 0, t = 0; row < count + T;) {
        const int h = row < count ? least(count - row, C) : 0;
        const int64_t whole = rec->accepts && h == 0 ? (T - t) / C * C : 0;
        if (whole > 0) {
            run_whole(r, kr, item, t, whole, scratch);
            t += whole, row += whole;
            continue;
        }
        const struct window w = { .row = row, .t0 = t, .h = h, .n = least(C - h, T - t) };
        for (int i = 0; i < kr->strip; i++) c.ones[i] = 1;
        run_window(&c, r, kr, item, &w);
        t += w.n, row += C;
    }
}

void gdn_open_item(const struct gdn_rule *r, const struct gdn_kernels *kr,
                   const struct gdn_rule_item *item, void *scratch)
{
    if (item->seq->n_valid > 0) run_item(r, kr, item, scratch);
}

/* ---- Rows of the record -------------------------------------------------------------------- */

struct leave {
    const struct gdn_rule *rule;
    const struct gdn_kernels *kr;
    bool folds; /* sequences without tokens too */
};

/* Stores tokens [t, t + n) of a head of k, or gates of a head, in rows from `row` on. */
static void leave_keys(const struct leave *x, const struct gdn_seq *seq, int head, int64_t t, int n,
                       int64_t row)
{
    const struct gdn_record_rows *k = &x->rule->record->k;
    gdn_rule_load_keys(x->rule, x->kr, seq, head, t, n, gdn_record_at(k, seq->slot, row, head),
                       (ptrdiff_t)(k->row / (int64_t)sizeof(float)));
}

static void leave_gates(const struct leave *x, const struct gdn_seq *seq, int head, int64_t t,
                        int n, int64_t row)
{
    const struct gdn_record *rec = x->rule->record;
    float g[C], beta[C];
    gdn_rule_load_gates(x->rule, x->kr, seq, head, t, n, false, g, beta);
    for (int i = 0; i < n; i++) {
        *gdn_record_gate(rec, seq->slot, row + i, head, 0) = g[i];
        *gdn_record_gate(rec, seq->slot, row + i, head, 1) = beta[i];
    }
}

/* Removes the rows of closed chunks from a record, and moves the others up: of one head of k, or
 * of gates, of one sequence. */
static void leave_item(void *arg, int64_t i, int thread)
{
    const struct leave *x = arg;
    const struct gdn_rule *r = x->rule;
    const struct gdn_record *rec = r->record;
    const struct gdn_seq *seq = &r->seqs[i / (r->Hk + r->H)];
    const int head = (int)(i % (r->Hk + r->H)), gates = head - r->Hk;
    (void)thread;
    if (seq->slot < 0 || (seq->n_valid == 0 && !x->folds)) return;
    const int64_t count = gdn_record_count(rec, seq->slot), all = count + seq->n_valid;
    const int64_t gone = rec->accepts ? all / C * C : 0;
    for (int64_t row = gone; gone > 0 && row < count; row++)
        if (gates < 0)
            gdn_record_move_row(&rec->k, seq->slot, row - gone, row, head, r->K);
        else
            gdn_record_move_gates(rec, seq->slot, row - gone, row, gates);
    for (int64_t row = gone > count ? gone : count; row < all; row += C) {
        const int n = least(all - row, C);
        if (gates < 0)
            leave_keys(x, seq, head, row - count, n, row - gone);
        else
            leave_gates(x, seq, gates, row - count, n, row - gone);
    }
}

void gdn_open_leave_rows(gdn_ctx *ctx, const struct gdn_rule *r)
{
    struct leave x = { r, ctx->kr, false };
    gdn_parallel_for(ctx->threads, r->n_seqs * (r->Hk + r->H), leave_item, &x);
}

/* ---- Fold ---------------------------------------------------------------------------------- */

struct fold {
    const struct gdn_rule *rule;
    const struct gdn_kernels *kr;
    char *scratch;
    size_t thread_bytes;
};

static void fold_item(void *arg, int64_t i, int thread)
{
    const struct fold *x = arg;
    const struct gdn_rule_item item = gdn_rule_item_at(x->rule, 0, i);
    if (item.seq->slot < 0) return;
    run_item(x->rule, x->kr, &item, x->scratch + (size_t)thread * x->thread_bytes);
}

void gdn_open_fold(gdn_ctx *ctx, const struct gdn_rule *r, void *scratch)
{
    struct fold x = { r, ctx->kr, scratch, gdn_open_scratch(r, ctx->kr) };
    struct leave rows = { r, ctx->kr, true };
    gdn_parallel_for(ctx->threads, gdn_rule_items(r), fold_item, &x);
    gdn_parallel_for(ctx->threads, r->n_seqs * (r->Hk + r->H), leave_item, &rows);
    for (int64_t b = 0; b < r->n_seqs; b++) {
        const int64_t slot = r->seqs[b].slot;
        if (slot >= 0) gdn_record_set_count(r->record, slot, gdn_record_count(r->record, slot) % C);
    }
}
