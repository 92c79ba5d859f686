/* SPDX-License-Identifier: Apache-2.0 */
/*
 * T and P of a chunk (kernel.cuh), by a warpgroup. T = (I + B A)^-1 B with B = diag(beta) and A_ij
 * = exp(rest_i - rest_j) k_i . k_j for j < i. With a norm beta / length^2 replaces beta.
 * solve_gram.cuh turns products of keys into the square -(B A)^T. This file inverts it, in blocks
 * of 16 x 16:
 *
 *     diagonal   by halves; a half by substitution in float32, a lane per column
 *     rest       warp w has block column w and goes down: T_rw = D_r sum of L_rj T_jw, as products
 *                on T^T with factors of f16 and sums of float32
 *
 * If a value is beyond f16 or not finite, T is not finite either. The state's warps then find a U
 * that is not finite (state_by_token.cuh). If keys' lengths are so far apart that products of the
 * shorter ones would be below f16, this file makes T not finite for the same purpose.
 */
#ifndef GDN_CUDA_PREFILL_HOPPER_SOLVE_CUH
#define GDN_CUDA_PREFILL_HOPPER_SOLVE_CUH

#include "cuda/prefill/sm90/solve_gram.cuh"

/* The values that a warp of T and P holds. */
struct hopper_solver {
    const struct hopper_block &b;
    int warp;
    uint32_t lane;
    int number;      /* of its square: the warpgroup of its block, or one of two chunks */
    uint32_t square; /* a tile: 64 x 64 of f16 */
    uint32_t rows;   /* the warp's 16 of them */

    __device__ __forceinline__ void wait() const
    {
        barrier_wait(number ? HOPPER_BARRIER_SECOND : HOPPER_BARRIER_SOLVE, 128);
    }
    /* Returns true if all of T has been written and this warp has the most to do for it. Other
     * warps go on. */
    __device__ __forceinline__ bool is_last() const
    {
        if (warp == 0)
            barrier_wait(HOPPER_BARRIER_WRITTEN, 128);
        else
            barrier_arrive(HOPPER_BARRIER_WRITTEN, 128);
        return warp == 0;
    }
};

/* ---- Blocks of the diagonal ------------------------------------------------------------------ */

/* Inverts a half of the block in place, 8 x 8 at `half`, transposed: rows are columns. `column` is
 * the number of its first 16 bytes in their row. It substitutes, with a lane per column of each
 * half. The other half of the warp has another square, or does the same. */
GDN_DEVICE void invert_half(uint32_t half, uint32_t column, uint32_t lane)
{
    const uint32_t own = lane % 8, first = half | column << 4;
    const uint32_t row = (first ^ own << 4) + own * 128;
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = own == i ? 1 : 0;
#pragma unroll
    for (int j = 0; j < 7; j++) {
        float l[4];
        load_shared(l, (first ^ j << 4) + j * 128);
#pragma unroll
        for (int i = j + 1; i < 8; i++) {
            const uint32_t pair = __float_as_uint(l[i / 2]);
            x[i] = fmaf(i % 2 ? mma_format_f16::high(pair) : mma_format_f16::low(pair), x[j], x[i]);
        }
    }
    __syncwarp();
    store_shared(row, f32_to_f16x2(x[0], x[1]), f32_to_f16x2(x[2], x[3]), f32_to_f16x2(x[4], x[5]),
                 f32_to_f16x2(x[6], x[7]));
    if (lane & 8) store_shared(row ^ 16, 0, 0, 0, 0); /* zeros in the other 16 bytes of the row */
    __syncwarp();
}

/* Inverts the warp's block of the diagonal, for all chunks at once; w is of the first chunk. A and
 * D are its inverted halves. C, between them, becomes -D^-1 C A^-1; transposed that is A^-T (-C^T)
 * D^-T. Each chunk has a product of its own, so that a value that is not finite does not reach the
 * other chunk. */
