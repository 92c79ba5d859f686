/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_step if every sequence has one token, activations have one dtype of 16 bits, states have rows
 * of v, and all tensors lie in pieces that a lane loads at once. The rule is that of
 * decode/token.cuh, with q, k and v from shared memory.
 *
 * A block has a value head or some of its columns, and a warp sixteen of these. The state is loaded
 * first, to shared memory, where it takes no registers. Meanwhile a thread convolves two channels
 * that lie side by side, and moves their states on. The warps after these compute the gates and
 * load the inputs of the norm. So all loads of a block are issued at once.
 *
 * If several blocks share q and k, each block convolves these. When all have read the convolution's
 * states, each moves a part of the states on. So they are a cluster if states move.
 */
#ifndef GDN_CUDA_STEP_ROWS_CUH
#define GDN_CUDA_STEP_ROWS_CUH

#include "cuda/decode/token.cuh"
#include "cuda/layer/step_conv.cuh"

extern __shared__ __align__(128) char gdn_shared[];

enum {
    STEP_K = 128,                              /* the most of K and V; V of the norm */
    STEP_COLUMNS = 16,                         /* of a warp */
    STEP_THREADS = STEP_K / STEP_COLUMNS * 32, /* the most; a step with a norm has all of them */
    STEP_NORM = STEP_THREADS / 32 - 1,         /* the warp of the norm */
    STEP_BARRIER = 1                           /* where the warp of the norm waits for all o */
};

/* The results of the convolution: k and q as they would lie in memory, v as float32, and the new
 * states of channels of q and k. The gates. o, and the factors of o in the norm. */
struct step_rows_shared {
    alignas(16) uint32_t keys[2][STEP_K / 2];
    alignas(16) float o[STEP_K];
    float v[STEP_K], weight[STEP_K], gate[STEP_K], alpha, beta;
    alignas(8) float left[STEP_PAST][2 * STEP_K];
};

/* ---- The convolution ----------------------------------------------------------------------- */

/* Two channels that lie side by side, as they lie in memory. Their states are three pairs, in the
 * order of memory. */
struct step_pair {
    uint32_t past[STEP_PAST][2], weight[2][2], x, bias[2];
};

/* Returns the channel in x of channel i of the block: channels of q first, then of k, then of v. */
GDN_DEVICE int rows_channel(const struct gdn_cu_step_rows &a, const struct token_place &w,
                            int column, int i)
{
    if (i < STEP_K) return blockIdx.y * STEP_K + i;
    if (i < 2 * STEP_K) return (a.Hk + blockIdx.y - 1) * STEP_K + i;
    return 2 * (a.Hk - 1) * STEP_K + w.head * a.V + column + i;
}

/* Returns the bytes of an entry; 0 if there are none. */
GDN_DEVICE int taps_bytes(const struct gdn_cu_taps &p)
{
    return !p.data ? 0 : p.dtype == GDN_F32 ? 4 : 2;
}

GDN_DEVICE void rows_fetch(struct step_pair &f, const struct gdn_cu_step_rows &a,
                           const struct token_place &w, int channel)
{
    const char *past = taps_at(a.conv, w.from, channel, 0);
    const int bytes = taps_bytes(a.conv);
    f.x = ld_b32(a.x.data + mad_wide(w.row, a.x.row, channel * 2));
#pragma unroll
    for (int j = 0; j < STEP_PAST; j++, past += a.pair_step) ld_8_or_4(f.past[j], past, bytes);
#pragma unroll
    for (int c = 0; c < 2; c++) ld_v2(f.weight[c], taps_at(a.weight, 0, channel + c, 0));
    ld_8_or_4(f.bias, taps_at(a.bias, 0, channel, 0), taps_bytes(a.bias));
}

template <int io>
GDN_DEVICE void rows_past(float (&to)[2 * STEP_PAST], const struct step_pair &f, bool wide)
{
#pragma unroll
    for (int i = 0; i < 2 * STEP_PAST; i++)
        to[i] =
            wide ? __uint_as_float(f.past[i / 2][i % 2]) : token_element<io>(f.past[i / 2][0], i);
}
template <int io> GDN_DEVICE void rows_store(char *p, float low, float high, bool wide)
{
    if (wide)
        *(float2 *)p = make_float2(low, high);
    else
        *(uint32_t *)p = io == GDN_BF16 ? f32_to_bf16x2(low, high) : f32_to_f16x2(low, high);
}

