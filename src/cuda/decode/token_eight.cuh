/* SPDX-License-Identifier: Apache-2.0 */
/*
 * token.cuh for states of 8 bits, whose rows are v: a token of each sequence, a warp for 32 rows.
 * A lane has 16 codes of each of eight rows. Sums are of codes; the scale of a row meets them then.
 * The new state is made twice: for the largest magnitude of a row, and, with the scale that this
 * gives, for its codes (device/q8.cuh). There is no room for 128 floats a lane between the two.
 */
#ifndef GDN_CUDA_DECODE_EIGHT_CUH
#define GDN_CUDA_DECODE_EIGHT_CUH

#include "cuda/decode/token.cuh"
#include "cuda/device/q8.cuh"

/* A lane has N rows, STEP apart. `scale` of these rows. */
template <int KC, int dtype_, int io> struct eight_rows {
    enum {
        IO    = io,
        dtype = dtype_,
        K     = KC,
        E     = 16,
        C     = 1,
        LANES = KC / E,
        STEP  = 32 / LANES,
        N     = LANES, /* so that each lane is left with the sums of a row */
        ROWS  = N * STEP,
    };
    uint32_t S[N][4];
    float    scale[N], k[E], q[E];
};

/* ---- Codes ----------------------------------------------------------------------------------- */

/* The values of four codes, without their scale. has_nan() has seen to codes that are NaN. */
template <int dtype> GDN_DEVICE void eight_values(float (&y)[4], uint32_t x)
{
    const uint32_t raised = x ^ 0x80808080; /* I8: as numbers from 0 to 255 */
#pragma unroll
    for (int i = 0; i < 4; i++)
        y[i] = dtype == GDN_I8 ? __uint_as_float(0x4b000000 | (raised >> 8 * i & 255)) - 8388736.0f
                               : e4m3_number(x >> 8 * i & 255);
}

/* Returns true if a code is NaN. The row's sums and its new state then are NaN as by its scale. */
template <int dtype> GDN_DEVICE bool has_nan(const uint32_t (&x)[4])
{
    uint32_t found = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) found |= (x[i] & 0x7f7f7f7f) + 0x01010101;
    return dtype == GDN_E4M3 && (found & 0x80808080);
}

/* How the new state is made of a row's codes: decay has the scale in it, u is the row's times what
 * k is to be multiplied by. */
struct eight_change {
    float decay, u;
};

template <class Tile>
GDN_DEVICE void eight_new(float (&y)[4], const Tile &tile, int n, int i,
                          const struct eight_change &by)
{
    eight_values<Tile::dtype>(y, tile.S[n][i]);
#pragma unroll
    for (int e = 0; e < 4; e++) y[e] = fmaf(by.u, tile.k[4 * i + e], by.decay * y[e]);
}

/* Makes the compiler forget that it has seen the codes: it would keep their values instead. */
template <class Tile> GDN_DEVICE void eight_again(Tile &tile, int n)
{
#pragma unroll
    for (int i = 0; i < 4; i++) tile.S[n][i] = opaque(tile.S[n][i]);
}

/* The largest magnitude of the new row. */
template <class Tile>
GDN_DEVICE uint32_t eight_largest(Tile &tile, int n, const struct eight_change &by)
{
    uint32_t largest = 0;
    eight_again(tile, n);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float y[4];
        eight_new(y, tile, n, i, by);
#pragma unroll
        for (int e = 0; e < 4; e++) largest = max(largest, magnitude(y[e]));
    }
#pragma unroll
    for (int bit = Tile::LANES / 2; bit; bit /= 2)
        largest = max(largest, __shfl_xor_sync(0xffffffff, largest, bit));
    return largest;
}

/* The row's new codes. */
template <bool random, class Tile>
GDN_DEVICE void eight_codes(Tile &tile, int n, const struct eight_change &by, float inverse,
                            uint32_t key)
{
    const int first = threadIdx.x % Tile::LANES * Tile::E;
    eight_again(tile, n);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float    y[4];
        uint32_t x = 0;
        eight_new(y, tile, n, i, by);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const uint32_t h = random ? eight_draw(key, first + 4 * i + e) : 0;
            x |= eight_code(y[e], inverse, h, random, Tile::dtype) << 8 * e;
        }
        tile.S[n][i] = x;
    }
}

/* ---- From and to memory ---------------------------------------------------------------------- */

/* From the lane's first row and code on, and from the first row's scale. */
template <class Tile>
GDN_DEVICE void eight_load(Tile &tile, const char *at, int64_t row, const float *scales)
{
#pragma unroll
    for (int n = 0; n < Tile::N; n++, at += Tile::STEP * row) {
        ld_v4(tile.S[n], at);
        tile.scale[n] = scales[n * Tile::STEP];
    }
}

/* A lane of a row writes its scale. */
template <class Tile>
GDN_DEVICE void eight_store(const Tile &tile, char *at, int64_t row, float *scales)
{
#pragma unroll
    for (int n = 0; n < Tile::N; n++, at += Tile::STEP * row) {
        one_store(at, tile.S[n]);
        if (threadIdx.x % Tile::LANES == 0) scales[n * Tile::STEP] = tile.scale[n];
    }
}

/* The lane's elements of k or q. */
template <class Tile>
GDN_DEVICE void eight_fetch(uint32_t (&x)[Tile::E / 2], const struct gdn_cu_at &t, int row,
                            int head)
{
    const char *at = one_at(t, row, head) + threadIdx.x % Tile::LANES * Tile::E * 2;
    uint32_t    y[2][4];
    ld_v4(y[0], at), ld_v4(y[1], at + 16);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = y[i / 4][i % 4];
}

