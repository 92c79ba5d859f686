/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/model.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "program/command_line.h"
#include "program/json_values.h"

static const char linear[] = "linear_attention", full[] = "full_attention";

void plan_warn(struct plan_warnings *w, const char *format, ...)
{
    va_list list;
    if (w->n == PLAN_MAX_WARNINGS) return;
    va_start(list, format);
    vsnprintf(w->text[w->n++], PLAN_WARNING, format, list);
    va_end(list);
}

bool plan_is_linear(const struct plan_model *m, int32_t layer)
{
    return !strcmp(m->layers[layer], linear);
}

/* ---- Families -------------------------------------------------------------------------------- */

/* A family of models, by its model_type. */
static const struct family {
    const char *type;
    bool per_channel, woven;
    bool heads_of_attention; /* sizes that are absent follow from those of attention */
    const char *interval;    /* the key of: each such layer is no linear one; NULL: none */
    int every;               /* and its default */
    double lower_bound;      /* the default */
} families[] = {
    { "qwen3_next", false, true, false, "full_attention_interval", 4, 0 },
    { "qwen3_5_text", false, false, false, "full_attention_interval", 4, 0 },
    { "qwen3_5", false, false, false, "full_attention_interval", 4, 0 },
    { "qwen3_5_moe_text", false, false, false, "full_attention_interval", 4, 0 },
    { "qwen3_5_moe", false, false, false, "full_attention_interval", 4, 0 },
    { "qwen4_exp_text", false, false, false, "full_attention_interval", 4, 0 },
    { "lara_mini", false, false, false, NULL, 0, 0 },
    { "olmo_hybrid", false, false, true, "full_attention_interval", 4, 0 },
    { "kimi_linear", true, false, false, NULL, 0, 0 },
    { "glm5_next_text", true, false, false, "full_attention_interval", 4, -5 },
    { "bailing_hybrid", true, false, true, "layer_group_size", 6, -5 },
};

static int find_family(const cJSON *json, const char *name, const struct family **found)
{
    char known[256] = "";
    const char *type = cJSON_GetStringValue(json_get(json, "model_type"));
    if (!type) return cli_bad("%s: model_type is absent, or no text", name);
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", families[i].type);
        *found = &families[i];
        if (!strcmp(type, families[i].type)) return CLI_OK;
    }
    return cli_bad("%s: model_type is '%.40s', wanted one of: %s", name, type, known);
}

/* ---- Values ---------------------------------------------------------------------------------- */

/* Reads the first key that is there, of up to three; else *to stays, or, 0, is an error. */
static int read_size(const cJSON *json, const char *const *keys, int64_t max, int32_t *to,
                     const char *name)
{
    int64_t n;
    for (int i = 0; i < 3 && keys[i]; i++) {
        const cJSON *item = json_get(json, keys[i]);
        if (!item) continue;
        if (!json_whole_number(item, 1, (double)max, &n))
            return cli_bad("%s: %s is not a whole number from 1 to %lld", name, keys[i],
                           (long long)max);
        *to = (int32_t)n;
        return CLI_OK;
    }
    return *to ? CLI_OK : cli_bad("%s: %s is absent", name, keys[0]);
}

#define KEYS(...) ((const char *const[]){ __VA_ARGS__, NULL })

static int read_flag(const cJSON *json, const char *key, bool *value, const char *name)
{
    const cJSON *item = json_get(json, key);
    if (!item) return CLI_OK;
    if (!cJSON_IsBool(item)) return cli_bad("%s: %s is not true or false", name, key);
    *value = cJSON_IsTrue(item);
    return CLI_OK;
}

static int read_dtype(const cJSON *json, const char *key, int32_t *dtype, const char *name)
{
    static const char *const names[] = { "float32", "bfloat16", "float16" };
    const cJSON *item = json_get(json, key);
    const char *text = cJSON_GetStringValue(item);
    if (!item) return CLI_OK;
    for (int32_t i = 0; i < 3 && text; i++)
        if (!strcmp(text, names[i])) {
            *dtype = i;
            return CLI_OK;
        }
    return cli_bad("%s: %s is '%.30s', wanted float32, bfloat16 or float16", name, key,
                   text ? text : "no text");
}

