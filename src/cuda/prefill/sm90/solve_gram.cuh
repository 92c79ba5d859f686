/* SPDX-License-Identifier: Apache-2.0 */
/* Makes -(B A)^T in f16 from products of keys, for the inverse (warps_solve.cuh), and P, for the
 * state. A warp has 16 rows of K K^T and K Q^T with all 64 columns, in blocks of 16 x 16, and
 * writes them transposed. It needs the diagonal block of both. K K^T is symmetric, so it needs the
 * columns up to its rows; of K Q^T it needs the columns from its rows on. That is five blocks for
 * every warp. */
#ifndef GDN_CUDA_PREFILL_HOPPER_ROWS_CUH
#define GDN_CUDA_PREFILL_HOPPER_ROWS_CUH

#include "cuda/prefill/sm90/kernel.cuh"

/* Loads the values of the lane's columns of a block. */
GDN_DEVICE void load_pairs(float2 (&x)[2], const float *of)
{
    x[0] = *(const float2 *)of, x[1] = *(const float2 *)(of + 8);
}

/* Return the place of a lane's part of a block of 16 x 16 at the start of a tile; and turned. */
GDN_DEVICE uint32_t block_lane(uint32_t lane) { return tile_place(lane % 16, 0) ^ lane / 16 << 4; }
GDN_DEVICE uint32_t turned_lane(uint32_t lane)
{
    return tile_place(lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8);
}

/* Stores a transposed block: rows `row` of the tile, at `at` in them. */
GDN_DEVICE void store_turned(uint32_t tile, int row, uint32_t at, const uint32_t (&x)[4])
{
    store_matrices_turned(tile + row * 16 * 128 + at, x[0], x[1], x[2], x[3]);
}

/* Sets the tokens after the output's to zero in a diagonal block of P, whatever they hold. */
GDN_DEVICE void cut_diagonal(uint32_t (&x)[4], uint32_t lane)
{
    const uint32_t column = lane % 4 * 2;
    const uint32_t keep =
        (column >= lane / 4 ? 0xffffu : 0u) | (column + 1 >= lane / 4 ? 0xffff0000u : 0u);
    x[0] &= keep, x[1] = 0, x[3] &= keep;
}

/* Packs a block of the square: products of keys times the factors f of rows; of P: times the
 * factors `of` of columns. */
GDN_DEVICE void pack_keys(uint32_t (&y)[4], const float *x, const float (&f)[2])
{
#pragma unroll
    for (int i = 0; i < 4; i++) y[i] = f32_to_f16x2(x[2 * i] * f[i % 2], x[2 * i + 1] * f[i % 2]);
}
template <class format>
GDN_DEVICE void pack_queries(uint32_t (&y)[4], const float *x, const float *of)
{
    float2 c[2];
    load_pairs(c, of);
#pragma unroll
    for (int i = 0; i < 4; i++)
        y[i] = format::pair(x[2 * i] * c[i / 2].x, x[2 * i + 1] * c[i / 2].y);
}

/* Writes the warp's columns of the square, -(B A)^T, from products of its keys with all keys (x)
 * and the factors f of its rows, and of P from products with queries (x + 32). All warps share the
 * code of a block, so it is in the instruction cache once. */
template <int io, bool keys, bool queries>
GDN_DEVICE void write_columns(const hopper_gates &g, const float (&f)[2], const float (&x)[64],
                              uint32_t square, uint32_t tile, int warp, uint32_t lane)
{
    typedef hopper_format<io> format;
    const uint32_t at = turned_lane(lane) ^ (uint32_t)warp << 5;
    const float *o_scale = g.o_scale + lane % 4 * 2;
    uint32_t y[4];
#pragma unroll
    for (int s = 0; s < 4; s++) {
        if (keys && in_warp(s <= warp)) {
            pack_keys(y, x + 8 * s, f);
            store_turned(square, s, at, y);
        }
        if (queries && in_warp(s >= warp)) {
            pack_queries<format>(y, x + 32 + 8 * s, o_scale + 16 * s);
            if (in_warp(s == warp)) cut_diagonal(y, lane);
            store_turned(tile, s, at, y);
        }
    }
}

/* If rest differs between tokens (kernel.cuh), multiplies blocks [from, to) of the warp's columns
 * of a written tile by exp of the difference, from the sooner token to the later one. The tile is
 * the square (keys), in which a row's token is the later one, or P. This is rare, so it is a loop:
 * on products in registers it would be much code. The square is not read on the other side of the
 * diagonal. P is zero there, and stays zero with any factor. */
template <class format, bool keys>
GDN_DEVICE void gate_columns(const hopper_gates &g, uint32_t tile, int from, int to, int warp,
                             uint32_t lane)
{
    const float *rest = g.rest + 16 * warp + lane / 4, *of = g.rest + lane % 4 * 2;
    const float own[2] = { rest[0], rest[8] };
    const uint32_t at = turned_lane(lane) ^ (uint32_t)warp << 5;
    __syncwarp();
#pragma unroll 1
    for (int s = from; s < to; s++) {
        float2 c[2];
        uint32_t y[4];
        load_matrices_turned(y, tile + s * 16 * 128 + at);
        load_pairs(c, of + 16 * s);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float r = own[i % 2];
            const float low = keys ? mma_format_f16::low(y[i]) : format::low(y[i]);
            const float high = keys ? mma_format_f16::high(y[i]) : format::high(y[i]);
            const float d[2] = { keys ? r - c[i / 2].x : c[i / 2].x - r,
                                 keys ? r - c[i / 2].y : c[i / 2].y - r };
            const float x = keys || low != 0 ? low * ex2_approx(d[0]) : 0;
            const float z = keys || high != 0 ? high * ex2_approx(d[1]) : 0;
            y[i] = keys ? f32_to_f16x2(x, z) : format::pair(x, z);
        }
        store_turned(tile, s, at, y);
    }
}

/* Writes zeros to elements between tokens that a gate separates by forgetting. Each warp clears
 * its columns. */
GDN_DEVICE void part_columns(const hopper_gates &g, uint32_t tile, int warp, uint32_t lane)
{
    const token_mask resets = tokens_of(g.resets);
    __syncwarp();
#pragma unroll 1
    for (uint32_t e = opaque(lane); e < 16 * 64; e += 32) {
        const int i = e / 16, j = 16 * warp + e % 16;
        if (i != j && are_parted(resets, min(i, j), max(i, j)))
            store_shared_u16(tile + tile_place(i, j), 0);
    }
}

#endif
