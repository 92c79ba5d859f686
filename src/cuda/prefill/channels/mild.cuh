/* SPDX-License-Identifier: Apache-2.0 */
/*
 * L and P of chunks whose gates are mild: 16 of them have a product of at least 2^-100 in each
 * channel, none is above 1, and keys and queries have lengths between 2^-10 and 2^10. Then 32
 * tokens have one reference, their middle m: with D_mi the product of gates from m + 1 to i,
 *
 *     i, j > m     D_ij = D_mi / D_mj
 *     i, j <= m    D_ij = D_jm / D_im
 *     j <= m < i   D_ij = D_jm D_mi
 *
 * So each token has one factor as a row and one as a column, which its group of 16 and the other
 * one share. If i has the second reference and j the first, the product of gates between the two
 * goes to the column. No factor is above 2^100, which bf16 has; f16 has not. A product of two
 * factors is lost only if it is below 2^-26: a factor below 2^-126 meets one of at most 2^100.
 *
 * Keys, queries and gates come to shared memory as they are, and a warp replaces its own: keys and
 * queries by rows, gates by the factors and then by columns. So little is in registers, and the
 * code is loops: three blocks are on a multiprocessor. A token's columns lie by halves of the
 * channels: 64 for the own reference, and the same 64 for the next one.
 */
#ifndef GDN_CUDA_PREFILL_CHANNELS_MILD_CUH
#define GDN_CUDA_PREFILL_CHANNELS_MILD_CUH

#include "cuda/prefill/channels/maker.cuh"

/* ---- Loads ----------------------------------------------------------------------------------- */

/* Checks that rows can be copied in pieces of 16 bytes. */
GDN_DEVICE bool has_pieces(const struct gdn_rows &rows)
{
    const uint64_t all = (uint64_t)(uintptr_t)rows.data | (uint64_t)rows.batch |
                         (uint64_t)rows.token | (uint64_t)rows.head;
    return all % 16 == 0;
}

/* Returns the lane's two gates of the warp's first token. */
template <int io, int deep, bool own_e>
__device__ __forceinline__ float2 *chunk_maker<io, deep, own_e>::gates() const
{
    return (float2 *)(sh.mild.columns + 16 * group * shared::column + half * 256) + lane;
}

/* Begins to copy the warp's part of rows; zeros where there are none. */
template <int io, int deep, bool own_e>
__device__ __forceinline__ void
chunk_maker<io, deep, own_e>::begin_rows_of(char *to, const struct gdn_rows &rows,
                                            int n_heads) const
{
    const int piece = lane % 8 * 8, first = lane / 8, column = 64 * half + piece;
    const char *at =
        row_at(rows, sh.chunk.seq, sh.chunk.t0 + token(first), source_head(r, head, n_heads)) +
        2 * column;
    const int count = rows.data && column < r.K ? (int)sh.chunk.n - token(0) : 0;
    uint32_t place = shared_address(to) + token(first) * shared::row + 2 * column;
#pragma unroll
    for (int t = first; t < 16 + first; t += 4, place += 4 * shared::row, at += 4 * rows.token)
        copy_async<16>(place, t < count ? at : (const char *)rows.data, t < count ? 16 : 0);
}

template <int io, int deep, bool own_e>
__device__ __forceinline__ void chunk_maker<io, deep, own_e>::begin_mild() const
{
    begin_rows_of(sh.mild.rows[0], r.k, r.Hk);
    begin_rows_of(sh.mild.rows[1], r.q.data ? r.q : r.k, r.q.data ? r.Hq : r.Hk);
    begin_gates(gates(), shared::column / 8);
    copy_commit();
}

/* Returns true if keys, queries and gates can be copied as they lie. */
template <int io, int deep, bool own_e>
__device__ __forceinline__ bool chunk_maker<io, deep, own_e>::can_be_mild() const
{
    const int bytes = r.g.dtype == GDN_F32 ? 4 : 2;
    const uint64_t g = (uint64_t)(uintptr_t)r.g.data | (uint64_t)r.g.batch | (uint64_t)r.g.token |
                       (uint64_t)r.g.head;
    return r.g.data && r.family.g_channel == bytes && g % (2 * bytes) == 0 && r.K % 8 == 0 &&
           has_pieces(r.k) && has_pieces(r.q);
}

