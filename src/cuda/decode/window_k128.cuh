/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Up to four tokens of each sequence, or more in windows of four, k, q, v and out of one dtype of
 * 16 bits: the trip to memory of token.cuh with the algebra of window.cuh. What tokens read of each
 * other is always a product of tensor cores; what they read and write of the state is what takes
 * least:
 *
 *   rows      states of float32 whose rows are v, as token.cuh has them: each token's raw k and
 *             q come from shared memory and meet the state as it was before all of them, and a lane
 *             is left with one token of one row. So there is one trip through the recurrence,
 *             whatever T is; then the tokens are written one by one, and states kept between them.
 *             Tensor cores would need two terms of every element, which costs as much as the sums
 *             of two tokens, and warps of twice the rows. States of 16 bits that are all kept are
 *             gone through in the same way, in float32 from the first token to the last. More than
 *             four tokens, if every state of float32 is kept, the state in registers between
 *             windows.
 *   products  states of bf16 whose rows are v: all of window.cuh
 *   columns   states of bf16 whose rows are k, 64 columns a block, 32 rows a warp. Two rows'
 *             elements of a column lie side by side in a word, as products need them. The rest is
 *             as above, with sums over warps.
 */
#ifndef GDN_CUDA_DECODE_FOUR_CUH
#define GDN_CUDA_DECODE_FOUR_CUH

#include "cuda/decode/window.cuh"
#include "cuda/decode/token.cuh"

enum { FOUR_K = 128, FOUR_COLUMNS = 64, FOUR_WARPS = FOUR_K / 32 /* of columns */ };

/* ---- Tokens --------------------------------------------------------------------------------- */

/* Returns the address of token t of a head. */
GDN_DEVICE char *four_at(const struct gdn_cu_at &r, int row, int head, int token, int t)
{
    return token_at(r, row, head) + (int64_t)t * token;
}

/* The loads of lane (g, t): its words of column g of X; the gates of token t; v of token t for N
 * rows. */
template <int WORDS, int N> struct four_raw {
    uint32_t x[WORDS], v[N];
    struct token_gates gates;
};

/* Loads the inputs of a window. at: where the warp's part of k and q begins, in bytes. own: the
 * lane's first row; its next rows are `step` apart. */
template <int WORDS, int N>
GDN_DEVICE void four_fetch(struct four_raw<WORDS, N> &raw, const struct gdn_cu_window_k128 &a,
                           const struct token_place &w, int at, int own, int step)
{
    const struct gdn_cu_token &o = a.one;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const bool there = t < a.T;
    const int now = there ? t : 0; /* an absent token is not used */
    const char *x = g & 1 ? four_at(o.q, w.row, token_source(w.head, o.group_q), a.q_token, g / 2)
                          : four_at(o.k, w.row, token_source(w.head, o.group_k), a.k_token, g / 2);
    const char *v = four_at(o.v, w.row, token_source(w.head, o.group_v), a.v_token, now) + own * 2;
#pragma unroll
    for (int i = 0; i < WORDS; i += 4) {
        uint32_t y[4];
        ld_keep_v4(y, x + at + t * 16 + i * 16, g / 2 < a.T);
        for (int j = 0; j < 4; j++) raw.x[i + j] = y[j];
    }
    raw.gates.g = ld_4_or_2(four_at(o.g, w.row, w.head, a.g_token, now), o.g_bytes);
    raw.gates.beta = ld_4_or_2(four_at(o.beta, w.row, w.head, a.beta_token, now), o.beta_bytes);
    raw.gates.A_log = token_bits(o.A_log, 0, w.head, o.A_log_bytes);
    raw.gates.dt_bias = token_bits(o.dt_bias, 0, w.head, o.dt_bias_bytes);
#pragma unroll
    for (int n = 0; n < N; n++) raw.v[n] = ld_b32_b16(v + n * step * 2, false, there);
}

/* Computes from the loads what needs no state. An absent token changes nothing. */
template <int io, int WORDS, int N>
GDN_DEVICE void four_expand(struct mma_lane<N> &r, const struct four_raw<WORDS, N> &raw,
                            const struct gdn_cu_window_k128 &a)
{
    token_expand_gates<io>(r.alpha, r.beta, raw.gates, a.one);
    if ((int)threadIdx.x % 4 >= a.T) r.alpha = 1, r.beta = 0;
    for (int n = 0; n < N; n++) r.v[n] = token_half<io>(raw.v[n]), r.u[n] = 0;
}

