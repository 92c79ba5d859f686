/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles between registers and pools of any dtype, which is known when the kernel runs. Kernels that
 * do more than the chains of general.cuh use it. A thread has elements of four columns of V. All of
 * its elements of a column belong to the same one of the block's 32 columns. */
#ifndef GDN_CUDA_DECODE_POOL_CUH
#define GDN_CUDA_DECODE_POOL_CUH

#include "cuda/decode/general.cuh"
#include "cuda/device/q8.cuh"

/* Return which of the thread's four columns element e of chunk n is in; that column, counted from
 * the block's first; and the element's number in k. */
template <class Tile> GDN_DEVICE int nth_column(int n, int e)
{
    return Tile::K_FIRST ? e : n / (Tile::N / 4);
}
template <class Tile> GDN_DEVICE int v_of(int n, int e)
{
    return Tile::K_FIRST ? Tile::column() + e : Tile::row() + Tile::row_step(n);
}
template <class Tile> GDN_DEVICE int k_of(int n, int e)
{
    return Tile::K_FIRST ? Tile::row() + Tile::row_step(n)
                         : Tile::column() + Tile::column_step(n) + e;
}

/* The codes of a tile, four in a word, and the scales of the block's columns. */
template <class Tile> struct decode_codes {
    uint32_t x[Tile::N];
};
struct decode_scales {
    uint32_t largest[DECODE_COLUMNS], key[DECODE_COLUMNS];
    float scale[DECODE_COLUMNS], inverse[DECODE_COLUMNS];
};

/* A place in a pool, and its scales if it has 8 bits. */
struct decode_slot {
    struct decode_place p;
    float *scales; /* from the block's first column on; NULL: none */
};

template <class Tile>
GDN_DEVICE struct decode_slot slot_of(const struct gdn_cu_walk &a, const struct decode_work &w,
                                      const struct gdn_pool_view &view, int64_t slot, int wide)
{
    struct decode_slot s;
    s.p = place_of<Tile>(a.decode, w, view, slot, wide);
    s.scales = view.scales
                   ? view.scales + slot * view.scales_slot + w.head * view.scales_head + w.column
                   : NULL;
    return s;
}

/* ---- Codes ----------------------------------------------------------------------------------- */

template <class Tile>
GDN_DEVICE void load_codes(struct decode_codes<Tile> &to, struct decode_scales &scales,
                           const struct decode_slot &from)
{
    const int n_columns = Tile::K_FIRST ? from.p.columns : from.p.rows, v = threadIdx.x;
    for (int n = 0; n < Tile::N; n++) {
        bool there;
        const char *at = chunk_at<Tile>(from.p, n, there);
        to.x[n] = ld_b32_b16(at, there && from.p.wide, false);
        for (int e = 0; e < 4 && !from.p.wide; e++)
            if (there && Tile::column() + Tile::column_step(n) + e < from.p.columns)
                to.x[n] |= (uint32_t)(uint8_t)at[e * from.p.column_step] << 8 * e;
    }
    __syncthreads(); /* other threads may still read scales of the state before */
    if (v < DECODE_COLUMNS) scales.scale[v] = v >= n_columns ? 0 : from.scales ? from.scales[v] : 1;
    __syncthreads();
}

template <class Tile>
GDN_DEVICE void store_codes(const struct decode_slot &to, const struct decode_codes<Tile> &from,
                            const struct decode_scales &scales)
{
    const int n_columns = Tile::K_FIRST ? to.p.columns : to.p.rows, v = threadIdx.x;
    for (int n = 0; n < Tile::N; n++) {
        bool there;
        char *const at = chunk_at<Tile>(to.p, n, there);
        if (there && to.p.wide) *(uint32_t *)at = from.x[n];
        for (int e = 0; e < 4 && !to.p.wide; e++)
            if (there && Tile::column() + Tile::column_step(n) + e < to.p.columns)
                at[e * to.p.column_step] = (char)(from.x[n] >> 8 * e);
    }
    if (to.scales && v < n_columns) to.scales[v] = scales.scale[v];
}

template <class Tile>
GDN_DEVICE void decode_8bit(Tile &tile, const struct decode_codes<Tile> &from,
                            const struct decode_scales &scales, int dtype)
{
    for (int n = 0; n < Tile::N; n++)
        for (int e = 0; e < 4; e++)
            tile.S[n][e] =
                eight_value(from.x[n] >> 8 * e & 255, dtype) * scales.scale[v_of<Tile>(n, e)];
}

/* Finds the largest magnitude of each column. The result does not depend on the order of
 * threads. */
template <class Tile> GDN_DEVICE void find_largest(struct decode_scales &scales, const Tile &tile)
{
    uint32_t m[4] = {};
    for (int n = 0; n < Tile::N; n++)
        for (int e = 0; e < 4; e++) {
            uint32_t &largest = m[nth_column<Tile>(n, e)];
            largest = max(largest, magnitude(tile.S[n][e]));
        }
    __syncthreads();
    if (threadIdx.x < DECODE_COLUMNS) scales.largest[threadIdx.x] = 0;
    __syncthreads();
    for (int i = 0; i < 4; i++) atomicMax(&scales.largest[v_of<Tile>(i * (Tile::N / 4), i)], m[i]);
    __syncthreads();
}

/* Encodes the state after n_tokens as 8 bits, with the rounding of the view. */
template <class Tile>
GDN_DEVICE void encode_8bit(struct decode_codes<Tile> &to, struct decode_scales &scales,
                            const Tile &tile, const struct decode_work &w,
                            const struct gdn_pool_view &view, int64_t n_tokens)
{
    const int v = threadIdx.x;
    find_largest(scales, tile);
    if (v < DECODE_COLUMNS) {
        const struct eight_scale s = eight_scale_of(scales.largest[v], view.dtype, view.scales);
        scales.scale[v] = s.scale;
        scales.inverse[v] = s.inverse;
        scales.key[v] = eight_key(view.seed, n_tokens, w.head, w.column + v);
    }
    __syncthreads();
    for (int n = 0; n < Tile::N; n++) {
        to.x[n] = 0;
        for (int e = 0; e < 4; e++) {
            const int i = v_of<Tile>(n, e);
            const uint32_t h = eight_draw(scales.key[i], k_of<Tile>(n, e));
            to.x[n] |= eight_code(tile.S[n][e], scales.inverse[i], h, view.random, view.dtype)
                       << 8 * e;
        }
    }
}

/* Copies bits and scales, as copy_part() copies bits. */
GDN_DEVICE void copy_codes(const struct decode_slot &to, const struct decode_slot &from,
                           int n_columns)
{
    if (to.p.data == from.p.data) return;
#pragma unroll 1
    for (int i = threadIdx.x; i < to.p.rows * to.p.columns; i += DECODE_THREADS) {
        const int r = i / to.p.columns, c = i % to.p.columns;
        to.p.data[r * to.p.row_step + c * to.p.column_step] =
            from.p.data[r * from.p.row_step + c * from.p.column_step];
    }
    if (to.scales && threadIdx.x < n_columns) to.scales[threadIdx.x] = from.scales[threadIdx.x];
    __syncthreads();
}

#endif
