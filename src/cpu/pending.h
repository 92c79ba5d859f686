/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of a record that are accepted but not in the state yet, as sums beside it. With S as it
 * lies, d its decays since then, and y_j the key of row j times the decays behind it, the state is
 *
 *     diag(d) S + sum_j y_j u_j^T
 *
 * so that S is only read, until all rows go into it at once.
 */
#ifndef GDN_CPU_PENDING_H
#define GDN_CPU_PENDING_H

#include "cpu/record.h"

enum { GDN_PENDING_TOKENS = GDN_CHUNK }; /* most tokens on a state that stays */

/* The rows of one slot and head. Heads that share keys share y and dots, if a row has one decay. */
struct gdn_pending {
    int64_t slot, first, n; /* rows [first, n) count: from the last on that forgets the state */
    int head, source;       /* source: the head of k that y is of; -1: none */
    bool has_dots;
    float *decay;                   /* [K], d */
    float *y, *scale;               /* [n][K] and [n]: y_j is the product, scale 0 leaves it out */
    float *u;                       /* [n][GDN_RECUR_COLUMNS] */
    float *dots;                    /* [2 tokens][n]: of k and q with y */
    float *columns;                 /* [GDN_RECUR_COLUMNS][n]: u, transposed */
    float *sums;                    /* [2 tokens][columns] */
    float *alpha, *a, *ak, *aq, *e; /* of tokens: [T], [T][K]; e [2 T][K] */
};

/* Bytes of scratch; and its arrays, for the heads of one sequence that share keys. */
size_t gdn_pending_scratch(const struct gdn_rule *r);
void gdn_pending_open(struct gdn_pending *p, const struct gdn_rule *r, void *scratch);

/* Requests the rows of a head from memory. */
void gdn_pending_prefetch(const struct gdn_rule *r, int64_t slot, int head);

/* Finds y, its scale and d. Returns false if a channel of its own forgets; then rows must be
 * applied one by one. */
bool gdn_pending_load(struct gdn_pending *p, const struct gdn_rule *r, const struct gdn_kernels *kr,
                      int64_t slot, int head);

/* Puts T tokens of a step onto S alone: its first decay becomes that of S too, and v loses what
 * the rows hold for k. What they hold for q is in p->sums, from row T on. Returns false, and has
 * done nothing, if a token forgets. v: n columns from col on; q follows k. */
bool gdn_pending_begin(struct gdn_pending *p, const struct gdn_rule *r,
                       const struct gdn_kernels *kr, struct gdn_recur *step, float *v, int col);

/* S <- the state, of columns [col, col + n), as gdn_record_apply() has it; for sizes of strips. */
bool gdn_pending_takes(const struct gdn_rule *r, const struct gdn_kernels *kr);
void gdn_pending_fold(struct gdn_pending *p, const struct gdn_rule *r, const struct gdn_kernels *kr,
                      int col, int n, bool k_first, float *S);

#endif
