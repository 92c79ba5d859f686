/* SPDX-License-Identifier: Apache-2.0 */
/* L2_NORM by gdn_l2norm(): x / max(|x|, eps). */
#include <float.h>
#include <string.h>

#include "backend.h"
#include "tensors.h"

enum { MAX_ROW = 65536 };

bool gdn_ggml_takes_norm(const struct ggml_tensor *node)
{
    return gdn_ggml_has_only(node, 1, 1) && gdn_ggml_is_rows(node) &&
           gdn_ggml_is_rows(node->src[0]) && node->ne[0] <= MAX_ROW && ggml_nelements(node) > 0;
}

gdn_status gdn_ggml_norm(struct gdn_ggml *backend, const struct ggml_tensor *node)
{
    gdn_l2norm_args a = gdn_l2norm_args_init();
    float eps;
    memcpy(&eps, node->op_params, sizeof eps);
    a.x = gdn_ggml_view(node->src[0], 4);
    a.out = gdn_ggml_view(node, 4);
    a.norm = GDN_NORM_L2_MAX;
    a.eps = eps > 0 ? eps : FLT_MIN; /* 0 means 1e-6 in libgdn */
    return gdn_l2norm(backend->ctx, &a);
}
