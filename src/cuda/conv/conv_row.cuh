/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the short convolution that all kinds of items share: a lane's channels of a row, and
 * the sum of a token. The items are in conv_walk.cuh. */
#ifndef GDN_CUDA_CONV_ROW_CUH
#define GDN_CUDA_CONV_ROW_CUH

#include "cuda/conv/args.h"
#include "cuda/device/batch.cuh"
#include "cuda/device/math.cuh"
#include "cuda/device/quad.cuh"

enum { WARPS = 4 }; /* of a block */
enum { apart = -2, floats = -1, f32 = GDN_F32, bf16 = GDN_BF16, f16 = GDN_F16 };

/*
 * Channels of a lane and of a warp. If the dtype of x and out is known when compiling, channels lie
 * side by side, and a lane moves 16 bytes at once. With `floats` the kernel reads the dtypes from
 * its arguments. With `apart` channels may also lie apart.
 */
template <int dtype> struct gdn_width {
    enum { LANE = dtype == GDN_BF16 || dtype == GDN_F16 ? 8 : 4, WARP = 32 * LANE };
};
enum { CHANNELS = gdn_width<floats>::WARP };

extern __shared__ float gdn_conv_shared[];

GDN_DEVICE int64_t item_of_warp(void) { return (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; }

/* ---- Some channels of a row ---------------------------------------------------------------- */

/* The lane's channels: first + j step, for j < n. If a.access is set, step is 1. */
struct gdn_lane {
    int64_t first;
    int step, n;
    int place; /* of the first channel in a row of shared memory */
    int shift; /* place + shift: of the first channel in a row of x */
};

GDN_DEVICE int shift_of(const struct gdn_cu_conv &a, int64_t channel)
{
    if (!a.key_head || channel >= a.D) return 0;
    const int keys = a.Hk * a.K, c = (int)channel, part = c / keys < 2 ? c / keys : 2;
    const int size = part < 2 ? a.K : a.V;
    return (c - part * keys) / size * (a.key_head - size) + part * (a.K - keys);
}

template <int dtype>
GDN_DEVICE struct gdn_lane find_lane(const struct gdn_cu_conv &a, int64_t chunk)
{
    enum { N = gdn_width<dtype>::LANE };
    const int lane = threadIdx.x % 32;
    const bool wide = dtype >= 0 || a.access;
    struct gdn_lane l;
    l.step = wide ? 1 : 32;
    l.place = wide ? N * lane : lane;
    l.first = chunk * (32 * N) + l.place;
    l.n = N;
    while (l.n > 0 && l.first + (l.n - 1) * l.step >= a.D) l.n = wide ? 0 : l.n - 1;
    l.shift = shift_of(a, l.first);
    return l;
}

/* Four elements or 16 bytes as they lie in memory. With `floats` these are four elements, and two
 * of 16 bits share a word. */
struct gdn_quad {
    uint32_t word[4];
};

template <int dtype>
GDN_DEVICE void load_asking(struct gdn_quad &q, const struct gdn_cu_conv &a,
                            const struct gdn_lane &l, const char *p)
{
    const bool is_wide = a.x.dtype == GDN_F32;
    if (a.access && l.n == 0) return;
    if (a.access && is_wide)
        *(uint4 *)q.word = *(const uint4 *)p;
    else if (a.access)
        *(uint2 *)q.word = *(const uint2 *)p;
    if (a.access) return;
    q = {};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (j >= l.n) break;
        const char *const at = p + j * (dtype == apart ? 32 * a.x.head : is_wide ? 128 : 64);
        if (is_wide)
            q.word[j] = *(const uint32_t *)at;
        else
            q.word[j / 2] |= (uint32_t) * (const uint16_t *)at << j % 2 * 16;
    }
}

template <int dtype> GDN_DEVICE int type_of(const struct gdn_cu_conv &a)
{
    return dtype < 0 ? a.x.dtype : dtype;
}

/* Returns the address of an element in a row of x or of out. The lane's channels begin at first +
 * shift in x, and at first in out. */
template <int dtype>
GDN_DEVICE int64_t bytes_to(const struct gdn_cu_conv &a, const struct gdn_rows &r, int64_t element)
{
    return dtype == apart ? element * r.head : element << (type_of<dtype>(a) == GDN_F32 ? 2 : 1);
}

