/* SPDX-License-Identifier: Apache-2.0 */
/* The list of merges, and its use on a piece of text: the pair of the lowest rank first, of equal
 * ones the leftmost. */
#ifndef BPE_MERGE_H
#define BPE_MERGE_H

#include <stdbool.h>

#include "program/memory.h"

struct merge {
    int32_t left, right, merged, rank;
    bool used; /* this place of the table */
};

/* Merges by their pairs. */
struct merges {
    struct merge *table; /* hash table */
    size_t n;            /* places, a power of two */
};

/* Makes room for so many merges; false: there is no memory. */
bool merges_make(struct merges *m, size_t n, struct memory *memory);
/* Adds a merge; of equal pairs the last one counts. */
void merges_add(struct merges *m, const struct merge *merge);

/* Room to merge the tokens of one piece. */
struct merge_room {
    struct merge_pair *queue; /* heap */
    int64_t n_queue;
    int64_t *before, *after; /* the neighbours of a token that are left */
};

/* For pieces of n tokens; false: there is no memory. */
bool merge_make_room(struct merge_room *r, int64_t n, struct memory *memory);
/* Merges n tokens in place; returns how many are left. Takes n log n steps. */
int64_t merge_all(const struct merges *m, struct merge_room *r, int32_t *tokens, int64_t n);

#endif
