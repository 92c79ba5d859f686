/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of one head, 16 value columns of it per warp, as the transposed S^T in registers:
 * 16 x 16 blocks of rows v and columns k. A chunk of tokens is five products of it, none of which
 * needs another form of what the one before gave:
 *
 *     R^T = V^T - from_start S^T K^T        U^T = R^T T^T        O = q_start Q S + P U
 *     S^T <- decay S^T + (to_end U)^T K
 *
 * What is not finite in one token must not reach those before it, but a sum over tokens takes all
 * of them times zero. So R and U enter products with such elements as zeros, and what they would
 * have reached is spoiled afterwards, by masks of tokens, and keys that are forgotten do not enter
 * the last one. That path is taken by warps that need it.
 */
#ifndef GDN_CUDA_PREFILL_STATE_CUH
#define GDN_CUDA_PREFILL_STATE_CUH

#include "cuda/prefill/general_gram.cuh"

/* ---- The state in memory --------------------------------------------------------------------- */

/* A state of one head in a slot: element (v, k) is at data + v v_step + k k_step. */
struct state_place {
    char *data; /* NULL: zeros, or not stored */
    int64_t v_step, k_step;
    int dtype;
};

GDN_DEVICE struct state_place place_of(const struct gdn_pool_view &view, int64_t slot, int64_t head)
{
    struct state_place p = { NULL, 0, 0, view.dtype };
    if (!view.data || slot < 0) return p;
    const int64_t bytes = view.dtype == GDN_F32 ? 4 : 2;
    p.data = view.data + pool_at(view, slot, head) * bytes;
    p.v_step = view.k_first ? bytes : view.ld * bytes;
    p.k_step = view.k_first ? view.ld * bytes : bytes;
    return p;
}

/* Hides from the compiler that S is unchanged. Otherwise it keeps operands of one product for
 * the next one, in scarce registers. All lanes of a warp call it. */
template <int n> GDN_DEVICE void renew(mma_block (&S)[n])
{
#pragma unroll
    for (int i = 0; i < 8 * n; i++) {
        float &e = S[i / 8][i / 4 % 2][i % 4];
        e = __shfl_sync(0xffffffff, e, threadIdx.x % 32);
    }
}

/* The part of a state that a warp has: columns from v on, of keys from k on. Also K and V. */
struct state_part {
    int v, V, K, k;
};

template <int dtype, int n>
GDN_DEVICE void load_blocks(mma_block (&S)[n], const struct state_place &p,
                            const struct state_part &part)
{
    typedef typename gdn_io<dtype>::type element;
#pragma unroll
    for (int x = 0; x < n; x++)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int v = part.v + block_row(i % 4);
            const int k = part.k + 16 * x + block_column(i / 4, i);
            if (v < part.V && k < part.K)
                S[x][i / 4][i % 4] =
                    gdn_io<dtype>::load((const element *)(p.data + v * p.v_step + k * p.k_step));
        }
}

template <int n>
GDN_DEVICE void load_state(mma_block (&S)[n], const struct state_place &p,
                           const struct state_part &part)
{
#pragma unroll
    for (int i = 0; i < 8 * n; i++) S[i / 8][i / 4 % 2][i % 4] = 0;
    if (!p.data) return;
    switch (p.dtype) {
    case GDN_F32: load_blocks<GDN_F32>(S, p, part); break;
    case GDN_BF16: load_blocks<GDN_BF16>(S, p, part); break;
    default: load_blocks<GDN_F16>(S, p, part); break;
    }
}

/* Stores a block, with columns of k from number `k` of the part on. */
GDN_DEVICE void store_block(const mma_block &x, const struct state_place &p,
                            const struct state_part &part, int k)
{
    for (int i = 0; i < 8; i++) {
        const int v = part.v + block_row(i % 4), c = part.k + k + block_column(i / 4, i);
        if (v < part.V && c < part.K)
            store_float(p.data + v * p.v_step + c * p.k_step, 0, p.dtype, x[i / 4][i % 4]);
    }
}

/* ---- Sequences and checkpoints --------------------------------------------------------------- */

/* The next checkpoint of a warp. Number c is the state after `at` tokens, and goes to `slot`. */
struct prefill_cursor {
    int64_t c, at, slot;
};

