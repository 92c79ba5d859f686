/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One token on a state of float32 whose rows are v, a warp for each 16 of them:
 *
 *     p = S k    z = S q;    u = beta (v - alpha p)
 *     o = alpha z + (k . q) u;    S <- alpha S + u k^T
 *
 * It is all trips to memory, so little else is done and nothing is done one after the other that
 * need not be: a row lies across the lanes, each load is of whole rows, sums are of k and q as they
 * lie in memory, and what makes them keys and queries (lengths, scale, gates) meets the sums at the
 * end.
 */
#ifndef GDN_CUDA_DECODE_ONCE_CUH
#define GDN_CUDA_DECODE_ONCE_CUH

#include "cuda/decode/warp_batch.cuh"

/* A tile: LANES lanes have a row, C chunks of four each. A load is of ROWS rows, and loads come in
 * N groups. */
template <int KC> struct once_tile {
    enum { LANES = KC < 128 ? KC / 4 : 32, C = KC / 4 / LANES, ROWS = 32 / LANES, N = 16 / ROWS };
    float S[N][C][4];
};

/* Sums N rows of p, then of z. Returns the sum of the lane's row, once_row(). */
template <class Tile>
GDN_DEVICE float once_sums(const Tile &tile, const float (&k)[Tile::C][4],
                           const float (&q)[Tile::C][4])
{
    float x[2 * Tile::N] = {};
#pragma unroll
    for (int i = 0; i < Tile::N * Tile::C * 4; i++) {
        const int n = i / 4 / Tile::C, c = i / 4 % Tile::C, e = i % 4;
        const float S = tile.S[n][c][e];
        x[n] = fmaf(S, k[c][e], x[n]);
        x[Tile::N + n] = fmaf(S, q[c][e], x[Tile::N + n]);
    }
    if (Tile::LANES == 32) halve<16>(x, 16);
    halve<8>(x, 8);
    halve<4>(x, 4);
    halve<2>(x, 2);
    halve<1>(x, 1);
    return x[0];
}

/* once_z() returns the bit that says whether that sum is of p or of z. once_row() returns the row
 * of it, of the lane's rows. */
template <class Tile> GDN_DEVICE int once_z(void) { return Tile::LANES / 2; }
template <class Tile> GDN_DEVICE int once_row(void)
{
    return threadIdx.x % (Tile::LANES / 2) * Tile::ROWS + threadIdx.x % 32 / Tile::LANES;
}

/* Returns the product over the lanes of a row. */
template <class Tile>
GDN_DEVICE float once_product(const float (&x)[Tile::C][4], const float (&y)[Tile::C][4])
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4 * Tile::C; i++) sum = fmaf(x[i / 4][i % 4], y[i / 4][i % 4], sum);
#pragma unroll
    for (int bit = Tile::LANES / 2; bit; bit /= 2) sum += __shfl_xor_sync(0xffffffff, sum, bit);
    return sum;
}

/* Returns the address of the lane's first element, of rows v to v + 15 in a slot. */
template <class Tile>
GDN_DEVICE char *once_place(const struct gdn_cu_pool &p, int slot, int head, int v)
{
    const int lane = threadIdx.x % 32;
    return warp_state(p, slot, head) + (v + lane / Tile::LANES) * p.row + lane % Tile::LANES * 16;
}

/* Returns true if chunk c of the lane exists in a row. K: elements from the lane's first one on. */
template <class Tile> GDN_DEVICE bool once_has(int c, int K)
{
    return (int)threadIdx.x % Tile::LANES * 4 + c * 128 < K;
}

template <class Tile>
GDN_DEVICE void once_load(Tile &tile, const char *from, int row, int K, bool given)
{
#pragma unroll
    for (int i = 0; i < Tile::N * Tile::C; i++) {
        const int n = i / Tile::C, c = i % Tile::C;
        uint32_t x[4];
        ld_once_v4(x, from + n * Tile::ROWS * row + c * 512, given && once_has<Tile>(c, K));
        for (int e = 0; e < 4; e++) tile.S[n][c][e] = __uint_as_float(x[e]);
    }
}

/* A lane's part of the token: its chunks of k and q, and v of row once_row(). */
template <int C> struct once_token {
    float k[C][4], q[C][4];
    float v, alpha, beta;
};

