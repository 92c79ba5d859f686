/* SPDX-License-Identifier: Apache-2.0 */
#include "generate/tokenizer.h"

#include "cli.h"

int tokenizer_open(struct tokenizer *t, struct checkpoint *c, int64_t vocab)
{
    t->vocab = vocab;
    if (vocab != 256)
        return cli_bad("%s: a vocabulary of %lld tokens, wanted 256, the bytes", c->path,
                       (long long)vocab);
    return CLI_OK;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, struct memory *memory,
                     int32_t **tokens, int64_t *n)
{
    (void)t;
    *n      = (int64_t)strlen(text);
    *tokens = memory_get(memory, (size_t)*n * sizeof **tokens);
    if (!*tokens) return cli_bad("no memory for the prompt");
    for (int64_t i = 0; i < *n; i++) (*tokens)[i] = (unsigned char)text[i];
    return CLI_OK;
}

void tokenizer_write(const struct tokenizer *t, int32_t token, FILE *out)
{
    (void)t;
    fputc(token, out);
}
