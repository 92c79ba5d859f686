/* SPDX-License-Identifier: Apache-2.0 */
/* The short convolution of at most one token of each sequence. The four taps lie side by side, and
 * states have three or four entries, as in models. A lane has four channels of a sequence. The time
 * of a small call is that of loading the code, the slot and then its state. So all other loads are
 * issued before that of the slot, and the code is short. */
#ifndef GDN_CUDA_CONV_ONE_CUH
#define GDN_CUDA_CONV_ONE_CUH

#include "cuda/conv/conv_tiles.cuh"

/* Computes the lane's channels of one sequence. A whole warp calls it. alike: weights, bias and
 * states have the dtype of x, and the batch has no arrays of indices but slots; this makes half of
 * the code. n: entries of a state. */
template <int dtype, bool alike, int n>
GDN_DEVICE void one_item(const struct gdn_cu_conv &a, int64_t row)
{
    const int weight = alike ? dtype : a.weight.dtype, bias = alike ? dtype : a.bias.dtype;
    const int from = alike ? dtype : a.from.dtype, to = alike ? dtype : a.to.dtype;
    const struct gdn_four f = find_four(a);
    const int64_t at = a.batch.padded ? row : 0;
    const char *x = row_at(a.x, at, 0) + bytes_to<dtype>(a, a.x, f.from);
    char *out = row_at(a.out, at, 0) + bytes_to<dtype>(a, a.out, f.channel);
    struct gdn_quad quad;
    struct gdn_raw_taps raw;
    struct gdn_taps<4, 4> taps;
    uint32_t bits[n][4];
    float state[n][4], xs[4], y[4] = {};
    float(&past)[3][4] = reinterpret_cast<float(&)[3][4]>(state[n - 3]);
    load_four<dtype>(quad, x, true);
    load_raw_taps(raw, a, f.channel, weight, bias);
    const struct gdn_cu_seq s = read_sequence<alike>(a.batch, row);
    load_state(bits, a.from, s.read, f.channel, from);
    expand_taps(taps, raw, weight, bias);
    expand_state(state, bits, a.from, from);
    unpack<dtype>(xs, quad, a);
    if (!f.is) return;
    if (s.n_valid) {
#pragma unroll
        for (int c = 0; c < 4; c++)
            state[0][c] = state[n - 3][c]; /* of four entries the oldest is
                                                                      left out */
        sum_taps<4>(y, xs, past, taps, a);
    }
    if (s.n_valid || !s.keep_out) store_four<dtype>(out, a, y, true);
    if (leaves_state(a, s)) store_state(state, a.to, s.write, f.channel, to);
}

/* Blocks are numbered by their channels first, then by sequence. */
template <int dtype, bool alike, int n> GDN_DEVICE void one_row(const struct gdn_cu_conv &a)
{
    const int64_t row = blockIdx.y + (int64_t)blockIdx.z * gridDim.y;
    if (row < a.batch.B) one_item<dtype, alike, n>(a, row);
}

template <int dtype, int TAPS> GDN_DEVICE void conv_one(const struct gdn_cu_conv &a)
{
    one_row<dtype, false, 3>(a);
}
template <int dtype, int TAPS> GDN_DEVICE void conv_one_alike(const struct gdn_cu_conv &a)
{
    one_row<dtype, true, 3>(a);
}
template <int dtype, int TAPS> GDN_DEVICE void conv_one_longer(const struct gdn_cu_conv &a)
{
    one_row<dtype, false, 4>(a);
}

#endif
