/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What products of keys become: -(B A)^T, f16, for the inverse (prefill_hopper_solve.cuh), and P, for the
 * state. A warp has 16 rows of K K^T and K Q^T, of all 64 columns, in blocks of 16 x 16, and writes them
 * turned. Of both it needs the block of the diagonal; of K K^T, as it is symmetric, the columns up to its
 * rows' then, and of K Q^T those from there: one of both at each edge between blocks, which is the same
 * work for every warp, without a branch.
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

/* What the rows of a lane, two in each block, are made of. */
struct hopper_rows {
    float  k[2], q[2];       /* on the diagonal: factors of -(B A)^T and of P */
    float  from[2], to[2];   /* from the edge before, of -(B A)^T; to the edge behind, of P */
    float  e[8];             /* on the diagonal: exp of the gates from the sooner token to the later */
    float2 k_scale[2], q_scale[2]; /* there, of the columns */
    float  between[4];
};
GDN_DEVICE struct hopper_rows find_rows(const hopper_gates &g, int warp, int lane)
{
    const int          row = 16 * warp + lane / 4, column = lane % 4 * 2;
    struct hopper_rows r;
    float2             G[2];
    float              own[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float beta = g.beta[row + 8 * i];
        own[i]    = g.G[row + 8 * i];
        r.q[i]    = g.k_scale[row + 8 * i];
        r.k[i]    = -beta * r.q[i];
        r.from[i] = -beta * g.from_edge[row + 8 * i];
        r.to[i]   = g.to_edge[row + 8 * i];
    }
    load_pairs(r.k_scale, g.k_scale + 16 * warp + column);
    load_pairs(r.q_scale, g.q_scale + 16 * warp + column);
    load_pairs(G, g.G + 16 * warp + column);
    *(float4 *)r.between = *(const float4 *)g.between[warp];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const bool  later = i / 4 * 8 + column + i % 2 > i / 2 % 2 * 8 + lane / 4; /* the column */
        const float d     = (i % 2 ? G[i / 4].y : G[i / 4].x) - own[i / 2 % 2];
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

/* A block, turned: rows `row` of the tile, at `at` of them. */
GDN_DEVICE void store_turned(uint32_t tile, int row, uint32_t at, const uint32_t (&x)[4])
{
    store_matrices_turned(tile + row * 16 * 128 + at, x[0], x[1], x[2], x[3]);
}

/* The block of the diagonal, of what a warp's rows are of all blocks: the first of x is of block 0. */
template <class format>
GDN_DEVICE void pack_diagonal(uint32_t (&y)[4], const float *x, const struct hopper_rows &r,
                              const float (&f)[2], const float2 (&c)[2], int warp, bool f16)
{
    const bool odd = warp & 1, high = warp & 2;
    float      z[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float low = odd ? x[8 + i] : x[i], up = odd ? x[24 + i] : x[16 + i];
        z[i] = (high ? up : low) * r.e[i];
    }
    pack_block<format>(y, z, f, c, f16);
}

/*
 * The warp's columns of the square, -(B A)^T, from products of its keys with all (x), and of P from those
 * with queries (x + 32). At each edge between blocks a warp whose rows are behind it has the block before
 * it, of the first, and one whose rows are before it the block behind it, of the second. Exp of the gates
 * has factors up to an edge and from there, so that no exponent is of more gates than are between both
 * tokens.
 */
template <int io, bool keys, bool queries>
GDN_DEVICE void write_columns(const hopper_gates &g, const struct hopper_rows &r,
                              const float (&x)[64], uint32_t square, uint32_t tile, int warp,
                              int lane)
{
    typedef hopper_format<io> format;
    const uint32_t            at = turned_lane(lane) ^ (uint32_t)warp << 5;
    const int                 column = lane % 4 * 2;
    uint32_t                  d[4], block[3][4];
    if (keys) {
        pack_diagonal<format>(d, x, r, r.k, r.k_scale, warp, true);
        store_turned(square, warp, at, d);
    }
    if (queries) { /* tokens after the output's are cut off whatever they hold */
        const uint32_t keep = (column >= lane / 4 ? 0xffffu : 0u) |
                              (column + 1 >= lane / 4 ? 0xffff0000u : 0u);
        pack_diagonal<format>(d, x + 32, r, r.q, r.q_scale, warp, false);
        d[0] &= keep, d[1] = 0, d[3] &= keep;
        store_turned(tile, warp, at, d);
    }
#pragma unroll
    for (int s = 0; s < 3; s++) {
        const bool  behind = s < warp;
        const float f[2] = { (behind ? r.from[0] : r.to[0]) * r.between[s],
                             (behind ? r.from[1] : r.to[1]) * r.between[s] };
        float       z[8];
        float2      c[2];
        if (behind ? !keys : !queries) continue;
        load_pairs(c, (behind ? g.to_edge : g.q_from_edge + 16) + 16 * s + column);
#pragma unroll
        for (int i = 0; i < 8; i++) z[i] = behind ? x[8 * s + i] : x[32 + 8 * s + 8 + i];
        pack_block<format>(block[s], z, f, c, behind);
        if (keys != queries) store_turned(behind ? square : tile, behind ? s : s + 1, at, block[s]);
    }
#pragma unroll
    for (int s = 0; keys && queries && s < 3; s++) /* together: loads need not wait for them */
        store_turned(s < warp ? square : tile, s < warp ? s : s + 1, at, block[s]);
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
