/* SPDX-License-Identifier: Apache-2.0 */
#include "model/mixers.h"

#include "program/command_line.h"

/* ---- Layers of the rule ---------------------------------------------------------------------- */

/* The columns of q (k has as many) and of v. */
struct columns {
    int64_t keys, values;
};

static struct columns columns_of(const struct config *c)
{
    return (struct columns){ (int64_t)c->linear_key_heads * c->linear_key_dim,
                             (int64_t)c->linear_value_heads * c->linear_value_dim };
}

static int find_qwen(const struct place *at, gdn_block_args *a)
{
    const struct config *c = &at->m->config;
    const int64_t Hv = c->linear_value_heads, hidden = c->hidden;
    const struct columns n = columns_of(c);
    const int64_t D = 2 * n.keys + n.values;
    return weights_find(at, "linear_attn.in_proj_qkv.weight", D, hidden, &a->in_proj_qkv) ||
           weights_find(at, "linear_attn.in_proj_z.weight", n.values, hidden, &a->in_proj_z) ||
           weights_find(at, "linear_attn.in_proj_b.weight", Hv, hidden, &a->in_proj_b) ||
           weights_find(at, "linear_attn.in_proj_a.weight", Hv, hidden, &a->in_proj_a) ||
           weights_find_conv(at, "linear_attn.", D, &a->conv_weight) ||
           weights_find(at, "linear_attn.A_log", Hv, 0, &a->A_log) ||
           weights_find(at, "linear_attn.dt_bias", Hv, 0, &a->dt_bias) ||
           weights_find(at, "linear_attn.norm.weight", c->linear_value_dim, 0, &a->norm_weight) ||
           weights_find(at, "linear_attn.out_proj.weight", hidden, n.values, &a->out_proj);
}

static int find_olmo(const struct place *at, gdn_block_args *a)
{
    const struct config *c = &at->m->config;
    const int64_t Hv = c->linear_value_heads, hidden = c->hidden;
    const struct columns n = columns_of(c);
    const int64_t D = 2 * n.keys + n.values;
    return weights_find(at, "linear_attn.q_proj.weight", n.keys, hidden, &a->in_proj_q) ||
           weights_find(at, "linear_attn.k_proj.weight", n.keys, hidden, &a->in_proj_k) ||
           weights_find(at, "linear_attn.v_proj.weight", n.values, hidden, &a->in_proj_v) ||
           weights_find(at, "linear_attn.g_proj.weight", n.values, hidden, &a->in_proj_z) ||
           weights_find(at, "linear_attn.b_proj.weight", Hv, hidden, &a->in_proj_b) ||
           weights_find(at, "linear_attn.a_proj.weight", Hv, hidden, &a->in_proj_a) ||
           weights_find_conv(at, "linear_attn.", D, &a->conv_weight) ||
           weights_find(at, "linear_attn.A_log", Hv, 0, &a->A_log) ||
           weights_find(at, "linear_attn.dt_bias", Hv, 0, &a->dt_bias) ||
           weights_find(at, "linear_attn.o_norm.weight", c->linear_value_dim, 0, &a->norm_weight) ||
           weights_find(at, "linear_attn.o_proj.weight", hidden, n.values, &a->out_proj);
}

