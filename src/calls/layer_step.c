/* SPDX-License-Identifier: Apache-2.0 */
/* From the convolution of gdn_step to its rule; see layer_step.h. */
#include "calls/layer_step.h"

#include "core/tensor_check.h"

struct gdn_rows gdn_step_call_rows(const struct gdn_step_call *m, char *memory, int64_t channel,
                               int64_t head)
{
    const int64_t unit = (int64_t)gdn_dtype_bytes(m->conv.x.dtype), token = m->conv.D * unit;
    return (struct gdn_rows){ .data  = memory + channel * unit,
                              .dtype = m->conv.x.dtype,
                              .batch = m->tokens.padded ? m->tokens.T * token : 0,
                              .token = token,
                              .head  = head * unit };
}

size_t gdn_step_call_bytes(const struct gdn_step_call *m)
{
    return gdn_align64((size_t)(m->tokens.N * m->conv.D) * gdn_dtype_bytes(m->conv.x.dtype));
}

void gdn_step_call_connect(const struct gdn_step_call *m, char *memory, struct gdn_rule *rule)
{
    const int64_t K = rule->K, keys = rule->Hk * K;
    rule->q = gdn_step_call_rows(m, memory, 0, K);
    rule->k = gdn_step_call_rows(m, memory, keys, K);
    rule->v = gdn_step_call_rows(m, memory, 2 * keys, rule->V);
}