/* Adds the token to the state of two channels. The new state goes to its slot. If other blocks may
 * still read the old state, it goes to shared memory. */
template <int io>
GDN_DEVICE void rows_shift(struct step_rows_shared &sh, const float (&old)[2 * STEP_PAST],
                           const float (&x)[2], const struct gdn_cu_step_rows &a,
                           const struct token_place &w, int channel, int i)
{
    char *to = taps_at(a.conv, w.to, channel, 0);
#pragma unroll
    for (int j = 0; j < STEP_PAST; j++, to += a.pair_step) {
        float y[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int e = 2 * j + h;
            y[h] = a.by_entry ? (e % 3 < 2 ? old[(e + 1) % 6] : x[e / 3])
                   : j < 2    ? old[(e + 2) % 6]
                              : x[h];
        }
        if (i < 2 * STEP_K && a.share < 2 * STEP_K)
            *(float2 *)&sh.left[j][i] = make_float2(y[0], y[1]);
        else
            rows_store<io>(to, y[0], y[1], a.conv.dtype == GDN_F32);
    }
}

template <int io>
GDN_DEVICE void rows_put(struct step_rows_shared &sh, const struct step_pair &f,
                         const struct gdn_cu_step_rows &a, const struct token_place &w, int channel,
                         int i)
{
    const bool wide = a.conv.dtype == GDN_F32;
    float old[2 * STEP_PAST], y[2];
    const float x[2] = { token_element<io>(f.x, 0), token_element<io>(f.x, 1) };
    if (wide)
        rows_past<io>(old, f, true);
    else
        rows_past<io>(old, f, false);
#pragma unroll
    for (int c = 0; c < 2; c++) {
        y[c] =
            a.bias.dtype == GDN_F32 ? __uint_as_float(f.bias[c]) : token_element<io>(f.bias[0], c);
#pragma unroll
        for (int e = 0; e < STEP_PAST; e++)
            y[c] = fmaf(token_element<io>(f.weight[c][e / 2], e),
                        a.by_entry ? old[3 * c + e] : old[2 * e + c], y[c]);
        y[c] = fmaf(token_element<io>(f.weight[c][1], 1), x[c], y[c]);
    }
    quick_silu(y);
    const uint32_t both = io == GDN_BF16 ? f32_to_bf16x2(y[0], y[1]) : f32_to_f16x2(y[0], y[1]);
    if (i < 2 * STEP_K)
        sh.keys[i < STEP_K][i % STEP_K / 2] = both;
    else
        *(float2 *)&sh.v[i - 2 * STEP_K] =
            make_float2(token_element<io>(both, 0), token_element<io>(both, 1));
    if (a.moves && w.to >= a.one.first_slot) rows_shift<io>(sh, old, x, a, w, channel, i);
}

/* Stores the states of q and k, when all blocks have read them. */
template <int io>
GDN_DEVICE void rows_leave(const struct step_rows_shared &sh, const struct gdn_cu_step_rows &a,
                           const struct token_place &w)
{
    const int i = 2 * threadIdx.x, share = i - blockIdx.x * a.share;
    if (i >= 2 * STEP_K || share < 0 || share >= a.share || w.to < a.one.first_slot) return;
    char *to = taps_at(a.conv, w.to, rows_channel(a, w, 0, i), 0);
#pragma unroll
    for (int j = 0; j < STEP_PAST; j++, to += a.pair_step)
        rows_store<io>(to, sh.left[j][i], sh.left[j][i + 1], a.conv.dtype == GDN_F32);
}

/* ---- Gates and norm ------------------------------------------------------------------------ */

template <int io>
GDN_DEVICE void rows_gates(struct step_rows_shared &sh, const struct gdn_cu_step_rows &a,
                           const struct token_place &w)
{
    struct token_gates f;
    float alpha, beta;
    token_fetch_gates(f, a.one, w);
    token_expand_gates<io>(alpha, beta, f, a.one);
    sh.alpha = alpha, sh.beta = beta;
}

