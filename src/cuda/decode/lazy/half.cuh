/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lazy.cuh for states of 16 bits, with tensor cores. A warp, which is a block, has 32 rows of v,
 * 8 KB of a state. They come to shared memory by copies behind its back. Held in registers on their
 * way, they would leave room for a third fewer blocks, and so for fewer bytes on their way.
 *
 * Lane 4 g + t has pieces 4 p + t, p = 0 to 3, of rows 8 i + g, i = 0 to 3, and reads no others. As
 * they lie in memory they are left factors of mma.sync. Elements of k come there in another order
 * than in memory; the right factors have the same order, so the sums are the same.
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

/* Sixteen rows of a record, the last of which may be the token itself, as factors of 16 bits: u
 * times decays, and k if it is float32, in two parts. k: [row][piece 4 p][pair i of lane t], so
 * that eight elements side by side are those of a product; k of 16 bits has no second part. Rows
 * are apart by odd multiples of 16 bytes. */
struct half_rows {
    alignas(16) uint16_t u[2][LAZY_ROWS][40];
    alignas(16) uint32_t k[2][LAZY_ROWS][68];
};

/* First a token and its state: [line][piece][lane], see above; k and q, by pieces. Then rows, for a
 * fold. */
struct half_token {
    alignas(16) uint32_t S[HALF_LINES][HALF_PIECES][32][4], kq[2][16][4];
};
union half_shared {
    struct half_token token;
    struct half_rows rows;
};
static_assert(sizeof(union half_shared) == GDN_CU_LAZY_WIDE_BYTES &&
                  sizeof(struct half_token) == GDN_CU_LAZY_BYTES &&
                  (int)offsetof(struct half_rows, k[1]) <= (int)GDN_CU_LAZY_BYTES,
              "as it is launched");

/* Begins to copy the lane's pieces of a state, the first of them at `state`, and one of k or q. */
GDN_DEVICE void half_copy(struct half_token &sh, const char *state, int step, const char *kq)
{
    const int lane = threadIdx.x;
#pragma unroll
    for (int i = 0; i < HALF_LINES * HALF_PIECES; i++)
        copy_async<16>(shared_address(sh.S[i / HALF_PIECES][i % HALF_PIECES][lane]),
                       state + mad_wide(i / HALF_PIECES * 8, step, i % HALF_PIECES * 64), 16);
    copy_async<16>(shared_address(sh.kq[lane / 16][lane % 16]), kq, 16);
    copy_commit();
}

/* Computes p and z of the lane's own row, with raw k and q. These are the even and the odd columns
 * of the right factor. */
template <int dtype> GDN_DEVICE void half_read(float &p, float &z, const struct half_token &sh)
{
    float sums[2][4] = {};
#pragma unroll
    for (int c = 0; c < HALF_PIECES; c++) {
        const uint4 right = *(const uint4 *)sh.kq[half_line() % 2][threadIdx.x % 4 + 4 * c];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint4 x = *(const uint4 *)sh.S[2 * i][c][threadIdx.x];
            const uint4 y = *(const uint4 *)sh.S[2 * i + 1][c][threadIdx.x];
            const uint32_t first[4] = { x.x, y.x, x.y, y.y }, second[4] = { x.z, y.z, x.w, y.w };
            half_mma<dtype>(sums[i], first, right.x, right.y);
            half_mma<dtype>(sums[i], second, right.z, right.w);
        }
    }
    const int line = threadIdx.x % 4;
    p = line % 2 ? (line / 2 ? sums[1][2] : sums[0][2]) : (line / 2 ? sums[1][0] : sums[0][0]);
    z = line % 2 ? (line / 2 ? sums[1][3] : sums[0][3]) : (line / 2 ? sums[1][1] : sums[0][1]);
}

/* ---- The fold -------------------------------------------------------------------------------- */

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
            if (a.k.bytes == 4) sh.k[1][own][at + (lane % 2 * 2 + e) * 4] = 0;
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

/* Puts the staged rows into a quarter of the state, times a decay: 16 rows of v, from line 2 m on,
 * by pieces 4 c + t and the next four. More at a time would not fit the registers. */
