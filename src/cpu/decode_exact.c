/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GDN_EXACT for whole sequences: token by token, in the order of summation of decode.c, but with
 * the state in strips of columns (float32, k-first) that stay in the L1 cache for some tokens at
 * a time. Where tokens are cut into runs, and what a run starts from, changes no bit.
 */
#include <string.h>

#include "cpu/rule.h"

/* Scratch of one thread; all 64-byte aligned. */
struct exact {
    float *kq;           /* rows of k, then of q, K floats apart */
    float *a, *ak, *aq;  /* [tokens][K] of one head, in the family */
    float *dots;         /* k . q of each token */
    float *alpha, *beta; /* of one head */
    float *v, *o;        /* [tokens][strip] */
    float *rows;         /* [strip][ld]: state rows on their way */
    float *S;            /* strips of [K][strip] */
};

static size_t lay_out(struct exact *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                      char *memory)
{
    const size_t strip = (size_t)kr->strip, K = (size_t)r->K, T = GDN_CHUNK;
    const size_t vectors = r->family.is ? T * K : 0;
    const struct gdn_part parts[] = {
        { &c->kq, 2 * T * K },
        { &c->a, vectors },
        { &c->ak, vectors },
        { &c->aq, vectors },
        { &c->dots, T },
        { &c->alpha, T },
        { &c->beta, T },
        { &c->v, T * strip },
        { &c->o, T * strip },
        { &c->rows, strip * (size_t)gdn_strip_ld(r->K) },
        { &c->S, (size_t)r->part_strips * K * strip },
    };
    return gdn_lay_out(parts, sizeof parts / sizeof *parts, memory);
}

size_t gdn_exact_scratch(const struct gdn_rule *r, const struct gdn_kernels *kr)
{
    struct exact c;
    return lay_out(&c, r, kr, NULL);
}

/* Strip s of an item: columns [col, col + n) of a head. */
struct strip {
    float *S;
    int head, col, n;
};

static struct strip strip_at(const struct exact *c, const struct gdn_rule *r,
                             const struct gdn_kernels *kr, const struct gdn_rule_item *item, int s)
{
    const int col = s % r->n_strips * kr->strip;
    return (struct strip){
        .S = c->S + (ptrdiff_t)(s - item->first) * r->K * kr->strip,
        .head = gdn_rule_head(r, item->group, s / r->n_strips),
        .col = col,
        .n = gdn_strip_columns(r, kr, col),
    };
}

/* Asks for the rows of v and out of the strip after strip i, and for a part of the rows of k and
 * q of the run at t1 that follows: each row lies far from the one before. */
static void prefetch_rows(const struct exact *c, const struct gdn_rule *r,
                          const struct gdn_kernels *kr, const struct gdn_rule_item *item, int i,
                          int64_t t0, int64_t t1)
{
    const bool last = i + 1 == item->last;
    const struct strip s = strip_at(c, r, kr, item, last ? item->first : i + 1);
    const int64_t from = last ? t1 : t0;
    const int hk = gdn_rule_source(r, s.head, r->Hk);
    const int hq = gdn_rule_source(r, s.head, r->Hq);
    for (int64_t t = from; t < from + GDN_CHUNK; t++) {
        gdn_rule_prefetch(&r->v, item->seq, t, gdn_rule_source(r, s.head, r->Hv), s.col, s.n);
        gdn_rule_prefetch(&r->out, item->seq, t, s.head, s.col, s.n);
    }
    for (int t = i - item->first; t < GDN_CHUNK; t += item->last - item->first) {
        gdn_rule_prefetch(&r->k, item->seq, t1 + t, hk, 0, r->K);
        gdn_rule_prefetch(&r->q, item->seq, t1 + t, hq, 0, r->K);
    }
}

/* Loads what is to be written, a row per update. */
static void load_v(const struct exact *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                   const struct gdn_seq *seq, const struct strip *s, int64_t t0, int n)
{
    const int hv = gdn_rule_source(r, s->head, r->Hv);
    const size_t at = (size_t)s->col * gdn_dtype_bytes(r->v.dtype);
    if (r->family.is) {
        gdn_family_load_written(r, kr, seq, s->head, t0, n, s->col, s->n, c->v, kr->strip);
        return;
    }
    for (int t = 0; t < n; t++) {
        const char *v = gdn_row(&r->v, seq, t0 + t, hv);
        kr->load_row[r->v.dtype](c->v + t * kr->strip, v + at, (size_t)s->n);
    }
}

