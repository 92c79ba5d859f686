/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of one token of each sequence, and what is left beside that of a batch with
 * cu_seqlens, of which the host knows no more than that there are as many tokens as sequences: some
 * of them have none, and others several. Their columns are walked through by a warp each, in
 * float32, which is small and slow, and nobody who has one token each waits for it.
 */
#ifndef GDN_CUDA_DECODE_ONE_BATCH_CUH
#define GDN_CUDA_DECODE_ONE_BATCH_CUH

#include "decode_one.cuh"

/* ---- Sequences of several tokens --------------------------------------------------------------- */

/* A column; a lane has every 32nd of its K elements. */
template <int KC, int dtype_, int io, bool k_first> struct rest_column {
    enum { N = KC / 32, IO = io, dtype = dtype_ };
    typedef typename gdn_io<dtype_>::type type;
    float S[N];

    GDN_DEVICE type *at(char *state, int row, int v, int n)
    {
        const int k = threadIdx.x % 32 + 32 * n;
        return (type *)(state + mad_wide(k_first ? k : v, row, 0)) + (k_first ? v : k);
    }
};

/* Token t of column v. Is the state another one now? */
template <class Tile>
GDN_DEVICE bool rest_step(Tile &tile, const struct gdn_cu_one &a, const struct one_place &w, int t,
                          int v)
{
    enum { N = Tile::N, IO = Tile::IO };
    const int        lane = threadIdx.x % 32;
    const char      *keys = one_at(a.k, t, one_source(w.head, a.group_k)) + lane * 2;
    const char      *queries = one_at(a.q, t, one_source(w.head, a.group_q)) + lane * 2;
    struct one_place token = w;
    struct one_gates gates;
    float            k[N], alpha, beta, kk = 0, qq = 0, kq = 0, p = 0, z = 0;
    token.row = t;
    one_fetch_gates(gates, a, token);
    const uint32_t value = ld_b32_b16(one_at(a.v, t, one_source(w.head, a.group_v)) + 2 * v, false,
                                      true);
    one_expand_gates<IO>(alpha, beta, gates, a);
    if (alpha == 0) one_forget(tile.S, N);
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float q = one_half<IO>(ld_b32_b16(queries + 64 * n, false, true));
        k[n] = one_half<IO>(ld_b32_b16(keys + 64 * n, false, true));
        kk = fmaf(k[n], k[n], kk), qq = fmaf(q, q, qq), kq = fmaf(k[n], q, kq);
        p = fmaf(tile.S[n], k[n], p), z = fmaf(tile.S[n], q, z);
    }
    const struct one_factors f = one_factors_of(one_sum<32>(kk), one_sum<32>(qq), one_sum<32>(kq), a);
    const float u = rule_u(beta, one_half<IO>(value), alpha * f.k * one_sum<32>(p));
    const float o = rule_o(f.kq, alpha * f.q * one_sum<32>(z), u);
    if (a.out.data && lane == 0) one_store_half<IO>(one_at(a.out, t, w.head) + 2 * v, o);
#pragma unroll
    for (int n = 0; n < N; n++) {
        tile.S[n] *= alpha;
        if (beta != 0) tile.S[n] = fmaf(u * f.k, k[n], tile.S[n]);
    }
    return alpha != 1 || beta != 0;
}

/* All tokens of column v, by a warp. */
template <class Tile>
GDN_DEVICE void rest_decode(const struct gdn_cu_one &a, const struct one_place &w, int v)
{
    typedef gdn_io<Tile::dtype> io;
    char *const from = one_at(a.from, w.from, w.head), *const to = one_at(a.to, w.to, w.head);
    bool        changed = w.fresh;
    Tile        tile;
#pragma unroll
    for (int n = 0; n < Tile::N; n++)
        tile.S[n] = w.fresh ? 0 : io::load(Tile::at(from, a.from_row, v, n));
#pragma unroll 1
    for (int t = w.first; t < w.end; t++) changed |= rest_step(tile, a, w, t, v);
    if (!a.to.data || (!changed && to == from)) return;
#pragma unroll
    for (int n = 0; n < Tile::N; n++) {
        if (changed)
            io::store(Tile::at(to, a.to_row, v, n), tile.S[n]);
        else /* bit for bit (G9) */
            *Tile::at(to, a.to_row, v, n) = *Tile::at(from, a.from_row, v, n);
    }
}

/* ---- What is not as it was taken to be --------------------------------------------------------- */

/* Outputs of tokens from first to end - 1 are zero: n of them, no more than threads. */
GDN_DEVICE void one_zero(const struct gdn_cu_one &a, int head, int first, int end, int column, int n)
{
    if (!a.out.data || (int)threadIdx.x >= n) return;
    for (int t = first; t < end; t++)
        *(uint16_t *)(one_at(a.out, t, head) + (column + threadIdx.x) * 2) = 0;
}

/* Columns of a block whose sequence has no token or several, or is padding, as are the tokens behind
 * the last one. */
template <class Tile>
GDN_DEVICE void one_rest(const struct gdn_cu_one &a, const struct one_place &w, bool padding,
                         int column, int n)
{
    const int first = max(0, min(w.first, a.n)), end = max(first, min(w.end, a.n));
    if (padding) {
        if (!a.keep || w.row == a.n) one_zero(a, w.head, first, end, column, n);
        return;
    }
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < n && first < end; i += blockDim.x / 32)
        rest_decode<Tile>(a, w, column + i);
}

/* ---- Kernels ----------------------------------------------------------------------------------- */

/* Blocks: first those of a head, then heads, then sequences, as states lie in memory. */
template <int KC, int dtype, int io> GDN_DEVICE void decode_one_vk(const struct gdn_cu_one &a)
{
    typedef one_rows<KC, dtype, io> Tile;
    const int        v = blockIdx.x * Tile::ROWS;
    struct one_place w;
    const bool       real = one_begin(w, a);
    if (__builtin_expect(real, 1) && one_decode_rows<Tile>(a, w, v)) return;
    one_rest<rest_column<KC, dtype, io, false>>(a, w, !real, v, Tile::ROWS);
}

template <int KC, int dtype, int io> GDN_DEVICE void decode_one_kv(const struct gdn_cu_one &a)
{
    typedef one_columns<KC, dtype, io> Tile;
    const int        column = blockIdx.x * Tile::COLUMNS;
    struct one_place w;
    const bool       real = one_begin(w, a);
    if (__builtin_expect(real, 1) && one_decode_columns<Tile>(a, w, column)) return;
    one_rest<rest_column<KC, dtype, io, true>>(a, w, !real, column, Tile::COLUMNS);
}

/* Blocks that an SM is to hold, by measurement at K = 128; 0: as come of what ptxas likes. */
#define ONE_BLOCKS_vk(dtype, KC) (KC == 256 ? 12 : GDN_##dtype == GDN_F32 ? 32 : 16)
#define ONE_BLOCKS_kv(dtype, KC) 0

#define DECODE_ONE_KERNEL(threads, name, layout, dtype, io, KC)                               \
    extern "C" __global__ void __launch_bounds__(threads, ONE_BLOCKS_##layout(dtype, KC))     \
        name(const __grid_constant__ struct gdn_cu_one a)                                     \
    {                                                                                         \
        decode_one_##layout<KC, GDN_##dtype, GDN_##io>(a);                                    \
    }

#endif
