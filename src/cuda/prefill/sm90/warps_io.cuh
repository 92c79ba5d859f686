/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warpgroup 0: everything between memory and the block. Each warp has its own pace. One loads (K
 * and Q three chunks ahead, V one), one stores the output, and two make the gates of every second
 * chunk.
 */
#ifndef GDN_CUDA_PREFILL_HOPPER_IO_CUH
#define GDN_CUDA_PREFILL_HOPPER_IO_CUH

#include "cuda/prefill/sm90/kernel.cuh"

/* ---- Keys of f16 with a norm: by a warp ------------------------------------------------------ */

/* Scales row t of a tile, all columns, to length one. */
template <int io> GDN_DEVICE void scale_row_to_one(const struct hopper_block &b, char *tile, int t)
{
    typedef hopper_format<io> format;
    float sum = 0;
#pragma unroll 2
    for (int i = 0; i < 32 * HOPPER_KEYS; i++) {
        const uint32_t x =
            *(const uint32_t *)(tile + i / 32 * HOPPER_NEXT + tile_place(t, i % 32 * 2));
        sum = fmaf(format::high(x), format::high(x), fmaf(format::low(x), format::low(x), sum));
    }
    const float length = inverse_length(sum, b.r.norm, b.r.norm_eps);
#pragma unroll 2
    for (int i = 0; i < 32 * HOPPER_KEYS; i++) {
        uint32_t *x = (uint32_t *)(tile + i / 32 * HOPPER_NEXT + tile_place(t, i % 32 * 2));
        *x = format::pair(format::low(*x) * length, format::high(*x) * length);
    }
}

template <int io> GDN_DEVICE void scale_keys(const struct hopper_block &b, int c, uint32_t lane)
{
    b.wait(HOPPER_LANDED, c);
    for (int t = lane; t < b.tokens(c); t += 32)
        scale_row_to_one<io>(b, gdn_shared + (b.k(c) - hopper_address()), t);
    async_fence();
    __syncwarp();
}

/* ---- Loads ----------------------------------------------------------------------------------- */

/* The values that the loading warp holds. */
struct hopper_loader {
    const struct hopper_block &b;
    uint32_t lane;
    int k_head, v_head, q_head;
    int first, row, n_full; /* of the tensor; chunks of 64 tokens */
    int keys;               /* barriers of K */
};

/* Loads n_tiles tiles of 64 columns of chunk c, from `column` on, `step` bytes apart. If `expects`
 * is not 0, first announces that many tiles to the barrier. One warp calls it. */
GDN_DEVICE void load_tiles(const struct hopper_loader &l, uint32_t tile, int step, int n_tiles,
                           const void *map, int column, int head, int full, int c, int expects)
{
    const struct hopper_block &b = l.b;
    if (l.lane != 0) return;
    const uint32_t on = c < l.n_full ? b.of(full, c) : b.barrier(HOPPER_TAIL);
    const int first = l.first + c * 64;
    if (expects) mbarrier_expect(on, expects * HOPPER_TILE);
    copy_tile(tile, map, { column, head, first, l.row }, on);
#pragma unroll
    for (int i = 1; i < n_tiles; i++)
        copy_tile(tile + i * step, map, { column + 64 * i, head, first, l.row }, on);
}

/* Zeroes the rows from n on of a chunk that is not full, because another sequence may follow.
 * number: the loads of K, Q and V so far. One warp calls it. */
GDN_DEVICE void clear_tail(const struct hopper_loader &l, uint32_t tile, int step, int n_tiles,
                           int full, int c, int number)
{
    __syncwarp();
    mbarrier_wait(l.b.barrier(HOPPER_TAIL), number & 1);
    for (int i = 0; i < n_tiles; i++)
        for (int e = 8 * l.b.tokens(c) + l.lane; e < 8 * 64; e += 32)
            store_shared(tile + i * step + 16 * e, 0, 0, 0, 0);
    async_fence();
    __syncwarp();
    if (l.lane == 0) mbarrier_arrive(l.b.of(full, c));
    __syncwarp();
}

/* Chunks by which loads of K and Q run ahead of the state. */
enum {
    HOPPER_K_AHEAD = HOPPER_K_RING - 1,
    HOPPER_Q_AHEAD = HOPPER_Q_RING < HOPPER_K_AHEAD ? HOPPER_Q_RING : HOPPER_K_AHEAD
};

/* Loads K of chunk c; also Q, if both are one factor. */
GDN_DEVICE void load_keys(const struct hopper_loader &l, int c)
{
    const struct hopper_block &b = l.b;
    const int both = HOPPER_STACKED ? 2 * HOPPER_KEYS : HOPPER_KEYS;
    b.wait_done(c - HOPPER_K_RING);
    load_tiles(l, b.k(c), HOPPER_NEXT, HOPPER_KEYS, &b.a.k, 0, l.k_head, l.keys, c, both);
    if (HOPPER_STACKED)
        load_tiles(l, b.k(c) + HOPPER_TILE, HOPPER_NEXT, HOPPER_KEYS, &b.a.q, 0, l.q_head, l.keys,
                   c, 0);
    if (c == l.n_full)
        clear_tail(l, b.k(c), HOPPER_STACKED ? HOPPER_TILE : HOPPER_NEXT, both, l.keys, c, 0);
}

