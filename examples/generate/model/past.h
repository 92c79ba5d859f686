/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a model keeps of a text: per GDN layer a state of constant size, per layer of full
 * attention the keys and values of every token. Values lie as [head][value_dim][token], so that
 * both halves of attention are products of rows.
 */
#ifndef PAST_H
#define PAST_H

#include "model/model.h"

struct past_layer {
    gdn_tensor conv_state, state; /* GDN */
    gdn_tensor conv_steps, steps; /* after each token of a call of a few: [n_steps] of them */
    float *keys;                  /* [capacity][n_kv_heads][head_dim] */
    float *values;                /* [n_kv_heads][value_dim][capacity] */
};

struct past {
    int64_t n, capacity; /* tokens */
    int64_t n_steps;     /* 0: calls are not undone */
    struct past_layer *layers;
    struct memory memory;
};

/* Sizes of the states of a GDN layer: [1][channels][taps - 1] and [1][heads][V][K]. */
struct past_sizes {
    int64_t conv_state[3], state[4];
};
struct past_sizes past_sizes(const struct config *c);

/* An empty past with room for so many tokens. */
int past_make(struct past *p, const struct model *m, int64_t capacity);
void past_free(struct past *p);

/* Room to undo calls of up to n_steps tokens. CLI_OK, or CLI_BAD after one line. */
int past_keep_steps(struct past *p, const struct model *m, int64_t n_steps);

/* After a call of n tokens, n <= n_steps: forgets all but the first `kept` > 0 of them. */
int past_undo(struct past *p, const struct model *m, int64_t n, int64_t kept);

#endif
