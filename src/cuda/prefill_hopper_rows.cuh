/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What products of keys become: rows of -(A B)^T, f16, for the inverse (prefill_hopper_solve.cuh), and of
 * P, for the state. A warp has 16 rows of K K^T and Q K^T, of all 64 columns, in blocks of 16 x 16. K K^T
 * is symmetric, so of -(A B)^T it needs the columns from its rows' on, where P needs those up to them: one
 * of both for each other block, and for its block of the diagonal both, which is the same work for every
 * warp, without a branch.
 */
#ifndef GDN_CUDA_PREFILL_HOPPER_ROWS_CUH
#define GDN_CUDA_PREFILL_HOPPER_ROWS_CUH

#include "prefill_hopper.cuh"

/* Of the lane's columns of a block. */
GDN_DEVICE void load_pairs(float2 (&x)[2], const float *of)
{
    x[0] = *(const float2 *)of, x[1] = *(const float2 *)(of + 8);
}

/* Where a lane reads and writes a block of 16 x 16: its rows, at the start of those of a tile. */
GDN_DEVICE uint32_t block_lane(int lane)
{
    return tile_place(lane % 16, 0) ^ lane / 16 << 4;
}

/* What the rows of a lane, two in each block, are made of. */
struct hopper_rows {
    int    column;           /* the first of the lane's, in a block */
    float  k[2], q[2], G[2]; /* factors of -(A B)^T and of P; the gates */
    float  e[8];             /* on the diagonal: exp of the gates from the sooner token to the later */
    float2 k_scale[2];       /* there, of the columns */
};
GDN_DEVICE struct hopper_rows find_rows(const hopper_gates &g, int warp, int lane)
{
    const int          row = 16 * warp + lane / 4;
    struct hopper_rows r;
    float2             G[2];
    r.column = lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        r.G[i] = g.G[row + 8 * i];
        r.k[i] = -g.beta[row + 8 * i] * g.k_scale[row + 8 * i];
        r.q[i] = g.q_scale[row + 8 * i];
    }
    load_pairs(r.k_scale, g.k_scale + 16 * warp + r.column);
    load_pairs(G, g.G + 16 * warp + r.column);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const bool  later = i / 4 * 8 + r.column + i % 2 > i / 2 % 2 * 8 + lane / 4; /* the column */
        const float d     = (i % 2 ? G[i / 4].y : G[i / 4].x) - r.G[i / 2 % 2];
        r.e[i]            = ex2_approx(later ? d : -d);
    }
    return r;
}

/* A block of products of keys, times its rows' factors f and its columns' c, in f16 or the format. */
template <class format>
GDN_DEVICE void pack_block(uint32_t (&y)[4], const float (&x)[8], const float (&f)[2],
                           const float2 (&c)[2], bool f16)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        y[i] = format::pair_or_f16(x[2 * i] * (f[i % 2] * c[i / 2].x),
                                   x[2 * i + 1] * (f[i % 2] * c[i / 2].y), f16);
}

/* Block n of the rows that are at `at` of a tile. */
GDN_DEVICE void store_block(uint32_t tile, uint32_t at, int n, const uint32_t (&x)[4])
{
    store_matrices(tile + (at ^ (uint32_t)n << 5), x[0], x[1], x[2], x[3]);
}

/* The block of the diagonal, of what a warp's rows are of all blocks. */
template <class format>
GDN_DEVICE void pack_diagonal(uint32_t (&y)[4], const float (&x)[32], const struct hopper_rows &r,
                              const float (&f)[2], int warp, bool f16)
{
    const bool odd = warp & 1, high = warp & 2;
    float      z[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float low = odd ? x[8 + i] : x[i], up = odd ? x[24 + i] : x[16 + i];
        z[i] = (high ? up : low) * r.e[i];
    }
    pack_block<format>(y, z, f, r.k_scale, f16);
}

/*
 * The warp's rows of -(A B)^T from x, products of its keys with all, and of P from y, of its queries with
 * all. At each edge between blocks a warp whose rows are before it has the block behind it, of the first,
 * and one whose rows are behind it the block before it, of the second. Exp of the gates is one factor up
 * to the edge and one from there, so that no exponent is of more gates than are between both tokens.
 */
template <int io, bool keys, bool queries>
GDN_DEVICE void write_rows(const hopper_gates &g, const struct hopper_rows &r, const float (&x)[32],
                           const float (&y)[32], uint32_t square, uint32_t tile, int warp, int lane)
{
    typedef hopper_format<io> format;
    const uint32_t            at = 16 * 128 * warp + block_lane(lane);
    uint32_t                  d[4], block[3][4];
    if (keys) {
        pack_diagonal<format>(d, x, r, r.k, warp, true);
        store_block(square, at, warp, d);
    }
    if (queries) { /* tokens after the row's are cut off whatever they hold */
        const uint32_t keep = (r.column <= lane / 4 ? 0xffffu : 0u) |
                              (r.column + 1 <= lane / 4 ? 0xffff0000u : 0u);
        pack_diagonal<format>(d, y, r, r.q, warp, false);
        d[0] &= keep, d[2] = 0, d[3] &= keep;
        store_block(tile, at, warp, d);
    }
#pragma unroll
    for (int s = 0; s < 3; s++) {
        const bool   behind = s >= warp;
        const float  edge = g.G[16 * s + 15], sign = behind ? 1 : -1;
        float        z[8], f[2];
        float2       c[2];
        if (behind ? !keys : !queries) continue;
        load_pairs(c, (behind ? g.from_edge + 16 : g.to_edge) + 16 * s + r.column);
#pragma unroll
        for (int i = 0; i < 8; i++) z[i] = behind ? x[8 * s + 8 + i] : y[8 * s + i];
#pragma unroll
        for (int i = 0; i < 2; i++)
            f[i] = (behind ? r.k[i] : r.q[i]) * ex2_approx(sign * (edge - r.G[i]));
        pack_block<format>(block[s], z, f, c, behind);
        if (keys != queries) store_block(behind ? square : tile, at, behind ? s + 1 : s, block[s]);
    }
#pragma unroll
    for (int s = 0; keys && queries && s < 3; s++) /* together: loads need not wait for them */
        store_block(s >= warp ? square : tile, at, s >= warp ? s + 1 : s, block[s]);
}

/* Zeros for what is parted by a token that forgets. By a warp: its rows. */
GDN_DEVICE void part_rows(const hopper_gates &g, uint32_t tile, int warp, int lane)
{
    const token_mask resets = tokens_of(g.resets);
    __syncwarp();
    for (int e = opaque(lane); e < 16 * 64; e += 32) {
        const int i = 16 * warp + e / 64, j = e % 64;
        if (i != j && are_parted(resets, min(i, j), max(i, j)))
            store_shared_u16(tile + tile_place(i, j), 0);
    }
}

#endif
