/* SPDX-License-Identifier: Apache-2.0 */
/*
 * T = (I + L)^-1 of a chunk. The square holds L below the diagonal and the transpose of T, as far
 * as it is known, above it; D holds the blocks of T on the diagonal (invert_diagonal()). Below the
 * diagonal a column of blocks needs no other one:
 *
 *     T_rc = -D_r sum of L_rj T_jc over j from c to r - 1
 *
 * A warp has such a column. Products are of transposes, so that each sum is a factor as it stands
 * in registers. For f16 they are those of float32 (mma.cuh). For bf16 they are of tf32: its errors
 * are an eighth of those of T as 16 bits.
 */
#ifndef GDN_CUDA_PREFILL_CHANNELS_INVERSE_CUH
#define GDN_CUDA_PREFILL_CHANNELS_INVERSE_CUH

#include "cuda/device/mma.cuh"
#include "cuda/prefill/general.h"

template <int io> struct inverse_tiles : mma_tiles<GDN_F32> {
};
template <> struct inverse_tiles<GDN_BF16> : mma_tiles<GDN_F32> {
    GDN_DEVICE void multiply(mma_block &d, const operand &a, const operand &b)
    {
        for (int h = 0; h < 2; h++) { /* columns */
            uint32_t x[4], y[4];
            for (int i = 0; i < 4; i++) {
                x[i] = round_tf32(a.x[h][i % 2 * 2 + i / 2]);
                y[i] = round_tf32(b.x[h][i]);
            }
            for (int r = 0; r < 2; r++) mma_tf32(d[r], x, y[2 * r], y[2 * r + 1]);
        }
    }
};

/* Stores block (r, c) of T in 16 bits, from its transpose. */
template <int io> GDN_DEVICE void put_turned(char *T, int row, int r, int c, const mma_block &x)
{
    typedef mma_tiles<io> tiles;
    typename tiles::operand o;
    tiles::pack(o, x);
#pragma unroll
    for (int i = 0; i < 4; i++)
        *(uint32_t *)(T + (16 * r + 8 * (i / 2) + (int)(threadIdx.x % 32 / 4)) * row +
                      2 * (16 * c + block_column(i % 2, 0))) = turn_matrix(o.x[i]);
}

/* Stores a block of the diagonal, with zeros above it. */
template <int io> GDN_DEVICE void put_diagonal(char *T, int row, int w, uint32_t D)
{
    typedef mma_tiles<GDN_F32> exact;
    constexpr int ld = 4 * GDN_PREFILL_LD_DIAGONAL;
    typename exact::operand x;
    exact::load(x, D + 16 * w * ld, ld);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int h = i / 2, e = i % 2 * 2, at = block_row(e), column = block_column(h, 0);
        mma_tiles<io>::store_pair(T + (16 * w + at) * row + 2 * (16 * w + column),
                                  column <= at ? x.x[h][e] : 0, column < at ? x.x[h][e + 1] : 0);
    }
}

/* Computes column c of blocks of T, in 16 bits, in rows of `row` bytes. A warp calls it. */
template <int io, int chunk>
GDN_DEVICE void invert_column(float *square, const float *diagonal, char *T, int row, int c)
{
    typedef inverse_tiles<io> tiles;
    constexpr int ld = 4 * GDN_PREFILL_LD(chunk), diagonal_ld = 4 * GDN_PREFILL_LD_DIAGONAL;
    const uint32_t at = shared_address(square) + tiles::lane(ld);
    const uint32_t D = shared_address(diagonal) + tiles::lane(diagonal_ld);
    put_diagonal<io>(T, row, c, D);
#pragma unroll 1
    for (int r = c + 1; r < chunk / 16; r++) {
        mma_block x = {}, y = {};
        typename tiles::operand left, right;
#pragma unroll 1
        for (int j = c; j < r; j++) {
            tiles::load(left, at + 16 * c * ld + 64 * j, ld);
            tiles::load(right, at + 16 * r * ld + 64 * j, ld);
            tiles::multiply(x, left, right);
        }
        tiles::pack(left, x);
        tiles::load(right, D + 16 * r * diagonal_ld, diagonal_ld);
        tiles::multiply(y, left, right);
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            const int h = i / 4, e = i % 4;
            y[h][e] = -y[h][e], y[h][e + 1] = -y[h][e + 1];
            *(float2 *)(square + (16 * c + block_row(e)) * GDN_PREFILL_LD(chunk) + 16 * r +
                        block_column(h, 0)) = make_float2(y[h][e], y[h][e + 1]);
        }
        __syncwarp();
        put_turned<io>(T, row, r, c, y);
    }
}

#endif
