/* SPDX-License-Identifier: Apache-2.0 */
/* See pending.h. */
#include "cpu/record/pending.h"

#include <math.h>
#include <string.h>

enum { TOKENS = GDN_PENDING_TOKENS, COLUMNS = GDN_RECUR_COLUMNS, FOLDED = 32 /* rows at a time */ };
enum { LINE = 64 };

/* ---- Scratch ------------------------------------------------------------------------------- */

/* Lays out the arrays of p for R rows. Returns their bytes. */
static size_t lay_out(struct gdn_pending *p, const struct gdn_rule *r, void *memory)
{
    const size_t R = (size_t)r->record->R, K = (size_t)r->K, rows = r->family.is ? TOKENS * K : 0;
    const struct gdn_part parts[] = {
        { &p->decay, K },
        { &p->y, (R + TOKENS) * K },
        { &p->scale, R + TOKENS },
        { &p->u, (R + TOKENS) * COLUMNS },
        { &p->dots, 2 * TOKENS * R },
        { &p->weights, 2 * TOKENS * R },
        { &p->columns, COLUMNS * (R + TOKENS) },
        { &p->sums, 2 * TOKENS * COLUMNS },
        { &p->alpha, TOKENS },
        { &p->a, rows },
        { &p->ak, rows },
        { &p->aq, rows },
        { &p->e, 2 * rows },
    };
    return gdn_lay_out(parts, sizeof parts / sizeof *parts, memory);
}

size_t gdn_pending_scratch(const struct gdn_rule *r)
{
    struct gdn_pending p;
    return r->record && r->record->accepts ? lay_out(&p, r, NULL) : 0;
}

void gdn_pending_open(struct gdn_pending *p, const struct gdn_rule *r, void *scratch)
{
    p->source = -1;
    if (r->record && r->record->accepts) lay_out(p, r, scratch);
}

/* ---- Rows ---------------------------------------------------------------------------------- */

static void prefetch_rows(const struct gdn_record_rows *rows, int64_t slot, int64_t n, int head,
                          size_t bytes)
{
    for (int64_t row = 0; row < n; row++) {
        const char *at = gdn_record_at(rows, slot, row, head);
        for (size_t i = 0; i < bytes; i += LINE) __builtin_prefetch(at + i, 0, 2);
    }
}

void gdn_pending_prefetch(const struct gdn_rule *r, int64_t slot, int head)
{
    const struct gdn_record *rec = r->record;
    const int64_t n = gdn_record_count(rec, slot);
    const size_t k = (size_t)r->K * gdn_dtype_bytes(rec->k.dtype);
    const size_t u = (size_t)r->V * gdn_dtype_bytes(rec->u.dtype);
    prefetch_rows(&rec->g, slot, n, head, 1);
    prefetch_rows(&rec->k, slot, n, gdn_rule_source(r, head, r->Hk), k);
    prefetch_rows(&rec->u, slot, n, head, u);
}

/* Loads columns [col, col + n) of rows [first, end), ld floats apart. */
static void load_rows(float *to, int ld, const struct gdn_pending *p, const struct gdn_kernels *kr,
                      const struct gdn_record_rows *rows, int head, int64_t first, int64_t end,
                      int col, int n)
{
    const int64_t unit = (int64_t)gdn_dtype_bytes(rows->dtype);
    const char *at = (char *)gdn_record_at(rows, p->slot, first, head) + col * unit;
    if (ld == n && rows->row == n * unit) { /* in one piece */
        kr->load_row[rows->dtype](to, at, (size_t)((end - first) * n));
        return;
    }
    for (int64_t i = first; i < end; i++, at += rows->row)
        kr->load_row[rows->dtype](to + (i - first) * ld, at, (size_t)n);
}

static void load_keys(struct gdn_pending *p, const struct gdn_rule *r, const struct gdn_kernels *kr)
{
    load_rows(p->y, r->K, p, kr, &r->record->k, p->source, 0, p->n, 0, r->K);
}

/* Loads keys. Their scales are the decays of the rows behind them. */
static void load_scaled(struct gdn_pending *p, const struct gdn_rule *r,
                        const struct gdn_kernels *kr, int hk)
{
    const struct gdn_record *rec = r->record;
    float decay = 1;
    int64_t row = p->n;
    if (p->source != hk) {
        p->source = hk;
        p->has_dots = false;
        load_keys(p, r, kr);
    }
    while (row > 0 && decay != 0) {
        const float g = *gdn_record_gate(rec, p->slot, --row, p->head, 0);
        p->scale[row] = signbit(g) ? 0 : decay;
        decay *= fabsf(g);
    }
    p->first = row;
    p->decay[0] = decay;
    p->forgets = decay == 0;
}

/* Keys times the decays of their channels, which the tokens of the family have, even if each gate
 * is one number. Returns false if a decay is 0. */
