/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A text's past in a safetensors file: "logits" for the next token, and per layer either
 * "layers.<i>.state" and "layers.<i>.conv_state" or "layers.<i>.keys" [token][head][head_dim] and
 * "layers.<i>.values" [head][head_dim][token], all f32. The metadata has the number of tokens, the
 * sampler's temperature and seed, and the model's fingerprint.
 */
#ifndef PAST_FILE_H
#define PAST_FILE_H

#include "model/past.h"
#include "sampler.h"

/* Both return CLI_OK, or CLI_BAD after one line. A file appears whole or not at all. */
int past_save(const struct past *p, const struct model *m, const struct sampler *s,
              const float *logits, const char *path);
/* Makes the past, with room for `more` tokens after those of the file. */
int past_load(struct past *p, const struct model *m, struct sampler *s, float *logits,
              const char *path, int64_t more);

#endif
