/* SPDX-License-Identifier: Apache-2.0 */
/*
 * T of a chunk (prefill_chunk.cuh) and P, by a warpgroup. T as B (I + A B)^-1 with B = diag(beta) and
 * A_ij = exp(G_i - G_j) k_i . k_j for j < i. K K^T is symmetric, so rows of the product that a warp
 * has are columns of A B: they are written as rows j of the transpose, with the sign turned.
 *
 * Blocks of 16 x 16: those of the diagonal by their halves, these by substitution in float32, a lane
 * per column; warp w then has block column w and goes down, T_rw = D_r sum of L_rj T_jw, in products of
 * TF32 on T^T. With the columns summed over in the order 0, 2, 4, 6, 1, 3, 5, 7 what a product gives is
 * a factor of the next.
 *
 * A row of A B that is not finite becomes zero; its token is dead, and T_ii NaN: the state's warps
 * find a u that is not finite.
 */
#ifndef GDN_CUDA_PREFILL_HOPPER_SOLVE_CUH
#define GDN_CUDA_PREFILL_HOPPER_SOLVE_CUH

#include "prefill_hopper.cuh"

/* What a warp knows. */
struct hopper_solver {
    const struct hopper_block &b;
    int                        warp, lane;
    int                        number; /* of its square: the warpgroup of its block, or one of two chunks */
    uint32_t                   square; /* 64 x 64 floats, rows HOPPER_L_ROW apart */
    uint32_t                   rows;   /* the warp's 16 of them */

    /* Tokens that are dead, 16 bits per warp, behind row 0; two sets in turn. */
    __device__ __forceinline__ uint32_t *dead(int c) const
    {
        const int at = HOPPER_SQUARES == 1 ? 0 : number * HOPPER_SQUARE; /* known early: less code */
        return (uint32_t *)(gdn_shared + HOPPER_L + 64 * 4 + at) +
               (uint32_t)c / (HOPPER_TURN * HOPPER_AT_ONCE) % 2 * 2;
    }
    __device__ __forceinline__ void wait() const
    {
        barrier_wait(number ? HOPPER_BARRIER_SECOND : HOPPER_BARRIER_SOLVE, 128);
    }
    /* All of T has been written, and this is the warp that has most to do for it; others go on. */
    __device__ __forceinline__ bool is_last() const
    {
        if (warp == 0)
            barrier_wait(HOPPER_BARRIER_WRITTEN, 128);
        else
            barrier_arrive(HOPPER_BARRIER_WRITTEN, 128);
        return warp == 0;
    }
};

/* To the nearest of TF32. */
GDN_DEVICE float round_tf32(float x) { return __uint_as_float(__float_as_uint(x) + 0x1000u); }

/* Of the lane's columns of a block: on the way before what is done with the block before. */
GDN_DEVICE void load_pairs(float2 (&x)[2], const float *of)
{
    x[0] = *(const float2 *)of, x[1] = *(const float2 *)(of + 8);
}

/* Rows of -(A B)^T: blocks from the diagonal on. Is all of it finite? */
GDN_DEVICE bool write_rows(const struct hopper_solver &w, const hopper_gates &g, float (&x)[32])
{
    const int      row = 16 * w.warp + w.lane / 4, column = w.lane % 4 * 2;
    const float    G0 = g.sooner[row], G1 = g.sooner[row + 8];
    const float    f0 = -g.beta[row], f1 = -g.beta[row + 8];
    const uint32_t at = w.rows + w.lane / 4 * HOPPER_L_ROW + column * 4;
    float          taint[4] = { 0, 0, 0, 0 };
    float2         next[2];
    load_pairs(next, g.later + 16 * w.warp + column);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        if (n < w.warp) continue;
        const float2 G[2] = { next[0], next[1] };
        load_pairs(next, g.later + 16 * ((n + 1) % 4) + column);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int    i    = 16 * n + 8 * h;
            const float *z    = x + 8 * n + 4 * h;
            const float  y[4] = { z[0] * (f0 * ex2_approx(G[h].x - G0)),
                                  z[1] * (f0 * ex2_approx(G[h].y - G0)),
                                  z[2] * (f1 * ex2_approx(G[h].x - G1)),
                                  z[3] * (f1 * ex2_approx(G[h].y - G1)) };
#pragma unroll
            for (int e = 0; e < 4; e++) taint[e] = fmaf(y[e], 0, taint[e]);
            store_shared(at + 4 * i, round_tf32(y[0]), round_tf32(y[1]));
            store_shared(at + 4 * i + 8 * HOPPER_L_ROW, round_tf32(y[2]), round_tf32(y[3]));
        }
    }
    return taint[0] + taint[1] + (taint[2] + taint[3]) == 0;
}