/* Computes the factors of o in the norm that do not depend on o. One warp does it, and a lane has
 * columns 32 apart. */
template <int io>
GDN_DEVICE void rows_tail(struct step_rows_shared &sh, const struct gdn_cu_step_rows &a,
                          const struct token_place &w)
{
    enum { N = STEP_K / 32 };
    const int lane = threadIdx.x % 32;
    const char *z = token_at(a.z, w.row, w.head) + lane * 2;
    uint32_t bits[N], weight[N];
    float gate[N];
#pragma unroll
    for (int j = 0; j < N; j++) {
        bits[j] = ld_4_or_2(z + j * 64, a.z.data ? 2 : 0);
        weight[j] = token_bits(a.norm_weight, 0, lane + j * 32, a.norm_weight_bytes);
    }
#pragma unroll
    for (int j = 0; j < N; j++) gate[j] = token_half<io>(bits[j]);
    silu_of(gate);
#pragma unroll
    for (int j = 0; j < N; j++) {
        sh.gate[lane + j * 32] = a.z.data ? gate[j] : 1;
        sh.weight[lane + j * 32] =
            a.norm_weight.data ? token_number<io>(weight[j], a.norm_weight_bytes) : 1;
    }
}

/* Computes the gated norm, by one warp, after all warps have stored their o. The order of the sum
 * is that of norm.cu. */
template <int io>
GDN_DEVICE void rows_norm(const struct step_rows_shared &sh, const struct gdn_cu_step_rows &a,
                          const struct token_place &w)
{
    const int lane = threadIdx.x % 32;
    const float *o = &sh.o[lane % 16 * 8];
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 8; j += 4) {
        const float4 x = *(const float4 *)&o[j];
        sum = fmaf(x.x, x.x, sum), sum = fmaf(x.y, x.y, sum);
        sum = fmaf(x.z, x.z, sum), sum = fmaf(x.w, x.w, sum);
    }
    for (int step = 1; step < 16; step *= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    const float scale = 1 / sqrtf(sum / (float)STEP_K + a.rms_eps);
    char *const out = token_at(a.one.out, w.row, w.head) + lane * 2;
#pragma unroll
    for (int j = 0; j < STEP_K; j += 32)
        token_store_half<io>(out + j * 2,
                             sh.o[lane + j] * scale * sh.weight[lane + j] * sh.gate[lane + j]);
}

/* ---- Rows of a state ----------------------------------------------------------------------- */

/* Is like token_rows, but has eight rows, and k and q in the dtype of memory. */
template <int dtype, int io> struct step_rows {
    typedef token_rows<STEP_K, dtype, io> like;
    typedef typename like::piece piece;
    enum {
        IO = io,
        ROWS = 8,
        E = like::E,
        LANES = like::LANES,
        C = like::C,
        STEP = like::STEP,
        N = ROWS / STEP
    };
    uint32_t S[N][C][4], keys[C * E];

    __device__ __forceinline__ float key(int c, int e) const
    {
        return token_element<io>(keys[(c * E + e) / 2], e);
    }
    __device__ __forceinline__ float query(int c, int e) const
    {
        return token_element<io>(keys[((C + c) * E + e) / 2], e);
    }
};

/* ---- A block ------------------------------------------------------------------------------- */

/* Returns k and q of the lane, as token_fetch() loads them from memory. */
template <class Tile>
GDN_DEVICE void rows_keys(uint32_t (&x)[Tile::C * Tile::E], const struct step_rows_shared &sh)
{
    enum { E = Tile::E, C = Tile::C };
    const int lane = threadIdx.x % Tile::LANES;
#pragma unroll
    for (int i = 0; i < 2 * C; i++)
#pragma unroll
        for (int j = 0; j < E / 2; j += 2) {
            lds_v2(&x[i * E / 2 + j], &sh.keys[i / C][(i % C * Tile::LANES + lane) * E / 2 + j]);
        }
}

/* Stores o of one of the block's columns: to shared memory for the norm, rounded as in memory, or
 * to out. */
