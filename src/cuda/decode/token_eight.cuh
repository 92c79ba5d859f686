/* SPDX-License-Identifier: Apache-2.0 */
/* Decode of one token of each sequence, as token.cuh, on states of 8 bits whose rows are v. A warp
 * has 32 rows. A lane has 16 codes of each of eight rows. Sums are of codes, and are multiplied by
 * the row's scale at the end. Codes and scales of the new state are those of device/q8.cuh. */
#ifndef GDN_CUDA_DECODE_EIGHT_CUH
#define GDN_CUDA_DECODE_EIGHT_CUH

#include "cuda/decode/token.cuh"
#include "cuda/device/q8.cuh"

/* A tile: a lane has N rows, STEP apart. scale: of these rows. */
template <int KC, int dtype_, int io> struct eight_rows {
    enum {
        IO = io,
        dtype = dtype_,
        K = KC,
        E = 16,
        C = 1,
        LANES = KC / E,
        STEP = 32 / LANES,
        N = LANES, /* so that in the end each lane has the sums of one row */
        ROWS = N * STEP,
    };
    uint32_t S[N][4];
    float scale[N], k[E], q[E];
};

/* ---- Codes ----------------------------------------------------------------------------------- */

/* Convert four codes of E4M3 to their values, without NaN (has_nan()); and four numbers to the
 * nearest codes. */
#if __CUDA_ARCH__ >= 890
GDN_DEVICE void e4m3_values(float (&y)[4], uint32_t x)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t h;
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(h) : "h"((uint16_t)(x >> 16 * i)));
        y[2 * i] = f16_to_f32((uint16_t)h), y[2 * i + 1] = f16_to_f32((uint16_t)(h >> 16));
    }
}
GDN_DEVICE uint32_t e4m3_nearest(const float (&y)[4])
{
    uint16_t low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(y[1]), "f"(y[0]));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(y[3]), "f"(y[2]));
    return low | (uint32_t)high << 16;
}
#else
GDN_DEVICE void e4m3_values(float (&y)[4], uint32_t x)
{
#pragma unroll
    for (int i = 0; i < 4; i++) y[i] = e4m3_number(x >> 8 * i & 255);
}
GDN_DEVICE uint32_t e4m3_nearest(const float (&y)[4])
{
    uint32_t x = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) x |= float8_code(y[i], 0, false, GDN_E4M3) << 8 * i;
    return x;
}
#endif

/* Converts four codes of I8. As numbers from 0 to 255, codes are the last bits of a float. */
GDN_DEVICE void i8_values(float (&y)[4], uint32_t x)
{
    x ^= 0x80808080;
#pragma unroll
    for (int i = 0; i < 4; i++)
        y[i] = __uint_as_float(0x4b000000 | (x >> 8 * i & 255)) - 8388736.0f;
}
GDN_DEVICE uint32_t i8_nearest(const float (&y)[4])
{
    uint32_t x = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) x |= i8_code(y[i], 0, false) << 8 * i;
    return x;
}

template <int dtype> GDN_DEVICE void eight_values(float (&y)[4], uint32_t x)
{
    if constexpr (dtype == GDN_I8)
        i8_values(y, x);
    else
        e4m3_values(y, x);
}

/* Rounds elements from k on to codes. random: by random bits of the column's key. */
template <int dtype, bool random>
GDN_DEVICE uint32_t eight_four(const float (&y)[4], uint32_t key, int k)
{
    if constexpr (random) {
        uint32_t x = 0;
#pragma unroll
        for (int e = 0; e < 4; e++)
            x |= eight_code(y[e], 1, eight_draw(key, k + e), true, dtype) << 8 * e;
        return x;
    } else {
        return dtype == GDN_I8 ? i8_nearest(y) : e4m3_nearest(y);
    }
}

/* Returns true if a code is NaN. Then the row's sums and its new state become NaN, as if its
 * scale were NaN. */
template <int dtype> GDN_DEVICE bool has_nan(const uint32_t (&x)[4])
{
    uint32_t found = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) found |= (x[i] & 0x7f7f7f7f) + 0x01010101;
    return dtype == GDN_E4M3 && (found & 0x80808080);
}

/* Computes the row's new state from its codes. decay: times the old scale. u: of the row, times the
 * factor of k. Returns the largest magnitude. Codes go through opaque(): otherwise the compiler
 * would keep the values of all rows since eight_read(). */
