/* SPDX-License-Identifier: Apache-2.0 */
/* Layers with random weights, as four families of models have them. */
#include <math.h>
#include <stdlib.h>

#include "cases/layer.h"
#include "cli.h"

const char *const case_layer_names[CASE_LAYERS] = { "qwen3_5", "qwen3_next", "olmo_hybrid",
                                                    "kimi_linear" };

/* ---- Weights ----------------------------------------------------------------------------- */

/* Returns a matrix whose products with vectors of size 1 have size 1. */
static gdn_tensor matrix(struct block_case *c, int64_t rows, int64_t columns)
{
    const double limit = sqrt(3.0 / (double)columns);
    const int64_t size[] = { rows, columns };
    return case_tensor(&c->memory, c->dims.dtype, 2, size, -limit, limit);
}

/* Returns n rows of a matrix. */
static gdn_tensor rows_of(const gdn_tensor *t, int64_t first, int64_t n)
{
    const int64_t columns = t->size[1], bytes = (int64_t)gdn_dtype_bytes(t->dtype);
    char *data = t->data;
    return data ? gdn_dense(data + first * columns * bytes, t->dtype, 2, n, columns, 0, 0) : *t;
}

/* Copies n rows of a weight to another. */
static void copy_rows(const gdn_tensor *to, int64_t row, const gdn_tensor *from, int64_t from_row,
                      int64_t n)
{
    const gdn_tensor source = rows_of(from, from_row, n), target = rows_of(to, row, n);
    memcpy(target.data, source.data, (size_t)case_bytes(&source));
}

/* Fuses the projections as Qwen3-Next has them: rows of a key head together. */
static void fuse(struct block_case *c)
{
    const struct case_dims *d = &c->dims;
    const int64_t Hk = d->Hq, group = d->Hv / Hk, K = d->K, V = group * d->V, head = 2 * K + 2 * V;
    const gdn_tensor *qkvz = &c->args.in_proj_qkvz, *ba = &c->args.in_proj_ba;
    for (int64_t h = 0; h < Hk; h++) {
        copy_rows(qkvz, h * head, &c->qkv, h * K, K);
        copy_rows(qkvz, h * head + K, &c->qkv, (Hk + h) * K, K);
        copy_rows(qkvz, h * head + 2 * K, &c->qkv, 2 * Hk * K + h * V, V);
        copy_rows(qkvz, h * head + 2 * K + V, &c->z, h * V, V);
        copy_rows(ba, h * 2 * group, &c->b, h * group, group);
        copy_rows(ba, h * 2 * group + group, &c->a, h * group, group);
    }
}

/* Makes the fused projections. If memory runs out, their data is NULL. */
static void make_fused(struct block_case *c)
{
    const struct case_dims *d = &c->dims;
    gdn_block_args *a = &c->args;
    a->in_proj_qkvz = matrix(c, layer_channels(d) + d->Hv * d->V, d->hidden);
    a->in_proj_ba = matrix(c, 2 * d->Hv, d->hidden);
    if (c->qkv.data && c->z.data && c->b.data && c->a.data && a->in_proj_qkvz.data &&
        a->in_proj_ba.data)
        fuse(c);
}

/* Kimi's layer has the output gate and the decays by low rank, that of a head. */
static void make_projections(struct block_case *c)
{
    const struct case_dims *d = &c->dims;
    const bool is_low = d->layer == CASE_LAYER_KIMI_LINEAR;
    const int64_t keys = d->Hq * d->K, values = d->Hv * d->V;
    gdn_block_args *a = &c->args;
    c->qkv = matrix(c, layer_channels(d), d->hidden);
    c->z = matrix(c, is_low ? d->K : values, d->hidden);
    c->b = matrix(c, d->Hv, d->hidden);
    c->a = matrix(c, is_low ? d->K : d->Hv, d->hidden);
    if (is_low) c->z_up = matrix(c, values, d->K), c->a_up = matrix(c, d->Hv * d->K, d->K);
    if (d->layer == CASE_LAYER_QWEN3_NEXT) {
        make_fused(c);
        return;
    }
    a->in_proj_z = c->z, a->in_proj_b = c->b, a->in_proj_a = c->a;
    if (d->layer == CASE_LAYER_QWEN3_5) {
        a->in_proj_qkv = c->qkv;
        return;
    }
    a->in_proj_q = rows_of(&c->qkv, 0, keys);
    a->in_proj_k = rows_of(&c->qkv, keys, keys);
    a->in_proj_v = rows_of(&c->qkv, 2 * keys, values);
    if (!is_low) return;
    a->in_proj_z_down = c->z, a->in_proj_a_down = c->a;
    a->in_proj_z = c->z_up, a->in_proj_a = c->a_up;
}