template <int io>
GDN_DEVICE void rows_out(struct step_rows_shared &sh, const struct gdn_cu_step_rows &a,
                         const struct token_place &w, int column, int mine, float o)
{
    if (a.normed)
        sh.o[mine] = token_half<io>(io == GDN_BF16 ? f32_to_bf16(o) : f32_to_f16(o));
    else if (a.one.out.data)
        token_store_half<io>(token_at(a.one.out, w.row, w.head) + (column + mine) * 2, o);
}

/* Finds the block's head and columns. */
GDN_DEVICE int rows_begin(struct token_place &w, const struct gdn_cu_step_rows &a)
{
    w.head = blockIdx.y * a.group + (blockIdx.x >> a.part_bits);
    return (blockIdx.x & ((1 << a.part_bits) - 1)) * a.n_columns;
}

/* Returns the address in shared memory of the lane's pieces of a tile of the warp. Pieces are 512
 * bytes apart. */
template <class Tile> GDN_DEVICE char *rows_at(int warp, int tile)
{
    const int pieces = (warp * (STEP_COLUMNS / Tile::ROWS) + tile) * Tile::N * Tile::C;
    return gdn_shared + pieces * 512 + threadIdx.x % 32 * 16;
}

/* rows_ask() begins to copy a tile's rows to shared memory. rows_take() loads them from there. */
template <class Tile> GDN_DEVICE void rows_ask(const char *from, int64_t row, int warp, int tile)
{
    uint32_t to = shared_address(rows_at<Tile>(warp, tile));
#pragma unroll
    for (int n = 0; n < Tile::N; n++, from += Tile::STEP * row)
#pragma unroll
        for (int c = 0; c < Tile::C; c++, to += 512)
            copy_async<16>(to, from + c * Tile::LANES * 16, 16);
    copy_commit();
}
template <class Tile> GDN_DEVICE void rows_take(Tile &tile, const char *from)
{
#pragma unroll
    for (int n = 0; n < Tile::N; n++)
#pragma unroll
        for (int c = 0; c < Tile::C; c++, from += 512) {
            const uint4 x = *(const uint4 *)from;
            tile.S[n][c][0] = x.x, tile.S[n][c][1] = x.y;
            tile.S[n][c][2] = x.z, tile.S[n][c][3] = x.w;
        }
}

/* Does a warp's share of the work before the rule. */
template <int io>
GDN_DEVICE void rows_prepare(struct step_rows_shared &sh, const struct gdn_cu_step_rows &a,
                             const struct token_place &w, int column, int warp)
{
    const int n_channels = 2 * STEP_K + a.n_columns, n_warps = (n_channels + 63) / 64;
    if (warp == n_warps) {
        rows_gates<io>(sh, a, w);
    } else if (warp > n_warps) {
        if (a.normed) rows_tail<io>(sh, a, w);
    } else if (2 * (int)threadIdx.x < n_channels) {
        const int i = 2 * threadIdx.x, channel = rows_channel(a, w, column, i);
        struct step_pair pair;
        rows_fetch(pair, a, w, channel);
        rows_put<io>(sh, pair, a, w, channel, i);
    }
}

/* Computes the warp's columns, from `first` of the block on. o of all columns is stored before the
 * last of the state, so that the norm does not wait for the state. */
