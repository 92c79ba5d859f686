/* SPDX-License-Identifier: Apache-2.0 */
#include "model/attention.h"

#include <math.h>

#include "model/rmsnorm.h"
#include "program/command_line.h"

/* Returns the columns of k that a head has for itself. */
static int64_t own_keys(const struct config *c) { return c->head_dim - c->shared_dim; }

/* Room for window rows of so many floats; 0: none is needed. */
static bool make_rows(struct memory *memory, int64_t window, int64_t columns, float **to)
{
    *to = columns ? memory_get(memory, (size_t)(window * columns) * sizeof **to) : NULL;
    return *to || !columns;
}

bool attention_make_room(struct attention_room *r, struct memory *memory, const struct model *m,
                         int64_t window, int64_t capacity)
{
    const struct config *c = &m->config;
    const int64_t heads = c->n_heads, rank = c->kv_rank;
    return make_rows(memory, window, heads * config_q_width(c), &r->q) &&
           make_rows(memory, window, heads * c->value_dim, &r->out) &&
           make_rows(memory, window, (int64_t)c->n_kv_heads * c->head_dim, &r->k) &&
           make_rows(memory, window, (int64_t)c->n_kv_heads * c->value_dim, &r->v) &&
           make_rows(memory, window, rank ? rank + c->shared_dim : 0, &r->latent) &&
           make_rows(memory, window, rank, &r->normed) &&
           make_rows(memory, window, rank ? heads * (own_keys(c) + c->value_dim) : 0, &r->own) &&
           make_rows(memory, gdn_n_threads(m->ctx), capacity, &r->scores);
}

/* ---- Queries, keys, values ------------------------------------------------------------------- */

/* Pairs (i, i + rotary / 2) of a head turn by position / theta^(2 i / rotary), in float32 as in
 * Hugging Face's code. */
static void rotate(const struct config *c, float *head, int64_t position)
{
    const int half = c->rotary / 2;
    for (int i = 0; i < half; i++) {
        const float slow = powf(c->rope_theta, (float)(2 * i) / (float)c->rotary);
        const float angle = (float)position * (1 / slow);
        const float cosine = cosf(angle), sine = sinf(angle);
        const float a = head[i], b = head[i + half];
        head[i] = a * cosine - b * sine;
        head[i + half] = b * cosine + a * sine;
    }
}

/* Heads of one token, `stride` apart; side by side if the norm is of the row. */
static void prepare_heads(const struct config *c, float *heads, int n_heads, int64_t stride,
                          const float *norm, int64_t position)
{
    if (c->norms == NORM_ROWS)
        rmsnorm(heads, norm, heads, n_heads * stride, c->eps, c->norm_center);
    for (int h = 0; h < n_heads; h++) {
        float *head = heads + h * stride;
        if (c->norms == NORM_HEADS) rmsnorm(head, norm, head, c->head_dim, c->eps, c->norm_center);
        rotate(c, head, position);
    }
}

static void keep(const struct config *c, const struct past *past, struct past_layer *layer,
                 int64_t position, const float *k, const float *v)
{
    const int64_t keys = (int64_t)c->n_kv_heads * c->head_dim;
    const int64_t values = (int64_t)c->n_kv_heads * c->value_dim;
    memcpy(layer->keys + position * keys, k, (size_t)keys * sizeof *k);
    for (int64_t i = 0; i < values; i++) layer->values[i * past->capacity + position] = v[i];
}

/* Splits the rows of all heads to k, of which the last columns are the shared ones, and v. */
static void split_heads(const struct config *c, const struct attention_room *r, int64_t t)
{
    const int64_t own = own_keys(c), V = c->value_dim;
    const float *shared = r->latent + t * (c->kv_rank + c->shared_dim) + c->kv_rank;
    for (int64_t h = 0; h < c->n_heads; h++) {
        const int64_t row = t * c->n_heads + h;
        const float *from = r->own + row * (own + V);
        float *k = r->k + row * c->head_dim;
        memcpy(k, from, (size_t)own * sizeof *k);
        memcpy(k + own, shared, (size_t)c->shared_dim * sizeof *k);
        memcpy(r->v + row * V, from + own, (size_t)V * sizeof *k);
    }
}

