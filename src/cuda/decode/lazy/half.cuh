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
#include "cuda/driver/shared_bytes.h"

extern __shared__ __align__(128) char gdn_shared[];

enum { HALF_ROWS = 32, HALF_PIECES = 4, HALF_LINES = 4 };

GDN_DEVICE int half_line(void) { return threadIdx.x / 4; }
GDN_DEVICE int half_own(void) { return threadIdx.x % 4 * 8 + threadIdx.x / 4; }

/* Sixteen rows of a record, the last of which may be tokens of the call, as factors of 16 bits: u
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
/* Or of several tokens: p and z of each row of v. */
struct half_sums {
    float2 pz[LAZY_TOKENS][HALF_ROWS];
};
union half_shared {
    struct half_token token;
    struct half_sums sums;
    struct half_rows rows;
};
static_assert(sizeof(union half_shared) == GDN_CU_LAZY_WIDE_BYTES &&
                  sizeof(struct half_token) == GDN_CU_LAZY_BYTES &&
                  sizeof(struct half_sums) <= sizeof(struct half_token) &&
                  (int)offsetof(struct half_rows, k[1]) <= (int)GDN_CU_LAZY_BYTES,
              "as it is launched");

/* Begins to copy the lane's pieces of a state, the first of them at `state`. */
GDN_DEVICE void half_copy(struct half_token &sh, const char *state, int step)
{
    const int lane = threadIdx.x;
#pragma unroll
    for (int i = 0; i < HALF_LINES * HALF_PIECES; i++)
        copy_async<16>(shared_address(sh.S[i / HALF_PIECES][i % HALF_PIECES][lane]),
                       state + mad_wide(i / HALF_PIECES * 8, step, i % HALF_PIECES * 64), 16);
}

/* Copies k and q of one token. */
GDN_DEVICE void half_copy_token(struct half_token &sh, const struct gdn_cu_token &o,
                                const struct token_place &w)
{
    const int lane = threadIdx.x;
    const char *const kq = lane < 16 ? token_at(o.k, w.row, token_source(w.head, o.group_k))
                                     : token_at(o.q, w.row, token_source(w.head, o.group_q));
    copy_async<16>(shared_address(sh.kq[lane / 16][lane % 16]), kq + lane % 16 * 16, 16);
}

/* Computes S X. right: the lane's pieces of X. sums: of rows 8 (2 i) + g and 8 (2 i + 1) + g, each
 * with columns 2 t and 2 t + 1. */
template <int dtype>
GDN_DEVICE void half_read(float (&sums)[2][4], const struct half_token &sh,
                          const uint32_t (&right)[HALF_PIECES][4])
{
#pragma unroll
    for (int i = 0; i < 8; i++) sums[i / 4][i % 4] = 0;
#pragma unroll
    for (int i = 0; i < HALF_PIECES * 2; i++) {
        const int c = i / 2;
        const uint4 x = *(const uint4 *)sh.S[i % 2 * 2][c][threadIdx.x];
        const uint4 y = *(const uint4 *)sh.S[i % 2 * 2 + 1][c][threadIdx.x];
        const uint32_t rows[2][4] = { { x.x, x.y, x.z, x.w }, { y.x, y.y, y.z, y.w } };
        lazy_multiply_piece<dtype>(sums[i % 2], rows, right[c]);
    }
}

/* Computes p and z of the lane's own row, with raw k and q. These are the even and the odd columns
 * of the right factor. */
template <int dtype> GDN_DEVICE void half_read_one(float &p, float &z, const struct half_token &sh)
{
    float sums[2][4];
    uint32_t right[HALF_PIECES][4];
#pragma unroll
    for (int c = 0; c < HALF_PIECES; c++) {
        const uint4 x = *(const uint4 *)sh.kq[half_line() % 2][threadIdx.x % 4 + 4 * c];
        right[c][0] = x.x, right[c][1] = x.y, right[c][2] = x.z, right[c][3] = x.w;
    }
    half_read<dtype>(sums, sh, right);
    const int line = threadIdx.x % 4;
    p = line % 2 ? (line / 2 ? sums[1][2] : sums[0][2]) : (line / 2 ? sums[1][0] : sums[0][0]);
    z = line % 2 ? (line / 2 ? sums[1][3] : sums[0][3]) : (line / 2 ? sums[1][1] : sums[0][1]);
}

