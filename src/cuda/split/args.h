/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of the kernels beside prefill that give GDN_SPLIT_INVARIANT with a record. */
#ifndef GDN_CUDA_SPLIT_ARGS_H
#define GDN_CUDA_SPLIT_ARGS_H

#include "cuda/driver/args.h"

/* Numbers of each sequence, which plan() computes. They are arrays of B + 1 numbers. Those of the
 * open chunk and of the rest are arrays of their batches: see struct gdn_batch. */
enum {
    GDN_SPLIT_ROWS, /* rows of the record before the call; -1: the sequence has no slot */
    GDN_SPLIT_OPEN_READ,
    GDN_SPLIT_OPEN_WRITE, /* the state after its last whole chunk */
    GDN_SPLIT_OPEN_POSITIONS,
    GDN_SPLIT_OPEN_COUNT,
    GDN_SPLIT_REST_READ,
    GDN_SPLIT_REST_START,
    GDN_SPLIT_REST_COUNT,
    GDN_SPLIT_REST_WRITE, /* the same of the rest */
    GDN_SPLIT_REST_POSITIONS,
    GDN_SPLIT_STARTS, /* checkpoints of either launch, one for each sequence */
    GDN_SPLIT_NUMBERS
};

enum { GDN_SPLIT_UNIT = 64 }; /* tokens */

/* How tokens behind the open chunk are computed. NONE: there are none. APART: as tokens of the
 * call. NEXT: as a second open chunk, which begins empty. */
enum { GDN_SPLIT_REST_NONE, GDN_SPLIT_REST_APART, GDN_SPLIT_REST_NEXT };

/* rule: of the call, or of a fold. q, k, v, g, beta and out: of open chunks, dense,
 * [B][most][heads][...] each, and behind them those of next chunks; q and out NULL: there is no
 * output. ..._wide: bytes of a row of both tensors that move at once. */
struct gdn_cu_split {
    struct gdn_cu_rule rule;
    int64_t *numbers; /* [GDN_SPLIT_NUMBERS][B + 1] */
    char *q, *k, *v, *out;
    float *g, *beta;
    int64_t most; /* rows of the open chunk */
    int32_t q_wide, k_wide, v_wide, out_wide;
    int32_t accepts, folds; /* accepts: tokens count at once. folds: there are no tokens */
    int32_t one;            /* open chunks have at most 64 rows, and others are filled up */
    int32_t rest;           /* GDN_SPLIT_REST_... */
};
GDN_CU_SIZE(gdn_cu_split, 1336 + 8 * 8 + 8 * 4);

#endif
