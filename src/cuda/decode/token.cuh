/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One token of each sequence, without GDN_EXACT, k, q, v and out of one dtype of 16 bits:
 *
 *     p = S k    z = S q;    u = beta (v - alpha p)
 *     o = alpha z + (k . q) u;    S <- alpha S + u k^T
 *
 * It is a trip to memory and back, of the states and, in a small call, of the code itself and of
 * its arguments; and states of 16 bits leave time for 500 instructions per 2 KB. So it is short and
 * straight: every load first, of 16 bytes a lane; sums are of k and q as they lie in memory, and
 * what makes them keys and queries (lengths, scale, gates) meets the sums at the end; what is
 * forgotten or left out (alpha = 0, beta = 0) is made zeros aside, before it is used.
 *
 *   vk   rows of the pool are v. A warp, which is a block, has 8 or 16 of them, up to 16 lanes a
 *        row: 4 KB with K = 128.
 *   kv   rows of the pool are k. A block has 64 columns, each warp 32 rows; they meet twice in
 *        shared memory, with their part of the sums and for u.
 */
#ifndef GDN_CUDA_DECODE_ONE_CUH
#define GDN_CUDA_DECODE_ONE_CUH

#include "cuda/decode/args.h"
#include "cuda/device/ptx_load_parts.cuh"
#include "cuda/device/quad.cuh"
#include "cuda/device/rule.cuh"
#include "cuda/device/warp_sums.cuh"

/* ---- 16 bytes of a state --------------------------------------------------------------------- */

/* Returns element e of a row of 16-bit elements. x: the word with the pair that has element e. */
template <int dtype> GDN_DEVICE float token_element(uint32_t x, int e)
{
    if (dtype == GDN_BF16) return __uint_as_float(e % 2 ? x & 0xffff0000 : x << 16);
    return f16_to_f32((uint16_t)(x >> e % 2 * 16));
}

template <int dtype> struct token_piece {
    enum { E = dtype == GDN_F32 ? 4 : 8 };

    GDN_DEVICE float get(const uint32_t (&x)[4], int e)
    {
        return dtype == GDN_F32 ? __uint_as_float(x[e % 4]) : token_element<dtype>(x[e / 2], e);
    }
    GDN_DEVICE void set(uint32_t (&x)[4], const float (&y)[E])
    {
#pragma unroll
        for (int e = 0; e < E; e += 2) {
            if (dtype == GDN_F32)
                x[e % 4] = __float_as_uint(y[e]), x[e % 4 + 1] = __float_as_uint(y[e + 1]);
            else
                x[e / 2] = dtype == GDN_BF16 ? f32_to_bf16x2(y[e], y[e + 1])
                                             : f32_to_f16x2(y[e], y[e + 1]);
        }
    }
    /* Computes x <- alpha x + factor y. */
    GDN_DEVICE void update(uint32_t (&x)[4], float alpha, float factor, const float (&y)[E])
    {
        float z[E];
#pragma unroll
        for (int e = 0; e < E; e++) z[e] = fmaf(factor, y[e], alpha * get(x, e));
        set(x, z);
    }
};

GDN_DEVICE void token_store(char *p, const uint32_t (&x)[4])
{
    *(uint4 *)p = make_uint4(x[0], x[1], x[2], x[3]);
}

/* Fills the tile with zeros, behind a branch. The compiler must not make a selection for each word
 * of it. */
template <class T> GDN_DEVICE void token_forget(T *x, int n)
{
    const T zero = (T)opaque(0);
#pragma unroll
    for (int i = 0; i < n; i++) x[i] = zero;
}

/* ---- The token ------------------------------------------------------------------------------- */

/* The place of a block: its token, head and slots. */
struct token_place {
    enum { LATE = 0 }; /* the state is loaded before the token */
    int row, head, from, to;

    /* Returns true if the sequence is no padding. Known after settle(). */
    static __device__ __forceinline__ bool real(void) { return true; }