/* Computes p and z of all rows for all tokens, in the place of the state. x: the first four tokens
 * as columns. */
template <int dtype>
GDN_DEVICE void half_read_tokens(struct half_sums &to, const struct half_token &sh,
                                 const struct gdn_cu_lazy &a, const struct token_place &w,
                                 uint32_t (&x)[HALF_PIECES][4])
{
    enum { N = LAZY_TOKENS / LAZY_FOUR };
    const int t = threadIdx.x % 4;
    float sums[N][2][4];
#pragma unroll
    for (int n = 0; n < N; n++) {
        if (n * LAZY_FOUR >= a.n_tokens) break;
        if (n) lazy_load_columns(x, a, w, n * LAZY_FOUR);
        half_read<dtype>(sums[n], sh, x);
    }
    __syncwarp();
#pragma unroll
    for (int n = 0; n < N; n++) {
        if (n * LAZY_FOUR >= a.n_tokens) break;
#pragma unroll
        for (int i = 0; i < HALF_LINES; i++)
            to.pz[n * LAZY_FOUR + t][8 * i + half_line()] =
                make_float2(sums[n][i / 2][i % 2 * 2], sums[n][i / 2][i % 2 * 2 + 1]);
    }
    __syncwarp();
}

/* ---- The fold -------------------------------------------------------------------------------- */

/* Stages k of n rows from `rows` on. A row whose bit in mask is not set becomes zeros. */
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

/* Stages the tokens of the call that follow `own` of sixteen rows. key: the factor of token
 * `lane`. */
template <int dtype, int TOKENS>
GDN_DEVICE void half_stage_tokens(struct half_rows &sh, const struct gdn_cu_lazy &a,
                                  const struct token_place &w, const float (&of_column)[TOKENS],
                                  unsigned adds, float key, int own)
{
    const int lane = threadIdx.x, piece = lane / 2;
    const int at = piece / 4 * 16 + piece % 4 + lane % 2 * 8;
    uint32_t x[TOKENS][4];
    lazy_load_keys(x, a, w, adds);
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
        const int row = own + t;
        if (t >= lazy_tokens<TOKENS>(a) || row < 0 || row >= LAZY_ROWS) continue;
        const float power = half_power(TOKENS == 1 ? key : __shfl_sync(0xffffffff, key, t));
        uint32_t high, low;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            sh.k[0][row][at + e * 4] = half_pair<dtype>(power * token_element<dtype>(x[t][e], 0),
                                                        power * token_element<dtype>(x[t][e], 1));
            if (a.k.bytes == 4) sh.k[1][row][at + e * 4] = 0;
        }
        half_split<dtype>(high, low, of_column[t], 0);
        sh.u[0][row][lane] = (uint16_t)high, sh.u[1][row][lane] = (uint16_t)low;
    }
}

/* Stages rows j0 to j0 + 15 of the record, and the tokens behind the last of them. of_column: u of
 * the lane's column, times decays and half_rest(). adds: a bit of each token. */