static void make_weights(struct block_case *c)
{
    const struct case_dims *d = &c->dims;
    gdn_block_args *a = &c->args;
    const int64_t conv[] = { layer_channels(d), d->W };
    make_projections(c);
    a->out_proj = matrix(c, d->hidden, d->Hv * d->V);
    a->conv_weight = case_tensor(&c->memory, d->dtype, 2, conv, -0.5, 0.5);
    case_gate_heads(&c->memory, d, &d->Hv, &a->A_log, &a->dt_bias);
    a->norm_weight = case_tensor(&c->memory, d->dtype, 1, &d->V, 0.5, 1.5);
}

/* ---- The call ---------------------------------------------------------------------------- */

static void fill_numbers(gdn_block_args *a, const struct case_dims *d)
{
    a->n_key_heads = (int32_t)d->Hq;
    a->n_value_heads = (int32_t)d->Hv;
    a->key_head_dim = (int32_t)d->K;
    a->value_head_dim = (int32_t)d->V;
    a->state_layout = d->state_layout;
    a->flags = case_flags(d);
    if (d->layer == CASE_LAYER_OLMO_HYBRID) a->beta_kind = GDN_BETA_TWICE_SIGMOID;
    if (d->layer == CASE_LAYER_KIMI_LINEAR) a->activation = GDN_ACT_SIGMOID;
    a->gate_lower_bound = (float)d->lower_bound;
}

int block_case_make(struct block_case *c, const struct case_dims *dims, const int64_t *lengths,
                    int64_t B)
{
    memset(c, 0, sizeof *c);
    c->dims = *dims;
    c->dims.rule = case_layer_rule(dims->layer);
    c->tokens = case_batch(&c->memory, lengths, B);
    c->batch = case_gdn_batch(&c->tokens);
    gdn_block_args *a = &c->args;
    *a = gdn_block_args_init();
    make_weights(c);
    const int64_t hidden[] = { c->tokens.N, dims->hidden };
    const int64_t conv[] = { B, layer_channels(dims), dims->W - 1 };
    const bool kv = dims->state_layout == GDN_STATE_KV;
    const int64_t state[] = { B, dims->Hv, kv ? dims->K : dims->V, kv ? dims->V : dims->K };
    a->hidden = case_tensor(&c->memory, dims->dtype, 2, hidden, -1, 1);
    a->out = memory_tensor(&c->memory, dims->dtype, 2, hidden);
    a->conv_state = memory_tensor(&c->memory, dims->state_dtype, 3, conv);
    a->state = memory_tensor(&c->memory, dims->state_dtype, 4, state);
    fill_numbers(a, &c->dims);
    a->batch = &c->batch;
    c->batch.pad_policy = dims->keep ? GDN_PAD_KEEP : GDN_PAD_ZERO;
    const bool is_fused = dims->layer == CASE_LAYER_QWEN3_NEXT;
    const bool is_low = dims->layer == CASE_LAYER_KIMI_LINEAR;
    const gdn_tensor *all[] = { &c->qkv,
                                &c->z,
                                &c->b,
                                &c->a,
                                &a->out_proj,
                                &a->conv_weight,
                                &a->A_log,
                                &a->dt_bias,
                                &a->norm_weight,
                                &a->hidden,
                                &a->out,
                                &a->conv_state,
                                &a->state,
                                is_fused ? &a->in_proj_qkvz : &c->qkv,
                                is_fused ? &a->in_proj_ba : &c->b,
                                is_low ? &c->z_up : &c->z,
                                is_low ? &c->a_up : &c->a };
    bool there = c->tokens.cu_seqlens;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) there = there && all[i]->data;
    if (there) return CLI_OK;
    return cli_bad("no memory for a layer of hidden size %lld", (long long)dims->hidden);
}

/* ---- Counting ---------------------------------------------------------------------------- */

double block_case_weights(const struct block_case *c)
{
    const gdn_tensor *const all[] = { &c->qkv, &c->z, &c->b, &c->a, &c->z_up, &c->a_up };
    double bytes = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) bytes += case_bytes(all[i]);
    return bytes / (double)gdn_dtype_bytes(c->dims.dtype);
}

double block_case_flops(const struct block_case *c, double *projections)
{
    const struct case_dims *d = &c->dims;
    const double N = (double)c->tokens.N, out = (double)(d->hidden * d->Hv * d->V);
    *projections = 2 * N * (block_case_weights(c) + out);
    return *projections + N * (double)(6 * d->Hv * d->K * d->V + 2 * layer_channels(d) * d->W);
}

double block_case_bytes(const struct block_case *c)
{
    const gdn_block_args *a = &c->args;
    return block_case_weights(c) * (double)gdn_dtype_bytes(c->dims.dtype) +
           case_bytes(&a->out_proj) + case_bytes(&a->conv_weight) + case_bytes(&a->hidden) +
           case_bytes(&a->out) + 2 * (case_bytes(&a->conv_state) + case_bytes(&a->state));
}
