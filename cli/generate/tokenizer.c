/* SPDX-License-Identifier: Apache-2.0 */
#include "generate/tokenizer.h"

#include "cli.h"

int tokenizer_open(struct tokenizer *t, struct checkpoint *c, int64_t vocab)
{
    static const char name[] = "tokenizer.json";
    t->bpe                   = NULL;
    if (checkpoint_has(c, name)) {
        t->bpe = bpe_open(checkpoint_path(c, name), vocab, &c->memory);
        return t->bpe ? CLI_OK : CLI_BAD;
    }
    if (vocab != 256)
        return cli_bad("%s: %lld tokens and no tokenizer.json; without it wanted 256, the bytes",
                       c->path, (long long)vocab);
    return CLI_OK;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, struct memory *memory,
                     int32_t **tokens, int64_t *n)
{
    *n      = (int64_t)strlen(text);
    *tokens = memory_get(memory, (size_t)*n * sizeof **tokens);
    if (!*tokens) return cli_bad("no memory for the prompt");
    if (t->bpe) {
        *n = bpe_encode(t->bpe, text, *tokens);
        return *n < 0 ? CLI_BAD : CLI_OK;
    }
    for (int64_t i = 0; i < *n; i++) (*tokens)[i] = (unsigned char)text[i];
    return CLI_OK;
}

void tokenizer_write(const struct tokenizer *t, int32_t token, FILE *out)
{
    if (t->bpe) bpe_write(t->bpe, token, out);
    else fputc(token, out);
}
