/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Up to four tokens at a time, by tensor cores, a warp for each 16 rows of a state whose rows are
 * v. With the tokens' k and q as eight columns X = [k0 q0 k1 q1 k2 q2 k3 q3], raw as they lie in
 * memory, everything that touches K elements is a product:
 *
 *     S X        what the tokens read of the state before them
 *     X^T X      what they read of each other, and their lengths on its diagonal
 *     S + U k^T  the state after them
 *
 * Between these, token i is four numbers per row: lane t of the four that share a row does token t.
 * It follows its own reading S k_t, S q_t of the state through the tokens before it,
 *
 *     s_t <- alpha_i s_t;   u_i = beta_i (v_i - s_i);   s_t <- s_t + (k_i . k_t) u_i
 *
 * and the same with q, which is the recurrence itself, seen through k_t and q_t.
 *
 * The operands of products are exact where they are of bf16. A state of float32, and u, are two
 * terms of tf32, of 22 bits together. Sums are of float32. A warp's instructions are nearly as many
 * for one token as for four, so four take the time of reading and writing the state.
 *
 * Lane (g, t) = (lane / 4, lane % 4) has pieces of rows g and g + 8, and the same ones of column g
 * of X. The order of K in products is the order of what lanes have, so nothing is shuffled. The
 * columns of k are turned by movmatrix, whose result has tokens by lane t.
 */
#ifndef GDN_CUDA_DECODE_MMA_CUH
#define GDN_CUDA_DECODE_MMA_CUH

#include "cuda/decode/warp_batch.cuh"
#include "cuda/device/ptx_mma.cuh"

enum { MMA_TOKENS = 4, MMA_ROWS = 16 };

/* Return the first 11 bits of x, and the rest of x. */
GDN_DEVICE uint32_t tf32_high(float x) { return __float_as_uint(x) & 0xffffe000; }
GDN_DEVICE uint32_t tf32_rest(float x)
{
    return __float_as_uint(x - __uint_as_float(tf32_high(x)));
}

/* ---- 16 rows of a state, as they lie in memory: words of rows g and g + 8 -------------------- */

/* A tile. Pair p is two elements of a row. Word p of the lane's column of X has the same two
 * elements of K. */
template <int KC, int dtype> struct mma_tile;

template <int KC> struct mma_tile<KC, GDN_BF16> {
    enum { PAIRS = KC / 8, WORDS = PAIRS, PIECE = 8 };
    uint32_t S[2][WORDS];

    /* Computes D += S X. */
    __device__ __forceinline__ void read(float (&D)[4], const uint32_t (&x)[PAIRS]) const
    {
#pragma unroll
        for (int p = 0; p < PAIRS; p += 2) {
            const uint32_t a[4] = { S[0][p], S[1][p], S[0][p + 1], S[1][p + 1] };
            mma_bf16(D, a, x[p], x[p + 1]);
        }
    }
    /* Returns pair p of both rows. */
    __device__ __forceinline__ void get(float (&c)[4], int p) const
    {
        for (int h = 0; h < 2; h++) {
            c[2 * h] = __uint_as_float(S[h][p] << 16);
            c[2 * h + 1] = __uint_as_float(S[h][p] & 0xffff0000);
        }
    }
    __device__ __forceinline__ void set(const float (&c)[4], int p)
    {
        for (int h = 0; h < 2; h++) S[h][p] = f32_to_bf16x2(c[2 * h], c[2 * h + 1]);
    }
};