/* Zeros for what is parted from its row's token by one that forgets, or not finite; the latter's
 * tokens are dead. */
GDN_DEVICE void mend_rows(const struct hopper_solver &w, const hopper_gates &g, uint32_t *dead)
{
    const token_mask resets = tokens_of(g.resets);
    __syncwarp();
    for (int e = opaque(w.lane); e < 16 * 64; e += 32) {
        const int      row = e / 64, j = 16 * w.warp + row, i = e % 64;
        const uint32_t at  = w.rows + row * HOPPER_L_ROW + i * 4;
        float          x;
        if (i < 16 * w.warp) continue;
        load_shared(x, at);
        const bool seen = i > j && !are_parted(resets, j, i);
        if (seen && is_finite(x)) continue;
        if (seen) atomicOr(dead + i / 32, 1u << i % 32);
        store_shared(at, 0);
    }
}

/* As the square holds them; TF32 of what comes from there is exact. */
GDN_DEVICE uint32_t load_word(uint32_t at)
{
    float x;
    load_shared(x, at);
    return __float_as_uint(x);
}

GDN_DEVICE void store_rounded(uint32_t at, float a, float b, float c, float d)
{
    store_shared(at, __float_as_uint(round_tf32(a)), __float_as_uint(round_tf32(b)),
                 __float_as_uint(round_tf32(c)), __float_as_uint(round_tf32(d)));
}

/* A row of an inverted half; and of a second half, what is on the other side of it. */
GDN_DEVICE void store_row(uint32_t row, const float (&x)[8])
{
    store_rounded(row, x[0], x[1], x[2], x[3]);
    store_rounded(row + 16, x[4], x[5], x[6], x[7]);
}
GDN_DEVICE void clear_other_side(uint32_t row)
{
    store_shared(row - 32, 0, 0, 0, 0);
    store_shared(row - 16, 0, 0, 0, 0);
}

/* The inverse of a half of the block, 8 x 8 from `half` on, in its place, turned: rows are columns. By
 * substitution, a lane per column of each half; half a warp has another square, or does the same. */
GDN_DEVICE void invert_half(uint32_t half, int lane)
{
    const int      column = lane % 8;
    const uint32_t row    = half + column * HOPPER_L_ROW;
    float          x[8];
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = column == i ? 1 : 0;
#pragma unroll
    for (int j = 0; j < 7; j++)
#pragma unroll
        for (int q = (j + 1) / 4; q < 2; q++) {
            float l[4];
            load_shared(l, half + j * HOPPER_L_ROW + 16 * q);
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (4 * q + e > j) x[4 * q + e] = fmaf(l[e], x[j], x[4 * q + e]);
        }
    __syncwarp();
    if (HOPPER_PAIRS) {
        store_row(row, x);
        if (lane & 8) clear_other_side(row);
    } else if (lane < 16) {
        store_row(row, x);
    } else if (lane >= 24) {
        clear_other_side(row);
    }
    __syncwarp();
}

/* A block of the diagonal: A and D its inverted halves, C what is between them, which becomes
 * z = - D^-1 C A^-1, turned A^-T (-C^T) D^-T. */
