/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a call of gdn_prefill_backward must give, from its argument struct alone, over the float64
 * recurrence in reverse.
 */
#ifndef RING2_GRADIENTS_H
#define RING2_GRADIENTS_H

#include <stdbool.h>

#include "gdn_train.h"
#include "ring2.h"

enum { DQ, DK, DV, DG, DBETA, DA_LOG, DDT_BIAS, DSTATE, N_GRADIENTS };

/* The gradient's tensor of the call. */
const gdn_tensor *ring2_gradient(const gdn_prefill_backward_args *args, int which);
extern const char *const ring2_gradient_names[N_GRADIENTS];

/* The wanted gradients, each in row-major order of its tensor; NULL: absent. */
struct ring2_gradients {
    double *want[N_GRADIENTS];
    double *plain[N_GRADIENTS]; /* of a loop in float32, one operation after the other */
    double *limit[N_GRADIENTS];
};

/* Returns true if a device computes the call on tensor cores. These take 16 bits if K and V are
 * multiples of 8, K at most 128 unless on Hopper, and round what is between two products. */
bool ring2_gradients_on_tiles(const gdn_prefill_backward_args *args);

/* Reads every input, so it comes before the call. */
void ring2_gradients_model(const gdn_prefill_backward_args *args, struct ring2_gradients *m);

/* Model, call, and everything compared: values, what was left alone, memory around. */
void ring2_gradients_check(gdn_ctx *ctx, const gdn_prefill_backward_args *args);

#endif
