/* SPDX-License-Identifier: Apache-2.0 */
/*
 * token.cuh with a gate for each key channel, on states whose rows are v. With a the gates, and S
 * the state before the token:
 *
 *     p = S (a * k)    z = S (a * q);    u = beta (v - p)
 *     o = z + (k . q) u;    S <- S diag(a) + u k^T
 *
 * A lane has a of its own elements of k, of which it computes half, and another lane the others.
 * Every warp makes them again, since that is done while the state is on its way; so a warp has 16
 * rows, also of float32.
 */
#ifndef GDN_CUDA_DECODE_CHANNELS_TOKEN_CUH
#define GDN_CUDA_DECODE_CHANNELS_TOKEN_CUH

#include "cuda/decode/token.cuh"

/* A tile of token_rows whose sums are of k and q times a. */
template <int KC, int dtype, int io>
struct channels_rows : token_rows<KC, dtype, io, GDN_CU_CHANNELS_ROWS> {
    typedef token_rows<KC, dtype, io, GDN_CU_CHANNELS_ROWS> base;
    enum { OWN = 4 }; /* gates that a lane computes */
    static_assert(2 * OWN == base::C * base::E && 2 * base::LANES == 32, "two lanes share gates");
    float a[base::C][base::E];

    __device__ __forceinline__ float key(int c, int e) const { return this->k[c][e] * a[c][e]; }
    __device__ __forceinline__ float query(int c, int e) const { return this->q[c][e] * a[c][e]; }
};

/* Loads gates or biases as they lie in memory, `bytes` each; 0: they are absent. Four bytes fill
 * the words, two bytes half of them. Two lanes need the same elements, and each loads OWN of
 * them. */
template <class Tile>
GDN_DEVICE void channels_fetch(uint32_t (&x)[Tile::OWN], const char *at, int bytes)
{
    enum { LANES = Tile::LANES, E = Tile::E };
    const int lane = threadIdx.x, first = lane / LANES * Tile::OWN;
    at += ((first / E * LANES + lane % LANES) * E + first % E) * bytes;
    for (int i = 0; i < Tile::OWN; i++) x[i] = 0;
    if (bytes == 4)
        ld_v4(x, at);
    else if (bytes == 2)
        ld_keep_v2(x, at, true);
}

template <class Tile>
GDN_DEVICE float channels_number(const uint32_t (&x)[Tile::OWN], int i, int bytes)
{
    return bytes == 4 ? __uint_as_float(x[i]) : token_element<Tile::IO>(x[i / 2], i);
}

/* Computes a of the lane's channels. Returns true if one gate of the row is not 1, and sets
 * `forgets` if one is 0. A whole warp calls it. */
template <class Tile>
GDN_DEVICE bool channels_expand(Tile &tile, bool &forgets, const uint32_t (&g)[Tile::OWN],
                                const uint32_t (&bias)[Tile::OWN], float A_log,
                                const struct gdn_cu_token &a)
{
    enum { OWN = Tile::OWN, E = Tile::E };
    bool changes = false, zero = false;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const float x = gate_value(a, channels_number<Tile>(g, i, a.g_bytes), A_log,
                                   channels_number<Tile>(bias, i, a.dt_bias_bytes), true);
        const float y = __shfl_xor_sync(0xffffffff, x, Tile::LANES);
        const bool is_first = threadIdx.x < Tile::LANES;
        tile.a[i / E][i % E] = is_first ? x : y;
        tile.a[(OWN + i) / E][(OWN + i) % E] = is_first ? y : x;
        changes |= x != 1, zero |= x == 0;
    }
    forgets = __any_sync(0xffffffff, zero);
    return __any_sync(0xffffffff, changes);
}

/* Sets elements of channels that forget to zero, even if they are NaN. */
template <class Tile> GDN_DEVICE void channels_forget(Tile &tile)
{
#pragma unroll
    for (int i = 0; i < Tile::N * Tile::C; i++) {
        const int n = i / Tile::C, c = i % Tile::C;
        float x[Tile::E];
        for (int e = 0; e < Tile::E; e++)
            x[e] = tile.a[c][e] == 0 ? 0 : Tile::piece::get(tile.S[n][c], e);
        Tile::piece::set(tile.S[n][c], x);
    }
}

