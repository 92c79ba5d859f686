/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/model.h"

#include <stdio.h>
#include <string.h>

#include "plan/fla.h"
#include "plan/values.h"
#include "program/command_line.h"
#include "program/json_values.h"

/* ---- Families -------------------------------------------------------------------------------- */

/* A family of models, by its model_type. */
static const struct family {
    const char *type;
    bool per_channel, woven;
    bool heads_of_attention;    /* absent sizes follow from those of attention */
    const char *interval;       /* key of n: every n-th layer is no linear one; NULL: none */
    int every;                  /* the default of interval */
    double lower_bound;         /* the default, if the file has none */
    const struct plan_fla *fla; /* of FLA's own models, which have other keys */
} families[] = {
    { "qwen3_next", false, true, false, "full_attention_interval", 4, 0, NULL },
    { "qwen3_5_text", false, false, false, "full_attention_interval", 4, 0, NULL },
    { "qwen3_5", false, false, false, "full_attention_interval", 4, 0, NULL },
    { "qwen3_5_moe_text", false, false, false, "full_attention_interval", 4, 0, NULL },
    { "qwen3_5_moe", false, false, false, "full_attention_interval", 4, 0, NULL },
    { "qwen4_exp_text", false, false, false, "full_attention_interval", 4, 0, NULL },
    { "lara_mini", false, false, false, NULL, 0, 0, NULL },
    { "olmo_hybrid", false, false, true, "full_attention_interval", 4, 0, NULL },
    { "kimi_linear", true, false, false, NULL, 0, 0, NULL },
    { "glm5_next_text", true, false, false, "full_attention_interval", 4, -5, NULL },
    { "bailing_hybrid", true, false, true, "layer_group_size", 6, -5, NULL },
    { "gated_deltanet", false, false, false, NULL, 0, 0, &plan_fla_gated_deltanet },
    { "kda", true, false, false, NULL, 0, 0, &plan_fla_kda },
    { "gdn2", true, false, false, NULL, 0, 0, &plan_fla_gdn2 },
    { "gated_deltaproduct", false, false, false, NULL, 0, 0, &plan_fla_gated_deltaproduct },
};

