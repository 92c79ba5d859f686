/* SPDX-License-Identifier: Apache-2.0 */
/* Decode of more than four tokens of padded rows, or of any number whose states are all kept,
 * except the calls of window_k128.cuh. It is window.cuh in windows of four: a warp has 16 rows of a
 * state whose rows are v. Between windows the state is float32, whatever its dtype in memory. It is
 * a kernel of its own, so that kernels of four tokens have enough registers. */
#ifndef GDN_CUDA_DECODE_WINDOWS_CUH
#define GDN_CUDA_DECODE_WINDOWS_CUH

#include "cuda/decode/window.cuh"

template <int KC, int dtype> struct window_tile : mma_tile<KC, GDN_F32> {
    enum {
        PIECE = dtype == GDN_F32 ? 4 : 8, /* elements of 16 bytes */
        PIECES = KC / 4 / PIECE,          /* pieces of a lane's row */
    };
};

template <class Tile>
GDN_DEVICE void window_load(uint32_t (&x)[2 * Tile::PIECES][4], const char *first, int row,
                            bool given)
{
#pragma unroll
    for (int i = 0; i < 2 * Tile::PIECES; i++)
        ld_once_v4(x[i], first + 8 * (i % 2) * row + 64 * (i / 2), given);
}

template <class Tile>
GDN_DEVICE void window_expand(Tile &tile, const uint32_t (&x)[2 * Tile::PIECES][4])
{
#pragma unroll
    for (int i = 0; i < 2 * Tile::WORDS; i++) {
        const int e = i / 2 % Tile::PIECE;
        const uint32_t *p = x[i / 2 / Tile::PIECE * 2 + i % 2];
        tile.S[i % 2][i / 2] = Tile::PIECE == 4 ? p[e % 4]
                               : e % 2          ? p[e / 2] & 0xffff0000
                                                : p[e / 2] << 16;
    }
}

template <class Tile> GDN_DEVICE void window_store(const Tile &tile, char *first, int row)
{
#pragma unroll
    for (int i = 0; i < 2 * Tile::PIECES; i++) {
        const uint32_t *S = tile.S[i % 2] + i / 2 * Tile::PIECE;
        uint32_t x[4];
        for (int j = 0; j < 4; j++)
            x[j] = Tile::PIECE == 4 ? S[j]
                                    : f32_to_bf16x2(__uint_as_float(S[2 * j % Tile::PIECE]),
                                                    __uint_as_float(S[2 * j % Tile::PIECE + 1]));
        *(uint4 *)(first + 8 * (i % 2) * row + 64 * (i / 2)) = make_uint4(x[0], x[1], x[2], x[3]);
    }
}

/* Copies bits (G9). */
template <class Tile>
GDN_DEVICE void window_copy(char *to, int to_row, const char *from, int from_row)
{
#pragma unroll 1
    for (int i = 0; i < 2 * Tile::PIECES; i++)
        *(uint4 *)(to + 8 * (i % 2) * to_row + 64 * (i / 2)) =
            *(const uint4 *)(from + 8 * (i % 2) * from_row + 64 * (i / 2));
}

/* Stores the state to a slot. If no token has changed it, its bits are copied (G9). */
template <class Tile>
GDN_DEVICE void window_leave(const Tile &tile, bool changed, const struct gdn_cu_warp &a,
                             const struct warp_seq &s, int slot, int head, int v)
{
    head = opaque(head); /* so that registers do not keep addresses of v and slots meanwhile */
    char *const from = mma_row(a.from, s.read, head, v), *const to = mma_row(a.to, slot, head, v);
    if (changed)
        window_store(tile, to, a.to.row);
    else if (to != from)
        window_copy<Tile>(to, a.to.row, from, a.from.row);
}

/* Returns the slot of the state after token t; negative: none. */
GDN_DEVICE int window_slot(const struct gdn_cu_warp &a, const struct warp_seq &s, int t)
{
    if (!a.to.data) return -1;
    if (a.each) return warp_each_slot(a, s, t);
    return t == s.T - 1 ? s.write : -1;
}

/* Computes window w, which begins after `done` tokens: its outputs, and the state after it or after
 * each of its tokens. Returns true if the state has changed. */