/* Makes c the next checkpoint. One warp calls it. */
GDN_DEVICE void set_cursor(struct prefill_cursor &cursor, int64_t c, const struct gdn_cu_batch &b,
                           const struct gdn_cu_checkpoints &list)
{
    int64_t at = INT64_MAX, slot = -1;
    if (c < list.end) at = checkpoint_at(b, list, c, slot);
    __syncwarp();
    if (threadIdx.x % 32 == 0) cursor = { c, at, slot };
    __syncwarp();
}

/* ---- What is not finite ---------------------------------------------------------------------- */

/* Masks of the tokens that spoil rows g and g + 8 of the blocks, whose columns are tokens. */
struct spoilt_rows {
    token_mask row[2];
};

/* Replaces values of column block j that are not finite by zeros, and notes them in the masks. */
GDN_DEVICE void take_spoilt(struct spoilt_rows &s, mma_block &x, int j)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float &e = x[i / 4][i % 4];
        if (is_finite(e)) continue;
        s.row[i % 4 / 2] |= (token_mask)1 << (16 * j + block_column(i / 4, i));
        e = 0;
    }
}

/* Shares the masks among the lanes of a row. All lanes of a warp call it. */
GDN_DEVICE void share_spoilt(struct spoilt_rows &s)
{
    for (int step = 1; step < 4; step *= 2)
        for (int r = 0; r < 2; r++) s.row[r] |= __shfl_xor_sync(0xffffffff, s.row[r], step);
}

/* Sets the columns of tokens that depend on a spoilt token to NaN. */
template <int n>
GDN_DEVICE void spoil(mma_block (&x)[n], const struct spoilt_rows &s, token_mask resets)
{
    for (int i = 0; i < 8 * n; i++) {
        const int t = i / 8 * 16 + block_column(i / 4 % 2, i);
        if (s.row[i % 4 / 2] & tokens_seen(resets, t))
            x[i / 8][i / 4 % 2][i % 4] = __int_as_float(0x7fffffff);
    }
}

/* Does the same for row block i of a transposed matrix, in which rows are tokens. All lanes of a
 * warp call it. */
GDN_DEVICE void spoil_turned(mma_block &x, int i, const struct spoilt_rows &s, token_mask resets)
{
#pragma unroll
    for (int c = 0; c < 4; c++) {
        const int h = c / 2, lane = (threadIdx.x % 4 * 2 + c % 2) * 4;
        const token_mask tokens = __shfl_sync(0xffffffff, s.row[h], lane);
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (tokens & tokens_seen(resets, 16 * i + block_row(2 * r)))
                x[h][2 * r + c % 2] = __int_as_float(0x7fffffff);
    }
}

/* ---- One chunk ------------------------------------------------------------------------------- */

/* The tiles of a chunk at the lane's places, and the products of a warp with them. packed: T and P
 * are as in portable/record.cuh. */
template <int io, int deep, bool packed = false> struct chunk_work {
    typedef mma_tiles<io> tiles;
    typedef typename tiles::operand operand;
    static constexpr int chunk = GDN_PREFILL_CHUNK(tiles::bytes, deep), blocks = chunk / 16;
    static constexpr int k_row = GDN_PREFILL_ROW(deep, tiles::bytes);
    static constexpr int t_row = GDN_PREFILL_ROW(chunk, tiles::bytes);
    typedef mma_block state[deep / 16];
    typedef mma_block tokens[blocks]; /* one column block each, or row block */
    typedef operand operands[blocks];

    uint32_t k, k_turned, q, t, p; /* addresses of this lane */
    uint32_t v_turned;             /* ... in the warp's columns */
    int v_row;
    char *out; /* the place of the output: the same columns, in rows as long as those of V */
    const chunk_vectors<chunk> *vectors;

    template <int n>
    __device__ __forceinline__ void add_keys(mma_block (&x)[n], const operand &s, int y,
                                             int first) const;
    template <int n>
    __device__ __forceinline__ void finish_r(operand (&r)[n], mma_block (&x)[n], int first) const;
    __device__ __forceinline__ bool make_r(operands &r, const state &S) const;
    __device__ __forceinline__ struct spoilt_rows mend_r(operands &r) const;
    __device__ __forceinline__ struct spoilt_rows mend_u(operands &u) const;
    __device__ __forceinline__ void make_u(tokens &U, const operands &r) const;
    __device__ __forceinline__ void add_queries(tokens &o, const operand &s, int x) const;
    __device__ __forceinline__ void finish_o(tokens &o, const operands &u,
                                             const struct spoilt_rows *spoilt) const;
    __device__ __forceinline__ void make_o(const state &S, const operands &u,
                                           const struct spoilt_rows *spoilt) const;
    __device__ __forceinline__ void weigh_u(operands &w, const tokens &U, int n) const;
    template <bool mends, int n>
    __device__ __forceinline__ void update(mma_block (&S)[n], const operands &w) const;
    template <int n_blocks>
    __device__ __forceinline__ void leave(const mma_block (&S)[n_blocks], const tokens &U, int n,
                                          const struct state_place &to,
                                          const struct state_part &part) const;

    /* Returns the address of row block j and column block x of a tile, at the lane's place. */
    static __device__ __forceinline__ uint32_t at(uint32_t tile, int row, int j, int x)
    {
        return tile + 16 * j * row + 16 * x * tiles::bytes;
    }
    /* Returns that of block (i, j) of T or P. */
    static __device__ __forceinline__ uint32_t in_square(uint32_t square, int i, int j)
    {
        return packed ? square + 512 * (i * (i + 1) / 2 + j) : at(square, t_row, i, j);
    }
};

