/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of a checkpoint by their names, checked against the sizes of the config. */
#ifndef WEIGHTS_H
#define WEIGHTS_H

#include "model/model.h"

/* The prefix of names, "model." or "model.language_model.", and a layer. */
struct place {
    struct model *m;
    const char *prefix;
    int layer; /* -1: none */
};

/* Find a tensor [rows][columns] (columns 0: a vector), and a vector as a copy in f32. A tensor may
 * have more sizes, of 1. Of names with | between them the first one that is there is taken.
 * CLI_OK, or CLI_BAD after one line. */
int weights_find(const struct place *at, const char *names, int64_t rows, int64_t columns,
                 gdn_tensor *to);
int weights_find_vector(const struct place *at, const char *names, int64_t n, const float **to);

/* Finds the weight [channels][taps] of a convolution, conv1d.weight, or joins those of q, k, v. */
int weights_find_conv(const struct place *at, const char *prefix, int64_t channels, gdn_tensor *to);

#endif
