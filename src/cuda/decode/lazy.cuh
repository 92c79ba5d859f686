/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One token of each sequence, accepted at once beside a record (gdn_record.h), on k-last states.
 * With G, G_j and w_j of lazy_rows.cuh,
 *
 *     p = G S k + sum_j w_j u_j;    u = beta (v - p)
 *     o = G S q + sum_j w'_j u_j + (k . q) u
 *
 * A state is read once. u becomes a row of the record, or, if it fills the record, all rows go into
 * the state, which is still on the chip:
 *
 *     S <- G S + sum_j G_j u_j k_j^T + u k^T
 *
 * The loads of a state are the first of this kernel. The kernel ahead of it (lazy_rows.cuh) writes
 * no state, and lets it begin only when all kernels ahead have ended. So these loads do not wait.
 */
#ifndef GDN_CUDA_DECODE_LAZY_CUH
#define GDN_CUDA_DECODE_LAZY_CUH

#include "cuda/decode/lazy_half.cuh"
#include "cuda/decode/lazy_rows.cuh"

/* Loads the lane's elements of k of row `row` of the record, or zeros. */
template <class Tile>
GDN_DEVICE void lazy_load_k(float (&k)[Tile::C * Tile::E], const struct gdn_cu_lazy &a,
                            const char *row, bool there)
{
    enum { E = Tile::E, PARTS = Tile::C * E / 4 };
    const int lane = threadIdx.x % Tile::LANES;
    uint32_t x[PARTS][4];
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        const int first = 4 * i / E * (Tile::LANES * E) + lane * E + 4 * i % E;
        ld_keep_v4(x[i], row + first * 4, there && a.k.bytes == 4);
        if (a.k.bytes == 2) ld_keep_v2(x[i], row + first * 2, there);
#pragma unroll
        for (int e = 0; e < 4; e++)
            k[4 * i + e] =
                a.k.bytes == 4 ? __uint_as_float(x[i][e]) : token_element<Tile::IO>(x[i][e / 2], e);
    }
}

/* Adds all rows of the record to GROUP rows of a lane: S. u_row: at the first of their columns. */
template <class Tile, int GROUP>
GDN_DEVICE void lazy_add_record(float (&S)[GROUP][Tile::C * Tile::E], const struct gdn_cu_lazy &a,
                                const char *k_row, const char *u_row, const float *decays,
                                int count)
{
    enum { K = Tile::C * Tile::E };
    const int lane = threadIdx.x;
    for (int j0 = 0; j0 < count; j0 += 32) {
        const float mine = j0 + lane < count ? decays[j0 + lane] : 0;
#pragma unroll 2
        for (int j = 0; j < 32 && j0 + j < count; j++, k_row += a.k.row, u_row += a.u.row) {
            const float decay = __shfl_sync(0xffffffff, mine, j);
            float k[K], u[GROUP];
            lazy_load_k<Tile>(k, a, k_row, decay != 0);
#pragma unroll
            for (int n = 0; n < GROUP; n++) {
                const char *at = u_row + n * Tile::STEP * a.u.bytes;
                u[n] = decay *
                       token_number<Tile::IO>(ld_4_or_2(at, decay != 0 ? a.u.bytes : 0), a.u.bytes);
            }
#pragma unroll
            for (int i = 0; i < GROUP * K; i++)
                S[i / K][i % K] = fmaf(k[i % K], u[i / K], S[i / K][i % K]);
        }
    }
}

/* Puts all rows of the record, and the token, into the state. It is read again, from the L2 cache:
 * so the other calls need no registers for it. u: of the lane's own row, times the factor of k. */
