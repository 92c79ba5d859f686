/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of 16 x 16 blocks on tensor cores, the one shape that everything in chunks is made of:
 *
 *     block += A B^T      A and B: operands of 16 rows and 16 columns, the columns summed over
 *
 * A block is two accumulators of 16 x 8. Lane l has of each, with g = l / 4 and t = l % 4, elements
 * (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1). An operand has the same elements in the same
 * lanes. So a block becomes one without going through memory, and every operand can be either
 * factor. That holds for tf32 too if the sum runs over columns in the order 0, 2, 4, 6, 1, 3, 5, 7.
 *
 * Tiles lie in shared memory in rows of `row` bytes, an odd number of 16 bytes (f32: of 32). So no
 * two rows that are read at once meet in a bank.
 */
#ifndef GDN_CUDA_MMA_CUH
#define GDN_CUDA_MMA_CUH

#include "cuda/device/ptx_mma.cuh"

/* Returns x, which must be equal in all lanes, so that the compiler knows it is. Code that depends
 * on x is then compiled for the warp, not for each lane. */
GDN_DEVICE bool in_warp(bool x) { return __any_sync(0xffffffff, x); }

typedef float mma_block[2][4];

/* Return the row and the column of element e of accumulator h, in a block. */
GDN_DEVICE int block_row(int e) { return (int)(threadIdx.x % 32 / 4) + 8 * (e / 2); }
GDN_DEVICE int block_column(int h, int e) { return 8 * h + (int)(threadIdx.x % 4) * 2 + e % 2; }

/* Returns the place of an element in a tile as products of warpgroups want it: rows of 128 bytes,
 * 64 elements of 16 bits, in the 128-byte swizzle (ptx_wgmma.cuh). */
GDN_DEVICE uint32_t tile_place(uint32_t row, uint32_t column)
{
    return row * 128 + ((column / 8 ^ row % 8) << 4) + column % 8 * 2;
}

/* ---- 16 bits ------------------------------------------------------------------------------- */

/* The differences between the two formats. */
struct mma_format_bf16 {
    GDN_DEVICE uint32_t pair(float low, float high) { return f32_to_bf16x2(low, high); }
    GDN_DEVICE float low(uint32_t x) { return __uint_as_float(x << 16); }
    GDN_DEVICE float high(uint32_t x) { return __uint_as_float(x & 0xffff0000u); }
    GDN_DEVICE uint32_t add(uint32_t z, uint32_t x, uint32_t f) { return add_bf16x2(z, x, f); }
    GDN_DEVICE uint32_t times(uint32_t x, uint32_t f) { return multiply_bf16x2(x, f); }
    GDN_DEVICE uint32_t taint(uint32_t z, uint32_t x) { return add(z, x, 0); }
    GDN_DEVICE void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
    {
        mma_bf16(d, a, b0, b1);
    }
};
struct mma_format_f16 {
    GDN_DEVICE uint32_t pair(float low, float high) { return f32_to_f16x2(low, high); }
    GDN_DEVICE float low(uint32_t x) { return f16_to_f32((uint16_t)x); }
    GDN_DEVICE float high(uint32_t x) { return f16_to_f32((uint16_t)(x >> 16)); }
    GDN_DEVICE uint32_t add(uint32_t z, uint32_t x, uint32_t f) { return add_f16x2(z, x, f); }
    GDN_DEVICE uint32_t times(uint32_t x, uint32_t f) { return multiply_f16x2(x, f); }
    GDN_DEVICE uint32_t taint(uint32_t z, uint32_t x) { return add(z, x, 0); }
    GDN_DEVICE void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
    {
        mma_f16(d, a, b0, b1);
    }
};

template <class format> struct mma_tiles16 {
    typedef format pairs; /* words of two elements */
    struct operand {
        uint32_t x[4]; /* two elements each: x[2 h + r] of row g + 8 r, from column 8 h + 2 t on */
    };
    /* A second factor with the words of a row side by side, as mma takes them: x[2 r + h]. Words
     * of an operand go through other registers first. */
    struct second {
        uint32_t x[4];
    };
    static constexpr int bytes = 2;

    /* Return the address that a lane reads the operand from, at the start of a tile. turned: rows
     * of the operand are columns of the tile. */
    GDN_DEVICE uint32_t lane(int row)
    {
        const int l = threadIdx.x % 32;
        return l % 16 * row + l / 16 * 16;
    }
    GDN_DEVICE uint32_t lane_turned(int row)
    {
        const int l = threadIdx.x % 32;
        return (l % 8 + l / 16 * 8) * row + l / 8 % 2 * 16;
    }
    GDN_DEVICE uint32_t lane_second(int row) { return lane_turned(row); }
    GDN_DEVICE uint32_t lane_second_turned(int row) { return lane(row); }
    template <class factor> GDN_DEVICE void load(factor &o, uint32_t at, int row)
    {
        (void)row;
        load_matrices(o.x, at);
    }
    template <class factor> GDN_DEVICE void load_turned(factor &o, uint32_t at, int row)
    {
        (void)row;
        load_matrices_turned(o.x, at);
    }
    /* Sets the columns to zero, except those from `first` to n - 1. */
    GDN_DEVICE void keep_columns(operand &o, int first, int n)
    {
        for (int i = 0; i < 4; i++) {
            const int c = block_column(i / 2, 0);
            o.x[i] &= (c >= first && c < n ? 0xffffu : 0) |
                      (c + 1 >= first && c + 1 < n ? 0xffff0000u : 0);
        }
    }
    GDN_DEVICE void pack(operand &o, const mma_block &b)
    {
        for (int i = 0; i < 4; i++)
            o.x[i] = format::pair(b[i / 2][i % 2 * 2], b[i / 2][i % 2 * 2 + 1]);
    }
    GDN_DEVICE void unpack(mma_block &b, const operand &o)
    {
        for (int i = 0; i < 4; i++) {
            b[i / 2][i % 2 * 2] = format::low(o.x[i]);
            b[i / 2][i % 2 * 2 + 1] = format::high(o.x[i]);
        }
    }
    GDN_DEVICE void multiply(mma_block &d, const operand &a, const operand &b)
    {
        format::mma(d[0], a.x, b.x[0], b.x[2]);
        format::mma(d[1], a.x, b.x[1], b.x[3]);
    }
    GDN_DEVICE void multiply(mma_block &d, const operand &a, const second &b)
    {
        format::mma(d[0], a.x, b.x[0], b.x[1]);
        format::mma(d[1], a.x, b.x[2], b.x[3]);
    }
    /* Collects values in z, to find out whether any of them is not finite. */
    typedef uint32_t taint;
    GDN_DEVICE void collect(taint &z, const operand &o)
    {
        for (int i = 0; i < 4; i++) z = format::taint(z, o.x[i]);
    }
    GDN_DEVICE bool is_tainted(taint z) { return (z & 0x7fff7fffu) != 0; }
    /* Stores two elements that follow each other in a row. */
    GDN_DEVICE void store_pair(void *at, float x, float y) { *(uint32_t *)at = format::pair(x, y); }
};