template <int n> GDN_DEVICE void clear_blocks(mma_block (&x)[n])
{
#pragma unroll
    for (int i = 0; i < 8 * n; i++) x[i / 8][i / 4 % 2][i % 4] = 0;
}

/* Adds S^T K^T over column block y of keys, which s has, for n row blocks of tokens from `first`
 * on. */
template <int io, int deep, bool packed>
template <int n>
__device__ __forceinline__ void
chunk_work<io, deep, packed>::add_keys(mma_block (&x)[n], const operand &s, int y, int first) const
{
    operand m;
#pragma unroll
    for (int j = 0; j < n; j++) {
        tiles::load(m, at(k, k_row, first + j, y), k_row);
        tiles::multiply(x[j], s, m);
    }
}

/* Computes R^T of these tokens from S^T K^T. */
template <int io, int deep, bool packed>
template <int n>
__device__ __forceinline__ void
chunk_work<io, deep, packed>::finish_r(operand (&r)[n], mma_block (&x)[n], int first) const
{
    operand m;
#pragma unroll
    for (int j = 0; j < n; j++) {
        mma_block v;
        tiles::load_turned(m, at(v_turned, v_row, first + j, 0), v_row);
        tiles::unpack(v, m);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float2 f =
                *(const float2 *)(vectors->from_start + 16 * (first + j) + block_column(h, 0));
#pragma unroll
            for (int e = 0; e < 4; e++)
                x[j][h][e] = fmaf(-(e % 2 ? f.y : f.x), x[j][h][e], v[h][e]);
        }
        tiles::pack(r[j], x[j]);
    }
}

/* Returns true if all of the operands is finite. All lanes of a warp call it. Each operand is
 * collected apart, because a sum of all would be a long chain. */
template <class tiles, int n> GDN_DEVICE bool are_finite(const typename tiles::operand (&x)[n])
{
    bool tainted = false;
#pragma unroll
    for (int j = 0; j < n; j++) {
        typename tiles::taint taint = 0;
        tiles::collect(taint, x[j]);
        tainted |= tiles::is_tainted(taint);
    }
    return !__any_sync(0xffffffff, tainted);
}

/* Computes R^T. Returns true if all of it is finite. */
template <int io, int deep, bool packed>
__device__ __forceinline__ bool chunk_work<io, deep, packed>::make_r(operands &r,
                                                                     const state &S) const
{
    tokens x;
    operand s;
    clear_blocks(x);
#pragma unroll
    for (int y = 0; y < deep / 16; y++) {
        tiles::pack(s, S[y]);
        add_keys(x, s, y, 0);
    }
    finish_r(r, x, 0);
    return are_finite<tiles>(r);
}

/* Returns R^T with zeros for values that are not finite. For tokens after one that forgets it is
 * V^T, whatever S holds. */