static int find_family(const cJSON *json, const char *name, const struct family **found)
{
    char known[320] = "";
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

/* ---- Sizes of heads -------------------------------------------------------------------------- */

/* The sizes of Qwen's layers; OLMo's may follow from its attention. */
static int read_heads(struct plan_model *m, const struct family *f, const cJSON *json,
                      const char *name)
{
    int32_t heads = 0, hidden = 0;
    if (f->heads_of_attention) {
        if (plan_read_size(json, KEYS("num_attention_heads"), 65536, &heads, name) ||
            plan_read_size(json, KEYS("hidden_size"), 1 << 24, &hidden, name))
            return CLI_BAD;
        m->key_heads = m->value_heads = heads;
    }
    if (plan_read_size(json, KEYS("linear_num_key_heads"), 65536, &m->key_heads, name) ||
        plan_read_size(json, KEYS("linear_num_value_heads"), 65536, &m->value_heads, name))
        return CLI_BAD;
    if (f->heads_of_attention) m->key_dim = (int32_t)(0.75 * hidden / m->key_heads);
    if (plan_read_size(json, KEYS("linear_key_head_dim"), 65536, &m->key_dim, name)) return CLI_BAD;
    if (f->heads_of_attention) m->value_dim = 2 * m->key_dim;
    return plan_read_size(json, KEYS("linear_value_head_dim"), 65536, &m->value_dim, name);
}

/* The sizes of KDA layers: in an object of their own, or beside the others. */
static int read_channel_heads(struct plan_model *m, const struct family *f, const cJSON *json,
                              const cJSON *own, const char *name)
{
    char inner[600];
    const bool attention = f->heads_of_attention;
    snprintf(inner, sizeof inner, "%s: linear_attn_config", name);
    if (own) {
        if (plan_read_size(own, KEYS("head_dim"), 65536, &m->key_dim, inner) ||
            plan_read_size(own, KEYS("num_heads"), 65536, &m->key_heads, inner) ||
            plan_read_size(own, KEYS("short_conv_kernel_size"), 64, &m->taps, inner))
            return CLI_BAD;
    } else if (plan_read_size(json, KEYS("linear_head_dim", attention ? "head_dim" : NULL), 65536,
                              &m->key_dim, name) ||
               plan_read_size(json,
                              KEYS("linear_num_heads", attention ? "num_attention_heads" : NULL),
                              65536, &m->key_heads, name)) {
        return CLI_BAD;
    }
    m->value_dim = m->key_dim;
    m->value_heads = m->key_heads;
    return CLI_OK;
}

/* ---- The gate -------------------------------------------------------------------------------- */

/* Returns the value of the first key for a bound that the file has; it may be null. */
static const cJSON *find_bound(const cJSON *json, const cJSON *own, const char **key)
{
    static const char *const keys[] = { "gate_lower_bound", "linear_lower_bound",
                                        "kda_lower_bound" };
    for (int i = 0; i < 3; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(i ? json : own, *key = keys[i]);
        if (item) return item;
    }
    return NULL;
}

/* Reads the bound of the decay. A model may switch it off, by null or by a flag. */
static int read_bound(struct plan_model *m, struct plan_warnings *w, const struct family *f,
                      const cJSON *json, const cJSON *own, const char *name)
{
    const char *key;
    const cJSON *item = find_bound(json, own, &key);
    bool kda_safe = true, own_safe = f->lower_bound < 0;
    m->lower_bound = item ? 0 : f->lower_bound;
    if (plan_read_flag(json, "kda_safe_gate", &kda_safe, name) ||
        plan_read_flag(own, "safe_gate", &own_safe, name))
        return CLI_BAD;
    if (item && !cJSON_IsNull(item)) {
        if (!cJSON_IsNumber(item) || !(item->valuedouble < 0 && item->valuedouble > -1e30))
            return cli_bad("%s: %s is not a number below 0", name, key);
        m->lower_bound = item->valuedouble;
    }
    if (!kda_safe) m->lower_bound = 0;
    if (!own || !own_safe || m->lower_bound < 0) return CLI_OK;
    m->lower_bound = f->lower_bound; /* as GLM's model has it */
    if (!m->lower_bound)
        plan_warn(w, "unknown gate: safe_gate is true, but no gate_lower_bound says the bound");
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
    return plan_read_flag(json, "linear_allow_neg_eigval", &m->twice_beta, name);
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
    if (read_list(m, own, "kda_layers", plan_layer_type(true), name) ||
        read_list(m, own, "full_attn_layers", plan_layer_type(false), name))
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
    if (plan_read_size(json, KEYS("num_hidden_layers"), PLAN_MAX_LAYERS, &m->n_layers, name))
        return CLI_BAD;
    if (types) {
        if (read_types(m, types, name)) return CLI_BAD;
    } else if (own && json_get(own, "kda_layers")) {
        if (read_lists(m, own, name)) return CLI_BAD;
    } else if (!f->interval) {
        return cli_bad("%s: layer_types is absent", name);
    } else {
        if (plan_read_size(json, KEYS(f->interval), PLAN_MAX_LAYERS, &every, name)) return CLI_BAD;
        for (int32_t i = 0; i < m->n_layers; i++) m->layers[i] = plan_layer_type((i + 1) % every);
    }
    for (int32_t i = 0; i < m->n_layers; i++) m->n_linear += plan_is_linear(m, i);
    return m->n_linear ? CLI_OK : cli_bad("%s: layer_types has no %s", name, plan_layer_type(true));
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
    m->updates = 1;
    if (f->fla) return plan_fla_read(m, w, f->fla, json, name);
    if (read_layers(m, f, json, own, name) ||
        plan_read_size(json, KEYS("linear_conv_kernel_dim", "short_conv_kernel_size"), 64, &m->taps,
                       name) ||
        (f->per_channel ? read_channel_heads(m, f, json, own, name)
                        : read_heads(m, f, json, name)) ||
        read_bound(m, w, f, json, own, name) || read_activations(m, w, json, name))
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
    if (plan_read_dtype(json, "torch_dtype", &m->dtype, name) ||
        plan_read_dtype(json, "dtype", &m->dtype, name))
        return CLI_BAD;
    if (text && (plan_read_dtype(text, "torch_dtype", &m->dtype, name) ||
                 plan_read_dtype(text, "dtype", &m->dtype, name)))
        return CLI_BAD;
    if (!text) text = json;
    return plan_read_dtype(text, "mamba_ssm_dtype", &m->state_dtype, name) ||
                   read_text(m, w, text, name)
               ? CLI_BAD
               : CLI_OK;
}
