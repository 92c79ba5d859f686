/* SPDX-License-Identifier: Apache-2.0 */
/* The shared parts of stages and summaries: batches without slots, and the numbering of chunks. */
#ifndef GDN_STAGE_H
#define GDN_STAGE_H

#include "batch/plan.h"
#include "calls/rule.h"
#include "core/backend.h"
#include "core/ctx.h"
#include "gdn_research.h"

/* gdn_plan_describe() for a batch that may have cu_seqlens and token_count alone; and, the second
 * one, token_start and what `takes` says. */
gdn_status gdn_stage_plan(gdn_ctx *ctx, const gdn_batch *batch, const struct gdn_tokens *tokens,
                          struct gdn_plan *plan);
gdn_status gdn_stage_plan_padded(gdn_ctx *ctx, const gdn_batch *batch,
                                 const struct gdn_tokens *tokens, unsigned takes,
                                 struct gdn_plan *plan);

/* A head size, the last dimension, from 1 to `most`; heads, which must divide H. */
gdn_status gdn_stage_head_size(gdn_ctx *ctx, const gdn_tensor *t, const char *name, int most,
                               int *size);
gdn_status gdn_stage_heads(gdn_ctx *ctx, const gdn_tensor *t, const char *name, int64_t H, int *n);

/* ---- Chunks -------------------------------------------------------------------------------- */

enum { GDN_MAX_CHUNK = 64 };

/* The chunks of a batch, numbered through its sequences. */
struct gdn_chunk_list {
    const struct gdn_plan *plan;
    int64_t               *first; /* [B+1] */
    int64_t                C;
};
struct gdn_chunk {
    const struct gdn_seq *seq;
    int64_t               number, t0;
    int64_t               n; /* tokens of it that count, 0 to C */
};

/* Bytes of memory for the plan and its chunks; and the plan with its chunks, made there. */
size_t gdn_stage_plan_bytes(const struct gdn_plan *plan, const struct gdn_tokens *tokens);
gdn_status gdn_stage_chunks(gdn_ctx *ctx, const struct gdn_tokens *tokens, int64_t C, void *memory,
                            struct gdn_plan *plan, struct gdn_chunk_list *list);
struct gdn_chunk gdn_chunk_at(const struct gdn_chunk_list *list, int64_t number);
struct gdn_chunk gdn_chunk_of(const struct gdn_chunk_list *list, const struct gdn_seq *seq,
                              int64_t number);
static inline int64_t gdn_chunk_total(const struct gdn_chunk_list *list)
{
    return list->first[list->plan->B];
}

/* Gates of one chunk and head; 0 and beta 0 where no token counts. What a gate forgets is
 * known by index, for products with 0 would keep a NaN. */
struct gdn_chunk_gates {
    float g[GDN_MAX_CHUNK], beta[GDN_MAX_CHUNK];
    float from_start[GDN_MAX_CHUNK]; /* exp of the sum of g up to the token, 0 from `first` on */
    float to_end[GDN_MAX_CHUNK];     /* exp of the sum of g after the token, 0 before `last` */
    float decay;                     /* of the whole chunk */
    int   first, last; /* tokens before first see the start, those from last on reach the end */
};
void gdn_load_chunk_gates(struct gdn_chunk_gates *c, const struct gdn_rule *r,
                          const struct gdn_kernels *kr, const struct gdn_chunk *chunk, int head);

/* Loads rows [t, t + 16) of a chunk as float32, zero past its n tokens. */
void gdn_load_chunk_rows(float *to, ptrdiff_t ld, const struct gdn_kernels *kr,
                         const struct gdn_rows *rows, const struct gdn_chunk *chunk, int64_t t,
                         int64_t head, int64_t col, int64_t n);

/* chunk_size, 16, 32 or 64. */
gdn_status gdn_stage_chunk_size(gdn_ctx *ctx, int32_t C);

/* A state for every chunk. */
static inline gdn_status gdn_stage_check_states(gdn_ctx *ctx, const gdn_tensor *states,
                                                int64_t n_chunks)
{
    if (states->size[0] >= n_chunks) return GDN_OK;
    return gdn_fail(ctx, GDN_E_SHAPE, "states: %lld chunks, wanted %lld at least",
                    (long long)states->size[0], (long long)n_chunks);
}

/* ---- Checked calls ------------------------------------------------------------------------- */

struct gdn_cumsum_call {
    struct gdn_call       base;
    gdn_chunk_cumsum_args args;
    struct gdn_tokens     tokens;
    struct gdn_plan       plan;
    struct gdn_chunk_list list;
    struct gdn_rows       g, out;
    double                scale;
    int64_t               H;
};

enum { GDN_UW_U, GDN_UW_W, GDN_UW_T, GDN_N_UW };
struct gdn_uw_call {
    struct gdn_call       base;
    gdn_chunk_uw_args     args;
    struct gdn_tokens     tokens;
    struct gdn_plan       plan;
    struct gdn_chunk_list list;
    struct gdn_rule       rule;
    struct gdn_rows       to[GDN_N_UW];
    int                   columns[GDN_N_UW]; /* V, K, C; 0: not wanted */
    int                   C, n_strips;
    size_t                plan_bytes, thread_bytes;
};

struct gdn_states_call {
    struct gdn_call       base;
    gdn_chunk_states_args args;
    struct gdn_tokens     tokens;
    struct gdn_plan       plan;
    struct gdn_chunk_list list;
    struct gdn_rule       rule;
    struct gdn_rows       u, w;
    struct gdn_pool_view  state, states, state_out;
    int                   C;
    size_t                plan_bytes, thread_bytes;
};

struct gdn_output_call {
    struct gdn_call       base;
    gdn_chunk_output_args args;
    struct gdn_tokens     tokens;
    struct gdn_plan       plan;
    struct gdn_chunk_list list;
    struct gdn_rule       rule;
    struct gdn_rows       u, w;
    struct gdn_pool_view  states;
    int                   C, n_strips;
    size_t                plan_bytes, thread_bytes;
};

struct gdn_summary_call {
    struct gdn_call   base;
    gdn_summary_args  args;
    struct gdn_tokens tokens;
    struct gdn_plan   plan;
    struct gdn_rule   offset, transition; /* the runs that make U and M */
    size_t            plan_bytes, identity_bytes, scratch_bytes;
};

/* S = M S + U of ranges in their order, for every slot and head. */
struct gdn_product {
    struct gdn_pool_view M, S, U, out; /* S and U: data NULL for zero */
    gdn_tensor           order;        /* [B][n] ranges; data NULL: b, b + B, b + 2 B, ... */
    int64_t              B, P, n;      /* slots, ranges, and those that a slot passes */
    int                  H, K, V, n_strips;
};
struct gdn_product_call {
    struct gdn_call    base;
    struct gdn_product product[2];
    int                n;
};

/* Returns how many ranges a slot passes, and the i-th of slot b, which is none if it is negative.
 * order is in host memory. */
int64_t gdn_product_n_ranges(const struct gdn_product *a);
int64_t gdn_product_range(const struct gdn_product *a, int64_t b, int64_t i);

/* Every range of the order is there. */
gdn_status gdn_product_check_order(gdn_ctx *ctx, const struct gdn_product *a);

#endif