/* Loads the tiles of a step: K of chunk c + 3 (or 2), V of c + 1, Q of c + 3 (or 2, or 1). */
GDN_DEVICE void load_step(const struct hopper_loader &l, int c)
{
    const struct hopper_block &b = l.b;
    const int c1 = c + 1, c3 = c + HOPPER_K_AHEAD, cq = c + HOPPER_Q_AHEAD, n = b.n_chunks;
    const int cv = !HOPPER_STACKED || c >= 0 ? c1 : c == -HOPPER_K_AHEAD ? 0 : -1;
    if (c3 < n) load_keys(l, c3);
    if (cv >= 0 && cv < n) {
        b.wait_free(HOPPER_V_FREE, cv);
        load_tiles(l, b.v(cv), HOPPER_TILE, HOPPER_WIDTH, &b.a.v, b.column(), l.v_head,
                   HOPPER_V_FULL, cv, HOPPER_WIDTH);
        if (cv == l.n_full)
            clear_tail(l, b.v(cv), HOPPER_TILE, HOPPER_WIDTH, HOPPER_V_FULL, cv,
                       1 + (HOPPER_WITH_P && !HOPPER_STACKED));
    }
    /* If blocks take turns at T, their warps wait for every second phase of the three barriers of
     * Q. So the next K must not come before the phase ahead of its Q has ended. */
    if (HOPPER_OUTPUTS && HOPPER_BLOCKS == 2 && HOPPER_DEPTH == 1 && c1 >= 0)
        b.wait(HOPPER_Q_FULL, c1);
    if (HOPPER_OUTPUTS && !HOPPER_STACKED && (HOPPER_DEPTH == 1 || cq >= 0) && cq < n) {
        b.wait_free(HOPPER_Q_FREE, cq);
        load_tiles(l, b.q(cq), HOPPER_NEXT, HOPPER_KEYS, &b.a.q, 0, l.q_head, HOPPER_Q_FULL, cq,
                   HOPPER_KEYS);
        if (cq == l.n_full)
            clear_tail(l, b.q(cq), HOPPER_NEXT, HOPPER_KEYS, HOPPER_Q_FULL, cq, HOPPER_DEPTH);
    }
}

/* Returns source_head() without a division, because the first tile waits for it. */
GDN_DEVICE int source_of(const struct gdn_cu_source &s, int head)
{
    const int quotient = by(head, s.inverse);
    return s.n ? head - quotient * s.n : quotient;
}

template <int io> GDN_DEVICE void load_all(const struct hopper_block &b, uint32_t lane)
{
    const bool scaled = io == GDN_F16 && b.r.norm != GDN_NO_NORM;
    const struct hopper_loader l = { b,
                                     lane,
                                     source_of(b.a.source_k, b.head),
                                     source_of(b.a.source_v, b.head),
                                     source_of(b.a.source_q, b.head),
                                     (int)b.s().first,
                                     (int)b.s().batch,
                                     (int)(b.s().n_valid / 64),
                                     scaled ? HOPPER_LANDED : HOPPER_FULL };
#pragma unroll 1
    for (int c = -HOPPER_K_AHEAD; c < b.n_chunks - 1; c++) {
        if (c == 1 - HOPPER_K_AHEAD && b.n_chunks > 0)
            b.wait(HOPPER_FULL, 0); /* the loads for the first T come first */
        load_step(l, c);
    }
}

/* ---- Output ---------------------------------------------------------------------------------- */

