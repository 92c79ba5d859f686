/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One token of each of a few sequences beside a record that accepts it, in one kernel. The states
 * are so few that a call waits for memory longer than for its bandwidth, so it may as well write
 * them: the rows that are pending go into the state, as in gdn_record_fold(), and the token follows
 * as in token.cuh. The count of the slot becomes 0.
 *
 * Where it is 0 already, which is any call behind the first, this is token.cuh (of k-last states
 * of 16 bits token_slots.cuh) and one load more. Else a block finds that out before it stores
 * anything. It folds its part of the state in memory and begins again.
 */
#ifndef GDN_CUDA_DECODE_LAZY_FEW_CUH
#define GDN_CUDA_DECODE_LAZY_FEW_CUH

#include "cuda/decode/lazy/rows.cuh"

/* Blocks that have seen that a slot has rows count themselves above the lowest byte of its counter.
 * The last of them has the counter to itself, and sets it to 0. */
enum { FEW_SEEN = 256 };
static_assert((int)LAZY_MOST < (int)FEW_SEEN, "a count is a byte");

template <bool late> struct few_place : token_place {
    enum { LATE = late }; /* see token_slots.cuh */
    const struct gdn_cu_lazy &record;
    uint32_t arguments;
    int32_t counter;
    bool is; /* the slot exists */

    __device__ __forceinline__ few_place(const struct gdn_cu_lazy &a) : record(a) {}
    __device__ __forceinline__ bool begin(const struct gdn_cu_token &a);
    __device__ __forceinline__ void settle(const struct gdn_cu_token &a);
    __device__ __forceinline__ char *count(void) const
    {
        return record.count + mad_wide(from, record.count_step, 0);
    }
    __device__ __forceinline__ int pending(void) const
    {
        return counter < 0 ? 0 : min(counter % FEW_SEEN, record.n_rows);
    }
    /* Returns false if the state in memory is not the one that the token follows. */
    __device__ __forceinline__ bool real(void) const { return is && pending() == 0; }
    template <int K> __device__ __forceinline__ bool find(const struct gdn_cu_token &, int)
    {
        counter = (int32_t)ld_b32(count()); /* of eight bytes the lower half */
        return true;
    }
};

/* Finds the slot. Returns false for padding that is known at once. */
template <bool late>
__device__ __forceinline__ bool few_place<late>::begin(const struct gdn_cu_token &a)
{
    head = blockIdx.y;
    row = blockIdx.z;
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    if constexpr (!LATE) return is = token_slots(*this, a);
    from = a.read_slots ? (int)ld_b32(a.read_slots + row * a.read_step) : row;
    arguments = ask_arguments(a);
    return true;
}

template <bool late>
__device__ __forceinline__ void few_place<late>::settle(const struct gdn_cu_token &a)
{
    await_arguments(arguments);
    is = !a.read_slots | ((from >= a.first_slot) & (from < a.read_pool));
    if (!is) from = 0;
    to = from;
}

/* ---- The fold -------------------------------------------------------------------------------- */

/* Counts the block. A thread calls it when all of the block have the count. */
template <class Place> GDN_DEVICE void few_seen(const Place &w)
{
    int32_t *const count = (int32_t *)w.count();
    const int seen = atomicAdd(count, (int)FEW_SEEN) / FEW_SEEN + 1;
    if (seen >= (int)(gridDim.x * gridDim.y)) *count = 0;
}

/* Loads E elements of a row of record_k or record_u at `at`. */
template <int io, int E, bool wide> GDN_DEVICE void few_load(float (&k)[E], const char *at)
{
    uint32_t x[E / 4][4];
#pragma unroll
    for (int i = 0; i < E / 4; i++) {
        if (wide)
            ld_keep_v4(x[i], at + i * 16, true);
        else
            ld_keep_v2(x[i], at + i * 8, true);
    }
#pragma unroll
    for (int e = 0; e < E; e++) k[e] = lazy_element<io, wide>(x[e / 4], e % 4);
}