/* Returns the factors of a token's raw k and q. G: X^T X. */
GDN_DEVICE struct token_factors four_factors(const float (&G)[4], const struct gdn_cu_token &a)
{
    const int t = threadIdx.x % 4;
    const float kk = __shfl_sync(0xffffffff, G[0], 9 * t);
    const float qq = __shfl_sync(0xffffffff, G[1], 9 * t + 4);
    return token_factors_of(kk, qq, 0, a);
}

template <int io, int N>
GDN_DEVICE void four_out(const struct mma_lane<N> &r, const struct gdn_cu_window_k128 &a,
                         const struct token_place &w, int own, int step)
{
    const int t = threadIdx.x % 4;
    if (!a.one.out.data || t >= a.T) return;
    char *const out = four_at(a.one.out, w.row, w.head, a.out_token, t) + own * 2;
    for (int n = 0; n < N; n++) token_store_half<io>(out + n * step * 2, r.o[n]);
}

/* Returns true if the tokens change the state. */
template <int N> GDN_DEVICE bool four_changes(const struct mma_lane<N> &r)
{
    return __any_sync(0xffffffff, r.alpha != 1 || r.beta != 0);
}

/* ---- Rows of float32 ------------------------------------------------------------------------ */

/* A tile of eight rows as they are computed. In memory they may have 16 bits, so a lane has 16
 * bytes of a row. A warp then has two such tiles, which are as many bytes as one of float32. */
template <int memory, int io> struct four_lines : token_rows<FOUR_K, GDN_F32, io> {
    typedef token_rows<FOUR_K, GDN_F32, io> base;
    enum {
        MEMORY = memory,
        TILES = memory == GDN_F32 ? 1 : 2,
        NEXT_LANE = 16 / (memory == GDN_F32 ? 4 : 2),   /* keys from a lane's first to that of the
                                                           next lane */
        NEXT = memory == GDN_F32 ? 4 * base::LANES : 4, /* keys from a lane's four to its next
                                                           four */
    };

    /* Takes the token from another tile. */
    __device__ __forceinline__ void share(const four_lines &from)
    {
        for (int i = 0; i < base::C * base::E; i++) {
            this->k[i / 4][i % 4] = from.k[i / 4][i % 4];
            this->q[i / 4][i % 4] = from.q[i / 4][i % 4];
        }
    }
};

template <int memory, int io>
GDN_DEVICE void token_load(four_lines<memory, io> &tile, const char *at, int64_t row)
{
    typedef four_lines<memory, io> Tile;
    if constexpr (memory == GDN_F32) {
        token_load<typename Tile::base>(tile, at, row);
    } else {
        uint32_t x[Tile::N][4];
#pragma unroll
        for (int n = 0; n < Tile::N; n++) ld_v4(x[n], at + n * Tile::STEP * row);
#pragma unroll
        for (int i = 0; i < Tile::N * 8; i++)
            tile.S[i / 8][i / 4 % 2][i % 4] =
                __float_as_uint(token_element<memory>(x[i / 8][i / 2 % 4], i));
    }
}

template <int memory, int io>
GDN_DEVICE void token_store(const four_lines<memory, io> &tile, char *at, int64_t row)
{
    typedef four_lines<memory, io> Tile;
    if constexpr (memory == GDN_F32) {
        token_store<typename Tile::base>(tile, at, row);
    } else {
#pragma unroll
        for (int n = 0; n < Tile::N; n++) {
            float y[8];
            uint32_t x[4];
            for (int i = 0; i < 8; i++) y[i] = __uint_as_float(tile.S[n][i / 4][i % 4]);
            token_piece<memory>::set(x, y);
            token_store(at + n * Tile::STEP * row, x);
        }
    }
}

