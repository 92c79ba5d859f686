/* SPDX-License-Identifier: Apache-2.0 */
/* A whole model on the next tokens of a text. */
#ifndef FORWARD_H
#define FORWARD_H

#include "model/attention.h"

struct forward {
    const struct model *m;
    struct past *past;
    uint32_t flags;   /* of gdn_block() */
    float *x, *y, *z; /* [max_tokens][hidden]: sums, input and output of a part */
    float *gate, *up; /* [window][intermediate] */
    struct attention_room attention;
    struct memory memory;
};

/* Room for calls of at most max_tokens tokens. */
int forward_make(struct forward *f, const struct model *m, struct past *past, int64_t max_tokens);
void forward_free(struct forward *f);

/*
 * Appends n tokens, all through a layer before the next layer, to the past, which has room for
 * them. Then the hidden states of the tokens, normed, are in f->x. CLI_BAD after one line.
 */
int forward_run(struct forward *f, const int32_t *tokens, int64_t n);

/* Computes the logits [n][vocab] after tokens first .. first + n - 1 of the last call. CLI_BAD
 * after one line. */
int forward_logits(struct forward *f, int64_t first, int64_t n, float *logits);

#endif
