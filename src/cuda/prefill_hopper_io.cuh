/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warpgroup 0: P of every other chunk and, with a norm, the lengths of all; and what goes between
 * memory and the block, by a warp each: loads two chunks ahead, gates two ahead, the output one
 * behind. A step does first what others wait for.
 *
 * With a norm, 1 / length is a factor of the gates' vectors: gates are full once it is in them. In
 * f16 keys are scaled where they lie (prefill_chunk.cuh).
 */
#ifndef GDN_CUDA_PREFILL_HOPPER_IO_CUH
#define GDN_CUDA_PREFILL_HOPPER_IO_CUH

#include "prefill_hopper.cuh"

/* ---- P ------------------------------------------------------------------------------------- */

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
GDN_DEVICE void write_p_rows(const hopper_gates &g, const float (&x)[32], uint32_t tile, int warp,
                             int lane)
{
    typedef hopper_format<io> format;
    const int      row = 16 * warp + lane / 4, column = lane % 4 * 2;
    const float    G0 = g.G[row], G1 = g.G[row + 8], q0 = g.q_scale[row], q1 = g.q_scale[row + 8];
    const uint32_t keep = (column <= lane / 4 ? 0xffffu : 0u) |
                          (column + 1 <= lane / 4 ? 0xffff0000u : 0u);
    const uint32_t at = tile + tile_place(16 * warp + lane % 16, 0);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        if (n > warp) continue;
        uint32_t y[4];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float2 G = *(const float2 *)(g.G + 16 * n + 8 * h + column);
            const float *p = x + 8 * n + 4 * h;
            y[2 * h]       = format::pair(p[0] * (q0 * ex2_approx(G0 - G.x)),
                                          p[1] * (q0 * ex2_approx(G0 - G.y)));
            y[2 * h + 1]   = format::pair(p[2] * (q1 * ex2_approx(G1 - G.x)),
                                          p[3] * (q1 * ex2_approx(G1 - G.y)));
        }
        /* On the diagonal tokens after the row's are cut off whatever they hold. */
        const uint32_t all = n == warp ? 0u : ~0u;
        store_matrices(at ^ (uint32_t)(2 * n + lane / 16) << 4, y[0] & (keep | all), y[1],
                       y[2] & all, y[3] & (keep | all));
    }
}

template <int io> GDN_DEVICE void make_p_tile(const struct hopper_block &b, int c, int warp, int lane)
{
    const hopper_gates &g    = b.gates(c);
    const uint32_t      tile = b.p(c), rows = tile + warp * 16 * 128;
    float               x[32];
    b.wait_loaded(c);
    b.wait_slot(HOPPER_GATES_FULL, c);
    multiply_tiles<io>(x, b.kq(c) + HOPPER_TILE, b.kq(c));
    b.wait_slot_free(HOPPER_P_FREE, c);
    wgmma_wait();
    if (b.r.norm != GDN_NORM_NONE) scale_columns(x, g.k_scale);
    write_p_rows<io>(g, x, tile, warp, lane);
    if (tokens_of(g.resets)) part_rows(g, tile, warp, lane);
    async_fence();
    __syncwarp();
    if (lane != 0) return;
    const uint32_t full = b.other(b.of_slot(HOPPER_P_FULL, c));
    mbarrier_arrive(b.of_slot(HOPPER_P_FULL, c));
    mbarrier_expect_cluster(full, 16 * 128);
    copy_to_block(b.other(rows), rows, 16 * 128, full);
}

/* ---- Lengths --------------------------------------------------------------------------------- */

/* A thread per row of K or Q. 1 / its length. */
template <int io>
GDN_DEVICE float tile_row_length(const struct hopper_block &b, const char *row, int t)
{
    typedef hopper_format<io> format;
    float sum = 0;
#pragma unroll 2
    for (int i = 0; i < 16; i++) {
        const uint4 w = *(const uint4 *)(row + i / 8 * 2 * HOPPER_TILE + tile_place(t, i % 8 * 8));
        const uint32_t x[4] = { w.x, w.y, w.z, w.w };
#pragma unroll
        for (int e = 0; e < 4; e++) {
            sum = fmaf(format::low(x[e]), format::low(x[e]), sum);
            sum = fmaf(format::high(x[e]), format::high(x[e]), sum);
        }
    }
    return inverse_length(sum, b.r.norm, b.r.norm_eps);
}

template <int io> GDN_DEVICE void scale_tile_row(char *row, int t, float length)
{
    typedef hopper_format<io> format;
#pragma unroll 2
    for (int i = 0; i < 64; i++) {
        uint32_t *x = (uint32_t *)(row + i / 32 * 2 * HOPPER_TILE + tile_place(t, i % 32 * 2));
        *x          = format::pair(format::low(*x) * length, format::high(*x) * length);
    }
}

