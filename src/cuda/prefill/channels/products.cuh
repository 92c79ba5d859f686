/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of a warp with a chunk's tiles, whose rows are tokens. The warp has 16 rows v of a
 * state, or of its gradient, transposed: 16 x 16 blocks of rows v and columns k, or columns of
 * tokens.
 */
#ifndef GDN_CUDA_PREFILL_CHANNELS_PRODUCTS_CUH
#define GDN_CUDA_PREFILL_CHANNELS_PRODUCTS_CUH

#include "cuda/prefill/channels/record.cuh"
#include "cuda/prefill/general_gram.cuh"

/* Begins to copy n rows of `bytes`, which follow each other in memory, to rows of a tile. All
 * threads call it. */
template <int bytes> GDN_DEVICE void begin_rows(char *to, int to_row, const char *from, int n)
{
    const uint32_t at = shared_address(to);
    for (int i = threadIdx.x; i < n * (bytes / 16); i += blockDim.x)
        copy_async<16>(at + i / (bytes / 16) * to_row + i % (bytes / 16) * 16, from + 16 * i, 16);
}

/* Begins to copy n matrices of a record with `columns` columns to rows of tiles of mma.sync. All
 * threads call it. A warp has 16 rows of a tile at a time. From each fourth row to the next, the
 * halves of a row change places (tile_place()), so a lane computes few addresses. */
template <int columns> GDN_DEVICE void begin_matrices(char *to, int to_row, const char *from, int n)
{
    enum { ROWS = 16, OF_TILE = CHUNK / ROWS, PARTS = columns / 64 };
    const int lane = threadIdx.x % 32, row = lane / 8, place = lane % 8 ^ row;
    const int to_other = place & 4 ? -64 : 64;
    const uint32_t at = shared_address(to) + row * to_row + place * 16;
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < n * PARTS * OF_TILE; i += blockDim.x / 32) {
        const int tile = i / OF_TILE, matrix = tile / PARTS, part = tile % PARTS;
        const uint32_t x = at + (matrix * CHUNK + i % OF_TILE * ROWS) * to_row + part * 128;
        const char *y = from + i * ROWS * 128 + lane * 16;
#pragma unroll
        for (int j = 0; j < ROWS / 4; j++)
            copy_async<16>(x + j % 2 * to_other + 4 * j * to_row, y + 512 * j, 16);
    }
}

template <int io, int deep> struct state_products {
    typedef mma_tiles<io> tiles;
    typedef typename tiles::operand operand;
    typedef typename tiles::second second;
    typedef operand operands[GROUPS];
    typedef mma_block state[deep / 16];
    static constexpr int row = GDN_PREFILL_ROW(deep, 2);

    /* Returns the address of row block i and column block j of a tile, at the lane's place. */
    static __device__ __forceinline__ uint32_t at(uint32_t tile, int row, int i, int j)
    {
        return tile + 16 * i * row + 32 * j;
    }

    /* Returns true if all elements are finite. A whole warp calls it. */
    static __device__ __forceinline__ bool are_finite(const operands &x, const operands &y)
    {
        typename tiles::taint taint = 0;
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            tiles::collect(taint, x[j]);
            tiles::collect(taint, y[j]);
        }
        return !in_warp(tiles::is_tainted(taint));
    }

    /* Computes x + S K^T of a tile K of keys. */
    static __device__ __forceinline__ void read(mma_block (&x)[GROUPS], const state &S,
                                                const char *K)
    {
        const uint32_t keys = shared_address(K) + tiles::lane_second(row);
#pragma unroll
        for (int y = 0; y < deep / 16; y++) {
            operand s;
            second m;
            tiles::pack(s, S[y]);
#pragma unroll
            for (int j = 0; j < GROUPS; j++) {
                tiles::load(m, at(keys, row, j, y), row);
                tiles::multiply(x[j], s, m);
            }
        }
    }

    /* Computes S + X K. */
    static __device__ __forceinline__ void add(state &S, const operands &x, const char *K)
    {
        const uint32_t keys = shared_address(K) + tiles::lane_second_turned(row);
#pragma unroll
        for (int j = 0; j < GROUPS; j++)
#pragma unroll
            for (int y = 0; y < deep / 16; y++) {
                second m;
                tiles::load_turned(m, at(keys, row, j, y), row);
                tiles::multiply(S[y], x[j], m);
            }
    }

    /* Computes S diag(decay). */
    static __device__ __forceinline__ void decay(state &S, const float *decay)
    {
#pragma unroll
        for (int y = 0; y < deep / 16; y++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float2 d = *(const float2 *)(decay + 16 * y + block_column(h, 0));
#pragma unroll
                for (int e = 0; e < 4; e++) S[y][h][e] *= e % 2 ? d.y : d.x;
            }
    }

    /* Computes y + X T^T of a lower triangle T. */
    static __device__ __forceinline__ void read(mma_block (&y)[GROUPS], const operands &x,
                                                const char *T)
    {
        const uint32_t tile = shared_address(T) + tiles::lane_second(SQUARE_ROW);
#pragma unroll
        for (int i = 0; i < GROUPS; i++)
#pragma unroll
            for (int j = 0; j <= i; j++) {
                second m;
                tiles::load(m, at(tile, SQUARE_ROW, i, j), SQUARE_ROW);
                tiles::multiply(y[i], x[j], m);
            }
    }

    /* Computes X T^T. */
    static __device__ __forceinline__ void solve(operands &to, const operands &x, const char *T)
    {
        mma_block y[GROUPS] = {};
        read(y, x, T);
#pragma unroll
        for (int i = 0; i < GROUPS; i++) tiles::pack(to[i], y[i]);
    }

    /* Computes y + X T of a lower triangle T. */
    static __device__ __forceinline__ void add_triangle(mma_block (&y)[GROUPS], const operands &x,
                                                        const char *T)
    {
        const uint32_t tile = shared_address(T) + tiles::lane_second_turned(SQUARE_ROW);
#pragma unroll
        for (int i = 0; i < GROUPS; i++)
#pragma unroll
            for (int j = 0; j <= i; j++) {
                second m;
                tiles::load_turned(m, at(tile, SQUARE_ROW, i, j), SQUARE_ROW);
                tiles::multiply(y[j], x[i], m);
            }
    }
};

#endif