/* Decodes rows v to v + 15 of one head of a sequence of one token. out: of row once_row(); NULL: no
 * output. */
template <class Tile>
GDN_DEVICE void once_rule(const Tile &tile, const struct once_token<Tile::C> &now,
                          const struct gdn_cu_warp &a, const struct warp_seq &s, int head, int v,
                          int K, bool given, char *out, int out_dtype)
{
    const float alpha = now.alpha, beta = now.beta;
    const float rk = inverse_length(once_product<Tile>(now.k, now.k), a.norm, a.norm_eps);
    const float rq = inverse_length(once_product<Tile>(now.q, now.q), a.norm, a.norm_eps) * a.scale;
    const float kq = once_product<Tile>(now.k, now.q) * rk * rq;
    const float one = once_sums(tile, now.k, now.q);
    const float other = __shfl_xor_sync(0xffffffff, one, once_z<Tile>());
    const bool is_z = threadIdx.x & once_z<Tile>();
    const float p = alpha == 0 ? 0 : alpha * rk * (is_z ? other : one);
    const float z = alpha == 0 ? 0 : alpha * rq * (is_z ? one : other);
    const float u = beta == 0 ? 0 : beta * (now.v - p);
    if (out && !is_z) store_float(out, 0, out_dtype, fmaf(kq, u, z));
    if (!a.to.data || s.write < 0) return;
    char *const from = once_place<Tile>(a.from, s.read, head, v);
    char *const to = once_place<Tile>(a.to, s.write, head, v);
    const bool changed = alpha != 1 || beta != 0;
    if (!changed && given && to == from) return;
#pragma unroll
    for (int n = 0; n < Tile::N; n++) {
        const int first = threadIdx.x % 32 / Tile::LANES * Tile::LANES;
        const float un = __shfl_sync(0xffffffff, u, first + n) * rk;
#pragma unroll
        for (int c = 0; c < Tile::C; c++) {
            uint32_t y[4];
            for (int e = 0; e < 4; e++) {
                const float S = tile.S[n][c][e], old = alpha == 0 ? 0 : alpha * S;
                y[e] = __float_as_uint(!changed ? S : beta == 0 ? old : fmaf(un, now.k[c][e], old));
            }
            if (once_has<Tile>(c, K))
                *(uint4 *)(to + n * Tile::ROWS * a.to.row + 512 * c) =
                    make_uint4(y[0], y[1], y[2], y[3]);
        }
    }
}

template <int KC>
GDN_DEVICE void once_decode(const struct gdn_cu_warp &a, const struct warp_seq &s, int head, int v)
{
    typedef once_tile<KC> Tile;
    enum { C = Tile::C };
    const int io = a.k.dtype, bytes = float_bytes(io), mine = v + once_row<Tile>();
    const bool given = a.from.data && s.read >= 0;
    uint32_t k[C][4], q[C][4];
    Tile tile;
    struct warp_gates gates;
    struct once_token<C> now;
    once_load(tile, once_place<Tile>(a.from, s.read, head, v), a.from.row, KC, given);
    const int chunk = threadIdx.x % Tile::LANES * 4 * bytes;
    const char *keys = warp_row(a.k, s, 0, by(head, a.group_k)) + chunk;
    const char *queries = warp_row(a.q, s, 0, by(head, a.group_q)) + chunk;
#pragma unroll
    for (int c = 0; c < C; c++) {
        load_chunk(k[c], keys + 128 * c * bytes, io, true);
        load_chunk(q[c], queries + 128 * c * bytes, io, true);
    }
    const uint32_t value = load_bits(warp_row(a.v, s, 0, by(head, a.group_v)), mine, io);
    warp_fetch_gates(gates, a, s, head, 0);
    expand_chunks(now.k, k, io);
    expand_chunks(now.q, q, io);
    now.v = bits_to_f32(value, io);
    warp_expand_gates(now.alpha, now.beta, gates, a, true);
    char *out = warp_row(a.out, s, 0, head) + mine * float_bytes(a.out.dtype);
    once_rule(tile, now, a, s, head, v, KC, given, a.out.data ? out : NULL, a.out.dtype);
}

#endif