template <int dtype>
GDN_DEVICE void half_fold_part(char *state, int step, const struct half_rows &sh, float decay,
                               int m, int c, bool wide)
{
    uint32_t x[2][2][4], high[4], low[4];
    const int lane = threadIdx.x;
    state += mad_wide(16 * m, step, 64 * c);
#pragma unroll
    for (int i = 0; i < 4; i++)
        ld_keep_v4(x[i / 2][i % 2], state + mad_wide(i / 2 * 8, step, i % 2 * 64), decay != 0);
    const uint32_t at =
        shared_address(&sh.u[0][lane % 8 + lane / 16 * 8][16 * m + lane / 8 % 2 * 8]);
    load_matrices_turned(high, at);
    load_matrices_turned(low, at + (uint32_t)sizeof sh.u[0]);
#pragma unroll
    for (int n = 0; n < 2; n++) {
        float S[4][4];
#pragma unroll
        for (int e = 0; e < 16; e++)
            S[e % 8 / 2][e / 8 * 2 + e % 2] =
                decay * token_element<dtype>(x[e / 8][n][e % 8 / 2], e);
        half_add_product<dtype>(S, sh, high, low, c + n, wide);
#pragma unroll
        for (int e = 0; e < 8; e++)
            x[e / 4][n][e % 4] = half_pair<dtype>(S[e % 4][e / 4 * 2], S[e % 4][e / 4 * 2 + 1]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        token_store(state + mad_wide(i / 2 * 8, step, i % 2 * 64), x[i / 2][i % 2]);
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
        for (int i = 0; i < 4; i++)
            half_fold_part<dtype>(state, step, sh, decay, i / 2, i % 2 * 2, a.k.bytes == 4);
    }
}

/* ---- The token ------------------------------------------------------------------------------- */

/* Adds u of the rows that count, times their weights, sixteen at a time. Lane 4 g + t has columns
 * 8 t + e of rows 8 i + g. u: at the lane's columns of row 0. */
template <int dtype, bool wide>
GDN_DEVICE void half_add_rows(float (&p)[8], float (&z)[8], const char *u, int step,
                              const float *weights, const struct lazy_facts &f)
{
    enum { PARTS = wide ? 2 : 1 };
#pragma unroll 1
    for (int j = f.first + half_line(); j < f.count + half_line(); j += LAZY_ROWS) {
        uint32_t x[2][PARTS][4], w[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const bool there = j + 8 * i < f.count;
            ld_keep_v2(w[i], weights + 2 * (j + 8 * i), there);
#pragma unroll
            for (int n = 0; n < PARTS; n++)
                ld_keep_v4(x[i][n], u + mad_wide(j + 8 * i, step, 16 * n), there);
        }
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const int e = i % 8;
            const uint32_t(&parts)[PARTS][4] = x[i / 8];
            const float ue = wide ? __uint_as_float(parts[e / 4 % PARTS][e % 4])
                                  : token_element<dtype>(parts[0][e / 2], e);
            p[e] = fmaf(__uint_as_float(w[i / 8][0]), ue, p[e]);
            z[e] = fmaf(__uint_as_float(w[i / 8][1]), ue, z[e]);
        }
    }
}

/* Computes these sums of the lane's own column. */
template <int dtype>
GDN_DEVICE void half_sum_rows(float &p, float &z, const struct gdn_cu_lazy &a,
                              const struct token_place &w, const float *weights,
                              const struct lazy_facts &f, int v)
{
    float ps[8] = {}, zs[8] = {};
    const char *const u = lazy_at(a.u, w.from, 0, w.head) + (v + threadIdx.x % 4 * 8) * a.u.bytes;
    if (a.u.bytes == 4)
        half_add_rows<dtype, true>(ps, zs, u, a.u.row, weights, f);
    else
        half_add_rows<dtype, false>(ps, zs, u, a.u.row, weights, f);
    halve<4>(ps, 16), halve<4>(zs, 16);
    halve<2>(ps, 8), halve<2>(zs, 8);
    halve<1>(ps, 4), halve<1>(zs, 4);
    p = ps[0], z = zs[0];
}

template <int dtype>
GDN_DEVICE void lazy_decode_half(const struct gdn_cu_lazy &a, const struct token_place &w, int v,
                                 struct lazy_facts f, bool early)
{
    union half_shared &sh = *(union half_shared *)gdn_shared;
    const struct gdn_cu_token &o = a.one;
    float *const memory = lazy_memory(a, w);
    const int lane = threadIdx.x, own = v + half_own(), at = lane % 4 * 16;
    float p, z, rows_p, rows_z;
    char *const state = token_at(o.from, w.from, w.head) + (v + half_line()) * o.from_row + at;
    const char *const kq = lane < 16 ? token_at(o.k, w.row, token_source(w.head, o.group_k))
                                     : token_at(o.q, w.row, token_source(w.head, o.group_q));
    half_copy(sh.token, state, o.from_row, kq + lane % 16 * 16);
    const uint32_t value =
        ld_b32_b16(token_at(o.v, w.row, token_source(w.head, o.group_v)) + own * 2, false, true);
    lazy_request_rows(a, w, v);
    if (early) {
        griddepcontrol_wait();
        f = lazy_load_facts(memory);
    }
    half_sum_rows<dtype>(rows_p, rows_z, a, w, lazy_weights(memory), f, v);
    copy_wait<0>();
    __syncwarp();
    half_read<dtype>(p, z, sh.token);
    if (__builtin_expect(f.decay == 0, 0)) p = z = 0; /* the state is forgotten, NaN or not */
    const float u = rule_u(f.beta, token_half<dtype>(value), fmaf(f.k, p, rows_p));
    if (o.out.data)
        token_store_half<dtype>(token_at(o.out, w.row, w.head) + own * 2,
                                rule_o(f.kq, fmaf(f.q, z, rows_z), u));
    if (lazy_appends<dtype>(a, w, f.count, own, u)) return;
    f = lazy_load_facts(memory); /* again, so that no token keeps them in registers for this */
    half_fold<dtype>(state, sh.rows, a, w, f, lazy_decays(memory, a), u * half_rest(f.key), v);
}

#endif
