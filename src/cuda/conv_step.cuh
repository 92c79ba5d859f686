/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The short convolution, one token each of some sequences, whose states pass through shared memory
 * so that they are read and written as they lie in memory: each byte once, lanes side by side.
 */
#ifndef GDN_CUDA_CONV_STEP_CUH
#define GDN_CUDA_CONV_STEP_CUH

#include "conv_row.cuh"

/* The four taps of the lane's channels, side by side in memory. */
GDN_DEVICE void load_taps_at_once(struct gdn_taps<4> &t, const struct gdn_cu_conv &a,
                                  const struct gdn_lane &l)
{
    const struct gdn_conv_view &w = a.weight;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int64_t   channel = l.first + j;
        struct gdn_quad q       = {};
        float           x[4];
        t.bias[j] = 0;
        if (a.bias.data && l.n)
            t.bias[j] = load_float(a.bias.data, channel * a.bias.channel, a.bias.dtype);
        const char *p = w.data + (channel * w.channel << (w.dtype == GDN_F32 ? 2 : 1));
        if (w.dtype == GDN_F32) load_quad<f32>(q, a, l, p), unpack<f32>(x, q, a);
        else if (w.dtype == GDN_BF16) load_quad<bf16>(q, a, l, p), unpack<bf16>(x, q, a);
        else load_quad<f16>(q, a, l, p), unpack<f16>(x, q, a);
#pragma unroll
        for (int i = 0; i < 4; i++) t.weight[i][j] = x[i];
    }
}

/* What a warp that steps has: its channels, and in shared memory their states, a quad's bytes
 * apart. */
struct gdn_step {
    struct gdn_lane lane;
    int64_t         channel; /* the first of the warp's n, */
    int             n, unit; /* unit: bytes of a quad */
    char           *quads;
};

/* Quad i of the warp's part of a state, i < 3 x 32, in the order of memory if its entries lie side
 * by side, else by entries; NULL: beyond it. */
GDN_DEVICE char *quad_at(const struct gdn_step &w, const struct gdn_conv_view &v, int64_t slot,
                         int i)
{
    const bool by_entry = v.entry == 1;
    if (by_entry ? 4 * i >= 3 * w.n : i % 32 * 4 >= w.n) return NULL;
    const int64_t at = by_entry ? w.channel * 3 + 4 * i
                                : w.channel + i % 32 * 4 + i / 32 * v.entry;
    return v.data + (slot * v.slot + at) * (w.unit / 4);
}

template <int dtype> GDN_DEVICE void put_quad(char *p, const struct gdn_quad &q)
{
    if (dtype == GDN_F32) *(uint4 *)p = *(const uint4 *)q.word;
    else *(uint2 *)p = *(const uint2 *)q.word;
}

/* The state as it lies in memory, three quads of a lane. */
template <int dtype>
GDN_DEVICE void load_step(struct gdn_quad (&q)[3], const struct gdn_cu_conv &a,
                          const struct gdn_step &w, int64_t slot)
{
    struct gdn_lane all = w.lane;
    all.n               = 4;
#pragma unroll
    for (int j = 0; j < 3; j++) {
        q[j] = {};
        const char *p = a.from.data && slot >= 0
                            ? quad_at(w, a.from, slot, j * 32 + threadIdx.x % 32) : NULL;
        if (p) load_quad<dtype>(q[j], a, all, p);
    }
}

/* From there to the past of the lane's channels. */
template <int dtype>
GDN_DEVICE void turn_in(float (&past)[3][4], const struct gdn_quad (&q)[3],
                        const struct gdn_cu_conv &a, const struct gdn_step &w)
{
    const int lane = threadIdx.x % 32;
    float     x[12];
#pragma unroll
    for (int j = 0; j < 3; j++) put_quad<dtype>(w.quads + (j * 32 + lane) * w.unit, q[j]);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 3; j++) {
        struct gdn_quad own = {};
        struct gdn_lane all = w.lane;
        float           y[4];
        all.n               = 4;
        const int i         = a.from.entry == 1 ? lane * 3 + j : j * 32 + lane;
        load_quad<dtype>(own, a, all, w.quads + i * w.unit);
        unpack<dtype>(y, own, a);
#pragma unroll
        for (int c = 0; c < 4; c++) x[j * 4 + c] = y[c];
    }
    const bool by_entry = a.from.entry == 1;