/* KDA. Its ranks are those of a head. */
static int find_kimi(const struct place *at, gdn_block_args *a)
{
    const struct config *c = &at->m->config;
    const int64_t H = c->linear_value_heads, K = c->linear_key_dim, hidden = c->hidden, n = H * K;
    if (weights_find(at, "self_attn.q_proj.weight", n, hidden, &a->in_proj_q) ||
        weights_find(at, "self_attn.k_proj.weight", n, hidden, &a->in_proj_k) ||
        weights_find(at, "self_attn.v_proj.weight", n, hidden, &a->in_proj_v) ||
        weights_find(at, "self_attn.g_a_proj.weight", K, hidden, &a->in_proj_z_down) ||
        weights_find(at, "self_attn.g_b_proj.weight", n, K, &a->in_proj_z) ||
        weights_find(at, "self_attn.b_proj.weight", H, hidden, &a->in_proj_b) ||
        weights_find(at, "self_attn.f_a_proj.weight|self_attn.forget_gate.f_a_proj.weight", K,
                     hidden, &a->in_proj_a_down) ||
        weights_find(at, "self_attn.f_b_proj.weight|self_attn.forget_gate.f_b_proj.weight", n, K,
                     &a->in_proj_a) ||
        weights_find_conv(at, "self_attn.", 3 * n, &a->conv_weight) ||
        weights_find(at, "self_attn.A_log|self_attn.forget_gate.A_log", H, 0, &a->A_log) ||
        weights_find(at, "self_attn.dt_bias|self_attn.forget_gate.dt_bias", n, 0, &a->dt_bias) ||
        weights_find(at, "self_attn.o_norm.weight", K, 0, &a->norm_weight) ||
        weights_find(at, "self_attn.o_proj.weight", hidden, n, &a->out_proj))
        return CLI_BAD;
    a->dt_bias = gdn_dense(a->dt_bias.data, a->dt_bias.dtype, 2, H, K, 0, 0);
    return CLI_OK;
}

int mixer_find_linear(const struct place *at, gdn_block_args *a)
{
    const struct config *c = &at->m->config;
    *a = gdn_block_args_init();
    a->n_key_heads = c->linear_key_heads;
    a->n_value_heads = c->linear_value_heads;
    a->key_head_dim = c->linear_key_dim;
    a->value_head_dim = c->linear_value_dim;
    a->rms_eps = c->gated_eps;
    if (c->sigmoid) a->activation = GDN_ACT_SIGMOID;
    if (c->twice) a->beta_kind = GDN_BETA_TWICE_SIGMOID;
    const int bad = c->family == QWEN3_5       ? find_qwen(at, a)
                    : c->family == OLMO_HYBRID ? find_olmo(at, a)
                                               : find_kimi(at, a);
    return bad ? CLI_BAD : CLI_OK;
}

/* ---- Attention ------------------------------------------------------------------------------- */

/* k and v by MLA: one row of kv_rank and shared columns, then those of all heads. */
static int find_latent(const struct place *at, struct attention_weights *w)
{
    const struct config *c = &at->m->config;
    const int64_t rank = c->kv_rank, own = c->head_dim - c->shared_dim + c->value_dim;
    return weights_find(at, "self_attn.kv_a_proj_with_mqa.weight", rank + c->shared_dim, c->hidden,
                        &w->kv_a_proj) ||
           weights_find(at, "self_attn.kv_b_proj.weight", c->n_heads * own, rank, &w->kv_b_proj) ||
           weights_find_vector(at, "self_attn.kv_a_layernorm.weight", rank, &w->kv_norm);
}

static int find_keys(const struct place *at, struct attention_weights *w)
{
    const struct config *c = &at->m->config;
    const int64_t D = c->head_dim, kv = c->n_kv_heads * D;
    const bool rows = c->norms == NORM_ROWS;
    return weights_find(at, "self_attn.k_proj.weight", kv, c->hidden, &w->k_proj) ||
           weights_find(at, "self_attn.v_proj.weight", kv, c->hidden, &w->v_proj) ||
           weights_find_vector(at, "self_attn.q_norm.weight", rows ? c->n_heads * D : D,
                               &w->q_norm) ||
           weights_find_vector(at, "self_attn.k_norm.weight", rows ? kv : D, &w->k_norm);
}

int mixer_find_full(const struct place *at, struct attention_weights *w)
{
    const struct config *c = &at->m->config;
    const int64_t q = c->n_heads * (int64_t)config_q_width(c), out = c->n_heads * c->value_dim;
    return weights_find(at, "self_attn.q_proj.weight", q, c->hidden, &w->q_proj) ||
                   weights_find(at, "self_attn.o_proj.weight", c->hidden, out, &w->o_proj) ||
                   (c->kv_rank ? find_latent : find_keys)(at, w)
               ? CLI_BAD
               : CLI_OK;
}
