/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order in which the tokens of a tree are computed. A token follows its parent, the child
 * with most descendants comes last and takes over the parent's state; every other child works
 * on a copy of it. So of T tokens at most log2(T + 2) states are there at a time.
 */
#ifndef GDN_TREE_H
#define GDN_TREE_H

#include "batch/plan.h"

struct gdn_visit {
    int64_t token;
    int32_t level; /* the state that the token changes; 0 begins as the initial state */
    bool copies;   /* that state becomes a copy of the one below first */
};

/* Most levels of a tree of T tokens: a copy's descendants and its sibling's are not fewer. */
static inline int gdn_tree_levels(int64_t T)
{
    int n = 1;
    while ((T + 2) >> (n + 1)) n++;
    return n;
}

/* Refuses what trees do not go with, final states being of the dtype. */
gdn_status gdn_check_tree(gdn_ctx *ctx, const gdn_batch *batch, bool exact, int32_t dtype);

/* Returns bytes of memory for gdn_tree_order(), of which the visits are the first. */
size_t gdn_tree_bytes(const struct gdn_tokens *tokens);

void gdn_tree_order(const struct gdn_plan *plan, const struct gdn_tokens *tokens, void *memory);

/* Returns where the tokens of a sequence begin. */
static inline int64_t gdn_tree_at(const struct gdn_tokens *tokens, const struct gdn_seq *s)
{
    return s->batch * tokens->T + s->first;
}

#endif