template <int KC> struct mma_tile<KC, GDN_F32> {
    enum { PAIRS = KC / 8, WORDS = 2 * PAIRS, PIECE = 4 };
    uint32_t S[2][WORDS];

    __device__ __forceinline__ void read(float (&D)[4], const uint32_t (&x)[PAIRS]) const
    {
        float rest[4] = {};
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            const float s[4] = { __uint_as_float(S[0][2 * p]), __uint_as_float(S[1][2 * p]),
                                 __uint_as_float(S[0][2 * p + 1]),
                                 __uint_as_float(S[1][2 * p + 1]) };
            const uint32_t b0 = x[p] << 16, b1 = x[p] & 0xffff0000;
            uint32_t high[4], low[4];
            for (int i = 0; i < 4; i++) high[i] = tf32_high(s[i]), low[i] = tf32_rest(s[i]);
            mma_tf32(D, high, b0, b1);
            mma_tf32(rest, low, b0, b1);
        }
        for (int i = 0; i < 4; i++) D[i] += rest[i];
    }
    __device__ __forceinline__ void get(float (&c)[4], int p) const
    {
        for (int i = 0; i < 4; i++) c[i] = __uint_as_float(S[i / 2][2 * p + i % 2]);
    }
    __device__ __forceinline__ void set(const float (&c)[4], int p)
    {
        for (int i = 0; i < 4; i++) S[i / 2][2 * p + i % 2] = __float_as_uint(c[i]);
    }
};

/* Loads X. bytes: of a row, a multiple of 64. The rest of a row is zero and stays zero. */
template <class Tile>
GDN_DEVICE void mma_load(Tile &tile, const char *first, int row, int bytes, bool given)
{
#pragma unroll
    for (int i = 0; i < 2 * Tile::WORDS / 4; i++) {
        const int h = i % 2, n = i / 2;
        uint32_t x[4];
        ld_once_v4(x, first + 8 * h * row + 64 * n, given && 64 * n < bytes);
        for (int j = 0; j < 4; j++) tile.S[h][4 * n + j] = x[j];
    }
}

template <class Tile> GDN_DEVICE void mma_store(const Tile &tile, char *first, int row, int bytes)
{
#pragma unroll
    for (int i = 0; i < 2 * Tile::WORDS / 4; i++) {
        const uint32_t *x = tile.S[i % 2] + i / 2 * 4;
        if (64 * (i / 2) >= bytes) break;
        *(uint4 *)(first + 8 * (i % 2) * row + 64 * (i / 2)) = make_uint4(x[0], x[1], x[2], x[3]);
    }
}

/* ---- Tokens --------------------------------------------------------------------------------- */

/* The part of token t in a lane, for the lane's rows. s, z: what t reads of the state by k and by
 * q. o: its output. u: its u for the final state. total: the product of all tokens' alphas. */
template <int ROWS> struct mma_lane {
    float s[ROWS], z[ROWS], o[ROWS], u[ROWS], v[ROWS];
    float alpha, beta, total;
};
/* Rows g and g + 8. */
struct mma_rows : mma_lane<2> {
};

/* A lane's column g of X, and v. */
template <class Tile>
GDN_DEVICE void mma_fetch(uint32_t (&column)[Tile::PAIRS], struct mma_rows &r,
                          const struct gdn_cu_warp &a, const struct warp_seq &s, int head, int v)
{
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const bool there = t < s.T;
    const char *x = (g & 1 ? warp_row(a.q, s, g / 2, by(head, a.group_q))
                           : warp_row(a.k, s, g / 2, by(head, a.group_k))) +
                    t * 2 * Tile::PIECE;
#pragma unroll
    for (int i = 0; i < Tile::PAIRS * 2 / Tile::PIECE; i++) {
        uint32_t y[4];
        if (Tile::PIECE == 8)
            ld_keep_v4(y, x + 64 * i, g / 2 < s.T);
        else
            ld_keep_v2(y, x + 32 * i, g / 2 < s.T);
        for (int j = 0; j < Tile::PIECE / 2; j++) column[Tile::PIECE / 2 * i + j] = y[j];
    }
    const char *values = warp_row(a.v, s, t, by(head, a.group_v)) + 2 * v;
    for (int h = 0; h < 2; h++)
        r.v[h] = __uint_as_float(ld_b32_b16(values + 16 * h, false, there) << 16);
}