/* ---- Sizes of heads -------------------------------------------------------------------------- */

/* The sizes of Qwen's layers; OLMo's may follow from its attention. */
static int read_heads(struct plan_model *m, const struct family *f, const cJSON *json,
                      const char *name)
{
    int32_t heads = 0, hidden = 0;
    if (f->heads_of_attention) {
        if (read_size(json, KEYS("num_attention_heads"), 65536, &heads, name) ||
            read_size(json, KEYS("hidden_size"), 1 << 24, &hidden, name))
            return CLI_BAD;
        m->key_heads = m->value_heads = heads;
    }
    if (read_size(json, KEYS("linear_num_key_heads"), 65536, &m->key_heads, name) ||
        read_size(json, KEYS("linear_num_value_heads"), 65536, &m->value_heads, name))
        return CLI_BAD;
    if (f->heads_of_attention) m->key_dim = (int32_t)(0.75 * hidden / m->key_heads);
    if (read_size(json, KEYS("linear_key_head_dim"), 65536, &m->key_dim, name)) return CLI_BAD;
    if (f->heads_of_attention) m->value_dim = 2 * m->key_dim;
    return read_size(json, KEYS("linear_value_head_dim"), 65536, &m->value_dim, name);
}

/* The sizes of KDA layers: in an object of their own, or beside the others. */
static int read_channel_heads(struct plan_model *m, const struct family *f, const cJSON *json,
                              const cJSON *own, const char *name)
{
    char inner[600];
    const bool attention = f->heads_of_attention;
    snprintf(inner, sizeof inner, "%s: linear_attn_config", name);
    if (own) {
        if (read_size(own, KEYS("head_dim"), 65536, &m->key_dim, inner) ||
            read_size(own, KEYS("num_heads"), 65536, &m->key_heads, inner) ||
            read_size(own, KEYS("short_conv_kernel_size"), 64, &m->taps, inner))
            return CLI_BAD;
    } else if (read_size(json, KEYS("linear_head_dim", attention ? "head_dim" : NULL), 65536,
                         &m->key_dim, name) ||
               read_size(json, KEYS("linear_num_heads", attention ? "num_attention_heads" : NULL),
                         65536, &m->key_heads, name)) {
        return CLI_BAD;
    }
    m->value_dim = m->key_dim;
    m->value_heads = m->key_heads;
    return CLI_OK;
}

/* ---- The gate -------------------------------------------------------------------------------- */

/* Reads the bound of the decay. A model may switch it off. */
static int read_bound(struct plan_model *m, const struct family *f, const cJSON *json,
                      const cJSON *own, const char *name)
{
    const struct {
        const cJSON *in;
        const char *key;
    } places[] = { { own, "gate_lower_bound" },
                   { json, "linear_lower_bound" },
                   { json, "kda_lower_bound" } };
    bool safe = f->lower_bound < 0;
    m->lower_bound = f->lower_bound;
    if (read_flag(json, "kda_safe_gate", &safe, name)) return CLI_BAD;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const cJSON *item = places[i].in ? json_get(places[i].in, places[i].key) : NULL;
        if (!item) continue;
        if (!cJSON_IsNumber(item) || !(item->valuedouble < 0 && item->valuedouble > -1e30))
            return cli_bad("%s: %s is not a number below 0", name, places[i].key);
        m->lower_bound = item->valuedouble;
        safe = i < 2 || safe;
        break;
    }
    if (!safe) m->lower_bound = 0;
    return CLI_OK;
}

static bool is_silu(const char *text) { return !strcmp(text, "silu") || !strcmp(text, "swish"); }

