/* SPDX-License-Identifier: Apache-2.0 */
#include "model/config.h"

#include <stdio.h>
#include <string.h>

#include "program/command_line.h"
#include "program/json_values.h"
#include "model/config_keys.h"

/* ---- Single values --------------------------------------------------------------------------- */

static int read_sizes(struct config *c, const cJSON *json, const char *name)
{
    const struct {
        const char *key;
        int32_t *to;
        int64_t max;
    } sizes[] = {
        { "num_hidden_layers", &c->n_layers, CONFIG_MAX_LAYERS },
        { "num_attention_heads", &c->n_heads, 65536 },
        { "num_key_value_heads", &c->n_kv_heads, 65536 },
        { "head_dim", &c->head_dim, 65536 },
        { "linear_num_key_heads", &c->linear_key_heads, 65536 },
        { "linear_num_value_heads", &c->linear_value_heads, 65536 },
        { "linear_key_head_dim", &c->linear_key_dim, 65536 },
        { "linear_value_head_dim", &c->linear_value_dim, 65536 },
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t n;
        if (!json_whole_number(json_get(json, sizes[i].key), 1, (double)sizes[i].max, &n))
            return cli_bad("%s: %s is not a whole number from 1 to %lld", name, sizes[i].key,
                           (long long)sizes[i].max);
        *sizes[i].to = (int32_t)n;
    }
    return CLI_OK;
}

static int read_widths(struct config *c, const cJSON *json, const char *name)
{
    const struct {
        const char *key;
        int64_t *to;
    } widths[] = {
        { "vocab_size", &c->vocab },
        { "hidden_size", &c->hidden },
        { "intermediate_size", &c->intermediate },
    };
    int64_t taps = 4;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        if (!json_whole_number(json_get(json, widths[i].key), 1, 1 << 24, widths[i].to))
            return cli_bad("%s: %s is not a whole number from 1 to %d", name, widths[i].key,
                           1 << 24);
    if (json_get(json, "linear_conv_kernel_dim") &&
        !json_whole_number(json_get(json, "linear_conv_kernel_dim"), 2, 64, &taps))
        return cli_bad("%s: linear_conv_kernel_dim is not a whole number from 2 to 64", name);
    c->taps = (int32_t)taps;
    if (c->n_heads % c->n_kv_heads)
        return cli_bad("%s: num_attention_heads is %d, wanted a multiple of num_key_value_heads, "
                       "which is %d",
                       name, c->n_heads, c->n_kv_heads);
    return CLI_OK;
}

/* Reads a number between min and max, or, absent, what *value holds. */
static int read_real(const cJSON *json, const char *key, double min, double max, double *value,
                     const char *name)
{
    const cJSON *item = json_get(json, key);
    if (!item) return CLI_OK;
    if (!cJSON_IsNumber(item) || !(item->valuedouble > min && item->valuedouble <= max))
        return cli_bad("%s: %s is not a number above %g, at most %g", name, key, min, max);
    *value = item->valuedouble;
    return CLI_OK;
}

/* ---- Groups ---------------------------------------------------------------------------------- */

/* Reads theta and the factor of an object; of the file's own keys the same. */
static int read_rope_values(struct config *c, double *factor, const cJSON *from, const char *name)
{
    double theta = c->rope_theta;
    if (read_real(from, "rope_theta", 0, 1e30, &theta, name) ||
        read_real(from, "partial_rotary_factor", 0, 1, factor, name))
        return CLI_BAD;
    c->rope_theta = (float)theta;
    return CLI_OK;
}

/* Older files have theta and the factor beside the other keys. */
static int read_rope(struct config *c, const cJSON *json, const char *name)
{
    static const char *const objects[] = { "rope_parameters", "rope_scaling" };
    double factor = 0.25;
    char full[600];
    c->rope_theta = 10000;
    if (read_rope_values(c, &factor, json, name)) return CLI_BAD;
    for (int i = 0; i < 2; i++) {
        const cJSON *rope = json_get(json, objects[i]);
        if (!rope) continue;
        snprintf(full, sizeof full, "%s: %s", name, objects[i]);
        if (json_check_keys(rope, config_rope_keys, full) ||
            read_rope_values(c, &factor, rope, full))
            return CLI_BAD;
    }
    c->rotary = (int32_t)(c->head_dim * factor);
    if (c->rotary % 2)
        return cli_bad("%s: partial_rotary_factor makes %d of %d values of a head; wanted an even "
                       "number",
                       name, c->rotary, c->head_dim);
    return CLI_OK;
}