/* ---- The token ------------------------------------------------------------------------------- */

template <class Tile>
GDN_DEVICE struct one_factors eight_commit(Tile &tile, const uint32_t (&k)[8],
                                           const uint32_t (&q)[8], const struct gdn_cu_one &a)
{
    float kk = 0, qq = 0, kq = 0;
#pragma unroll
    for (int e = 0; e < Tile::E; e++) {
        tile.k[e] = one_element<Tile::IO>(k[e / 2], e);
        tile.q[e] = one_element<Tile::IO>(q[e / 2], e);
        kk = fmaf(tile.k[e], tile.k[e], kk), qq = fmaf(tile.q[e], tile.q[e], qq);
        kq = fmaf(tile.k[e], tile.q[e], kq);
    }
    return one_factors_of(one_sum<Tile::LANES>(kk), one_sum<Tile::LANES>(qq),
                          one_sum<Tile::LANES>(kq), a);
}

/* p and z of the lane's own row, of raw k and q. */
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
        const float scale = has_nan<Tile::dtype>(tile.S[n]) ? __uint_as_float(0x7fc00000)
                                                            : tile.scale[n];
        ps[n] *= scale, zs[n] *= scale;
    }
    p = one_sums<Tile::LANES, Tile::N>(ps);
    z = one_sums<Tile::LANES, Tile::N>(zs);
}

/* The new state of rows from v on. u: of the lane's own row, times the factor of raw k. */
template <bool random, class Tile>
GDN_DEVICE void eight_write(Tile &tile, const struct gdn_cu_eight &a, int head, int v, float alpha,
                            float u)
{
    const int lane = threadIdx.x % 32, first = lane / Tile::LANES * Tile::LANES;
#pragma unroll
    for (int n = 0; n < Tile::N; n++) {
        const bool                is_nan = has_nan<Tile::dtype>(tile.S[n]);
        const struct eight_change by = { is_nan ? __uint_as_float(0x7fc00000)
                                                : alpha * tile.scale[n],
                                         __shfl_sync(0xffffffff, u, first + n) };
        const struct eight_scale  s = eight_scale_of(eight_largest(tile, n, by), Tile::dtype);
        uint32_t                  key = 0;
        if (random) key = eight_key(a.seed, 1, head, v + n * Tile::STEP + lane / Tile::LANES);
        eight_codes<random>(tile, n, by, s.inverse, key);
        tile.scale[n] = s.scale;
    }
}

template <int KC, int dtype, int io> GDN_DEVICE void decode_one_eight(const struct gdn_cu_eight &a)
{
    typedef eight_rows<KC, dtype, io> Tile;
    enum { LANES = Tile::LANES };
    const struct gdn_cu_one &o    = a.one;
    const int                lane = threadIdx.x, v = blockIdx.x * Tile::ROWS;
    const int own = v + one_own<Tile>(), row = v + lane / LANES, at = lane % LANES * 16;
    struct one_place         w;
    if (__builtin_expect(!one_begin(w, o), 0)) {
        one_zero(o, w, v, Tile::ROWS, lane);
        return;
    }
    uint32_t         k[8], q[8];
    struct one_gates gates;
    Tile             tile;
    float            alpha, beta, p, z;
    char *const  from        = one_at(o.from, w.from, w.head) + row * o.from_row + at;
    float *const from_scales = (float *)one_at(a.from_scales, w.from, w.head) + row;
    eight_load(tile, from, o.from_row, from_scales);
    eight_fetch<Tile>(k, o.k, w.row, one_source(w.head, o.group_k));
    eight_fetch<Tile>(q, o.q, w.row, one_source(w.head, o.group_q));
    one_fetch_gates(gates, o, w);
    const uint32_t value = ld_b32_b16(one_at(o.v, w.row, one_source(w.head, o.group_v)) + own * 2,
                                      false, true);
    one_expand_gates<io>(alpha, beta, gates, o);
    const struct one_factors f = eight_commit(tile, k, q, o);
    if (__builtin_expect(alpha == 0, 0)) {
        one_forget(&tile.S[0][0], Tile::N * 4);
        one_forget(tile.scale, Tile::N);
    }
    eight_read(p, z, tile);
    const float u = rule_u(beta, one_half<io>(value), alpha * f.k * p);
    if (o.out.data)
        one_store_half<io>(one_at(o.out, w.row, w.head) + own * 2,
                           rule_o(f.kq, alpha * f.q * z, u));
    if (!o.to.data) return;
    char *const to      = one_at(o.to, w.to, w.head) + row * o.to_row + at;
    const bool  changed = alpha != 1 || beta != 0;
    if (__builtin_expect(beta == 0, 0)) one_forget(tile.k, Tile::E);
    const float by      = beta == 0 ? 0 : u * f.k;
    if (changed && a.random) eight_write<true>(tile, a, w.head, v, alpha, by);
    if (changed && !a.random) eight_write<false>(tile, a, w.head, v, alpha, by);
    if (changed || to != from)
        eight_store(tile, to, o.to_row, (float *)one_at(a.to_scales, w.to, w.head) + row);
}

#define DECODE_EIGHT_KERNEL(threads, name, dtype, io, KC)                                     \
    extern "C" __global__ void __launch_bounds__(threads, 16)                                 \
        name(const __grid_constant__ struct gdn_cu_eight a)                                   \
    {                                                                                         \
        decode_one_eight<KC, GDN_##dtype, GDN_##io>(a);                                       \
    }

#endif