/* Computes G = X^T X: row g, and the columns k_t and q_t of it. */
template <int dtype = GDN_BF16, int PAIRS>
GDN_DEVICE void mma_lengths(float (&G)[4], const uint32_t (&x)[PAIRS])
{
#pragma unroll
    for (int p = 0; p < PAIRS; p += 2) {
        const uint32_t a[4] = { x[p], 0, x[p + 1], 0 };
        if (dtype == GDN_BF16)
            mma_bf16(G, a, x[p], x[p + 1]);
        else
            mma_f16(G, a, x[p], x[p + 1]);
    }
}

/* Returns alpha x. If alpha is 0 it returns 0 (G7). */
GDN_DEVICE float faded(float x, float alpha) { return alpha == 0 ? 0 : alpha * x; }

/* Computes the recurrence. each: the caller wants the u of every token as it was at that token.
 * Without it a forgotten token has u = 0 at the end, because its k must not be used. */
template <int ROWS>
GDN_DEVICE void mma_recur(struct mma_lane<ROWS> &r, const float (&G)[4], float k, float q, int T,
                          bool each = false)
{
    const int lane = threadIdx.x % 32, t = lane % 4;
    r.total = 1;
#pragma unroll 1
    for (int i = 0; i < T; i++) {
        const float alpha_i = __shfl_sync(0xffffffff, r.alpha, i);
        const float kk = __shfl_sync(0xffffffff, G[0], 8 * i + t) * k;
        const float kq = __shfl_sync(0xffffffff, G[1], 8 * i + t) * q;
        r.total = faded(r.total, alpha_i);
        if (!each && alpha_i == 0 && t < i) r.beta = 0;
#pragma unroll
        for (int h = 0; h < ROWS; h++) {
            r.s[h] = faded(r.s[h], alpha_i);
            r.z[h] = faded(r.z[h], alpha_i);
            if (!each) r.u[h] = faded(r.u[h], alpha_i);
            const float mine = r.beta == 0 ? 0 : r.beta * (r.v[h] - r.s[h]) * k;
            const float u = __shfl_sync(0xffffffff, mine, (lane & 28) | i);
            if (u != 0) {
                r.s[h] = fmaf(kk, u, r.s[h]);
                r.z[h] = fmaf(kq, u, r.z[h]);
            }
            if (t == i) r.o[h] = r.z[h], r.u[h] = mine;
        }
    }
}

/* Transposes X for mma_update(): k of the lane's token comes into the lower halves. */
template <int PAIRS> GDN_DEVICE void mma_turn(uint32_t (&x)[PAIRS])
{
#pragma unroll
    for (int p = 0; p < PAIRS; p++) x[p] = turn_matrix(x[p]);
}

/* Computes S <- total S + U k^T, without the k of tokens that are not `used`. */
template <class Tile>
GDN_DEVICE void mma_update(Tile &tile, const uint32_t (&x)[Tile::PAIRS], const float (&u)[2],
                           float total, bool used)
{
    const uint32_t a[4] = { tf32_high(u[0]), tf32_high(u[1]), tf32_rest(u[0]), tf32_rest(u[1]) };
    const uint32_t shift = used ? 1 << 16 : 0;
    if (total == 0) {
#pragma unroll
        for (int i = 0; i < 2 * Tile::WORDS; i++) tile.S[i % 2][i / 2] = 0;
    }
#pragma unroll
    for (int p = 0; p < Tile::PAIRS; p++) {
        const uint32_t b = x[p] * shift;
        float c[4];
        tile.get(c, p);
        for (int i = 0; i < 4; i++) c[i] *= total;
        mma_tf32(c, a, b, b);
        tile.set(c, p);
    }
}