/* Copies bits (G9). */
template <class Tile>
GDN_DEVICE void four_copy(char *to, int64_t to_row, const char *from, int64_t from_row)
{
    enum { PIECES = Tile::MEMORY == GDN_F32 ? Tile::C : 1 };
#pragma unroll 1
    for (int i = 0; i < Tile::N * PIECES; i++) {
        const int n = i / PIECES * Tile::STEP, at = i % PIECES * Tile::LANES * 16;
        *(uint4 *)(to + n * to_row + at) = *(const uint4 *)(from + n * from_row + at);
    }
}

/* X in shared memory. Columns are padded, so that lanes of two columns store to different banks. */
struct four_shared {
    alignas(16) uint16_t x[2 * MMA_TOKENS][FOUR_K + 32];
};

template <int WORDS> GDN_DEVICE void four_share(struct four_shared &sh, const uint32_t (&x)[WORDS])
{
    const int lane = threadIdx.x;
#pragma unroll
    for (int i = 0; i < WORDS; i += 4)
        *(uint4 *)&sh.x[lane / 4][lane % 4 * 8 + 8 * i] =
            make_uint4(x[i], x[i + 1], x[i + 2], x[i + 3]);
    __syncwarp();
}

/* Stores the lane's elements of a column of X. */
template <class Tile>
GDN_DEVICE void four_take(float (&x)[Tile::C][Tile::E], const struct four_shared &sh, int column)
{
#pragma unroll
    for (int c = 0; c < Tile::C; c++) {
        uint32_t y[2];
        lds_v2(y, &sh.x[column][threadIdx.x % Tile::LANES * Tile::NEXT_LANE + c * Tile::NEXT]);
        for (int e = 0; e < 4; e++) x[c][e] = token_element<Tile::IO>(y[e / 2], e);
    }
}

/* Returns the slot of the state after the lane's token; negative: none. */
GDN_DEVICE int four_slot(const struct gdn_cu_window_k128 &a, const struct token_place &w)
{
    const int t = threadIdx.x % 4;
    if (!a.one.to.data || t >= a.T) return -1;
    if (!a.each) return t == a.T - 1 && token_keeps(a.one, w) ? w.to : -1;
    if (t >= a.n_writes) return -1;
    const int slot = a.one.write_slots[w.row * a.one.write_step + t * a.write_token];
    return slot >= a.one.first_slot && slot < a.one.write_pool ? slot : -1;
}

/* Stores all rows of a warp, from the lane's first one on. */
template <class Tile>
GDN_DEVICE void four_leave(const Tile (&tiles)[Tile::TILES], bool changed, char *to, int64_t to_row,
                           const char *from, int64_t from_row)
{
#pragma unroll
    for (int h = 0; h < Tile::TILES; h++) {
        const int first = h * Tile::ROWS;
        if (changed)
            token_store(tiles[h], to + first * to_row, to_row);
        else if (to != from)
            four_copy<Tile>(to + first * to_row, to_row, from + first * from_row, from_row);
    }
}

/* Applies n tokens to the state, and stores states that are kept. Returns true if the state has
 * changed. */
template <class Tile>
GDN_DEVICE bool four_write(Tile (&tiles)[Tile::TILES], const struct four_shared &sh,
                           const struct mma_lane<Tile::TILES> &r,
                           const struct gdn_cu_window_k128 &a, const struct token_place &w, int n,
                           int slot, int row, int at, const char *from, bool changed = false)
{
#pragma unroll 1
    for (int t = 0; t < n; t++) {
        const float alpha = __shfl_sync(0xffffffff, r.alpha, t);
        const float beta = __shfl_sync(0xffffffff, r.beta, t);
        const int to = __shfl_sync(0xffffffff, slot, t);
        if (alpha != 1 || beta != 0) {
            Tile &first = tiles[0];
            changed = true;
            four_take<Tile>(first.k, sh, 2 * t);
            if (__builtin_expect(beta == 0, 0)) token_forget(&first.k[0][0], Tile::C * Tile::E);
#pragma unroll
            for (int h = 0; h < Tile::TILES; h++) {
                if (h) tiles[h].share(first);
                if (__builtin_expect(alpha == 0, 0))
                    token_forget(&tiles[h].S[0][0][0], Tile::N * Tile::C * 4);
                token_write(tiles[h], alpha, r.u[h], t);
            }
        }
        if (to >= 0)
            four_leave(tiles, changed, token_at(a.one.to, to, w.head) + row * a.one.to_row + at,
                       a.one.to_row, from, a.one.from_row);
    }
    return changed;
}