template <int dtype>
GDN_DEVICE void load_quad(struct gdn_quad &q, const struct gdn_cu_conv &a, const struct gdn_lane &l,
                          const char *p)
{
    if (dtype < 0)
        load_asking<dtype>(q, a, l, p);
    else if (l.n)
        *(uint4 *)q.word = *(const uint4 *)p;
}

template <int dtype, int N>
GDN_DEVICE void unpack(float (&x)[N], const struct gdn_quad &q, const struct gdn_cu_conv &a)
{
    const int type = type_of<dtype>(a);
#pragma unroll
    for (int j = 0; j < N; j++) {
        const uint16_t half = (uint16_t)(q.word[j / 2] >> j % 2 * 16);
        x[j] = type == GDN_F32    ? __uint_as_float(q.word[j % 4])
               : type == GDN_BF16 ? bf16_to_f32(half)
                                  : f16_to_f32(half);
    }
}

template <int dtype, int N>
GDN_DEVICE void pack(struct gdn_quad &q, const float (&y)[N], const struct gdn_cu_conv &a)
{
    const int type = type_of<dtype>(a);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (type == GDN_F32)
            q.word[j] = __float_as_uint(y[j]);
        else if (j < N / 2)
            q.word[j] = type == GDN_BF16 ? f32_to_bf16x2(y[2 * j], y[2 * j + 1])
                                         : f32_to_f16x2(y[2 * j], y[2 * j + 1]);
    }
}

template <int dtype, int N>
GDN_DEVICE void store_quad(char *p, const struct gdn_cu_conv &a, const struct gdn_lane &l,
                           const float (&y)[N])
{
    const int type = type_of<dtype>(a);
    struct gdn_quad q = {};
    if (dtype < 0 && !a.access) {
#pragma unroll
        for (int j = 0; j < N; j++)
            if (j < l.n && dtype == apart)
                store_float(p + j * 32 * a.out.head, 0, type, y[j]);
            else if (j < l.n)
                store_float(p, j * 32, type, y[j]);
    } else if (l.n) {
        pack<dtype>(q, y, a);
        if (N == 8 || type == GDN_F32)
            *(uint4 *)p = *(const uint4 *)q.word;
        else
            *(uint2 *)p = *(const uint2 *)q.word;
    }
}

template <int dtype, int N>
GDN_DEVICE void load_row(float (&x)[N], const struct gdn_cu_conv &a, const struct gdn_lane &l,
                         const char *row)
{
    struct gdn_quad q = {};
    load_quad<dtype>(q, a, l, row + bytes_to<dtype>(a, a.x, l.first + l.shift));
    unpack<dtype>(x, q, a);
}

/* Returns token t of a tensor. t counts from the start of a packed tensor, or from that of a row of
 * a padded one. */
GDN_DEVICE char *row_at(const struct gdn_rows &r, int64_t batch, int64_t t)
{
    return r.data + batch * r.batch + t * r.token;
}

/* Returns the lane's channels of a token of out. */
template <int dtype>
GDN_DEVICE char *out_at(const struct gdn_cu_conv &a, const struct gdn_lane &l, int64_t batch,
                        int64_t t)
{
    return row_at(a.out, batch, t) + bytes_to<dtype>(a, a.out, l.first);
}

/* Returns the lane's channels of n tokens of out. */
template <int dtype>
GDN_DEVICE void zero_rows(const struct gdn_cu_conv &a, const struct gdn_lane &l, char *out,
                          int64_t n)
{
    const float zeros[gdn_width<dtype>::LANE] = {};
#pragma unroll 1
    for (; n > 0; n--, out += a.out.token) store_quad<dtype>(out, a, l, zeros);
}

/* ---- The sum ------------------------------------------------------------------------------- */

/* Weights and the inputs before a token, the newest last. If a.W is less than TAPS, the last a.W of
 * each count. */
template <int TAPS, int N> struct gdn_taps {
    float weight[TAPS][N], bias[N];
};