/* Runs tokens [t0, t0 + n) on one strip. */
static void run_strip(const struct exact *c, const struct gdn_rule *r, const struct gdn_kernels *kr,
                      const struct gdn_seq *seq, const struct strip *s, int64_t t0, int n)
{
    const size_t out_at = (size_t)s->col * gdn_dtype_bytes(r->out.dtype), len = (size_t)s->n;
    const int u = gdn_rule_updates(r), rows = n * u;
    const bool vectors = r->family.is;
    load_v(c, r, kr, seq, s, t0, n);
    const struct gdn_recur step = {
        .q = c->kq + rows * r->K,
        .k = c->kq,
        .a = vectors ? c->a : NULL,
        .ak = c->ak,
        .aq = c->aq,
        .v = c->v,
        .o = r->out.data ? c->o : NULL,
        .alpha = c->alpha,
        .beta = c->beta,
        .kq = c->dots,
        .ld_v = kr->strip,
        .ld_o = kr->strip,
        .T = rows,
        .K = r->K,
        .n = kr->strip,
        .updates = u,
    };
    kr->recur_strip[gdn_rule_rounding(r)](s->S, &step);
    for (int t = 0; r->out.data && t < n; t++) {
        char *o = gdn_row(&r->out, seq, t0 + t, s->head);
        kr->store_row[r->out.dtype](o + out_at, c->o + (t * u + u - 1) * kr->strip, len);
    }
}

/* Loads the gates of a head. */
static void load_gates(const struct exact *c, const struct gdn_rule *r,
                       const struct gdn_kernels *kr, const struct gdn_seq *seq, int head,
                       int64_t t0, int n)
{
    const int all = n * gdn_rule_updates(r) * r->K;
    const float *k = c->kq, *q = c->kq + all;
    if (!r->family.is) {
        gdn_rule_load_gates(r, kr, seq, head, t0, n, true, c->alpha, c->beta);
        return;
    }
    gdn_family_load_gates(r, kr, seq, head, t0, n, c->a, c->ak, r->K, c->alpha, c->beta);
    for (int i = 0; i < all; i++) {
        c->ak[i] = c->a[i] * (c->ak[i] * k[i]);
        c->aq[i] = c->a[i] * q[i];
    }
}

static void run_tokens(const struct exact *c, const struct gdn_rule *r,
                       const struct gdn_kernels *kr, const struct gdn_rule_item *item, int64_t t0,
                       int n)
{
    const int rows = n * gdn_rule_updates(r);
    gdn_rule_load_kq(r, kr, item, t0, n, c->kq, r->K, rows);
    for (int t = 0; t < rows; t++)
        c->dots[t] = kr->dot(c->kq + t * r->K, c->kq + (rows + t) * r->K, (size_t)r->K);
    for (int i = item->first; i < item->last; i++) {
        const struct strip s = strip_at(c, r, kr, item, i);
        prefetch_rows(c, r, kr, item, i, t0, t0 + n);
        if (i == item->first || s.col == 0) load_gates(c, r, kr, item->seq, s.head, t0, n);
        run_strip(c, r, kr, item->seq, &s, t0, n);
    }
}

/* Leaves the checkpoints from number *i on that are due after t tokens. Returns where the next
 * one is, or where all is over. */
static int64_t leave_checkpoints(const struct exact *c, const struct gdn_rule *r,
                                 const struct gdn_kernels *kr, const struct gdn_rule_item *item,
                                 int64_t t, int64_t *i)
{
    const struct gdn_seq *seq = item->seq;
    for (; r->checkpoints.data && *i < seq->n_checkpoints; ++*i) {
        int64_t slot;
        const int64_t at = gdn_plan_checkpoint(r->plan, seq, *i, &slot);
        if (at > t) return at < seq->n_valid ? at : seq->n_valid;
        if (slot < 0) continue;
        for (int j = item->first; j < item->last; j++) {
            const struct strip s = strip_at(c, r, kr, item, j);
            gdn_rule_store_strip(r, kr, seq, s.head, s.col, s.S,
                                 gdn_place_of(&r->checkpoints, slot, s.head, seq->base + t), t,
                                 c->rows);
        }
    }
    return seq->n_valid;
}

void gdn_exact_item(const struct gdn_rule *r, const struct gdn_kernels *kr,
                    const struct gdn_rule_item *item, void *scratch)
{
    struct exact c;
    const struct gdn_seq *seq = item->seq;
    int64_t checkpoint = 0; /* the next one, below seq->n_checkpoints */
    const int most = GDN_CHUNK / gdn_rule_updates(r);
    lay_out(&c, r, kr, scratch);
    memset(c.v, 0, GDN_CHUNK * (size_t)kr->strip * sizeof *c.v); /* columns that are not there */
    for (int i = item->first; i < item->last; i++) {
        const struct strip s = strip_at(&c, r, kr, item, i);
        gdn_load_strip(s.S, kr, gdn_rule_from(r, seq, s.head), r->K, s.col, s.n, c.rows);
    }
    if (r->checkpoints.data) checkpoint = gdn_plan_checkpoint_after(r->plan, seq, 0);
    int64_t end = leave_checkpoints(&c, r, kr, item, 0, &checkpoint);
    for (int64_t t = 0, n; t < seq->n_valid; t += n) {
        n = end - t < most ? end - t : most;
        run_tokens(&c, r, kr, item, t, (int)n);
        if (t + n == end) end = leave_checkpoints(&c, r, kr, item, end, &checkpoint);
    }
    for (int i = item->first; i < item->last; i++) {
        const struct strip s = strip_at(&c, r, kr, item, i);
        const struct gdn_place to = gdn_rule_to(r, seq, seq->n_valid - 1, s.head);
        if (to.data) gdn_rule_store_strip(r, kr, seq, s.head, s.col, s.S, to, seq->n_valid, c.rows);
    }
}
