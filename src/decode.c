/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recurrent form of the rule: token by token, on the state where it lies. An item walks
 * its heads in blocks of at most 128 columns; what the heads of a group share (k, q, k . q) is
 * loaded once.
 */
#include <string.h>

#include "rule.h"

enum { TOKENS = GDN_CHUNK, COLUMNS = GDN_STEP_COLUMNS };

/* Scratch of one thread. */
struct step_scratch {
    _Alignas(64) float state[GDN_MAX_HEAD * COLUMNS];
    float  kq[2 * TOKENS * GDN_MAX_HEAD]; /* rows of k, then of q, K floats apart */
    float  v[TOKENS * COLUMNS], o[TOKENS * COLUMNS];
    float  rows[GDN_MAX_HEAD];
    float  alpha[TOKENS], beta[TOKENS], dots[TOKENS];
    void  *to[TOKENS];
    int    head;  /* whose gates are loaded, of tokens from t0 */
    int64_t t0;   /* whose k and q are loaded */
};

size_t gdn_step_scratch(const struct gdn_rule *r)
{
    (void)r;
    return gdn_align64(sizeof(struct step_scratch));
}

/* Columns [col, col + n) of one head. */
struct block {
    int                         head, col, n;
    const struct gdn_pool_view *from_view, *to_view;
    const char                 *from; /* at column col; NULL: zero */
};

static int64_t column_bytes(const struct gdn_pool_view *view, int col)
{
    const int64_t elem = (int64_t)gdn_dtype_bytes(view->dtype);
    return view->k_first ? col * elem : col * view->ld * elem;
}

/* Loads what tokens [t0, t0 + n) need beside the state, unless it is there. */
static void load_tokens(struct step_scratch *c, const struct gdn_rule *r,
                        const struct gdn_kernels *kr, const struct gdn_rule_item *item, int head,
                        int64_t t0, int n)
{
    if (c->t0 != t0) {
        gdn_rule_load_kq(r, kr, item, t0, n, c->kq, r->K, n);
        for (int t = 0; t < n; t++)
            c->dots[t] = kr->dot(c->kq + t * r->K, c->kq + (n + t) * r->K, (size_t)r->K);
    }
    if (c->t0 != t0 || c->head != head)
        gdn_rule_load_gates(r, kr, item->seq, head, t0, n, true, c->alpha, c->beta);
    c->t0   = t0;
    c->head = head;
}

/* The state as float32 into scratch, in the orientation of to_view, as the loops resume it. */
static void stage(struct step_scratch *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                  const struct block *b)
{
    const struct gdn_pool_view *f    = b->from_view;
    const int64_t               elem = (int64_t)gdn_dtype_bytes(f->dtype);
    const int n_rows = f->k_first ? r->K : b->n, n_cols = f->k_first ? b->n : r->K;
    for (int i = 0; i < n_rows; i++) {
        kr->load_row[f->dtype](c->rows, b->from + i * f->ld * elem, (size_t)n_cols);
        const bool same = f->k_first == b->to_view->k_first;
        for (int j = 0; j < n_cols; j++)
            c->state[same ? i * n_cols + j : j * n_rows + i] = c->rows[j];
    }
}