/* ---- Factors --------------------------------------------------------------------------------- */

/* Replaces gates by the products from each token to the reference, or from that to the token.
 * Returns true if they are mild. */
template <int io, int deep, bool own_e>
__device__ __forceinline__ bool chunk_maker<io, deep, own_e>::relate_gates()
{
    const bool before = group % 2 == 0, linear = r.gate == GDN_GATE_LINEAR;
    constexpr int step = shared::column / 8;
    float2 *const own = gates();
    expand_gates(own, step, true);
    float2 f = make_float2(1, 1);
    float least = 1, most = 1;
#pragma unroll 4
    for (int i = 0; i < 16; i++) {
        const int t = before ? 15 - i : i;
        const float2 g = own[step * t], last = f;
        float2 a = make_float2(1, 1);
        if (t < n) a = linear ? g : make_float2(gate_factor(g.x), gate_factor(g.y));
        f = make_float2(f.x * a.x, f.y * a.y);
        own[step * t] = before ? last : f;
        least = fminf(least, fminf(a.x, a.y)), most = fmaxf(most, fmaxf(a.x, a.y));
    }
    *(float2 *)&sh.total[group][channel] = f;
    if (least == 0) sh.factors.forgets = 1;
    if (least != 1 || most != 1 || !(f.x == 1) || !(f.y == 1)) sh.factors.busy = BUSY; /* or NaN */
    return most == 1 && f.x >= MILD_LEAST && f.y >= MILD_LEAST;
}

/* Computes the diagonals of K K^T, Q Q^T and Q K^T, over the warp's channels. */
template <int io, int deep, bool own_e>
__device__ __forceinline__ void chunk_maker<io, deep, own_e>::measure_mild()
{
    const uint32_t at = shared_address(sh.mild.rows[0]) + token(0) * shared::row + 128 * half +
                        tiles::lane(shared::row);
    mma_block sum[3] = {};
#pragma unroll
    for (int y = 0; y < 4; y++) {
        typename tiles::operand k, q;
        tiles::load(k, at + 32 * y, shared::row);
        tiles::load(q, at + 32 * y + CHUNK * shared::row, shared::row);
        tiles::multiply(sum[0], k, k);
        tiles::multiply(sum[1], q, q);
        tiles::multiply(sum[2], q, k);
    }
    keep_diagonals(sum);
}

GDN_DEVICE void load_four(float (&to)[4], const float *from)
{
    const float4 x = *(const float4 *)from;
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
}

/* Replaces keys and queries by rows, and the factors by columns, and stores K~, Q~ and K^. */
template <int io, int deep, bool own_e>
__device__ __forceinline__ void chunk_maker<io, deep, own_e>::put_mild()
{
    enum { MATRIX = CHUNK * deep * 2 };
    const bool before = group % 2 == 0;
    const int reference = group + before;
    char *const to = record + half * TILE + 16 * group * 128;
    char *const rows = sh.mild.rows[0] + token(0) * shared::row + 2 * channel;
    const float2 start = total(0, reference), end = total(reference, GROUPS), next = total(1, 3);
#pragma unroll 1
    for (int first = 0; first < 16; first += 4) {
        float l[4], p[4], column[4];
        load_four(l, sh.scales.l + token(first));
        load_four(p, sh.scales.p + token(first));
        load_four(column, sh.scales.column + token(first));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int t = first + i;
            float2 *const gate = gates() + t * (shared::column / 8);
            uint32_t *const key = (uint32_t *)(rows + t * shared::row);
            uint32_t *const query = key + CHUNK * shared::row / 4;
            uint32_t *const col = (uint32_t *)(gate - lane) + lane;
            char *const at = to + tile_place(t, 2 * lane);
            const float2 s = *gate, inverse = make_float2(rcp_approx(s.x), rcp_approx(s.y));
            const float2 x = before ? inverse : s, y = before ? s : inverse;
            const uint32_t k = *key, q = *query, word = pairs::pair(x.x, x.y);
            const float2 f = make_float2(x.x * start.x, x.y * start.y);
            const float2 g = make_float2(y.x * end.x, y.y * end.y);
            *key = pairs::times(k, word);
            *query = pairs::times(q, word);
            __syncwarp(); /* all factors of the token have been read */
            col[0] = pairs::times(k, pairs::pair(y.x, y.y));
            if (group < 2) col[32] = pairs::times(k, pairs::pair(y.x * next.x, y.y * next.y));
            *(uint32_t *)at = scale_word<pairs>(k, f.x * l[i], f.y * l[i]);
            *(uint32_t *)(at + MATRIX) = scale_word<pairs>(q, f.x * p[i], f.y * p[i]);
            *(uint32_t *)(at + 2 * MATRIX) = scale_word<pairs>(k, g.x * column[i], g.y * column[i]);
        }
    }
}

