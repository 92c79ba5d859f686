/* SPDX-License-Identifier: Apache-2.0 */
#include "model/config.h"

#include <stdio.h>
#include <string.h>

#include "program/command_line.h"
#include "program/json_values.h"
#include "model/config_keys.h"

/* ---- Single values --------------------------------------------------------------------------- */

struct size {
    const char *key;
    int32_t *to;
    int64_t max;
};

static int read_list(const cJSON *json, const char *name, const struct size *sizes, size_t n_sizes)
{
    for (size_t i = 0; i < n_sizes; i++) {
        int64_t n;
        if (!json_whole_number(json_get(json, sizes[i].key), 1, (double)sizes[i].max, &n))
            return cli_bad("%s: %s is not a whole number from 1 to %lld", name, sizes[i].key,
                           (long long)sizes[i].max);
        *sizes[i].to = (int32_t)n;
    }
    return CLI_OK;
}
#define READ_LIST(json, name, sizes) read_list(json, name, sizes, sizeof(sizes) / sizeof *(sizes))

/* MLA and KDA of Kimi-Linear. Its own files have the sizes of KDA in an object. */
static int read_kimi(struct config *c, const cJSON *json, const char *name)
{
    const cJSON *part = json_get(json, "linear_attn_config");
    int32_t own, heads, dim;
    const struct size sizes[] = {
        { "qk_nope_head_dim", &own, 65536 },
        { "qk_rope_head_dim", &c->shared_dim, 65536 },
        { "v_head_dim", &c->value_dim, 65536 },
        { "kv_lora_rank", &c->kv_rank, 1 << 20 },
    };
    const struct size linear[] = { { part ? "num_heads" : "linear_num_heads", &heads, 65536 },
                                   { part ? "head_dim" : "linear_head_dim", &dim, 65536 } };
    char full[600];
    snprintf(full, sizeof full, part ? "%s: linear_attn_config" : "%s", name);
    if (part && json_check_keys(part, config_kda_keys, full)) return CLI_BAD;
    if (READ_LIST(json, name, sizes) || READ_LIST(part ? part : json, full, linear)) return CLI_BAD;
    c->head_dim = own + c->shared_dim;
    c->n_kv_heads = c->n_heads;
    c->linear_key_heads = c->linear_value_heads = heads;
    c->linear_key_dim = c->linear_value_dim = dim;
    return CLI_OK;
}

static int read_heads(struct config *c, const cJSON *json, const char *name)
{
    const struct size sizes[] = {
        { "num_key_value_heads", &c->n_kv_heads, 65536 },
        { "linear_num_key_heads", &c->linear_key_heads, 65536 },
        { "linear_num_value_heads", &c->linear_value_heads, 65536 },
        { "linear_key_head_dim", &c->linear_key_dim, 65536 },
        { "linear_value_head_dim", &c->linear_value_dim, 65536 },
    };
    const struct size head[] = { { "head_dim", &c->head_dim, 65536 } };
    if (READ_LIST(json, name, sizes)) return CLI_BAD;
    c->head_dim = (int32_t)(c->hidden / c->n_heads); /* of OLMo-Hybrid */
    if ((c->family == QWEN3_5 || json_get(json, "head_dim")) && READ_LIST(json, name, head))
        return CLI_BAD;
    if (c->head_dim < 1)
        return cli_bad("%s: hidden_size is %lld, wanted at least num_attention_heads", name,
                       (long long)c->hidden);
    c->value_dim = c->head_dim;
    return CLI_OK;
}

static int read_sizes(struct config *c, const cJSON *json, const char *name)
{
    const struct size sizes[] = { { "num_hidden_layers", &c->n_layers, CONFIG_MAX_LAYERS },
                                  { "num_attention_heads", &c->n_heads, 65536 } };
    if (READ_LIST(json, name, sizes)) return CLI_BAD;
    return (c->family == KIMI_LINEAR ? read_kimi : read_heads)(c, json, name);
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
    const cJSON *part = json_get(json, "linear_attn_config");
    const char *key = part ? "short_conv_kernel_size" : "linear_conv_kernel_dim";
    const cJSON *kernel = json_get(part ? part : json, key);
    int64_t taps = 4;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        if (!json_whole_number(json_get(json, widths[i].key), 1, 1 << 24, widths[i].to))
            return cli_bad("%s: %s is not a whole number from 1 to %d", name, widths[i].key,
                           1 << 24);
    if (kernel && !json_whole_number(kernel, 2, 64, &taps))
        return cli_bad("%s: %s is not a whole number from 2 to 64", name, key);
    c->taps = (int32_t)taps;
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
    double factor = c->family == QWEN3_5 ? 0.25 : 1;
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
        /* OLMo-Hybrid says so that there is no rotation */
        if (cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(rope, "rope_theta"))) factor = 0;
    }
    c->rotary = (int32_t)(c->head_dim * factor);
    if (c->rotary % 2)
        return cli_bad("%s: partial_rotary_factor makes %d of %d values of a head; wanted an even "
                       "number",
                       name, c->rotary, c->head_dim);
    return CLI_OK;
}