    /* Returns true if the state is not read: the sequence starts from zeros. */
    static __device__ __forceinline__ bool fresh(void) { return false; }
    /* Finds the token, after the loads of the state have begun. Here it is known already. */
    template <int K> static __device__ __forceinline__ bool find(const struct gdn_cu_token &, int)
    {
        return true;
    }
};

GDN_DEVICE char *token_at(const struct gdn_cu_at &t, int row, int head)
{
    return t.data + mad_wide(row, t.row, mad_wide(head, t.head, 0));
}

/* Returns the head of a tensor that state head `head` reads. */
GDN_DEVICE int token_source(int head, uint32_t inverse) { return head * inverse >> 22; }

/* Finds the slots of sequence w.row. Returns false for padding. */
GDN_DEVICE bool token_slots(struct token_place &w, const struct gdn_cu_token &a)
{
    w.from = w.to = w.row;
    if (__builtin_expect(!a.read_slots, 1)) return true;
    w.from = w.to = a.read_slots[w.row * a.read_step];
    if (a.write_slots) w.to = a.write_slots[w.row * a.write_step];
    return w.from >= a.first_slot && w.from < a.read_pool && w.to < a.write_pool;
}

/* Finds the block's place. Returns false for padding. */
GDN_DEVICE bool token_begin(struct token_place &w, const struct gdn_cu_token &a)
{
    w.head = blockIdx.y;
    w.row = blockIdx.z;
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    return token_slots(w, a);
}

/* Returns true if the state is stored. */
GDN_DEVICE bool token_keeps(const struct gdn_cu_token &a, const struct token_place &w)
{
    return a.to.data && w.to >= a.first_slot;
}

/* Returns a number of 4 or 2 bytes; zero if it is absent. */
GDN_DEVICE uint32_t token_bits(const struct gdn_cu_at &t, int row, int head, int bytes)
{
    return ld_4_or_2(token_at(t, row, head), bytes);
}
template <int io> GDN_DEVICE float token_half(uint32_t x)
{
    return io == GDN_BF16 ? __uint_as_float(x << 16) : f16_to_f32((uint16_t)x);
}
template <int io> GDN_DEVICE float token_number(uint32_t x, int bytes)
{
    return bytes == 4 ? __uint_as_float(x) : token_half<io>(x);
}
template <int io> GDN_DEVICE void token_store_half(char *p, float x)
{
    *(uint16_t *)p = io == GDN_BF16 ? f32_to_bf16(x) : f32_to_f16(x);
}

/* The gates of a token as they lie in memory. */
struct token_gates {
    uint32_t g, beta, A_log, dt_bias;
};

GDN_DEVICE void token_fetch_gates(struct token_gates &f, const struct gdn_cu_token &a,
                                  const struct token_place &w)
{
    f.g = token_bits(a.g, w.row, w.head, a.g_bytes);
    f.beta = token_bits(a.beta, w.row, w.head, a.beta_bytes);
    f.A_log = token_bits(a.A_log, 0, w.head, a.A_log_bytes);
    f.dt_bias = token_bits(a.dt_bias, 0, w.head, a.dt_bias_bytes);
}
template <int io>
GDN_DEVICE void token_expand_gates(float &alpha, float &beta, const struct token_gates &f,
                                   const struct gdn_cu_token &a)
{
    alpha =
        gate_value(a, token_number<io>(f.g, a.g_bytes), token_number<io>(f.A_log, a.A_log_bytes),
                   token_number<io>(f.dt_bias, a.dt_bias_bytes), true);
    beta = beta_value(a, token_number<io>(f.beta, a.beta_bytes));
}

/* The factors of raw k and q, and k . q with these factors. */
struct token_factors {
    float k, q, kq;
};

/* Returns 1 / length, for formulas of a norm that take a root themselves. */
GDN_DEVICE float token_inverse_length(float sum_of_squares, const struct gdn_cu_token &a)
{
    const float length = sqrt_approx(sum_of_squares), eps = a.norm_eps;
    return rcp_approx(a.norm == GDN_NORM_L2_ADD ? length + eps : fmaxf(length, eps));
}