GDN_DEVICE void join_halves(float (&z)[4], uint32_t block, int g, int t)
{
    const uint32_t A = block + g * HOPPER_L_ROW + t * 4;
    const uint32_t C = block + t * HOPPER_L_ROW + 32 + g * 4;
    const uint32_t D = block + (8 + 2 * t) * HOPPER_L_ROW + 32 + g * 4;
    float          y[4] = {};
    const uint32_t a[4] = { load_word(A), 0, load_word(A + 16), 0 };
    mma_tf32(y, a, load_word(C), load_word(C + 4 * HOPPER_L_ROW));
    const uint32_t b[4] = { __float_as_uint(round_tf32(y[0])), 0,
                            __float_as_uint(round_tf32(y[1])), 0 };
    mma_tf32(z, b, load_word(D), load_word(D + HOPPER_L_ROW));
}

/* The warp's block of the diagonal, of all chunks at once; w: of the first. */
GDN_DEVICE void invert_block(const struct hopper_solver &w)
{
    const int      lane = opaque(w.lane), g = lane / 4, t = lane % 4;
    const uint32_t block = w.rows + w.warp * 64;
    float          z[HOPPER_AT_ONCE][4] = {};
    invert_half(block + lane / 16 * (HOPPER_AT_ONCE - 1) * HOPPER_SQUARE +
                    lane / 8 % 2 * (8 * HOPPER_L_ROW + 32), lane);
#pragma unroll
    for (int i = 0; i < HOPPER_AT_ONCE; i++) join_halves(z[i], block + i * HOPPER_SQUARE, g, t);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < HOPPER_AT_ONCE; i++)
        store_shared(block + i * HOPPER_SQUARE + g * HOPPER_L_ROW + 32 + t * 8,
                     round_tf32(z[i][0]), round_tf32(z[i][1]));
}

/* sum += x times the block of the square at `at` (of this lane). x: as a factor. */
GDN_DEVICE void add_block(float (&sum)[2][4], const float (&x)[2][4], uint32_t at)
{
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const uint32_t a[4] = { __float_as_uint(x[k][0]), __float_as_uint(x[k][1]),
                                __float_as_uint(x[k][2]), __float_as_uint(x[k][3]) };
#pragma unroll
        for (int n = 0; n < 2; n++) {
            float b0, b1;
            load_shared(b0, at + k * 8 * HOPPER_L_ROW + n * 32);
            load_shared(b1, at + k * 8 * HOPPER_L_ROW + n * 32 + HOPPER_L_ROW);
            mma_tf32(sum[n], a, __float_as_uint(b0), __float_as_uint(b1));
        }
    }
}

/* A sum as a factor, in TF32. */
GDN_DEVICE void make_factor(float (&x)[2][4], const float (&sum)[2][4])
{
#pragma unroll
    for (int n = 0; n < 2; n++) {
        x[n][0] = round_tf32(sum[n][0]), x[n][1] = round_tf32(sum[n][2]);
        x[n][2] = round_tf32(sum[n][1]), x[n][3] = round_tf32(sum[n][3]);
    }
}

/* What round_tf32() leaves below TF32, products do not see. In T of f16, whose unit is the same, it
 * would be half a unit too much on average; units of bf16 are eight times that. */
template <int io> GDN_DEVICE float trim_tf32(float x)
{
    return io == GDN_F16 ? __uint_as_float(__float_as_uint(x) & 0xffffe000u) : x;
}

/* Block (r, the warp's) of T from its transpose, a factor; rows times beta. */
template <int io>
GDN_DEVICE void write_block(const struct hopper_solver &w, const hopper_gates &g, uint32_t tile,
                            int r, const float (&x)[2][4])
{
    typedef hopper_format<io> format;
    const int      row = w.lane % 8 + w.lane / 16 * 8, column = 16 * w.warp + w.lane / 8 % 2 * 8;
    const float   *beta = g.beta + 16 * r + w.lane % 4 * 2;
    const float2   b0 = *(const float2 *)beta, b1 = *(const float2 *)(beta + 8);
    store_matrices_turned(
        tile + 16 * 128 * r + tile_place(row, column),
        format::pair(trim_tf32<io>(x[0][0]) * b0.x, trim_tf32<io>(x[0][2]) * b0.y),
        format::pair(trim_tf32<io>(x[0][1]) * b0.x, trim_tf32<io>(x[0][3]) * b0.y),
        format::pair(trim_tf32<io>(x[1][0]) * b1.x, trim_tf32<io>(x[1][2]) * b1.y),
        format::pair(trim_tf32<io>(x[1][1]) * b1.x, trim_tf32<io>(x[1][3]) * b1.y));
}

