/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the rule's call of gdn_step after its convolution; see layer_step.h. */
#include "calls/layer_step.h"

#include "core/tensor_check.h"

struct gdn_rows gdn_step_call_rows(const struct gdn_step_call *m, char *memory, int64_t channel,
                                   int64_t head)
{
    const int64_t unit = (int64_t)gdn_dtype_bytes(m->conv.x.dtype), token = m->conv.D * unit;
    return (struct gdn_rows){ .data = memory + channel * unit,
                              .dtype = m->conv.x.dtype,
                              .batch = m->tokens.padded ? m->tokens.T * token : 0,
                              .token = token,
                              .head = head * unit };
}

size_t gdn_step_call_bytes(const struct gdn_step_call *m)
{
    if (!gdn_step_convolves(m)) return 0;
    return gdn_align64((size_t)(m->tokens.N * m->conv.D) * gdn_dtype_bytes(m->conv.x.dtype));
}

/* Rows of x from a channel on. */
static struct gdn_rows rows_of_x(const struct gdn_step_call *m, int64_t channel, int64_t head)
{
    const int64_t unit = (int64_t)gdn_dtype_bytes(m->conv.x.dtype);
    struct gdn_rows rows = m->conv.x;
    rows.data += channel * unit;
    rows.head = head * unit;
    return rows;
}

void gdn_step_call_connect(const struct gdn_step_call *m, char *memory, struct gdn_rule *rule)
{
    const int64_t K = rule->K, keys = rule->Hk * K, values = rule->Hv * (int64_t)rule->V;
    const int64_t unit = (int64_t)gdn_dtype_bytes(m->conv.x.dtype), n = gdn_rule_updates(rule);
    const int64_t first[] = { 0, keys, keys + n * keys }, heads[] = { K, K, rule->V };
    struct gdn_rows *rows[] = { &rule->q, &rule->k, &rule->v };
    for (int i = 0; i < 3; i++)
        *rows[i] = gdn_step_convolves(m) ? gdn_step_call_rows(m, memory, first[i], heads[i])
                                         : rows_of_x(m, first[i], heads[i]);
    if (!rule->family.is) return;
    rule->family.k_update = keys * unit;
    rule->family.v_update = values * unit;
}
