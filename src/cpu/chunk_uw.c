/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_chunk_uw: block forward substitution with (I + A), 16 tokens at a time. The right-hand
 * sides are columns like those of a state: diag(beta) V gives u, diag(beta gamma) K gives w,
 * and I gives T. What earlier blocks of a chunk do to the next one is, as in prefill, a product
 * with what was written, decayed to the block's start:
 *
 *     x_j = exp(G_start - G_j) u_j        p = (diag(beta) K_block K_before^T) x
 *     u   = (I + A)^-1 (right side - diag(from_start) p)          chunk_solve
 */
#include <string.h>

#include "calls/op_backends.h"
#include "core/tensor_check.h"
#include "cpu/chunk_stage.h"

enum { B16 = GDN_CHUNK };
enum { U = GDN_UW_U, W = GDN_UW_W, T = GDN_UW_T, N_OUTPUTS = GDN_N_UW };

/* Scratch of one thread; all 64-byte aligned. */
struct scratch {
    float *k;                             /* [C][ld] */
    float *kt;                            /* [K][16] */
    float *gram;                          /* [C][C], the lower triangle of blocks */
    float *own;                           /* [32][16]: a block of it, and zeros for q */
    float *cross;                         /* [16][C]: rows of diag(beta) gram, in the blocks
                                             before this one */
    float *A, *B, *one;                   /* [16][16] */
    float *g, *beta, *mask, *start, *end; /* [16] of tokens that run together */
    float *right, *p, *o;                 /* [16][strip], [32][strip], [16][strip] */
    float *x;                             /* [strips][C][strip] */
    ptrdiff_t ld;
    struct gdn_chunk_gates gates;
    int forgotten; /* tokens of the chunk, by gates so far */
};

static size_t lay_out(struct scratch *s, const struct gdn_uw_call *c, const struct gdn_kernels *kr,
                      char *memory)
{
    const size_t C = (size_t)c->C, K = (size_t)c->rule.K, strip = (size_t)kr->strip;
    s->ld = gdn_strip_ld(c->rule.K);
    const struct gdn_part parts[] = {
        { &s->k, C * (size_t)s->ld },
        { &s->kt, K * B16 },
        { &s->gram, C * C },
        { &s->own, 2 * B16 * B16 },
        { &s->cross, B16 * C },
        { &s->A, B16 * B16 },
        { &s->B, B16 * B16 },
        { &s->one, B16 * B16 },
        { &s->g, B16 },
        { &s->beta, B16 },
        { &s->mask, B16 },
        { &s->start, B16 },
        { &s->end, B16 },
        { &s->right, B16 * strip },
        { &s->p, 2 * B16 * strip },
        { &s->o, B16 * strip },
        { &s->x, (size_t)c->n_strips * C * strip },
    };
    return gdn_lay_out(parts, sizeof parts / sizeof *parts, memory);
}

/* ---- Running ------------------------------------------------------------------------------ */

struct run_arg {
    const struct gdn_uw_call *call;
    const struct gdn_kernels *kr;
    char *scratch;
};

/* The work of a block of tokens of one head. */
struct block {
    const struct gdn_uw_call *c;
    const struct gdn_kernels *kr;
    struct scratch *s;
    const struct gdn_chunk *chunk;
    int head, first; /* token of the chunk that the block starts at */
};

/* Columns [col, col + n) of one output: a strip. */
struct piece {
    int which, col, n;
};

static struct piece piece_at(const struct gdn_uw_call *c, const struct gdn_kernels *kr, int strip)
{
    struct piece p = { 0 };
    for (p.which = U; p.which < N_OUTPUTS; p.which++) {
        const int strips = (c->columns[p.which] + kr->strip - 1) / kr->strip;
        if (strip < strips) break;
        strip -= strips;
    }
    p.col = strip * kr->strip;
    p.n = c->columns[p.which] - p.col < kr->strip ? c->columns[p.which] - p.col : kr->strip;
    return p;
}

