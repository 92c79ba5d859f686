/* SPDX-License-Identifier: Apache-2.0 */
/* See pending.h. */
#include "cpu/pending.h"

#include <math.h>
#include <string.h>

enum { TOKENS = GDN_PENDING_TOKENS, COLUMNS = GDN_RECUR_COLUMNS, FOLDED = 32 /* rows at a time */ };
enum { LINE = 64 };

/* ---- Scratch ------------------------------------------------------------------------------- */

struct part {
    float **at;
    int64_t n;
};

/* Lays out the arrays of p for R rows. Returns their floats. */
static size_t lay_out(struct gdn_pending *p, const struct gdn_rule *r, float *memory)
{
    const int64_t R = r->record->R, K = r->K, rows = r->family.is ? TOKENS * K : 0;
    const struct part parts[] = {
        { &p->decay, K },
        { &p->y, R * K },
        { &p->scale, R },
        { &p->u, R * COLUMNS },
        { &p->dots, 2 * TOKENS * R },
        { &p->columns, COLUMNS * R },
        { &p->sums, 2 * TOKENS * COLUMNS },
        { &p->alpha, TOKENS },
        { &p->a, rows },
        { &p->ak, rows },
        { &p->aq, rows },
        { &p->e, 2 * rows },
    };
    size_t floats = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].at = memory ? memory + floats : NULL;
        floats += (size_t)((parts[i].n + 15) & ~(int64_t)15);
    }
    return floats;
}

