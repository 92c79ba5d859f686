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

#include "cpu/record/record.h"

/* The most tokens that are kept beside a state until it is written. */
enum { GDN_PENDING_TOKENS = GDN_CHUNK };

/* The rows of one slot and head. Heads that share keys share y and dots, but not in
 * the family. */
struct gdn_pending {
    int64_t slot, first, n; /* rows [first, n) count: from the last on that forgets the state */
    int tokens;             /* rows behind them, in a fold: tokens of the call */
    int head, source;       /* source: the head of k that y is of; -1: none */
    bool has_dots, forgets; /* forgets: the state is zeroed before its first row that counts */
    float *decay;           /* [K], d; where all are equal, before a fold, the first alone */
    float *y, *scale;       /* [n][K] and [n]: y_j is the product, scale 0 leaves it out */
    float *u;               /* [n][GDN_RECUR_COLUMNS]; here n has the tokens */
    float *dots, *weights;  /* [2 tokens][n]: of k and q with y; those with decays */
    float *columns;         /* [GDN_RECUR_COLUMNS][n]: u of rows [first, n), transposed */
    float *sums;            /* [2 tokens][columns] */
    float *alpha, *a, *ak, *aq, *e; /* of tokens: [T], [T][K]; e [2 T][K] */
};

/* gdn_pending_scratch() returns the bytes of scratch. gdn_pending_open() lays out its arrays
 * there, for the heads of one sequence that share keys. */
size_t gdn_pending_scratch(const struct gdn_rule *r);
void gdn_pending_open(struct gdn_pending *p, const struct gdn_rule *r, void *scratch);

/* Requests the rows of a head from memory. */
void gdn_pending_prefetch(const struct gdn_rule *r, int64_t slot, int head);

/* Computes y, scale and decay of a head. Returns false if one channel alone forgets: then rows
 * must be applied one by one. */
bool gdn_pending_load(struct gdn_pending *p, const struct gdn_rule *r, const struct gdn_kernels *kr,
                      int64_t slot, int head);

/* Changes a step of T tokens so that it needs S alone. The first decay takes those of S in, and v
 * loses the sums of the rows with k. The sums with q are in p->sums, from row T on. If a token
 * forgets, it returns false and has changed nothing. v: n columns from col on; q follows k. */
bool gdn_pending_begin(struct gdn_pending *p, const struct gdn_rule *r,
                       const struct gdn_kernels *kr, struct gdn_recur *step, float *v, int col);

/* Puts all rows and tokens into S, if the record is full. tokens: as before gdn_pending_begin(),
 * with their u. S: their columns, in rows ld floats apart. takes: returns true if K and V are
 * multiples of a strip, which fold wants. */
bool gdn_pending_takes(const struct gdn_rule *r, const struct gdn_kernels *kr);
void gdn_pending_fold(struct gdn_pending *p, const struct gdn_kernels *kr,
                      const struct gdn_recur *tokens, bool k_first, float *S, ptrdiff_t ld);

#endif