template <class Tile>
GDN_DEVICE uint32_t eight_new(float (&y)[4][4], const Tile &tile, int n, float decay, float u)
{
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        eight_values<Tile::dtype>(y[i], opaque(tile.S[n][i]));
#pragma unroll
        for (int e = 0; e < 4; e++) {
            y[i][e] = fmaf(u, tile.k[4 * i + e], decay * y[i][e]);
            largest = max(largest, magnitude(y[i][e]));
        }
    }
#pragma unroll
    for (int bit = Tile::LANES / 2; bit; bit /= 2)
        largest = max(largest, __shfl_xor_sync(0xffffffff, largest, bit));
    return largest;
}

/* ---- From and to memory ---------------------------------------------------------------------- */

/* Loads codes from the lane's first row and code on, and scales from the first row on. */
template <class Tile>
GDN_DEVICE void eight_load(Tile &tile, const char *at, int64_t row, const float *scales)
{
#pragma unroll
    for (int n = 0; n < Tile::N; n++, at += Tile::STEP * row) {
        ld_v4(tile.S[n], at);
        tile.scale[n] = scales[n * Tile::STEP];
    }
}

/* Stores the scales. One lane of a row does it. */
template <class Tile>
GDN_DEVICE void eight_store(const Tile &tile, char *at, int64_t row, float *scales)
{
#pragma unroll
    for (int n = 0; n < Tile::N; n++, at += Tile::STEP * row) {
        token_store(at, tile.S[n]);
        if (threadIdx.x % Tile::LANES == 0) scales[n * Tile::STEP] = tile.scale[n];
    }
}

/* Loads the lane's elements of k or q. */
template <class Tile>
GDN_DEVICE void eight_fetch(uint32_t (&x)[Tile::E / 2], const struct gdn_cu_at &t, int row,
                            int head)
{
    const char *at = token_at(t, row, head) + threadIdx.x % Tile::LANES * Tile::E * 2;
    uint32_t y[2][4];
    ld_v4(y[0], at), ld_v4(y[1], at + 16);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = y[i / 4][i % 4];
}

/* ---- The token ------------------------------------------------------------------------------- */

template <class Tile>
GDN_DEVICE struct token_factors eight_commit(Tile &tile, const uint32_t (&k)[8],
                                             const uint32_t (&q)[8], const struct gdn_cu_token &a)
{
    float kk = 0, qq = 0, kq = 0;
#pragma unroll
    for (int e = 0; e < Tile::E; e++) {
        tile.k[e] = token_element<Tile::IO>(k[e / 2], e);
        tile.q[e] = token_element<Tile::IO>(q[e / 2], e);
        kk = fmaf(tile.k[e], tile.k[e], kk), qq = fmaf(tile.q[e], tile.q[e], qq);
        kq = fmaf(tile.k[e], tile.q[e], kq);
    }
    return token_factors_of(token_sum<Tile::LANES>(kk), token_sum<Tile::LANES>(qq),
                            token_sum<Tile::LANES>(kq), a);
}

/* Computes p and z of the lane's own row, with raw k and q. */
template <class Tile> GDN_DEVICE void eight_read(float &p, float &z, const Tile &tile)
{
    float ps[Tile::N], zs[Tile::N];
#pragma unroll
    for (int n = 0; n < Tile::N; n++) {
        ps[n] = zs[n] = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float y[4];
            eight_values<Tile::dtype>(y, tile.S[n][i]);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                ps[n] = fmaf(y[e], tile.k[4 * i + e], ps[n]);
                zs[n] = fmaf(y[e], tile.q[4 * i + e], zs[n]);
            }
        }
        const float scale =
            has_nan<Tile::dtype>(tile.S[n]) ? __uint_as_float(0x7fc00000) : tile.scale[n];
        ps[n] *= scale, zs[n] *= scale;
    }
    p = token_sums<Tile::LANES, Tile::N>(ps);
    z = token_sums<Tile::LANES, Tile::N>(zs);
}

/* Stores the codes of a row's new state y. */
template <bool random, class Tile>
GDN_DEVICE void eight_set(Tile &tile, int n, float (&y)[4][4], float inverse, uint32_t key)
{
    const int first = threadIdx.x % Tile::LANES * Tile::E;
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int e = 0; e < 4; e++) y[i][e] *= inverse;
        const uint32_t x = eight_four<Tile::dtype, random>(y[i], key, first + 4 * i);
        tile.S[n][i] = inverse == 0 ? 0 : x;
    }
}

