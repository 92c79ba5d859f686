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

void past_free(struct past *p) { memory_free(&p->memory); }
