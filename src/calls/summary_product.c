/* SPDX-License-Identifier: Apache-2.0 */
/* The order of ranges in host memory; see chunk_stage.h. */
#include "calls/chunk_stage.h"
#include "core/tensor_check.h"

int64_t gdn_product_n_ranges(const struct gdn_product *a)
{
    return a->order.data ? a->order.size[1] : a->n;
}

int64_t gdn_product_range(const struct gdn_product *a, int64_t b, int64_t i)
{
    return a->order.data ? gdn_index2(&a->order, b, i) : b + i * a->B;
}

gdn_status gdn_product_check_order(gdn_ctx *ctx, const struct gdn_product *a)
{
    for (int64_t b = 0; b < a->B; b++)
        for (int64_t i = 0; i < gdn_product_n_ranges(a); i++)
            if (gdn_product_range(a, b, i) >= a->P)
                return gdn_fail(ctx, GDN_E_ARG, "order[%lld][%lld]: range %lld, wanted below %lld",
                                (long long)b, (long long)i, (long long)gdn_product_range(a, b, i),
                                (long long)a->P);
    return GDN_OK;
}
