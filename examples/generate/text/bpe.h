/* SPDX-License-Identifier: Apache-2.0 */
/* Byte-level BPE as tokenizer.json has it: bytes of a piece of text are merged, pair by pair, in
 * the order of the list of merges. */
#ifndef BPE_H
#define BPE_H

#include <stdio.h>

#include "program/memory.h"

struct bpe;

/* NULL after one line that names the file. All of it is in `memory`. Tokens are below vocab. */
struct bpe *bpe_open(const char *path, int64_t vocab, struct memory *memory);

/* Makes tokens in `memory`, and returns how many there are; -1 after one line. */
int64_t bpe_encode(const struct bpe *b, const char *text, struct memory *memory, int32_t **tokens);

/* Returns true if the token is this text. */
bool bpe_has(const struct bpe *b, int64_t token, const char *text);

void bpe_write(const struct bpe *b, int32_t token, FILE *out);

#endif
