/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layer, window by window: at most 256 tokens of any sequences pass through
 *
 *     project -> conv + SiLU -> rule (L2 norm and gates inside) -> gated RMSNorm -> project
 *
 * in float32 buffers. A sequence longer than its window is cut at a multiple of 16 tokens and
 * its states travel in a carry, so windows change no bit: chunks stay where they were.
 */
#include <math.h>
#include <stdio.h>

#include "calls/layer.h"
#include "calls/op_backends.h"
#include "core/tensor_check.h"
#include "cpu/conv.h"
#include "cpu/project.h"
#include "cpu/record/record.h"
#include "cpu/rule.h"

enum {
    WINDOW = 256, /* tokens: enough for the projections to reach the FMA rate */
    PIECES = 512  /* most sequences of a window, empty ones included */
};

/* ---- Memory -------------------------------------------------------------------------------- */

/* The workspace of a run. */
struct buffers {
    struct gdn_seq *pieces;
    struct gdn_segment *segments;
    float *x, *y, *o;          /* [window][hidden], [window][columns], [window][Hv V] */
    float *low;                /* [window][rank] */
    float *A, *norm;           /* [Hv] and dt [Hv][channels], [V] */
    float *state[2], *conv[2]; /* carries: [Hv][V][K], [channels][length] */
    char *threads;
};

/* A sequence continues in a further window only if the window holds fewer than all tokens. */
static bool carries(const struct gdn_block *b) { return b->n_tokens > b->window; }

static size_t lay_out(struct buffers *m, const struct gdn_block *b, char *memory)
{
    const size_t window = (size_t)b->window, Hv = (size_t)b->Hv, V = (size_t)b->V;
    const size_t carry = carries(b) ? 1 : 0;
    const size_t state = carry * Hv * V * (size_t)b->K * sizeof(float);
    const size_t conv = carry * (size_t)(b->columns.z * b->conv.carry_to.length) * sizeof(float);
    const struct gdn_room rooms[] = {
        { &m->pieces, PIECES * sizeof *m->pieces },
        { &m->segments, (size_t)gdn_block_n_segments(b) * sizeof *m->segments },
        { &m->x, window * (size_t)b->hidden * sizeof(float) },
        { &m->y, window * (size_t)b->columns.all * sizeof(float) },
        { &m->o, window * Hv * V * sizeof(float) },
        { &m->low, window * (size_t)b->rank * sizeof(float) },
        { &m->A, gdn_rule_decay_bytes(&b->rule) },
        { &m->norm, V * sizeof(float) },
        { &m->state[0], state },
        { &m->state[1], state },
        { &m->conv[0], conv },
        { &m->conv[1], conv },
        { &m->threads, 0 },
    };
    return gdn_lay_out_rooms(rooms, sizeof rooms / sizeof *rooms, memory);
}

static size_t bytes_of(const struct gdn_block *b)
{
    struct buffers m;
    return lay_out(&m, b, NULL);
}

/* ---- One window ---------------------------------------------------------------------------- */

/* Takes the next tokens of the batch: from sequence *b, token *t. Returns how many pieces. */
static int64_t next_window(const struct gdn_block *b, struct buffers *m, int64_t *seq, int64_t *t,
                           int64_t *n_tokens)
{
    int64_t n = 0, used = 0;
    for (; *seq < b->plan->B && n < PIECES; n++) {
        const struct gdn_seq *s = &b->plan->seqs[*seq];
        int64_t take = s->n_valid - *t;
        const bool ends = take <= b->window - used;
        if (!ends) take = (b->window - used) & ~(int64_t)(GDN_CHUNK - 1);
        if (!ends && (take == 0 || s->total <= GDN_SHORT_SEQUENCE)) break;
        struct gdn_seq *piece = &m->pieces[n];
        *piece = *s;
        piece->batch = 0;
        piece->first = used;
        piece->n_before = 0;
        piece->base = *t;
        piece->n_tokens = s->n_tokens == 0 ? 0 : take > 0 ? take : s->n_tokens;
        piece->n_valid = take;
        piece->from_carry = *t > 0;
        piece->to_carry = !ends;
        used += take;
        *t = ends ? 0 : *t + take;
        *seq += ends;
        if (!ends) {
            n++;
            break;
        }
    }
    *n_tokens = used;
    return n;
}

/* Row i of the window and token of the batch: which sequence each piece is of, in order. */
struct window {
    const struct gdn_block *b;
    gdn_ctx *ctx;
    struct buffers *m;
    int64_t n_pieces, n_tokens;
    int64_t first_seq, first_token; /* where the window begins in the batch */
};

