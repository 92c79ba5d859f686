/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lazy.cuh for states of 16 bits, with tensor cores. A warp, which is a block, has 32 rows of v,
 * 8 KB of a state. Lane 4 g + t loads pieces 4 p + t, p = 0 to 3, of rows 8 i + g, i = 0 to 3. As
 * they lie in registers they are left factors of mma.sync. Elements of k come there in another
 * order than in memory; the right factors have the same order, so the sums are the same.
 *
 * The columns of the right factor are k and q in turn. So every lane of a row gets its p and z, and
 * each takes those of one row: row 8 t + g.
 */
#ifndef GDN_CUDA_DECODE_LAZY_HALF_CUH
#define GDN_CUDA_DECODE_LAZY_HALF_CUH

#include "cuda/decode/lazy_rows.cuh"
#include "cuda/device/ptx_mma.cuh"

enum { HALF_ROWS = 32, HALF_PIECES = 4, HALF_LINES = 4 };

/* [line][piece], see above */
struct half_tile {
    uint32_t S[HALF_LINES][HALF_PIECES][4];
};

GDN_DEVICE int half_line(void) { return threadIdx.x / 4; }
GDN_DEVICE int half_own(void) { return threadIdx.x % 4 * 8 + threadIdx.x / 4; }

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

/* Computes p and z of the lane's own row, with raw k and q. right: k in even columns of the right
 * factor, q in odd ones. */
template <int dtype>
GDN_DEVICE void half_read(float &p, float &z, const struct half_tile &tile,
                          const uint32_t (&right)[HALF_PIECES][4])
{
    float sums[2][4] = {};
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 2 * HALF_PIECES; j++) {
            const int c = j / 2, e = j % 2 * 2;
            const uint32_t(&upper)[4] = tile.S[2 * i][c], (&lower)[4] = tile.S[2 * i + 1][c];
            const uint32_t left[4] = { upper[e], lower[e], upper[e + 1], lower[e + 1] };
            half_mma<dtype>(sums[i], left, right[c][e], right[c][e + 1]);
        }
    const int line = threadIdx.x % 4;
    p = line % 2 ? (line / 2 ? sums[1][2] : sums[0][2]) : (line / 2 ? sums[1][0] : sums[0][0]);
    z = line % 2 ? (line / 2 ? sums[1][3] : sums[0][3]) : (line / 2 ? sums[1][1] : sums[0][1]);
}

/* ---- The fold -------------------------------------------------------------------------------- */

/* A factor of numbers in two parts of 16 bits. */
struct half_factor {
    uint32_t high[4], low[4];
};

template <int dtype> GDN_DEVICE void half_split(uint32_t &high, uint32_t &low, float x, float y)
{
    high = half_pair<dtype>(x, y);
    low = half_pair<dtype>(x - token_element<dtype>(high, 0), y - token_element<dtype>(high, 1));
}

/* Makes a left factor of u times decays, of sixteen rows of the record from j0 on. u: at the lane's
 * first line of those that the factor has. */
template <int dtype, bool wide>
GDN_DEVICE void half_left(struct half_factor &to, const char *u, const struct gdn_cu_lazy &a,
                          const float *decays, int j0, int count)
{
    uint32_t x[8], decay[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int j = j0 + threadIdx.x % 4 * 2 + i / 2 * 8 + i % 2;
        decay[i] = ld_b32_b16(decays + j, j < count, false);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int j = j0 + threadIdx.x % 4 * 2 + i / 4 * 8 + i % 2;
        const char *at = u + mad_wide(j, a.u.row, i / 2 % 2 * 8 * (wide ? 4 : 2));
        x[i] = lazy_load_u<wide>(at, decay[i / 4 * 2 + i % 2] != 0);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float *d = (const float *)decay + i / 2 * 2;
        half_split<dtype>(to.high[i], to.low[i], d[0] * lazy_u<dtype, wide>(x[2 * i]),
                          d[1] * lazy_u<dtype, wide>(x[2 * i + 1]));
    }
}

