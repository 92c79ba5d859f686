/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warpgroup 0, what goes between memory and the block, by a warp each: loads, gates, the output one
 * chunk behind; and with a norm, lengths, by all four. In the step of chunk c the state works on it,
 * and K and gates of c + 3 are brought, lengths of K for c + 2, V and Q of c + 2, lengths of Q for
 * c + 1.
 *
 * With a norm, 1 / length is a factor of the gates' vectors: gates are full once those of K are in
 * them. In f16 keys are scaled where they lie (prefill_chunk.cuh).
 */
#ifndef GDN_CUDA_PREFILL_HOPPER_IO_CUH
#define GDN_CUDA_PREFILL_HOPPER_IO_CUH

#include "prefill_hopper.cuh"

/* ---- Lengths --------------------------------------------------------------------------------- */

/* A thread per row of K or Q. 1 / its length. */
template <int io>
GDN_DEVICE float tile_row_length(const struct hopper_block &b, const char *row, int t)
{
    typedef hopper_format<io> format;
    float sum = 0;
#pragma unroll 2
    for (int i = 0; i < 16; i++) {
        const uint4 w = *(const uint4 *)(row + i / 8 * HOPPER_TILE + tile_place(t, i % 8 * 8));
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
        uint32_t *x = (uint32_t *)(row + i / 32 * HOPPER_TILE + tile_place(t, i % 32 * 2));
        *x          = format::pair(format::low(*x) * length, format::high(*x) * length);
    }
}

/* Of K of chunk c, by warps 0 and 1. */
template <int io> GDN_DEVICE void add_k_lengths(const struct hopper_block &b, int c, int t)
{
    hopper_gates &g   = b.gates(c);
    char         *row = gdn_shared + (b.k(c) - hopper_address());
    b.wait(HOPPER_K_FULL, c);
    const float length = tile_row_length<io>(b, row, t);
    if (t >= g.n) {
    } else if (io == GDN_F16) {
        scale_tile_row<io>(row, t, length);
    } else {
        g.k_scale[t] = length;
        g.from_start[t] *= length;
        g.to_end[t] *= length;
    }
    if (io == GDN_F16) async_fence();
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(b.of(HOPPER_GATES_FULL, c));
}

/* Of Q, by warps 2 and 3. */
template <int io> GDN_DEVICE void add_q_lengths(const struct hopper_block &b, int c, int t)
{
    hopper_gates &g = b.gates(c);
    b.wait(HOPPER_Q_FULL, c);
    const float length = tile_row_length<io>(b, gdn_shared + (b.q(c) - hopper_address()), t);
    g.q_scale[t] *= length;
    g.q_start[t] *= length;
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(b.of(HOPPER_Q_LENGTHS, c));
}

/* The lengths of a step, by all four. The barrier: the gates of both chunks have been written. */
template <int io> GDN_DEVICE void add_lengths(const struct hopper_block &b, int step, int warp)
{
    const int t = opaque((int)threadIdx.x % 64), c = warp < 2 ? step + 2 : step + 1;
    barrier_wait(HOPPER_BARRIER_IO, 128);
    if (c < 0 || c >= b.n_chunks) return;
    if (warp < 2)
        add_k_lengths<io>(b, c, t);
    else
        add_q_lengths<io>(b, c, t);
}

/* ---- Loads ------------------------------------------------------------------------------------- */

/* Where a warp loads to and from. */
struct hopper_load {
    uint32_t    tile;
    int         n_tiles; /* 64 columns each */
    const void *map;
    int         column, head, full, tail; /* full: barriers; tail: of the three of the last chunk */
};

/* Rows from n on become zero: what follows a sequence may be another. By a warp. */
GDN_DEVICE void clear_tail(const struct hopper_load &a, int n, int lane)
{
    for (int i = 0; i < a.n_tiles; i++)
        for (int e = 8 * n + lane; e < 8 * 64; e += 32)
            store_shared(a.tile + i * HOPPER_TILE + 16 * e, 0, 0, 0, 0);
}

/* Tiles of chunk c. By a warp. */
GDN_DEVICE void load_tiles(const struct hopper_block &b, const struct hopper_load &a, int c, int lane)
{
    const uint32_t full = b.of(a.full, c), tail = b.barrier(HOPPER_TAIL);
    const int      n = b.tokens(c), first = (int)b.s().first + c * 64, row = (int)b.s().batch;
    const uint32_t on = n == 64 ? full : tail;
    if (lane == 0) {
        mbarrier_expect(on, a.n_tiles * HOPPER_TILE);
        copy_tile(a.tile, a.map, { a.column, a.head, first, row }, on);
        if (a.n_tiles == 2)
            copy_tile(a.tile + HOPPER_TILE, a.map, { a.column + 64, a.head, first, row }, on);
    }
    __syncwarp();
    if (n == 64) return;
    mbarrier_wait(tail, a.tail & 1);
    clear_tail(a, n, lane);
    async_fence();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(full);
    __syncwarp();
}

GDN_DEVICE void load_k(const struct hopper_block &b, int c, int lane)
{
    const int head = source_head(b.r, b.head, b.r.Hk);
    b.wait_free(HOPPER_K_FREE, c);
    load_tiles(b, { b.k(c), 2, &b.a.k, 0, head, HOPPER_K_FULL, 0 }, c, lane);
}
GDN_DEVICE void load_v(const struct hopper_block &b, int c, int lane)
{
    const int head = source_head(b.r, b.head, b.r.Hv), column = (int)b.rank * 64;
    b.wait_free(HOPPER_V_FREE, c);
    load_tiles(b, { b.v(c), 1, &b.a.v, column, head, HOPPER_V_FULL, 1 }, c, lane);
}
GDN_DEVICE void load_q(const struct hopper_block &b, int c, int lane)
{
    const int head = source_head(b.r, b.head, b.r.Hq);
    b.wait_free(HOPPER_Q_FREE, c);
    load_tiles(b, { b.q(c), 2, &b.a.q, 0, head, HOPPER_Q_FULL, 2 }, c, lane);
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
    for (int step = -3; step <= b.n_chunks; step++) {
        const int c2 = step + 2, c3 = step + 3;
        if (warp == 0 && c3 < b.n_chunks) load_k(b, c3, lane);
        if (warp == 0 && c2 >= 0 && c2 < b.n_chunks) load_v(b, c2, lane);
        if (warp == 1 && c3 < b.n_chunks) {
            b.wait_free(HOPPER_K_FREE, c3);
            write_gates(b.gates(c3), raw, b.r, b.tokens(c3));
            __syncwarp();
            if (lane == 0 && !norm) mbarrier_arrive(b.of(HOPPER_GATES_FULL, c3));
            fetch_gates(raw, b.r, b.s(), (int64_t)(c3 + 1) * 64, b.head);
        }
        if (warp == 2 && step >= 1) store_tile(b, step - 1, lane);
        if (norm) add_lengths<io>(b, step, warp);
        if (warp == 0 && c2 >= 0 && c2 < b.n_chunks) load_q(b, c2, lane);
        __syncwarp();
    }
    if (warp == 2 && lane == 0) copy_out_wait();
}

#endif