/* Warns of activations that no call has. The layers of Kimi and its like gate by a sigmoid. */
static int read_activations(struct plan_model *m, struct plan_warnings *w, const cJSON *json,
                            const char *name)
{
    static const char *const keys[] = { "hidden_act", "output_gate_type" };
    m->sigmoid_gate = m->per_channel;
    for (int i = 0; i < 2; i++) {
        const cJSON *item = json_get(json, keys[i]);
        const char *text = cJSON_GetStringValue(item);
        if (item && !text) return cli_bad("%s: %s is no text", name, keys[i]);
        if (!text || is_silu(text)) continue;
        if (i && !strcmp(text, "sigmoid"))
            m->sigmoid_gate = true;
        else
            plan_warn(w, "unknown gate: %s is '%.30s'; the library has SiLU%s", keys[i], text,
                      i ? " and the sigmoid" : "");
    }
    return read_flag(json, "linear_allow_neg_eigval", &m->twice_beta, name);
}

/* Returns true if the key may change the rule, and no line here reads it. */
static bool is_foreign(const char *key)
{
    static const char *const known[] = {
        "linear_num_key_heads",  "linear_num_value_heads", "linear_key_head_dim",
        "linear_value_head_dim", "linear_conv_kernel_dim", "linear_head_dim",
        "linear_num_heads",      "linear_lower_bound",     "linear_allow_neg_eigval",
        "linear_attn_config",    "kda_safe_gate",          "kda_lower_bound",
        "linear_a_log_min",      "linear_a_log_max",       "linear_dt_min",
        "linear_dt_max",         "linear_dt_init_floor",
    };
    static const char *const kinds[] = { "linear_", "kda_", "gdn_", "delta_" };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(key, known[i])) return false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strncmp(key, kinds[i], strlen(kinds[i]))) return true;
    return false;
}

/* The same for a key of linear_attn_config. */
static bool is_foreign_part(const char *key)
{
    static const char *const known[] = { "head_dim",         "num_heads", "short_conv_kernel_size",
                                         "gate_lower_bound", "safe_gate", "kda_layers",
                                         "full_attn_layers" };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(key, known[i])) return false;
    return true;
}

static void warn_foreign(struct plan_warnings *w, const cJSON *json, bool (*is)(const char *))
{
    const cJSON *item;
    cJSON_ArrayForEach(item, json)
    {
        if (!cJSON_IsNull(item) && is(item->string))
            plan_warn(w, "unknown gate: %.60s may change the rule, and the plan does not read it",
                      item->string);
    }
}

/* ---- Layers ---------------------------------------------------------------------------------- */

static int read_types(struct plan_model *m, const cJSON *types, const char *name)
{
    const cJSON *type;
    int32_t i = 0;
    if (!cJSON_IsArray(types) || cJSON_GetArraySize(types) != m->n_layers)
        return cli_bad("%s: layer_types is not a list of %d names", name, m->n_layers);
    cJSON_ArrayForEach(type, types)
    {
        if (!cJSON_IsString(type)) return cli_bad("%s: layer_types: layer %d is no text", name, i);
        m->layers[i++] = cJSON_GetStringValue(type);
    }
    return CLI_OK;
}

/* Kimi's file counts layers from 1. */
static int read_list(struct plan_model *m, const cJSON *own, const char *key, const char *type,
                     const char *name)
{
    const cJSON *list = json_get(own, key), *item;
    int64_t n;
    if (!cJSON_IsArray(list)) return cli_bad("%s: linear_attn_config: %s is not a list", name, key);
    cJSON_ArrayForEach(item, list)
    {
        if (!json_whole_number(item, 1, m->n_layers, &n))
            return cli_bad("%s: linear_attn_config: %s has a layer that is not from 1 to %d", name,
                           key, m->n_layers);
        m->layers[n - 1] = type;
    }
    return CLI_OK;
}