template <int dtype, int TOKENS>
GDN_DEVICE void half_stage(struct half_rows &sh, const struct gdn_cu_lazy &a,
                           const struct token_place &w, const struct lazy_facts &f,
                           const float *decays, const float (&of_column)[TOKENS], unsigned adds,
                           float key, int v, int j0)
{
    const int lane = threadIdx.x, source = token_source(w.head, a.one.group_k);
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
    half_stage_tokens<dtype>(sh, a, w, of_column, adds, key, f.count - j0);
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

/* Puts all rows of the record, and the tokens, into the state, sixteen at a time. It is read again,
 * from the L2 cache, when rows are staged: that takes many registers. of_column, adds: as
 * in half_stage(). */
template <int dtype, int TOKENS>
GDN_DEVICE void half_fold(char *state, struct half_rows &sh, const struct gdn_cu_lazy &a,
                          const struct token_place &w, const struct lazy_facts &f,
                          const float *decays, const float (&of_column)[TOKENS], unsigned adds,
                          float key, int v)
{
    const int step = a.one.from_row, n_rows = f.count + lazy_tokens<TOKENS>(a);
    float decay = f.decay;
#pragma unroll 1
    for (int j0 = 0; j0 < n_rows; j0 += LAZY_ROWS, decay = 1) {
        half_stage<dtype>(sh, a, w, f, decays, of_column, adds, key, v, j0);
#pragma unroll 1
        for (int i = 0; i < 4; i++)
            half_fold_part<dtype>(state, step, sh, decay, i / 2, i % 2 * 2, a.k.bytes == 4);
    }
}

/* ---- The tokens ------------------------------------------------------------------------------ */

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

/* Computes p and z of one token, then u of the lane's column. Returns u. */
template <int dtype>
GDN_DEVICE float half_one_token(const struct half_token &sh, const struct gdn_cu_lazy &a,
                                const struct token_place &w, float *memory,
                                const struct lazy_facts &f, uint32_t value, int v)
{
    const struct gdn_cu_token &o = a.one;
    const int own = v + half_own();
    float p, z, rows_p, rows_z;
    half_sum_rows<dtype>(rows_p, rows_z, a, w, lazy_weights(memory), f, v);
    copy_wait<0>();
    __syncwarp();
    half_read_one<dtype>(p, z, sh);
    if (__builtin_expect(f.decay == 0, 0)) p = z = 0; /* the state is forgotten, NaN or not */
    const float u = rule_u(f.beta, token_half<dtype>(value), fmaf(f.k, p, rows_p));
    if (o.out.data)
        token_store_half<dtype>(token_at(o.out, w.row, w.head) + own * 2,
                                rule_o(f.kq, fmaf(f.q, z, rows_z), u));
    return u;
}

template <int dtype, int TOKENS>
GDN_DEVICE void lazy_decode_half(const struct gdn_cu_lazy &a, const struct token_place &w, int v,
                                 struct lazy_facts f, bool early)
{
    __shared__ float us[TOKENS][HALF_ROWS];
    union half_shared &sh = *(union half_shared *)gdn_shared;
    const struct gdn_cu_token &o = a.one;
    float *const memory = lazy_memory(a, w);
    const int lane = threadIdx.x, at = lane % 4 * 16, column = half_own(), own = v + column;
    uint32_t x[HALF_PIECES][4], value;
    float u = 0;
    char *const state = token_at(o.from, w.from, w.head) + (v + half_line()) * o.from_row + at;
    const char *const values = token_at(o.v, w.row, token_source(w.head, o.group_v));
    half_copy(sh.token, state, o.from_row);
    if (TOKENS == 1) half_copy_token(sh.token, o, w);
    copy_commit();
    if constexpr (TOKENS == 1)
        value = ld_b32_b16(values + own * 2, false, true);
    else
        lazy_load_columns(x, a, w, 0), lazy_touch(values + v * 2, a.v_token, a.n_tokens);
    lazy_request_rows(a, w, v);
    if (early) {
        griddepcontrol_wait();
        f = lazy_load_facts(memory);
    }
    if constexpr (TOKENS == 1) {
        u = half_one_token<dtype>(sh.token, a, w, memory, f, value, v);
    } else {
        lazy_touch_memory(a, memory);
        copy_wait<0>();
        __syncwarp();
        half_read_tokens<dtype>(sh.sums, sh.token, a, w, x);
        lazy_run_tokens<dtype>(us, f, sh.sums.pz, a, w, memory, values + own * 2, column, own, true,
                               [&](float &p, float &z, const float *weights, const lazy_facts &of) {
                                   half_sum_rows<dtype>(p, z, a, w, weights, of, v);
                               });
        __syncwarp();
    }
    const bool appends = lazy_appends<TOKENS>(a, w, f.count);
    if (TOKENS == 1 && appends) lazy_append_u<dtype>(a, w, f.count, own, u);
    if (appends) return;
    /* loaded again, so that they need no registers from token to token */
    f = lazy_load_facts(lazy_at_token(memory, a, lazy_tokens<TOKENS>(a) - 1));
    float *const decays = lazy_decays<TOKENS>(memory, a), of_column[TOKENS], key;
    const unsigned adds =
        lazy_last_us<true>(of_column, key, us, a, memory, f, u, lane, lane % 8 * 4 + lane / 8);
    half_fold<dtype>(state, sh.rows, a, w, f, decays, of_column, adds, key, v);
}

#endif
