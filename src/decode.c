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
    struct gdn_place            from;
    const struct gdn_pool_view *to_view;
    bool                        staged; /* the state is in scratch, float32, between tokens */
};

/* A place's memory at column col. */
static char *column_at(const struct gdn_place *p, int col)
{
    const int64_t elem = (int64_t)gdn_dtype_bytes(p->view->dtype);
    return p->data ? p->data + (p->view->k_first ? col : col * p->view->ld) * elem : NULL;
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

/* Stores what is in scratch, the state after n_tokens; what no token changed is copied (G9). */
static void store(const struct step_scratch *c, const struct gdn_rule *r,
                  const struct gdn_kernels *kr, const struct gdn_seq *seq, const struct block *b,
                  const struct gdn_place *to, int64_t n_tokens)
{
    if (gdn_rule_keeps(r, kr, seq, b->head, n_tokens, &b->from, to))
        gdn_copy_columns(*to, b->from, r->K, b->col, b->n);
    else
        gdn_store_columns(c->state, to->view->k_first, kr, *to, r->K, b->col, b->n);
}

/* Tokens [i, i + n) of those that `step` describes, with the state in scratch. */
static void run_staged(const struct gdn_kernels *kr, struct gdn_step step,
                       const struct block *b, int i, int n)
{
    void *nowhere[TOKENS] = { NULL };
    step.q += i * step.K, step.k += i * step.K, step.v += i * step.ld_v;
    step.alpha += i, step.beta += i, step.kq += i;
    if (step.o) step.o += i * step.ld_o;
    step.to = nowhere, step.T = n, step.resume = true;
    (b->to_view->k_first ? kr->step_kv : kr->step_vk)[GDN_F32](&step);
}

/* Tokens [t0, t0 + n) of one block. */
static void step_block(struct step_scratch *c, const struct gdn_rule *r,
                       const struct gdn_kernels *kr, const struct gdn_rule_item *item,
                       const struct block *b, int64_t t0, int n, bool resume)
{
    const int        hv    = gdn_rule_source(r, b->head, r->Hv);
    const size_t     bytes = gdn_dtype_bytes(r->v.dtype), cols = (size_t)b->n;
    struct gdn_place places[TOKENS];
    load_tokens(c, r, kr, item, b->head, t0, n);
    for (int t = 0; t < n; t++) {
        const char *v = gdn_row(&r->v, item->seq, t0 + t, hv);
        places[t] = gdn_rule_to(r, item->seq, t0 + t, b->head);
        kr->load_row[r->v.dtype](c->v + t * COLUMNS, v + (size_t)b->col * bytes, cols);
        c->to[t] = column_at(&places[t], b->col);
    }
    const struct gdn_step step = {
        .q = c->kq + n * r->K, .k = c->kq, .v = c->v, .o = r->out.data ? c->o : NULL,
        .alpha = c->alpha, .beta = c->beta, .kq = c->dots, .from = column_at(&b->from, b->col),
        .to = c->to, .scratch = c->state, .ld_v = COLUMNS, .ld_o = COLUMNS,
        .ld_from = b->from.view->ld, .ld_to = b->to_view->ld, .T = n, .K = r->K, .n = b->n,
        .resume = resume,
    };
    for (int i = 0, end; b->staged && i < n; i = end) {
        for (end = i + 1; end < n && !places[end - 1].data;) end++;
        run_staged(kr, step, b, i, end - i);
        if (places[end - 1].data) store(c, r, kr, item->seq, b, &places[end - 1], t0 + end);
    }
    if (!b->staged)
        (b->to_view->k_first ? kr->step_kv : kr->step_vk)[b->to_view->dtype](&step);
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
    const struct gdn_place to = gdn_rule_to(r, seq, seq->n_valid - 1, b->head);
    if (!to.data || to.data == b->from.data) return;
    gdn_load_columns(c->state, to.view->k_first, kr, b->from, r->K, b->col, b->n);
    store(c, r, kr, seq, b, &to, 0);
}

static void step_columns(struct step_scratch *c, const struct gdn_rule *r,
                         const struct gdn_kernels *kr, const struct gdn_rule_item *item,
                         struct block *b)
{
    const struct gdn_seq *seq = item->seq;
    b->from    = gdn_rule_from(r, seq, b->head);
    b->to_view = seq->to_carry ? &r->carry_to : &r->to;
    if (!b->to_view->data) b->to_view = b->from.view;
    if (seq->n_valid == 0) {
        copy_state(c, r, kr, seq, b);
        return;
    }
    b->staged   = gdn_is_eight(b->to_view->dtype);
    bool resume = b->staged || (b->from.data && (b->from.view->dtype != b->to_view->dtype ||
                                                 b->from.view->k_first != b->to_view->k_first));
    if (resume)
        gdn_load_columns(c->state, b->to_view->k_first, kr, b->from, r->K, b->col, b->n);
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