template <int dtype> struct mma_tiles;
template <> struct mma_tiles<GDN_BF16> : mma_tiles16<mma_format_bf16> {
};
template <> struct mma_tiles<GDN_F16> : mma_tiles16<mma_format_f16> {
};

/* ---- f32 ----------------------------------------------------------------------------------- */

/* Products of float32. A factor is the sum of two numbers of tf32, exact to 2^-23. Of the four
 * products of two factors, the smallest is left out (2^-22). Tensor cores cut off digits of what
 * they add to a large sum. So the sum of eight columns starts from zero and is added in float32. */
template <> struct mma_tiles<GDN_F32> {
    struct operand {
        mma_block x;
    };
    static constexpr int bytes = 4;
    GDN_DEVICE uint32_t lane(int row) { return threadIdx.x % 32 / 4 * row + threadIdx.x % 4 * 8; }
    GDN_DEVICE uint32_t lane_turned(int row)
    {
        return threadIdx.x % 4 * 2 * row + threadIdx.x % 32 / 4 * 4;
    }
    GDN_DEVICE void load(operand &o, uint32_t at, int row)
    {
        for (int i = 0; i < 4; i++)
            load_shared(o.x[i / 2][i % 2 * 2], o.x[i / 2][i % 2 * 2 + 1],
                        at + i / 2 * 32 + i % 2 * 8 * row);
    }
    GDN_DEVICE void load_turned(operand &o, uint32_t at, int row)
    {
        for (int i = 0; i < 8; i++)
            load_shared(o.x[i / 4][i % 4], at + (i / 4 * 8 + i % 2) * row + i % 4 / 2 * 32);
    }
    GDN_DEVICE void keep_columns(operand &o, int first, int n)
    {
        for (int i = 0; i < 8; i++) {
            const int c = block_column(i / 4, i);
            if (c < first || c >= n) o.x[i / 4][i % 4] = 0;
        }
    }
    GDN_DEVICE void pack(operand &o, const mma_block &b)
    {
        for (int i = 0; i < 8; i++) o.x[i / 4][i % 4] = b[i / 4][i % 4];
    }
    GDN_DEVICE void unpack(mma_block &b, const operand &o)
    {
        for (int i = 0; i < 8; i++) b[i / 4][i % 4] = o.x[i / 4][i % 4];
    }
    GDN_DEVICE void split(uint32_t &high, uint32_t &low, float x)
    {
        high = (__float_as_uint(x) + 0x1000) & 0xffffe000u;
        low = __float_as_uint(x - __uint_as_float(high));
    }
    GDN_DEVICE void multiply(mma_block &d, const operand &a, const operand &b)
    {
        for (int h = 0; h < 2; h++) { /* columns */
            uint32_t a_high[4], a_low[4], b_high[4], b_low[4];
            for (int i = 0; i < 4; i++) {
                split(a_high[i], a_low[i], a.x[h][i % 2 * 2 + i / 2]);
                split(b_high[i], b_low[i], b.x[h][i]);
            }
            for (int r = 0; r < 2; r++) { /* rows of b */
                float sum[4] = { 0, 0, 0, 0 };
                mma_tf32(sum, a_low, b_high[2 * r], b_high[2 * r + 1]);
                mma_tf32(sum, a_high, b_low[2 * r], b_low[2 * r + 1]);
                mma_tf32(sum, a_high, b_high[2 * r], b_high[2 * r + 1]);
                for (int i = 0; i < 4; i++) d[r][i] += sum[i];
            }
        }
    }
    typedef float taint;
    GDN_DEVICE void collect(taint &z, const operand &o)
    {
        for (int i = 0; i < 8; i++) z = fmaf(o.x[i / 4][i % 4], 0, z);
    }
    GDN_DEVICE bool is_tainted(taint z) { return z != 0; }
    GDN_DEVICE void store_pair(void *at, float x, float y)
    {
        ((float *)at)[0] = x;
        ((float *)at)[1] = y;
    }
};

#endif