/* Tokens [t0, t0 + n) of one block. */
static void step_block(struct step_scratch *c, const struct gdn_rule *r,
                       const struct gdn_kernels *kr, const struct gdn_rule_item *item,
                       const struct block *b, int64_t t0, int n, bool resume)
{
    const int    hv    = gdn_rule_source(r, b->head, r->Hv);
    const size_t bytes = gdn_dtype_bytes(r->v.dtype), cols = (size_t)b->n;
    load_tokens(c, r, kr, item, b->head, t0, n);
    for (int t = 0; t < n; t++) {
        const struct gdn_pool_view *view;
        const char *v = gdn_row(&r->v, item->seq, t0 + t, hv);
        char       *to = gdn_rule_to(r, item->seq, t0 + t, b->head, &view);
        kr->load_row[r->v.dtype](c->v + t * COLUMNS, v + (size_t)b->col * bytes, cols);
        c->to[t] = to ? to + column_bytes(view, b->col) : NULL;
    }
    const struct gdn_step step = {
        .q = c->kq + n * r->K, .k = c->kq, .v = c->v, .o = r->out.data ? c->o : NULL,
        .alpha = c->alpha, .beta = c->beta, .kq = c->dots, .from = b->from, .to = c->to,
        .scratch = c->state, .ld_v = COLUMNS, .ld_o = COLUMNS, .ld_from = b->from_view->ld,
        .ld_to = b->to_view->ld, .T = n, .K = r->K, .n = b->n, .resume = resume,
        .exact = r->exact, .round = gdn_rule_rounding(r),
    };
    if (b->to_view->k_first)
        kr->step_kv[b->to_view->dtype](&step);
    else
        kr->step_vk[b->to_view->dtype](&step);
    for (int t = 0; r->out.data && t < n; t++) {
        char *o = gdn_row(&r->out, item->seq, t0 + t, b->head);
        kr->store_row[r->out.dtype](o + (size_t)b->col * bytes, c->o + t * COLUMNS, cols);
    }
}

/* No token counts: the final state is the one that the sequence started from. */
static void copy_state(struct step_scratch *c, const struct gdn_rule *r,
                       const struct gdn_kernels *kr, const struct gdn_seq *seq,
                       const struct block *b)
{
    const struct gdn_pool_view *to_view;
    char *to = gdn_rule_to(r, seq, seq->n_valid - 1, b->head, &to_view);
    if (!to) return;
    to += column_bytes(to_view, b->col);
    if (to == b->from) return;
    if (b->from)
        stage(c, r, kr, b);
    else
        memset(c->state, 0, sizeof c->state);
    const int n_rows = to_view->k_first ? r->K : b->n, n_cols = to_view->k_first ? b->n : r->K;
    const int64_t row = to_view->ld * (int64_t)gdn_dtype_bytes(to_view->dtype);
    for (int i = 0; i < n_rows; i++)
        kr->store_row[to_view->dtype](to + i * row, c->state + i * n_cols, (size_t)n_cols);
}

static void step_columns(struct step_scratch *c, const struct gdn_rule *r,
                         const struct gdn_kernels *kr, const struct gdn_rule_item *item,
                         struct block *b)
{
    const struct gdn_seq *seq = item->seq;
    b->from = gdn_rule_from(r, seq, b->head, &b->from_view);
    if (b->from) b->from += column_bytes(b->from_view, b->col);
    b->to_view = seq->to_carry ? &r->carry_to : &r->to;
    if (!b->to_view->data) b->to_view = b->from_view;
    if (seq->n_valid == 0) {
        copy_state(c, r, kr, seq, b);
        return;
    }
    bool resume = b->from && (b->from_view->dtype != b->to_view->dtype ||
                              b->from_view->k_first != b->to_view->k_first);
    if (resume) stage(c, r, kr, b);
    for (int64_t t0 = 0; t0 < seq->n_valid; t0 += TOKENS) {
        const int n = seq->n_valid - t0 < TOKENS ? (int)(seq->n_valid - t0) : TOKENS;
        step_block(c, r, kr, item, b, t0, n, resume);
        resume = true;
    }
}

void gdn_step_item(const struct gdn_rule *r, const struct gdn_kernels *kr,
                   const struct gdn_rule_item *item, void *scratch)
{
    struct step_scratch *c = scratch;
    c->t0                  = -1;
    for (int s = item->first; s < item->last;) {
        const int end = (s / r->n_strips + 1) * r->n_strips;
        const int last = end < item->last ? end : item->last;
        struct block b = { .head = gdn_rule_head(r, item->group, s / r->n_strips) };
        int last_col = (last - end + r->n_strips) * kr->strip;
        if (last_col > r->V) last_col = r->V;
        for (b.col = s % r->n_strips * kr->strip; b.col < last_col; b.col += COLUMNS) {
            b.n = last_col - b.col < COLUMNS ? last_col - b.col : COLUMNS;
            step_columns(c, r, kr, item, &b);
        }
        s = last;
    }
}
