/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warpgroup 0, what goes between memory and the block, a warp each at its own pace: loads (K and Q
 * three chunks ahead, V one), gates, the output, and with a norm, lengths.
 *
 * With a norm, 1 / length is a factor of the gates' vectors: gates are full once those of K are in
 * them. In f16 keys are scaled where they lie (prefill_chunk.cuh).
 */
#ifndef GDN_CUDA_PREFILL_HOPPER_IO_CUH
#define GDN_CUDA_PREFILL_HOPPER_IO_CUH

#include "prefill_hopper.cuh"

/* ---- Lengths: by a warp ----------------------------------------------------------------------- */

/* Sums of the squares of a tile's rows: diagonals of the products of 16 rows with themselves. */
template <int io> GDN_DEVICE void sum_squares(float *sums, uint32_t tile, int lane)
{
    typedef mma_tiles<io> tiles;
    const int g = lane / 4, t = lane % 4;
    mma_block products[4] = {};
#pragma unroll 1
    for (int k = 0; k < 8; k++) {
        const uint32_t at = tile + k / 4 * HOPPER_TILE +
                            tile_place(lane % 16, k % 4 * 16 + lane / 16 * 8);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            typename tiles::operand x;
            load_matrices(x.x, at + i * 16 * 128);
            tiles::multiply(products[i], x, x);
        }
    }
    __syncwarp(); /* the sums before have been read */
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (g / 2 != t) continue;
        sums[16 * i + g]     = g % 2 ? products[i][0][1] : products[i][0][0];
        sums[16 * i + 8 + g] = g % 2 ? products[i][1][3] : products[i][1][2];
    }
    __syncwarp();
}

/* Row t of a tile times x. */
template <int io> GDN_DEVICE void scale_tile_row(uint32_t tile, int t, float x)
{
    typedef hopper_format<io> format;
    char *row = gdn_shared + (tile - hopper_address());
#pragma unroll 2
    for (int i = 0; i < 64; i++) {
        uint32_t *y = (uint32_t *)(row + i / 32 * HOPPER_TILE + tile_place(t, i % 32 * 2));
        *y          = format::pair(format::low(*y) * x, format::high(*y) * x);
    }
}

/* Of K or Q of chunk c: factors of its gates. One code for both, as it must be small. */
template <int io> GDN_DEVICE void add_lengths(const struct hopper_block &b, int c, bool is_q, int lane)
{
    hopper_gates  &g    = b.gates(c);
    float         *sums = b.common().squares;
    const uint32_t tile = is_q ? b.q(c) : b.k(c);
    b.wait(is_q ? HOPPER_Q_FULL : HOPPER_K_FULL, c);
    b.wait(HOPPER_GATES_MADE, c);
    sum_squares<io>(sums, tile, lane);
#pragma unroll 1
    for (int t = lane; t < g.n; t += 32) {
        const float length = inverse_length(sums[t], b.r.norm, b.r.norm_eps);
        if (io == GDN_F16 && !is_q) {
            scale_tile_row<io>(tile, t, length);
            continue;
        }
        (is_q ? g.q_scale : g.k_scale)[t] *= length;
        (is_q ? g.q_start : g.from_start)[t] *= length;
        if (!is_q) g.to_end[t] *= length;
    }
    if (io == GDN_F16) async_fence();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(b.of(is_q ? HOPPER_Q_LENGTHS : HOPPER_GATES_FULL, c));
}

/* K a chunk ahead of Q. */
template <int io> GDN_DEVICE void add_all_lengths(const struct hopper_block &b, int lane)
{
#pragma unroll 1
    for (int i = 0; i < 2 * b.n_chunks + 2; i++) {
        const bool is_q = i % 2 != 0;
        const int  c    = is_q ? i / 2 - 1 : i / 2;
        if (c >= 0 && c < b.n_chunks) add_lengths<io>(b, c, is_q, lane);
    }
}

/* ---- Loads ------------------------------------------------------------------------------------- */

/* What the warp that loads knows. */
struct hopper_loader {
    const struct hopper_block &b;
    int                        lane, k_head, v_head, q_head;
    int                        first, row, n_full; /* of the tensor; chunks of 64 tokens */
};

/* Tiles of 64 columns from `column` on of chunk c. By a warp. */
GDN_DEVICE void load_tiles(const struct hopper_loader &l, uint32_t tile, int n_tiles,
                           const void *map, int column, int head, int full, int c)
{
    const struct hopper_block &b = l.b;
    if (l.lane != 0) return;
    const uint32_t on = c < l.n_full ? b.of(full, c) : b.barrier(HOPPER_TAIL);
    const int      first = l.first + c * 64;
    mbarrier_expect(on, n_tiles * HOPPER_TILE);
    copy_tile(tile, map, { column, head, first, l.row }, on);
    if (n_tiles == 2) copy_tile(tile + HOPPER_TILE, map, { column + 64, head, first, l.row }, on);
}

/* Of a chunk that is not full: rows from n on become zero, as what follows a sequence may be another;
 * number: of the three such loads. By a warp. */
