/* SPDX-License-Identifier: Apache-2.0 */
#include "text/bpe_kind.h"

#include <stdio.h>
#include <string.h>

#include "program/command_line.h"
#include "json_keys.h"
#include "text/split.h"

static const cJSON *get(const cJSON *json, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    return cJSON_IsNull(item) ? NULL : item;
}

static bool has_type(const cJSON *json, const char *type)
{
    const char *text = cJSON_GetStringValue(get(json, "type"));
    return text && !strcmp(text, type);
}

/* Checks the keys of one part, which is named after the path. */
static int check_part(const cJSON *part, const struct json_key *known, const char *path,
                      const char *name)
{
    char full[4200];
    snprintf(full, sizeof full, "%s: %s", path, name);
    return json_check_keys(part, known, full);
}

static int refuse_type(const cJSON *part, const char *path, const char *name, const char *wanted)
{
    const char *type = cJSON_GetStringValue(get(part, "type"));
    return cli_bad("%s: %s: type is '%.40s', wanted %s", path, name, type ? type : "absent",
                   wanted);
}

/* ---- Keys ------------------------------------------------------------------------------------ */

static const struct json_key whole_keys[] = {
    { "version", NULL },        { "truncation", NULL },
    { "padding", NULL },        { "added_tokens", NULL },
    { "normalizer", NULL },     { "pre_tokenizer", NULL },
    { "post_processor", NULL }, { "decoder", NULL },
    { "model", NULL },          { NULL, NULL },
};
static const struct json_key model_keys[] = {
    { "type", "\"BPE\"" },
    { "vocab", NULL },
    { "merges", NULL },
    { "dropout", "0" },
    { "continuing_subword_prefix", "\"\"" },
    { "end_of_word_suffix", "\"\"" },
    { "ignore_merges", "true|false" },
    { "unk_token", NULL }, /* for a byte that is no token: that is an error */
    { "fuse_unk", NULL },
    { "byte_fallback", NULL },
    { NULL, NULL },
};
static const struct json_key sequence_keys[] = {
    { "type", "\"Sequence\"" },
    { "pretokenizers", NULL },
    { "normalizers", NULL },
    { "processors", NULL },
    { NULL, NULL },
};
static const struct json_key split_keys[] = {
    { "type", "\"Split\"" }, { "pattern", NULL }, { "behavior", "\"Isolated\"" },
    { "invert", "false" },   { NULL, NULL },
};
static const struct json_key byte_level_keys[] = {
    { "type", "\"ByteLevel\"" },
    { "add_prefix_space", "false" },
    { "use_regex", "false" },
    { "trim_offsets", NULL },
    { NULL, NULL },
};
static const struct json_key padding_keys[] = {
    { "strategy", "\"BatchLongest\"" },
    { "pad_to_multiple_of", "0" },
    { "direction", NULL },
    { "pad_id", NULL },
    { "pad_type_id", NULL },
    { "pad_token", NULL },
    { NULL, NULL },
};
static const struct json_key added_keys[] = {
    { "id", NULL },        { "content", NULL },   { "single_word", "false" },
    { "lstrip", "false" }, { "rstrip", "false" }, { "normalized", "true|false" },
    { "special", NULL },   { NULL, NULL },
};

int bpe_kind_check_added(const cJSON *token, const char *path)
{
    const char *content = cJSON_GetStringValue(get(token, "content"));
    char name[80];
    snprintf(name, sizeof name, "added_tokens: token '%.40s'", content ? content : "?");
    return check_part(token, added_keys, path, name);
}

/* ---- Parts ----------------------------------------------------------------------------------- */

/* NFC, or several times NFC. */
static int read_normalizer(struct bpe_kind *kind, const cJSON *part, const char *path)
{
    const cJSON *item, *list = get(part, "normalizers");
    if (!part) return CLI_OK;
    if (has_type(part, "NFC")) {
        kind->nfc = true;
        return CLI_OK;
    }
    if (!has_type(part, "Sequence") || !cJSON_IsArray(list))
        return refuse_type(part, path, "normalizer", "NFC or none");
    cJSON_ArrayForEach(item, list) if (read_normalizer(kind, item, path)) return CLI_BAD;
    return check_part(part, sequence_keys, path, "normalizer");
}

