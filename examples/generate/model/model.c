/* SPDX-License-Identifier: Apache-2.0 */
#include "model/model.h"

#include <stdio.h>

#include "model/mixers.h"
#include "program/command_line.h"

/* ---- Layers ---------------------------------------------------------------------------------- */

/* OLMo's layers of attention have norms behind their parts. Some files have its own names. */
static int find_norms(const struct place *at, struct layer *l)
{
    const struct config *c = &at->m->config;
    const bool after = c->family == OLMO_HYBRID && l->is_full;
    const char *input = after ? "post_attention_layernorm.weight|feedforward_layer_norm.weight"
                              : "input_layernorm.weight|attention_layer_norm.weight";
    const char *post = after ? "post_feedforward_layernorm.weight"
                             : "post_attention_layernorm.weight|feedforward_layer_norm.weight";
    l->norms_after = after;
    return weights_find_vector(at, input, c->hidden, &l->input_norm) ||
           weights_find_vector(at, post, c->hidden, &l->post_norm);
}

static int find_layer(const struct place *at, struct layer *l)
{
    const struct config *c = &at->m->config;
    const int64_t wide = c->intermediate;
    l->is_full = c->is_full[at->layer];
    if (find_norms(at, l) ||
        weights_find(at, "mlp.gate_proj.weight|block_sparse_moe.gate_proj.weight", wide, c->hidden,
                     &l->gate_proj) ||
        weights_find(at, "mlp.up_proj.weight|block_sparse_moe.up_proj.weight", wide, c->hidden,
                     &l->up_proj) ||
        weights_find(at, "mlp.down_proj.weight|block_sparse_moe.down_proj.weight", c->hidden, wide,
                     &l->down_proj))
        return CLI_BAD;
    return l->is_full ? mixer_find_full(at, &l->mixer.full) : mixer_find_linear(at, &l->mixer.gdn);
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
    if (weights_find(&at, "embed_tokens.weight", c->vocab, c->hidden, &m->embedding) ||
        weights_find_vector(&at, "norm.weight", c->hidden, &m->norm))
        return CLI_BAD;
    m->head = m->embedding;
    if ((!c->tied || checkpoint_find(&m->checkpoint, "lm_head.weight")) &&
        weights_find(&root, "lm_head.weight", c->vocab, c->hidden, &m->head))
        return CLI_BAD;
    for (at.layer = 0; at.layer < c->n_layers; at.layer++)
        if (find_layer(&at, &m->layers[at.layer])) return CLI_BAD;
    return checkpoint_check_rest(&m->checkpoint);
}

/* ---- On a GPU -------------------------------------------------------------------------------- */

static int take_all(const struct model *m, gdn_tensor *const *weights, int n)
{
    for (int i = 0; i < n; i++)
        if (weights[i]->data && gpu_take(m->gpu, &m->matrix, weights[i])) return CLI_BAD;
    return CLI_OK;
}

static int move_layer(const struct model *m, struct layer *l)
{
    gdn_block_args *a = &l->mixer.gdn;
    struct attention_weights *w = &l->mixer.full;
    gdn_tensor *const mlp[] = { &l->gate_proj, &l->up_proj, &l->down_proj };
    if (take_all(m, mlp, 3)) return CLI_BAD;
    if (l->is_full) {
        gdn_tensor *const full[] = { &w->q_proj, &w->k_proj,    &w->v_proj,
                                     &w->o_proj, &w->kv_a_proj, &w->kv_b_proj };
        return take_all(m, full, 6);
    }
    gdn_tensor *const gdn[] = { &a->in_proj_qkv, &a->in_proj_q, &a->in_proj_k,
                                &a->in_proj_v,   &a->in_proj_z, &a->in_proj_z_down,
                                &a->in_proj_b,   &a->in_proj_a, &a->in_proj_a_down,
                                &a->conv_weight, &a->A_log,     &a->dt_bias,
                                &a->norm_weight, &a->out_proj };
    return take_all(m, gdn, 14);
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