GDN_DEVICE void clear_tail(const struct hopper_loader &l, uint32_t tile, int n_tiles, int full,
                           int c, int number)
{
    __syncwarp();
    mbarrier_wait(l.b.barrier(HOPPER_TAIL), number & 1);
    for (int i = 0; i < n_tiles; i++)
        for (int e = 8 * l.b.tokens(c) + l.lane; e < 8 * 64; e += 32)
            store_shared(tile + i * HOPPER_TILE + 16 * e, 0, 0, 0, 0);
    async_fence();
    __syncwarp();
    if (l.lane == 0) mbarrier_arrive(l.b.of(full, c));
    __syncwarp();
}

/* The loads of a step: K and Q of chunk c + 3, V of c + 1. */
GDN_DEVICE void load_step(const struct hopper_loader &l, int c)
{
    const struct hopper_block &b = l.b;
    const int c1 = c + 1, c3 = c + 3, n = b.n_chunks;
    if (c3 < n) {
        b.wait_free(HOPPER_K_FREE, c3);
        load_tiles(l, b.k(c3), 2, &b.a.k, 0, l.k_head, HOPPER_K_FULL, c3);
        if (c3 == l.n_full) clear_tail(l, b.k(c3), 2, HOPPER_K_FULL, c3, 0);
    }
    if (c1 >= 0) {
        b.wait_free(HOPPER_V_FREE, c1);
        load_tiles(l, b.v(c1), 1, &b.a.v, (int)b.rank * 64, l.v_head, HOPPER_V_FULL, c1);
        if (c1 == l.n_full) clear_tail(l, b.v(c1), 1, HOPPER_V_FULL, c1, 2);
    }
    if (c3 < n) {
        b.wait_free(HOPPER_Q_FREE, c3);
        load_tiles(l, b.q(c3), 2, &b.a.q, 0, l.q_head, HOPPER_Q_FULL, c3);
        if (c3 == l.n_full) clear_tail(l, b.q(c3), 2, HOPPER_Q_FULL, c3, 1);
    }
}

GDN_DEVICE void load_all(const struct hopper_block &b, int lane)
{
    const struct hopper_loader l = { b, lane, source_head(b.r, b.head, b.r.Hk),
                                     source_head(b.r, b.head, b.r.Hv),
                                     source_head(b.r, b.head, b.r.Hq), (int)b.s().first,
                                     (int)b.s().batch, (int)(b.s().n_valid / 64) };
#pragma unroll 1
    for (int c = -3; c < b.n_chunks - 1; c++) load_step(l, c);
}

/* ---- Output -------------------------------------------------------------------------------------- */

/* Of chunk c, by a warp: whole tiles at once, the last one by rows. */
GDN_DEVICE void store_tile(const struct hopper_block &b, int c, int lane)
{
    const int n = b.tokens(c), column = (int)b.rank * 64, bytes = (b.r.V - column) * 2;
    b.wait(HOPPER_OUT_FULL, c);
    if (!b.r.out.data || bytes <= 0) {
    } else if (n == 64) {
        if (lane == 0) {
            async_fence(); /* what the state's warps have written and then arrived */
            copy_tile_out(&b.a.out, { column, b.head, (int)b.s().first + c * 64, (int)b.s().batch },
                          b.v(c));
            copy_out_commit();
            copy_out_wait_read();
        }
    } else {
        const char *tile = gdn_shared + (b.v(c) - hopper_address());
        for (int i = lane; i < 8 * n; i += 32) {
            const int t = i / 8, rest = bytes - i % 8 * 16;
            if (rest <= 0) continue;
            copy_out(row_at(b.r.out, b.s(), (int64_t)c * 64 + t, b.head) + column * 2 + i % 8 * 16,
                     tile + tile_place(t, i % 8 * 8), min(rest, 16), 16);
        }
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(b.of(HOPPER_V_FREE, c));
}

/* ---- The warpgroup --------------------------------------------------------------------------------- */

GDN_DEVICE void make_gates(const struct hopper_block &b, raw_gates<64> &raw, int c)
{
    b.wait_free(HOPPER_GATES_FREE, c);
    write_gates(b.gates(c), raw, b.r, b.tokens(c));
    __syncwarp();
    const int done = b.r.norm == GDN_NORM_NONE ? HOPPER_GATES_FULL : HOPPER_GATES_MADE;
    if (threadIdx.x % 32 == 0) mbarrier_arrive(b.of(done, c));
    fetch_gates(raw, b.r);
}

/* Each warp goes at its own pace. */
template <int io> GDN_DEVICE void run_io(const struct hopper_block &b, int warp, int lane)
{
    if (warp == 0) {
        load_all(b, lane);
    } else if (warp == 1) {
        raw_gates<64> raw;
        start_gates(raw, b.r, b.s(), b.head);
#pragma unroll 1
        for (int c = 0; c < b.n_chunks; c++) make_gates(b, raw, c);
    } else if (warp == 2) {
#pragma unroll 1
        for (int c = 0; c < b.n_chunks; c++) store_tile(b, c, lane);
        if (lane == 0) copy_out_wait();
    } else if (b.r.norm != GDN_NORM_NONE) {
        add_all_lengths<io>(b, lane);
    }
}

#endif