static int read_split(struct bpe_kind *kind, const cJSON *split, const char *path)
{
    static const char name[] = "pre_tokenizer: Split";
    const cJSON *pattern = get(split, "pattern");
    const char *regex = cJSON_GetStringValue(get(pattern, "Regex"));
    if (check_part(split, split_keys, path, name)) return CLI_BAD;
    if (!get(split, "behavior")) return cli_bad("%s: %s: no behavior", path, name);
    kind->marks = regex && !strcmp(regex, split_qwen35);
    if (kind->marks || (regex && !strcmp(regex, split_qwen2))) return CLI_OK;
    return cli_bad("%s: pre_tokenizer: wanted the Split of Qwen2 or Qwen3.5, found '%.60s'", path,
                   regex ? regex : "no Regex");
}

/* One Split, then the letters of bytes. */
static int read_pre_tokenizer(struct bpe_kind *kind, const cJSON *part, const char *path)
{
    static const char name[] = "pre_tokenizer: ByteLevel";
    const cJSON *list = get(part, "pretokenizers");
    const cJSON *split = cJSON_GetArrayItem(list, 0), *bytes = cJSON_GetArrayItem(list, 1);
    if (!has_type(part, "Sequence") || cJSON_GetArraySize(list) != 2 || !has_type(split, "Split") ||
        !has_type(bytes, "ByteLevel"))
        return refuse_type(part, path, "pre_tokenizer", "a Sequence of one Split and ByteLevel");
    if (check_part(part, sequence_keys, path, "pre_tokenizer") || read_split(kind, split, path) ||
        check_part(bytes, byte_level_keys, path, name))
        return CLI_BAD;
    if (!get(bytes, "use_regex")) return cli_bad("%s: %s: no use_regex, wanted false", path, name);
    return CLI_OK;
}

/* Returns true if a template has the text alone. */
static bool adds_nothing(const cJSON *template)
{
    const cJSON *item, *single = get(template, "single");
    if (!cJSON_IsArray(single)) return false;
    cJSON_ArrayForEach(item, single) if (!get(item, "Sequence")) return false;
    return cJSON_GetArraySize(single) == 1;
}

static int check_post_processor(const cJSON *part, const char *path)
{
    const cJSON *item, *list = get(part, "processors");
    if (!part || has_type(part, "ByteLevel")) return CLI_OK; /* its options are of offsets */
    if (has_type(part, "TemplateProcessing"))
        return adds_nothing(part) ? CLI_OK
                                  : cli_bad("%s: post_processor: TemplateProcessing adds tokens to "
                                            "the prompt, which is not supported",
                                            path);
    if (!has_type(part, "Sequence") || !cJSON_IsArray(list))
        return refuse_type(part, path, "post_processor", "ByteLevel or none");
    cJSON_ArrayForEach(item, list) if (check_post_processor(item, path)) return CLI_BAD;
    return CLI_OK;
}

static int read_truncation(struct bpe_kind *kind, const cJSON *part, const char *path)
{
    const cJSON *most = get(part, "max_length");
    kind->most_tokens = -1;
    if (!part) return CLI_OK;
    if (!cJSON_IsNumber(most) || !(most->valuedouble >= 0 && most->valuedouble <= 0x1p53))
        return cli_bad("%s: truncation: max_length is not a number of tokens", path);
    kind->most_tokens = (int64_t)most->valuedouble;
    return CLI_OK;
}

int bpe_kind_read(struct bpe_kind *kind, const cJSON *json, const char *path)
{
    const cJSON *model = get(json, "model"), *padding = get(json, "padding");
    const cJSON *decoder = get(json, "decoder");
    if (check_part(json, whole_keys, path, "tokenizer")) return CLI_BAD;
    if (!has_type(model, "BPE")) return refuse_type(model, path, "model.type", "BPE");
    if (check_part(model, model_keys, path, "model") ||
        read_normalizer(kind, get(json, "normalizer"), path) ||
        read_pre_tokenizer(kind, get(json, "pre_tokenizer"), path) ||
        check_post_processor(get(json, "post_processor"), path) ||
        read_truncation(kind, get(json, "truncation"), path) ||
        (padding && check_part(padding, padding_keys, path, "padding")))
        return CLI_BAD;
    if (decoder && !has_type(decoder, "ByteLevel"))
        return refuse_type(decoder, path, "decoder", "ByteLevel or none");
    kind->ignore_merges = cJSON_IsTrue(get(model, "ignore_merges"));
    return CLI_OK;
}