template <class Tile>
GDN_DEVICE void lazy_fold(char *state, const struct gdn_cu_lazy &a, const struct token_place &w,
                          const struct lazy_facts &f, const float *decays, const Tile &token,
                          float u, int v)
{
    enum { E = Tile::E, C = Tile::C, K = C * E, GROUP = 4 };
    const int line = threadIdx.x / Tile::LANES;
    const char *const k = lazy_at(a.k, w.from, 0, token_source(w.head, a.one.group_k));
#pragma unroll 1
    for (int n0 = 0; n0 < Tile::N; n0 += GROUP) {
        const int first = line + n0 * Tile::STEP; /* of the lane's rows */
        char *const at = state + mad_wide(n0 * Tile::STEP, a.one.from_row, 0);
        uint32_t x[GROUP][C][4];
        float S[GROUP][K];
#pragma unroll
        for (int i = 0; i < GROUP * C; i++)
            ld_keep_v4(x[i / C][i % C],
                       at +
                           mad_wide(i / C * Tile::STEP, a.one.from_row, i % C * (Tile::LANES * 16)),
                       f.decay != 0);
#pragma unroll
        for (int i = 0; i < GROUP * K; i++)
            S[i / K][i % K] = f.decay * Tile::piece::get(x[i / K][i % K / E], i % E);
        lazy_add_record<Tile, GROUP>(
            S, a, k, lazy_at(a.u, w.from, 0, w.head) + (v + first) * a.u.bytes, decays, f.count);
#pragma unroll
        for (int n = 0; n < GROUP; n++) {
            const int owner = line * Tile::LANES + (n0 + n) * (Tile::LANES / Tile::N);
            const float own = __shfl_sync(0xffffffff, u, owner);
#pragma unroll
            for (int c = 0; c < C; c++) {
                float y[E];
#pragma unroll
                for (int e = 0; e < E; e++) y[e] = fmaf(token.key(c, e), own, S[n][c * E + e]);
                Tile::piece::set(x[n][c], y);
                token_store(at + mad_wide(n * Tile::STEP, a.one.from_row, c * (Tile::LANES * 16)),
                            x[n][c]);
            }
        }
    }
}

template <class Tile>
GDN_DEVICE void lazy_decode_rows(const struct gdn_cu_lazy &a, const struct token_place &w, int v)
{
    enum { LANES = Tile::LANES, N = Tile::N };
    const struct gdn_cu_token &o = a.one;
    const int lane = threadIdx.x, own = v + token_own<Tile>();
    const int row = v + lane / LANES, at = lane % LANES * 16;
    const bool speaks = lane % (LANES / N) == 0; /* of the lanes of a column, one stores */
    uint32_t raw[Tile::C * Tile::E];
    Tile tile;
    float p, z, rows_p, rows_z;
    char *const state = token_at(o.from, w.from, w.head) + row * o.from_row + at;
    token_load(tile, state, o.from_row);
    token_fetch<Tile>(raw, o, w);
    const uint32_t value =
        ld_b32_b16(token_at(o.v, w.row, token_source(w.head, o.group_v)) + own * 2, false, true);
    lazy_request_rows(a, w, v);
    griddepcontrol_wait();
    float *const memory = lazy_memory(a, w);
    const struct lazy_facts f = lazy_load_facts(memory);
    lazy_sum_rows<Tile::IO, LANES / N>(rows_p, rows_z, a, w, lazy_weights(memory), f, own);
    token_expand(tile, raw);
    if (__builtin_expect(f.decay == 0, 0)) token_forget(&tile.S[0][0][0], N * Tile::C * 4);
    token_read(p, z, tile);
    const float u = rule_u(f.beta, token_half<Tile::IO>(value), fmaf(f.k, p, rows_p));
    if (o.out.data && speaks)
        token_store_half<Tile::IO>(token_at(o.out, w.row, w.head) + own * 2,
                                   rule_o(f.kq, fmaf(f.q, z, rows_z), u));
    if (lazy_appends<Tile::IO>(a, w, f.count, own, u, speaks)) return;
    if (__builtin_expect(f.beta == 0, 0)) token_forget(&tile.k[0][0], Tile::C * Tile::E);
    lazy_fold(state, a, w, f, lazy_decays(memory, a), tile, u * f.key, v);
}

enum { LAZY_F32_ROWS = 16 }; /* 8 KB of a state */

template <int KC, int dtype, int io> GDN_DEVICE void decode_lazy(const struct gdn_cu_lazy &a)
{
    typedef token_rows<KC, GDN_F32, io, LAZY_F32_ROWS> Tile;
    enum { ROWS = dtype == GDN_F32 ? Tile::ROWS : HALF_ROWS };
    const int v = blockIdx.x * ROWS;
    struct token_place w;
    w.head = blockIdx.y;
    w.row = blockIdx.z;
    griddepcontrol_launch_dependents();
    if (__builtin_expect(!token_slots(w, a.one), 0)) {
        griddepcontrol_wait();
        token_zero(a.one, w, v, ROWS, threadIdx.x);
    } else if constexpr (dtype == GDN_F32) {
        lazy_decode_rows<Tile>(a, w, v);
    } else {
        lazy_decode_half<dtype>(a, w, v);
    }
}

#define DECODE_LAZY_KERNEL(threads, name, dtype, io, KC)      \
    extern "C" __global__ void __launch_bounds__(threads, 16) \
        name(const __grid_constant__ struct gdn_cu_lazy a)    \
    {                                                         \
        decode_lazy<KC, GDN_##dtype, GDN_##io>(a);            \
    }

#endif
