/* SPDX-License-Identifier: Apache-2.0 */
/* The stages and summaries as they are once checked. */
#ifndef GDN_STAGE_H
#define GDN_STAGE_H

#include "batch/plan.h"
#include "calls/rule.h"
#include "core/backend.h"
#include "core/ctx.h"
#include "gdn_research.h"

enum { GDN_MAX_CHUNK = 64 };

/* The chunks of a batch, numbered through its sequences. */
struct gdn_chunk_list {
    const struct gdn_plan *plan;
    int64_t *first; /* [B+1] */
    int64_t C;
};

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
    struct gdn_call base;
    gdn_chunk_cumsum_args args;
    struct gdn_tokens tokens;
    struct gdn_plan plan;
    struct gdn_chunk_list list;
    struct gdn_rows g, out;
    double scale;
    int64_t H;
};

enum { GDN_UW_U, GDN_UW_W, GDN_UW_T, GDN_N_UW };
struct gdn_uw_call {
    struct gdn_call base;
    gdn_chunk_uw_args args;
    struct gdn_tokens tokens;
    struct gdn_plan plan;
    struct gdn_chunk_list list;
    struct gdn_rule rule;
    struct gdn_rows to[GDN_N_UW];
    int columns[GDN_N_UW]; /* V, K, C; 0: not wanted */
    int C, n_strips;
    size_t plan_bytes, thread_bytes;
};

struct gdn_states_call {
    struct gdn_call base;
    gdn_chunk_states_args args;
    struct gdn_tokens tokens;
    struct gdn_plan plan;
    struct gdn_chunk_list list;
    struct gdn_rule rule;
    struct gdn_rows u, w;
    struct gdn_pool_view state, states, state_out;
    int C;
    size_t plan_bytes, thread_bytes;
};

struct gdn_output_call {
    struct gdn_call base;
    gdn_chunk_output_args args;
    struct gdn_tokens tokens;
    struct gdn_plan plan;
    struct gdn_chunk_list list;
    struct gdn_rule rule;
    struct gdn_rows u, w;
    struct gdn_pool_view states;
    int C, n_strips;
    size_t plan_bytes, thread_bytes;
};

struct gdn_summary_call {
    struct gdn_call base;
    gdn_summary_args args;
    struct gdn_tokens tokens;
    struct gdn_plan plan;
    struct gdn_rule offset, transition; /* the runs that make U and M */
    size_t plan_bytes, identity_bytes, scratch_bytes;
};

/* S = M S + U of ranges in their order, for every slot and head. */
struct gdn_product {
    struct gdn_pool_view M, S, U, out; /* S and U: data NULL for zero */
    gdn_tensor order;                  /* [B][n] ranges; data NULL: b, b + B, b + 2 B, ... */
    int64_t B, P, n;                   /* P ranges in all; a slot passes n of them */
    int H, K, V, n_strips;
};
struct gdn_product_call {
    struct gdn_call base;
    struct gdn_product product[2];
    int n;
};

/* Return how many ranges a slot passes, and range i of slot b (negative: no range). order is in
 * host memory. */
int64_t gdn_product_n_ranges(const struct gdn_product *a);
int64_t gdn_product_range(const struct gdn_product *a, int64_t b, int64_t i);

/* Every range of the order is there. */
gdn_status gdn_product_check_order(gdn_ctx *ctx, const struct gdn_product *a);

#endif