GDN_DEVICE struct token_factors token_factors_of(float kk, float qq, float kq,
                                                 const struct gdn_cu_token &a)
{
    float k = 1, q = 1;
    if (a.norm == GDN_NORM_L2)
        k = rsqrt_approx(kk + a.norm_eps), q = rsqrt_approx(qq + a.norm_eps);
    else if (a.norm != GDN_NO_NORM)
        k = token_inverse_length(kk, a), q = token_inverse_length(qq, a);
    q *= a.scale;
    return { k, q, kq * k * q };
}

/* Returns the sum over `lanes` consecutive lanes. */
template <int lanes> GDN_DEVICE float token_sum(float x)
{
#pragma unroll
    for (int bit = lanes / 2; bit; bit /= 2) x += __shfl_xor_sync(0xffffffff, x, bit);
    return x;
}

/* Sums N values over `lanes` lanes, each in the order of token_sum(). Returns value number lane /
 * (lanes / N). */
template <int lanes, int N> GDN_DEVICE float token_sums(float *x)
{
    if constexpr (N == 1) {
        return token_sum<lanes>(x[0]);
    } else {
        halve<N / 2>(x, lanes / 2);
        return token_sums<lanes / 2, N / 2>(x);
    }
}

/* ---- Rows of v ------------------------------------------------------------------------------- */

/* A tile of so many rows; 0: of 4 KB with K = 128. A lane has N rows, STEP apart, and C pieces of E
 * elements of each. */
template <int KC, int dtype, int io, int rows = 0> struct token_rows {
    typedef token_piece<dtype> piece;
    enum {
        IO = io,
        E = piece::E,
        ROWS = rows ? rows : 2 * E,
        LANES = KC / E < 16 ? KC / E : 16,
        C = KC / E / LANES,
        STEP = 32 / LANES,
        N = ROWS / STEP,
        K = KC,
    };
    uint32_t S[N][C][4];
    float k[C][E], q[C][E];

    __device__ __forceinline__ float key(int c, int e) const { return k[c][e]; }
    __device__ __forceinline__ float query(int c, int e) const { return q[c][e]; }
};

/* Returns the number of the warp's row whose sums the lane has at the end. */
template <class Tile> GDN_DEVICE int token_own(void)
{
    const int lane = threadIdx.x % 32;
    return lane % Tile::LANES / (Tile::LANES / Tile::N) * Tile::STEP + lane / Tile::LANES;
}

/* Load and store a tile. `at`: the lane's first row in memory. */
template <class Tile> GDN_DEVICE void token_load(Tile &tile, const char *at, int64_t row)
{
#pragma unroll
    for (int n = 0; n < Tile::N; n++, at += Tile::STEP * row)
#pragma unroll
        for (int c = 0; c < Tile::C; c++) ld_v4(tile.S[n][c], at + c * Tile::LANES * 16);
}
template <class Tile> GDN_DEVICE void token_store(const Tile &tile, char *at, int64_t row)
{
#pragma unroll
    for (int n = 0; n < Tile::N; n++, at += Tile::STEP * row)
#pragma unroll
        for (int c = 0; c < Tile::C; c++) token_store(at + c * Tile::LANES * 16, tile.S[n][c]);
}

/* Loads the lane's elements of k, then of q. */
template <class Tile>
GDN_DEVICE void token_fetch(uint32_t (&x)[Tile::C * Tile::E], const struct gdn_cu_token &a,
                            const struct token_place &w)
{
    enum { E = Tile::E, C = Tile::C };
    const int lane = threadIdx.x % Tile::LANES * E * 2;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const char *row = (i ? token_at(a.q, w.row, token_source(w.head, a.group_q))
                             : token_at(a.k, w.row, token_source(w.head, a.group_k))) +
                          lane;
#pragma unroll
        for (int c = 0; c < C; c++) {
            uint32_t y[4];
            if (E == 8)
                ld_v4(y, row + c * Tile::LANES * 16);
            else
                ld_keep_v2(y, row + c * Tile::LANES * 8, true);
            for (int j = 0; j < E / 2; j++) x[(i * C + c) * E / 2 + j] = y[j];
        }
    }
}

