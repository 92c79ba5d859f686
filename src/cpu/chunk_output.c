/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_chunk_output: an item is one chunk and head. d = u - w S takes the state at the chunk's
 * start; then 16 tokens at a time go as in prefill, with d where that solves for u (A = 0).
 */
#include <string.h>

#include "calls/op_backends.h"
#include "core/tensor_check.h"
#include "cpu/chunk_stage.h"

enum { B16 = GDN_CHUNK };

/* Scratch of one thread; all 64-byte aligned. */
struct scratch {
    float *kq;                            /* [32][ld]: k, q of a block; w before that */
    float *kt;                            /* [K][16] */
    float *gram;                          /* [32][16] */
    float *A, *B;                         /* [16][16] */
    float *g, *none, *mask, *start, *end; /* [16] of tokens that run together; none: beta, 0 */
    float *p, *o, *wd;                    /* [32][strip], [16][strip], [16][strip] */
    float *v;                             /* [16][strip] */
    float *d;                             /* strips of [C][strip] */
    float *S;                             /* strips of [K][strip] */
    float *turn;                          /* [strip][ld]: state rows on their way */
    ptrdiff_t ld;
    struct gdn_chunk_gates gates;
};

static size_t lay_out(struct scratch *s, const struct gdn_output_call *c,
                      const struct gdn_kernels *kr, char *memory)
{
    const size_t K = (size_t)c->rule.K, strip = (size_t)kr->strip;
    const size_t wide = strip * (size_t)c->n_strips;
    s->ld = gdn_strip_ld(c->rule.K);
    const struct gdn_part parts[] = {
        { &s->kq, 2 * B16 * (size_t)s->ld },
        { &s->kt, K * B16 },
        { &s->gram, 2 * B16 * B16 },
        { &s->A, B16 * B16 },
        { &s->B, B16 * B16 },
        { &s->g, B16 },
        { &s->none, B16 },
        { &s->mask, B16 },
        { &s->start, B16 },
        { &s->end, B16 },
        { &s->p, 2 * B16 * strip },
        { &s->o, B16 * strip },
        { &s->wd, B16 * strip },
        { &s->v, B16 * strip },
        { &s->d, (size_t)c->C * wide },
        { &s->S, K * wide },
        { &s->turn, strip * (size_t)s->ld },
    };
    return gdn_lay_out(parts, sizeof parts / sizeof *parts, memory);
}

/* ---- Running ------------------------------------------------------------------------------ */

struct run_arg {
    const struct gdn_output_call *call;
    const struct gdn_kernels *kr;
    char *scratch;
};

/* A block of tokens of one chunk and head. */
struct block {
    const struct gdn_output_call *c;
    const struct gdn_kernels *kr;
    struct scratch *s;
    const struct gdn_chunk *chunk;
    int head, first; /* first: the token of the chunk at which the block starts */
};

static int columns_of(const struct block *b, int strip)
{
    const int left = b->c->rule.V - strip * b->kr->strip;
    return left < b->kr->strip ? left : b->kr->strip;
}

static float *state_at(const struct block *b, int strip)
{
    return b->s->S + (ptrdiff_t)strip * b->c->rule.K * b->kr->strip;
}

static float *d_at(const struct block *b, int strip)
{
    return b->s->d + ((ptrdiff_t)strip * b->c->C + b->first) * b->kr->strip;
}

/* Computes rows of d = u - w S. A token behind a gate that forgets does not depend on S (G7), so
 * its row of d is that of u. */
static void load_d(const struct block *b)
{
    const struct gdn_output_call *c = b->c;
    struct scratch *s = b->s;
    const int strip = b->kr->strip, K = c->rule.K;
    gdn_load_chunk_rows(s->kq, s->ld, b->kr, &c->w, b->chunk, b->first, b->head, 0, K);
    for (int i = 0; i < c->n_strips; i++) {
        float *d = d_at(b, i);
        b->kr->strip_mul(s->p, strip, s->kq, s->ld, state_at(b, i), strip, B16, K, strip, NULL);
        gdn_load_chunk_rows(d, strip, b->kr, &c->u, b->chunk, b->first, b->head, i * strip,
                            columns_of(b, i));
        for (int t = 0; t < B16 && b->first + t < s->gates.first; t++)
            for (int j = 0; j < strip; j++) d[t * strip + j] -= s->p[t * strip + j];
    }
}

static void load_products(const struct block *b)
{
    const struct gdn_rule *r = &b->c->rule;
    struct scratch *s = b->s;
    const int hk = gdn_rule_source(r, b->head, r->Hk), hq = gdn_rule_source(r, b->head, r->Hq);
    float *q = s->kq + B16 * s->ld;
    gdn_load_chunk_rows(s->kq, s->ld, b->kr, &r->k, b->chunk, b->first, hk, 0, r->K);
    gdn_load_chunk_rows(q, s->ld, b->kr, &r->q, b->chunk, b->first, hq, 0, r->K);
    b->kr->norm_row(q, q, r->scale, NULL, NULL, false, (size_t)(B16 * s->ld));
    b->kr->transpose(s->kt, B16, s->kq, s->ld, B16, r->K);
    b->kr->strip_mul(s->gram, B16, s->kq, s->ld, s->kt, B16, 2 * B16, r->K, B16, NULL);
}