/* Loads eight elements of k of row j of the record. */
template <bool wide>
GDN_DEVICE void half_load_k(uint32_t (&x)[wide ? 8 : 4], const char *at, bool there)
{
    uint32_t y[4];
#pragma unroll
    for (int i = 0; i < (wide ? 2 : 1); i++) {
        ld_keep_v4(y, at + 16 * i, there);
#pragma unroll
        for (int j = 0; j < 4; j++) x[4 * i + j] = y[j];
    }
}

/* Returns the lane's element of pair i: the second one if `odd`. */
GDN_DEVICE uint32_t half_pick(uint32_t x, uint32_t y, bool odd)
{
    return odd ? x >> 16 | (y & 0xffff0000) : (x & 0xffff) | y << 16;
}

/* Adds the product of sixteen rows of the record, from j0 on, to 16 rows of v by 32 columns of k.
 * k: at the first column of row 0. left: u. */
template <int dtype, bool wide>
GDN_DEVICE void half_add_product(float (&S)[4][4], const struct half_factor &left, const char *k,
                                 const struct gdn_cu_lazy &a, const float *decays, int j0,
                                 int count)
{
    enum { WORDS = wide ? 8 : 4 };
    const bool odd = half_line() % 2;
    uint32_t x[4][WORDS];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int j = j0 + threadIdx.x % 4 * 2 + i / 2 * 8 + i % 2;
        const bool there = j < count && ld_b32_b16(decays + j, j < count, false) != 0;
        half_load_k<wide>(x[i], k + mad_wide(j, a.k.row, half_line() / 2 * 4 * WORDS), there);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t high[2], low[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t(&upper)[WORDS] = x[2 * h], (&lower)[WORDS] = x[2 * h + 1];
            if constexpr (wide)
                half_split<dtype>(high[h], low[h],
                                  __uint_as_float(odd ? upper[2 * i + 1] : upper[2 * i]),
                                  __uint_as_float(odd ? lower[2 * i + 1] : lower[2 * i]));
            else
                high[h] = half_pick(upper[i], lower[i], odd);
        }
        half_mma<dtype>(S[i], left.high, high[0], high[1]);
        half_mma<dtype>(S[i], left.low, high[0], high[1]);
        if constexpr (wide) half_mma<dtype>(S[i], left.high, low[0], low[1]);
    }
}

/* Puts all rows of the record into 16 rows of v, from v on, by 32 columns of k, from column on. */
template <int dtype>
GDN_DEVICE void half_add_record(float (&S)[4][4], const struct gdn_cu_lazy &a,
                                const struct token_place &w, const float *decays, int count, int v,
                                int column)
{
    const char *const k =
        lazy_at(a.k, w.from, 0, token_source(w.head, a.one.group_k)) + column * a.k.bytes;
    const char *const u = lazy_at(a.u, w.from, 0, w.head) + (v + half_line()) * a.u.bytes;
#pragma unroll 1
    for (int j0 = 0; j0 < count; j0 += LAZY_ROWS) {
        struct half_factor left;
        if (a.u.bytes == 4)
            half_left<dtype, true>(left, u, a, decays, j0, count);
        else
            half_left<dtype, false>(left, u, a, decays, j0, count);
        if (a.k.bytes == 4)
            half_add_product<dtype, true>(S, left, k, a, decays, j0, count);
        else
            half_add_product<dtype, false>(S, left, k, a, decays, j0, count);
    }
}

/* Puts all rows of the record, and the token, into the state, from the lane's first piece on. It is
 * read again, from the L2 cache: so the other calls need no registers for it. u: of the lane's own
 * row, times the factor of k. */
