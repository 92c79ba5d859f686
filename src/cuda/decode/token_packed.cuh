/* SPDX-License-Identifier: Apache-2.0 */
/*
 * token.cuh by cu_seqlens. The host has only the counts: as many tokens as sequences. So the kernel
 * guesses that token i is sequence i, and prefetches it to the L2 cache while cu_seqlens and the
 * state are in flight. If a sequence has one token elsewhere, it loads that token. If it has
 * several, a warp walks through each column in float32, which is small code and slow. Rows have
 * kernels of their own, which are faster without all this.
 */
#ifndef GDN_CUDA_DECODE_PACKED_CUH
#define GDN_CUDA_DECODE_PACKED_CUH

#include "cuda/decode/token.cuh"

/* ---- The place ------------------------------------------------------------------------------- */

struct packed_place : token_place {
    const struct gdn_cu_token_packed &batch;
    int first, end;      /* tokens of the sequence, after look() */
    uint32_t initial[2]; /* 0: the state is not read */

    __device__ __forceinline__ packed_place(const struct gdn_cu_token_packed &a) : batch(a) {}
    __device__ __forceinline__ bool fresh(void) const { return !(initial[0] | initial[1]); }
    __device__ __forceinline__ void look(void);
    __device__ __forceinline__ void bound(void);
    template <int K> __device__ __forceinline__ bool find(const struct gdn_cu_token &a, int column);
};

/* Returns an index of four bytes, or the lower half of one of eight. */
GDN_DEVICE int packed_index(const struct gdn_cu_at &t, int i)
{
    return (int)ld_b32(t.data + mad_wide(i, t.head, 0));
}

/* Finds the block's place without waiting for a load. Returns false for padding. */
GDN_DEVICE bool packed_begin(struct packed_place &w, const struct gdn_cu_token_packed &a)
{
    w.head = blockIdx.y;
    w.row = w.from = w.to = blockIdx.z;
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    if (w.row == a.n) return false; /* row n has the tokens behind the sequences */
    const struct gdn_cu_token &one = a.one;
    const bool own = one.write_slots;
    if (one.read_slots) {
        w.from = ld_b32(one.read_slots + w.row * one.read_step);
        w.to = ld_b32((own ? one.write_slots : one.read_slots) +
                      w.row * (own ? one.write_step : one.read_step));
    }
    ld_flag(w.initial, a.initial.data + mad_wide(w.row, a.initial.head, 0), a.initial_bytes);
    if (!one.read_slots) return true;
    const bool is =
        w.from >= one.first_slot && (w.fresh() || w.from < one.read_pool) && w.to < one.write_pool;
    if (w.fresh()) w.from = 0;
    return is;
}

/* look() reads cu_seqlens. bound() limits them to the tokens of the tensors. */
__device__ __forceinline__ void packed_place::look(void)
{
    first = packed_index(batch.cu_seqlens, row);
    end = row == batch.n ? row : packed_index(batch.cu_seqlens, row + 1);
}
__device__ __forceinline__ void packed_place::bound(void)
{
    first = max(0, min(first, batch.n));
    end = max(first, min(end, batch.n));
}

/* Finds the token. The loads of cu_seqlens begin after those of the state, so what needs them does
 * not wait for the state. */
template <int K>
__device__ __forceinline__ bool packed_place::find(const struct gdn_cu_token &a, int column)
{
    if (!batch.cu_seqlens.data) return true;
    const int lane = threadIdx.x % 32;
    look();
    prefetch(token_at(a.k, row, token_source(head, a.group_k)) + lane * 32, lane < K / 16);
    prefetch(token_at(a.q, row, token_source(head, a.group_q)) + lane * 32, lane < K / 16);
    prefetch(token_at(a.v, row, token_source(head, a.group_v)) + column * 2, lane == 0);
    prefetch(token_at(a.g, row, head), lane == 0 && a.g_bytes);
    prefetch(token_at(a.beta, row, head), lane == 0 && a.beta_bytes);
    bound();
    row = first;
    return end == first + 1;
}

/* ---- Sequences of several tokens ------------------------------------------------------------- */

/* A column of the state. A lane has every 32nd of its K elements. */
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

/* Computes token t of column v. Returns true if the state has changed. */
template <class Tile>
GDN_DEVICE bool rest_step(Tile &tile, const struct gdn_cu_token &a, const struct token_place &w,
                          int t, int v)
{
    enum { N = Tile::N, IO = Tile::IO };
    const int lane = threadIdx.x % 32;
    const char *keys = token_at(a.k, t, token_source(w.head, a.group_k)) + lane * 2;
    const char *queries = token_at(a.q, t, token_source(w.head, a.group_q)) + lane * 2;
    struct token_place token = w;
    struct token_gates gates;
    float k[N], alpha, beta, kk = 0, qq = 0, kq = 0, p = 0, z = 0;
    token.row = t;
    token_fetch_gates(gates, a, token);
    const uint32_t value =
        ld_b32_b16(token_at(a.v, t, token_source(w.head, a.group_v)) + 2 * v, false, true);
    token_expand_gates<IO>(alpha, beta, gates, a);
    if (alpha == 0) token_forget(tile.S, N);
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float q = token_half<IO>(ld_b32_b16(queries + 64 * n, false, true));
        k[n] = token_half<IO>(ld_b32_b16(keys + 64 * n, false, true));
        kk = fmaf(k[n], k[n], kk), qq = fmaf(q, q, qq), kq = fmaf(k[n], q, kq);
        p = fmaf(tile.S[n], k[n], p), z = fmaf(tile.S[n], q, z);
    }
    const struct token_factors f =
        token_factors_of(token_sum<32>(kk), token_sum<32>(qq), token_sum<32>(kq), a);
    const float u = rule_u(beta, token_half<IO>(value), alpha * f.k * token_sum<32>(p));
    const float o = rule_o(f.kq, alpha * f.q * token_sum<32>(z), u);
    if (a.out.data && lane == 0) token_store_half<IO>(token_at(a.out, t, w.head) + 2 * v, o);
