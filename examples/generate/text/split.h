/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text cut into pieces before tokens are made of them, by one of two expressions: that of Qwen3.5,
 * and that of Qwen2 and Qwen3, which counts marks as punctuation.
 */
#ifndef SPLIT_H
#define SPLIT_H

#include <stdbool.h>
#include <stddef.h>

/* The expressions as tokenizer.json has them. */
extern const char split_qwen35[], split_qwen2[];

/* Returns the bytes of the first piece of n > 0 bytes of UTF-8. A byte that is not UTF-8 counts as
 * a character. */
size_t split_piece(const char *text, size_t n, bool marks_are_letters);

#endif
