/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Up to eight tokens of each sequence, accepted at once beside a record (gdn_record.h), on k-last
 * states. With G, G_j and w_j of rows.cuh,
 *
 *     p = G S k + sum_j w_j u_j;    u = beta (v - p)
 *     o = G S q + sum_j w'_j u_j + (k . q) u
 *
 * A state is read once. To a token, those ahead of it are rows like those of the record; their u
 * are on the chip. u becomes a row of the record, or, if the call fills the record, all rows go
 * into the state, which is still on the chip:
 *
 *     S <- G S + sum_j G_j u_j k_j^T + u k^T
 *
 * The kernel ahead of it (rows.cuh) writes no state, and lets this one begin only when all
 * kernels ahead have ended. So the blocks that begin then, the early ones, load the state before
 * they wait for that kernel. Later blocks wait first, which takes no time, and ask for the facts
 * together with the slot: a trip to memory less.
 */
#ifndef GDN_CUDA_DECODE_LAZY_CUH
#define GDN_CUDA_DECODE_LAZY_CUH

#include "cuda/decode/lazy/half.cuh"
#include "cuda/decode/lazy/rows.cuh"

enum { LAZY_F32_ROWS = 16 }; /* of v of a warp: 8 KB of a state */

/* Sixteen rows of a record, the last of which may be tokens of the call: k, and u times decays, in
 * the order in which a lane has rows. */
struct lazy_rows {
    alignas(16) float k[LAZY_ROWS][LAZY_K];
    alignas(16) float u[LAZY_ROWS][LAZY_F32_ROWS];
};

/* Stages k of rows. A row whose bit of mask is not set becomes zeros. */
template <int io, bool wide>
GDN_DEVICE void lazy_stage_k(struct lazy_rows &sh, const char *rows, int step, unsigned mask)
{
    enum { AT_ONCE = 8 };
    const int lane = threadIdx.x;
#pragma unroll 1
    for (int j0 = 0; j0 < LAZY_ROWS; j0 += AT_ONCE) {
        uint32_t x[AT_ONCE][4];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const char *at = rows + mad_wide(j0 + i, step, lane * (wide ? 16 : 8));
            if (wide)
                ld_keep_v4(x[i], at, mask >> (j0 + i) & 1);
            else
                ld_keep_v2(x[i], at, mask >> (j0 + i) & 1);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            *(float4 *)&sh.k[j0 + i][4 * lane] =
                make_float4(lazy_element<io, wide>(x[i], 0), lazy_element<io, wide>(x[i], 1),
                            lazy_element<io, wide>(x[i], 2), lazy_element<io, wide>(x[i], 3));
    }
}

/* Stages u of column lane % 16, of every second row from lane / 16 on, times decays. decay: of row
 * `lane`. at: place of the column. */
template <int io, bool wide>
GDN_DEVICE void lazy_stage_u(struct lazy_rows &sh, const char *u, int step, float decay,
                             unsigned mask, int at)
{
    enum { N = LAZY_ROWS / 2 };
    const int first = threadIdx.x / 16;
    uint32_t x[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = lazy_load_u<wide>(u + mad_wide(first + 2 * i, step, 0), mask >> (first + 2 * i) & 1);
#pragma unroll
    for (int i = 0; i < N; i++)
        sh.u[first + 2 * i][at] =
            __shfl_sync(0xffffffff, decay, first + 2 * i) * lazy_u<io, wide>(x[i]);
}

/* Loads k of the tokens of the call, but not of those whose bit in `adds` is 0. */
template <int TOKENS>
GDN_DEVICE void lazy_load_keys(uint32_t (&x)[TOKENS][4], const struct gdn_cu_lazy &a,
                               const struct token_place &w, unsigned adds)
{
    const int lane = threadIdx.x;
#pragma unroll
    for (int t = 0; t < TOKENS; t++)
        ld_keep_v2(x[t], lazy_token<TOKENS>(a.one.k, a.k_token, w, a.one.group_k, t) + lane * 8,
                   adds >> t & 1);
}

/* Stages the tokens of the call that follow `own` of sixteen rows. */
template <class Tile, int TOKENS>
GDN_DEVICE void lazy_stage_tokens(struct lazy_rows &sh, const struct gdn_cu_lazy &a,
                                  const struct token_place &w, const float (&of_column)[TOKENS],
                                  unsigned adds, int own, int at)
{
    const int lane = threadIdx.x;
    uint32_t x[TOKENS][4];
    lazy_load_keys(x, a, w, adds);
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
        const int row = own + t;
        if (t >= lazy_tokens<TOKENS>(a) || row < 0 || row >= LAZY_ROWS) continue;
        *(float4 *)&sh.k[row][4 * lane] = make_float4(
            lazy_element<Tile::IO, false>(x[t], 0), lazy_element<Tile::IO, false>(x[t], 1),
            lazy_element<Tile::IO, false>(x[t], 2), lazy_element<Tile::IO, false>(x[t], 3));
        if (lane < 16) sh.u[row][at] = of_column[t];
    }
}