/* Loads row `token` of a right-hand side, zero where beta is 0 (G8). */
static void load_right(const struct block *b, const struct piece *p, int token, float *row)
{
    const struct gdn_rule *r = &b->c->rule;
    const struct gdn_chunk_gates *g = &b->s->gates;
    const size_t n = (size_t)p->n;
    const float beta = g->beta[token];
    if (p->which == T) {
        if (token >= p->col && token < p->col + p->n) row[token - p->col] = 1;
    } else if (p->which == U && beta != 0) {
        const int64_t elem = (int64_t)gdn_dtype_bytes(r->v.dtype);
        const char *v =
            gdn_row(&r->v, b->chunk->seq, b->chunk->t0 + token, gdn_rule_source(r, b->head, r->Hv));
        b->kr->load_row[r->v.dtype](row, v + p->col * elem, n);
        b->kr->norm_row(row, row, beta, NULL, NULL, false, n);
    } else if (p->which == W && beta != 0 && token < g->first) {
        const float *k = b->s->k + token * b->s->ld + p->col;
        b->kr->norm_row(row, k, beta * g->from_start[token], NULL, NULL, false, n);
    }
}

static void solve_piece(const struct block *b, int strip_number, int from, int to)
{
    const struct gdn_uw_call *c = b->c;
    const struct gdn_kernels *kr = b->kr;
    struct scratch *s = b->s;
    const int strip = kr->strip;
    const struct piece p = piece_at(c, kr, strip_number);
    float *x = s->x + (ptrdiff_t)strip_number * c->C * strip, *own = x + b->first * strip;
    memset(s->right, 0, (size_t)(B16 * strip) * sizeof *s->right);
    for (int t = from; t < to; t++) load_right(b, &p, b->first + t, s->right + t * strip);
    if (b->first) kr->strip_mul(s->p, strip, s->cross, c->C, x, strip, B16, b->first, strip, NULL);
    kr->chunk_solve(s->o, strip, own, s->p, s->right, strip, s->A, s->one, s->start, s->end,
                    s->mask);
    kr->norm_row(x, x, s->start[B16 - 1], NULL, NULL, false, (size_t)(b->first * strip));

    const struct gdn_rows *rows = &c->to[p.which];
    const int64_t elem = (int64_t)gdn_dtype_bytes(rows->dtype);
    for (int t = from; t < to; t++) {
        char *row = gdn_row(rows, b->chunk->seq, b->chunk->t0 + b->first + t, b->head);
        kr->store_row[rows->dtype](row + p.col * elem, s->o + t * strip, (size_t)p.n);
    }
}

/* Loads the block's part of earlier tokens: nothing of forgotten ones, even if they are NaN
 * (G7). */
static void load_cross(const struct block *b)
{
    struct scratch *s = b->s;
    const int forgotten = s->forgotten < b->first ? s->forgotten : b->first;
    for (int t = 0; t < B16; t++) {
        float *row = s->cross + t * b->c->C;
        b->kr->norm_row(row, s->gram + (b->first + t) * b->c->C, s->beta[t], NULL, NULL, false,
                        (size_t)b->first);
        memset(row, 0, (size_t)forgotten * sizeof *row);
    }
}

/* Runs tokens [from, to) of the block. Only the first of them may forget. Tokens outside of the
 * range get g = 0 and beta = 0. */
static void run_tokens(const struct block *b, int from, int to)
{
    const struct gdn_uw_call *c = b->c;
    struct scratch *s = b->s;
    for (int t = 0; t < B16; t++) {
        const bool in = t >= from && t < to;
        s->g[t] = in ? s->gates.g[b->first + t] : 0;
        s->beta[t] = in ? s->gates.beta[b->first + t] : 0;
        s->mask[t] = in;
    }
    if (gdn_forgets(s->g[from])) {
        s->g[from] = 0;
        s->forgotten = b->first + from;
        memset(s->x, 0, (size_t)(c->n_strips * c->C * b->kr->strip) * sizeof *s->x);
    }
    load_cross(b);
    b->kr->chunk_gates(s->A, s->B, s->start, s->end, s->g, s->beta, s->own);
    gdn_forget_tokens(s->A, s->B, from);
    memset(s->p, 0, (size_t)(2 * B16 * b->kr->strip) * sizeof *s->p);
    for (int i = 0; i < c->n_strips; i++) solve_piece(b, i, from, to);
}