template <int dtype>
GDN_DEVICE void half_fold(char *state, const struct gdn_cu_lazy &a, const struct token_place &w,
                          const struct lazy_facts &f, const float *decays, float u, int v)
{
    const char *const key =
        token_at(a.one.k, w.row, token_source(w.head, a.one.group_k)) + threadIdx.x % 4 * 16;
#pragma unroll 1
    for (int i = 0; i < HALF_LINES / 2 * HALF_PIECES; i++) {
        const int m = i / HALF_PIECES, c = i % HALF_PIECES;
        float S[4][4], own[2];
        uint32_t x[2][4], k[4];
        ld_keep_v4(k, key + c * 64, f.beta != 0);
#pragma unroll
        for (int line = 0; line < 2; line++) {
            own[line] = __shfl_sync(0xffffffff, u, half_line() * 4 + 2 * m + line);
            ld_keep_v4(x[line], state + mad_wide(16 * m + 8 * line, a.one.from_row, c * 64),
                       f.decay != 0);
        }
#pragma unroll
        for (int e = 0; e < 16; e++)
            S[e % 8 / 2][e / 8 * 2 + e % 2] =
                f.decay * token_element<dtype>(x[e / 8][e % 8 / 2], e);
        half_add_record<dtype>(S, a, w, decays, f.count, v + 16 * m, c * 32);
#pragma unroll
        for (int line = 0; line < 2; line++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                x[line][e] = half_pair<dtype>(
                    fmaf(token_element<dtype>(k[e], 0), own[line], S[e][2 * line]),
                    fmaf(token_element<dtype>(k[e], 1), own[line], S[e][2 * line + 1]));
            token_store(state + mad_wide(16 * m + 8 * line, a.one.from_row, c * 64), x[line]);
        }
    }
}

/* ---- The token ------------------------------------------------------------------------------- */

template <int dtype>
GDN_DEVICE void lazy_decode_half(const struct gdn_cu_lazy &a, const struct token_place &w, int v)
{
    const struct gdn_cu_token &o = a.one;
    const int lane = threadIdx.x, own = v + half_own(), at = lane % 4 * 16;
    uint32_t right[HALF_PIECES][4];
    struct half_tile tile;
    float p, z, rows_p, rows_z;
    char *const state = token_at(o.from, w.from, w.head) + (v + half_line()) * o.from_row + at;
#pragma unroll
    for (int i = 0; i < HALF_LINES * HALF_PIECES; i++)
        ld_v4(tile.S[i / HALF_PIECES][i % HALF_PIECES],
              state + mad_wide(i / HALF_PIECES * 8, o.from_row, i % HALF_PIECES * 64));
    const char *const column = half_line() % 2
                                   ? token_at(o.q, w.row, token_source(w.head, o.group_q))
                                   : token_at(o.k, w.row, token_source(w.head, o.group_k));
#pragma unroll
    for (int c = 0; c < HALF_PIECES; c++) ld_v4(right[c], column + at + c * 64);
    const uint32_t value =
        ld_b32_b16(token_at(o.v, w.row, token_source(w.head, o.group_v)) + own * 2, false, true);
    lazy_request_rows(a, w, v);
    griddepcontrol_wait();
    float *const memory = lazy_memory(a, w);
    const struct lazy_facts f = lazy_load_facts(memory);
    lazy_sum_rows<dtype, 1>(rows_p, rows_z, a, w, lazy_weights(memory), f, own);
    if (__builtin_expect(f.decay == 0, 0)) token_forget(&tile.S[0][0][0], sizeof tile / 4);
    half_read<dtype>(p, z, tile, right);
    const float u = rule_u(f.beta, token_half<dtype>(value), fmaf(f.k, p, rows_p));
    if (o.out.data)
        token_store_half<dtype>(token_at(o.out, w.row, w.head) + own * 2,
                                rule_o(f.kq, fmaf(f.q, z, rows_z), u));
    if (lazy_appends<dtype>(a, w, f.count, own, u)) return;
    half_fold<dtype>(state, a, w, f, lazy_decays(memory, a), u * f.key, v);
}

#endif
