/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What products of keys become: -(B A)^T, f16, for the inverse (prefill_hopper_solve.cuh), and P, for the
 * state. A warp has 16 rows of K K^T and K Q^T, of all 64 columns, in blocks of 16 x 16, and writes them
 * turned. Of both it needs the block of the diagonal; of K K^T, as it is symmetric, the columns up to its
 * rows' then, and of K Q^T those from there: five blocks of every warp.
 */
#ifndef GDN_CUDA_PREFILL_HOPPER_ROWS_CUH
#define GDN_CUDA_PREFILL_HOPPER_ROWS_CUH

#include "prefill_hopper.cuh"

/* Of the lane's columns of a block. */
GDN_DEVICE void load_pairs(float2 (&x)[2], const float *of)
{
    x[0] = *(const float2 *)of, x[1] = *(const float2 *)(of + 8);
}

/* Where a lane reads and writes a block of 16 x 16, at the start of a tile; and turned. */
GDN_DEVICE uint32_t block_lane(int lane)
{
    return tile_place(lane % 16, 0) ^ lane / 16 << 4;
}
GDN_DEVICE uint32_t turned_lane(int lane)
{
    return tile_place(lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8);
}

/* beta, over the square of the key's length. */
GDN_DEVICE float beta_of(const hopper_gates &g, int t)
{
    return g.beta[t] * g.k_scale[t] * g.k_scale[t];
}

/* A block, turned: rows `row` of the tile, at `at` of them. */
GDN_DEVICE void store_turned(uint32_t tile, int row, uint32_t at, const uint32_t (&x)[4])
{
    store_matrices_turned(tile + row * 16 * 128 + at, x[0], x[1], x[2], x[3]);
}

/* The block of the diagonal of P: tokens after the output's are cut off whatever they hold. */
GDN_DEVICE void store_p_diagonal(uint32_t tile, int row, uint32_t at, const uint32_t (&x)[4], int lane)
{
    const int      column = lane % 4 * 2;
    const uint32_t keep = (column >= lane / 4 ? 0xffffu : 0u) |
                          (column + 1 >= lane / 4 ? 0xffff0000u : 0u);
    store_matrices_turned(tile + row * 16 * 128 + at, x[0] & keep, 0, x[2], x[3] & keep);
}

/* A block of the square: products of keys times factors of rows, f; one of P: times its columns', of. */
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
    for (int i = 0; i < 4; i++) y[i] = format::pair(x[2 * i] * c[i / 2].x, x[2 * i + 1] * c[i / 2].y);
}

/* Of what the warp's rows are of all blocks, that of the diagonal: the first of x is of block 0. */
GDN_DEVICE void take_diagonal(float (&z)[8], const float *x, int warp)
{
    const bool odd = warp & 1, high = warp & 2;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float low = odd ? x[8 + i] : x[i], up = odd ? x[24 + i] : x[16 + i];
        z[i] = high ? up : low;
    }
}

/*
 * The warp's columns of the square, -(B A)^T, from products of its keys with all (x) and the factors f of
 * its rows, and of P from those with queries (x + 32). At each edge between blocks a warp whose rows are
 * behind it has the block before it, of the first, and one whose rows are before it the block behind it, of
 * the second.
 */
template <int io, bool keys, bool queries>
GDN_DEVICE void write_columns(const hopper_gates &g, const float (&f)[2], const float (&x)[64],
                              uint32_t square, uint32_t tile, int warp, int lane)
{
    typedef hopper_format<io> format;
    const uint32_t            at = turned_lane(lane) ^ (uint32_t)warp << 5;
    const float              *o_scale = g.o_scale + lane % 4 * 2;
    uint32_t                  y[4];
    float                     z[8];
    if (keys) {
        take_diagonal(z, x, warp);
        pack_keys(y, z, f);
        store_turned(square, warp, at, y);
    }
    if (queries) {
        take_diagonal(z, x + 32, warp);
        pack_queries<format>(y, z, o_scale + 16 * warp);
        store_p_diagonal(tile, warp, at, y, lane);
    }
#pragma unroll
    for (int s = 0; s < 3; s++)
        if (in_warp(s < warp)) {
            if (!keys) continue;
            pack_keys(y, x + 8 * s, f);
            store_turned(square, s, at, y);
        } else if (queries) {
            pack_queries<format>(y, x + 32 + 8 * s + 8, o_scale + 16 * s + 16);
            store_turned(tile, s + 1, at, y);
        }
}

/* Where rest is not the same for all tokens (prefill_hopper.cuh): exp of it, from the sooner token to the
 * later, into the warp's columns of a tile, of f16 or not, as they have been written, blocks [from, to) of
 * them. In a loop, as it is rare: where products are in registers it would be much code. */
template <class format>
GDN_DEVICE void gate_columns(const hopper_gates &g, uint32_t tile, int from, int to, int warp, int lane,
                             bool f16)
{
    const int      row = 16 * warp + lane / 4;
    const float    own[2] = { g.rest[row], g.rest[row + 8] };
    const uint32_t at = turned_lane(lane) ^ (uint32_t)warp << 5;
    __syncwarp();
#pragma unroll 1
    for (int s = from; s < to; s++) {
        const int column = 16 * s + lane % 4 * 2;
        uint32_t  y[4];
        load_matrices_turned(y, tile + s * 16 * 128 + at);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float x[2] = { f16 ? mma_format_f16::low(y[i]) : format::low(y[i]),
                           f16 ? mma_format_f16::high(y[i]) : format::high(y[i]) };
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int   t = column + i / 2 * 8 + e;
                const float d = g.rest[t] - own[i % 2];
                if (x[e] != 0) x[e] *= ex2_approx(t > row + i % 2 * 8 ? d : -d);
            }
            y[i] = format::pair_or_f16(x[0], x[1], f16);
        }
        store_turned(tile, s, at, y);
    }
}

/* Zeros for what is parted by a token that forgets. By a warp: its columns. */
GDN_DEVICE void part_columns(const hopper_gates &g, uint32_t tile, int warp, int lane)
{
    const token_mask resets = tokens_of(g.resets);
    __syncwarp();
    for (int e = opaque(lane); e < 16 * 64; e += 32) {
        const int i = e / 16, j = 16 * warp + e % 16;
        if (i != j && are_parted(resets, min(i, j), max(i, j)))
            store_shared_u16(tile + tile_place(i, j), 0);
    }
}

#endif