static int read_lists(struct plan_model *m, const cJSON *own, const char *name)
{
    if (read_list(m, own, "kda_layers", linear, name) ||
        read_list(m, own, "full_attn_layers", full, name))
        return CLI_BAD;
    for (int32_t i = 0; i < m->n_layers; i++)
        if (!m->layers[i])
            return cli_bad("%s: linear_attn_config: layer %d is in neither kda_layers nor "
                           "full_attn_layers",
                           name, i + 1);
    return CLI_OK;
}

static int read_layers(struct plan_model *m, const struct family *f, const cJSON *json,
                       const cJSON *own, const char *name)
{
    const cJSON *types = json_get(json, "layer_types");
    int32_t every = f->every;
    if (read_size(json, KEYS("num_hidden_layers"), PLAN_MAX_LAYERS, &m->n_layers, name))
        return CLI_BAD;
    if (types) {
        if (read_types(m, types, name)) return CLI_BAD;
    } else if (own && json_get(own, "kda_layers")) {
        if (read_lists(m, own, name)) return CLI_BAD;
    } else if (!f->interval) {
        return cli_bad("%s: layer_types is absent", name);
    } else {
        if (read_size(json, KEYS(f->interval), PLAN_MAX_LAYERS, &every, name)) return CLI_BAD;
        for (int32_t i = 0; i < m->n_layers; i++) m->layers[i] = (i + 1) % every ? linear : full;
    }
    for (int32_t i = 0; i < m->n_layers; i++) m->n_linear += plan_is_linear(m, i);
    return m->n_linear ? CLI_OK : cli_bad("%s: layer_types has no %s", name, linear);
}

/* ---- All ------------------------------------------------------------------------------------- */

static int read_text(struct plan_model *m, struct plan_warnings *w, const cJSON *json,
                     const char *name)
{
    const struct family *f;
    const cJSON *own = json_get(json, "linear_attn_config");
    if (find_family(json, name, &f)) return CLI_BAD;
    if (own && !cJSON_IsObject(own))
        return cli_bad("%s: linear_attn_config is not an object", name);
    m->type = f->type;
    m->per_channel = f->per_channel;
    m->woven = f->woven;
    m->taps = 4;
    if (read_layers(m, f, json, own, name) ||
        read_size(json, KEYS("linear_conv_kernel_dim", "short_conv_kernel_size"), 64, &m->taps,
                  name) ||
        (f->per_channel ? read_channel_heads(m, f, json, own, name)
                        : read_heads(m, f, json, name)) ||
        read_bound(m, f, json, own, name) || read_activations(m, w, json, name))
        return CLI_BAD;
    if (m->value_heads % m->key_heads)
        return cli_bad("%s: linear_num_value_heads is %d, wanted a multiple of "
                       "linear_num_key_heads, which is %d",
                       name, m->value_heads, m->key_heads);
    warn_foreign(w, json, is_foreign);
    warn_foreign(w, own, is_foreign_part);
    return CLI_OK;
}

int plan_model_read(struct plan_model *m, struct plan_warnings *w, const cJSON *json,
                    const char *name)
{
    if (!cJSON_IsObject(json)) return cli_bad("%s: not an object of JSON", name);
    const cJSON *text = json_get(json, "text_config");
    if (text && !cJSON_IsObject(text)) return cli_bad("%s: text_config is not an object", name);
    memset(m, 0, sizeof *m);
    m->dtype = GDN_BF16;
    m->state_dtype = GDN_F32;
    if (read_dtype(json, "torch_dtype", &m->dtype, name) ||
        read_dtype(json, "dtype", &m->dtype, name))
        return CLI_BAD;
    if (text && (read_dtype(text, "torch_dtype", &m->dtype, name) ||
                 read_dtype(text, "dtype", &m->dtype, name)))
        return CLI_BAD;
    if (!text) text = json;
    return read_dtype(text, "mamba_ssm_dtype", &m->state_dtype, name) || read_text(m, w, text, name)
               ? CLI_BAD
               : CLI_OK;
}