/* Finds the factors of token t's raw k and q. */
GDN_DEVICE void mma_factors(float &k, float &q, const float (&G)[4], const struct gdn_cu_warp &a)
{
    const int lane = threadIdx.x % 32, t = lane % 4;
    const float length = inverse_length(lane & 4 ? G[1] : G[0], a.norm, a.norm_eps);
    k = __shfl_sync(0xffffffff, length, 9 * t);
    q = __shfl_sync(0xffffffff, length, 9 * t + 4) * a.scale;
}

/* Computes r.o, r.u and r.total of the tokens from r.v and their gates. */
template <class Tile>
GDN_DEVICE void mma_rule(struct mma_rows &r, const Tile &tile, const uint32_t (&x)[Tile::PAIRS],
                         const struct gdn_cu_warp &a, int T, bool each = false)
{
    float D[4] = {}, G[4] = {}, k, q;
    mma_lengths(G, x);
    mma_factors(k, q, G, a);
    tile.read(D, x);
    for (int h = 0; h < 2; h++) r.s[h] = D[2 * h] * k, r.z[h] = D[2 * h + 1] * q, r.u[h] = 0;
    mma_recur(r, G, k, q, T, each);
}

/* Returns the address of row v of a head's state in a slot, from the lane's first element on. */
GDN_DEVICE char *mma_row(const struct gdn_cu_pool &p, int slot, int head, int v)
{
    return warp_state(p, slot, head) + v * p.row + threadIdx.x % 4 * 16;
}

/* Stores the state after the tokens, if it is wanted. */
template <class Tile>
GDN_DEVICE void mma_leave(Tile &tile, uint32_t (&x)[Tile::PAIRS], const struct mma_rows &r,
                          const struct gdn_cu_warp &a, const struct warp_seq &s, int head, int v,
                          int bytes, bool given)
{
    if (!a.to.data || s.write < 0) return;
    const bool there = (int)threadIdx.x % 4 < s.T;
    char *const from = mma_row(a.from, s.read, head, v), *const to =
                                                             mma_row(a.to, s.write, head, v);
    const bool changed = __any_sync(0xffffffff, there && (r.alpha != 1 || r.beta != 0));
    if (changed) mma_turn(x), mma_update(tile, x, r.u, r.total, r.beta != 0);
    if (changed || !given || to != from) mma_store(tile, to, a.to.row, bytes);
}

/* Returns the tokens of s after the first `done`, as a sequence. */
GDN_DEVICE struct warp_seq window_of(const struct warp_seq &s, int done)
{
    struct warp_seq w = s;
    w.first = s.first + done;
    w.T = s.T - done < MMA_TOKENS ? s.T - done : MMA_TOKENS;
    return w;
}

/* Decodes rows v to v + 15 of one head of a sequence of at most MMA_TOKENS. */
template <int KC, int dtype>
GDN_DEVICE void mma_decode(const struct gdn_cu_warp &a, const struct warp_seq &s, int head, int v)
{
    typedef mma_tile<KC, dtype> Tile;
    const int bytes = KC * float_bytes(dtype), t = threadIdx.x % 4;
    const bool there = t < s.T, given = a.from.data && s.read >= 0;
    uint32_t x[Tile::PAIRS];
    struct warp_gates gates;
    struct mma_rows r;
    Tile tile;
    v += threadIdx.x % 32 / 4;
    mma_load(tile, mma_row(a.from, s.read, head, v), a.from.row, bytes, given);
    mma_fetch<Tile>(x, r, a, s, head, v);
    warp_fetch_gates(gates, a, s, head, t);
    warp_expand_gates(r.alpha, r.beta, gates, a, there);
    mma_rule(r, tile, x, a, s.T);
    if (a.out.data && there) {
        char *const out = warp_row(a.out, s, t, head);
        for (int h = 0; h < 2; h++) store_float(out, v + 8 * h, a.out.dtype, r.o[h]);
    }
    mma_leave(tile, x, r, a, s, head, v, bytes, given);
}

#endif
