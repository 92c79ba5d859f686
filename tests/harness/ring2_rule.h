/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a call of gdn_prefill or gdn_decode must give, from its argument struct alone: the
 * batch, slots, masks and layouts of gdn.h read a second time, over the float64 oracle.
 */
#ifndef RING2_RULE_H
#define RING2_RULE_H

#include "ring2.h"

struct ring2_rule {
    int64_t B, n_rows, H, K, V; /* n_rows: tokens of the whole tensors, N or B T */
    gdn_tensor target;          /* the pool that is written; data NULL: none */

    /* In row-major order of out, [n_rows][H][V], and of target. kept: not to be changed. */
    double *out, *out_limit, *out_noise;
    double *state, *state_limit, *state_noise;
    bool *out_kept, *state_kept;
};

/* Reads every input, so it comes before the call. */
void ring2_rule_model(const gdn_rule_args *args, bool decode, struct ring2_rule *m);

/* Model, call, and everything compared: values, what was left alone, memory around. */
void ring2_rule_check(gdn_ctx *ctx, const gdn_rule_args *args, bool decode);
/* The same, with the model of another call on the same tensors. */
void ring2_rule_check_as(gdn_ctx *ctx, const gdn_rule_args *args, const gdn_rule_args *other,
                         bool decode);

/* The call alone. */
gdn_status ring2_rule_call(gdn_ctx *ctx, const gdn_rule_args *args, bool decode);

/* ---- Calls to start from ---- */

/* Ordinary inputs: q, k of length near 1 (exactly, before rounding to the dtype, if unit), v in
 * [-1, 1], log gates in [low, 0], beta in [0, 1]. Fills those that are there. */
void ring2_rule_inputs(const gdn_rule_args *args, bool unit, double low);

/* A dense call with fresh memory: N tokens, P slots (0: no state), f32 gates, in place. */
gdn_rule_args ring2_rule_args(int32_t dtype, int32_t state_dtype, int64_t N, int64_t P,
                              const int heads[3], int64_t K, int64_t V);

/* The same for n packed sequences. batch lives as long as the test's memory. */
gdn_rule_args ring2_rule_packed(int32_t dtype, int32_t state_dtype, int n, const int64_t *lengths,
                                const int heads[3], int64_t K, int64_t V, gdn_batch **batch);

/* Every tensor cloned; the batch is shared. */
gdn_rule_args ring2_rule_clone(const gdn_rule_args *args);
/* Tokens [first, first + n) of packed tensors, as views; without the batch. */
gdn_rule_args ring2_rule_slice(const gdn_rule_args *args, int64_t first, int64_t n);
/* Makes [B][T] of packed tokens of B sequences, which have T each. */
void ring2_rule_pad(gdn_rule_args *args, int64_t B);

#endif