template <int io, int deep, bool packed>
__device__ __forceinline__ struct spoilt_rows
chunk_work<io, deep, packed>::mend_r(operands &r) const {
    const token_mask resets = tokens_of(vectors->resets), dead = tokens_of(vectors->dead);
    struct spoilt_rows s = { { 0, 0 } };
    operand m;
#pragma unroll
    for (int j = 0; j < blocks; j++) {
        mma_block v, x;
        tiles::load_turned(m, at(v_turned, v_row, j, 0), v_row);
        tiles::unpack(v, m);
        tiles::unpack(x, r[j]);
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (are_parted(resets, -1, 16 * j + block_column(i / 4, i)))
                x[i / 4][i % 4] = v[i / 4][i % 4];
        take_spoilt(s, x, j);
        tiles::pack(r[j], x);
    }
    share_spoilt(s);
    for (int i = 0; i < 2; i++) s.row[i] |= dead;
    return s;
}

/* Returns u^T. */
template <int io, int deep, bool packed>
__device__ __forceinline__ void chunk_work<io, deep, packed>::make_u(tokens &U,
                                                                     const operands &r) const
{
    operand m;
    clear_blocks(U);
#pragma unroll
    for (int j = 0; j < blocks; j++)
#pragma unroll
        for (int i = j; i < blocks; i++) {
            tiles::load(m, in_square(t, i, j), t_row);
            tiles::multiply(U[i], r[j], m);
        }
}

/* Returns U^T with zeros for values that are not finite. */
template <int io, int deep, bool packed>
__device__ __forceinline__ struct spoilt_rows
chunk_work<io, deep, packed>::mend_u(operands &u) const {
    struct spoilt_rows s = { { 0, 0 } };
#pragma unroll
    for (int j = 0; j < blocks; j++) {
        mma_block x;
        tiles::unpack(x, u[j]);
        take_spoilt(s, x, j);
        tiles::pack(u[j], x);
    }
    share_spoilt(s);
    return s;
}

/* Adds Q S over column block x of queries, which s has. */
template <int io, int deep, bool packed>
__device__ __forceinline__ void
chunk_work<io, deep, packed>::add_queries(tokens &o, const operand &s, int x) const
{
    operand m;
#pragma unroll
    for (int i = 0; i < blocks; i++) {
        tiles::load(m, at(q, k_row, i, x), k_row);
        tiles::multiply(o[i], m, s);
    }
}

/* Writes the output of the chunk to its place. o is Q S, u is U^T. spoilt NULL: all values were
 * finite. */
template <int io, int deep, bool packed>
__device__ __forceinline__ void
chunk_work<io, deep, packed>::finish_o(tokens &o, const operands &u,
                                       const struct spoilt_rows *spoilt) const
{
    operand m;
#pragma unroll
    for (int i = 0; i < blocks; i++) {
#pragma unroll
        for (int e = 0; e < 8; e++) {
            float &y = o[i][e / 4][e % 4];
            const float f = vectors->q_start[16 * i + block_row(e % 4)];
            y = spoilt && f == 0 ? 0 : f * y;
        }
#pragma unroll
        for (int j = 0; j <= i; j++) {
            tiles::load(m, in_square(p, i, j), t_row);
            tiles::multiply(o[i], m, u[j]);
        }
        if (spoilt) spoil_turned(o[i], i, *spoilt, tokens_of(vectors->resets));
#pragma unroll
        for (int e = 0; e < 8; e += 2)
            tiles::store_pair(out + (16 * i + block_row(e % 4)) * v_row +
                                  block_column(e / 4, 0) * tiles::bytes,
                              o[i][e / 4][e % 4], o[i][e / 4][e % 4 + 1]);
    }
}

template <int io, int deep, bool packed>
__device__ __forceinline__ void
chunk_work<io, deep, packed>::make_o(const state &S, const operands &u,
                                     const struct spoilt_rows *spoilt) const
{
    tokens o;
    operand s;
    clear_blocks(o);
#pragma unroll
    for (int x = 0; x < deep / 16; x++) {
        tiles::pack(s, S[x]);
        add_queries(o, s, x);
    }
    finish_o(o, u, spoilt);
}

/* Return how the first n tokens of a chunk end, as write_gates() has it for all of them: the factor
 * of u of token t in the state after them, and that of the state before them. */
template <int chunk> GDN_DEVICE float end_factor(const chunk_vectors<chunk> &v, int t, int n)
{
    if (t >= n || are_parted(tokens_of(v.resets), t, n - 1)) return 0;
    return ex2_approx(v.G[n - 1] - v.G[t]) * v.k_scale[t];
}
template <int chunk> GDN_DEVICE float end_decay(const chunk_vectors<chunk> &v, int n)
{
    return are_parted(tokens_of(v.resets), -1, n - 1) ? 0 : ex2_approx(v.G[n - 1]);
}