/* Computes what token i reads of the state before the window. The lanes of token i get it. */
template <class Tile>
GDN_DEVICE void four_reads(Tile (&tiles)[Tile::TILES], struct mma_lane<Tile::TILES> &r,
                           const struct four_shared &sh, int i, const struct token_factors &f)
{
    four_take<Tile>(tiles[0].k, sh, 2 * i);
    four_take<Tile>(tiles[0].q, sh, 2 * i + 1);
#pragma unroll
    for (int h = 0; h < Tile::TILES; h++) {
        float p, z;
        if (h) tiles[h].share(tiles[0]);
        token_read(p, z, tiles[h]);
        if ((int)threadIdx.x % 4 == i) r.s[h] = p * f.k, r.z[h] = z * f.q;
    }
}

/* Decodes rows from v on. */
template <class Tile>
GDN_DEVICE void four_rows(const struct gdn_cu_window_k128 &a, const struct token_place &w, int v)
{
    enum { LANES = Tile::LANES, IO = Tile::IO, TILES = Tile::TILES };
    static_assert(LANES / Tile::N == MMA_TOKENS, "a token for each lane that is left with a row");
    __shared__ struct four_shared sh;
    const int lane = threadIdx.x, own = v + token_own<Tile>();
    const int row = v + lane / LANES, at = lane % LANES * 16;
    float G[4] = {};
    struct four_raw<FOUR_K / 8, TILES> raw;
    struct mma_lane<TILES> r;
    Tile tiles[TILES];
    char *const from = token_at(a.one.from, w.from, w.head) + row * a.one.from_row + at;
#pragma unroll
    for (int h = 0; h < TILES; h++)
        token_load(tiles[h], from + h * Tile::ROWS * a.one.from_row, a.one.from_row);
    four_fetch(raw, a, w, 0, own, Tile::ROWS);
    const int slot = four_slot(a, w);
    four_share(sh, raw.x);
    mma_lengths<IO>(G, raw.x);
    const struct token_factors f = four_factors(G, a.one);
    four_expand<IO>(r, raw, a);
    for (int h = 0; h < TILES; h++) r.s[h] = r.z[h] = 0;
#pragma unroll 1
    for (int i = 0; i < a.T; i++) four_reads(tiles, r, sh, i, f);
    mma_recur(r, G, f.k, f.q, a.T, true);
    four_out<IO>(r, a, w, own, Tile::ROWS);
    four_write(tiles, sh, r, a, w, a.T, slot, row, at, from);
}

/* Returns the call without the tokens before `first`. */
GDN_DEVICE struct gdn_cu_window_k128 four_from(const struct gdn_cu_window_k128 &a, int first)
{
    struct gdn_cu_window_k128 b = a;
    b.one.k.data += (int64_t)first * a.k_token;
    b.one.q.data += (int64_t)first * a.q_token;
    b.one.v.data += (int64_t)first * a.v_token;
    b.one.g.data += (int64_t)first * a.g_token;
    b.one.beta.data += (int64_t)first * a.beta_token;
    if (a.one.out.data) b.one.out.data += (int64_t)first * a.out_token;
    b.one.write_slots += (int64_t)first * a.write_token;
    b.n_writes -= first;
    b.T -= first;
    return b;
}

/* Decodes rows from v on of more than four tokens, in windows of four, as four_rows() does. The
 * loads of a window begin while the one before it is computed. */