/* Stores the new state of rows from v on. u: of the lane's own row, times the factor of raw k. */
template <bool random, class Tile>
GDN_DEVICE void eight_write(Tile &tile, const struct gdn_cu_token_eight &a, int head, int v,
                            float alpha, float u)
{
    const int lane = threadIdx.x % 32, first = lane / Tile::LANES * Tile::LANES;
#pragma unroll
    for (int n = 0; n < Tile::N; n++) {
        float y[4][4];
        const bool is_nan = has_nan<Tile::dtype>(tile.S[n]);
        const float decay = is_nan ? __uint_as_float(0x7fc00000) : alpha * tile.scale[n];
        const uint32_t largest =
            eight_new(y, tile, n, decay, __shfl_sync(0xffffffff, u, first + n));
        const struct eight_scale s = eight_scale_of(largest, Tile::dtype);
        const int row = v + n * Tile::STEP + lane / Tile::LANES;
        eight_set<random>(tile, n, y, s.inverse, random ? eight_key(a.seed, 1, head, row) : 0);
        tile.scale[n] = s.scale;
    }
}

template <int KC, int dtype, int io>
GDN_DEVICE void decode_token_eight(const struct gdn_cu_token_eight &a)
{
    typedef eight_rows<KC, dtype, io> Tile;
    enum { LANES = Tile::LANES };
    const struct gdn_cu_token &o = a.one;
    const int lane = threadIdx.x, v = blockIdx.x * Tile::ROWS;
    const int own = v + token_own<Tile>(), row = v + lane / LANES, at = lane % LANES * 16;
    struct token_place w;
    if (__builtin_expect(!token_begin(w, o), 0)) {
        token_zero(o, w, v, Tile::ROWS, lane);
        return;
    }
    uint32_t k[8], q[8];
    struct token_gates gates;
    Tile tile;
    float alpha, beta, p, z;
    char *const from = token_at(o.from, w.from, w.head) + row * o.from_row + at;
    float *const from_scales = (float *)token_at(a.from_scales, w.from, w.head) + row;
    eight_load(tile, from, o.from_row, from_scales);
    eight_fetch<Tile>(k, o.k, w.row, token_source(w.head, o.group_k));
    eight_fetch<Tile>(q, o.q, w.row, token_source(w.head, o.group_q));
    token_fetch_gates(gates, o, w);
    const uint32_t value =
        ld_b32_b16(token_at(o.v, w.row, token_source(w.head, o.group_v)) + own * 2, false, true);
    token_expand_gates<io>(alpha, beta, gates, o);
    const struct token_factors f = eight_commit(tile, k, q, o);
    if (__builtin_expect(alpha == 0, 0)) {
        token_forget(&tile.S[0][0], Tile::N * 4);
        token_forget(tile.scale, Tile::N);
    }
    eight_read(p, z, tile);
    const float u = rule_u(beta, token_half<io>(value), alpha * f.k * p);
    if (o.out.data)
        token_store_half<io>(token_at(o.out, w.row, w.head) + own * 2,
                             rule_o(f.kq, alpha * f.q * z, u));
    if (!token_keeps(o, w)) return;
    char *const to = token_at(o.to, w.to, w.head) + row * o.to_row + at;
    const bool changed = alpha != 1 || beta != 0;
    if (__builtin_expect(beta == 0, 0)) token_forget(tile.k, Tile::E);
    const float by = beta == 0 ? 0 : u * f.k;
    if (changed && a.random) eight_write<true>(tile, a, w.head, v, alpha, by);
    if (changed && !a.random) eight_write<false>(tile, a, w.head, v, alpha, by);
    if (changed || to != from)
        eight_store(tile, to, o.to_row, (float *)token_at(a.to_scales, w.to, w.head) + row);
}

#define DECODE_EIGHT_KERNEL(threads, name, dtype, io, KC)         \
    extern "C" __global__ void __launch_bounds__(threads, 16)     \
        name(const __grid_constant__ struct gdn_cu_token_eight a) \
    {                                                             \
        decode_token_eight<KC, GDN_##dtype, GDN_##io>(a);         \
    }

#endif
