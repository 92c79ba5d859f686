/* SPDX-License-Identifier: Apache-2.0 */
#include "model/past.h"

#include "program/command_line.h"

/* Makes a zeroed tensor where the model's GDN layers are. */
static int make_state(struct past *p, const struct model *m, int ndim, const int64_t *size,
                      gdn_tensor *t)
{
    *t = memory_tensor(&p->memory, GDN_F32, ndim, size);
    if (!t->data) return cli_bad("no memory for the states");
    return m->gpu ? gpu_take(m->gpu, &m->matrix, t) : CLI_OK;
}

struct past_sizes past_sizes(const struct config *c)
{
    const int64_t keys = (int64_t)c->linear_key_heads * c->linear_key_dim;
    const int64_t D = 2 * keys + (int64_t)c->linear_value_heads * c->linear_value_dim;
    return (struct past_sizes){
        .conv_state = { 1, D, c->taps - 1 },
        .state = { 1, c->linear_value_heads, c->linear_value_dim, c->linear_key_dim },
    };
}

static int make_gdn(struct past *p, const struct model *m, struct past_layer *l)
{
    const struct past_sizes s = past_sizes(&m->config);
    return make_state(p, m, 3, s.conv_state, &l->conv_state) ||
           make_state(p, m, 4, s.state, &l->state);
}

static int make_full(struct past *p, const struct model *m, struct past_layer *l)
{
    const struct config *c = &m->config;
    const int64_t keys[] = { p->capacity, c->n_kv_heads, c->head_dim };
    const int64_t values[] = { c->n_kv_heads, c->value_dim, p->capacity };
    l->keys = memory_tensor(&p->memory, GDN_F32, 3, keys).data;
    l->values = memory_tensor(&p->memory, GDN_F32, 3, values).data;
    return l->keys && l->values
               ? CLI_OK
               : cli_bad("no memory for the states of %lld tokens", (long long)p->capacity);
}

int past_make(struct past *p, const struct model *m, int64_t capacity)
{
    memset(p, 0, sizeof *p);
    p->capacity = capacity;
    p->layers = memory_get(&p->memory, (size_t)m->config.n_layers * sizeof *p->layers);
    if (!p->layers) return cli_bad("no memory for the states");
    for (int i = 0; i < m->config.n_layers; i++)
        if ((m->layers[i].is_full ? make_full : make_gdn)(p, m, &p->layers[i])) return CLI_BAD;
    return CLI_OK;
}

/* ---- Undoing --------------------------------------------------------------------------------- */

/* Like a state, n of them. */
static int make_steps(struct past *p, const struct model *m, const gdn_tensor *state, int64_t n,
                      gdn_tensor *steps)
{
    int64_t size[4];
    memcpy(size, state->size, sizeof size);
    size[0] = n;
    return make_state(p, m, state->ndim, size, steps);
}

int past_keep_steps(struct past *p, const struct model *m, int64_t n_steps)
{
    p->n_steps = n_steps;
    for (int i = 0; i < m->config.n_layers; i++) {
        struct past_layer *l = &p->layers[i];
        if (m->layers[i].is_full) continue;
        if (make_steps(p, m, &l->conv_state, n_steps, &l->conv_steps) ||
            make_steps(p, m, &l->state, n_steps, &l->steps))
            return CLI_BAD;
    }
    return CLI_OK;
}

/* State number `step` of `steps` becomes the state. */
static int take_step(const struct model *m, const gdn_tensor *steps, int64_t step,
                     const gdn_tensor *state)
{
    gdn_ctx *ctx = m->gpu ? m->gpu->ctx : m->ctx;
    gdn_state_copy_args a = gdn_state_copy_args_init();
    a.from_pool = *steps;
    a.to_pool = *state;
    a.from_pool.size[0] = 1;
    a.from_pool.data = (float *)steps->data + step * steps->stride[0];
    return gdn_state_copy(ctx, &a) ? cli_bad("%s", gdn_last_error(ctx)) : CLI_OK;
}

int past_undo(struct past *p, const struct model *m, int64_t n, int64_t kept)
{
    p->n -= n - kept;
    for (int i = 0; i < m->config.n_layers && kept < n; i++) {
        const struct past_layer *l = &p->layers[i];
        if (m->layers[i].is_full) continue;
        if (take_step(m, &l->conv_steps, kept - 1, &l->conv_state) ||
            take_step(m, &l->steps, kept - 1, &l->state))
            return CLI_BAD;
    }
    return CLI_OK;
}

void past_free(struct past *p) { memory_free(&p->memory); }
