/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/fla.h"

#include "plan/values.h"
#include "program/command_line.h"
#include "program/json_values.h"

const struct plan_fla plan_fla_gated_deltanet = {
    .layers = 21, .heads = 6, .head_dim = 256, .expand_v = 2, .has_no_sigmoid = true
};
const struct plan_fla plan_fla_kda = { .layers = 24, .heads = 16, .head_dim = 128, .expand_v = 1 };
const struct plan_fla plan_fla_gdn2 = {
    .layers = 24, .heads = 16, .head_dim = 128, .expand_v = 1, .erases = true
};
const struct plan_fla plan_fla_gated_deltaproduct = { .layers = 21,
                                                      .heads = 6,
                                                      .head_dim = 256,
                                                      .expand_v = 2,
                                                      .has_updates = true,
                                                      .has_no_sigmoid = true };

/* ---- Sizes ----------------------------------------------------------------------------------- */

/* Values are expand_v times as long as keys. */
static int read_values(struct plan_model *m, double expand, const cJSON *json, const char *name)
{
    const cJSON *item = json_get(json, "expand_v");
    if (item && !(cJSON_IsNumber(item) && item->valuedouble > 0 && item->valuedouble < 65536))
        return cli_bad("%s: expand_v is not a number above 0", name);
    const double size = m->key_dim * (item ? item->valuedouble : expand);
    m->value_dim = (int32_t)(size + 1e-5 * size);
    if (m->value_dim >= 1 && m->value_dim <= 65536 && size - m->value_dim < 1e-5 * size)
        return CLI_OK;
    return cli_bad("%s: expand_v times head_dim is %g, wanted a whole number from 1 to 65536", name,
                   size);
}

static int read_heads(struct plan_model *m, const struct plan_fla *f, const cJSON *json,
                      const char *name)
{
    m->key_heads = f->heads;
    m->key_dim = f->head_dim;
    if (plan_read_size(json, KEYS("num_heads"), 65536, &m->key_heads, name)) return CLI_BAD;
    m->value_heads = m->key_heads;
    if (plan_read_size(json, KEYS("num_v_heads"), 65536, &m->value_heads, name) ||
        plan_read_size(json, KEYS("head_dim"), 65536, &m->key_dim, name) ||
        plan_read_size(json, KEYS("conv_size"), 64, &m->taps, name) ||
        read_values(m, f->expand_v, json, name))
        return CLI_BAD;
    if (m->value_heads % m->key_heads)
        return cli_bad("%s: num_v_heads is %d, wanted a multiple of num_heads, which is %d", name,
                       m->value_heads, m->key_heads);
    return f->has_updates ? plan_read_size(json, KEYS("num_householder"), 8, &m->updates, name)
                          : CLI_OK;
}

/* ---- Gates ----------------------------------------------------------------------------------- */

static int read_bound(struct plan_model *m, const cJSON *json, const char *name)
{
    const cJSON *item = json_get(json, "lower_bound");
    if (!m->per_channel || !item) return CLI_OK;
    if (!cJSON_IsNumber(item) || !(item->valuedouble < 0 && item->valuedouble > -1e30))
        return cli_bad("%s: lower_bound is not a number below 0", name);
    m->lower_bound = item->valuedouble;
    return CLI_OK;
}

/* Warns of parts of a layer that a model leaves out. */
static int read_gates(struct plan_model *m, struct plan_warnings *w, const struct plan_fla *f,
                      const cJSON *json, const char *name)
{
    bool decays = !f->has_updates, has_gate = true, has_conv = true;
    m->erases = f->erases;
    m->sigmoid_gate = !f->has_no_sigmoid;
    if (plan_read_flag(json, "allow_neg_eigval", &m->twice_beta, name) ||
        plan_read_flag(json, f->has_updates ? "use_output_gate" : "use_gate", &has_gate, name) ||
        plan_read_flag(json, "use_short_conv", &has_conv, name) ||
        (f->has_updates && plan_read_flag(json, "use_forget_gate", &decays, name)) ||
        read_bound(m, json, name))
        return CLI_BAD;
    m->has_no_decay = !decays;
    if (!has_gate)
        plan_warn(w, "%s is false: the norm of the output has no gate, and the library's has one",
                  f->has_updates ? "use_output_gate" : "use_gate");
    if (!has_conv)
        plan_warn(w, "use_short_conv is false: the model has no convolution, but the plan has one");
    return CLI_OK;
}

/* ---- Layers ---------------------------------------------------------------------------------- */

/* Reads the layers of attention from one object of `attn`. Their numbers begin at 0. */
static int read_attention(struct plan_model *m, const cJSON *attn, const char *name)
{
    const cJSON *list = json_get(attn, "layers"), *item;
    int64_t n;
    if (!cJSON_IsArray(list)) return cli_bad("%s: attn: layers is not a list", name);
    cJSON_ArrayForEach(item, list)
    {
        if (!json_whole_number(item, 0, m->n_layers - 1, &n))
            return cli_bad("%s: attn: layers has a layer that is not from 0 to %d", name,
                           m->n_layers - 1);
        m->layers[n] = plan_layer_type(false);
    }
    return CLI_OK;
}

static int read_layers(struct plan_model *m, const struct plan_fla *f, const cJSON *json,
                       const char *name)
{
    const cJSON *attn = json_get(json, "attn"), *item;
    m->n_layers = f->layers;
    if (plan_read_size(json, KEYS("num_hidden_layers"), PLAN_MAX_LAYERS, &m->n_layers, name))
        return CLI_BAD;
    for (int32_t i = 0; i < m->n_layers; i++) m->layers[i] = plan_layer_type(true);
    if (cJSON_IsArray(attn)) {
        cJSON_ArrayForEach(item, attn)
        {
            if (read_attention(m, item, name)) return CLI_BAD;
        }
    } else if (attn && read_attention(m, attn, name)) {
        return CLI_BAD;
    }
    for (int32_t i = 0; i < m->n_layers; i++) m->n_linear += plan_is_linear(m, i);
    return m->n_linear ? CLI_OK : cli_bad("%s: attn: layers has all layers of the model", name);
}

int plan_fla_read(struct plan_model *m, struct plan_warnings *w, const struct plan_fla *f,
                  const cJSON *json, const char *name)
{
    return read_layers(m, f, json, name) || read_heads(m, f, json, name) ||
                   read_gates(m, w, f, json, name)
               ? CLI_BAD
               : CLI_OK;
}
