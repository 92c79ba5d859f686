/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of the chunked form (docs/design/math.md). An item is a sequence and a set of heads.
 * A first walk leaves the states at the start of each segment; then, from the last segment to the
 * first, a second one leaves those of its chunks with R and U, and the chunks are swept backwards.
 * A sequence of one segment has no first walk, nor has one whose segments begin at checkpoints of
 * the caller. What a chunk of a head is: chunk.c, and family.c for the family of gdn.h.
 */
#include <math.h>
#include <string.h>

#include "cpu/backward/sweep.h"

enum { C = GDN_CHUNK };

/* A segment has as many chunks as fit in these bytes, but no fewer than this. */
enum { SEGMENT_BYTES = 32 << 20, SEGMENT_LEAST = 16 };

/* Returns the floats from row to row: an odd number of 64-byte lines, since rows at powers of two
 * would share few places of a cache. */
static ptrdiff_t stride_v(const struct gdn_rule *r, const struct gdn_kernels *kr)
{
    const int wide = (r->V + kr->strip - 1) / kr->strip * kr->strip;
    return ((wide + 15) & ~15) | 16;
}

/* Returns the chunks of a segment: a multiple of those between checkpoints, if these fit. Which
 * checkpoints are read does not depend on other sequences. */
static int64_t segment_chunks(const struct gdn_backward *w, const struct gdn_kernels *kr, int chunk)
{
    const int64_t floats = (w->rule.K + 2 * C) * (int64_t)stride_v(&w->rule, kr) * w->set_heads;
    const int64_t fit = SEGMENT_BYTES / (floats * (int64_t)sizeof(float));
    const int64_t most = w->longest / chunk + 1;
    const int64_t chunks = fit < SEGMENT_LEAST ? SEGMENT_LEAST : fit, every = w->every / C;
    const int64_t whole = every && every <= chunks ? chunks - chunks % every : chunks;
    return whole < most ? whole : most;
}

static size_t lay_out(struct gdn_sweep *s, const struct gdn_backward *w,
                      const struct gdn_kernels *kr, char *memory)
{
    const struct gdn_rule *r = &w->rule;
    const size_t strip = (size_t)kr->strip, K = (size_t)r->K, heads = (size_t)w->set_heads;
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
    const bool family = r->family.is;
    const size_t tokens = family ? gdn_backward_tokens_lay_out(&s->tokens, w, s->ld_v, NULL) : 0;
    float *token_memory;
    const size_t row_f = family ? row_k : 0, one_f = family ? K : 0;
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
        { &s->R, family ? 0 : chunks * row_v },
        { &s->U, chunks * row_v },
        { &s->dq, heads * row_k },
        { &s->dk, heads * row_k },
        { &s->dv, heads * row_v },
        { &s->f.a, row_f },
        { &s->f.b, row_f },
        { &s->f.e, row_f },
        { &s->f.scaled, 2 * row_f },
        { &s->f.end, row_f },
        { &s->f.de, 2 * row_f }, /* and dq */
        { &s->f.dk, row_f },
        { &s->f.dg, row_f },
        { &s->f.alpha, C },
        { &s->f.written, C },
        { &s->f.decays, one_f },
        { &s->f.carried, one_f },
        { &token_memory, tokens / sizeof(float) },
    };
    const size_t bytes = gdn_lay_out(parts, sizeof parts / sizeof *parts, memory);
    if (tokens)
        gdn_backward_tokens_lay_out(&s->tokens, w, s->ld_v, memory ? (char *)token_memory : NULL);
    s->tokens.kr = kr;
    if (memory) s->f.dq = s->f.de + row_f;
    return bytes;
}

size_t gdn_backward_scratch(const struct gdn_backward *w, const struct gdn_kernels *kr)
{
    struct gdn_sweep s;
    return gdn_align64(lay_out(&s, w, kr, NULL));
}

static int gcd(int a, int b) { return b ? gcd(b, a % b) : a; }

void gdn_backward_sets(struct gdn_backward *w)
{
    const struct gdn_rule *r = &w->rule;
    w->n_sets = gcd(gcd(r->Hq, r->Hk), r->Hv);
    w->set_heads = r->H / w->n_sets;
}

static int head_at(const struct gdn_sweep *s, int i)
{
    const struct gdn_backward *w = s->w;
    return w->rule.head_map == GDN_HEADS_GROUPED ? s->set * w->set_heads + i
                                                 : i * w->n_sets + s->set;
}

/* Head `of` n heads of a tensor, by its number in the set; and back. */
static int local(const struct gdn_sweep *s, int of, int n)
{
    const int f = s->w->n_sets;
    return s->w->rule.head_map == GDN_HEADS_GROUPED ? of - s->set * (n / f) : of / f;
}
static int global(const struct gdn_sweep *s, int i, int n)
{
    const int f = s->w->n_sets;
    return s->w->rule.head_map == GDN_HEADS_GROUPED ? s->set * (n / f) + i : i * f + s->set;
}