GDN_DEVICE void invert_block(const struct hopper_solver &w)
{
    const uint32_t lane = opaque(w.lane), other = (HOPPER_AT_ONCE - 1) * HOPPER_TILE;
    const uint32_t row = lane % 8, second = lane / 8 % 2;
    const uint32_t A = w.rows + second * other + row * 128 + ((2 * w.warp ^ row) << 4);
    uint32_t a[4], b[4];
    invert_half(w.rows + lane / 16 * other + second * 8 * 128, 2 * w.warp + second, lane);
    load_matrices(a, A);
    load_matrices_turned(b, (A ^ 16) + lane / 16 * 8 * 128);
    const uint32_t C = w.rows + lane / 4 * 128 + ((2 * w.warp + 1 ^ lane / 4) << 4) + lane % 4 * 4;
#pragma unroll
    for (int i = 0; i < HOPPER_AT_ONCE; i++) {
        float y[4] = {}, z[4] = {};
        const uint32_t half[4] = { a[i], 0, 0, 0 };
        mma_f16(y, half, b[i], 0);
        const uint32_t product[4] = { f32_to_f16x2(y[0], y[1]), 0, 0, 0 };
        mma_f16(z, product, b[2 + i], 0);
        store_shared(C + i * HOPPER_TILE, f32_to_f16x2(z[0], z[1]));
    }
}

/* ---- Columns of T ---------------------------------------------------------------------------- */

/* Adds x, a factor, times the block at `at` (of this lane) to sum. */
GDN_DEVICE void add_block(float (&sum)[2][4], const uint32_t (&x)[4], uint32_t at)
{
    uint32_t b[4];
    load_matrices_turned(b, at);
    mma_f16(sum[0], x, b[0], b[1]);
    mma_f16(sum[1], x, b[2], b[3]);
}

/* Converts a sum to a factor. */
GDN_DEVICE void make_factor(uint32_t (&x)[4], const float (&sum)[2][4])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        x[i] = f32_to_f16x2(sum[i / 2][i % 2 * 2], sum[i / 2][i % 2 * 2 + 1]);
}

/* Stores block (r, the warp's) of T from its transpose, with columns times beta. A lane has two
 * columns. */
template <int io>
GDN_DEVICE void write_block(const struct hopper_solver &w, const float (&beta)[2], uint32_t tile,
                            int r, const float (&x)[2][4])
{
    typedef hopper_format<io> format;
    const uint32_t y[4] = { format::pair(x[0][0] * beta[0], x[0][1] * beta[0]),
                            format::pair(x[0][2] * beta[1], x[0][3] * beta[1]),
                            format::pair(x[1][0] * beta[0], x[1][1] * beta[0]),
                            format::pair(x[1][2] * beta[1], x[1][3] * beta[1]) };
    store_turned(tile, r, turned_lane(w.lane) ^ (uint32_t)w.warp << 5, y);
}

/* Computes the warp's block column of T, from the diagonal down. */
template <int io>
GDN_DEVICE void write_column(const struct hopper_solver &w, const hopper_gates &g, uint32_t tile)
{
    const uint32_t at = block_lane(w.lane);
    const float *weight = g.weight + 16 * w.warp + w.lane / 4;
    const float beta[2] = { weight[0], weight[8] };
    uint32_t x[4][4]; /* factors, from the diagonal down */
    float product[2][4];
    load_matrices(x[0], w.rows + (at ^ (uint32_t)w.warp << 5));
#pragma unroll
    for (int i = 0; i < 4; i++) {
        product[i / 2][i % 2 * 2] = mma_format_f16::low(x[0][i]);
        product[i / 2][i % 2 * 2 + 1] = mma_format_f16::high(x[0][i]);
    }
    write_block<io>(w, beta, tile, w.warp, product);
#pragma unroll
    for (int s = 1; s < 4; s++) {
        const int r = w.warp + s;
        const uint32_t below = at ^ (uint32_t)r << 5;
        float sum[2][4] = {};
        if (r >= 4) break;
#pragma unroll
        for (int j = 0; j < s; j++) add_block(sum, x[j], w.rows + j * 16 * 128 + below);
        make_factor(x[s], sum);
#pragma unroll
        for (int i = 0; i < 8; i++) product[i / 4][i % 4] = 0;
        add_block(product, x[s], w.square + r * 16 * 128 + below);
        write_block<io>(w, beta, tile, r, product);
        if (s < 3) make_factor(x[s], product);
    }
}