#pragma unroll
    for (int n = 0; n < N; n++) {
        tile.S[n] *= alpha;
        if (beta != 0) tile.S[n] = fmaf(u * f.k, k[n], tile.S[n]);
    }
    return alpha != 1 || beta != 0;
}

/* Computes all tokens of column v. A warp calls it. */
template <class Tile>
GDN_DEVICE void rest_decode(const struct gdn_cu_token &a, const struct packed_place &w, int v)
{
    typedef gdn_io<Tile::dtype> io;
    char *const from = token_at(a.from, w.from, w.head), *const to = token_at(a.to, w.to, w.head);
    bool changed = w.fresh();
    Tile tile;
#pragma unroll
    for (int n = 0; n < Tile::N; n++)
        tile.S[n] = w.fresh() ? 0 : io::load(Tile::at(from, a.from_row, v, n));
#pragma unroll 1
    for (int t = w.first; t < w.end; t++) changed |= rest_step(tile, a, w, t, v);
    if (!token_keeps(a, w) || (!changed && to == from)) return;
#pragma unroll
    for (int n = 0; n < Tile::N; n++) {
        if (changed)
            io::store(Tile::at(to, a.to_row, v, n), tile.S[n]);
        else /* copies bits (G9) */
            *Tile::at(to, a.to_row, v, n) = *Tile::at(from, a.from_row, v, n);
    }
}

/* ---- What is not as it was taken to be ------------------------------------------------------- */

/* Sets outputs of tokens first to end - 1 to zero. There are at most as many as threads. */
GDN_DEVICE void packed_zero(const struct gdn_cu_token &a, int head, int first, int end, int column,
                            int n)
{
    if (!a.out.data || (int)threadIdx.x >= n) return;
    for (int t = first; t < end; t++)
        *(uint16_t *)(token_at(a.out, t, head) + (column + threadIdx.x) * 2) = 0;
}

/* Decodes columns of a block whose sequence does not have one token, or is padding, and the tokens
 * behind the last sequence. */
template <class Tile>
GDN_DEVICE void packed_rest(const struct gdn_cu_token &a, struct packed_place &w, bool padding,
                            int column, int n)
{
    if (padding) {
        w.first = w.row, w.end = w.row + 1;
        if (w.batch.cu_seqlens.data) w.look();
        w.bound();
        if (!a.keep || w.row == w.batch.n) packed_zero(a, w.head, w.first, w.end, column, n);
        return;
    }
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < n && w.first < w.end; i += blockDim.x / 32)
        rest_decode<Tile>(a, w, column + i);
}

/* ---- Kernels --------------------------------------------------------------------------------- */

template <int KC, int dtype, int io>
GDN_DEVICE void decode_token_packed_vk(const struct gdn_cu_token_packed &a)
{
    typedef token_rows<KC, dtype, io> Tile;
    const int v = blockIdx.x * Tile::ROWS;
    struct packed_place w(a);
    const bool real = packed_begin(w, a);
    if (__builtin_expect(real, 1) && token_decode_rows<Tile>(a.one, w, v)) return;
    packed_rest<rest_column<KC, dtype, io, false>>(a.one, w, !real, v, Tile::ROWS);
}

template <int KC, int dtype, int io>
GDN_DEVICE void decode_token_packed_kv(const struct gdn_cu_token_packed &a)
{
    typedef token_columns<KC, dtype, io> Tile;
    const int column = blockIdx.x * Tile::COLUMNS;
    struct packed_place w(a);
    const bool real = packed_begin(w, a);
    if (__builtin_expect(real, 1) && token_decode_columns<Tile>(a.one, w, column)) return;
    packed_rest<rest_column<KC, dtype, io, true>>(a.one, w, !real, column, Tile::COLUMNS);
}

/* The least blocks of a multiprocessor, as ONE_BLOCKS_vk. Fewer blocks leave more registers for
 * loads under way. */
#define PACKED_BLOCKS_vk(dtype, KC) (KC == 256 ? 12 : GDN_##dtype == GDN_F32 ? 24 : 16)
#define PACKED_BLOCKS_kv(dtype, KC) 0

#define DECODE_PACKED_KERNEL(threads, name, layout, dtype, io, KC)                           \
    extern "C" __global__ void __launch_bounds__(threads, PACKED_BLOCKS_##layout(dtype, KC)) \
        name(const __grid_constant__ struct gdn_cu_token_packed a)                           \
    {                                                                                        \
        decode_token_packed_##layout<KC, GDN_##dtype, GDN_##io>(a);                          \
    }

#endif
