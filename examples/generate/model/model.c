/* SPDX-License-Identifier: Apache-2.0 */
#include "model/model.h"

#include <stdio.h>

#include "program/command_line.h"

/* ---- One tensor ------------------------------------------------------------------------------ */

/* The prefix of names, "model." or "model.language_model.", and a layer. */
struct place {
    struct model *m;
    const char *prefix;
    int layer; /* -1: none */
};

static void full_name(const struct place *at, const char *name, char *to, size_t bytes)
{
    if (at->layer < 0)
        snprintf(to, bytes, "%s%s", at->prefix, name);
    else
        snprintf(to, bytes, "%slayers.%d.%s", at->prefix, at->layer, name);
}

/* Sizes are those wanted; [D][1][W] is [D][W]. */
static bool has_sizes(gdn_tensor *t, int ndim, const int64_t *size)
{
    if (t->ndim == 3 && ndim == 2 && t->size[1] == 1) {
        t->size[1] = t->size[2];
        t->stride[1] = t->stride[2];
        t->ndim = 2;
    }
    return t->ndim == ndim && t->size[0] == size[0] && (ndim == 1 || t->size[1] == size[1]);
}

static int find(const struct place *at, const char *name, int64_t rows, int64_t columns,
                gdn_tensor *to)
{
    char full[256];
    const int64_t size[] = { rows, columns };
    const int ndim = columns ? 2 : 1;
    full_name(at, name, full, sizeof full);
    const char *path = at->m->checkpoint.path;
    const struct st_tensor *found = checkpoint_find(&at->m->checkpoint, full);
    if (!found) return cli_bad("%s: no tensor '%s'", path, full);
    *to = found->view;
    if (found->foreign)
        return cli_bad("%s: tensor '%s': %s, wanted F32, BF16 or F16 and %d dimensions", path, full,
                       found->foreign, ndim);
    if (to->dtype > GDN_F16)
        return cli_bad("%s: tensor '%s': dtype %s, wanted F32, BF16 or F16", path, full,
                       st_dtype_name(to->dtype));
    if (!has_sizes(to, ndim, size))
        return cli_bad("%s: tensor '%s': the config wants [%lld]%s%.0lld%s", path, full,
                       (long long)rows, columns ? "[" : "", (long long)columns, columns ? "]" : "");
    return CLI_OK;
}

/* A copy in f32, of 16 bits or not. */
static int widen(struct model *m, gdn_tensor *t)
{
    gdn_tensor wide = memory_tensor(&m->memory, GDN_F32, t->ndim, t->size);
    const int64_t n = t->size[0] * (t->ndim == 2 ? t->size[1] : 1);
    if (!wide.data) return cli_bad("%s: no memory for the weights", m->checkpoint.path);
    matrix_widen(&m->matrix, wide.data, t->data, t->dtype, n);
    *t = wide;
    return CLI_OK;
}

static int find_vector(const struct place *at, const char *name, int64_t n, const float **to)
{
    gdn_tensor t;
    if (find(at, name, n, 0, &t) || widen(at->m, &t)) return CLI_BAD;
    *to = t.data;
    return CLI_OK;
}

/* ---- Layers ---------------------------------------------------------------------------------- */

