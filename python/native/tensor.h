/* SPDX-License-Identifier: Apache-2.0 */
/* tensor.h - tensors without elements, which may have no address and any strides. */
#ifndef GDN_PYTHON_TENSOR_H
#define GDN_PYTHON_TENSOR_H

#include <stdbool.h>

#include "gdn.h"

static inline bool tensor_is_empty(const gdn_tensor *t)
{
    for (int i = 0; i < t->ndim; i++)
        if (t->size[i] == 0) return true;
    return false;
}

/* If the tensor has no elements, gives it an address, because NULL says "absent", and strides that
 * every op takes. Those of an expanded tensor are 0. */
static inline void tensor_settle_empty(gdn_tensor *t)
{
    if (!tensor_is_empty(t)) return;
    int64_t dense = 1;
    t->data = (void *)64;
    for (int i = t->ndim - 1; i >= 0; i--) {
        t->stride[i] = dense;
        if (t->size[i] > 1) dense *= t->size[i];
    }
}

#endif