static float *of_head(float *all, size_t size, int i) { return all + (size_t)i * size; }

static void load_state(struct gdn_sweep *s, float *S, struct gdn_place from)
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

static int tokens_at(const struct gdn_sweep *s, int64_t chunk)
{
    const int64_t left = s->seq->n_valid - chunk * s->chunk;
    return left < s->chunk ? (int)left : s->chunk;
}

/* Chunk `chunk` of member h of the set. */
static struct gdn_sweep_chunk chunk_at(const struct gdn_sweep *s, int h, int64_t chunk)
{
    const struct gdn_rule *r = &s->w->rule;
    const int head = head_at(s, h), place = (int)(chunk % s->segment) * s->w->set_heads + h;
    const size_t row_k = C * (size_t)s->ld, row_v = C * (size_t)s->ld_v;
    return (struct gdn_sweep_chunk){
        .head = head,
        .n = tokens_at(s, chunk),
        .t = chunk * s->chunk,
        .R = of_head(s->R, row_v, place),
        .U = of_head(s->U, row_v, place),
        .dq = of_head(s->dq, row_k, local(s, gdn_rule_source(r, head, r->Hq), r->Hq)),
        .dk = of_head(s->dk, row_k, local(s, gdn_rule_source(r, head, r->Hk), r->Hk)),
        .dv = of_head(s->dv, row_v, local(s, gdn_rule_source(r, head, r->Hv), r->Hv)),
    };
}

static void forward(struct gdn_sweep *s, const struct gdn_sweep_chunk *x, const float *from,
                    float *to)
{
    if (s->w->rule.family.is)
        gdn_sweep_family_forward(s, x, from, to);
    else
        gdn_sweep_forward(s, x, from, to);
}

static void backward(struct gdn_sweep *s, const struct gdn_sweep_chunk *x, const float *S, float *J)
{
    if (s->w->rule.family.is)
        gdn_sweep_family_backward(s, x, S, J);
    else
        gdn_sweep_backward(s, x, S, J);
}

/* ---- Sequences ----------------------------------------------------------------------------- */

/* Rows of a gradient, and of its tensor. A token has `updates` rows, so many bytes apart. */
struct gradient {
    const struct gdn_rows *rows, *of;
    int updates;
    int64_t step, of_step;
};

