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

/* Stages k of rows whose bit of mask is set, the others as zeros. */
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

/* Stages the tokens of the call that follow `own` of sixteen rows. */
template <class Tile, int TOKENS>
GDN_DEVICE void lazy_stage_tokens(struct lazy_rows &sh, const struct gdn_cu_lazy &a,
                                  const struct token_place &w,
                                  const float (&of_column)[TOKENS], unsigned adds, int own,
                                  int at)
{
    const int lane = threadIdx.x;
    uint32_t x[TOKENS][4];
#pragma unroll
    for (int t = 0; t < TOKENS; t++)
        ld_keep_v2(x[t], lazy_token<TOKENS>(a.one.k, a.k_token, w, a.one.group_k, t) + lane * 8,
                   adds >> t & 1);
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
                           const float *decays, const float (&of_column)[TOKENS],
                           unsigned adds, int v, int j0)
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
 * adds: see lazy_stage(). */
template <class Tile, int TOKENS>
GDN_DEVICE void lazy_fold(Tile &tile, struct lazy_rows &sh, const struct gdn_cu_lazy &a,
                          const struct token_place &w, const struct lazy_facts &f,
                          const float *decays, const float (&of_column)[TOKENS],
                          unsigned adds, int v)
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
            for (int n = 0; n < N; n += 4) {
                const float4 x = *(const float4 *)&sh.u[j][line * N + n];
                uj[n] = x.x, uj[n + 1] = x.y, uj[n + 2] = x.z, uj[n + 3] = x.w;
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

template <class Tile, int TOKENS>
GDN_DEVICE void lazy_decode_rows(const struct gdn_cu_lazy &a, const struct token_place &w, int v,
                                 struct lazy_facts f, bool early)
{
    __shared__ struct lazy_rows sh;
    __shared__ float us[TOKENS][LAZY_F32_ROWS];
    float *const memory = lazy_memory(a, w);
    enum { LANES = Tile::LANES, N = Tile::N };
    const struct gdn_cu_token &o = a.one;
    const int lane = threadIdx.x, column = token_own<Tile>(), own = v + column;
    const int row = v + lane / LANES, at = lane % LANES * 16, n = lazy_tokens<TOKENS>(a);
    const bool speaks = lane % (LANES / N) == 0; /* of the lanes of a column, one stores */
    uint32_t raw[Tile::C * Tile::E];
    Tile tile;
    float u;
    char *const state = token_at(o.from, w.from, w.head) + row * o.from_row + at;
    const char *const values = token_at(o.v, w.row, token_source(w.head, o.group_v)) + own * 2;
    token_load(tile, state, o.from_row);
    token_fetch<Tile>(raw, o, w);
    uint32_t value = ld_b32_b16(values, false, true);
    lazy_request_rows(a, w, v);
    if (early) {
        griddepcontrol_wait();
        f = lazy_load_facts(memory);
    }
#pragma unroll 1
    for (int t = 0; t < n; t++) {
        float *const its = lazy_at_token(memory, a, t);
        float p, z, rows_p, rows_z;
        if (t) f = lazy_load_facts(its);
        lazy_sum_rows<Tile::IO, LANES / N>(rows_p, rows_z, a, w, lazy_weights(its), f, own);
        if (t) lazy_add_tokens(rows_p, rows_z, &us[0][column], us[1] - us[0], lazy_weights(its), f, t);
        const float v_own = token_half<Tile::IO>(value);
        token_expand(tile, raw);
        if (t + 1 < n) {
            token_fetch<Tile>(raw, o, w, lazy_step<TOKENS>(t + 1, a.k_token),
                              lazy_step<TOKENS>(t + 1, a.q_token));
            value = ld_b32_b16(values + lazy_step<TOKENS>(t + 1, a.v_token), false, true);
        }
        if (__builtin_expect(f.decay == 0, 0)) token_forget(&tile.S[0][0][0], N * Tile::C * 4);
        token_read(p, z, tile);
        u = rule_u(f.beta, v_own, fmaf(f.k, p, rows_p));
        if (o.out.data && speaks)
            token_store_half<Tile::IO>(token_at(o.out, w.row, w.head) + own * 2 +
                                           lazy_step<TOKENS>(t, a.out_token),
                                       rule_o(f.kq, fmaf(f.q, z, rows_z), u));
        if (TOKENS > 1) us[t][column] = u;
        if (!lazy_folds<TOKENS>(a, f.count) && speaks)
            lazy_append_u<Tile::IO>(a, w, f.count + t, own, u);
    }
    if (lazy_appends<TOKENS>(a, w, f.count)) return;
    float of_column[TOKENS];
    if (TOKENS > 1) __syncwarp();
    const int that = lane % 16;
    const unsigned adds =
        lazy_last_us<false>(of_column, us, a, memory, f, u, that,
                            that % Tile::STEP * LANES + that / Tile::STEP * (LANES / N));
    lazy_fold(tile, sh, a, w, f, lazy_decays<TOKENS>(memory, a), of_column, adds, v);
    token_store(tile, state, o.from_row);
}

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
    } else if constexpr (dtype == GDN_F32) {
        lazy_decode_rows<Tile, TOKENS>(a, w, v, f, early);
    } else {
        lazy_decode_half<dtype, TOKENS>(a, w, v, f, early);
    }
}

/* The least blocks of a multiprocessor. Those of 16 bits fill its shared memory. */
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