/* Converts the piece's rows of hidden, or stores those of out. */
static void move_piece(const struct window *w, int64_t piece, bool store)
{
    const struct gdn_block *b = w->b;
    const struct gdn_seq *p = &w->m->pieces[piece], *s = &b->plan->seqs[w->first_seq + piece];
    const struct gdn_rows *rows = store ? &b->out : &b->in;
    const int64_t t0 = piece == 0 ? w->first_token : 0;
    for (int64_t t = 0; t < p->n_valid; t++) {
        float *x = w->m->x + (p->first + t) * b->hidden;
        void *row = gdn_row(rows, s, t0 + t, 0);
        if (store)
            w->ctx->kr->store_row[rows->dtype](row, x, (size_t)b->hidden);
        else
            w->ctx->kr->load_row[rows->dtype](x, row, (size_t)b->hidden);
    }
}

static void load_piece(void *arg, int64_t piece, int thread)
{
    (void)thread;
    move_piece(arg, piece, false);
}

static void store_piece(void *arg, int64_t piece, int thread)
{
    (void)thread;
    move_piece(arg, piece, true);
}

/* Computes the gated RMSNorm of one token: o <- o / rms(o) norm_weight act(z), head by head. */
static void norm_token(void *arg, int64_t t, int thread)
{
    (void)thread;
    const struct window *w = arg;
    const struct gdn_block *b = w->b;
    const struct gdn_kernels *kr = w->ctx->kr;
    const size_t V = (size_t)b->V;
    for (int64_t h = 0; h < b->Hv; h++) {
        float *o = w->m->o + (t * b->Hv + h) * b->V;
        const float *z = w->m->y + t * b->columns.all + b->columns.z + h * b->V;
        const float s = 1.0f / sqrtf(kr->dot(o, o, V) / (float)b->V + b->rms_eps);
        kr->norm_row(o, o, s, w->m->norm, z, b->sigmoid, V);
    }
}

/* Projects one segment of the window's rows x to rows y. */
static void project(const struct window *w, float *y, int64_t ld_y, const float *x, int64_t n_in,
                    const struct gdn_segment *segment)
{
    gdn_project(w->ctx, y, ld_y, x, w->n_tokens, n_in, segment, 1, w->m->threads);
}

static void project_all(const struct window *w)
{
    const struct gdn_block *b = w->b;
    struct buffers *m = w->m;
    const int64_t columns = b->columns.all;
    gdn_project(w->ctx, m->y, columns, m->x, w->n_tokens, b->hidden, m->segments,
                gdn_block_n_segments(b), m->threads);
    for (int i = 0; i < gdn_block_n_low_ranks(b); i++) {
        const struct gdn_low_rank low = gdn_block_low_rank(b, i);
        project(w, m->low, low.down.n, m->x, b->hidden, &low.down);
        project(w, m->y, columns, m->low, low.down.n, &low.up);
    }
}

static void run_window(const struct window *w, int carry)
{
    const struct gdn_block *b = w->b;
    struct buffers *m = w->m;
    struct gdn_conv conv = b->conv;
    struct gdn_rule rule = b->rule;
    const struct gdn_segment out = { &b->args->out_proj, 0, b->hidden, 0 };
    gdn_parallel_for(w->ctx->threads, w->n_pieces, load_piece, (void *)w);
    project_all(w);
    conv.seqs = rule.seqs = m->pieces;
    conv.n_seqs = rule.n_seqs = w->n_pieces;
    conv.carry_from.data = (char *)m->conv[carry], conv.carry_to.data = (char *)m->conv[!carry];
    gdn_conv_run(w->ctx, &conv, m->threads);
    rule.carry_from.data = (char *)m->state[carry], rule.carry_to.data = (char *)m->state[!carry];
    gdn_rule_run(w->ctx, &rule, m->threads);
    gdn_parallel_for(w->ctx->threads, w->n_tokens, norm_token, (void *)w);
    project(w, m->x, b->hidden, m->o, b->Hv * b->V, &out);
    gdn_parallel_for(w->ctx->threads, w->n_pieces, store_piece, (void *)w);
}

/* Returns the rows of a buffer of the window, `head` floats a head. */
static struct gdn_rows window_rows(float *data, int64_t row, int64_t head)
{
    return (struct gdn_rows){ (char *)data, GDN_F32, 0, row * (int64_t)sizeof(float),
                              head * (int64_t)sizeof(float) };
}

