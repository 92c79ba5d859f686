/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of tokenizer.json that bpe.c computes; every other one is refused. */
#ifndef BPE_KIND_H
#define BPE_KIND_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

struct bpe_kind {
    bool marks;          /* the Split of Qwen3.5, where marks are letters; else that of Qwen2 */
    bool nfc;            /* the text is normalised first */
    bool ignore_merges;  /* a piece that is a token is not merged */
    int64_t most_tokens; /* a longer prompt would be cut; -1: none would */
};

/* CLI_OK, or CLI_BAD after one line that names the part. */
int bpe_kind_read(struct bpe_kind *kind, const cJSON *json, const char *path);

/* Checks an entry of added_tokens. */
int bpe_kind_check_added(const cJSON *token, const char *path);

#endif
