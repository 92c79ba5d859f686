/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a model keeps of a text: per GDN layer a state of constant size, per layer of full
 * attention the keys and values of every token. Values lie as [head][head_dim][token], so that
 * both halves of attention are products of rows.
 */
#ifndef PAST_H
#define PAST_H

#include "generate/model.h"

struct past_layer {
    gdn_tensor conv_state, state; /* GDN */
    float     *keys;              /* [capacity][n_kv_heads][head_dim] */
    float     *values;            /* [n_kv_heads][head_dim][capacity] */
};

struct past {
    int64_t            n, capacity; /* tokens */
    struct past_layer *layers;
    struct memory      memory;
};

/* An empty past with room for so many tokens. */
int  past_make(struct past *p, const struct model *m, int64_t capacity);
void past_free(struct past *p);

#endif
