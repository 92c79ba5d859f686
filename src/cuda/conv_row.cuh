/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The short convolution: what every kind of item has in common, a lane's four channels of a row
 * and the sum of a token. See conv.cu.
 */
#ifndef GDN_CUDA_CONV_ROW_CUH
#define GDN_CUDA_CONV_ROW_CUH

#include "batch.cuh"
#include "math.cuh"

enum { CHANNELS = 128, WARPS = 4, KEPT = 8 }; /* of a warp; of a block; entries, at most */
enum { floats = -1, f32 = GDN_F32, bf16 = GDN_BF16, f16 = GDN_F16 };

extern __shared__ float gdn_conv_shared[];

GDN_DEVICE int64_t item_of_warp(void)
{
    return (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
}

/* ---- Four channels of a row ---------------------------------------------------------------- */

/* The lane's channels: first + j step for j < n. Side by side if a.access. */
struct gdn_lane {
    int64_t first;
    int     step, n;
    int     place; /* of the first in a row of shared memory */
    int     shift; /* how much further it is in a row of x */
};

GDN_DEVICE int shift_of(const struct gdn_cu_conv &a, int64_t channel)
{
    if (!a.key_head || channel >= a.D) return 0;
    const int keys = a.Hk * a.K, c = (int)channel, part = c / keys < 2 ? c / keys : 2;
    const int size = part < 2 ? a.K : a.V;
    return (c - part * keys) / size * (a.key_head - size) + part * (a.K - keys);
}

GDN_DEVICE struct gdn_lane find_lane(const struct gdn_cu_conv &a, int64_t chunk)
{
    const int       lane = threadIdx.x % 32;
    struct gdn_lane l    = { chunk * CHANNELS + lane, 32, 4, lane };
    if (a.access) l.first = chunk * CHANNELS + 4 * lane, l.step = 1, l.place = 4 * lane;
    while (l.n > 0 && l.first + (l.n - 1) * l.step >= a.D) l.n--;
    l.shift = shift_of(a, l.first);
    return l;
}

/* Four elements as they lie in memory: float32, or the first two words with pairs. */
struct gdn_quad {
    uint32_t word[4];
};

/*
 * The dtype of x and out is known when compiling, and then a.access is set; or it is `floats`, and
 * everything is asked.
 */
GDN_DEVICE void load_asking(struct gdn_quad &q, const struct gdn_cu_conv &a,
                            const struct gdn_lane &l, const char *p)
{
    const bool is_wide = a.x.dtype == GDN_F32;
    if (a.access && l.n == 0) return;
    if (a.access && is_wide) *(uint4 *)q.word = *(const uint4 *)p;
    else if (a.access) *(uint2 *)q.word = *(const uint2 *)p;
    if (a.access) return;
    q = {};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (j >= l.n) break;
        if (is_wide) q.word[j] = ((const uint32_t *)p)[j * 32];
        else q.word[j / 2] |= (uint32_t)((const uint16_t *)p)[j * 32] << j % 2 * 16;
    }
}

/* Where an element of a row of x or out is: the lane's begin at first + shift and at first. */
template <int dtype> GDN_DEVICE int64_t bytes_to(const struct gdn_cu_conv &a, int64_t element)
{
    return element << ((dtype == floats ? a.x.dtype : dtype) == GDN_F32 ? 2 : 1);
}

template <int dtype>
GDN_DEVICE void load_quad(struct gdn_quad &q, const struct gdn_cu_conv &a, const struct gdn_lane &l,
                          const char *p)
{
    if (dtype == floats) load_asking(q, a, l, p);
    else if (dtype == GDN_F32 && l.n) *(uint4 *)q.word = *(const uint4 *)p;
    else if (l.n) *(uint2 *)q.word = *(const uint2 *)p;
}

template <int dtype>
GDN_DEVICE void unpack(float (&x)[4], const struct gdn_quad &q, const struct gdn_cu_conv &a)
{
    const int type = dtype == floats ? a.x.dtype : dtype;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint16_t half = (uint16_t)(q.word[j / 2] >> j % 2 * 16);
        x[j] = type == GDN_F32    ? __uint_as_float(q.word[j])
               : type == GDN_BF16 ? bf16_to_f32(half)
                                  : f16_to_f32(half);
    }
}

template <int dtype>
GDN_DEVICE void store_quad(char *p, const struct gdn_cu_conv &a, const struct gdn_lane &l,
                           const float (&y)[4])
{
    const int type = dtype == floats ? a.x.dtype : dtype;
    if (dtype == floats && !a.access) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (j < l.n) store_float(p, j * 32, type, y[j]);
    } else if (l.n == 0) {
        return;
    } else if (type == GDN_F32) {
        *(float4 *)p = make_float4(y[0], y[1], y[2], y[3]);
    } else if (type == GDN_BF16) {
        *(uint2 *)p = make_uint2(f32_to_bf16x2(y[0], y[1]), f32_to_bf16x2(y[2], y[3]));
    } else {
        *(uint2 *)p = make_uint2(f32_to_f16x2(y[0], y[1]), f32_to_f16x2(y[2], y[3]));
    }
}