static bool load_channels(struct gdn_pending *p, const struct gdn_rule *r,
                          const struct gdn_kernels *kr, int hk)
{
    const struct gdn_record *rec = r->record;
    p->first = 0;
    p->source = hk;
    p->has_dots = p->forgets = false;
    for (int x = 0; x < r->K; x++) p->decay[x] = 1;
    load_keys(p, r, kr);
    for (int64_t row = p->n - 1; row >= 0; row--) {
        float *y = p->y + row * r->K;
        p->scale[row] = signbit(*gdn_record_gate(rec, p->slot, row, p->head, 0)) ? 0 : 1;
        kr->norm_row(y, y, 1, p->decay, NULL, false, (size_t)r->K);
        for (int x = 0; x < r->K; x++) {
            const float a = fabsf(*gdn_record_gate(rec, p->slot, row, p->head, x));
            if (a == 0) return false;
            p->decay[x] *= a;
        }
    }
    return true;
}

bool gdn_pending_load(struct gdn_pending *p, const struct gdn_rule *r, const struct gdn_kernels *kr,
                      int64_t slot, int head)
{
    const int hk = gdn_rule_source(r, head, r->Hk);
    p->slot = slot, p->head = head;
    p->n = gdn_record_count(r->record, slot);
    p->tokens = 0;
    if (r->family.is) return load_channels(p, r, kr, hk);
    load_scaled(p, r, kr, hk);
    return true;
}

/* Loads columns [col, col + n) of u of the record's rows. */
static void load_u(struct gdn_pending *p, const struct gdn_rule *r, const struct gdn_kernels *kr,
                   int col, int n)
{
    load_rows(p->u + p->first * COLUMNS, COLUMNS, p, kr, &r->record->u, p->head, p->first, p->n,
              col, n);
}

/* ---- Tokens -------------------------------------------------------------------------------- */

/* Returns k and q of the tokens, times the decays of channels since the call began. With these
 * factors they can be multiplied with the state before the call. */
static const float *meet(struct gdn_pending *p, const struct gdn_kernels *kr,
                         const struct gdn_recur *s)
{
    const int K = s->K, T = s->T;
    float since[GDN_MAX_HEAD];
    if (!s->a) return s->k;
    for (int x = 0; x < K; x++) since[x] = 1;
    for (int t = 0; t < T; t++) {
        kr->norm_row(p->e + t * K, s->ak + t * K, 1, since, NULL, false, (size_t)K);
        kr->norm_row(p->e + (T + t) * K, s->aq + t * K, 1, since, NULL, false, (size_t)K);
        kr->norm_row(since, since, 1, s->a + t * K, NULL, false, (size_t)K);
    }
    return p->e;
}

/* Dots of k and q with the rows, times the decays behind these. */
static void weigh(struct gdn_pending *p, const struct gdn_kernels *kr, const struct gdn_recur *s)
{
    const int T = s->T, rows = (int)p->n;
    float since = 1;
    if (!p->has_dots)
        kr->gemm_nt(p->dots, rows, meet(p, kr, s), s->K, p->y, s->K, 2 * T, rows, s->K, false);
    p->has_dots = true;
    for (int t = 0; t < 2 * T; t++) {
        since = s->a ? 1 : s->alpha[t % T] * (t % T > 0 ? since : 1);
        for (int64_t i = p->first; i < rows; i++) {
            const float scale = p->scale[i] * since;
            p->weights[t * rows + i] = p->scale[i] == 0 ? 0 : p->dots[t * rows + i] * scale;
        }
    }
}

/* Sums what the rows hold for k and q of the tokens, in n columns: one product of all rows. */
static void add_rows(struct gdn_pending *p, const struct gdn_rule *r, const struct gdn_kernels *kr,
                     const struct gdn_recur *s, int col)
{
    const int T = s->T, n = s->n, strip = kr->strip, rows = (int)p->n, some = rows - (int)p->first;
    const float *w = p->weights + p->first, *u = p->u + p->first * COLUMNS;
    int j = 0;
    if (rows > 0) weigh(p, kr, s);
    load_u(p, r, kr, col, n);
    for (; some > 0 && j + strip <= n; j += strip)
        kr->strip_mul(p->sums + j, n, w, rows, u + j, COLUMNS, 2 * T, some, strip, NULL);
    for (int t = 0; t < 2 * T && j < n; t++) {
        float *sum = p->sums + t * n + j;
        memset(sum, 0, (size_t)(n - j) * sizeof *sum);
        for (int i = 0; i < some; i++)
            kr->add_outer(sum, 1, n - j, 1, w + t * rows + i, u + i * COLUMNS + j);
    }
}

/* The decays of S become part of the first token's. */
static void decay_state(struct gdn_pending *p, const struct gdn_kernels *kr, struct gdn_recur *s)
{
    const size_t K = (size_t)s->K, rows = (size_t)s->T * K * sizeof(float);
    memcpy(p->alpha, s->alpha, (size_t)s->T * sizeof(float));
    s->alpha = p->alpha;
    if (!s->a) {
        p->alpha[0] *= p->decay[0];
        return;
    }
    memcpy(p->a, s->a, rows), memcpy(p->ak, s->ak, rows), memcpy(p->aq, s->aq, rows);
    float *const all[] = { p->a, p->ak, p->aq };
    for (int i = 0; i < 3; i++) kr->norm_row(all[i], all[i], 1, p->decay, NULL, false, K);
    p->alpha[0] = kr->decay_kind(p->a, K);
    s->a = p->a, s->ak = p->ak, s->aq = p->aq;
}

