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

#include "cuda/decode/lazy/rows.cuh"
#include "cuda/device/ptx_mma.cuh"
#include "cuda/driver/shared_bytes.h"

extern __shared__ __align__(128) char gdn_shared[];

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

/* Sixteen rows of a record, the last of which may be the token itself, as factors of 16 bits: u
 * times decays, and k if it is float32, in two parts. k: [row][piece 4 p][pair i of lane t], so
 * that eight elements side by side are those of a product. Rows are apart by odd multiples of 16
 * bytes. */
struct half_rows {
    alignas(16) uint32_t k[2][LAZY_ROWS][68];
    alignas(16) uint16_t u[2][LAZY_ROWS][40];
};
static_assert(sizeof(struct half_rows) == GDN_CU_LAZY_BYTES, "as it is launched");

template <int dtype> GDN_DEVICE void half_split(uint32_t &high, uint32_t &low, float x, float y)
{
    high = half_pair<dtype>(x, y);
    low = half_pair<dtype>(x - token_element<dtype>(high, 0), y - token_element<dtype>(high, 1));
}

/* Stages k of n rows from `rows` on: those whose bit of mask is set, the others as zeros. */
template <int dtype, bool wide>
GDN_DEVICE void half_stage_k(struct half_rows &sh, const char *rows, int step, unsigned mask)
{
    enum { LOADS = 8, AT_ONCE = wide ? LOADS : 2 * LOADS };
    const int lane = threadIdx.x, first = wide ? 0 : lane / 16;
#pragma unroll 1
    for (int j0 = 0; j0 < LAZY_ROWS; j0 += AT_ONCE) {
        uint32_t x[LOADS][4];
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int j = j0 + (wide ? i : first + 2 * i);
            ld_keep_v4(x[i], rows + mad_wide(j, step, (wide ? lane : lane % 16) * 16),
                       mask >> j & 1);
        }
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int j = j0 + (wide ? i : first + 2 * i);
            const int piece = wide ? lane / 2 : lane % 16, at = piece / 4 * 16 + piece % 4;
            if constexpr (wide) {
#pragma unroll
                for (int e = 0; e < 2; e++)
                    half_split<dtype>(sh.k[0][j][at + (lane % 2 * 2 + e) * 4],
                                      sh.k[1][j][at + (lane % 2 * 2 + e) * 4],
                                      __uint_as_float(x[i][2 * e]),
                                      __uint_as_float(x[i][2 * e + 1]));
            } else {
#pragma unroll
                for (int e = 0; e < 4; e++) sh.k[0][j][at + e * 4] = x[i][e];
            }
        }
    }
}

/* Stages u of column `lane` times decays. decay: of row `lane`; those of rows without are zero. */
template <int dtype, bool wide>
GDN_DEVICE void half_stage_u(struct half_rows &sh, const char *u, int step, float decay,
                             unsigned mask)
{
    uint32_t x[LAZY_ROWS];
#pragma unroll
    for (int j = 0; j < LAZY_ROWS; j++)
        x[j] = lazy_load_u<wide>(u + mad_wide(j, step, 0), mask >> j & 1);
#pragma unroll
    for (int j = 0; j < LAZY_ROWS; j++) {
        const float y = __shfl_sync(0xffffffff, decay, j) * lazy_u<dtype, wide>(x[j]);
        uint32_t high, low;
        half_split<dtype>(high, low, y, 0);
        sh.u[0][j][threadIdx.x] = (uint16_t)high, sh.u[1][j][threadIdx.x] = (uint16_t)low;
    }
}

/* Return the power of two of a factor of k, and the rest of it. Where raw k is very large or small,
 * float16 has no number for u times the factor. It has them for k times the power, with all bits
 * of k, and for u times the rest. */
GDN_DEVICE float half_power(float key)
{
    return __uint_as_float(__float_as_uint(key) & 0x7f800000);
}
GDN_DEVICE float half_rest(float key)
{
    return __uint_as_float((__float_as_uint(key) & 0x007fffff) | 0x3f800000);
}

/* Stages rows j0 to j0 + 15 of the record, and the token behind the last of them. u: of the lane's
 * column, times half_rest(). */
template <int dtype>
GDN_DEVICE void half_stage(struct half_rows &sh, const struct gdn_cu_lazy &a,
                           const struct token_place &w, const struct lazy_facts &f,
                           const float *decays, float u, int v, int j0)
{
    const int lane = threadIdx.x, own = f.count - j0, source = token_source(w.head, a.one.group_k);
    const float decay = lazy_row_decay(decays, f, j0);
    const unsigned mask = __ballot_sync(0xffffffff, decay != 0);
    const char *const rows = lazy_at(a.k, w.from, j0, source);
    const char *const column = lazy_at(a.u, w.from, j0, w.head) + (v + lane) * a.u.bytes;
    __syncwarp();
    if (a.u.bytes == 4)
        half_stage_u<dtype, true>(sh, column, a.u.row, decay, mask);
    else
        half_stage_u<dtype, false>(sh, column, a.u.row, decay, mask);
    if (a.k.bytes == 4)
        half_stage_k<dtype, true>(sh, rows, a.k.row, mask);
    else
        half_stage_k<dtype, false>(sh, rows, a.k.row, mask);
    __syncwarp();
    if (own < LAZY_ROWS) {
        uint32_t x[2], high, low;
        const char *const k = token_at(a.one.k, w.row, source) + lane * 8;
        x[0] = ld_b32_b16(k, f.beta != 0, false), x[1] = ld_b32_b16(k + 4, f.beta != 0, false);
        const int piece = lane / 2, at = piece / 4 * 16 + piece % 4;
        const float power = half_power(f.key);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            sh.k[0][own][at + (lane % 2 * 2 + e) * 4] = half_pair<dtype>(
                power * token_element<dtype>(x[e], 0), power * token_element<dtype>(x[e], 1));
            sh.k[1][own][at + (lane % 2 * 2 + e) * 4] = 0;
        }
        half_split<dtype>(high, low, u, 0);
        sh.u[0][own][lane] = (uint16_t)high, sh.u[1][own][lane] = (uint16_t)low;
    }
    __syncwarp();
}