static int find_gdn(const struct place *at, gdn_block_args *a)
{
    const struct config *c = &at->m->config;
    const int64_t Hv = c->linear_value_heads, hidden = c->hidden;
    const int64_t keys = (int64_t)c->linear_key_heads * c->linear_key_dim;
    const int64_t values = Hv * c->linear_value_dim;
    *a = gdn_block_args_init();
    a->n_key_heads = c->linear_key_heads;
    a->n_value_heads = c->linear_value_heads;
    a->key_head_dim = c->linear_key_dim;
    a->value_head_dim = c->linear_value_dim;
    a->rms_eps = c->eps;
    if (c->sigmoid) a->activation = GDN_ACT_SIGMOID;
    return find(at, "linear_attn.in_proj_qkv.weight", 2 * keys + values, hidden, &a->in_proj_qkv) ||
                   find(at, "linear_attn.in_proj_z.weight", values, hidden, &a->in_proj_z) ||
                   find(at, "linear_attn.in_proj_b.weight", Hv, hidden, &a->in_proj_b) ||
                   find(at, "linear_attn.in_proj_a.weight", Hv, hidden, &a->in_proj_a) ||
                   find(at, "linear_attn.conv1d.weight", 2 * keys + values, c->taps,
                        &a->conv_weight) ||
                   find(at, "linear_attn.A_log", Hv, 0, &a->A_log) ||
                   find(at, "linear_attn.dt_bias", Hv, 0, &a->dt_bias) ||
                   find(at, "linear_attn.norm.weight", c->linear_value_dim, 0, &a->norm_weight) ||
                   find(at, "linear_attn.out_proj.weight", hidden, values, &a->out_proj)
               ? CLI_BAD
               : CLI_OK;
}

static int find_full(const struct place *at, struct attention_weights *w)
{
    const struct config *c = &at->m->config;
    const int64_t D = c->head_dim, q = c->n_heads * D, kv = c->n_kv_heads * D;
    return find(at, "self_attn.q_proj.weight", 2 * q, c->hidden, &w->q_proj) ||
                   find(at, "self_attn.k_proj.weight", kv, c->hidden, &w->k_proj) ||
                   find(at, "self_attn.v_proj.weight", kv, c->hidden, &w->v_proj) ||
                   find(at, "self_attn.o_proj.weight", c->hidden, q, &w->o_proj) ||
                   find_vector(at, "self_attn.q_norm.weight", D, &w->q_norm) ||
                   find_vector(at, "self_attn.k_norm.weight", D, &w->k_norm)
               ? CLI_BAD
               : CLI_OK;
}

static int find_layer(const struct place *at, struct layer *l)
{
    const struct config *c = &at->m->config;
    l->is_full = c->is_full[at->layer];
    if (find_vector(at, "input_layernorm.weight", c->hidden, &l->input_norm) ||
        find_vector(at, "post_attention_layernorm.weight", c->hidden, &l->post_norm) ||
        find(at, "mlp.gate_proj.weight", c->intermediate, c->hidden, &l->gate_proj) ||
        find(at, "mlp.up_proj.weight", c->intermediate, c->hidden, &l->up_proj) ||
        find(at, "mlp.down_proj.weight", c->hidden, c->intermediate, &l->down_proj))
        return CLI_BAD;
    return l->is_full ? find_full(at, &l->mixer.full) : find_gdn(at, &l->mixer.gdn);
}

/* ---- The model ------------------------------------------------------------------------------- */

static int find_weights(struct model *m)
{
    const struct config *c = &m->config;
    const bool nested = checkpoint_find(&m->checkpoint, "model.language_model.embed_tokens.weight");
    struct place at = { m, nested ? "model.language_model." : "model.", -1 };
    struct place root = { m, "", -1 };
    m->layers = memory_get(&m->memory, (size_t)c->n_layers * sizeof *m->layers);
    if (!m->layers) return cli_bad("%s: no memory", m->checkpoint.path);
    if (find(&at, "embed_tokens.weight", c->vocab, c->hidden, &m->embedding) ||
        find_vector(&at, "norm.weight", c->hidden, &m->norm))
        return CLI_BAD;
    m->head = m->embedding;
    if ((!c->tied || checkpoint_find(&m->checkpoint, "lm_head.weight")) &&
        find(&root, "lm_head.weight", c->vocab, c->hidden, &m->head))
        return CLI_BAD;
    for (at.layer = 0; at.layer < c->n_layers; at.layer++)
        if (find_layer(&at, &m->layers[at.layer])) return CLI_BAD;
    return checkpoint_check_rest(&m->checkpoint);
}

/* ---- On a GPU -------------------------------------------------------------------------------- */

static int take_all(const struct model *m, gdn_tensor *const *weights, int n)
{
    for (int i = 0; i < n; i++)
        if (gpu_take(m->gpu, &m->matrix, weights[i])) return CLI_BAD;
    return CLI_OK;
}

