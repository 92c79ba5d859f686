/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SSM_CONV by gdn_conv1d(). ggml's input is one row per channel: the W - 1 inputs before the first
 * token, then T new ones. The old ones are the state, where they are. The new ones are transposed
 * into the backend's room, because libgdn reads tokens of adjacent channels.
 */
#include "backend.h"
#include "tensors.h"

/* ggml's own loop is the faster one for few tokens, which it does not transpose. */
enum { MIN_TAPS = 2, MAX_TAPS = 16, MIN_TOKENS = 8, BLOCK = 16 };

bool gdn_ggml_takes_conv(const struct ggml_tensor *node)
{
    const struct ggml_tensor *x = node->src[0], *weight = node->src[1];
    return gdn_ggml_is_rows(x) && gdn_ggml_is_rows(weight) && gdn_ggml_is_rows(node) &&
           weight->ne[0] >= MIN_TAPS && weight->ne[0] <= MAX_TAPS && node->ne[1] >= MIN_TOKENS &&
           ggml_nelements(node) > 0;
}

/* to[t][d] = from[d][t] for one block of channels and tokens. */
static void transpose_block(const float *from, int64_t from_stride, float *to, int64_t to_stride,
                            int64_t channels, int64_t tokens)
{
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t d = 0; d < channels; d++) to[t * to_stride + d] = from[d * from_stride + t];
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* x is [D][T], to is [T][D]. */
static void transpose(const float *x, int64_t stride, int64_t D, int64_t T, float *to)
{
    for (int64_t d = 0; d < D; d += BLOCK)
        for (int64_t t = 0; t < T; t += BLOCK)
            transpose_block(x + d * stride + t, stride, to + t * D + d, D, least(BLOCK, D - d),
                            least(BLOCK, T - t));
}

gdn_status gdn_ggml_conv(struct gdn_ggml *backend, const struct ggml_tensor *node)
{
    const struct ggml_tensor *weight = node->src[1];
    const gdn_tensor          x      = gdn_ggml_view(node->src[0], 3);
    const int64_t             past = weight->ne[0] - 1, T = node->ne[1];
    const int64_t             N = x.size[0], D = x.size[1];
    float *tokens = gdn_ggml_room(backend, (size_t)(N * T * D) * sizeof *tokens);
    if (!tokens) return GDN_E_MEMORY;
    for (int64_t n = 0; n < N; n++)
        transpose((const float *)x.data + n * x.stride[0] + past, x.stride[1], D, T,
                  tokens + n * T * D);

    gdn_conv1d_args a     = gdn_conv1d_args_init();
    gdn_batch       batch = gdn_batch_init();
    batch.write           = GDN_WRITE_NONE;
    a.x                   = gdn_dense(tokens, GDN_F32, 3, N, T, D, 0);
    a.weight              = gdn_ggml_view(weight, 2);
    a.state               = x;
    a.state.size[2]       = past;
    a.out                 = gdn_ggml_view(node, 3);
    a.batch               = &batch;
    return gdn_conv1d(backend->ctx, &a);
}