template <class Tile>
GDN_DEVICE bool window_step(Tile &tile, bool changed, struct mma_rows &r,
                            uint32_t (&x)[Tile::PAIRS], const struct warp_gates &gates,
                            const struct gdn_cu_warp &a, const struct warp_seq &s,
                            const struct warp_seq &w, int done, int head, int v)
{
    const int t = threadIdx.x % 4;
    const bool there = t < w.T;
    warp_expand_gates(r.alpha, r.beta, gates, a, there);
    mma_rule(r, tile, x, a, w.T, a.each);
    if (a.out.data && there) {
        char *const out = warp_row(a.out, w, t, head);
        for (int h = 0; h < 2; h++) store_float(out, v + 8 * h, a.out.dtype, r.o[h]);
    }
    mma_turn(x);
#pragma unroll 1
    for (int i = a.each ? 0 : w.T - 1; i < w.T; i++) {
        const bool mine = there && (!a.each || t == i);
        const float u[2] = { mine ? r.u[0] : 0, mine ? r.u[1] : 0 };
        const float alpha = a.each ? __shfl_sync(0xffffffff, r.alpha, i) : r.total;
        const int slot = window_slot(a, s, done + i);
        const bool moves = __any_sync(0xffffffff, mine && (r.alpha != 1 || r.beta != 0));
        if (moves) mma_update(tile, x, u, alpha, mine && r.beta != 0);
        changed |= moves;
        if (slot >= 0) window_leave(tile, changed, a, s, slot, head, v);
    }
    return changed;
}

/* Decodes rows v to v + 15 of one head of a sequence. */
template <class Tile>
GDN_DEVICE void window_decode(const struct gdn_cu_warp &a, const struct warp_seq &s, int head,
                              int v)
{
    const int t = threadIdx.x % 4;
    const bool given = a.from.data && s.read >= 0;
    struct warp_seq w = window_of(s, 0);
    struct warp_gates gates;
    struct mma_rows r;
    Tile tile;
    uint32_t x[Tile::PAIRS];
    v += threadIdx.x % 32 / 4;
    {
        uint32_t raw[2 * Tile::PIECES][4];
        window_load<Tile>(raw, mma_row(a.from, s.read, head, v), a.from.row, given);
        mma_fetch<Tile>(x, r, a, w, head, v);
        warp_fetch_gates(gates, a, w, head, t);
        window_expand(tile, raw);
    }
    bool changed = !given;
#pragma unroll 1
    for (int done = 0;;) {
        changed = window_step(tile, changed, r, x, gates, a, s, w, done, head, v);
        done += MMA_TOKENS;
        if (done >= s.T) break;
        w = window_of(s, done);
        mma_fetch<Tile>(x, r, a, w, head, v);
        warp_fetch_gates(gates, a, w, head, t);
    }
}

GDN_DEVICE void window_zero(const struct gdn_cu_warp &a, const struct warp_seq &s, int head, int v)
{
    const int lane = threadIdx.x % 32;
    if (!a.out.data || (a.keep && s.row < a.B) || lane >= MMA_ROWS) return;
    for (int t = 0; t < s.T; t++)
        store_float(warp_row(a.out, s, t, head), v + lane, a.out.dtype, 0);
}

/* Decodes a block. Blocks are numbered as those of warp.cuh. */
template <int KC, int dtype> GDN_DEVICE void decode_window_vk(const struct gdn_cu_warp &a)
{
    const int row = blockIdx.y + blockIdx.z * gridDim.y, head = by(blockIdx.x, a.head_blocks);
    const int part = blockIdx.x - head * a.n_blocks; /* the part of the head's blocks */
    const int v = (part * (blockDim.x / 32) + threadIdx.x / 32) * MMA_ROWS;
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    if (row >= a.n_rows) return;
    const struct warp_seq s = warp_read(a, row);
    if (s.padding)
        window_zero(a, s, head, v);
    else if (s.T > 0)
        window_decode<window_tile<KC, dtype>>(a, s, head, v);
}

#define DECODE_WINDOW_VK_KERNEL(threads, name, dtype, KC)                    \
    extern "C" __global__ void __launch_bounds__(threads, KC == 256 ? 2 : 4) \
        name(const __grid_constant__ struct gdn_cu_warp a)                   \
    {                                                                        \
        decode_window_vk<KC, GDN_##dtype>(a);                                \
    }

#endif