template <class Tile>
GDN_DEVICE void four_many(const struct gdn_cu_window_k128 &all, const struct token_place &w, int v)
{
    enum { LANES = Tile::LANES, IO = Tile::IO };
    __shared__ struct four_shared sh;
    const int lane = threadIdx.x, own = v + token_own<Tile>();
    const int row = v + lane / LANES, at = lane % LANES * 16;
    struct four_raw<FOUR_K / 8, 1> raw;
    struct mma_lane<1> r;
    Tile tiles[1];
    bool changed = false;
    char *const from = token_at(all.one.from, w.from, w.head) + row * all.one.from_row + at;
    token_load(tiles[0], from, all.one.from_row);
    four_fetch(raw, all, w, 0, own, Tile::ROWS);
#pragma unroll 1
    for (int first = 0; first < all.T; first += MMA_TOKENS) {
        const struct gdn_cu_window_k128 a = four_from(all, first);
        const int n = min(a.T, (int)MMA_TOKENS), slot = four_slot(a, w);
        float G[4] = {};
        four_share(sh, raw.x);
        mma_lengths<IO>(G, raw.x);
        const struct token_factors f = four_factors(G, a.one);
        four_expand<IO>(r, raw, a);
        if (a.T > n) four_fetch(raw, four_from(all, first + MMA_TOKENS), w, 0, own, Tile::ROWS);
        r.s[0] = r.z[0] = 0;
#pragma unroll 1
        for (int i = 0; i < n; i++) four_reads(tiles, r, sh, i, f);
        mma_recur(r, G, f.k, f.q, n, true);
        four_out<IO>(r, a, w, own, Tile::ROWS);
        changed = four_write(tiles, sh, r, a, w, n, slot, row, at, from, changed);
        __syncwarp(); /* sh has been read */
    }
}

/* ---- Products ------------------------------------------------------------------------------- */

/* Decodes rows v to v + 15. */
GDN_DEVICE void four_products(const struct gdn_cu_window_k128 &a, const struct token_place &w,
                              int v)
{
    typedef mma_tile<FOUR_K, GDN_BF16> Tile;
    enum { BYTES = FOUR_K * 2 };
    const int lane = threadIdx.x, own = v + lane / 4, at = lane % 4 * 16;
    float D[4] = {}, G[4] = {};
    struct four_raw<Tile::PAIRS, 2> raw;
    struct mma_lane<2> r;
    Tile tile;
    char *const from = token_at(a.one.from, w.from, w.head) + own * a.one.from_row + at;
    mma_load(tile, from, a.one.from_row, BYTES, true);
    four_fetch(raw, a, w, 0, own, 8);
    mma_lengths(G, raw.x);
    four_expand<GDN_BF16>(r, raw, a);
    const struct token_factors f = four_factors(G, a.one);
    tile.read(D, raw.x);
    for (int h = 0; h < 2; h++) r.s[h] = D[2 * h] * f.k, r.z[h] = D[2 * h + 1] * f.q;
    mma_recur(r, G, f.k, f.q, a.T);
    four_out<GDN_BF16>(r, a, w, own, 8);
    if (!token_keeps(a.one, w)) return;
    char *const to = token_at(a.one.to, w.to, w.head) + own * a.one.to_row + at;
    const bool changed = four_changes(r);
    if (changed) mma_turn(raw.x), mma_update(tile, raw.x, r.u, r.total, r.beta != 0);
    if (changed || to != from) mma_store(tile, to, a.one.to_row, BYTES);
}

/* ---- Columns -------------------------------------------------------------------------------- */

/* A tile of columns. Lane (g, t) has columns 8 g to 8 g + 7 of the warp's rows 8 t to 8 t + 7. A
 * word of columns 2 j and 2 j + 1 has a pair of rows. */
struct four_tile {
    uint32_t S[4][2][4];
};

/* parts: S X of each warp, for columns 2 j and 2 j + 1 of all lanes. products: X^T X. u: for the
 * final state. */
struct four_parts {
    float4 parts[FOUR_WARPS][4][32];
    float2 products[FOUR_WARPS][32], u[4][32];
};

/* Return a word of the lower halves, or the higher halves, of a and b. */
GDN_DEVICE uint32_t low_halves(uint32_t a, uint32_t b) { return (a & 0xffff) | b << 16; }
GDN_DEVICE uint32_t high_halves(uint32_t a, uint32_t b) { return a >> 16 | (b & 0xffff0000); }

/* Fills the tile from rows of k and q in the dtype of memory. */
GDN_DEVICE void four_turn(struct four_tile &tile, const uint32_t (&x)[8][4])
{
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int r = i / 4, c = i % 4;
        tile.S[c][0][r] = low_halves(x[2 * r][c], x[2 * r + 1][c]);
        tile.S[c][1][r] = high_halves(x[2 * r][c], x[2 * r + 1][c]);
    }
}