static void run_strip(const struct block *b, int i, int from, int to)
{
    const struct gdn_rule *r = &b->c->rule;
    const struct gdn_kernels *kr = b->kr;
    struct scratch *s = b->s;
    const int strip = kr->strip;
    const size_t row = (size_t)strip * sizeof *s->v;
    float *S = state_at(b, i);
    memset(s->v, 0, B16 * row);
    memcpy(s->v + from * strip, d_at(b, i) + from * strip, (size_t)(to - from) * row);
    memset(s->p, 0, B16 * row);
    kr->strip_mul(s->p + B16 * strip, strip, s->kq + B16 * s->ld, s->ld, S, strip, B16, r->K, strip,
                  NULL);
    kr->chunk_solve(s->o, strip, s->wd, s->p, s->v, strip, s->A, s->B, s->start, s->end, s->mask);
    kr->chunk_update(S, S, strip, s->start[B16 - 1], s->kq, s->ld, s->wd, strip, B16, r->K);

    const int64_t elem = (int64_t)gdn_dtype_bytes(r->out.dtype);
    for (int t = from; t < to; t++) {
        char *o = gdn_row(&r->out, b->chunk->seq, b->chunk->t0 + b->first + t, b->head);
        kr->store_row[r->out.dtype](o + i * strip * elem, s->o + t * strip,
                                    (size_t)columns_of(b, i));
    }
}

/* Runs tokens [from, to) of the block, none of which but the first may forget. */
static void run_tokens(const struct block *b, int from, int to)
{
    struct scratch *s = b->s;
    for (int t = 0; t < B16; t++) {
        const bool in = t >= from && t < to;
        s->g[t] = in ? s->gates.g[b->first + t] : 0;
        s->mask[t] = in;
    }
    if (gdn_forgets(s->g[from])) {
        s->g[from] = 0;
        memset(s->S, 0, (size_t)(b->c->n_strips * b->c->rule.K * b->kr->strip) * sizeof *s->S);
    }
    b->kr->chunk_gates(s->A, s->B, s->start, s->end, s->g, s->none, s->gram);
    gdn_forget_tokens(s->A, s->B, from);
    memset(s->kq, 0, (size_t)(from * s->ld) * sizeof *s->kq); /* keys, which may not be finite */
    for (int i = 0; i < b->c->n_strips; i++) run_strip(b, i, from, to);
}

static void run_chunk_output_item(void *arg, int64_t item, int thread)
{
    const struct run_arg *a = arg;
    const struct gdn_output_call *c = a->call;
    const struct gdn_chunk chunk = gdn_chunk_at(&c->list, item / c->rule.H);
    struct scratch s;
    struct block b = { c, a->kr, &s, &chunk, (int)(item % c->rule.H), 0 };
    if (chunk.n == 0) return;
    lay_out(&s, c, a->kr, a->scratch + (size_t)thread * c->thread_bytes);
    memset(s.none, 0, B16 * sizeof *s.none);
    gdn_load_chunk_gates(&s.gates, &c->rule, a->kr, &chunk, b.head);
    for (int i = 0; i < c->n_strips; i++)
        gdn_load_strip(state_at(&b, i), a->kr, gdn_place_of(&c->states, chunk.number, b.head, 0),
                       c->rule.K, i * a->kr->strip, columns_of(&b, i), s.turn);
    for (; b.first < chunk.n; b.first += B16) load_d(&b);
    for (b.first = 0; b.first < chunk.n; b.first += B16) {
        const int n = chunk.n - b.first < B16 ? (int)chunk.n - b.first : B16;
        load_products(&b);
        for (int from = 0, to; from < n; from = to) {
            for (to = from + 1; to < n && !gdn_forgets(s.gates.g[b.first + to]);) to++;
            run_tokens(&b, from, to);
        }
    }
}

static gdn_status plan_chunk_output(gdn_ctx *ctx, void *call)
{
    struct gdn_output_call *c = call;
    struct scratch none;
    c->n_strips = (c->rule.V + ctx->kr->strip - 1) / ctx->kr->strip;
    c->plan_bytes = gdn_stage_plan_bytes(&c->plan, &c->tokens);
    c->thread_bytes = lay_out(&none, c, ctx->kr, NULL);
    c->base.bytes = c->plan_bytes + c->thread_bytes * (size_t)gdn_threads_count(ctx->threads);
    return GDN_OK;
}

static gdn_status run_chunk_output(gdn_ctx *ctx, void *call, void *memory)
{
    struct gdn_output_call *c = call;
    const gdn_chunk_output_args *a = &c->args;
    TRY(gdn_stage_chunks(ctx, &c->tokens, c->C, memory, &c->plan, &c->list));
    TRY(gdn_stage_check_states(ctx, &a->states, gdn_chunk_total(&c->list)));
    struct run_arg arg = { c, ctx->kr, (char *)memory + c->plan_bytes };
    gdn_parallel_for(ctx->threads, gdn_chunk_total(&c->list) * c->rule.H, run_chunk_output_item,
                     &arg);
    gdn_plan_zero_rest(&c->plan, &c->tokens, &c->rule.out, c->rule.H, c->rule.V);
    return gdn_note_kernel(ctx, c->base.op, "strip_mul chunk_solve chunk_update");
}

const struct gdn_op_backend gdn_cpu_op_chunk_output = { plan_chunk_output, run_chunk_output };