/* MLA: k and v of n tokens. */
static int expand(const struct model *m, const struct attention_weights *w,
                  const struct attention_room *r, int64_t n, const float *x)
{
    const float eps = 1e-6f; /* whatever the config has */
    const struct config *c = &m->config;
    const int64_t rank = c->kv_rank;
    if (model_product(m, &w->kv_a_proj, x, r->latent, n)) return CLI_BAD;
    for (int64_t t = 0; t < n; t++)
        rmsnorm(r->latent + t * (rank + c->shared_dim), w->kv_norm, r->normed + t * rank, rank, eps,
                0);
    if (model_product(m, &w->kv_b_proj, r->normed, r->own, n)) return CLI_BAD;
    for (int64_t t = 0; t < n; t++) split_heads(c, r, t);
    return CLI_OK;
}

static int make_keys(const struct model *m, const struct attention_weights *w,
                     const struct attention_room *r, int64_t n, const float *x)
{
    if (m->config.kv_rank) return expand(m, w, r, n, x);
    return model_product(m, &w->k_proj, x, r->k, n) || model_product(m, &w->v_proj, x, r->v, n);
}

/* ---- One head of one token ------------------------------------------------------------------- */

struct heads {
    const struct model *m;
    const struct past *past;
    const struct past_layer *layer;
    const struct attention_room *room;
    int64_t first;
};

/* In place. */
static void softmax(float *x, int64_t n)
{
    float largest = x[0];
    double sum = 0;
    for (int64_t i = 1; i < n; i++) largest = fmaxf(largest, x[i]);
    for (int64_t i = 0; i < n; i++) {
        x[i] = expf(x[i] - largest);
        sum += x[i];
    }
    const float scale = (float)(1 / sum);
    for (int64_t i = 0; i < n; i++) x[i] *= scale;
}

static void run_head(void *arg, int64_t item, int32_t thread)
{
    const struct heads *a = arg;
    const struct config *c = &a->m->config;
    const int64_t D = c->head_dim, V = c->value_dim;
    const int64_t h = item % c->n_heads, kv = h / (c->n_heads / c->n_kv_heads);
    const int64_t t = item / c->n_heads, n = a->first + t + 1;
    const float *q = a->room->q + item * config_q_width(c), *gate = q + D;
    float *out = a->room->out + item * V;
    float *scores = a->room->scores + thread * a->past->capacity;
    const struct product by_keys = { .w = a->layer->keys + kv * D,
                                     .x = q,
                                     .y = scores,
                                     .w_stride = c->n_kv_heads * D,
                                     .width = D,
                                     .rows = n };
    const struct product by_values = { .w = a->layer->values + kv * V * a->past->capacity,
                                       .x = scores,
                                       .y = out,
                                       .w_stride = a->past->capacity,
                                       .width = n,
                                       .rows = V };
    a->m->loop(&by_keys);
    for (int64_t i = 0; i < n; i++) scores[i] *= 1 / sqrtf((float)D);
    softmax(scores, n);
    a->m->loop(&by_values);
    for (int64_t i = 0; c->gated && i < D; i++) out[i] *= 1 / (1 + expf(-gate[i]));
}

int attention(const struct model *m, const struct attention_weights *w, struct past *past,
              struct past_layer *layer, const struct attention_room *r, int64_t first, int64_t n,
              const float *x, float *y)
{
    const struct config *c = &m->config;
    const int64_t q = config_q_width(c), kv = c->n_kv_heads;
    struct heads heads = { m, past, layer, r, first };
    if (model_product(m, &w->q_proj, x, r->q, n) || make_keys(m, w, r, n, x)) return CLI_BAD;
    for (int64_t t = 0; t < n; t++) {
        float *k = r->k + t * kv * c->head_dim;
        prepare_heads(c, r->q + t * c->n_heads * q, c->n_heads, q, w->q_norm, first + t);
        prepare_heads(c, k, c->n_kv_heads, c->head_dim, w->k_norm, first + t);
        keep(c, past, layer, first + t, k, r->v + t * kv * c->value_dim);
    }
    threads_for(m->matrix.threads, n * c->n_heads, run_head, &heads);
    return model_product(m, &w->o_proj, r->out, y, n);
}
