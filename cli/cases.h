/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Made-up work of a model's size, for `gdn bench` and `gdn run --all`, each with a float64
 * judge for a part of it: the rule, the convolution, the whole layer.
 *
 * q and k have length 1, v is uniform in [-1, 1), g is -0.001 - 0.5 x^4 for x uniform (a long
 * memory, now and then cut), beta is uniform in [0, 1). From some thousand tokens on they
 * repeat.
 */
#ifndef CASES_H
#define CASES_H

#include "compare.h"
#include "memory.h"

/* Sequences of a batch: packed, one after the other. */
struct case_batch {
    int64_t        B, N;
    const int64_t *cu_seqlens; /* [B+1] */
};
/* From B lengths. Its memory lives in m; cu_seqlens NULL: there is none. */
struct case_batch case_batch(struct memory *m, const int64_t *lengths, int64_t B);

struct case_dims {
    int64_t Hq, Hv, K, V; /* heads of k: the smaller of Hq and Hv */
    int64_t D, W;         /* channels and taps of the convolution */
    int64_t hidden;
    int32_t dtype, state_dtype, state_layout;
    bool    exact;         /* GDN_EXACT: the rule and the layer */
    bool    bf16_products; /* GDN_BF16_PRODUCTS: likewise */
};

/* One op with its memory. Not to be moved: args points into it. */
struct rule_case {
    struct memory     memory;
    struct case_batch tokens;
    struct case_dims  dims;
    gdn_batch         batch;
    gdn_rule_args     args;
};
struct conv_case {
    struct memory     memory;
    struct case_batch tokens;
    struct case_dims  dims;
    gdn_batch         batch;
    gdn_conv1d_args   args;
};
struct block_case {
    struct memory     memory;
    struct case_batch tokens;
    struct case_dims  dims;
    gdn_batch         batch;
    gdn_block_args    args;
};

/* All take B lengths of sequences; CLI_BAD after a line if there is no memory. States are
 * random for the rule and the convolution, zero for the layer. */
int  rule_case_make(struct rule_case *c, const struct case_dims *dims, const int64_t *lengths,
                    int64_t B);
int  conv_case_make(struct conv_case *c, const struct case_dims *dims, const int64_t *lengths,
                    int64_t B);
int  block_case_make(struct block_case *c, const struct case_dims *dims, const int64_t *lengths,
                     int64_t B);

/* State head h of sequence b, [V][K], whatever the layout. */
void rule_case_state(const struct rule_case *c, int64_t b, int64_t h, double *state);

/*
 * The float64 recurrence over the first n tokens of sequence b, for state head h, from and to
 * `state` [V][K]. Writes its outputs and the library's beside each other, [n][V]. Returns
 * false without memory.
 */
bool rule_case_follow(const struct rule_case *c, int64_t b, int64_t h, int64_t n, double *state,
                      double *want, double *got);

/* Runs op once, and compares a part of sequence 0 with float64. Both CLI_BAD after a line. */
int rule_case_check(struct rule_case *c, gdn_ctx *ctx, gdn_op op, struct comparison *found);
int conv_case_check(struct conv_case *c, gdn_ctx *ctx, struct comparison *found);
int block_case_check(struct block_case *c, gdn_ctx *ctx, struct comparison *found);

/* ---- Counting, per call ---- */

double rule_case_flops(const struct rule_case *c); /* 6 K V per token and head */
double rule_case_bytes(const struct rule_case *c); /* q k v g beta out, states in and out */
double conv_case_flops(const struct conv_case *c);
double conv_case_bytes(const struct conv_case *c);
double block_case_flops(const struct block_case *c, double *projections);
double block_case_bytes(const struct block_case *c); /* weights, hidden, out, states */

/* ---- For the cases ---- */

/* Uniform in [0, 1). */
double case_random(uint64_t *seed);
/* A tensor in `m`, elements uniform in [low, high). */
gdn_tensor case_tensor(struct memory *m, int32_t dtype, int ndim, const int64_t *size, double low,
                       double high);
double case_bytes(const gdn_tensor *t);
gdn_batch case_gdn_batch(const struct case_batch *tokens);
int case_failed(gdn_ctx *ctx, gdn_status status);

#endif
