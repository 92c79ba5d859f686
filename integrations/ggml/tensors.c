/* SPDX-License-Identifier: Apache-2.0 */
#include "tensors.h"

#include <string.h>

gdn_tensor gdn_ggml_view(const struct ggml_tensor *x, int ndim)
{
    gdn_tensor view;
    memset(&view, 0, sizeof view);
    view.data  = x->data;
    view.dtype = GDN_F32;
    view.ndim  = ndim;
    for (int i = 0; i < ndim; i++) {
        view.size[i]   = x->ne[ndim - 1 - i];
        view.stride[i] = (int64_t)(x->nb[ndim - 1 - i] / sizeof(float));
    }
    return view;
}

bool gdn_ggml_is_rows(const struct ggml_tensor *x)
{
    return x->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float);
}