/* ---- The warpgroup --------------------------------------------------------------------------- */

/* Sends the warp's rows of P, which are complete and fenced, to the other block. */
GDN_DEVICE void send_p(const struct hopper_block &b, const hopper_gates &g, int c, int warp,
                       uint32_t lane)
{
    const uint32_t rows = b.p(c) + warp * 16 * 128;
    if (HOPPER_BLOCKS == 2 && lane == 0) {
        const uint32_t full = b.other(b.of(HOPPER_P_TOLD, c));
        const uint32_t q_start = shared_address(g.q_start + 16 * warp);
        const bool lengths = b.r.norm != GDN_NO_NORM;
        mbarrier_expect_cluster(full, 16 * 128 + (lengths ? 16 * 4 : 0));
        copy_to_block(b.other(rows), rows, 16 * 128, full);
        if (lengths) copy_to_block(b.other(q_start), q_start, 16 * 4, full);
    }
}

/* Returns the squared length of token lane % 16. One lane has it in the product of a tile of 16
 * tokens with itself. */
GDN_DEVICE float find_square(const float *x, int warp, uint32_t lane)
{
    const int g = lane / 4, from = lane % 8 * 4 + lane % 8 / 2;
    float a[2] = { 0, 0 };
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (i == warp) {
            a[0] = g % 2 ? x[8 * i + 1] : x[8 * i];
            a[1] = g % 2 ? x[8 * i + 7] : x[8 * i + 6];
        }
    const float first = __shfl_sync(0xffffffff, a[0], from);
    const float second = __shfl_sync(0xffffffff, a[1], from);
    return lane % 16 < 8 ? first : second;
}

/* Returns true if keys differ so much in length that a product, divided by the square of the
 * longer length, is below the range of f16. Tokens behind the last one have no keys. */
GDN_DEVICE bool are_lengths_apart(const hopper_gates &g, uint32_t lane)
{
    const uint32_t last = g.n - 1;
    const uint32_t a = __float_as_uint(g.k_scale[min(lane, last)]);
    const uint32_t b = __float_as_uint(g.k_scale[min(lane + 32, last)]);
    const float longest = __uint_as_float(__reduce_min_sync(0xffffffff, min(a, b)));
    const float shortest = __uint_as_float(__reduce_max_sync(0xffffffff, max(a, b)));
    return !(shortest <= 4096 * longest);
}

/* Computes lengths of the warp's keys, from K K^T (x), and queries, from Q Q^T (x + 32), half a
 * warp each. In f16 keys have been scaled. Returns true if the keys' lengths are too far apart. */
template <int io, bool keys, bool queries>
GDN_DEVICE bool write_lengths(const struct hopper_solver &w, hopper_gates &g, float k, float q)
{
    const int t = 16 * w.warp + w.lane % 16;
    const bool query = queries && (!keys || w.lane >= 16);
    const float square = query ? q : k; /* if it is zero, the length does not matter */
    const float length = square == 0 ? 1 : norm_length(square, w.b.r.norm, w.b.r.norm_eps);
    if (query && (keys || w.lane < 16)) {
        g.o_scale[t] *= 1 / length;
        g.q_start[t] *= 1 / length;
    }
    if (keys && io != GDN_F16 && w.lane < 16) {
        g.k_scale[t] = 1 / length;
        g.weight[t] *= 1 / length * (1 / length);
        g.v_scale[t] *= length;
    }
    w.wait(); /* columns need the lengths of all warps */
    return keys && io != GDN_F16 && are_lengths_apart(g, w.lane);
}

/* Corrects written columns of the square and of P: those of uneven chunks, and those of two tokens
 * that a gate that forgets parts. */
template <int io, bool keys, bool queries>
GDN_DEVICE void mend_columns(const struct hopper_solver &w, const hopper_gates &g, bool uneven,
                             int c)
{
    typedef hopper_format<io> format;
    const uint32_t p = w.b.p(c);
    if (keys && uneven) gate_columns<format, true>(g, w.square, 0, w.warp + 1, w.warp, w.lane);
    if (queries && uneven) gate_columns<format, false>(g, p, w.warp, 4, w.warp, w.lane);
    if (!tokens_of(g.resets)) return;
    if (keys) part_columns(g, w.square, w.warp, w.lane);
    if (queries) part_columns(g, p, w.warp, w.lane);
}