static void run_block(const struct block *b)
{
    struct scratch *s = b->s;
    const int left = (int)b->chunk->n - b->first, n = left < B16 ? left : B16;
    for (int i = 0; i < B16; i++)
        memcpy(s->own + i * B16, s->gram + (b->first + i) * b->c->C + b->first,
               B16 * sizeof *s->own);
    for (int from = 0, to; from < n; from = to) {
        for (to = from + 1; to < n && !gdn_forgets(s->gates.g[b->first + to]);) to++;
        run_tokens(b, from, to);
    }
}

/* Loads the chunk's keys and their products, once for the heads that share them. */
static void load_keys(struct scratch *s, const struct gdn_uw_call *c, const struct gdn_kernels *kr,
                      const struct gdn_chunk *chunk, int64_t hk)
{
    for (int b = 0; b < c->C; b += B16) {
        float *k = s->k + b * s->ld;
        gdn_load_chunk_rows(k, s->ld, kr, &c->rule.k, chunk, b, hk, 0, c->rule.K);
    }
    for (int b = 0; b < c->C; b += B16) {
        const float *k = s->k + b * s->ld;
        kr->transpose(s->kt, B16, k, s->ld, B16, c->rule.K);
        kr->strip_mul(s->gram + b * c->C + b, c->C, k, s->ld, s->kt, B16, c->C - b, c->rule.K, B16,
                      NULL);
    }
    memset(s->own, 0, 2 * B16 * B16 * sizeof *s->own);
    memset(s->one, 0, B16 * B16 * sizeof *s->one);
    for (int i = 0; i < B16; i++) s->one[i * B16 + i] = 1;
}

/* Runs one chunk for the state heads of one key head. */
static void run_chunk_uw_item(void *arg, int64_t item, int thread)
{
    const struct run_arg *a = arg;
    const struct gdn_uw_call *c = a->call;
    const struct gdn_chunk chunk = gdn_chunk_at(&c->list, item / c->rule.n_groups);
    const int group = (int)(item % c->rule.n_groups);
    struct scratch s;
    if (chunk.n == 0) return;
    lay_out(&s, c, a->kr, a->scratch + (size_t)thread * c->thread_bytes);
    load_keys(&s, c, a->kr, &chunk, group);
    for (int i = 0; i < c->rule.group_heads; i++) {
        struct block b = { c, a->kr, &s, &chunk, gdn_rule_head(&c->rule, group, i), 0 };
        gdn_load_chunk_gates(&s.gates, &c->rule, a->kr, &chunk, b.head);
        s.forgotten = 0;
        for (; b.first < chunk.n; b.first += B16) run_block(&b);
    }
}

static gdn_status plan_chunk_uw(gdn_ctx *ctx, void *call)
{
    struct gdn_uw_call *c = call;
    struct scratch none;
    for (int i = 0; i < GDN_N_UW; i++)
        c->n_strips += (c->columns[i] + ctx->kr->strip - 1) / ctx->kr->strip;
    c->plan_bytes = gdn_stage_plan_bytes(&c->plan, &c->tokens);
    c->thread_bytes = lay_out(&none, c, ctx->kr, NULL);
    c->base.bytes = c->plan_bytes + c->thread_bytes * (size_t)gdn_threads_count(ctx->threads);
    return GDN_OK;
}

static gdn_status run_chunk_uw(gdn_ctx *ctx, void *call, void *memory)
{
    struct gdn_uw_call *c = call;
    TRY(gdn_stage_chunks(ctx, &c->tokens, c->C, memory, &c->plan, &c->list));
    struct run_arg arg = { c, ctx->kr, (char *)memory + c->plan_bytes };
    gdn_parallel_for(ctx->threads, gdn_chunk_total(&c->list) * c->rule.n_groups, run_chunk_uw_item,
                     &arg);
    for (int i = 0; i < N_OUTPUTS; i++)
        gdn_plan_zero_rest(&c->plan, &c->tokens, &c->to[i], c->rule.H, c->columns[i]);
    return gdn_note_kernel(ctx, c->base.op, "chunk_solve");
}

const struct gdn_op_backend gdn_cpu_op_chunk_uw = { plan_chunk_uw, run_chunk_uw };
