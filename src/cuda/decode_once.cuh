/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One token on a state of float32 whose rows are v, a warp for each 16 of them:
 *
 *     p = S k    z = S q;    u = beta (v - alpha p);    o = alpha z + (k . q) u;    S <- alpha S + u k^T
 *
 * It is all trips to memory, so little else is done and nothing is done one after the other that
 * need not be: a row lies across the lanes, each load is of whole rows, sums are of k and q as they
 * lie in memory, and what makes them keys and queries (lengths, scale, gates) meets the sums at the
 * end.
 */
#ifndef GDN_CUDA_DECODE_ONCE_CUH
#define GDN_CUDA_DECODE_ONCE_CUH

#include "decode_rows.cuh"

/* Sums 2 n values over the lanes that differ in `bit`. Each lane goes on with n of them: those
 * whose bit is set with the second half. */
template <int n> GDN_DEVICE void halve_values(float *x, int bit)
{
    const bool high = threadIdx.x & bit;
#pragma unroll
    for (int i = 0; i < n; i++) {
        const float mine = high ? x[n + i] : x[i], other = high ? x[i] : x[n + i];
        x[i] = mine + __shfl_xor_sync(0xffffffff, other, bit);
    }
}

/* LANES have a row, C chunks of four each; a load is of ROWS rows. Loads come in N groups. */
template <int KC> struct once_tile {
    enum { LANES = KC < 128 ? KC / 4 : 32, C = KC / 4 / LANES, ROWS = 32 / LANES, N = 16 / ROWS };
    float S[N][C][4];
};

/* Of N rows p, then z: the lane is left with one of them, number once_row() of the lane's. */
template <class Tile>
GDN_DEVICE float once_sums(const Tile &tile, const float (&k)[Tile::C][4],
                           const float (&q)[Tile::C][4])
{
    float x[2 * Tile::N] = {};
#pragma unroll
    for (int i = 0; i < Tile::N * Tile::C * 4; i++) {
        const int   n = i / 4 / Tile::C, c = i / 4 % Tile::C, e = i % 4;
        const float S = tile.S[n][c][e];
        x[n]           = fmaf(S, k[c][e], x[n]);
        x[Tile::N + n] = fmaf(S, q[c][e], x[Tile::N + n]);
    }
    if (Tile::LANES == 32) halve_values<16>(x, 16);
    halve_values<8>(x, 8);
    halve_values<4>(x, 4);
    halve_values<2>(x, 2);
    halve_values<1>(x, 1);
    return x[0];
}

/* The bit that tells p from z; the row (a lane's, by ROWS) whose sum a lane is left with. */
template <class Tile> GDN_DEVICE int once_z(void) { return Tile::LANES / 2; }
template <class Tile> GDN_DEVICE int once_row(void)
{
    return threadIdx.x % (Tile::LANES / 2) * Tile::ROWS + threadIdx.x % 32 / Tile::LANES;
}

/* Over the lanes of a row. */
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

/* Rows v to v + 15 of one head of a sequence of one token. */
template <int KC>
GDN_DEVICE void once_decode(const struct gdn_cu_warp &a, const struct warp_seq &s, int head, int v)
{
    typedef once_tile<KC> Tile;
    enum { C = Tile::C, N = Tile::N, LANES = Tile::LANES, ROWS = Tile::ROWS };
    const int   lane = threadIdx.x % LANES, first = threadIdx.x % 32 / LANES, io = a.k.dtype;
    const bool  given = a.from.data && s.read >= 0;
    const int   mine = v + once_row<Tile>();
    uint32_t    x[N * C][4], kx[C][4], qx[C][4];
    const char *const from = warp_state(a.from, s.read, head) + (v + first) * a.from.row + 16 * lane;
#pragma unroll
    for (int i = 0; i < N * C; i++)
        ld_once_v4(x[i], from + i / C * ROWS * a.from.row + i % C * 512, given);
    const char *k = warp_row(a.k, s, 0, by(head, a.group_k)) + 4 * lane * float_bytes(io);
    const char *q = warp_row(a.q, s, 0, by(head, a.group_q)) + 4 * lane * float_bytes(io);
#pragma unroll
    for (int c = 0; c < C; c++) {
        load_chunk(kx[c], k + 128 * c * float_bytes(io), io, true);
        load_chunk(qx[c], q + 128 * c * float_bytes(io), io, true);
    }
    const uint32_t value = load_bits(warp_row(a.v, s, 0, by(head, a.group_v)), mine, io);
    const uint32_t g     = load_bits(warp_row(a.g, s, 0, head), 0, a.g.dtype, a.g.data);
    const uint32_t b     = load_bits(warp_row(a.beta, s, 0, head), 0, a.beta.dtype, a.beta.data);
    const uint32_t A = vector_bits(a.A_log, head), dt = vector_bits(a.dt_bias, head);

    float K[C][4], Q[C][4];
    Tile  tile;
    expand_chunks(K, kx, io);
    expand_chunks(Q, qx, io);
    float       alpha = 1, beta = 1;
    if (a.g.data)
        alpha = gate_value(a, bits_to_f32(g, a.g.dtype), bits_to_f32(A, a.A_log.dtype),
                           bits_to_f32(dt, a.dt_bias.dtype), true);
    if (a.beta.data) beta = beta_value(a, bits_to_f32(b, a.beta.dtype));
    const float rk = inverse_length(once_product<Tile>(K, K), a.norm, a.norm_eps);
    const float rq = inverse_length(once_product<Tile>(Q, Q), a.norm, a.norm_eps) * a.scale;
    const float kq = once_product<Tile>(K, Q) * rk * rq;
#pragma unroll
    for (int i = 0; i < N * C * 4; i++)
        tile.S[i / 4 / C][i / 4 % C][i % 4] = __uint_as_float(x[i / 4][i % 4]);
    const float one = once_sums(tile, K, Q), other = __shfl_xor_sync(0xffffffff, one, once_z<Tile>());
    const bool  is_z = threadIdx.x & once_z<Tile>();
    const float p = alpha == 0 ? 0 : alpha * rk * (is_z ? other : one);
    const float z = alpha == 0 ? 0 : alpha * rq * (is_z ? one : other);
    const float u = beta == 0 ? 0 : beta * (bits_to_f32(value, io) - p);
    if (a.out.data && !is_z) store_float(warp_row(a.out, s, 0, head), mine, a.out.dtype, fmaf(kq, u, z));
    if (!a.to.data) return;
    char *const to      = warp_state(a.to, s.write, head) + (v + first) * a.to.row + 16 * lane;
    const bool  changed = alpha != 1 || beta != 0;
    if (!changed && given && to == from) return;
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float un = __shfl_sync(0xffffffff, u, threadIdx.x % 32 / LANES * LANES + n) * rk;
#pragma unroll
        for (int c = 0; c < C; c++) {
            uint32_t y[4];
            for (int e = 0; e < 4; e++) {
                const float S = tile.S[n][c][e], old = alpha == 0 ? 0 : alpha * S;
                y[e] = __float_as_uint(!changed ? S : beta == 0 ? old : fmaf(un, K[c][e], old));
            }
            *(uint4 *)(to + n * ROWS * a.to.row + 512 * c) = make_uint4(y[0], y[1], y[2], y[3]);
        }
    }
}

#endif