GDN_DEVICE void four_store(const struct four_tile &tile, char *to, int64_t row)
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
        uint32_t y[4];
        for (int c = 0; c < 4; c++)
            y[c] = n % 2 ? high_halves(tile.S[c][0][n / 2], tile.S[c][1][n / 2])
                         : low_halves(tile.S[c][0][n / 2], tile.S[c][1][n / 2]);
        token_store(to + n * row, y);
    }
}

/* Computes the warp's part of S X and of X^T X. */
GDN_DEVICE void four_read(struct four_parts &sh, const struct four_tile &tile,
                          const uint32_t (&x)[4])
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float G[4] = {};
    mma_lengths(G, x);
    sh.products[warp][lane] = make_float2(G[0], G[1]);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float D[4] = {};
#pragma unroll
        for (int p = 0; p < 4; p += 2) {
            const uint32_t y[4] = { tile.S[j][0][p], tile.S[j][1][p], tile.S[j][0][p + 1],
                                    tile.S[j][1][p + 1] };
            mma_bf16(D, y, x[p], x[p + 1]);
        }
        sh.parts[warp][j][lane] = make_float4(D[0], D[1], D[2], D[3]);
    }
}

/* Computes the tokens for columns 2 j and 2 j + 1 of the warps' lanes. j: the number of the
 * warp. */
GDN_DEVICE void four_rule(struct four_parts &sh, struct mma_lane<2> &r,
                          const struct gdn_cu_window_k128 &a)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float D[4] = {}, G[4] = {};
#pragma unroll
    for (int i = 0; i < FOUR_WARPS; i++) {
        const float4 part = sh.parts[i][warp][lane];
        const float2 products = sh.products[i][lane];
        D[0] += part.x, D[1] += part.y, D[2] += part.z, D[3] += part.w;
        G[0] += products.x, G[1] += products.y;
    }
    const struct token_factors f = four_factors(G, a.one);
    for (int h = 0; h < 2; h++) r.s[h] = D[2 * h] * f.k, r.z[h] = D[2 * h + 1] * f.q;
    mma_recur(r, G, f.k, f.q, a.T);
    sh.u[warp][lane] = make_float2(r.u[0], r.u[1]);
}

/* Computes S <- total S + k u^T, without the k of tokens that are not `used`. */
GDN_DEVICE void four_update(struct four_tile &tile, const struct four_parts &sh, uint32_t (&x)[4],
                            float total, bool used)
{
    const uint32_t shift = used ? 1 << 16 : 0;
    for (int p = 0; p < 4; p++) x[p] = turn_matrix(x[p]) * shift;
    if (__builtin_expect(total == 0, 0)) token_forget(&tile.S[0][0][0], 32);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float2 u = sh.u[j][threadIdx.x % 32];
        const uint32_t y[4] = { tf32_high(u.x), tf32_high(u.y), tf32_rest(u.x), tf32_rest(u.y) };
#pragma unroll
        for (int p = 0; p < 4; p++) {
            float c[4];
            for (int i = 0; i < 4; i++)
                c[i] = token_element<GDN_BF16>(tile.S[j][i / 2][p], i) * total;
            mma_tf32(c, y, x[p], x[p]);
            for (int h = 0; h < 2; h++) tile.S[j][h][p] = f32_to_bf16x2(c[2 * h], c[2 * h + 1]);
        }
    }
}

/* Decodes columns from `column` on. */
GDN_DEVICE void four_columns(const struct gdn_cu_window_k128 &a, const struct token_place &w,
                             int column)
{
    static_assert(FOUR_WARPS == 4, "a warp's columns in the recurrence");
    __shared__ struct four_parts sh;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = column + lane / 4 * 8;
    const int row = warp * 32 + lane % 4 * 8, own = first + 2 * warp;
    uint32_t S[8][4];
    struct four_raw<4, 2> raw;
    struct mma_lane<2> r;
    struct four_tile tile;
    char *const from = token_at(a.one.from, w.from, w.head) + row * a.one.from_row + first * 2;
#pragma unroll
    for (int n = 0; n < 8; n++) ld_v4(S[n], from + n * a.one.from_row);
    four_fetch(raw, a, w, warp * 64, own, 1);
    four_expand<GDN_BF16>(r, raw, a);
    four_turn(tile, S);
    four_read(sh, tile, raw.x);
    __syncthreads();
    four_rule(sh, r, a);
    four_out<GDN_BF16>(r, a, w, own, 1);
    __syncthreads();
    if (!token_keeps(a.one, w)) return;
    char *const to = token_at(a.one.to, w.to, w.head) + row * a.one.to_row + first * 2;
    const bool changed = four_changes(r);
    if (changed) four_update(tile, sh, raw.x, r.total, r.beta != 0);
    if (changed || to != from) four_store(tile, to, a.one.to_row);
}