/* Stores chunk c: as one copy if all 64 tokens count, else row by row. A warp calls it. */
GDN_DEVICE void store_tile(const struct hopper_block &b, int c, uint32_t lane)
{
    const int n = b.tokens(c), column = b.column(), bytes = (b.r.V - column) * 2;
    b.wait(HOPPER_OUT_FULL, c);
    if (!b.r.out.data || bytes <= 0) {
        async_fence(); /* V is loaded to where the state's warps have written */
    } else if (n == 64) {
        if (lane == 0) {
            async_fence(); /* the tiles that the state's warps wrote before they arrived */
            for (int i = 0; i < HOPPER_WIDTH; i++)
                copy_tile_out(
                    &b.a.out,
                    { column + i * 64, b.head, (int)b.s().first + c * 64, (int)b.s().batch },
                    b.v(c) + i * HOPPER_TILE);
            copy_out_commit();
            copy_out_wait_read();
        }
    } else {
        const char *tile = gdn_shared + (b.v(c) - hopper_address());
        for (int i = lane; i < 8 * HOPPER_WIDTH * n; i += 32) {
            const int t = i / (8 * HOPPER_WIDTH), j = i % (8 * HOPPER_WIDTH), rest = bytes - j * 16;
            if (rest <= 0) continue;
            copy_out(row_at(b.r.out, b.s(), (int64_t)c * 64 + t, b.head) + column * 2 + j * 16,
                     tile + j / 8 * HOPPER_TILE + tile_place(t, j % 8 * 8), min(rest, 16), 16);
        }
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(b.of(HOPPER_V_FREE, c));
}

/* ---- The warpgroup --------------------------------------------------------------------------- */

/* Writes the factors of a chunk's n tokens without lengths. G: sums of the gates. resets: tokens
 * that forget. If other warps write the lengths of k and of q, this leaves them out. */
template <int io>
GDN_DEVICE void write_factors(hopper_gates &g, const float (&G)[2], token_mask resets, float scale,
                              int n, bool k, bool q, uint32_t lane)
{
    const float start = start_of<io>(G, n, (int)lane), up = power_of_two(start),
                down = power_of_two(-start);
    const float end = __shfl_sync(0xffffffff, n > 32 ? G[1] : G[0], (n - 1) % 32);
    bool uneven = false;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int t = lane + 32 * i;
        const float near = reached<io>(G[i], start); /* the part that begins at zero */
        const float rest = near == G[i] ? start : start + (G[i] - near);
        const float from = are_parted(resets, -1, t) ? 0 : near == G[i] ? up : ex2_approx(rest);
        const float o = ex2_from<io>(near, down) * (scale * hopper_format<io>::shift);
        uneven |= t < n && near != G[i];
        g.G[t] = G[i];
        g.rest[t] = rest;
        g.weight[t] = g.beta[t];
        g.from_start[t] = from;
        g.to_end[t] = t >= n || are_parted(resets, t, n - 1) ? 0 : ex2_approx(end - rest);
        if (k) g.v_scale[t] = ex2_from<io>(-near, up);
        if (!q) continue;
        g.o_scale[t] = o;
        g.q_start[t] = o * from;
    }
    uneven = in_warp(uneven);
    if (lane != 0) return;
    g.n = n;
    g.start = start;
    g.decay = resets ? 0 : ex2_approx(end);
    g.rare = ((resets != 0) | is_idle(g) ? HOPPER_RARE : 0) |
             (uneven || start != 0 ? HOPPER_GATED : 0) | (uneven ? HOPPER_UNEVEN : 0);
}

/* Waits until lengths of keys and queries of chunk c, which are among its gates, have been copied
 * to the other block. They are copied with T. When T of the next chunk there is made, the other
 * block has freed the place of T of chunk c. */
GDN_DEVICE void wait_lengths(const struct hopper_block &b, int c)
{
    if (HOPPER_BLOCKS == 2 && c >= 0 && b.is_own(c) && b.r.norm != GDN_NO_NORM)
        b.wait(HOPPER_P_TOLD, c + HOPPER_T_RING);
}

/* Makes the gates of every second chunk, from chunk `first` on, and flags about all of these.
 * One warp calls it. */
template <int io> GDN_DEVICE void make_gates(const struct hopper_block &b, int first, uint32_t lane)
{
    int c = first;
    const bool norm = b.r.norm != GDN_NO_NORM;
    raw_gates<64> raw;
    bool idle = true, forgets = b.forgets;
    start_gates(raw, b.r, b.s(), b.head, c);
#pragma unroll 1
    for (; c < b.n_chunks; c += 2) {
        float G[2] = {};
        fetch_gates<2>(raw, b.r); /* these loads begin while places are still in use */
        b.wait_done(c - HOPPER_GATES_RING);
        wait_lengths(b, c - HOPPER_GATES_RING);
        expand_gates<64>(G, b.gates(c), raw, b.r, b.tokens(c));
        __syncwarp();
        const bool own = b.is_own(c) || !norm; /* if not, lengths come from the warps that make T
                                                  and P */
        const token_mask resets = tokens_of(b.gates(c).resets);
        sum_gates(G, resets);
        write_factors<io>(b.gates(c), G, resets, b.r.scale, b.tokens(c), own || io == GDN_F16, own,
                          lane);
        if (io == GDN_F16 && norm) scale_keys<io>(b, c, lane);
        __syncwarp();
        if (!HOPPER_OUTPUTS) {
            idle &= is_idle(b.gates(c));
            forgets |= b.gates(c).decay == 0;
        }
        if (lane == 0) mbarrier_arrive(b.of(HOPPER_FULL, c));
        if (io == GDN_F16 && norm && lane == 0) mbarrier_arrive(b.of(HOPPER_FULL, c)); /* with K */
    }
    if (!HOPPER_OUTPUTS && lane == 0 && b.rank == 0 && b.common().segment.from >= 0)
        *mark_of(b, first) = (idle ? GDN_SEGMENT_IDLE : 0) | (forgets ? GDN_SEGMENT_FORGETS : 0);
}

/* Runs the warpgroup. Each warp has its own role and its own pace. */
template <int io> GDN_DEVICE void run_io(const struct hopper_block &b, int warp, uint32_t lane)
{
    if (warp == 0) {
        load_all<io>(b, lane);
    } else if (warp == 1) {
#pragma unroll 1
        for (int c = 0; HOPPER_OUTPUTS && c < b.n_chunks; c++) store_tile(b, c, lane);
        if (lane == 0) copy_out_wait();
    } else {
        make_gates<io>(b, warp - 2, lane);
    }
}

#endif