/* Puts row j of the record into the tile S. own: the column of V whose u the lane loads. */
template <class Tile, bool wide_k>
GDN_DEVICE void few_add_row(float (&S)[Tile::N][Tile::C][Tile::E], const struct gdn_cu_lazy &a,
                            const struct token_place &w, int j, int own)
{
    enum { LANES = Tile::LANES, C = Tile::C, E = Tile::E, N = Tile::N, IO = Tile::IO };
    const int lane = threadIdx.x, bytes = wide_k ? 4 : 2;
    const char *const row = lazy_at(a.k, w.from, j, token_source(w.head, a.one.group_k));
    const char *const column = lazy_at(a.u, w.from, j, w.head) + own * a.u.bytes;
    const uint32_t gate = ld_b32(lazy_at(a.g, w.from, j, w.head));
    const uint32_t u_bits = ld_b32_b16(column, a.u.bytes == 4, a.u.bytes == 2);
    const float alpha = __uint_as_float(gate & 0x7fffffff);
    const bool adds = !(gate >> 31);
    const float u = adds ? token_number<IO>(u_bits, a.u.bytes) : 0;
    if (alpha == 0) token_forget(&S[0][0][0], N * C * E);
#pragma unroll
    for (int c = 0; c < C; c++) {
        float k[E];
        few_load<IO, E, wide_k>(k, row + (c * LANES + lane % LANES) * E * bytes);
        if (!adds) token_forget(k, E);
#pragma unroll
        for (int n = 0; n < N; n++) {
            const float un = __shfl_sync(0xffffffff, u, lane / LANES * LANES + n * (LANES / N));
#pragma unroll
            for (int e = 0; e < E; e++) S[n][c][e] = fmaf(k[e], un, alpha * S[n][c][e]);
        }
    }
}

/* Puts the rows that are pending into the block's part of the state. */
template <class Tile, class Place> GDN_DEVICE void few_fold(Place &w, int v)
{
    enum { LANES = Tile::LANES, C = Tile::C, E = Tile::E, N = Tile::N };
    const struct gdn_cu_lazy &a = w.record;
    const int lane = threadIdx.x, own = v + token_own<Tile>(), n = w.pending();
    char *const state = token_at(a.one.from, w.from, w.head) + (v + lane / LANES) * a.one.from_row +
                        lane % LANES * 16;
    Tile tile;
    float S[N][C][E];
    __syncwarp(); /* all lanes have the count */
    if (lane == 0) few_seen(w);
    token_load(tile, state, a.one.from_row);
#pragma unroll
    for (int i = 0; i < N * C * E; i++)
        S[i / E / C][i / E % C][i % E] = Tile::piece::get(tile.S[i / E / C][i / E % C], i % E);
#pragma unroll 1
    for (int j = 0; j < n; j++) {
        if (a.k.bytes == 4)
            few_add_row<Tile, true>(S, a, w, j, own);
        else
            few_add_row<Tile, false>(S, a, w, j, own);
    }
#pragma unroll
    for (int i = 0; i < N * C; i++) Tile::piece::set(tile.S[i / C][i % C], S[i / C][i % C]);
    token_store(tile, state, a.one.from_row);
}

/* Puts row j of the record into a tile whose rows are k. column: the thread's first one. */
template <class Tile>
GDN_DEVICE void few_add_row_of_columns(float (&S)[Tile::N][Tile::E], const struct gdn_cu_lazy &a,
                                       const struct token_place &w, int j, int column)
{
    enum { E = Tile::E, N = Tile::N, IO = Tile::IO };
    const char *const k_row =
        lazy_at(a.k, w.from, j, token_source(w.head, a.one.group_k)) + Tile::row() * a.k.bytes;
    const char *const u_row = lazy_at(a.u, w.from, j, w.head) + column * a.u.bytes;
    const uint32_t gate = ld_b32(lazy_at(a.g, w.from, j, w.head));
    const float alpha = __uint_as_float(gate & 0x7fffffff);
    float k[N], u[E];
    if (a.k.bytes == 4)
        few_load<IO, N, true>(k, k_row);
    else
        few_load<IO, N, false>(k, k_row);
    if (a.u.bytes == 4)
        few_load<IO, E, true>(u, u_row);
    else
        few_load<IO, E, false>(u, u_row);
    if (gate >> 31) token_forget(k, N), token_forget(u, E);
    if (alpha == 0) token_forget(&S[0][0], N * E);
#pragma unroll
    for (int i = 0; i < N * E; i++)
        S[i / E][i % E] = fmaf(k[i / E], u[i % E], alpha * S[i / E][i % E]);
}

