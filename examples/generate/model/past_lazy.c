/* SPDX-License-Identifier: Apache-2.0 */
/* Records beside the states of a past: gdn_record.h. One slot, so one row of each has all heads. */
#include <gdn_record.h>

#include "model/past.h"
#include "program/command_line.h"

static int make_record(struct past *p, const struct model *m, const gdn_block_args *gdn,
                       int64_t rows, struct past_layer *l)
{
    const struct config *c = &m->config;
    const int32_t n = gdn->dt_bias.ndim == 2 ? 4 : 3; /* KDA has a gate per key channel */
    const int64_t k[] = { 1, rows, c->linear_key_heads, c->linear_key_dim };
    const int64_t u[] = { 1, rows, c->linear_value_heads, c->linear_value_dim };
    const int64_t g[] = { 1, rows, c->linear_value_heads, c->linear_key_dim };
    l->record_k = memory_tensor(&p->memory, GDN_F32, 4, k);
    l->record_u = memory_tensor(&p->memory, GDN_F32, 4, u);
    l->record_g = memory_tensor(&p->memory, GDN_F32, n, g);
    l->record_count = memory_tensor(&p->memory, GDN_I32, 1, k);
    return l->record_k.data && l->record_u.data && l->record_g.data && l->record_count.data
               ? CLI_OK
               : cli_bad("no memory for records of %lld tokens", (long long)rows);
}

int past_be_lazy(struct past *p, const struct model *m, int64_t rows)
{
    for (int i = 0; i < m->config.n_layers; i++)
        if (!m->layers[i].is_full &&
            make_record(p, m, &m->layers[i].mixer.gdn, rows, &p->layers[i]))
            return CLI_BAD;
    return CLI_OK;
}

int past_fold(struct past *p, const struct model *m)
{
    for (int i = 0; i < m->config.n_layers; i++) {
        const struct past_layer *l = &p->layers[i];
        gdn_record_fold_args a = gdn_record_fold_args_init();
        if (!l->record_k.data) continue;
        a.state = l->state;
        a.record_k = l->record_k, a.record_u = l->record_u;
        a.record_g = l->record_g, a.record_count = l->record_count;
        if (gdn_record_fold(m->ctx, &a)) return cli_bad("%s", gdn_last_error(m->ctx));
    }
    return CLI_OK;
}