/* ---- Kernels -------------------------------------------------------------------------------- */

/* Finds the block's place. Returns false for padding. */
GDN_DEVICE bool four_begin(struct token_place &w, const struct gdn_cu_window_k128 &a)
{
    const struct gdn_cu_token &o = a.one;
    w.head = blockIdx.y;
    w.row = w.from = w.to = blockIdx.z;
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    if (__builtin_expect(!o.read_slots, 1)) return true;
    int token = 0;
    if (a.accepted) token = min(max(a.accepted[w.row * a.accepted_step], 1), a.n_reads) - 1;
    w.from = w.to = o.read_slots[w.row * o.read_step + token * a.read_token];
    if (o.write_slots && !a.each) w.to = o.write_slots[w.row * o.write_step];
    return w.from >= o.first_slot && w.from < o.read_pool && (a.each || w.to < o.write_pool);
}

/* Sets n outputs of padding to zero, from `first` on. */
GDN_DEVICE void four_zero(const struct gdn_cu_window_k128 &a, const struct token_place &w,
                          int first, int n)
{
    if (!a.one.out.data || a.one.keep) return;
    for (int i = threadIdx.x; i < a.T * n; i += blockDim.x)
        *(uint16_t *)(four_at(a.one.out, w.row, w.head, a.out_token, i / n) + (first + i % n) * 2) =
            0;
}

/* Decodes n value columns in a block. Blocks are numbered by parts of a head, then heads, then
 * sequences, as states lie in memory. */
template <int n, void (*decode)(const struct gdn_cu_window_k128 &, const struct token_place &, int)>
GDN_DEVICE void four_block(const struct gdn_cu_window_k128 &a)
{
    const int first = blockIdx.x * n;
    struct token_place w;
    if (__builtin_expect(four_begin(w, a), 1))
        decode(a, w, first);
    else
        four_zero(a, w, first, n);
}

template <int dtype, int io>
GDN_DEVICE void decode_window_k128_each(const struct gdn_cu_window_k128 &a)
{
    typedef four_lines<dtype, io> Tile;
    four_block<Tile::TILES * Tile::ROWS, four_rows<Tile>>(a);
}

template <int dtype, int io>
GDN_DEVICE void decode_window_k128_many(const struct gdn_cu_window_k128 &a)
{
    typedef four_lines<dtype, io> Tile;
    four_block<Tile::ROWS, four_many<Tile>>(a);
}

template <int dtype, int io>
GDN_DEVICE void decode_window_k128_vk(const struct gdn_cu_window_k128 &a)
{
    if constexpr (dtype == GDN_F32)
        decode_window_k128_each<dtype, io>(a);
    else
        four_block<MMA_ROWS, four_products>(a);
}

template <int dtype, int io>
GDN_DEVICE void decode_window_k128_kv(const struct gdn_cu_window_k128 &a)
{
    four_block<FOUR_COLUMNS, four_columns>(a);
}

/* The least blocks of a multiprocessor, found by measurement. */
#define FOUR_BLOCKS_vk(dtype) (GDN_##dtype == GDN_F32 ? 24 : 20)
#define FOUR_BLOCKS_each(dtype) 16
#define FOUR_BLOCKS_many(dtype) 16
#define FOUR_BLOCKS_kv(dtype) 6

#define DECODE_WINDOW_K128_KERNEL(threads, name, layout, dtype, io, K)                 \
    extern "C" __global__ void __launch_bounds__(threads, FOUR_BLOCKS_##layout(dtype)) \
        name(const __grid_constant__ struct gdn_cu_window_k128 a)                      \
    {                                                                                  \
        static_assert(K == FOUR_K, "as the code is written");                          \
        decode_window_k128_##layout<GDN_##dtype, GDN_##io>(a);                         \
    }

#endif