template <int io> GDN_DEVICE void add_lengths(const struct hopper_block &b, int c, int warp, int lane)
{
    hopper_gates &g    = b.gates(c);
    const bool    is_q = warp >= 2;
    const int     t    = warp % 2 * 32 + opaque(lane);
    char *row = gdn_shared + (b.kq(c) - hopper_address()) + (is_q ? HOPPER_TILE : 0);
    b.wait_loaded(c);
    barrier_wait(HOPPER_BARRIER_IO, 128); /* the gates are there */
    const float length = tile_row_length<io>(b, row, t);
    if (t >= g.n) {
    } else if (is_q) {
        g.q_scale[t] *= length;
        g.q_start[t] *= length;
    } else if (io == GDN_F16) {
        scale_tile_row<io>(row, t, length);
    } else {
        g.k_scale[t] = length;
        g.from_start[t] *= length;
        g.to_end[t] *= length;
    }
    if (io == GDN_F16) async_fence();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(b.of_slot(HOPPER_GATES_FULL, c));
}

/* ---- Loads ------------------------------------------------------------------------------------- */

/* Rows from n on become zero: what follows a sequence may be another. By a warp. */
GDN_DEVICE void clear_tail(uint32_t tile, int n, int lane)
{
    for (int i = 8 * n + lane; i < 8 * 64; i += 32) store_shared(tile + 16 * i, 0, 0, 0, 0);
}

/* K, Q and V of chunk c. By a warp. */
GDN_DEVICE void load_tiles(const struct hopper_block &b, int c, int lane)
{
    const uint32_t kq = b.kq(c), v = b.v(c), loaded = b.barrier(HOPPER_LOADED + c % 8);
    const uint32_t loaded_v = b.of_stage(HOPPER_LOADED_V, c), tail = b.barrier(HOPPER_TAIL);
    const int      n = b.tokens(c), first = (int)b.s().first + c * 64, row = (int)b.s().batch;
    const int      hk = source_head(b.r, b.head, b.r.Hk), hq = source_head(b.r, b.head, b.r.Hq);
    b.wait_stage_free(HOPPER_FREE, c);
    if (lane == 0) {
        const uint32_t on = n == 64 ? loaded : tail;
        mbarrier_expect(on, (n == 64 ? 4 : 5) * HOPPER_TILE);
        copy_tile(kq, &b.a.k, { 0, hk, first, row }, on);
        copy_tile(kq + 2 * HOPPER_TILE, &b.a.k, { 64, hk, first, row }, on);
        copy_tile(kq + HOPPER_TILE, &b.a.q, { 0, hq, first, row }, on);
        copy_tile(kq + 3 * HOPPER_TILE, &b.a.q, { 64, hq, first, row }, on);
    }
    b.wait_stage_free(HOPPER_FREE_V, c);
    if (lane == 0) {
        if (n == 64) mbarrier_expect(loaded_v, HOPPER_TILE);
        copy_tile(v, &b.a.v,
                  { (int)b.rank * 64, source_head(b.r, b.head, b.r.Hv), first, row },
                  n == 64 ? loaded_v : tail);
    }
    __syncwarp();
    if (n == 64) return;
    mbarrier_wait(tail, 0);
    for (int i = 0; i < 4; i++) clear_tail(kq + i * HOPPER_TILE, n, lane);
    clear_tail(v, n, lane);
    async_fence();
    __syncwarp();
    if (lane == 0) {
        mbarrier_arrive(loaded);
        mbarrier_arrive(loaded_v);
    }
    __syncwarp();
}

/* ---- Output -------------------------------------------------------------------------------------- */

/* Of chunk c, by a warp: whole tiles at once, the last one by rows. */
GDN_DEVICE void store_tile(const struct hopper_block &b, int c, int lane)
{
    const int n = b.tokens(c), column = (int)b.rank * 64, bytes = (b.r.V - column) * 2;
    b.wait_stage(HOPPER_OUT, c);
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
    if (lane == 0) mbarrier_arrive(b.of_stage(HOPPER_FREE_V, c));
}

/* ---- The warpgroup --------------------------------------------------------------------------------- */

template <int io> GDN_DEVICE void run_io(const struct hopper_block &b, int warp, int lane)
{
    const bool    norm = b.r.norm != GDN_NORM_NONE;
    raw_gates<64> raw  = {};
    if (warp == 1) {
        raw.A_log   = load_vector(b.r.A_log, b.head, 0);
        raw.dt_bias = load_vector(b.r.dt_bias, b.head, 0);
        fetch_gates(raw, b.r, b.s(), 0, b.head);
    }
#pragma unroll 1
    for (int step = -2; step <= b.n_chunks; step++) {
        const int ahead = step + 2;
        if (step >= 0 && step < b.n_chunks && b.is_own(step)) make_p_tile<io>(b, step, warp, lane);
        if (norm && step >= -1 && step + 1 < b.n_chunks) add_lengths<io>(b, step + 1, warp, lane);
        if (warp == 0 && ahead < b.n_chunks) load_tiles(b, ahead, lane);
        if (warp == 1 && ahead < b.n_chunks) {
            b.wait_slot_free(HOPPER_GATES_FREE, ahead);
            write_gates(b.gates(ahead), raw, b.r, b.tokens(ahead));
            __syncwarp();
            if (lane == 0 && !norm) mbarrier_arrive(b.of_slot(HOPPER_GATES_FULL, ahead));
            fetch_gates(raw, b.r, b.s(), (int64_t)(ahead + 1) * 64, b.head);
        }
        if (warp == 2 && step >= 1) store_tile(b, step - 1, lane);
        __syncwarp();
    }
    if (warp == 2 && lane == 0) copy_out_wait();
}

#endif
