/* SPDX-License-Identifier: Apache-2.0 */
#include "model/attention.h"

#include <math.h>

#include "model/rmsnorm.h"
#include "program/command_line.h"

bool attention_make_room(struct attention_room *r, struct memory *memory, const struct model *m,
                         int64_t window, int64_t capacity)
{
    const struct config *c = &m->config;
    const int64_t q = window * c->n_heads * c->head_dim;
    const int64_t kv = window * c->n_kv_heads * c->head_dim;
    const size_t f = sizeof(float);
    r->q = memory_get(memory, (size_t)(2 * q) * f);
    r->out = memory_get(memory, (size_t)q * f);
    r->k = memory_get(memory, (size_t)kv * f);
    r->v = memory_get(memory, (size_t)kv * f);
    r->scores = memory_get(memory, (size_t)(capacity * gdn_n_threads(m->ctx)) * f);
    return r->q && r->out && r->k && r->v && r->scores;
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

static void prepare_heads(const struct config *c, float *heads, int n_heads, int64_t stride,
                          const float *norm, int64_t position)
{
    for (int h = 0; h < n_heads; h++) {
        float *head = heads + h * stride;
        rmsnorm(head, norm, head, c->head_dim, c->eps);
        rotate(c, head, position);
    }
}

static void keep(const struct config *c, const struct past *past, struct past_layer *layer,
                 int64_t position, const float *k, const float *v)
{
    const int64_t width = (int64_t)c->n_kv_heads * c->head_dim;
    memcpy(layer->keys + position * width, k, (size_t)width * sizeof *k);
    for (int64_t i = 0; i < width; i++) layer->values[i * past->capacity + position] = v[i];
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
    const int64_t D = c->head_dim, kv_width = c->n_kv_heads * D;
    const int64_t h = item % c->n_heads, kv = h / (c->n_heads / c->n_kv_heads);
    const int64_t t = item / c->n_heads, n = a->first + t + 1;
    const float *q = a->room->q + item * 2 * D, *gate = q + D;
    float *out = a->room->out + item * D;
    float *scores = a->room->scores + thread * a->past->capacity;
    const struct product by_keys = { .w = a->layer->keys + kv * D,
                                     .x = q,
                                     .y = scores,
                                     .w_stride = kv_width,
                                     .width = D,
                                     .rows = n };
    const struct product by_values = { .w = a->layer->values + kv * D * a->past->capacity,
                                       .x = scores,
                                       .y = out,
                                       .w_stride = a->past->capacity,
                                       .width = n,
                                       .rows = D };
    a->m->loop(&by_keys);
    for (int64_t i = 0; i < n; i++) scores[i] *= 1 / sqrtf((float)D);
    softmax(scores, n);
    a->m->loop(&by_values);
    for (int64_t i = 0; i < D; i++) out[i] *= 1 / (1 + expf(-gate[i]));
}

int attention(const struct model *m, const struct attention_weights *w, struct past *past,
              struct past_layer *layer, const struct attention_room *r, int64_t first, int64_t n,
              const float *x, float *y)
{
    const struct config *c = &m->config;
    const int64_t D = c->head_dim, kv = c->n_kv_heads * D;
    struct heads heads = { m, past, layer, r, first };
    if (model_product(m, &w->q_proj, x, r->q, n) || model_product(m, &w->k_proj, x, r->k, n) ||
        model_product(m, &w->v_proj, x, r->v, n))
        return CLI_BAD;
    for (int64_t t = 0; t < n; t++) {
        float *k = r->k + t * kv;
        prepare_heads(c, r->q + t * c->n_heads * 2 * D, c->n_heads, 2 * D, w->q_norm, first + t);
        prepare_heads(c, k, c->n_kv_heads, D, w->k_norm, first + t);
        keep(c, past, layer, first + t, k, r->v + t * kv);
    }
    threads_for(m->matrix.threads, n * c->n_heads, run_head, &heads);
    return model_product(m, &w->o_proj, r->out, y, n);
}