template <int dtype>
GDN_DEVICE void load_row(float (&x)[4], const struct gdn_cu_conv &a, const struct gdn_lane &l,
                         const char *row)
{
    struct gdn_quad q = {};
    load_quad<dtype>(q, a, l, row + bytes_to<dtype>(a, l.first + l.shift));
    unpack<dtype>(x, q, a);
}

/* Token t of a tensor, counted from the start of a packed tensor or of a row of a padded one. */
GDN_DEVICE char *row_at(const struct gdn_rows &r, int64_t batch, int64_t t)
{
    return r.data + batch * r.batch + t * r.token;
}

GDN_DEVICE void zero_rows(const struct gdn_cu_conv &a, const struct gdn_lane &l, int64_t batch,
                          int64_t t, int64_t end)
{
    const float zeros[4] = { 0, 0, 0, 0 };
#pragma unroll 1
    for (; t < end; t++)
        store_quad<floats>(row_at(a.out, batch, t) + bytes_to<floats>(a, l.first), a, l, zeros);
}

/* ---- The sum ------------------------------------------------------------------------------- */

/* Weights and earlier inputs, aligned to the newest: of TAPS the last a.W count. */
template <int TAPS> struct gdn_taps {
    float weight[TAPS][4], bias[4];
};

template <int TAPS>
GDN_DEVICE void load_taps(struct gdn_taps<TAPS> &t, const struct gdn_cu_conv &a,
                          const struct gdn_lane &l)
{
    const struct gdn_conv_view &w = a.weight;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int64_t channel = l.first + j * l.step;
        t.bias[j]             = 0;
        if (a.bias.data && j < l.n)
            t.bias[j] = load_float(a.bias.data, channel * a.bias.channel, a.bias.dtype);
#pragma unroll
        for (int i = 0; i < TAPS; i++) {
            const int tap = i - (TAPS - a.W);
            t.weight[i][j] = 0;
            if (tap >= 0 && j < l.n)
                t.weight[i][j] = load_float(w.data, channel * w.channel + tap * w.entry, w.dtype);
        }
    }
}

/* One token: y from x; x joins the past. Four taps are all there. */
template <int TAPS>
GDN_DEVICE void sum_taps(float (&y)[4], const float (&x)[4], float (&past)[TAPS - 1][4],
                         const struct gdn_taps<TAPS> &t, const struct gdn_cu_conv &a)
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
        y[j] = t.bias[j];
#pragma unroll
        for (int i = 0; i < TAPS - 1; i++) {
            if (TAPS == 4 || i + a.W >= TAPS) y[j] = fmaf(t.weight[i][j], past[i][j], y[j]);
            past[i][j] = i < TAPS - 2 ? past[i + 1][j] : x[j];
        }
        y[j] = fmaf(t.weight[TAPS - 1][j], x[j], y[j]);
    }
    if (a.silu) quick_silu(y);
}

/* Tokens [t, end) after those of the past. A row is on its way while the AHEAD ones before it are
 * computed. */
template <int dtype, int TAPS>
GDN_DEVICE void convolve(const struct gdn_cu_conv &a, const struct gdn_lane &l,
                         const struct gdn_cu_seq &s, float (&past)[TAPS - 1][4], int64_t t,
                         int64_t end)
{
    enum { AHEAD = dtype == floats ? 2 : dtype == GDN_F32 ? 4 : 8 };
    struct gdn_taps<TAPS> taps;
    struct gdn_quad       ring[AHEAD] = {};
    const char *x = row_at(a.x, s.batch, s.first + t) + bytes_to<dtype>(a, l.first + l.shift);
    char       *out = row_at(a.out, s.batch, s.first + t) + bytes_to<dtype>(a, l.first);
    int64_t               left = end - t;
    float                 y[4], xs[4];
#pragma unroll
    for (int u = 0; u < AHEAD; u++, x += a.x.token)
        if (u < left) load_quad<dtype>(ring[u], a, l, x);
    load_taps(taps, a, l);
#pragma unroll 1
    for (; left >= AHEAD; left -= AHEAD)
#pragma unroll
        for (int u = 0; u < AHEAD; u++, x += a.x.token, out += a.out.token) {
            unpack<dtype>(xs, ring[u], a);
            if (u + AHEAD < left) load_quad<dtype>(ring[u], a, l, x);
            sum_taps<TAPS>(y, xs, past, taps, a);
            store_quad<dtype>(out, a, l, y);
        }
#pragma unroll
    for (int u = 0; u < AHEAD - 1; u++, out += a.out.token) {
        if (u >= left) break;
        unpack<dtype>(xs, ring[u], a);
        sum_taps<TAPS>(y, xs, past, taps, a);
        store_quad<dtype>(out, a, l, y);
    }
}

#endif