/* Writes u of the lane's own row, times the factor of k. */
template <class Tile> GDN_DEVICE void channels_write(Tile &tile, float u)
{
    const int first = threadIdx.x % 32 / Tile::LANES * Tile::LANES;
#pragma unroll
    for (int n = 0; n < Tile::N; n++) {
        const float un = __shfl_sync(0xffffffff, u, first + n * (Tile::LANES / Tile::N));
#pragma unroll
        for (int c = 0; c < Tile::C; c++) {
            float x[Tile::E];
            for (int e = 0; e < Tile::E; e++)
                x[e] = fmaf(un, tile.k[c][e], tile.a[c][e] * Tile::piece::get(tile.S[n][c], e));
            Tile::piece::set(tile.S[n][c], x);
        }
    }
}

/* Decodes rows from v on. */
template <class Tile>
GDN_DEVICE void channels_decode_rows(const struct gdn_cu_token &a, const struct token_place &w,
                                     int v)
{
    enum { LANES = Tile::LANES, C = Tile::C, N = Tile::N };
    const int lane = threadIdx.x, own = v + token_own<Tile>();
    const int row = v + lane / LANES, at = lane % LANES * 16;
    uint32_t raw[C * Tile::E], value, g[Tile::OWN], bias[Tile::OWN];
    struct token_gates gates;
    Tile tile;
    bool forgets;
    float p, z;
    char *const from = token_at(a.from, w.from, w.head) + row * a.from_row + at;
    token_load(tile, from, a.from_row);
    channels_fetch<Tile>(g, token_at(a.g, w.row, w.head), a.g_bytes);
    token_fetch<Tile>(raw, a, w);
    gates.beta = token_bits(a.beta, w.row, w.head, a.beta_bytes);
    gates.A_log = token_bits(a.A_log, 0, w.head, a.A_log_bytes);
    value =
        ld_b32_b16(token_at(a.v, w.row, token_source(w.head, a.group_v)) + own * 2, false, true);
    channels_fetch<Tile>(bias, token_at(a.dt_bias, 0, w.head), a.dt_bias_bytes);
    const bool decays = channels_expand(tile, forgets, g, bias,
                                        token_number<Tile::IO>(gates.A_log, a.A_log_bytes), a);
    const float beta = beta_value(a, token_number<Tile::IO>(gates.beta, a.beta_bytes));
    const struct token_factors f = token_commit(tile, raw, a);
    if (__builtin_expect(forgets, 0)) channels_forget(tile);
    token_read(p, z, tile);
    const float u = rule_u(beta, token_half<Tile::IO>(value), f.k * p);
    if (a.out.data && lane % (LANES / N) == 0)
        token_store_half<Tile::IO>(token_at(a.out, w.row, w.head) + own * 2,
                                   rule_o(f.kq, f.q * z, u));
    if (!token_keeps(a, w)) return;
    char *const to = token_at(a.to, w.to, w.head) + row * a.to_row + at;
    const bool changed = decays || beta != 0;
    if (__builtin_expect(beta == 0, 0)) token_forget(&tile.k[0][0], C * Tile::E);
    if (changed) channels_write(tile, beta == 0 ? 0 : u * f.k);
    if (changed || to != from) token_store(tile, to, a.to_row);
}

template <int KC, int dtype, int io>
GDN_DEVICE void decode_channels_token(const struct gdn_cu_token &a)
{
    typedef channels_rows<KC, dtype, io> Tile;
    const int v = blockIdx.x * Tile::ROWS;
    struct token_place w;
    if (__builtin_expect(token_begin(w, a), 1))
        channels_decode_rows<Tile>(a, w, v);
    else
        token_zero(a, w, v, Tile::ROWS, threadIdx.x);
}

/* The least blocks of a multiprocessor: as many as have enough registers. */
enum { CHANNELS_BLOCKS = 16 };

#define DECODE_CHANNELS_TOKEN_KERNEL(threads, name, dtype, io, KC)         \
    extern "C" __global__ void __launch_bounds__(threads, CHANNELS_BLOCKS) \
        name(const __grid_constant__ struct gdn_cu_token a)                \
    {                                                                      \
        decode_channels_token<KC, GDN_##dtype, GDN_##io>(a);               \
    }

#endif
