/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of rows of a record with k and q. Those of one token are sums over the lanes of a warp,
 * in float32. Several tokens are columns of a product of tensor cores: k and q of four tokens in
 * turn, as they lie in memory. Rows of 16 bits are exact factors. Rows of float32 are three terms
 * of 16 bits.
 *
 * Lane 4 g + t has pieces t + 4 c, c = 0 to 3, of 8 elements: of rows g and g + 8, and of column g.
 * So both factors have the elements of K in one order, and nothing is shuffled.
 */
#ifndef GDN_CUDA_DECODE_LAZY_PRODUCTS_CUH
#define GDN_CUDA_DECODE_LAZY_PRODUCTS_CUH

#include "cuda/decode/token.cuh"
#include "cuda/device/ptx_mma.cuh"

/* The lanes of a warp, with four elements of k each, have one row of K = 128. Decays of rows go
 * sixteen at a time, tokens four at a time. */
enum {
    LAZY_K = 128,
    LAZY_ROWS = 16,
    LAZY_MOST = 64, /* rows of a record */
    LAZY_FOUR = 4,
    LAZY_TOKENS = GDN_CU_LAZY_TOKENS
};

/* ---- One token ------------------------------------------------------------------------------- */

/* Returns element e of four that lie at x. */
template <int io, bool wide> GDN_DEVICE float lazy_element(const uint32_t (&x)[4], int e)
{
    return wide ? __uint_as_float(x[e]) : token_element<io>(x[e / 2], e);
}

/* Computes the products of n rows with raw k and q: of row j, products[j]. Sixteen rows of 16 bits
 * are under way at a time, which are as many registers as eight of float32. */
template <int io, bool wide>
GDN_DEVICE void lazy_products(float2 *products, const char *rows, int step, const float (&k)[4],
                              const float (&q)[4], int n)
{
    enum { N = 8, AT_ONCE = wide ? N : 2 * N };
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int first = 0; first < n; first += AT_ONCE, rows += AT_ONCE * (int64_t)step) {
        uint32_t y[AT_ONCE][4];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const char *at = rows + mad_wide(j, step, 0) + lane * (wide ? 16 : 8);
            if (wide)
                ld_keep_v4(y[j], at, first + j < n);
            else
                ld_keep_v2(y[j], at, first + j < n);
        }
#pragma unroll
        for (int j0 = 0; j0 < AT_ONCE; j0 += N) {
            float x[2 * N];
#pragma unroll
            for (int i = 0; i < 4 * N; i++) {
                const int j = i / 4, e = i % 4;
                const float yi = lazy_element<io, wide>(y[j0 + j], e);
                x[j] = fmaf(yi, k[e], e ? x[j] : 0);
                x[N + j] = fmaf(yi, q[e], e ? x[N + j] : 0);
            }
            const float sum = token_sums<32, 2 * N>(x); /* number lane / 2 */
            if (lane % 2 == 0) ((float *)&products[first + j0 + lane / 2 % N])[lane / 2 / N] = sum;
        }
    }
    __syncwarp();
}

/* ---- Factors of 16 bits ---------------------------------------------------------------------- */

template <int dtype>
GDN_DEVICE void half_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if (dtype == GDN_BF16)
        mma_bf16(d, a, b0, b1);
    else
        mma_f16(d, a, b0, b1);
}
template <int dtype> GDN_DEVICE uint32_t half_pair(float low, float high)
{
    return dtype == GDN_BF16 ? f32_to_bf16x2(low, high) : f32_to_f16x2(low, high);
}

template <int dtype> GDN_DEVICE void half_split(uint32_t &high, uint32_t &low, float x, float y)
{
    high = half_pair<dtype>(x, y);
    low = half_pair<dtype>(x - token_element<dtype>(high, 0), y - token_element<dtype>(high, 1));
}

/* ---- Several tokens -------------------------------------------------------------------------- */

/* Return the distance of token t from the first of its sequence, in bytes; and the address of its k
 * or q. The kernels of one token have TOKENS = 1. */
template <int TOKENS> GDN_DEVICE int64_t lazy_step(int t, int step)
{
    return TOKENS == 1 ? 0 : mad_wide(t, step, 0);
}
template <int TOKENS = LAZY_TOKENS>
GDN_DEVICE char *lazy_token(const struct gdn_cu_at &x, int step, const struct token_place &w,
                            uint32_t group, int t)
{
    return token_at(x, w.row, token_source(w.head, group)) + lazy_step<TOKENS>(t, step);
}

