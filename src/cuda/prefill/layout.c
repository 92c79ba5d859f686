/* SPDX-License-Identifier: Apache-2.0 */
/* How rows and states lie: how much moves at once, and which states chunks cannot work on. */
#include "cuda/prefill/forms.h"
#include "core/tensor_check.h"

int32_t gdn_cuda_rows_wide(const struct gdn_rows *r)
{
    const uint64_t all = (uint64_t)(uintptr_t)r->data | (uint64_t)r->batch | (uint64_t)r->token |
                         (uint64_t)r->head | 16;
    return (int32_t)(all & (~all + 1));
}

struct gdn_pool_view gdn_cuda_dense_states(const struct gdn_cu_rule *r, char *data)
{
    const int64_t head = (int64_t)r->K * r->V;
    return (struct gdn_pool_view){
        .data = data, .dtype = GDN_F32, .slot = r->H * head, .head = head, .ld = r->K
    };
}

bool gdn_cuda_prefill_apart(const struct gdn_pool_view *view)
{
    return view->data && (gdn_is_q8(view->dtype) || view->gap);
}

bool gdn_cuda_prefill_is_apart(const struct gdn_cu_rule *r)
{
    return gdn_cuda_prefill_apart(&r->from) || gdn_cuda_prefill_apart(&r->to) ||
           gdn_cuda_prefill_apart(&r->checkpoints);
}