/* Loads k and q, the gates, and v of row `own`. */
template <class Tile>
GDN_DEVICE void token_fetch_token(uint32_t (&raw)[Tile::C * Tile::E], struct token_gates &gates,
                                  uint32_t &value, const struct gdn_cu_token &a,
                                  const struct token_place &w, int own)
{
    token_fetch<Tile>(raw, a, w);
    token_fetch_gates(gates, a, w);
    value =
        ld_b32_b16(token_at(a.v, w.row, token_source(w.head, a.group_v)) + own * 2, false, true);
}

/* Sums k . k, q . q and k . q of raw k and q over the lanes of a row. */
template <class Tile>
GDN_DEVICE struct token_factors token_products(const uint32_t (&raw)[Tile::C * Tile::E],
                                               const struct gdn_cu_token &a)
{
    enum { N = Tile::C * Tile::E };
    float kk = 0, qq = 0, kq = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float k = token_element<Tile::IO>(raw[i / 2], i);
        const float q = token_element<Tile::IO>(raw[(N + i) / 2], i);
        kk = fmaf(k, k, kk), qq = fmaf(q, q, qq), kq = fmaf(k, q, kq);
    }
    return token_factors_of(token_sum<Tile::LANES>(kk), token_sum<Tile::LANES>(qq),
                            token_sum<Tile::LANES>(kq), a);
}
/* Sets k and q of the tile. */
template <class Tile>
GDN_DEVICE void token_expand(Tile &tile, const uint32_t (&raw)[Tile::C * Tile::E])
{
    enum { E = Tile::E, N = Tile::C * E };
#pragma unroll
    for (int i = 0; i < N; i++) {
        tile.k[i / E][i % E] = token_element<Tile::IO>(raw[i / 2], i);
        tile.q[i / E][i % E] = token_element<Tile::IO>(raw[(N + i) / 2], i);
    }
}
template <class Tile>
GDN_DEVICE struct token_factors token_commit(Tile &tile, const uint32_t (&raw)[Tile::C * Tile::E],
                                             const struct gdn_cu_token &a)
{
    token_expand(tile, raw);
    return token_products<Tile>(raw, a);
}

/* Computes p and z of the lane's own row, with raw k and q. */
template <class Tile> GDN_DEVICE void token_read(float &p, float &z, const Tile &tile)
{
    enum { E = Tile::E, C = Tile::C, N = Tile::N };
    float ps[N] = {}, zs[N] = {};
#pragma unroll
    for (int i = 0; i < N * C * E; i++) {
        const int n = i / E / C, c = i / E % C, e = i % E;
        const float S = Tile::piece::get(tile.S[n][c], e);
        ps[n] = fmaf(S, tile.key(c, e), ps[n]);
        zs[n] = fmaf(S, tile.query(c, e), zs[n]);
    }
    p = token_sums<Tile::LANES, N>(ps);
    z = token_sums<Tile::LANES, N>(zs);
}

/* Adds the token to the tile. Lane i of a row has u of row i, times the factor of k. */
template <class Tile> GDN_DEVICE void token_write(Tile &tile, float alpha, float u, int i = 0)
{
    const int first = threadIdx.x % 32 / Tile::LANES * Tile::LANES + i;
#pragma unroll
    for (int n = 0; n < Tile::N; n++) {
        const float un = __shfl_sync(0xffffffff, u, first + n * (Tile::LANES / Tile::N));
#pragma unroll
        for (int c = 0; c < Tile::C; c++) {
            float k[Tile::E];
            for (int e = 0; e < Tile::E; e++) k[e] = tile.key(c, e);
            Tile::piece::update(tile.S[n][c], alpha, un, k);
        }
    }
}

