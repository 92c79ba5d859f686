/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_chunk_states: the state at the start of every chunk from u and w. An item is a strip of
 * columns of one sequence and head; it walks the chunks:
 *
 *     d = u - w S        S <- gamma S + K^T (diag(to_end) d)
 */
#include <string.h>

#include "calls/op_backends.h"
#include "core/tensor_check.h"
#include "cpu/chunk_stage.h"

enum { B16 = GDN_CHUNK };

/* Scratch of one thread; all 64-byte aligned. */
struct scratch {
    float *rows; /* [16][ld] of k or w */
    float *d;    /* [C][strip] */
    float *u;    /* [16][strip] */
    float *S;    /* [K][strip] */
    float *turn; /* [strip][ld]: state rows on their way */
    struct gdn_chunk_gates gates;
};

static size_t lay_out(struct scratch *s, const struct gdn_states_call *c,
                      const struct gdn_kernels *kr, char *memory)
{
    const size_t K = (size_t)c->rule.K, strip = (size_t)kr->strip;
    const size_t ld = (size_t)gdn_strip_ld(c->rule.K);
    const struct gdn_part parts[] = { { &s->rows, B16 * ld },
                                      { &s->d, (size_t)c->C * strip },
                                      { &s->u, B16 * strip },
                                      { &s->S, K * strip },
                                      { &s->turn, strip * ld } };
    return gdn_lay_out(parts, sizeof parts / sizeof *parts, memory);
}

/* ---- Running ------------------------------------------------------------------------------ */

struct run_arg {
    const struct gdn_states_call *call;
    const struct gdn_kernels *kr;
    char *scratch;
};

/* A strip of columns of one head. */
struct strip {
    const struct gdn_states_call *c;
    const struct gdn_kernels *kr;
    struct scratch *s;
    int head, col, n;
};

/* Loads rows of d for one block. A row behind a gate that forgets does not depend on S (G7). A row
 * ahead of such a gate is 0. */
static void load_d(const struct strip *p, const struct gdn_chunk *chunk, int first)
{
    const struct gdn_states_call *c = p->c;
    struct scratch *s = p->s;
    const struct gdn_chunk_gates *g = &s->gates;
    const int strip = p->kr->strip, K = c->rule.K;
    float *d = s->d + first * strip;
    gdn_load_chunk_rows(s->rows, gdn_strip_ld(K), p->kr, &c->w, chunk, first, p->head, 0, K);
    p->kr->strip_mul(d, strip, s->rows, gdn_strip_ld(K), s->S, strip, B16, K, strip, NULL);
    gdn_load_chunk_rows(s->u, strip, p->kr, &c->u, chunk, first, p->head, p->col, p->n);
    for (int t = 0; t < B16; t++) {
        const bool sees = first + t < g->first, reaches = first + t >= g->last;
        for (int j = 0; j < strip; j++) {
            const float u = s->u[t * strip + j], seen = sees ? d[t * strip + j] : 0;
            d[t * strip + j] = reaches ? g->to_end[first + t] * (u - seen) : 0;
        }
    }
}

/* Loads k of one block. Tokens that a gate separates from the end get zeros: 0 x NaN would reach
 * the state. */
static void load_k(const struct strip *p, const struct gdn_chunk *chunk, int first)
{
    const struct gdn_rule *r = &p->c->rule;
    struct scratch *s = p->s;
    const ptrdiff_t ld = gdn_strip_ld(r->K);
    const int parted = s->gates.last - first;
    gdn_load_chunk_rows(s->rows, ld, p->kr, &r->k, chunk, first, gdn_rule_source(r, p->head, r->Hk),
                        0, r->K);
    if (parted > 0)
        memset(s->rows, 0, (size_t)((parted < B16 ? parted : B16) * ld) * sizeof *s->rows);
}

static void run_chunk(const struct strip *p, const struct gdn_chunk *chunk)
{
    const struct gdn_states_call *c = p->c;
    struct scratch *s = p->s;
    const int strip = p->kr->strip, K = c->rule.K;
    gdn_load_chunk_gates(&s->gates, &c->rule, p->kr, chunk, p->head);
    for (int first = 0; first < chunk->n; first += B16) load_d(p, chunk, first);
    if (s->gates.first < chunk->n) memset(s->S, 0, (size_t)(K * strip) * sizeof *s->S);
    for (int first = 0; first < chunk->n; first += B16) {
        load_k(p, chunk, first);
        p->kr->chunk_update(s->S, s->S, strip, first ? 1 : s->gates.decay, s->rows, gdn_strip_ld(K),
                            s->d + first * strip, strip, B16, K);
    }
}

static void run_chunk_states_item(void *arg, int64_t item, int thread)
{
    const struct run_arg *a = arg;
    const struct gdn_states_call *c = a->call;
    const struct gdn_kernels *kr = a->kr;
    const int K = c->rule.K, V = c->rule.V, n_strips = (V + kr->strip - 1) / kr->strip;
    const int64_t b = item / n_strips / c->rule.H;
    if (!c->plan.seqs[b].n_tokens) return; /* an empty sequence leaves its states alone */
    struct scratch s;
    struct strip p = {
        c, kr, &s, (int)(item / n_strips % c->rule.H), (int)(item % n_strips) * kr->strip, 0
    };
    p.n = V - p.col < kr->strip ? V - p.col : kr->strip;
    lay_out(&s, c, kr, a->scratch + (size_t)thread * c->thread_bytes);
    gdn_load_strip(s.S, kr, gdn_place_of(&c->state, b, p.head, 0), K, p.col, p.n, s.turn);
    for (int64_t i = c->list.first[b]; i < c->list.first[b + 1]; i++) {
        const struct gdn_chunk chunk = gdn_chunk_of(&c->list, &c->plan.seqs[b], i);
        const struct gdn_place to = gdn_place_of(&c->states, i, p.head, 0);
        if (to.data) gdn_store_strip(s.S, kr, to, K, p.col, p.n, s.turn);
        run_chunk(&p, &chunk);
    }
    const struct gdn_place to = gdn_place_of(&c->state_out, b, p.head, 0);
    if (to.data) gdn_store_strip(s.S, kr, to, K, p.col, p.n, s.turn);
}

static gdn_status plan_chunk_states(gdn_ctx *ctx, void *call)
{
    struct gdn_states_call *c = call;
    struct scratch none;
    c->plan_bytes = gdn_stage_plan_bytes(&c->plan, &c->tokens);
    c->thread_bytes = lay_out(&none, c, ctx->kr, NULL);
    c->base.bytes = c->plan_bytes + c->thread_bytes * (size_t)gdn_threads_count(ctx->threads);
    return GDN_OK;
}

static gdn_status run_chunk_states(gdn_ctx *ctx, void *call, void *memory)
{
    struct gdn_states_call *c = call;
    const gdn_chunk_states_args *a = &c->args;
    TRY(gdn_stage_chunks(ctx, &c->tokens, c->C, memory, &c->plan, &c->list));
    if (a->states.data) TRY(gdn_stage_check_states(ctx, &a->states, gdn_chunk_total(&c->list)));
    struct run_arg arg = { c, ctx->kr, (char *)memory + c->plan_bytes };
    const int64_t n_strips = (c->rule.V + ctx->kr->strip - 1) / ctx->kr->strip;
    gdn_parallel_for(ctx->threads, c->plan.B * c->rule.H * n_strips, run_chunk_states_item, &arg);
    return gdn_note_kernel(ctx, c->base.op, "strip_mul chunk_update");
}

const struct gdn_op_backend gdn_cpu_op_chunk_states = { plan_chunk_states, run_chunk_states };