#pragma unroll
    for (int i = 0; i < 3; i++)
#pragma unroll
        for (int c = 0; c < 4; c++) past[i][c] = by_entry ? x[c * 3 + i] : x[i * 4 + c];
    __syncwarp();
}

/* And back, to a slot. */
template <int dtype>
GDN_DEVICE void store_step(const struct gdn_cu_conv &a, const struct gdn_step &w,
                           const float (&past)[3][4], int64_t slot)
{
    const int       lane = threadIdx.x % 32;
    const bool      by_entry = a.to.entry == 1;
    struct gdn_lane all = w.lane;
    all.n               = 4;
#pragma unroll
    for (int j = 0; j < 3; j++) {
        float y[4];
#pragma unroll
        for (int c = 0; c < 4; c++)
            y[c] = by_entry ? past[(j * 4 + c) % 3][(j * 4 + c) / 3] : past[j][c];
        store_quad<dtype>(w.quads + (by_entry ? lane * 3 + j : j * 32 + lane) * w.unit, a, all, y);
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 3; j++) {
        struct gdn_quad q;
        char           *p = quad_at(w, a.to, slot, j * 32 + lane);
        load_quad<dtype>(q, a, all, w.quads + (j * 32 + lane) * w.unit);
        if (p) put_quad<dtype>(p, q);
    }
}

template <int dtype>
GDN_DEVICE void step_row(const struct gdn_cu_conv &a, const struct gdn_step &w,
                         const struct gdn_taps<4> &taps, int64_t row)
{
    const struct gdn_cu_seq s = read_sequence(a.batch, row);
    struct gdn_quad         q[3];
    float                   past[3][4], x[4] = {}, y[4];
    const bool writes = s.write >= 0 && a.to.data &&
                        (s.n_valid || a.from.data != a.to.data || s.read != s.write);
    if (s.n_tokens == 0) return;
    if (s.n_valid) load_row<dtype>(x, a, w.lane, row_at(a.x, s.batch, s.first));
    load_step<dtype>(q, a, w, s.read);
    turn_in<dtype>(past, q, a, w);
    if (s.n_valid) {
        sum_taps<4>(y, x, past, taps, a);
        store_quad<dtype>(row_at(a.out, s.batch, s.first) + bytes_to<dtype>(a, w.lane.first), a,
                          w.lane, y);
    } else if (!s.keep_out) {
        zero_rows(a, w.lane, s.batch, s.first - s.n_before, s.first - s.n_before + s.n_tokens);
    }
    if (writes) store_step<dtype>(a, w, past, s.write);
}

template <int dtype, int TAPS> GDN_DEVICE void conv_step(const struct gdn_cu_conv &a)
{
    const int64_t item = item_of_warp(), chunks = (a.D + CHANNELS - 1) / CHANNELS;
    if (item >= a.n_items) return;
    struct gdn_taps<4> taps;
    struct gdn_step    w = {};
    w.lane    = find_lane(a, item % chunks);
    w.channel = item % chunks * CHANNELS;
    w.n       = a.D - w.channel < CHANNELS ? (int)(a.D - w.channel) : CHANNELS;
    w.unit    = dtype == GDN_F32 ? 16 : 8;
    w.quads   = (char *)gdn_conv_shared + threadIdx.x / 32 * 3 * 32 * w.unit;
    load_taps_at_once(taps, a, w.lane);
    const int64_t first = item / chunks * a.n_steps;
#pragma unroll 1
    for (int64_t row = first; row < first + a.n_steps && row < a.batch.B; row++)
        step_row<dtype>(a, w, taps, row);
}

#endif