/* Decodes rows from v on. Returns false if the sequence does not have one token. */
template <class Tile, class Place>
GDN_DEVICE bool token_decode_rows(const struct gdn_cu_token &a, Place &w, int v)
{
    enum { LANES = Tile::LANES, C = Tile::C, N = Tile::N };
    const int lane = threadIdx.x, own = v + token_own<Tile>();
    const int row = v + lane / LANES, at = lane % LANES * 16;
    uint32_t raw[C * Tile::E], value;
    struct token_gates gates;
    Tile tile;
    float alpha, beta, p, z;
    if constexpr (Place::LATE) {
        token_fetch_token<Tile>(raw, gates, value, a, w, own);
        w.settle(a);
    }
    char *const from = token_at(a.from, w.from, w.head) + row * a.from_row + at;
    token_load(tile, from, a.from_row);
    if (!w.template find<Tile::K>(a, v)) return false;
    if constexpr (!Place::LATE) token_fetch_token<Tile>(raw, gates, value, a, w, own);
    token_expand_gates<Tile::IO>(alpha, beta, gates, a);
    const struct token_factors f = token_commit(tile, raw, a);
    if (__builtin_expect(alpha == 0 || w.fresh(), 0)) token_forget(&tile.S[0][0][0], N * C * 4);
    token_read(p, z, tile);
    const float u = rule_u(beta, token_half<Tile::IO>(value), alpha * f.k * p);
    if (!w.real()) return false;
    if (a.out.data && lane % (LANES / N) == 0)
        token_store_half<Tile::IO>(token_at(a.out, w.row, w.head) + own * 2,
                                   rule_o(f.kq, alpha * f.q * z, u));
    if (!token_keeps(a, w)) return true;
    char *const to = token_at(a.to, w.to, w.head) + row * a.to_row + at;
    const bool changed = alpha != 1 || beta != 0 || w.fresh();
    if (__builtin_expect(beta == 0, 0)) token_forget(&tile.k[0][0], C * Tile::E);
    if (changed) token_write(tile, alpha, beta == 0 ? 0 : u * f.k);
    if (changed || to != from) token_store(tile, to, a.to_row);
    return true;
}

/* ---- Rows of k ------------------------------------------------------------------------------- */

/* A tile: a lane has N rows, from row() on, and a piece of each. */
template <int KC_, int dtype> struct columns_shape {
    typedef token_piece<dtype> piece;
    enum {
        KC = KC_,
        E = piece::E,
        COLUMNS = 64,
        LANES = COLUMNS / E,
        WARPS = KC / 32, /* warps of a block */
        N = LANES,       /* rows of a lane: 32 of a warp over 32 / LANES lanes */
    };
    GDN_DEVICE int row() { return threadIdx.x / LANES * N; }
};

template <int KC, int dtype, int io> struct token_columns : columns_shape<KC, dtype> {
    typedef columns_shape<KC, dtype> shape;
    enum { IO = io };
    uint32_t S[shape::N][4];

    __device__ __forceinline__ float get(int n, int e) const { return shape::piece::get(S[n], e); }
};

/* parts: the sums p and z of each warp, without factors of k and q. products: k . k, q . q and k .
 * q of each warp. u: times the factor of k. */
template <class Tile> struct token_shared {
    alignas(16) float k[Tile::KC];
    float q[Tile::KC], parts[2][Tile::WARPS][Tile::COLUMNS], products[Tile::WARPS][4];
    float u[Tile::COLUMNS];
};

/* Computes the warp's part of p and z, with raw k and q. A lane stores four columns of p or of
 * z. */