/* Stages rows j0 to j0 + 15 of the record, and the tokens behind the last of them. of_column: u of
 * column lane % 16, times factors of k and decays. adds: a bit of each token. */
template <class Tile, int TOKENS>
GDN_DEVICE void lazy_stage(struct lazy_rows &sh, const struct gdn_cu_lazy &a,
                           const struct token_place &w, const struct lazy_facts &f,
                           const float *decays, const float (&of_column)[TOKENS], unsigned adds,
                           int v, int j0)
{
    enum { IO = Tile::IO };
    const int lane = threadIdx.x, source = token_source(w.head, a.one.group_k);
    const int column = lane % 16, at = column % Tile::STEP * Tile::N + column / Tile::STEP;
    const float decay = lazy_row_decay(decays, f, j0);
    const unsigned mask = __ballot_sync(0xffffffff, decay != 0);
    const char *const k = lazy_at(a.k, w.from, j0, source);
    const char *const u_row = lazy_at(a.u, w.from, j0, w.head) + (v + column) * a.u.bytes;
    __syncwarp();
    if (a.u.bytes == 4)
        lazy_stage_u<IO, true>(sh, u_row, a.u.row, decay, mask, at);
    else
        lazy_stage_u<IO, false>(sh, u_row, a.u.row, decay, mask, at);
    if (a.k.bytes == 4)
        lazy_stage_k<IO, true>(sh, k, a.k.row, mask);
    else
        lazy_stage_k<IO, false>(sh, k, a.k.row, mask);
    __syncwarp();
    lazy_stage_tokens<Tile>(sh, a, w, of_column, adds, f.count - j0, at);
    __syncwarp();
}

/* Puts all rows of the record, and the tokens, into the tile, sixteen at a time. of_column,
 * adds: as in lazy_stage(). */
template <class Tile, int TOKENS>
GDN_DEVICE void lazy_fold(Tile &tile, struct lazy_rows &sh, const struct gdn_cu_lazy &a,
                          const struct token_place &w, const struct lazy_facts &f,
                          const float *decays, const float (&of_column)[TOKENS], unsigned adds,
                          int v)
{
    enum { N = Tile::N, C = Tile::C };
    const int lane = threadIdx.x, line = lane / Tile::LANES;
    const int n_rows = f.count + lazy_tokens<TOKENS>(a);
#pragma unroll
    for (int i = 0; i < N * C * 4; i++)
        tile.S[i / 4 / C][i / 4 % C][i % 4] =
            __float_as_uint(f.decay * __uint_as_float(tile.S[i / 4 / C][i / 4 % C][i % 4]));
#pragma unroll 1
    for (int j0 = 0; j0 < n_rows; j0 += LAZY_ROWS) {
        lazy_stage<Tile>(sh, a, w, f, decays, of_column, adds, v, j0);
#pragma unroll 1
        for (int j = 0; j < LAZY_ROWS && j0 + j < n_rows; j++) {
            float k[C][4], uj[N];
#pragma unroll
            for (int c = 0; c < C; c++) {
                const float4 x =
                    *(const float4 *)&sh.k[j][(c * Tile::LANES + lane % Tile::LANES) * 4];
                k[c][0] = x.x, k[c][1] = x.y, k[c][2] = x.z, k[c][3] = x.w;
            }
#pragma unroll
            for (int n = 0; n < N; n += 2) {
                const float2 x = *(const float2 *)&sh.u[j][line * N + n];
                uj[n] = x.x, uj[n + 1] = x.y;
            }
#pragma unroll
            for (int i = 0; i < N * C * 4; i++) {
                const int n = i / 4 / C, c = i / 4 % C, e = i % 4;
                tile.S[n][c][e] =
                    __float_as_uint(fmaf(k[c][e], uj[n], __uint_as_float(tile.S[n][c][e])));
            }
        }
    }
}

