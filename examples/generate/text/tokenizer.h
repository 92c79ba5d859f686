/* SPDX-License-Identifier: Apache-2.0 */
/* Text to tokens and back: byte-level BPE where the checkpoint is a folder with tokenizer.json,
 * else a token is a byte. */
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include <stdio.h>

#include "text/bpe.h"
#include "model/checkpoint.h"

struct tokenizer {
    struct bpe *bpe; /* NULL: bytes */
};

/* For a checkpoint whose model has so many tokens. It is in the checkpoint's memory. CLI_OK, or
 * CLI_BAD after one line. */
int tokenizer_open(struct tokenizer *t, struct checkpoint *c, int64_t vocab);

/* *n tokens in `memory`. */
int tokenizer_encode(const struct tokenizer *t, const char *text, struct memory *memory,
                     int32_t **tokens, int64_t *n);

/* Writes the bytes of a token; none for one that is no text. */
void tokenizer_write(const struct tokenizer *t, int32_t token, FILE *out);

#endif