template <class Tile>
GDN_DEVICE void columns_read(float *p, float *z, const Tile &tile, const float *k, const float *q)
{
    enum { E = Tile::E };
    const int lane = threadIdx.x % 32;
    float x[2 * E] = {};
#pragma unroll
    for (int i = 0; i < Tile::N; i += 4) {
        const float4 k4 = *(const float4 *)&k[Tile::row() + i];
        const float4 q4 = *(const float4 *)&q[Tile::row() + i];
        const float kj[4] = { k4.x, k4.y, k4.z, k4.w }, qj[4] = { q4.x, q4.y, q4.z, q4.w };
#pragma unroll
        for (int j = 0; j < 4 * E; j++) {
            const int e = j % E;
            const float S = tile.get(i + j / E, e);
            x[e] = fmaf(S, kj[j / E], x[e]);
            x[E + e] = fmaf(S, qj[j / E], x[E + e]);
        }
    }
    halve<E>(x, 16);
    int column = lane % Tile::LANES * E;
    if constexpr (E == 8) {
        halve<4>(x, 8);
        column += lane & 8 ? 4 : 0;
    }
    *(float4 *)&(lane < 16 ? p : z)[column] = make_float4(x[0], x[1], x[2], x[3]);
}

template <class Tile>
GDN_DEVICE void token_write(Tile &tile, const struct token_shared<Tile> &sh, float alpha)
{
    float u[Tile::E];
#pragma unroll
    for (int e = 0; e < Tile::E; e++) u[e] = sh.u[threadIdx.x % Tile::LANES * Tile::E + e];
#pragma unroll
    for (int i = 0; i < Tile::N; i += 4) {
        const float4 k4 = *(const float4 *)&sh.k[Tile::row() + i];
        const float k[4] = { k4.x, k4.y, k4.z, k4.w };
        for (int j = 0; j < 4; j++) Tile::piece::update(tile.S[i + j], alpha, k[j], u);
    }
}

/* Computes a thread's column from the parts of warps: u, and the output. */
template <class Tile>
GDN_DEVICE float token_column(float &u, const struct token_shared<Tile> &sh,
                              const struct gdn_cu_token &a, float alpha, float beta, float v)
{
    float p = 0, z = 0, kk = 0, qq = 0, kq = 0;
#pragma unroll
    for (int w = 0; w < Tile::WARPS; w++) {
        const float4 products = *(const float4 *)sh.products[w];
        kk += products.x, qq += products.y, kq += products.z;
        p += sh.parts[0][w][threadIdx.x];
        z += sh.parts[1][w][threadIdx.x];
    }
    const struct token_factors f = token_factors_of(kk, qq, kq, a);
    const float mine = rule_u(beta, v, alpha * f.k * p);
    u = beta == 0 ? 0 : mine * f.k;
    return rule_o(f.kq, alpha * f.q * z, mine);
}