/* Adds the product of the staged rows to 16 rows of v, from line 2 m on, by pieces 4 c + t. */
template <int dtype>
GDN_DEVICE void half_add_product(float (&S)[4][4], const struct half_rows &sh,
                                 const uint32_t (&high)[4], const uint32_t (&low)[4], int c,
                                 bool wide)
{
    const int lane = threadIdx.x;
    const uint32_t at =
        shared_address(&sh.k[0][lane % 8 + lane / 8 % 2 * 8][c * 16 + lane / 16 * 4]);
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        uint32_t x[4];
        load_matrices_turned(x, at + i * 16);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            half_mma<dtype>(S[i + e], high, x[2 * e], x[2 * e + 1]);
            half_mma<dtype>(S[i + e], low, x[2 * e], x[2 * e + 1]);
        }
        if (!wide) continue;
        load_matrices_turned(x, at + i * 16 + (uint32_t)sizeof sh.k[0]);
#pragma unroll
        for (int e = 0; e < 2; e++) half_mma<dtype>(S[i + e], high, x[2 * e], x[2 * e + 1]);
    }
}

/* Puts the staged rows into 16 rows of v of the state, times a decay. u: at their first column. */
template <int dtype>
GDN_DEVICE void half_fold_lines(char *state, int step, const uint16_t *u,
                                const struct half_rows &sh, float decay, bool wide)
{
    uint32_t x[2][HALF_PIECES][4], high[4], low[4];
    const int lane = threadIdx.x;
#pragma unroll
    for (int i = 0; i < 2 * HALF_PIECES; i++)
        ld_keep_v4(x[i / HALF_PIECES][i % HALF_PIECES],
                   state + mad_wide(i / HALF_PIECES * 8, step, i % HALF_PIECES * 64), decay != 0);
    const uint32_t at = shared_address(u + (lane % 8 + lane / 16 * 8) * 40 + lane / 8 % 2 * 8);
    load_matrices_turned(high, at);
    load_matrices_turned(low, at + (uint32_t)sizeof sh.u[0]);
#pragma unroll
    for (int c = 0; c < HALF_PIECES; c++) {
        float S[4][4];
#pragma unroll
        for (int e = 0; e < 16; e++)
            S[e % 8 / 2][e / 8 * 2 + e % 2] =
                decay * token_element<dtype>(x[e / 8][c][e % 8 / 2], e);
        half_add_product<dtype>(S, sh, high, low, c, wide);
#pragma unroll
        for (int e = 0; e < 8; e++)
            x[e / 4][c][e % 4] = half_pair<dtype>(S[e % 4][e / 4 * 2], S[e % 4][e / 4 * 2 + 1]);
    }
#pragma unroll
    for (int i = 0; i < 2 * HALF_PIECES; i++)
        token_store(state + mad_wide(i / HALF_PIECES * 8, step, i % HALF_PIECES * 64),
                    x[i / HALF_PIECES][i % HALF_PIECES]);
}

/* Puts all rows of the record, and the token, into the state, sixteen at a time. It is read again,
 * from the L2 cache, when rows are staged: that takes many registers. u: of the lane's own row,
 * times half_rest(). */
template <int dtype>
GDN_DEVICE void half_fold(char *state, struct half_rows &sh, const struct gdn_cu_lazy &a,
                          const struct token_place &w, const struct lazy_facts &f,
                          const float *decays, float u, int v)
{
    const int lane = threadIdx.x, step = a.one.from_row;
    const float of_column = __shfl_sync(0xffffffff, u, lane % 8 * 4 + lane / 8);
    float decay = f.decay;
#pragma unroll 1
    for (int j0 = 0; j0 <= f.count; j0 += LAZY_ROWS, decay = 1) {
        half_stage<dtype>(sh, a, w, f, decays, of_column, v, j0);
#pragma unroll 1
        for (int m = 0; m < 2; m++)
            half_fold_lines<dtype>(state + mad_wide(16 * m, step, 0), step, &sh.u[0][0][16 * m], sh,
                                   decay, a.k.bytes == 4);
    }
}

/* ---- The token ------------------------------------------------------------------------------- */

template <int dtype>
GDN_DEVICE void lazy_decode_half(const struct gdn_cu_lazy &a, const struct token_place &w, int v,
                                 struct lazy_facts f, bool early)
{
    struct half_rows &sh = *(struct half_rows *)gdn_shared;
    const struct gdn_cu_token &o = a.one;
    float *const memory = lazy_memory(a, w);
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
    if (early) {
        griddepcontrol_wait();
        f = lazy_load_facts(memory);
    }
    lazy_sum_rows<dtype, 1>(rows_p, rows_z, a, w, lazy_weights(memory), f, own);
    if (__builtin_expect(f.decay == 0, 0)) token_forget(&tile.S[0][0][0], sizeof tile / 4);
    half_read<dtype>(p, z, tile, right);
    const float u = rule_u(f.beta, token_half<dtype>(value), fmaf(f.k, p, rows_p));
    if (o.out.data)
        token_store_half<dtype>(token_at(o.out, w.row, w.head) + own * 2,
                                rule_o(f.kq, fmaf(f.q, z, rows_z), u));
    if (lazy_appends<dtype>(a, w, f.count, own, u)) return;
    half_fold<dtype>(state, sh, a, w, f, lazy_decays(memory, a), u * half_rest(f.key), v);
}

#endif