/* A block of the column waits in the other triangle of the square, a lane's part in one piece. */
GDN_DEVICE void put_block(uint32_t at, const float (&x)[2][4])
{
#pragma unroll
    for (int i = 0; i < 2; i++)
        store_shared(at + 16 * i, __float_as_uint(x[i][0]), __float_as_uint(x[i][1]),
                     __float_as_uint(x[i][2]), __float_as_uint(x[i][3]));
}
GDN_DEVICE void take_block(float (&x)[2][4], uint32_t at)
{
    load_shared(x[0], at);
    load_shared(x[1], at + 16);
}

/* The warp's block column of T, from the diagonal down. */
template <int io>
GDN_DEVICE void write_column(const struct hopper_solver &w, const hopper_gates &g, uint32_t tile)
{
    const uint32_t lane_at = w.lane % 4 * 2 * HOPPER_L_ROW + w.lane / 4 * 4;
    const uint32_t at = w.rows + w.warp * 64 + w.lane / 4 * HOPPER_L_ROW + w.lane % 4 * 8;
    const uint32_t kept = w.rows + w.warp * 64 + w.lane / 2 * HOPPER_L_ROW + w.lane % 2 * 32;
    float          x[2][4];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        load_shared(x[k][0], x[k][2], at + 32 * k);
        load_shared(x[k][1], x[k][3], at + 32 * k + 8 * HOPPER_L_ROW);
    }
#pragma unroll
    for (int s = 0; s < 4; s++) {
        const int      r     = w.warp + s + 1;
        const uint32_t below = w.rows + r * 64 + lane_at;
        float          sum[2][4] = {}, product[2][4] = {};
        write_block<io>(w, g, tile, r - 1, x);
        if (r == 4) break;
        if (s < 2) put_block(kept + (s + 1) * 16 * HOPPER_L_ROW, x);
        add_block(sum, x, below + s * 16 * HOPPER_L_ROW);
#pragma unroll
        for (int j = 0; j < s; j++) {
            float y[2][4];
            take_block(y, kept + (j + 1) * 16 * HOPPER_L_ROW);
            add_block(sum, y, below + j * 16 * HOPPER_L_ROW);
        }
        make_factor(x, sum);
        add_block(product, x, w.square + r * (16 * HOPPER_L_ROW + 64) + lane_at);
        make_factor(x, product);
    }
}

/* NaN in the diagonal of T for dead tokens. */
GDN_DEVICE void poison_dead(const struct hopper_solver &w, const uint32_t *dead, uint32_t tile)
{
    const uint32_t mine = dead[w.warp / 2] >> w.warp % 2 * 16 & 0xffff;
    if (!mine) return;
    __syncwarp();
    const int i = 16 * w.warp + w.lane;
    if (w.lane < 16 && mine >> w.lane & 1) store_shared_u16(tile + tile_place(i, i), 0x7fff);
}

/* ---- P --------------------------------------------------------------------------------------- */

/* Zeros for what is parted from its row's token by one that forgets. By a warp: its rows. */
GDN_DEVICE void part_rows(const hopper_gates &g, uint32_t tile, int warp, int lane)
{
    const token_mask resets = tokens_of(g.resets);
    __syncwarp();
    for (int e = opaque(lane); e < 16 * 64; e += 32) {
        const int i = 16 * warp + e / 64, j = e % 64;
        if (j < i && are_parted(resets, j, i)) store_shared_u16(tile + tile_place(i, j), 0);
    }
}

