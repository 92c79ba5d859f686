/* SPDX-License-Identifier: Apache-2.0 */
/* The short convolution of tokens that lie side by side, channels first. A lane has a token, and a
 * warp goes through some channels, so it loads and stores tokens that follow each other. Each input
 * is loaded by the W tokens that need it. This kernel writes no states: a walk does afterwards. */
#ifndef GDN_CUDA_CONV_TURNED_CUH
#define GDN_CUDA_CONV_TURNED_CUH

#include "cuda/conv/conv_row.cuh"

enum { TURNED = 16 }; /* channels of a warp */

/* The lane's token. first: the first valid token of its sequence, counted from the tile's first
 * token, or some number too far back to matter. read: the slot of the state before it; -1:
 * zeros. */
struct gdn_turned {
    int first;
    bool valid, keep;
    int64_t read;
};

GDN_DEVICE struct gdn_turned find_turned(const struct gdn_cu_conv &a, const struct gdn_tile &tile)
{
    const int lane = threadIdx.x % 32, end = (int)(tile.end - tile.first);
    struct gdn_turned m = { 0, false, true, -1 };
#pragma unroll 1
    for (int t = 0; t < end;) {
        const struct gdn_run r = find_run(a, tile, t);
        const bool asks = a.from.data && r.first < r.to && r.first + a.W - 1 > t;
        const int64_t read = asks ? read_sequence(a.batch, r.sequence).read : -1;
        if (lane >= t && lane < r.end)
            m = { r.first, lane >= r.first && lane < r.to, r.keep, read };
        t = r.end;
    }
    return m;
}

/* Returns input t of a channel. If t < 0, it is an entry of the state. x: the address of input
 * 0. */
GDN_DEVICE float turned_input(const struct gdn_cu_conv &a, const struct gdn_turned &m,
                              const char *x, int64_t channel, int t)
{
    const struct gdn_conv_view &v = a.from;
    if (t >= 0) return load_float(x + t * a.x.token, 0, a.x.dtype);
    if (m.read < 0 || v.length + t < 0) return 0;
    return load_float(v.data, m.read * v.slot + channel * v.channel + (v.length + t) * v.entry,
                      v.dtype);
}

GDN_DEVICE float turned_sum(const struct gdn_cu_conv &a, const struct gdn_turned &m, const char *x,
                            int64_t channel, int t)
{
    const struct gdn_conv_view &w = a.weight;
    float y[1] = { 0 };
    if (a.bias.data) y[0] = load_float(a.bias.data, channel * a.bias.channel, a.bias.dtype);
#pragma unroll 4
    for (int i = 0; i < a.W; i++)
        y[0] = fmaf(load_float(w.data, channel * w.channel + i * w.entry, w.dtype),
                    turned_input(a, m, x, channel, t - a.W + 1 + i), y[0]);
    if (a.silu) quick_silu(y);
    return y[0];
}

template <int dtype, int TAPS> GDN_DEVICE void conv_turned(const struct gdn_cu_conv &a)
{
    const int64_t item = item_of_warp(), chunks = (a.D + TURNED - 1) / TURNED;
    const int64_t index = item / chunks, first = (item - index * chunks) * TURNED;
    if (item >= a.n_items) return;
    const struct gdn_tile tile = find_tile(a, index);
    const struct gdn_turned m = find_turned(a, tile);
    const int64_t end = first + TURNED < a.D ? first + TURNED : a.D;
    const int t = threadIdx.x % 32 - m.first;
    const char *x = row_at(a.x, tile.row, tile.first + m.first);
    char *out = row_at(a.out, tile.row, tile.first + threadIdx.x % 32);
    if (m.keep && !m.valid) return;
#pragma unroll 1
    for (int64_t c = first; c < end; c++)
        store_float(out + c * a.out.head, 0, a.out.dtype,
                    m.valid ? turned_sum(a, m, x + c * a.x.head, c, t) : 0);
}

#endif
