/* SPDX-License-Identifier: Apache-2.0 */
/* A batch as an op hands it to the plan, for unit_plan.c and unit_plan_slots.c. */
#ifndef PLAN_CALL_H
#define PLAN_CALL_H

#include <string.h>

#include "batch/plan.h"
#include "ring2.h"

static gdn_ctx *ctx; /* set by main() */

static inline gdn_tensor list(const int64_t *values, int64_t n)
{
    return gdn_dense((void *)(uintptr_t)values, GDN_I64, 1, n, 0, 0, 0);
}

static inline gdn_tensor table(const int64_t *values, int64_t rows, int64_t columns)
{
    return gdn_dense((void *)(uintptr_t)values, GDN_I64, 2, rows, columns, 0, 0);
}

#define N_OF(...) (sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t))
#define LIST(...) list((const int64_t[]){ __VA_ARGS__ }, N_OF(__VA_ARGS__))
#define TABLE(rows, ...) table((const int64_t[]){ __VA_ARGS__ }, rows, N_OF(__VA_ARGS__) / (rows))

/* ---- A call as an op makes it -------------------------------------------------------------- */

struct call {
    bool padded;
    unsigned takes; /* GDN_PLAN_... */
    int64_t B, T;   /* packed: N = B T */
    int64_t read_end, write_end, checkpoint_end;
    bool two_pools, own_checkpoints;
    gdn_batch batch;
    struct gdn_tokens tokens;
    struct gdn_plan plan;
    struct gdn_seq *seqs;
};

/* Padded [B][T] with a pool of 8 slots, until a test says otherwise. */
static inline struct call padded(int64_t B, int64_t T)
{
    return (struct call){ .padded = true,
                          .takes = ~0u,
                          .B = B,
                          .T = T,
                          .read_end = 8,
                          .write_end = 8,
                          .checkpoint_end = -1,
                          .batch = gdn_batch_init() };
}

static inline struct call packed(int64_t N)
{
    struct call c = padded(1, N);
    c.padded = false;
    return c;
}

static inline gdn_status run(struct call *c)
{
    static float x[1];
    const gdn_tensor like = c->padded ? gdn_dense(x, GDN_F32, 3, c->B, c->T, 1, 0)
                                      : gdn_dense(x, GDN_F32, 2, c->B * c->T, 1, 0, 0);
    gdn_status s = gdn_plan_tokens(ctx, &like, "x", 1, &c->tokens);
    /* As an op says it: with a tensor for checkpoints, if the batch has some. */
    const bool leaves = c->batch.checkpoint_every || c->batch.checkpoint_starts.data ||
                        c->batch.checkpoint_positions.data;
    const unsigned takes = c->takes & ~(GDN_PLAN_NO_TENSOR | (leaves ? 0u : GDN_PLAN_CHECKPOINTS));
    if (s == GDN_OK) s = gdn_plan_describe(ctx, &c->batch, &c->tokens, takes, &c->plan);
    if (s != GDN_OK) return s;
    /* Ends at a page that cannot be touched. */
    void *memory = ring2_alloc(gdn_plan_bytes(&c->plan, &c->tokens), 64);
    const struct gdn_plan_pools pools = { c->read_end, c->write_end, c->checkpoint_end,
                                          !c->two_pools, !c->own_checkpoints };
    s = gdn_plan_batch(ctx, &c->tokens, &pools, memory, &c->plan);
    c->seqs = c->plan.seqs;
    return s;
}

static inline bool accepted(const char *what, struct call *c)
{
    const gdn_status s = run(c);
    ring2_status(ctx, what, s, GDN_OK);
    return s == GDN_OK;
}

static inline void refused(const char *what, struct call c, gdn_status want, const char *words)
{
    const gdn_status s = run(&c);
    ring2_status(ctx, what, s, want);
    if (s == want)
        CHECK(strstr(gdn_last_error(ctx), words), "%s: text \"%s\", wanted \"%s\" in it", what,
              gdn_last_error(ctx), words);
}

static inline void expect_seq(const char *what, const struct call *c, int64_t b,
                              struct gdn_seq want)
{
    const struct gdn_seq *s = &c->seqs[b];
    want.row = b;
    want.total = want.n_valid;
    CHECK(s->row == want.row && s->batch == want.batch && s->first == want.first &&
              s->n_tokens == want.n_tokens && s->n_valid == want.n_valid &&
              s->total == want.total && s->read == want.read && s->write == want.write &&
              s->keep_out == want.keep_out && !s->from_carry && !s->to_carry,
          "%s: sequence %d: row %d batch %d first %d tokens %d valid %d total %d read %d write %d "
          "keep %d",
          what, (int)b, (int)s->row, (int)s->batch, (int)s->first, (int)s->n_tokens,
          (int)s->n_valid, (int)s->total, (int)s->read, (int)s->write, s->keep_out);
}

#define SEQ(...) \
    (struct gdn_seq) { __VA_ARGS__ }

/* Only the slots. */
static inline void expect_slots(const char *what, const struct call *c, int64_t b, int64_t read,
                                int64_t write)
{
    CHECK(c->seqs[b].read == read && c->seqs[b].write == write,
          "%s: sequence %d: read %d write %d, wanted %d %d", what, (int)b, (int)c->seqs[b].read,
          (int)c->seqs[b].write, (int)read, (int)write);
}

#endif
