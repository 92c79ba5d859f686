/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SSM_CONV by gdn_conv1d(). ggml's input is one row per channel: the W - 1 inputs before the first
 * token, then T new ones. The old ones are the state, and the new ones are x, where they are.
 */
#include "backend.h"
#include "tensors.h"

/* ggml's own loop is the faster one for few tokens. */
enum { MIN_TAPS = 2, MAX_TAPS = 16, MIN_TOKENS = 8 };

bool gdn_ggml_takes_conv(const struct ggml_tensor *node)
{
    const struct ggml_tensor *x = node->src[0], *weight = node->src[1];
    return gdn_ggml_has_only(node, 2, 0) && gdn_ggml_is_rows(x) && gdn_ggml_is_rows(weight) &&
           gdn_ggml_is_rows(node) && weight->ne[0] >= MIN_TAPS && weight->ne[0] <= MAX_TAPS &&
           node->ne[1] >= MIN_TOKENS && ggml_nelements(node) > 0;
}

gdn_status gdn_ggml_conv(struct gdn_ggml *backend, const struct ggml_tensor *node)
{
    const struct ggml_tensor *weight = node->src[1];
    const gdn_tensor x = gdn_ggml_view(node->src[0], 3);
    const int64_t past = weight->ne[0] - 1;
    gdn_conv1d_args a = gdn_conv1d_args_init();
    gdn_batch batch = gdn_batch_init();
    batch.write = GDN_WRITE_NONE;

    a.x = x;
    a.x.data = (float *)x.data + past;
    a.x.size[1] = node->ne[1];
    a.x.size[2] = x.size[1];
    a.x.stride[1] = x.stride[2];
    a.x.stride[2] = x.stride[1];
    a.weight = gdn_ggml_view(weight, 2);
    a.state = x;
    a.state.size[2] = past;
    a.out = gdn_ggml_view(node, 3);
    a.batch = &batch;
    return gdn_conv1d(backend->ctx, &a);
}