static int move_layer(const struct model *m, struct layer *l)
{
    gdn_block_args *a = &l->mixer.gdn;
    struct attention_weights *w = &l->mixer.full;
    gdn_tensor *const mlp[] = { &l->gate_proj, &l->up_proj, &l->down_proj };
    if (take_all(m, mlp, 3)) return CLI_BAD;
    if (l->is_full) {
        gdn_tensor *const full[] = { &w->q_proj, &w->k_proj, &w->v_proj, &w->o_proj };
        return take_all(m, full, 4);
    }
    gdn_tensor *const gdn[] = { &a->in_proj_qkv, &a->in_proj_z,   &a->in_proj_b,
                                &a->in_proj_a,   &a->conv_weight, &a->A_log,
                                &a->dt_bias,     &a->norm_weight, &a->out_proj };
    return take_all(m, gdn, 9);
}

/* Moves weights to the GPU. The embedding stays on the host too: its rows are looked up there. */
static int move_weights(struct model *m)
{
    if (gpu_take(m->gpu, &m->matrix, &m->head)) return CLI_BAD;
    for (int i = 0; i < m->config.n_layers; i++)
        if (move_layer(m, &m->layers[i])) return CLI_BAD;
    return CLI_OK;
}

/* ---- Opening --------------------------------------------------------------------------------- */

/* Returns the FNV-1a hash. */
static uint64_t hash(uint64_t h, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) h = (h ^ ((const unsigned char *)data)[i]) * 0x100000001b3;
    return h;
}

static uint64_t fingerprint(const struct model *m)
{
    const size_t hidden = (size_t)m->config.hidden;
    uint64_t h = 0xcbf29ce484222325;
    h = hash(h, m->norm, hidden * sizeof *m->norm);
    for (int i = 0; i < m->config.n_layers; i++) {
        const gdn_tensor *w = &m->layers[i].down_proj;
        h = hash(h, w->data, (size_t)w->size[1] * gdn_dtype_bytes(w->dtype));
    }
    return h;
}

static int read_generation(struct model *m)
{
    static const char file[] = "generation_config.json";
    cJSON *json = NULL;
    if (!checkpoint_has(&m->checkpoint, file)) return CLI_OK;
    if (checkpoint_json(&m->checkpoint, file, &json)) return CLI_BAD;
    const char *path = checkpoint_path(&m->checkpoint, file);
    const int code = path ? config_read_generation(&m->config, json, path)
                          : cli_bad("%s: no memory", m->checkpoint.path);
    cJSON_Delete(json);
    return code;
}

int model_open(struct model *m, gdn_ctx *ctx, struct threads *threads, struct gpu *gpu,
               const char *path)
{
    char name[512];
    memset(m, 0, sizeof *m);
    m->ctx = ctx;
    m->gpu = gpu;
    m->loop = product_select(ctx);
    if (!matrix_open(&m->matrix, gdn_isa(ctx), threads, gdn_n_threads(ctx), &m->memory))
        return cli_bad("no memory for products");
    if (checkpoint_open(&m->checkpoint, path)) return CLI_BAD;
    snprintf(name, sizeof name, m->checkpoint.is_folder ? "%s/config.json" : "%s: config", path);
    if (config_read(&m->config, m->checkpoint.config, name)) return CLI_BAD;
    if (read_generation(m) || find_weights(m)) return CLI_BAD;
    m->fingerprint = fingerprint(m);
    return gpu ? move_weights(m) : CLI_OK;
}

void model_close(struct model *m)
{
    checkpoint_close(&m->checkpoint);
    memory_free(&m->memory);
    memset(m, 0, sizeof *m);
}

int model_product(const struct model *m, const gdn_tensor *w, const float *x, float *y,
                  int64_t tokens)
{
    if (m->gpu) return gpu_product(m->gpu, w, x, y, tokens);
    matrix_product(&m->matrix, w, x, y, tokens);
    return CLI_OK;
}