bool gdn_pending_begin(struct gdn_pending *p, const struct gdn_rule *r,
                       const struct gdn_kernels *kr, struct gdn_recur *step, float *v, int col)
{
    for (int t = 0; t < step->T; t++)
        if (step->alpha[t] == 0) return false;
    add_rows(p, r, kr, step, col);
    decay_state(p, kr, step);
    for (int t = 0; t < step->T; t++)
        for (int j = 0; j < step->n; j++) v[t * step->ld_v + j] -= p->sums[t * step->n + j];
    return true;
}

/* ---- Fold ---------------------------------------------------------------------------------- */

bool gdn_pending_takes(const struct gdn_rule *r, const struct gdn_kernels *kr)
{
    return r->K % kr->strip == 0 && r->V % kr->strip == 0;
}

/* Multiplies rows, and the decays of S, by the decays of a token. */
static void decay_rows(struct gdn_pending *p, const struct gdn_kernels *kr,
                       const struct gdn_recur *s, int t)
{
    const int K = s->K;
    const float *a = s->a ? s->a + t * K : NULL;
    for (int64_t row = p->first; row < p->n + t; row++) {
        float *y = p->y + row * K;
        if (a)
            kr->norm_row(y, y, 1, a, NULL, false, (size_t)K);
        else
            p->scale[row] *= s->alpha[t];
    }
    for (int x = 0; x < K; x++) p->decay[x] *= a ? a[x] : s->alpha[t];
}

/* Multiplies u by the scales. Rows that are left out become zeros. */
static void scale_rows(struct gdn_pending *p, const struct gdn_kernels *kr, int K, int n)
{
    for (int64_t row = p->first; row < p->n + p->tokens; row++) {
        float *u = p->u + row * COLUMNS;
        if (p->scale[row] == 0) {
            memset(u, 0, (size_t)n * sizeof *u);
            memset(p->y + row * K, 0, (size_t)K * sizeof *p->y);
            p->source = -1; /* y is of this head alone */
        } else if (p->scale[row] != 1) {
            kr->norm_row(u, u, p->scale[row], NULL, NULL, false, (size_t)n);
        }
    }
}

/* Tokens become rows too, which no record has. */
static void append(struct gdn_pending *p, const struct gdn_kernels *kr, const struct gdn_recur *s)
{
    const int K = s->K;
    for (int x = 1; x < K && !s->a; x++) p->decay[x] = p->decay[0];
    for (int t = 0; t < s->T; t++) {
        const int64_t row = p->n + t;
        decay_rows(p, kr, s, t);
        memcpy(p->y + row * K, s->k + t * K, (size_t)K * sizeof(float));
        memcpy(p->u + row * COLUMNS, s->u + t * s->ld_o, (size_t)s->n * sizeof(float));
        p->scale[row] = s->beta[t] == 0 ? 0 : 1;
    }
    p->tokens = s->T;
    scale_rows(p, kr, K, s->n);
}

/* Rows of S are columns of the state. */
static void fold_vk(struct gdn_pending *p, const struct gdn_kernels *kr, int K, int n, float *S,
                    ptrdiff_t ld)
{
    const int rows = (int)(p->n + p->tokens - p->first);
    kr->transpose(p->columns, rows, p->u + p->first * COLUMNS, COLUMNS, rows, n);
    for (int x = 0; x < K; x += kr->strip)
        kr->strip_mul(S + x, ld, p->columns, rows, p->y + p->first * K + x, K, n, rows, kr->strip,
                      p->decay + x);
}

static void fold_kv(struct gdn_pending *p, const struct gdn_kernels *kr, int K, int n, float *S,
                    ptrdiff_t ld)
{
    const int64_t rows = p->n + p->tokens;
    float ones[GDN_MAX_HEAD];
    for (int x = 0; x < K; x++) ones[x] = 1;
    for (int64_t i = p->first; i < rows; i += FOLDED) {
        const int some = rows - i < FOLDED ? (int)(rows - i) : FOLDED;
        for (int j = 0; j < n; j += kr->strip)
            kr->channel_update(S + j, S + j, ld, i > p->first ? ones : p->decay, p->y + i * K, K,
                               p->u + i * COLUMNS + j, COLUMNS, some, K);
    }
}

void gdn_pending_fold(struct gdn_pending *p, const struct gdn_kernels *kr,
                      const struct gdn_recur *s, bool k_first, float *S, ptrdiff_t ld)
{
    const int K = s->K, n = s->n;
    append(p, kr, s);
    for (int i = 0; p->forgets && i < (k_first ? K : n); i++)
        memset(S + i * ld, 0, (size_t)(k_first ? n : K) * sizeof *S);
    if (k_first)
        fold_kv(p, kr, K, n, S, ld);
    else
        fold_vk(p, kr, K, n, S, ld);
}