template <class Tile, class Place> GDN_DEVICE void few_fold_columns(Place &w, int column)
{
    enum { E = Tile::E, N = Tile::N };
    const struct gdn_cu_lazy &a = w.record;
    const int n = w.pending(), own = column + threadIdx.x % Tile::LANES * E;
    char *const state =
        token_at(a.one.from, w.from, w.head) + Tile::row() * a.one.from_row + own * (16 / E);
    Tile tile;
    float S[N][E];
    __syncthreads(); /* all threads have the count */
    if (threadIdx.x == 0) few_seen(w);
#pragma unroll
    for (int i = 0; i < N; i++) ld_v4(tile.S[i], state + i * a.one.from_row);
#pragma unroll
    for (int i = 0; i < N * E; i++) S[i / E][i % E] = tile.get(i / E, i % E);
#pragma unroll 1
    for (int j = 0; j < n; j++) few_add_row_of_columns<Tile>(S, a, w, j, own);
#pragma unroll
    for (int i = 0; i < N; i++) {
        Tile::piece::set(tile.S[i], S[i]);
        token_store(state + i * a.one.from_row, tile.S[i]);
    }
}

/* ---- The kernels ----------------------------------------------------------------------------- */

template <int KC, int dtype, int io> GDN_DEVICE void decode_lazy_few(const struct gdn_cu_lazy &a)
{
    typedef token_rows<KC, dtype, io> Tile;
    const int v = blockIdx.x * Tile::ROWS;
    few_place<dtype != GDN_F32> w(a);
    if (w.begin(a.one) && token_decode_rows<Tile>(a.one, w, v)) return;
    if (__builtin_expect(!w.is, 0)) {
        token_zero(a.one, w, v, Tile::ROWS, threadIdx.x);
    } else {
        few_fold<Tile>(w, v);
        struct token_place again = w;
        token_decode_rows<Tile>(a.one, again, v);
    }
}

template <int KC, int dtype, int io> GDN_DEVICE void decode_lazy_few_kv(const struct gdn_cu_lazy &a)
{
    typedef token_columns<KC, dtype, io> Tile;
    const int column = blockIdx.x * Tile::COLUMNS;
    few_place<false> w(a);
    if (!w.begin(a.one)) {
        token_zero(a.one, w, column, Tile::COLUMNS, threadIdx.x);
    } else if (!token_decode_columns<Tile>(a.one, w, column)) {
        few_fold_columns<Tile>(w, column);
        struct token_place again = w;
        token_decode_columns<Tile>(a.one, again, column);
    }
}

/* The least blocks of a multiprocessor: on Hopper as many as ptxas gives the kernels of token.cuh.
 * For other chips it spills then. */
#if __CUDA_ARCH__ == 900
#define FEW_BLOCKS_kv 5
#else
#define FEW_BLOCKS_kv 4
#endif

#define DECODE_LAZY_FEW_KV_KERNEL(threads, name, dtype, io, KC)          \
    extern "C" __global__ void __launch_bounds__(threads, FEW_BLOCKS_kv) \
        name(const __grid_constant__ struct gdn_cu_lazy a)               \
    {                                                                    \
        decode_lazy_few_kv<KC, GDN_##dtype, GDN_##io>(a);                \
    }

#define DECODE_LAZY_FEW_KERNEL(threads, name, dtype, io, KC)                        \
    extern "C" __global__ void __launch_bounds__(threads, ONE_BLOCKS_vk(dtype, KC)) \
        name(const __grid_constant__ struct gdn_cu_lazy a)                          \
    {                                                                               \
        decode_lazy_few<KC, GDN_##dtype, GDN_##io>(a);                              \
    }

#endif