/* The warp's rows, from Q K^T: blocks up to the diagonal. */
template <int io>
GDN_DEVICE void write_p_rows(const hopper_gates &g, float (&x)[32], uint32_t tile, int warp, int lane)
{
    typedef hopper_format<io> format;
    const int      row = 16 * warp + lane / 4, column = lane % 4 * 2;
    const float    G0 = g.G[row], G1 = g.G[row + 8], q0 = g.q_scale[row], q1 = g.q_scale[row + 8];
    const uint32_t keep = (column <= lane / 4 ? 0xffffu : 0u) |
                          (column + 1 <= lane / 4 ? 0xffff0000u : 0u);
    const uint32_t at = (tile + tile_place(16 * warp + lane % 16, 0)) ^ lane / 16 << 4;
    float2         next[2];
    load_pairs(next, g.sooner + column);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        uint32_t y[4];
        if (n > warp) continue;
        const float2 G[2] = { next[0], next[1] };
        load_pairs(next, g.sooner + 16 * ((n + 1) % 4) + column);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float *p = x + 8 * n + 4 * h;
            y[2 * h]       = format::pair(p[0] * (q0 * ex2_approx(G0 - G[h].x)),
                                          p[1] * (q0 * ex2_approx(G0 - G[h].y)));
            y[2 * h + 1]   = format::pair(p[2] * (q1 * ex2_approx(G1 - G[h].x)),
                                          p[3] * (q1 * ex2_approx(G1 - G[h].y)));
        }
        /* On the diagonal tokens after the row's are cut off whatever they hold. */
        const uint32_t all = n == warp ? 0u : ~0u;
        store_matrices(at ^ (uint32_t)n << 5, y[0] & (keep | all), y[1],
                       y[2] & all, y[3] & (keep | all));
    }
}

/* x: Q K^T. Each warp for itself: those with little to do for T have much to do here. */
template <int io>
GDN_DEVICE void make_p_rows(const struct hopper_block &b, float (&x)[32], int c, int warp, int lane)
{
    const hopper_gates &g    = b.gates(c);
    const uint32_t      tile = b.p(c), rows = tile + warp * 16 * 128;
    b.wait_free(HOPPER_P_FREE, c);
    write_p_rows<io>(g, x, tile, warp, lane);
    if (tokens_of(g.resets)) part_rows(g, tile, warp, lane);
    async_fence();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(b.of(HOPPER_P_FULL, c));
    if (HOPPER_BLOCKS == 2 && lane == 0) {
        const uint32_t full    = b.other(b.of(HOPPER_P_FULL, c));
        const uint32_t q_start = shared_address(g.q_start + 16 * warp);
        const bool     lengths = b.r.norm != GDN_NORM_NONE;
        mbarrier_expect_cluster(full, 16 * 128 + (lengths ? 16 * 4 : 0));
        copy_to_block(b.other(rows), rows, 16 * 128, full);
        if (lengths) copy_to_block(b.other(q_start), q_start, 16 * 4, full);
    }
    __syncwarp();
}

/* ---- The warpgroup ----------------------------------------------------------------------------- */

/* 1 / length of token t, from the product of a tile with itself, where it is the lane's. */
template <class use>
GDN_DEVICE void for_lengths(const struct hopper_solver &w, const float (&x)[32], int n, const use &put)
{
    const int g = w.lane / 4;
    float     squares[2];
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (i == 0 || i == w.warp) {
            squares[0] = g % 2 ? x[8 * i + 1] : x[8 * i];
            squares[1] = g % 2 ? x[8 * i + 7] : x[8 * i + 6];
        }
#pragma unroll 1
    for (int i = 0; i < 2; i++) {
        const int   t      = 16 * w.warp + 8 * i + g;
        const float square = i ? squares[1] : squares[0];
        if (g / 2 == w.lane % 4)
            put(t, t < n ? inverse_length(square, w.b.r.norm, w.b.r.norm_eps) : 1);
    }
    __syncwarp();
}