template <class Tile>
GDN_DEVICE void lazy_decode_rows(const struct gdn_cu_lazy &a, const struct token_place &w, int v,
                                 struct lazy_facts f, bool early)
{
    __shared__ struct lazy_rows sh;
    float *const memory = lazy_memory(a, w);
    enum { LANES = Tile::LANES, N = Tile::N, SHARING = LANES / N };
    const struct gdn_cu_token &o = a.one;
    const int lane = threadIdx.x, own = v + token_own<Tile>(), column = lane % 16;
    const int row = v + lane / LANES, at = lane % LANES * 16;
    const bool speaks = lane % SHARING == 0; /* of the lanes of a column, one stores */
    uint32_t raw[Tile::C * Tile::E];
    Tile tile;
    float p, z, rows_p, rows_z;
    char *const state = token_at(o.from, w.from, w.head) + row * o.from_row + at;
    token_load(tile, state, o.from_row);
    token_fetch<Tile>(raw, o, w);
    const uint32_t value =
        ld_b32_b16(token_at(o.v, w.row, token_source(w.head, o.group_v)) + own * 2, false, true);
    lazy_request_rows(a, w, v);
    if (early) {
        griddepcontrol_wait();
        f = lazy_load_facts(memory);
    }
    lazy_sum_rows<Tile::IO, SHARING>(rows_p, rows_z, a, w, lazy_weights(memory), f, own);
    token_expand(tile, raw);
    if (__builtin_expect(f.decay == 0, 0)) token_forget(&tile.S[0][0][0], N * Tile::C * 4);
    token_read(p, z, tile);
    const float u = rule_u(f.beta, token_half<Tile::IO>(value), fmaf(f.k, p, rows_p));
    if (o.out.data && speaks)
        token_store_half<Tile::IO>(token_at(o.out, w.row, w.head) + own * 2,
                                   rule_o(f.kq, fmaf(f.q, z, rows_z), u));
    const bool appends = lazy_appends<1>(a, w, f.count);
    if (appends && speaks) lazy_append_u<Tile::IO>(a, w, f.count, own, u);
    if (appends) return;
    const float of_column[1] = { __shfl_sync(
        0xffffffff, u * f.key, column % Tile::STEP * LANES + column / Tile::STEP * SHARING) };
    lazy_fold(tile, sh, a, w, f, lazy_decays<1>(memory, a), of_column, f.beta != 0, v);
    token_store(tile, state, o.from_row);
}

/* ---- Several tokens: left factors of tensor cores -------------------------------------------- */

/* Sixteen rows: lane 4 g + t has pieces t + 4 c, of four elements, of rows g and g + 8. */
template <int io> struct lazy_tile {
    enum { IO = io, E = 4, ROWS = LAZY_F32_ROWS, LANES = 4, C = LAZY_K / 16, STEP = 8, N = 2 };
    uint32_t S[N][C][4];
};

/* Computes S X, as lazy_multiply(). S is two terms of tf32, of 22 bits together. */
template <int io>
GDN_DEVICE void lazy_read_four(float (&d)[4], const struct lazy_tile<io> &tile,
                               const uint32_t (&x)[4][4])
{
    float rest[4] = {};
    d[0] = d[1] = d[2] = d[3] = 0;
#pragma unroll
    for (int i = 0; i < 2 * LAZY_K / 16; i++) {
        const int c = i / 2, e = i % 2 * 2;
        const uint32_t s[4] = { tile.S[0][c][e], tile.S[1][c][e], tile.S[0][c][e + 1],
                                tile.S[1][c][e + 1] };
        const uint32_t b0 = __float_as_uint(token_element<io>(x[c / 2][c % 2 * 2 + e / 2], 0));
        const uint32_t b1 = __float_as_uint(token_element<io>(x[c / 2][c % 2 * 2 + e / 2], 1));
        uint32_t high[4], low[4];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            high[n] = s[n] & 0xffffe000;
            low[n] = __float_as_uint(__uint_as_float(s[n]) - __uint_as_float(high[n]));
        }
        mma_tf32(d, high, b0, b1);
        mma_tf32(rest, low, b0, b1);
    }
#pragma unroll
    for (int n = 0; n < 4; n++) d[n] += rest[n];
}

