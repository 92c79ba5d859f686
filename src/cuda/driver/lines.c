/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/driver/lines.h"

#include "core/tensor_check.h"

int32_t gdn_cuda_access(const void *data, int32_t dtype, const int64_t *steps, int n_steps,
                        int64_t n)
{
    const int64_t unit = (int64_t)gdn_dtype_bytes(dtype);
    uint64_t all = (uint64_t)(uintptr_t)data;
    for (int i = 0; i < n_steps; i++) all |= (uint64_t)steps[i];
    if (all % 16 == 0 && n * unit % 16 == 0) return 16;
    return all % 8 == 0 && unit == 2 && n % 4 == 0 ? 8 : 0;
}

/* Returns true if dimension `next` can be merged into dimension i, in all tensors. Tensors without
 * elements may have any steps, which wrap. */
static bool is_merged(const gdn_tensor *const *tensors, int n, int i, int next)
{
    for (int j = 0; j < n; j++) {
        const gdn_tensor *t = tensors[j];
        const uint64_t all = (uint64_t)t->stride[next] * (uint64_t)t->size[next];
        if (t->data && (uint64_t)t->stride[i] != all) return false;
    }
    return true;
}

void gdn_cuda_lines(const gdn_tensor *const *tensors, int n, struct gdn_cu_leads *leads,
                    struct gdn_cu_lines *const *lines)
{
    const gdn_tensor *like = tensors[0];
    const int last = like->ndim - 1;
    int dims[GDN_MAX_DIMS]; /* the fastest dimension of each lead */
    *leads = (struct gdn_cu_leads){ 0 };
    for (int i = 0; i < last; i++) {
        if (like->size[i] == 1) continue;
        if (leads->n && is_merged(tensors, n, dims[leads->n - 1], i)) {
            leads->size[leads->n - 1] *= like->size[i];
            dims[leads->n - 1] = i;
        } else {
            dims[leads->n] = i;
            leads->size[leads->n++] = like->size[i];
        }
    }
    for (int j = 0; j < n; j++) {
        const gdn_tensor *t = tensors[j];
        *lines[j] = (struct gdn_cu_lines){ .data = t->data, .dtype = t->dtype, .element = 1 };
        if (t->data && t->size[last] > 1) lines[j]->element = t->stride[last];
        for (int i = 0; t->data && i < leads->n; i++)
            lines[j]->step[i] = gdn_step_bytes(t, dims[i]);
        if (t->data && lines[j]->element == 1)
            lines[j]->access =
                gdn_cuda_access(t->data, t->dtype, lines[j]->step, leads->n, t->size[last]);
    }
    if (leads->n == 0) leads->size[leads->n++] = 1;
}

struct gdn_cu_lines gdn_cuda_line(const gdn_tensor *vector)
{
    struct gdn_cu_lines l = { .data = vector->data, .dtype = vector->dtype, .element = 1 };
    if (vector->data && (vector->stride[0] == 1 || vector->size[0] < 2))
        l.access = gdn_cuda_access(vector->data, vector->dtype, NULL, 0, vector->size[0]);
    return l;
}