/* norm: the gradient goes through the norm of its tensor. */
static void store_rows(struct gdn_sweep *s, const struct gradient *g, bool norm, float *all,
                       ptrdiff_t ld, int heads, int D, int64_t t, int n)
{
    for (int i = 0; g->rows->data && i < heads / s->w->n_sets; i++)
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

static void sweep_chunk(struct gdn_sweep *s, int64_t chunk)
{
    const struct gdn_backward *w = s->w;
    const struct gdn_rule *r = &w->rule;
    const int64_t t0 = chunk * s->chunk, in = chunk % s->segment;
    const int n = tokens_at(s, chunk), heads = w->set_heads;
    const size_t row_k = C * (size_t)s->ld, row_v = C * (size_t)s->ld_v;
    memset(s->dq, 0, (size_t)heads * row_k * sizeof *s->dq);
    memset(s->dk, 0, (size_t)heads * row_k * sizeof *s->dk);
    memset(s->dv, 0, (size_t)heads * row_v * sizeof *s->dv);
    for (int h = 0; h < heads; h++) {
        const struct gdn_sweep_chunk x = chunk_at(s, h, chunk);
        const int place = (int)in * heads + h;
        const int next = h + 1 < heads ? place + 1 : (int)(in - 1) * heads;
        s->next = (struct gdn_sweep_next){ NULL, NULL, NULL };
        if (next >= 0)
            s->next =
                (struct gdn_sweep_next){ of_head(s->states, s->state, next),
                                         of_head(s->R, row_v, next), of_head(s->U, row_v, next) };
        backward(s, &x, of_head(s->states, s->state, place), of_head(s->J, s->state, h));
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
static void walk(struct gdn_sweep *s, int64_t from, int64_t end)
{
    const int heads = s->w->set_heads;
    for (int64_t c = from; c < end; c++)
        for (int h = 0; h < heads; h++) {
            const int place = (int)(c - from) * heads + h;
            float *next = c + 1 < end ? of_head(s->states, s->state, place + heads)
                                      : of_head(s->S, s->state, h);
            const struct gdn_sweep_chunk x = chunk_at(s, h, c);
            forward(s, &x, of_head(s->states, s->state, place), next);
        }
}

/* Computes the states at the start of each segment, up to the segment of chunk `end`. */
static void walk_segments(struct gdn_sweep *s, int64_t end)
{
    const size_t heads = (size_t)s->w->set_heads, all = heads * s->state;
    for (int64_t c = 0; c < end; c++) {
        if (c % s->segment == 0)
            memcpy(of_head(s->first, all, (int)(c / s->segment)), s->S, all * sizeof *s->S);
        for (int h = 0; h < (int)heads; h++) {
            float *S = of_head(s->S, s->state, h);
            const struct gdn_sweep_chunk x = chunk_at(s, h, c);
            forward(s, &x, S, S);
        }
    }
    memcpy(of_head(s->first, all, (int)(end / s->segment)), s->S, all * sizeof *s->S);
}

static void store_state(struct gdn_sweep *s, int h)
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

static void load_states(struct gdn_sweep *s)
{
    const struct gdn_backward *w = s->w;
    for (int h = 0; h < w->set_heads; h++) {
        const int head = head_at(s, h);
        struct gdn_place end = { .view = &w->dstate_out };
        if (w->dstate_out.data) end = gdn_place_of(&w->dstate_out, s->seq->row, head, 0);
        load_state(s, of_head(s->J, s->state, h), end);
        load_state(s, of_head(s->S, s->state, h), gdn_rule_from(&w->rule, s->seq, head));
    }
}

/* Sets values that stay the same for the whole call, and marks that no keys are loaded. */
static void prepare(struct gdn_sweep *s)
{
    for (int i = 0; i < 2 * C; i++) s->unit[i] = 1;
    for (int i = 0; i < 2 * C * C; i++) s->ones[i] = 1;
    memset(s->kq, 0, 2 * C * (size_t)s->ld * sizeof *s->kq);
    memset(s->gram, 0, 2 * C * C * sizeof *s->gram);
    s->loaded = (struct gdn_sweep_loaded){ .n = 0 };
}

/* Returns true if dstate is the only gradient. It does not depend on any state. */
static bool wants_state_alone(const struct gdn_backward *w)
{
    return !w->dq.data && !w->dk.data && !w->dv.data && !w->dg.data && !w->dbeta.data &&
           !w->dwrite.data && !w->sums;
}

/* Computes J before the chunks of a head. */
static void sweep_state(struct gdn_sweep *s, int h, int64_t n_chunks)
{
    for (int64_t c = n_chunks - 1; c >= 0; c--) {
        const struct gdn_sweep_chunk x = chunk_at(s, h, c);
        if (s->w->rule.family.is)
            gdn_sweep_family_state(s, &x, of_head(s->J, s->state, h));
        else
            gdn_sweep_state(s, &x, of_head(s->J, s->state, h));
    }
}

/* Loads the states before the segment of chunk `first`. */
static void load_segment(struct gdn_sweep *s, int64_t first)
{
    const struct gdn_backward *w = s->w;
    const size_t all = (size_t)w->set_heads * s->state;
    if (!s->saved || first == 0) {
        memcpy(s->states, of_head(s->first, all, (int)(first / s->segment)), all * sizeof *s->S);
        return;
    }
    const int64_t slot = s->seq->first_checkpoint + first * C / w->every - 1;
    for (int h = 0; h < w->set_heads; h++)
        load_state(s, of_head(s->states, s->state, h),
                   gdn_place_of(&w->checkpoints, slot, head_at(s, h), 0));
}

static void sweep_all(struct gdn_sweep *s, int64_t n_chunks)
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

static void run_item(struct gdn_sweep *s)
{
    s->next = (struct gdn_sweep_next){ NULL, NULL, NULL };
    const int64_t n_chunks = (s->seq->n_valid + s->chunk - 1) / s->chunk;
    const bool alone = wants_state_alone(s->w);
    prepare(s);
    load_states(s);
    if (!alone) sweep_all(s, n_chunks);
    for (int h = 0; alone && h < s->w->set_heads; h++) sweep_state(s, h, n_chunks);
    for (int h = 0; s->w->dstate.data && h < s->w->set_heads; h++) store_state(s, h);
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
    struct gdn_sweep s;
    lay_out(&s, a->w, a->kr, a->scratch + (size_t)thread * a->bytes);
    s.seq = &a->w->rule.seqs[i / a->w->n_sets];
    s.set = (int)(i % a->w->n_sets);
    run_item(&s);
}

void gdn_backward_run(gdn_ctx *ctx, const struct gdn_backward *w, void *scratch)
{
    struct run_arg arg = { w, ctx->kr, scratch, gdn_backward_scratch(w, ctx->kr) };
    gdn_parallel_for(ctx->threads, w->rule.n_seqs * w->n_sets, run_any, &arg);
}
