/* SPDX-License-Identifier: Apache-2.0 */
/* The weights of a layer's mixer, by the names of each family of models. */
#ifndef MIXERS_H
#define MIXERS_H

#include "model/weights.h"

/* CLI_OK, or CLI_BAD after one line. */
int mixer_find_linear(const struct place *at, gdn_block_args *a);
int mixer_find_full(const struct place *at, struct attention_weights *w);

#endif