/* Loads the taps. All loads are issued before one is used. */
template <int TAPS, int N>
GDN_DEVICE void load_taps(struct gdn_taps<TAPS, N> &t, const struct gdn_cu_conv &a,
                          const struct gdn_lane &l)
{
    const struct gdn_conv_view &w = a.weight;
    uint32_t weight[TAPS][N], bias[N];
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int64_t channel = l.first + j * l.step;
        bias[j] =
            load_bits(a.bias.data, channel * a.bias.channel, a.bias.dtype, a.bias.data && j < l.n);
#pragma unroll
        for (int i = 0; i < TAPS; i++) {
            const int tap = i - (TAPS - a.W);
            weight[i][j] = load_bits(w.data, channel * w.channel + tap * w.entry, w.dtype,
                                     tap >= 0 && j < l.n);
        }
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
        t.bias[j] = bits_to_f32(bias[j], a.bias.dtype);
#pragma unroll
        for (int i = 0; i < TAPS; i++) t.weight[i][j] = bits_to_f32(weight[i][j], w.dtype);
    }
}

/* Computes y of one token from x, before SiLU, and adds x to the past. If TAPS is 4, all four taps
 * are used, so all must be loaded. */
template <int TAPS, int N>
GDN_DEVICE void add_taps(float (&y)[N], const float (&x)[N], float (&past)[TAPS - 1][N],
                         const struct gdn_taps<TAPS, N> &t, const struct gdn_cu_conv &a)
{
#pragma unroll
    for (int j = 0; j < N; j++) {
        y[j] = t.bias[j];
#pragma unroll
        for (int i = 0; i < TAPS - 1; i++) {
            if (TAPS == 4 || i + a.W >= TAPS) y[j] = fmaf(t.weight[i][j], past[i][j], y[j]);
            past[i][j] = i < TAPS - 2 ? past[i + 1][j] : x[j];
        }
        y[j] = fmaf(t.weight[TAPS - 1][j], x[j], y[j]);
    }
}

template <int TAPS, int N>
GDN_DEVICE void sum_taps(float (&y)[N], const float (&x)[N], float (&past)[TAPS - 1][N],
                         const struct gdn_taps<TAPS, N> &t, const struct gdn_cu_conv &a)
{
    add_taps<TAPS>(y, x, past, t, a);
    if (a.silu) quick_silu(y);
}

/* ---- Tiles of tokens ----------------------------------------------------------------------- */

/* The first and the last token of a tile, in a row of a padded batch or of packed tokens. */
struct gdn_tile {
    int64_t row, first, end;
};

GDN_DEVICE struct gdn_tile find_tile(const struct gdn_cu_conv &a, int64_t tile)
{
    const struct gdn_cu_batch &b = a.batch;
    struct gdn_tile t = { 0, tile * a.tile, 0 };
    if (b.padded) {
        t.row = tile / a.row_tiles;
        t.first = (tile - t.row * a.row_tiles) * a.tile;
    }
    t.end = t.first + a.tile < b.T ? t.first + a.tile : b.T;
    return t;
}

/* Tokens of a tile that belong to one sequence, or to none. Numbers count from the tile's first
 * token. Those in [first, to) are valid; a walk computes the ones before `from`. Outputs of tokens
 * before the first sequence stay as they are. */
struct gdn_run {
    int first, from, to, end, sequence;
    bool keep;
};

/* Returns the run of the sequence that token t of a tile belongs to. */
GDN_DEVICE struct gdn_run find_run(const struct gdn_cu_conv &a, const struct gdn_tile &tile, int t)
{
    const int64_t row = a.batch.padded ? tile.row : find_sequence(a.batch, tile.first + t);
    const int end = (int)(tile.end - tile.first);
    struct gdn_cu_seq s = {};
    if (row >= 0) s = read_sequence(a.batch, row);
    const int64_t first = s.first - tile.first, stop = first - s.n_before + s.n_tokens;
    if (row < 0 && a.batch.B > 0) {
        const int64_t start = load_index(a.batch.cu_seqlens, 0) - tile.first;
        return { t, t, t, (int)clamp64(start, t + 1, end), 0, true };
    }
    if (row < 0 || stop <= t) return { t, t, t, end, 0, false };
    struct gdn_run r;
    r.end = (int)clamp64(stop, 0, end);
    r.first = (int)clamp64(first, -a.W, r.end);
    r.to = (int)clamp64(first + s.n_valid, r.first, r.end);
    r.from = r.first + a.W - 1 > 0 ? r.first + a.W - 1 : 0;
    r.sequence = (int)row;
    r.keep = s.keep_out;
    return r;
}

GDN_DEVICE int clamp(int x, int low, int high) { return x < low ? low : x > high ? high : x; }

#endif