/* Returns (to_end U)^T for the state after the first n tokens. n = 0: after the whole chunk. */
template <int io, int deep, bool packed>
__device__ __forceinline__ void chunk_work<io, deep, packed>::weigh_u(operands &w, const tokens &U,
                                                                      int n) const
{
#pragma unroll
    for (int j = 0; j < blocks; j++) {
        mma_block x;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int y = 16 * j + block_column(h, 0);
            float2 f;
            if (n == 0)
                f = *(const float2 *)(vectors->to_end + y);
            else
                f = make_float2(end_factor(*vectors, y, n), end_factor(*vectors, y + 1, n));
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float factor = e % 2 ? f.y : f.x;
                x[h][e] = factor == 0 ? 0 : factor * U[j][h][e];
            }
        }
        tiles::pack(w[j], x);
    }
}

/* Multiplies S by the decay. A decay of 0 selects zeros (G7). */
GDN_DEVICE void decay_block(mma_block &S, float decay)
{
#pragma unroll
    for (int i = 0; i < 8; i++) S[i / 4][i % 4] = decay == 0 ? 0 : decay * S[i / 4][i % 4];
}

/* Returns S after the chunk. mends: leaves out keys that are forgotten, which may not be finite. */
template <int io, int deep, bool packed>
template <bool mends, int n>
__device__ __forceinline__ void chunk_work<io, deep, packed>::update(mma_block (&S)[n],
                                                                     const operands &w) const
{
    operand m;
    const float decay = vectors->decay;
    const int first = mends ? first_seen(tokens_of(vectors->resets), chunk - 1) : 0;
    if (decay == 1 && !tokens_of(vectors->writers)) return; /* keeps every bit (G9) */
#pragma unroll
    for (int x = 0; x < n; x++) decay_block(S[x], decay);
#pragma unroll
    for (int j = 0; j < blocks; j++)
#pragma unroll
        for (int x = 0; x < n; x++) {
            tiles::load_turned(m, at(k_turned, k_row, j, x), k_row);
            if (mends) tiles::keep_columns(m, first - 16 * j, 16);
            tiles::multiply(S[x], w[j], m);
        }
}

/* Returns the state after the first n tokens of the chunk, with the bits of a call that ends
 * there. */
template <int io, int deep, bool packed>
template <int n_blocks>
__device__ __forceinline__ void
chunk_work<io, deep, packed>::leave(const mma_block (&S)[n_blocks], const tokens &U, int n,
                                    const struct state_place &to,
                                    const struct state_part &part) const
{
    operands w;
    operand m;
    const float decay = end_decay(*vectors, n);
    const int first = first_seen(tokens_of(vectors->resets), n - 1);
    const bool idle = decay == 1 && !(tokens_of(vectors->writers) & tokens_below(n));
    weigh_u(w, U, n);
#pragma unroll
    for (int x = 0; x < n_blocks; x++) {
        mma_block after;
#pragma unroll
        for (int i = 0; i < 8; i++) after[i / 4][i % 4] = S[x][i / 4][i % 4];
        if (!idle) {
            decay_block(after, decay);
#pragma unroll
            for (int j = 0; j < blocks; j++) {
                tiles::load_turned(m, at(k_turned, k_row, j, x), k_row);
                tiles::keep_columns(m, first - 16 * j, n - 16 * j);
                tiles::multiply(after, w[j], m);
            }
        }
        store_block(after, to, part, 16 * x);
    }
}

/* ---- Output ---------------------------------------------------------------------------------- */

/* Copies `bytes`, at most 16, from shared memory to memory. wide: the bytes that may move at
 * once. */
GDN_DEVICE void copy_out(char *to, const char *from, int bytes, int wide)
{
    if (wide == 16 && bytes == 16) {
        *(uint4 *)to = *(const uint4 *)from;
        return;
    }
    const bool words = wide >= 4 && bytes % 4 == 0;
    for (int i = 0; words && i < bytes; i += 4)
        *(uint32_t *)(to + i) = *(const uint32_t *)(from + i);
    for (int i = 0; !words && i < bytes; i += 2)
        *(uint16_t *)(to + i) = *(const uint16_t *)(from + i);
}

#endif