/* Loads k and q of four tokens, from token `first` on, as columns: pieces of E elements, 8 or 4. */
template <int E = 8>
GDN_DEVICE void lazy_load_columns(uint32_t (&x)[4][4], const struct gdn_cu_lazy &a,
                                  const struct token_place &w, int first)
{
    const struct gdn_cu_token &o = a.one;
    const int lane = threadIdx.x % 32, t = first + lane / 8;
    const char *const column = lane / 4 % 2 ? lazy_token(o.q, a.q_token, w, o.group_q, t)
                                            : lazy_token(o.k, a.k_token, w, o.group_k, t);
#pragma unroll
    for (int c = 0; c < 32 / E; c++) {
        const char *const at = column + (lane % 4 + 4 * c) * E * 2;
        uint32_t y[4];
        if (E == 8)
            ld_keep_v4(y, at, t < a.n_tokens);
        else
            ld_keep_v2(y, at, t < a.n_tokens);
#pragma unroll
        for (int i = 0; i < E / 2; i++) x[c * E / 8][c * E / 2 % 4 + i] = y[i];
    }
}

/* Adds the products of one of the lane's pieces of two rows, which are factors of 16 bits. */
template <int io>
GDN_DEVICE void lazy_multiply_piece(float (&d)[4], const uint32_t (&y)[2][4],
                                    const uint32_t (&x)[4])
{
    const uint32_t first[4] = { y[0][0], y[1][0], y[0][1], y[1][1] };
    const uint32_t second[4] = { y[0][2], y[1][2], y[0][3], y[1][3] };
    half_mma<io>(d, first, x[0], x[1]);
    half_mma<io>(d, second, x[2], x[3]);
}

/* The same of 8 elements of float32. */
template <int io>
GDN_DEVICE void lazy_multiply_wide(float (&d)[4], const uint32_t (&y)[2][2][4],
                                   const uint32_t (&x)[4])
{
    enum { TERMS = 3 };
    float rest[2][8];
#pragma unroll
    for (int e = 0; e < 16; e++) rest[e / 8][e % 8] = __uint_as_float(y[e / 8][e % 8 / 4][e % 4]);
#pragma unroll
    for (int n = 0; n < TERMS; n++) {
        uint32_t term[2][4];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float(&r)[8] = rest[i / 4];
            const uint32_t pair = half_pair<io>(r[i % 4 * 2], r[i % 4 * 2 + 1]);
            r[i % 4 * 2] -= token_element<io>(pair, 0);
            r[i % 4 * 2 + 1] -= token_element<io>(pair, 1);
            term[i / 4][i % 4] = pair;
        }
        lazy_multiply_piece<io>(d, term, x);
    }
}

/* Computes the products of 16 rows with four tokens. row, there: of the lane's rows g and g + 8.
 * d: of row g with k and q of token t, then of row g + 8. */
template <int io, bool wide>
GDN_DEVICE void lazy_multiply(float (&d)[4], const char *const (&row)[2], const bool (&there)[2],
                              const uint32_t (&x)[4][4])
{
    enum { PARTS = wide ? 2 : 1, AT_ONCE = 4 / PARTS };
    const int at = threadIdx.x % 4 * PARTS * 16;
    d[0] = d[1] = d[2] = d[3] = 0;
#pragma unroll
    for (int c0 = 0; c0 < 4; c0 += AT_ONCE) {
        uint32_t y[AT_ONCE][2][PARTS][4];
#pragma unroll
        for (int i = 0; i < AT_ONCE * 2 * PARTS; i++) {
            const int c = i / 2 / PARTS, h = i / PARTS % 2, n = i % PARTS;
            ld_keep_v4(y[c][h][n], row[h] + at + (c0 + c) * PARTS * 64 + n * 16, there[h]);
        }
#pragma unroll
        for (int c = 0; c < AT_ONCE; c++) {
            if constexpr (wide) {
                lazy_multiply_wide<io>(d, y[c], x[c0 + c]);
            } else {
                const uint32_t words[2][4] = {
                    { y[c][0][0][0], y[c][0][0][1], y[c][0][0][2], y[c][0][0][3] },
                    { y[c][1][0][0], y[c][1][0][1], y[c][1][0][2], y[c][1][0][3] }
                };
                lazy_multiply_piece<io>(d, words, x[c0 + c]);
            }
        }
    }
}

#endif