static int read_interval(struct config *c, const cJSON *json, const char *name)
{
    int64_t interval = 4;
    if (json_get(json, "full_attention_interval") &&
        !json_whole_number(json_get(json, "full_attention_interval"), 1, CONFIG_MAX_LAYERS,
                           &interval))
        return cli_bad("%s: full_attention_interval is not a whole number from 1 to %d", name,
                       CONFIG_MAX_LAYERS);
    for (int32_t i = 0; i < c->n_layers; i++) c->is_full[i] = (i + 1) % interval == 0;
    return CLI_OK;
}

/* Kimi-Linear's own files list the layers of attention, from 1 on. */
static int read_full_layers(struct config *c, const cJSON *list, const char *name)
{
    const cJSON *item;
    if (!cJSON_IsArray(list))
        return cli_bad("%s: layer_types: absent, wanted a list of %d names", name, c->n_layers);
    cJSON_ArrayForEach(item, list)
    {
        int64_t layer;
        if (!json_whole_number(item, 1, c->n_layers, &layer))
            return cli_bad("%s: full_attn_layers: wanted whole numbers from 1 to %d", name,
                           c->n_layers);
        c->is_full[layer - 1] = true;
    }
    return CLI_OK;
}

/* Reads a list of names, one of each layer: is[] says which are `yes`. The others are `no`; if `no`
 * is NULL, they are refused. */
static int read_names(const struct config *c, const cJSON *list, const char *key, const char *yes,
                      const char *no, bool *is, const char *name)
{
    const cJSON *item;
    int32_t i = 0;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != c->n_layers)
        return cli_bad("%s: %s is not a list of %d names", name, key, c->n_layers);
    cJSON_ArrayForEach(item, list)
    {
        const char *word = cJSON_GetStringValue(item);
        const bool found = word && !strcmp(word, yes);
        if (!word || (!found && (!no || strcmp(word, no))))
            return cli_bad("%s: %s: layer %d is '%.30s', wanted %s%s%s", name, key, i,
                           word ? word : "no text", no ? no : "", no ? " or " : "", yes);
        if (is) is[i] = found;
        i++;
    }
    return CLI_OK;
}

static int read_layer_types(struct config *c, const cJSON *json, const char *name)
{
    const cJSON *types = json_get(json, "layer_types");
    const cJSON *part = json_get(json, "linear_attn_config");
    if (types)
        return read_names(c, types, "layer_types", "full_attention", "linear_attention", c->is_full,
                          name);
    if (c->family == QWEN3_5) return read_interval(c, json, name);
    return read_full_layers(c, part ? json_get(part, "full_attn_layers") : NULL, name);
}

