/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the rows of one head, for judges. */
#include "cases/cases.h"
#include "oracle.h"

void case_load_head(double *to, const gdn_tensor *t, int64_t first, int64_t n, int64_t h)
{
    const int64_t D = t->ndim == 3 ? t->size[2] : 1;
    for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < D; d++)
            to[i * D + d] = oracle_load(t->data, t->dtype, (first + i) * t->stride[0] + h * D + d);
}

int64_t rule_case_head_of(const struct rule_case *c, int64_t n, int64_t h)
{
    return c->args.head_map == GDN_HEADS_INTERLEAVED ? h % n : h * n / c->args.out.size[1];
}
