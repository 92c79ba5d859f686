/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer.h"

#include "program/command_line.h"
#include "text/bpe_kind.h"

/* Checks what tokenizer_config.json changes of tokenizer.json. */
static int check_config(const struct tokenizer *t, const cJSON *json, const char *path)
{
    static const char *const off[] = { "add_bos_token", "add_eos_token", "add_prefix_space",
                                       "split_special_tokens" };
    const cJSON *item;
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(json, off[i])))
            return cli_bad("%s: %s is true, which is not supported", path, off[i]);
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(json, "added_tokens_decoder"))
    {
        const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "content"));
        int64_t token;
        if (bpe_kind_check_added(item, path)) return CLI_BAD;
        if (!text || !cli_integer(item->string, 0, INT32_MAX, &token) ||
            !bpe_has(t->bpe, token, text))
            return cli_bad("%s: added_tokens_decoder: token %.20s, '%.40s', is not in "
                           "tokenizer.json",
                           path, item->string, text ? text : "?");
    }
    return CLI_OK;
}

static int open_bpe(struct tokenizer *t, struct checkpoint *c, const char *name, int64_t vocab)
{
    static const char config[] = "tokenizer_config.json";
    const char *path = checkpoint_path(c, name), *config_path = checkpoint_path(c, config);
    cJSON *json = NULL;
    if (!path || !config_path) return cli_bad("%s: no memory", c->path);
    t->bpe = bpe_open(path, vocab, &c->memory);
    if (!t->bpe) return CLI_BAD;
    if (!checkpoint_has(c, config)) return CLI_OK;
    if (checkpoint_json(c, config, &json)) return CLI_BAD;
    const int code = check_config(t, json, config_path);
    cJSON_Delete(json);
    return code;
}

int tokenizer_open(struct tokenizer *t, struct checkpoint *c, int64_t vocab)
{
    static const char name[] = "tokenizer.json";
    static const char *const others[] = { "vocab.json", "tokenizer.model", "tiktoken.model" };
    t->bpe = NULL;
    if (checkpoint_has(c, name)) return open_bpe(t, c, name, vocab);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (checkpoint_has(c, others[i]))
            return cli_bad("%s: %s without tokenizer.json, which is not supported", c->path,
                           others[i]);
    if (vocab != 256)
        return cli_bad("%s: %lld tokens and no tokenizer.json; without it wanted 256, the bytes",
                       c->path, (long long)vocab);
    return CLI_OK;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, struct memory *memory,
                     int32_t **tokens, int64_t *n)
{
    if (t->bpe) {
        *n = bpe_encode(t->bpe, text, memory, tokens);
        return *n < 0 ? CLI_BAD : CLI_OK;
    }
    *n = (int64_t)strlen(text);
    *tokens = memory_get(memory, (size_t)*n * sizeof **tokens);
    if (!*tokens) return cli_bad("no memory for the prompt");
    for (int64_t i = 0; i < *n; i++) (*tokens)[i] = (unsigned char)text[i];
    return CLI_OK;
}

void tokenizer_write(const struct tokenizer *t, int32_t token, FILE *out)
{
    if (t->bpe)
        bpe_write(t->bpe, token, out);
    else
        fputc(token, out);
}