static int read_layer_types(struct config *c, const cJSON *json, const char *name)
{
    const cJSON *types = json_get(json, "layer_types"), *type;
    int64_t interval = 4;
    int32_t i = 0;
    if (json_get(json, "full_attention_interval") &&
        !json_whole_number(json_get(json, "full_attention_interval"), 1, CONFIG_MAX_LAYERS,
                           &interval))
        return cli_bad("%s: full_attention_interval is not a whole number from 1 to %d", name,
                       CONFIG_MAX_LAYERS);
    for (; i < c->n_layers; i++) c->is_full[i] = (i + 1) % interval == 0;
    if (!types) return CLI_OK;
    if (!cJSON_IsArray(types) || cJSON_GetArraySize(types) != c->n_layers)
        return cli_bad("%s: layer_types is not a list of %d names", name, c->n_layers);
    i = 0;
    cJSON_ArrayForEach(type, types)
    {
        const char *word = cJSON_GetStringValue(type);
        c->is_full[i++] = word && !strcmp(word, "full_attention");
        if (!word || (!c->is_full[i - 1] && strcmp(word, "linear_attention")))
            return cli_bad("%s: layer_types: layer %d is '%.30s', wanted linear_attention or "
                           "full_attention",
                           name, i - 1, word ? word : "no text");
    }
    return CLI_OK;
}

/* Reads one number or a list. */
static int read_ends(struct config *c, const cJSON *ends, const char *name)
{
    const int n = !ends ? 0 : cJSON_IsArray(ends) ? cJSON_GetArraySize(ends) : 1;
    if (n > CONFIG_MAX_ENDS)
        return cli_bad("%s: eos_token_id has %d tokens, more than %d", name, n, CONFIG_MAX_ENDS);
    for (int i = 0; i < n; i++)
        if (!json_whole_number(cJSON_IsArray(ends) ? cJSON_GetArrayItem(ends, i) : ends, 0, 1 << 24,
                               &c->ends[i]))
            return cli_bad("%s: eos_token_id is not a token or a list of tokens", name);
    c->n_ends = n;
    return CLI_OK;
}

int config_read_generation(struct config *config, const cJSON *json, const char *name)
{
    if (json_check_keys(json, config_generation_keys, name)) return CLI_BAD;
    const cJSON *ends = json_get(json, "eos_token_id");
    return ends ? read_ends(config, ends, name) : CLI_OK;
}

/* ---- What is not supported ------------------------------------------------------------------- */

static int check_kind(const cJSON *json, const char *name)
{
    const char *type = cJSON_GetStringValue(json_get(json, "model_type"));
    const cJSON *experts = json_get(json, "num_experts");
    if ((experts && !(cJSON_IsNumber(experts) && experts->valuedouble == 0)) ||
        (type && strstr(type, "_moe")))
        return cli_bad("%s: a mixture of experts (model_type '%.30s', num_experts), which is not "
                       "supported",
                       name, type ? type : "?");
    if (!type || (strcmp(type, "qwen3_5_text") && strcmp(type, "qwen3_5")))
        return cli_bad("%s: model_type is '%.30s'; only qwen3_5_text is supported (dense Qwen3.5)",
                       name, type ? type : "absent");
    if (json_get(json, "quantization_config"))
        return cli_bad("%s: quantised weights (quantization_config), which are not supported",
                       name);
    return json_check_keys(json, config_keys, name);
}

int config_read(struct config *config, const cJSON *json, const char *name)
{
    const cJSON *text = json_get(json, "text_config"),
                *tied = json_get(json, "tie_word_embeddings");
    double eps = 1e-6;
    memset(config, 0, sizeof *config);
    if (!cJSON_IsObject(json)) return cli_bad("%s: not an object of JSON", name);
    if (check_kind(json, name)) return CLI_BAD;
    if (text) {
        if (!cJSON_IsObject(text)) return cli_bad("%s: text_config is not an object", name);
        if (json_get(text, "tie_word_embeddings")) tied = json_get(text, "tie_word_embeddings");
        if (check_kind(text, name)) return CLI_BAD;
    } else {
        text = json;
    }
    config->tied = cJSON_IsTrue(tied);
    const char *gate = cJSON_GetStringValue(json_get(text, "output_gate_type"));
    config->sigmoid = gate && !strcmp(gate, "sigmoid");
    if (read_sizes(config, text, name) || read_widths(config, text, name) ||
        read_rope(config, text, name) || read_layer_types(config, text, name) ||
        read_real(text, "rms_norm_eps", 0, 1, &eps, name))
        return CLI_BAD;
    config->eps = (float)eps;
    const cJSON *ends = json_get(text, "eos_token_id");
    return read_ends(config, ends ? ends : json_get(json, "eos_token_id"), name);
}