/* Lengths of keys, from K K^T. */
template <int io>
GDN_DEVICE void write_lengths(const struct hopper_solver &w, hopper_gates &g, const float (&x)[32])
{
    if (io != GDN_F16)
        for_lengths(w, x, g.n, [&](int t, float length) {
            const float log = log2f(length);
            g.k_scale[t]    = length;
            g.later[t] += log;
            g.sooner[t] -= log;
            g.from_start[t] *= length;
            g.to_end[t] *= length;
        });
}
/* Of queries, from Q Q^T; for the warp's rows of P it needs no others. */
GDN_DEVICE void write_query_lengths(const struct hopper_solver &w, hopper_gates &g,
                                    const float (&y)[32])
{
    for_lengths(w, y, g.n, [&](int t, float length) {
        g.q_scale[t] = w.b.r.scale * length;
        g.q_start[t] *= length;
    });
}

/* What is below the diagonal, from K K^T, in the square. */
GDN_DEVICE void write_square(const struct hopper_solver &w, hopper_gates &g, float (&x)[32], int c)
{
    const bool fine = write_rows(w, g, x);
    if (__any_sync(0xffffffff, !fine) || tokens_of(g.resets)) mend_rows(w, g, w.dead(c));
    __syncwarp();
}

/* T of chunk c, from the square. */
template <int io>
GDN_DEVICE void make_t(const struct hopper_solver &w, const hopper_gates &g, int c)
{
    const struct hopper_block &b    = w.b;
    const uint32_t             tile = b.t(c);
    b.wait_free(HOPPER_T_FREE, c);
    write_column<io>(w, g, tile);
    poison_dead(w, w.dead(c), tile);
    async_fence();
    __syncwarp();
    if (w.lane == 0) mbarrier_arrive(b.of(HOPPER_T_FULL, c));
    if (HOPPER_BLOCKS == 1 || !w.is_last()) return;
    if (w.lane == 0) {
        const uint32_t full = b.other(b.of(HOPPER_T_FULL, c)), k_scale = shared_address(g.k_scale);
        const bool     lengths = io != GDN_F16 && b.r.norm != GDN_NORM_NONE;
        mbarrier_expect_cluster(full, HOPPER_TILE + (lengths ? 3 * 64 * 4 : 0));
        copy_to_block(b.other(tile), tile, HOPPER_TILE, full);
        if (lengths) /* with from_start and to_end */
            copy_to_block(b.other(k_scale), k_scale, 3 * 64 * 4, full);
    }
    __syncwarp();
}

/* Q K^T of chunk c alone: there is one place for queries, which are awaited when T is made. */
template <int io>
GDN_DEVICE void multiply_queries(const struct hopper_solver &w, hopper_gates &g, float (&y)[32], int c)
{
    const struct hopper_block &b = w.b;
    b.wait(HOPPER_Q_FULL, c);
    if (b.r.norm != GDN_NORM_NONE) {
        multiply_tiles<io>(y, b.q(c), b.q(c));
        wgmma_wait<0>();
        write_query_lengths(w, g, y);
    }
    multiply_tiles<io>(y, b.q(c), b.k(c));
    wgmma_wait<0>();
    if (w.lane == 0) mbarrier_arrive(b.of(HOPPER_Q_FREE, c));
}

/* K K^T and Q K^T of chunk c, the second under way. */
template <int io>
GDN_DEVICE void multiply_chunk(const struct hopper_solver &w, hopper_gates &g, float (&x)[32],
                               float (&y)[32], int c)
{
    const struct hopper_block &b = w.b;
    b.wait(HOPPER_K_FULL, c);
    b.wait(HOPPER_GATES_FULL, c); /* in f16 keys have been scaled then */
    multiply_tiles<io>(x, b.k(c), b.k(c));
    if (!HOPPER_OUTPUTS || HOPPER_DEPTH == 2) {
        wgmma_wait<0>();
        if (io != GDN_F16 && b.r.norm != GDN_NORM_NONE) {
            write_lengths<io>(w, g, x);
            w.wait();
        }
        return;
    }
    b.wait(HOPPER_Q_FULL, c);
    if (b.r.norm != GDN_NORM_NONE) {
        multiply_tiles<io>(y, b.q(c), b.q(c));
        wgmma_wait<0>();
        write_lengths<io>(w, g, x);
        write_query_lengths(w, g, y);
        w.wait();
    }
    multiply_tiles<io>(y, b.q(c), b.k(c));
    wgmma_wait<1>();
}