template <int io>
GDN_DEVICE void lazy_decode_tokens(const struct gdn_cu_lazy &a, const struct token_place &w, int v,
                                   struct lazy_facts f, bool early)
{
    typedef lazy_tile<io> Tile;
    __shared__ union {
        struct lazy_rows rows;
        float2 pz[LAZY_TOKENS][LAZY_F32_ROWS];
    } sh;
    __shared__ float us[LAZY_TOKENS][LAZY_F32_ROWS];
    enum { SHARING = Tile::LANES / Tile::N };
    const struct gdn_cu_token &o = a.one;
    float *const memory = lazy_memory(a, w);
    const int lane = threadIdx.x, column = token_own<Tile>(), own = v + column;
    uint32_t x[4][4];
    Tile tile;
    char *const state =
        token_at(o.from, w.from, w.head) + (v + lane / 4) * o.from_row + lane % 4 * 16;
    const char *const values = token_at(o.v, w.row, token_source(w.head, o.group_v));
    /* as token_load(), but the L1 cache keeps its lines for what a loop over tokens reads */
#pragma unroll
    for (int i = 0; i < Tile::N * Tile::C; i++)
        ld_once_v4(tile.S[i / Tile::C][i % Tile::C],
                   state + mad_wide(i / Tile::C * Tile::STEP, o.from_row, i % Tile::C * 64), true);
    lazy_load_columns<Tile::E>(x, a, w, 0);
    lazy_touch(values + v * 2, a.v_token, a.n_tokens);
    lazy_request_rows(a, w, v);
    if (early) {
        griddepcontrol_wait();
        f = lazy_load_facts(memory);
    }
    lazy_touch_memory(a, memory);
#pragma unroll 1
    for (int first = 0; first < a.n_tokens; first += LAZY_FOUR) {
        float d[4];
        if (first) lazy_load_columns<Tile::E>(x, a, w, first);
        lazy_read_four(d, tile, x);
        sh.pz[first + lane % 4][lane / 4] = make_float2(d[0], d[1]);
        sh.pz[first + lane % 4][lane / 4 + 8] = make_float2(d[2], d[3]);
    }
    __syncwarp();
    lazy_run_tokens<io>(us, f, sh.pz, a, w, memory, values + own * 2, column, own,
                        lane % SHARING == 0,
                        [&](float &p, float &z, const float *weights, const lazy_facts &of) {
                            lazy_sum_rows<io, SHARING>(p, z, a, w, weights, of, own);
                        });
    if (lazy_appends<LAZY_TOKENS>(a, w, f.count)) return;
    __syncwarp();
    float of_column[LAZY_TOKENS], key;
    const unsigned adds = lazy_last_us<false>(of_column, key, us, a, memory, f, 0, lane % 16, 0);
    if (f.decay == 0) token_forget(&tile.S[0][0][0], Tile::N * Tile::C * 4);
    lazy_fold(tile, sh.rows, a, w, f, lazy_decays<LAZY_TOKENS>(memory, a), of_column, adds, v);
    token_store(tile, state, o.from_row);
}

/* ---- The kernels ----------------------------------------------------------------------------- */

template <int KC, int dtype, int io, int TOKENS>
GDN_DEVICE void decode_lazy(const struct gdn_cu_lazy &a)
{
    typedef token_rows<KC, GDN_F32, io, LAZY_F32_ROWS> Tile;
    enum { ROWS = dtype == GDN_F32 ? Tile::ROWS : HALF_ROWS };
    const int v = blockIdx.x * ROWS;
    const bool early =
        (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x < (unsigned)a.n_early;
    struct token_place w;
    struct lazy_facts f = {};
    w.head = blockIdx.y;
    w.row = blockIdx.z;
    griddepcontrol_launch_dependents();
    if (!early) {
        griddepcontrol_wait();
        f = lazy_load_facts(lazy_memory(a, w));
    }
    if (__builtin_expect(!token_slots(w, a.one), 0)) {
        griddepcontrol_wait();
        for (int t = 0; t < lazy_tokens<TOKENS>(a); t++)
            token_zero(a.one, w, v, ROWS, threadIdx.x, lazy_step<TOKENS>(t, a.out_token));
    } else if constexpr (dtype == GDN_F32 && TOKENS == 1) {
        lazy_decode_rows<Tile>(a, w, v, f, early);
    } else if constexpr (dtype == GDN_F32) {
        lazy_decode_tokens<io>(a, w, v, f, early);
    } else {
        lazy_decode_half<dtype, TOKENS>(a, w, v, f, early);
    }
}

/* The least blocks of a multiprocessor. With 16 bits, so many blocks fill its shared memory. */
#define LAZY_BLOCKS(dtype) (GDN_##dtype == GDN_F32 ? 16 : 24)
#define LAZY_TOKENS_BLOCKS(dtype) (GDN_##dtype == GDN_F32 ? 16 : 20)

#define DECODE_LAZY_KERNEL(threads, name, dtype, io, KC)                      \
    extern "C" __global__ void __launch_bounds__(threads, LAZY_BLOCKS(dtype)) \
        name(const __grid_constant__ struct gdn_cu_lazy a)                    \
    {                                                                         \
        decode_lazy<KC, GDN_##dtype, GDN_##io, 1>(a);                         \
    }

#define DECODE_LAZY_TOKENS_KERNEL(threads, name, dtype, io, KC)                      \
    extern "C" __global__ void __launch_bounds__(threads, LAZY_TOKENS_BLOCKS(dtype)) \
        name(const __grid_constant__ struct gdn_cu_lazy a)                           \
    {                                                                                \
        decode_lazy<KC, GDN_##dtype, GDN_##io, LAZY_TOKENS>(a);                      \
    }

#endif