/* Writes the square below its diagonal, and P of chunk c. Products (x) are in flight. If lengths of
 * keys are too far apart, T becomes not finite. */
template <int io, bool keys, bool queries>
GDN_DEVICE void make_products(const struct hopper_solver &w, const hopper_gates &g,
                              const float (&x)[64], int c, bool apart = false)
{
    const uint32_t rare = g.rare;
    const int row = 16 * w.warp + w.lane / 4;
    const float nan = __int_as_float(0x7fffffff);
    const float f[2] = { apart ? nan : -g.weight[row], apart ? nan : -g.weight[row + 8] };
    if (queries) w.b.wait_free(HOPPER_P_FREED, c);
    wgmma_wait<0>();
    write_columns<io, keys, queries>(g, f, x, w.square, w.b.p(c), w.warp, w.lane);
    if (in_warp(rare & (HOPPER_UNEVEN | HOPPER_RARE)))
        mend_columns<io, keys, queries>(w, g, in_warp(rare & HOPPER_UNEVEN), c);
    __syncwarp();
}

/* Computes T of chunk c from the square. Unless P comes late, it is announced with T. */
template <int io>
GDN_DEVICE void make_t(const struct hopper_solver &w, const hopper_gates &g, int c)
{
    const struct hopper_block &b = w.b;
    const uint32_t tile = b.t(c);
    if (!HOPPER_WITH_P) b.wait_free(HOPPER_T_FREE, c);
    write_column<io>(w, g, tile);
    async_fence();
    __syncwarp();
    if (w.lane == 0) mbarrier_arrive(b.of(HOPPER_T_FULL, c));
    if (HOPPER_WITH_P) send_p(b, g, c, w.warp, w.lane);
    if (HOPPER_BLOCKS == 1 || !w.is_last()) return;
    if (w.lane == 0) {
        const uint32_t full = b.other(b.of(HOPPER_T_FULL, c)), k_scale = shared_address(g.k_scale);
        const bool lengths = io != GDN_F16 && b.r.norm != GDN_NO_NORM;
        mbarrier_expect_cluster(full, HOPPER_TILE + (lengths ? 2 * 64 * 4 : 0));
        copy_to_block(b.other(tile), tile, HOPPER_TILE, full);
        if (lengths) /* with v_scale */
            copy_to_block(b.other(k_scale), k_scale, 2 * 64 * 4, full);
    }
    __syncwarp();
}

/* Computes P of chunk c, after T, if shared memory has one place for queries. */
template <int io>
GDN_DEVICE void make_p_late(const struct hopper_solver &w, hopper_gates &g, float (&x)[64], int c)
{
    const struct hopper_block &b = w.b;
    float(&y)[32] = *(float(*)[32])(x + 32);
    b.wait(HOPPER_Q_FULL, c);
    if (b.r.norm != GDN_NO_NORM) {
        multiply_tiles<io>(y, b.q(c), b.q(c));
        wgmma_wait<0>();
        write_lengths<io, false, true>(w, g, 0, find_square(y, w.warp, w.lane));
    }
    multiply_tiles<io>(y, b.k(c), b.q(c));
    make_products<io, false, true>(w, g, x, c);
    if (w.lane == 0) mbarrier_arrive(b.of(HOPPER_Q_FREE, c));
    async_fence();
    w.wait(); /* rows come from all warps */
    if (w.lane == 0) mbarrier_arrive(b.of(HOPPER_P_FULL, c));
    send_p(b, g, c, w.warp, w.lane);
    __syncwarp();
}

/* Issues K K^T of chunk c, and K Q^T unless it comes late. Finds lengths. Returns true if lengths
 * of keys are too far apart. */