/* Refuses layers that are a mixture of experts, which Kimi-Linear has by default. */
static int check_dense(const struct config *c, const cJSON *json, const char *name)
{
    const cJSON *types = json_get(json, "mlp_layer_types");
    int64_t dense = 1;
    if (types) return read_names(c, types, "mlp_layer_types", "dense", NULL, NULL, name);
    const cJSON *first = json_get(json, "first_k_dense_replace");
    if (first && !json_whole_number(first, 0, CONFIG_MAX_LAYERS, &dense))
        return cli_bad("%s: first_k_dense_replace is not a whole number from 0 to %d", name,
                       CONFIG_MAX_LAYERS);
    if (dense >= c->n_layers) return CLI_OK;
    return cli_bad("%s: first_k_dense_replace: %lld of %d layers are dense, the others a mixture "
                   "of experts, which is not supported",
                   name, (long long)dense, c->n_layers);
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

static int find_family(const cJSON *json, const char *name, enum family *family)
{
    static const struct {
        const char *type;
        enum family family;
    } types[] = { { "qwen3_5_text", QWEN3_5 },
                  { "qwen3_5", QWEN3_5 },
                  { "olmo_hybrid", OLMO_HYBRID },
                  { "kimi_linear", KIMI_LINEAR } };
    const char *type = cJSON_GetStringValue(json_get(json, "model_type"));
    for (size_t i = 0; type && i < sizeof types / sizeof *types; i++)
        if (!strcmp(type, types[i].type)) {
            *family = types[i].family;
            return CLI_OK;
        }
    return cli_bad("%s: model_type is '%.30s', wanted qwen3_5_text, olmo_hybrid or kimi_linear",
                   name, type ? type : "absent");
}

static int check_kind(const cJSON *json, const char *name, enum family *family)
{
    const char *type = cJSON_GetStringValue(json_get(json, "model_type"));
    const cJSON *experts = json_get(json, "num_experts");
    const bool is_kimi = type && !strcmp(type, "kimi_linear"); /* has them for other layers too */
    if ((experts && !is_kimi && !(cJSON_IsNumber(experts) && experts->valuedouble == 0)) ||
        (type && strstr(type, "_moe")))
        return cli_bad("%s: a mixture of experts (model_type '%.30s', num_experts), which is not "
                       "supported",
                       name, type ? type : "?");
    if (find_family(json, name, family)) return CLI_BAD;
    if (json_get(json, "quantization_config"))
        return cli_bad("%s: quantised weights (quantization_config), which are not supported",
                       name);
    return json_check_keys(json, config_keys(*family), name);
}

/* Sets what follows from the family alone, or from one key. */
static void set_forms(struct config *c, const cJSON *text)
{
    const char *gate = cJSON_GetStringValue(json_get(text, "output_gate_type"));
    const cJSON *twice = json_get(text, "linear_allow_neg_eigval");
    const bool is_qwen = c->family == QWEN3_5, is_olmo = c->family == OLMO_HYBRID;
    c->sigmoid = c->family == KIMI_LINEAR || (gate && !strcmp(gate, "sigmoid"));
    c->twice = is_olmo && !cJSON_IsFalse(twice);
    c->gated = is_qwen;
    c->norms = is_qwen ? NORM_HEADS : is_olmo ? NORM_ROWS : NORM_NONE;
    c->norm_center = is_qwen ? 1 : 0;
}

/* Reads what depends on other numbers. */
static int read_layers(struct config *c, const cJSON *text, const char *name)
{
    const double olmo_eps = 1e-5; /* of the gated norm, whatever the config has */
    double eps = c->family == KIMI_LINEAR ? 1e-5 : 1e-6;
    if (c->n_heads % c->n_kv_heads)
        return cli_bad("%s: num_attention_heads is %d, wanted a multiple of num_key_value_heads, "
                       "which is %d",
                       name, c->n_heads, c->n_kv_heads);
    if (c->family != KIMI_LINEAR && read_rope(c, text, name)) return CLI_BAD;
    if (read_layer_types(c, text, name) || read_real(text, "rms_norm_eps", 0, 1, &eps, name))
        return CLI_BAD;
    c->eps = (float)eps;
    c->gated_eps = (float)(c->family == OLMO_HYBRID ? olmo_eps : eps);
    return c->family == KIMI_LINEAR ? check_dense(c, text, name) : CLI_OK;
}

int config_read(struct config *config, const cJSON *json, const char *name)
{
    const cJSON *text = json_get(json, "text_config"),
                *tied = json_get(json, "tie_word_embeddings");
    memset(config, 0, sizeof *config);
    if (!cJSON_IsObject(json)) return cli_bad("%s: not an object of JSON", name);
    if (check_kind(json, name, &config->family)) return CLI_BAD;
    if (text) {
        if (!cJSON_IsObject(text)) return cli_bad("%s: text_config is not an object", name);
        if (json_get(text, "tie_word_embeddings")) tied = json_get(text, "tie_word_embeddings");
        if (check_kind(text, name, &config->family)) return CLI_BAD;
    } else {
        text = json;
    }
    config->tied = cJSON_IsTrue(tied);
    set_forms(config, text);
    if (read_widths(config, text, name) || read_sizes(config, text, name) ||
        read_layers(config, text, name))
        return CLI_BAD;
    const cJSON *ends = json_get(text, "eos_token_id");
    return read_ends(config, ends ? ends : json_get(json, "eos_token_id"), name);
}
