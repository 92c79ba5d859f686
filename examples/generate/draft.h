/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guesses of the next tokens from the text so far: what followed the last place where its end
 * stands already. A model checks several of them in one call (docs/start/generate.md).
 */
#ifndef DRAFT_H
#define DRAFT_H

#include "program/memory.h"

/* The most guesses. With the token before them, such a call goes token by token. */
enum { DRAFT_MOST = 7 };

struct draft {
    int32_t *tokens; /* the text so far */
    int64_t n;
};

/* An empty text, with room for so many tokens in `memory`. CLI_OK, or CLI_BAD after one line. */
int draft_make(struct draft *d, struct memory *memory, int64_t capacity);
void draft_add(struct draft *d, const int32_t *tokens, int64_t n);

/* Writes up to `most` guesses and returns how many. */
int64_t draft_guess(const struct draft *d, int32_t *guesses, int64_t most);

#endif