/* Decodes columns from `column` on. Returns false if the sequence does not have one token. */
template <class Tile, class Place>
GDN_DEVICE bool token_decode_columns(const struct gdn_cu_token &a, Place &w, int column)
{
    __shared__ struct token_shared<Tile> sh;
    const int i = threadIdx.x;
    const bool has = i < Tile::COLUMNS; /* the thread has a column of v and out */
    const int at = column * (16 / Tile::E) + i % Tile::LANES * 16;
    struct token_gates gates;
    Tile tile;
    float alpha, beta;
    char *const from = token_at(a.from, w.from, w.head) + Tile::row() * a.from_row + at;
#pragma unroll
    for (int n = 0; n < Tile::N; n++) ld_v4(tile.S[n], from + n * a.from_row);
    if (!w.template find<Tile::KC>(a, column)) return false;
    const uint32_t k_bits =
        ld_b32_b16(token_at(a.k, w.row, token_source(w.head, a.group_k)) + i * 2, false, true);
    const uint32_t q_bits =
        ld_b32_b16(token_at(a.q, w.row, token_source(w.head, a.group_q)) + i * 2, false, true);
    token_fetch_gates(gates, a, w);
    const uint32_t value = ld_b32_b16(
        token_at(a.v, w.row, token_source(w.head, a.group_v)) + (column + i) * 2, false, has);
    token_expand_gates<Tile::IO>(alpha, beta, gates, a);
    const float k = token_half<Tile::IO>(k_bits), q = token_half<Tile::IO>(q_bits);
    sh.k[i] = k, sh.q[i] = q;
    const float kk = token_sum<32>(k * k), qq = token_sum<32>(q * q), kq = token_sum<32>(k * q);
    if (i % 32 == 0) *(float4 *)sh.products[i / 32] = make_float4(kk, qq, kq, 0);
    if (__builtin_expect(alpha == 0 || w.fresh(), 0)) token_forget(&tile.S[0][0], Tile::N * 4);
    __syncwarp();
    columns_read(sh.parts[0][i / 32], sh.parts[1][i / 32], tile, sh.k, sh.q);
    __syncthreads();
    if (!w.real()) return false;
    if (has) {
        const float o = token_column(sh.u[i], sh, a, alpha, beta, token_half<Tile::IO>(value));
        if (a.out.data)
            token_store_half<Tile::IO>(token_at(a.out, w.row, w.head) + (column + i) * 2, o);
    }
    if (beta == 0) sh.k[i] = 0;
    __syncthreads();
    if (!token_keeps(a, w)) return true;
    char *const to = token_at(a.to, w.to, w.head) + Tile::row() * a.to_row + at;
    const bool changed = alpha != 1 || beta != 0 || w.fresh();
    if (changed) token_write(tile, sh, alpha);
    if (!changed && to == from) return true;
#pragma unroll
    for (int n = 0; n < Tile::N; n++) token_store(to + n * a.to_row, tile.S[n]);
    return true;
}

/* ---- Kernels --------------------------------------------------------------------------------- */

/* Sets n outputs of padding to zero, from `first` on. Threads are numbered from 0. */
GDN_DEVICE void token_zero(const struct gdn_cu_token &a, const struct token_place &w, int first,
                           int n, int thread, int64_t of_out = 0)
{
    if (a.out.data && !a.keep && thread < n)
        *(uint16_t *)(token_at(a.out, w.row, w.head) + of_out + (first + thread) * 2) = 0;
}

/* Decodes a block. Blocks are numbered by parts of a head, then heads, then sequences, as states
 * lie in memory. */
template <int KC, int dtype, int io> GDN_DEVICE void decode_token_vk(const struct gdn_cu_token &a)
{
    typedef token_rows<KC, dtype, io> Tile;
    const int v = blockIdx.x * Tile::ROWS;
    struct token_place w;
    if (__builtin_expect(token_begin(w, a), 1))
        token_decode_rows<Tile>(a, w, v);
    else
        token_zero(a, w, v, Tile::ROWS, threadIdx.x);
}

template <int KC, int dtype, int io> GDN_DEVICE void decode_token_kv(const struct gdn_cu_token &a)
{
    typedef token_columns<KC, dtype, io> Tile;
    const int column = blockIdx.x * Tile::COLUMNS;
    struct token_place w;
    if (__builtin_expect(token_begin(w, a), 1))
        token_decode_columns<Tile>(a, w, column);
    else
        token_zero(a, w, column, Tile::COLUMNS, threadIdx.x);
}

/* The least blocks of a multiprocessor, found by measurement at K = 128. 0: ptxas chooses the
 * registers. */
#define ONE_BLOCKS_vk(dtype, KC) (KC == 256 ? 12 : GDN_##dtype == GDN_F32 ? 32 : 16)
#define ONE_BLOCKS_kv(dtype, KC) 0

#define DECODE_TOKEN_KERNEL(threads, name, layout, dtype, io, KC)                         \
    extern "C" __global__ void __launch_bounds__(threads, ONE_BLOCKS_##layout(dtype, KC)) \
        name(const __grid_constant__ struct gdn_cu_token a)                               \
    {                                                                                     \
        decode_token_##layout<KC, GDN_##dtype, GDN_##io>(a);                              \
    }

#endif