/* One chunk at a time. (w is written out: by solver_of() clusters come out as other code, and they are
 * touchy about that.) */
template <int io>
GDN_DEVICE void solve_chunks(const struct hopper_block &b, int solver, int warp, int lane)
{
    const uint32_t             square = hopper_address() + HOPPER_L + solver * HOPPER_SQUARE;
    const struct hopper_solver w = { b, warp, lane, solver, square,
                                     square + warp * 16 * HOPPER_L_ROW };
#pragma unroll 1
    for (int c = (int)b.rank + solver; c < b.n_chunks; c += HOPPER_TURN) {
        hopper_gates &g = b.gates(c);
        float         x[32], y[32];
        multiply_chunk<io>(w, g, x, y, c);
        w.wait(); /* all have done with the square */
        write_square(w, g, x, c);
        invert_block(w);
        w.wait(); /* the inverses are there */
        if (warp == 0 && lane < 2) w.dead(c + HOPPER_TURN)[lane] = 0;
        wgmma_wait<0>();
        make_t<io>(w, g, c);
        if (HOPPER_DEPTH == 2) multiply_queries<io>(w, g, y, c);
        if (HOPPER_OUTPUTS) make_p_rows<io>(b, y, c, warp, lane);
    }
}

/* Of chunk i of a pair. */
GDN_DEVICE struct hopper_solver solver_of(const struct hopper_block &b, int i, int warp, int lane)
{
    const uint32_t square = hopper_address() + HOPPER_L + i * HOPPER_SQUARE;
    return { b, warp, lane, i, square, square + warp * 16 * HOPPER_L_ROW };
}

/* Two chunks at once: L and P, which take each warp the same time together; then both inverses, half a
 * warp each; then columns of T, of which warp 0 has the longest of the first chunk and the shortest of
 * the second. Lanes are opaque: no address is kept for a whole pair. */
template <int io> GDN_DEVICE void solve_pairs(const struct hopper_block &b, int warp, int lane)
{
#pragma unroll 1
    for (int c = 0; c < b.n_chunks; c += 2) {
        const int                  n     = min(2, b.n_chunks - c);
        const struct hopper_solver first = solver_of(b, 0, warp, opaque(lane));
#pragma unroll 1
        for (int i = 0; i < n; i++) {
            const struct hopper_solver w = solver_of(b, i, warp, opaque(lane));
            hopper_gates              &g = b.gates(c + i);
            float                      x[32], y[32];
            multiply_chunk<io>(w, g, x, y, c + i);
            if (i == 0) w.wait(); /* all have done with the squares */
            write_square(w, g, x, c + i);
            wgmma_wait<0>();
            make_p_rows<io>(b, y, c + i, warp, w.lane);
        }
        invert_block(first);
        first.wait(); /* the inverses are there */
        if (warp == 0 && lane < 4) solver_of(b, lane / 2, 0, lane).dead(c + 2)[lane % 2] = 0;
#pragma unroll 1
        for (int i = 0; i < n; i++)
            make_t<io>(solver_of(b, i, i ? 3 - warp : warp, opaque(lane)), b.gates(c + i), c + i);
    }
}

template <int io>
GDN_DEVICE void run_solve(const struct hopper_block &b, int solver, int warp, int lane)
{
    if constexpr (HOPPER_PAIRS)
        solve_pairs<io>(b, warp, lane);
    else
        solve_chunks<io>(b, solver, warp, lane);
}

#endif