size_t gdn_pending_scratch(const struct gdn_rule *r)
{
    struct gdn_pending p;
    if (!r->record || !r->record->accepts) return 0;
    return lay_out(&p, r, NULL) * sizeof(float);
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

static float gate_at(const struct gdn_record *rec, int64_t slot, int64_t row, int head, int64_t x)
{
    const char *g = gdn_record_at(&rec->g, slot, row, head);
    return *(const float *)(const void *)(g + x * rec->g_channel);
}

static void load_key(struct gdn_pending *p, const struct gdn_record *rec,
                     const struct gdn_kernels *kr, int64_t row, int K)
{
    kr->load_row[rec->k.dtype](p->y + row * K, gdn_record_at(&rec->k, p->slot, row, p->source),
                               (size_t)K);
}

/* Keys as they are, whose scales are the decays behind them. */
static void load_scaled(struct gdn_pending *p, const struct gdn_rule *r,
                        const struct gdn_kernels *kr, int hk)
{
    const struct gdn_record *rec = r->record;
    float decay = 1;
    int64_t row = p->n;
    if (p->source != hk) {
        p->source = hk;
        p->has_dots = false;
        for (int64_t i = 0; i < p->n; i++) load_key(p, rec, kr, i, r->K);
    }
    while (row > 0 && decay != 0) {
        const float g = gate_at(rec, p->slot, --row, p->head, 0);
        p->scale[row] = signbit(g) ? 0 : decay;
        decay *= fabsf(g);
    }
    p->first = row;
    for (int x = 0; x < r->K; x++) p->decay[x] = decay;
}

/* Keys times the decays of their channels. Returns false if one of these is 0. */
static bool load_channels(struct gdn_pending *p, const struct gdn_rule *r,
                          const struct gdn_kernels *kr, int hk)
{
    const struct gdn_record *rec = r->record;
    p->first = 0;
    p->source = hk;
    p->has_dots = false;
    for (int x = 0; x < r->K; x++) p->decay[x] = 1;
    for (int64_t row = p->n - 1; row >= 0; row--) {
        float *y = p->y + row * r->K;
        p->scale[row] = signbit(gate_at(rec, p->slot, row, p->head, 0)) ? 0 : 1;
        load_key(p, rec, kr, row, r->K);
        kr->norm_row(y, y, 1, p->decay, NULL, false, (size_t)r->K);
        for (int x = 0; x < r->K; x++) {
            const float a = fabsf(gate_at(rec, p->slot, row, p->head, x));
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
    if (r->record->channels > 1) return load_channels(p, r, kr, hk);
    load_scaled(p, r, kr, hk);
    return true;
}

/* Loads columns of u of a row. */
static void load_u(struct gdn_pending *p, const struct gdn_rule *r, const struct gdn_kernels *kr,
                   int64_t row, int col, int n)
{
    const struct gdn_record_rows *u = &r->record->u;
    const char *at = gdn_record_at(u, p->slot, row, p->head);
    kr->load_row[u->dtype](p->u + row * COLUMNS, at + (size_t)col * gdn_dtype_bytes(u->dtype),
                           (size_t)n);
}

/* ---- Tokens -------------------------------------------------------------------------------- */

/* e: k and q of the tokens as they meet the state before the call, decays of channels included. */
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

/* Sums what the rows hold for k and q of the tokens, in n columns. */
static void add_rows(struct gdn_pending *p, const struct gdn_rule *r, const struct gdn_kernels *kr,
                     const struct gdn_recur *s, int col)
{
    const int T = s->T, rows = (int)p->n;
    float since[TOKENS], weights[2 * TOKENS];
    for (int t = 0; t < T; t++) since[t] = s->a ? 1 : s->alpha[t] * (t > 0 ? since[t - 1] : 1);
    if (!p->has_dots && rows > 0)
        kr->gemm_nt(p->dots, rows, meet(p, kr, s), s->K, p->y, s->K, 2 * T, rows, s->K, false);
    p->has_dots = true;
    memset(p->sums, 0, (size_t)(2 * T * s->n) * sizeof *p->sums);
    for (int64_t row = p->first; row < rows; row++) {
        if (p->scale[row] == 0) continue;
        load_u(p, r, kr, row, col, s->n);
        for (int t = 0; t < 2 * T; t++)
            weights[t] = p->dots[t * rows + row] * p->scale[row] * since[t % T];
        kr->add_outer(p->sums, 2 * T, s->n, 1, weights, p->u + row * COLUMNS);
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

/* Loads u times its scale, of n columns. Rows that are left out become zeros. */
static void load_scaled_u(struct gdn_pending *p, const struct gdn_rule *r,
                          const struct gdn_kernels *kr, int col, int n)
{
    for (int64_t row = p->first; row < p->n; row++) {
        float *u = p->u + row * COLUMNS;
        if (p->scale[row] == 0) {
            memset(u, 0, (size_t)n * sizeof *u);
            memset(p->y + row * r->K, 0, (size_t)r->K * sizeof *p->y);
            p->source = -1; /* y is of this head alone */
            continue;
        }
        load_u(p, r, kr, row, col, n);
        if (p->scale[row] != 1) kr->norm_row(u, u, p->scale[row], NULL, NULL, false, (size_t)n);
    }
}

/* Rows of S are columns of the state. */
static void fold_vk(struct gdn_pending *p, const struct gdn_kernels *kr, int K, int n, float *S)
{
    const int rows = (int)(p->n - p->first);
    kr->transpose(p->columns, rows, p->u + p->first * COLUMNS, COLUMNS, rows, n);
    for (int x = 0; x < K; x += kr->strip)
        kr->strip_mul(S + x, K, p->columns, rows, p->y + p->first * K + x, K, n, rows, kr->strip,
                      p->decay + x);
}

static void fold_kv(struct gdn_pending *p, const struct gdn_kernels *kr, int K, int n, float *S)
{
    float ones[GDN_MAX_HEAD];
    for (int x = 0; x < K; x++) ones[x] = 1;
    for (int64_t i = p->first; i < p->n; i += FOLDED) {
        const int some = p->n - i < FOLDED ? (int)(p->n - i) : FOLDED;
        for (int j = 0; j < n; j += kr->strip)
            kr->channel_update(S + j, S + j, n, i > p->first ? ones : p->decay, p->y + i * K, K,
                               p->u + i * COLUMNS + j, COLUMNS, some, K);
    }
}

void gdn_pending_fold(struct gdn_pending *p, const struct gdn_rule *r, const struct gdn_kernels *kr,
                      int col, int n, bool k_first, float *S)
{
    load_scaled_u(p, r, kr, col, n);
    if (p->decay[0] == 0 && r->record->channels == 1) memset(S, 0, (size_t)(r->K * n) * sizeof *S);
    if (p->first == p->n) return;
    if (k_first)
        fold_kv(p, kr, r->K, n, S);
    else
        fold_vk(p, kr, r->K, n, S);
}
