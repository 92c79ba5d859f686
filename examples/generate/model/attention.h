/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over all tokens: norms of q and k, rotary embedding, shared keys and values, softmax,
 * a sigmoid gate on the output, where the model has them. MLA keeps the keys and values of all
 * heads. */
#ifndef ATTENTION_H
#define ATTENTION_H

#include "model/past.h"

struct attention_room {
    float *q;      /* [window][n_heads][head_dim, and that of a gate] */
    float *out;    /* [window][n_heads][value_dim] */
    float *k, *v;  /* [window][n_kv_heads][head_dim or value_dim] */
    float *latent; /* MLA: [window][kv_rank + shared_dim] */
    float *normed; /* [window][kv_rank] */
    float *own;    /* [window][n_heads][own columns of k, those of v] */
    float *scores; /* [threads][capacity] */
};

/* False where there is no memory. */
bool attention_make_room(struct attention_room *r, struct memory *memory, const struct model *m,
                         int64_t window, int64_t capacity);

/* Tokens first .. first + n - 1 of the text, n at most window: x and y [n][hidden]. Their keys
 * and values go to the past. CLI_OK, or CLI_BAD after one line. */
int attention(const struct model *m, const struct attention_weights *w, struct past *past,
              struct past_layer *layer, const struct attention_room *r, int64_t first, int64_t n,
              const float *x, float *y);

#endif
