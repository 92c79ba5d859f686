/* SPDX-License-Identifier: Apache-2.0 */
#include "generate/past.h"

#include "cli.h"

static bool make_gdn(struct past *p, const struct config *c, struct past_layer *l)
{
    const int64_t keys = (int64_t)c->linear_key_heads * c->linear_key_dim;
    const int64_t D    = 2 * keys + (int64_t)c->linear_value_heads * c->linear_value_dim;
    const int64_t conv[]  = { 1, D, c->taps - 1 };
    const int64_t state[] = { 1, c->linear_value_heads, c->linear_value_dim, c->linear_key_dim };
    l->conv_state         = memory_tensor(&p->memory, GDN_F32, 3, conv);
    l->state              = memory_tensor(&p->memory, GDN_F32, 4, state);
    return l->conv_state.data && l->state.data;
}

static bool make_full(struct past *p, const struct config *c, struct past_layer *l)
{
    const int64_t size[] = { p->capacity, c->n_kv_heads, c->head_dim };
    l->keys              = memory_tensor(&p->memory, GDN_F32, 3, size).data;
    l->values            = memory_tensor(&p->memory, GDN_F32, 3, size).data;
    return l->keys && l->values;
}

int past_make(struct past *p, const struct model *m, int64_t capacity)
{
    memset(p, 0, sizeof *p);
    p->capacity = capacity;
    p->layers   = memory_get(&p->memory, (size_t)m->config.n_layers * sizeof *p->layers);
    for (int i = 0; p->layers && i < m->config.n_layers; i++)
        if (!(m->layers[i].is_full ? make_full : make_gdn)(p, &m->config, &p->layers[i]))
            return cli_bad("no memory for the states of %lld tokens", (long long)capacity);
    return p->layers ? CLI_OK : cli_bad("no memory for the states");
}

/* ---- Undoing --------------------------------------------------------------------------------- */

/* Like a state, n of them. */
static gdn_tensor several(struct past *p, const gdn_tensor *state, int64_t n)
{
    int64_t size[4];
    memcpy(size, state->size, sizeof size);
    size[0] = n;
    return memory_tensor(&p->memory, GDN_F32, state->ndim, size);
}

int past_keep_steps(struct past *p, const struct model *m, int64_t n_steps)
{
    p->n_steps = n_steps;
    for (int i = 0; i < m->config.n_layers; i++) {
        struct past_layer *l = &p->layers[i];
        if (m->layers[i].is_full) continue;
        l->conv_steps = several(p, &l->conv_state, n_steps);
        l->steps      = several(p, &l->state, n_steps);
        if (!l->conv_steps.data || !l->steps.data)
            return cli_bad("no memory for the states after %lld tokens", (long long)n_steps);
    }
    return CLI_OK;
}

/* State number `step` of `steps` becomes the state. */
static int take_step(const struct model *m, const gdn_tensor *steps, int64_t step,
                     const gdn_tensor *state)
{
    gdn_state_copy_args a = gdn_state_copy_args_init();
    a.from_pool           = *steps;
    a.to_pool             = *state;
    a.from_pool.size[0]   = 1;
    a.from_pool.data      = (float *)steps->data + step * steps->stride[0];
    return gdn_state_copy(m->ctx, &a) ? cli_bad("%s", gdn_last_error(m->ctx)) : CLI_OK;
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