/* ---- Products -------------------------------------------------------------------------------- */

/* A block of L or of P, 16 x 16. */
struct mild_block {
    bool is_p;
    int i, j; /* blocks of rows and of columns */
    __device__ __forceinline__ mild_block(int unit)
    {
        is_p = unit >= 10;
        const int n = is_p ? unit - 10 : unit;
        i = (n >= 1) + (n >= 3) + (n >= 6);
        j = n - i * (i + 1) / 2;
    }
};

/* Computes L and P. A warp has up to three blocks, four warps have up to five. The sums wait in
 * registers, because their places are those of the factors. */
template <int io, int deep, bool own_e>
__device__ __forceinline__ void chunk_maker<io, deep, own_e>::multiply_mild()
{
    enum { UNITS = 20, WARPS = GROUPS * shared::halves, EACH = (UNITS + WARPS - 1) / WARPS };
    mma_block sum[EACH] = {};
    __syncthreads();
#pragma unroll
    for (int n = 0; n < EACH; n++) {
        const int unit = warp + n * WARPS;
        if (unit >= UNITS) break;
        const mild_block b(unit);
        const int next = b.i >= 2 && b.j < 2 ? 128 : 0;
        const uint32_t left = shared_address(sh.mild.rows[b.is_p]) + 16 * b.i * shared::row +
                              tiles::lane(shared::row);
        const uint32_t right = shared_address(sh.mild.columns) + 16 * b.j * shared::column + next +
                               tiles::lane(shared::column);
#pragma unroll
        for (int y = 0; y < deep; y += 16) {
            typename tiles::operand q, k;
            tiles::load(q, left + 2 * y, shared::row);
            tiles::load(k, right + y / 64 * 256 + y % 64 * 2, shared::column);
            tiles::multiply(sum[n], q, k);
        }
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < EACH; n++) {
        const int unit = warp + n * WARPS;
        if (unit >= UNITS) break;
        const mild_block b(unit);
#pragma unroll
        for (int m = 0; m < 8; m += 2) {
            const int i = 16 * b.i + block_row(m % 4), j = 16 * b.j + block_column(m / 4, 0);
            put_sums(b.is_p, i, j, sum[n][m / 4][m % 4], sum[n][m / 4][m % 4 + 1]);
        }
    }
}

/* Makes L and P, and stores K~, Q~ and K^, if the chunk is mild. Returns false if it is not. */
template <int io, int deep, bool own_e>
__device__ __forceinline__ bool chunk_maker<io, deep, own_e>::make_mild()
{
    begin_mild();
    load_betas();
    copy_wait<0>();
    __syncwarp();
    measure_mild();
    bool is_mild = relate_gates();
    __syncthreads();
    is_mild &= scale_tokens();
    if (__syncthreads_or(!is_mild)) return false;
    put_mild();
    multiply_mild();
    return true;
}

#endif