static void run_windows(gdn_ctx *ctx, struct gdn_block *b, char *memory)
{
    struct buffers m;
    const struct gdn_block_columns *at = &b->columns;
    const int64_t all = at->all;
    lay_out(&m, b, memory);
    for (int i = 0; i < gdn_block_n_segments(b); i++) m.segments[i] = gdn_block_segment(b, i);
    gdn_rule_load_decay(m.A, m.A + b->Hv, &b->args->A_log, &b->args->dt_bias, b->Hv, b->channels,
                        b->rule.bound);
    gdn_load_vector(m.norm, &b->args->norm_weight, b->V, 1);

    b->conv.x = b->conv.out = window_rows(m.y, all, 0);
    b->rule.q = window_rows(m.y, all, b->K);
    b->rule.k = window_rows(m.y + at->k, all, b->K);
    b->rule.v = window_rows(m.y + at->v, all, b->V);
    b->rule.beta = window_rows(m.y + at->b, all, 1);
    b->rule.g = window_rows(m.y + at->a, all, b->channels);
    b->rule.out = window_rows(m.o, b->Hv * b->V, b->V);
    b->rule.A = m.A, b->rule.dt = m.A + b->Hv;
    b->rule.plan = b->conv.plan = b->plan;

    struct window w = { .b = b, .ctx = ctx, .m = &m };
    int64_t seq = 0, token = 0;
    for (int carry = 0; seq < b->plan->B; carry = !carry) {
        w.first_seq = seq;
        w.first_token = token;
        w.n_pieces = next_window(b, &m, &seq, &token, &w.n_tokens);
        run_window(&w, carry);
    }
}

/* ---- gdn_block ----------------------------------------------------------------------------- */

/* A window's sequences go on from the carries, as long as the states that their content ends in. */
static void plan_windows(struct gdn_block *b)
{
    struct gdn_conv *v = &b->conv;
    const int64_t length = v->from.data          ? v->from.length
                           : v->checkpoints.data ? v->checkpoints.length
                                                 : v->W - 1;
    b->window = b->n_tokens < WINDOW ? b->n_tokens : WINDOW;
    v->carry_from = v->carry_to =
        (struct gdn_conv_view){ .dtype = GDN_F32, .channel = length, .entry = 1, .length = length };
    b->rule.carry_from = b->rule.carry_to =
        (struct gdn_pool_view){ .dtype = GDN_F32, .head = b->K * b->V, .ld = b->K };
}

static gdn_status plan_block(gdn_ctx *ctx, void *call)
{
    struct gdn_block_call *c = call;
    struct gdn_block *b = &c->block;
    plan_windows(b);
    const bool rounds = c->args.flags & GDN_BF16_PRODUCTS && !b->rule.family.is;
    b->rule.products = rounds ? ctx->products : NULL;
    gdn_rule_cut(&b->rule, ctx->kr, gdn_threads_count(ctx->threads));
    size_t thread = gdn_rule_scratch(&b->rule, ctx->kr), conv = gdn_conv_scratch(&b->conv);
    thread = thread > conv ? thread : conv;
    thread = thread > gdn_project_scratch() ? thread : gdn_project_scratch();
    c->plan_bytes = gdn_align64(gdn_plan_bytes(&c->plan, &c->tokens));
    thread *= (size_t)gdn_threads_count(ctx->threads);
    c->record_bytes = b->rule.record ? gdn_record_slots_bytes(&c->record) : 0;
    c->base.bytes = c->plan_bytes + c->record_bytes + bytes_of(b) + thread;
    return GDN_OK;
}

static gdn_status note(gdn_ctx *ctx, struct gdn_block_call *c)
{
    struct gdn_rule *r = &c->block.rule;
    char text[sizeof ctx->kernel];
    r->seqs = c->plan.seqs;
    r->n_seqs = c->plan.B;
    snprintf(text, sizeof text, "gemm_nt conv %s norm_row", gdn_rule_loops(r));
    return gdn_note_kernel(ctx, c->base.op, text);
}

static gdn_status run_block(gdn_ctx *ctx, void *call, void *memory)
{
    struct gdn_block_call *c = call;
    TRY(gdn_plan_batch(ctx, &c->tokens, &c->pools, memory, &c->plan));
    const struct gdn_rule *r = &c->block.rule;
    char *record = (char *)memory + c->plan_bytes, *rest = record + c->record_bytes;
    if (r->record)
        TRY(gdn_record_begin(ctx, r, &c->plan, record, rest + bytes_of(&c->block),
                             gdn_rule_scratch(r, ctx->kr)));
    run_windows(ctx, &c->block, rest);
    if (r->record) gdn_record_accept(r->record, &c->plan, c->pools.checkpoint_in_write);
    gdn_plan_zero_rest(&c->plan, &c->tokens, &c->block.out, 1, c->block.hidden);
    return note(ctx, c);
}

const struct gdn_op_backend gdn_cpu_op_block = { plan_block, run_block };