template <class Tile>
GDN_DEVICE void rows_rule(struct step_rows_shared &sh, const struct gdn_cu_step_rows &a,
                          const struct token_place &w, int column, int warp)
{
    enum { TILES = STEP_COLUMNS / Tile::ROWS };
    const int lane = threadIdx.x % 32, first = warp * STEP_COLUMNS;
    const float alpha = sh.alpha, beta = sh.beta;
    const bool changed = alpha != 1 || beta != 0;
    char *to = token_at(a.one.to, w.to, w.head) + lane % Tile::LANES * 16 +
               (column + first + lane / Tile::LANES) * a.one.to_row;
    uint32_t keys[Tile::C * Tile::E];
    rows_keys<Tile>(keys, sh);
    const struct token_factors f = token_products<Tile>(keys, a.one);
#pragma unroll
    for (int n = 0; n < TILES; n++, to += Tile::ROWS * a.one.to_row) {
        const int mine = first + n * Tile::ROWS + token_own<Tile>();
        float p, z;
        Tile tile;
        if (n)
            copy_wait<0>();
        else
            copy_wait<TILES - 1>();
        rows_take(tile, rows_at<Tile>(warp, n));
        rows_keys<Tile>(tile.keys, sh);
        if (__builtin_expect(alpha == 0, 0)) token_forget(&tile.S[0][0][0], Tile::N * Tile::C * 4);
        token_read(p, z, tile);
        const float u = rule_u(beta, sh.v[mine], alpha * f.k * p);
        const float o = rule_o(f.kq, alpha * f.q * z, u);
        if (lane % (Tile::LANES / Tile::N) == 0) rows_out<Tile::IO>(sh, a, w, column, mine, o);
        if (n == TILES - 1 && a.normed && warp != STEP_NORM)
            barrier_arrive(STEP_BARRIER, STEP_THREADS);
        if (!token_keeps(a.one, w)) continue;
        if (__builtin_expect(beta == 0, 0)) token_forget(tile.keys, Tile::C * Tile::E);
        if (changed) token_write(tile, alpha, beta == 0 ? 0 : u * f.k);
        if (changed || a.one.to.data != a.one.from.data || w.to != w.from)
            token_store(tile, to, a.one.to_row);
    }
}

template <int dtype, int io>
GDN_DEVICE void rows_work(const struct gdn_cu_step_rows &a, struct token_place &w)
{
    typedef step_rows<dtype, io> Tile;
    __shared__ struct step_rows_shared sh;
    const int column = rows_begin(w, a), lane = threadIdx.x % 32;
    /* the compiler learns that all lanes have the same number */
    const int warp = __shfl_sync(0xffffffff, (int)threadIdx.x / 32, 0);
    const bool has = warp * STEP_COLUMNS < a.n_columns;
    if (has) {
        const int row = column + warp * STEP_COLUMNS + lane / Tile::LANES;
        const char *from =
            token_at(a.one.from, w.from, w.head) + lane % Tile::LANES * 16 + row * a.one.from_row;
#pragma unroll
        for (int n = 0; n < STEP_COLUMNS / Tile::ROWS; n++, from += Tile::ROWS * a.one.from_row)
            rows_ask<Tile>(from, a.one.from_row, warp, n);
    }
    rows_prepare<io>(sh, a, w, column, warp);
    __syncthreads();
    if (a.n_blocks > 1) cluster_arrive_relaxed();
    if (has) rows_rule<Tile>(sh, a, w, column, warp);
    if (a.normed && warp == STEP_NORM) {
        barrier_wait(STEP_BARRIER, STEP_THREADS);
        rows_norm<io>(sh, a, w);
    }
    if (a.n_blocks == 1) return;
    cluster_wait();
    if (a.moves) rows_leave<io>(sh, a, w);
}

GDN_DEVICE void rows_zero(const struct gdn_cu_step_rows &a, struct token_place &w)
{
    const int column = rows_begin(w, a);
    if (!a.one.out.data || a.one.keep) return;
    for (int i = threadIdx.x; i < a.n_columns; i += blockDim.x)
        *(uint16_t *)(token_at(a.one.out, w.row, w.head) + (column + i) * 2) = 0;
}

/* The least blocks of a multiprocessor, found by measurement. */
enum { STEP_BLOCKS_F32 = 3, STEP_BLOCKS_BF16 = 4, STEP_BLOCKS_F16 = 4 };

#define STEP_ROWS_KERNEL(threads, name, dtype, io)                             \
    extern "C" __global__ void __launch_bounds__(threads, STEP_BLOCKS_##dtype) \
        name(const __grid_constant__ struct gdn_cu_step_rows a)                \
    {                                                                          \
        struct token_place w;                                                  \
        if (__builtin_expect(token_begin(w, a.one), 1))                        \
            rows_work<GDN_##dtype, GDN_##io>(a, w);                            \
        else                                                                   \
            rows_zero(a, w);                                                   \
    }

#endif
