/* SPDX-License-Identifier: Apache-2.0 */
#include "tensors.h"

#include <string.h>

gdn_tensor gdn_ggml_view(const struct ggml_tensor *x, int ndim)
{
    gdn_tensor view;
    memset(&view, 0, sizeof view);
    view.data = x->data;
    view.dtype = GDN_F32;
    view.ndim = ndim;
    for (int i = 0; i < ndim; i++) {
        view.size[i] = x->ne[ndim - 1 - i];
        view.stride[i] = (int64_t)(x->nb[ndim - 1 - i] / sizeof(float));
    }
    return view;
}

bool gdn_ggml_has_only(const struct ggml_tensor *node, int n_sources, int n_params)
{
    const int most = (int)(sizeof node->op_params / sizeof *node->op_params);
    for (int i = 0; i < GGML_MAX_SRC; i++)
        if ((node->src[i] != NULL) != (i < n_sources)) return false;
    for (int i = n_params; i < most; i++)
        if (node->op_params[i]) return false;
    return true;
}

bool gdn_ggml_is_rows(const struct ggml_tensor *x)
{
    return x->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float);
}