template <int io>
GDN_DEVICE bool multiply_chunk(const struct hopper_solver &w, hopper_gates &g, float (&x)[64],
                               int c)
{
    constexpr bool both = HOPPER_WITH_P;
    const struct hopper_block &b = w.b;
    const bool norm = b.r.norm != GDN_NO_NORM;
    bool apart = false;
    float(&first)[32] = *(float(*)[32])x;
    float(&second)[32] = *(float(*)[32])(x + 32);
    b.wait(HOPPER_FULL, c);
    if constexpr (HOPPER_STACKED) { /* lengths of keys come from the product for L */
        float square = 0;
        if (norm) {
            multiply_tiles<io>(second, b.q(c), b.q(c));
            wgmma_wait<0>();
            square = find_square(second, w.warp, w.lane);
        }
        multiply_tiles<io>(x, b.k(c), b.k(c)); /* and queries */
        if (norm) {
            wgmma_wait<0>();
            apart = write_lengths<io, true, both>(w, g, find_square(x, w.warp, w.lane), square);
        }
        return apart;
    }
    multiply_tiles<io>(first, b.k(c), b.k(c));
    if (both) b.wait(HOPPER_Q_FULL, c);
    if (norm && (both || io != GDN_F16)) {
        if (both) multiply_tiles<io>(second, b.q(c), b.q(c));
        wgmma_wait<0>();
        apart = write_lengths<io, true, both>(w, g, find_square(first, w.warp, w.lane),
                                              both ? find_square(second, w.warp, w.lane) : 0);
    }
    if (both) multiply_tiles<io>(second, b.k(c), b.q(c));
    return apart;
}

/* Returns the values of a warp that makes T in square i. Each chunk that is solved at a time has a
 * square. */
GDN_DEVICE struct hopper_solver solver_of(const struct hopper_block &b, int i, int warp,
                                          uint32_t lane)
{
    const uint32_t square = hopper_address() + HOPPER_L + i * HOPPER_TILE;
    return { b, warp, lane, i, square, square + warp * 16 * 128 };
}

/* Solves one chunk at a time. */
template <int io>
GDN_DEVICE void solve_chunks(const struct hopper_block &b, int solver, int warp, uint32_t lane)
{
    const struct hopper_solver w = solver_of(b, solver, warp, lane);
#pragma unroll 1
    for (int c = (int)b.rank + solver; c < b.n_chunks; c += HOPPER_TURN) {
        hopper_gates &g = b.gates(c);
        float x[64];
        const bool apart = multiply_chunk<io>(w, g, x, c);
        w.wait(); /* all warps have read the square */
        make_products<io, true, HOPPER_WITH_P>(w, g, x, c, apart);
        invert_block(w);
        w.wait(); /* the inverses are written */
        make_t<io>(w, g, c);
        if (HOPPER_LATE) make_p_late<io>(w, g, x, c);
    }
}

/* Solves two chunks at once, except the first chunk, which the state waits for. Half a warp makes
 * each inverse. Of the columns of T, warp 0 has the longest of one chunk and the shortest of the
 * other. Lanes are opaque: no address is kept for a whole pair. */
template <int io> GDN_DEVICE void solve_pairs(const struct hopper_block &b, int warp, uint32_t lane)
{
#pragma unroll 1
    for (int c = 0, n; c < b.n_chunks; c += n) {
        n = min(c ? 2 : 1, b.n_chunks - c);
        const struct hopper_solver first = solver_of(b, 0, warp, opaque(lane));
#pragma unroll 1
        for (int i = 0; i < n; i++) {
            const struct hopper_solver w = solver_of(b, i, warp, opaque(lane));
            hopper_gates &g = b.gates(c + i);
            float x[64];
            const bool apart = multiply_chunk<io>(w, g, x, c + i);
            if (i == 0) w.wait(); /* all warps have read the squares */
            make_products<io, true, true>(w, g, x, c + i, apart);
        }
        invert_block(first);
        first.wait(); /* the inverses are written */
#pragma unroll 1
        for (int i = 0; i < n; i++)
            make_t<io>(solver_of(b, i, i ? 3 - warp : warp, opaque(lane)), b.gates(c + i), c + i);
    }
}

template <int io>
GDN_DEVICE void run_solve(const struct hopper_block &b, int solver, int warp, uint32_t lane)
{
    if constexpr (HOPPER_PAIRS)
        solve_pairs<io>(b, warp, lane);
    else
        solve_chunks<io>(b, solver, warp, lane);
}

#endif
