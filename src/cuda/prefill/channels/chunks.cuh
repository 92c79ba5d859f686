/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a chunk of 64 tokens needs before the state comes into it, where each key channel has a gate
 * of its own. With a the gates, D_ij = prod of a from j + 1 to i in each channel, D_i that from the
 * start and D^i that to the end of the chunk, e = b k:
 *
 *     L_ij = sum_k e_ik k_jk D_ijk, j < i        T = (I + L)^-1
 *     P_ij = sum_k q_ik k_jk D_ijk, j <= i       K~_i = e_i D_i    Q~_i = q_i D_i    K^_i = k_i D^i
 *
 * A quotient of products does not exist where a gate is 0, and overflows where it is small. So D_ij
 * is always a product of two factors of at most 1. Split 2 s tokens in the middle m: if
 * j < m <= i, D_ij is prod of a from m to i, a factor of row i, times prod from j + 1 to m - 1, one
 * of column j. One product of matrices gives that block for all channels; the same happens inside
 * each half, until tokens are alone (levels s = 32, 16, .. 1).
 *
 * A block takes a chunk and a state head. A warp has 16 tokens and 64 channels, a lane two of the
 * channels, in registers: keys and queries as words of two elements, gates as floats. Levels of up
 * to 8 tokens are the warp's own. Numbers of a token, such as its beta and 1 / length, are factors
 * of rows or columns of sums; in f16 keys and queries have length one themselves, since what is
 * tiny has no digits there.
 *
 * A kernel whose code runs straight on waits for instructions. What is not in registers is in
 * loops: gates, which pass through shared memory, and inputs of rare forms.
 */
#ifndef GDN_CUDA_PREFILL_CHANNELS_CHUNKS_CUH
#define GDN_CUDA_PREFILL_CHANNELS_CHUNKS_CUH

#include "cuda/prefill/channels/maker.cuh"

/* ---- Factors of a level, as rows of tiles --------------------------------------------------- */

GDN_DEVICE float2 times(float2 f, const float (&a)[2])
{
    return make_float2(f.x * a[0], f.y * a[1]);
}

/* Puts token t as row e f into one tile, and q f into another, at the lane's place. */
template <int io, int deep>
__device__ __forceinline__ void chunk_maker<io, deep>::put_row(int t, char *k, char *q,
                                                               float2 f) const
{
    const uint32_t word = pairs::pair(f.x, f.y);
    *(uint32_t *)k = pairs::times(x.e[t], word);
    *(uint32_t *)q = pairs::times(x.q[t], word);
}

/* ---- Levels inside 16 tokens ---------------------------------------------------------------- */

/* Level s has blocks of 2 s tokens, s rows by s columns. put_level_rows() puts eight rows of e,
 * then eight of q. put_level_columns() puts eight columns, as rows too. */
template <int io, int deep>
template <int s>
__device__ __forceinline__ void chunk_maker<io, deep>::put_level_rows(char *rows) const
{
    char *const own = rows + 4 * lane;
#pragma unroll
    for (int from = 0; from < 16; from += 2 * s) {
        float2 f = make_float2(1, 1);
#pragma unroll
        for (int i = 0; i < s; i++) {
            char *const at = own + (from / 2 + i) * STAGE_ROW;
            f = times(f, x.a[from + s + i]);
            put_row(from + s + i, at, at + 8 * STAGE_ROW, f);
        }
    }
}
template <int io, int deep>
template <int s>
__device__ __forceinline__ void chunk_maker<io, deep>::put_level_columns(char *rows) const
{
    char *const own = rows + 4 * lane;
#pragma unroll
    for (int from = 0; from < 16; from += 2 * s) {
        float2 f = make_float2(1, 1);
#pragma unroll
        for (int j = s - 1; j >= 0; j--) { /* k f; f of the last column is 1 */
            const uint32_t k = x.k[from + j];
            *(uint32_t *)(own + (from / 2 + j) * STAGE_ROW) =
                j == s - 1 ? k : pairs::times(k, pairs::pair(f.x, f.y));
            f = times(f, x.a[from + j]);
        }
    }
}

template <int io, int deep>
template <int s>
__device__ __forceinline__ void chunk_maker<io, deep>::own_level()
{
    const char *const rows = sh.own[warp];
    put_level_rows<s>(sh.own[warp]);
    put_level_columns<s>(sh.own[warp] + 16 * STAGE_ROW);
    __syncwarp();
    const uint32_t left = shared_address(rows) + tiles::lane(STAGE_ROW);
    const uint32_t right = shared_address(rows) + (16 + lane % 8) * STAGE_ROW + lane / 8 * 16;
    float sum[4] = {};
#pragma unroll
    for (int y = 0; y < 64; y += 32) {
        typename tiles::operand first, second;
        uint32_t columns[4];
        tiles::load(first, left + 2 * y, STAGE_ROW);
        tiles::load(second, left + 2 * y + 32, STAGE_ROW);
        load_matrices(columns, right + 2 * y);
        pairs::mma(sum, first.x, columns[0], columns[1]);
        pairs::mma(sum, second.x, columns[2], columns[3]);
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int i = lane / 4, j = lane % 4 * 2 + e % 2;
        if (i / s != j / s) continue;
        sh.parts[half][group][e / 2][(i + i / s * s + s) * PART_LD + j + j / s * s] = sum[e];
    }
    __syncwarp();
}

/* Adds up the halves of the channels: the blocks on the diagonals of L and P. Zeros go beside
 * these. */
template <int io, int deep> __device__ __forceinline__ void chunk_maker<io, deep>::join_diagonal()
{
#pragma unroll 1
    for (int n = threadIdx.x; n < CHUNK * 8; n += blockDim.x) {
        const int row = n / 8, i = row % 16, j = n % 8 * 2, column = row - i + j;
        const float l = sh.scales.l[row], p = sh.scales.p[row];
        float to[2][2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float sum[2] = {};
            for (int h = 0; h < shared::halves; h++)
                for (int m = 0; m < 2; m++) sum[m] += sh.parts[h][row / 16][m][i * PART_LD + j + e];
            const float k = sh.scales.column[column + e];
            to[0][e] = j + e < i ? sum[0] * (l * k) : 0;
            to[1][e] = j + e < i ? sum[1] * (p * k) : j + e == i ? sh.scales.own[row] : 0;
        }
        *(float2 *)(sh.square + row * SQUARE_LD + column) = make_float2(to[0][0], to[0][1]);
        tiles::store_pair(sh.P + row * SQUARE_ROW + 2 * column, to[1][0], to[1][1]);
    }
}

/* ---- Levels of the block --------------------------------------------------------------------- */

/* Returns the product of all gates of groups [from, to). */
template <int io, int deep>
__device__ __forceinline__ float2 chunk_maker<io, deep>::total(int from, int to) const
{
    float2 f = make_float2(1, 1);
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        const float2 y = *(const float2 *)&sh.total[i][channel];
        if (i >= from && i < to) f = make_float2(f.x * y.x, f.y * y.y);
    }
    return f;
}

/* put_rows() puts the warp's tokens times f as rows, in order; put_columns() puts them as columns,
 * from the last one on. */
template <int io, int deep>
__device__ __forceinline__ void chunk_maker<io, deep>::put_rows(char *k, char *q, float2 f) const
{
#pragma unroll
    for (int t = 0; t < 16; t++) {
        f = times(f, x.a[t]);
        put_row(t, k + t * shared::row + 2 * channel, q + t * shared::row + 2 * channel, f);
    }
}
template <int io, int deep>
__device__ __forceinline__ void chunk_maker<io, deep>::put_columns(char *k, float2 f) const
{
#pragma unroll
    for (int t = 15; t >= 0; t--) {
        *(uint32_t *)(k + t * shared::row + 2 * channel) =
            pairs::times(x.k[t], pairs::pair(f.x, f.y));
        f = times(f, x.a[t]);
    }
}

/* Puts two sums of a row into L or P. */
template <int io, int deep>
__device__ __forceinline__ void chunk_maker<io, deep>::put_sums(bool is_p, int i, int j, float u,
                                                                float v) const
{
    const float row = is_p ? sh.scales.p[i] : sh.scales.l[i];
    const float2 k = *(const float2 *)(sh.scales.column + j);
    u *= row * k.x, v *= row * k.y;
    if (is_p)
        tiles::store_pair(sh.P + i * SQUARE_ROW + 2 * j, u, v);
    else
        *(float2 *)(sh.square + i * SQUARE_LD + j) = make_float2(u, v);
}

/* Computes two blocks of L and two of P, of 16 x 16. A warp has 8 columns of one at a time. */
template <int io, int deep> __device__ __forceinline__ void chunk_maker<io, deep>::level_16()
{
    char *const own = sh.level.k + 16 * group * shared::row;
    const float2 one = make_float2(1, 1);
    if (group % 2)
        put_rows(own, sh.level.q + group / 2 * 16 * shared::row, one);
    else
        put_columns(own, one);
    float2 all = one;
#pragma unroll
    for (int t = 0; t < 16; t++) all = times(all, x.a[t]);
    *(float2 *)&sh.total[group][channel] = all;
    __syncthreads();
#pragma unroll 1
    for (int unit = warp; unit < 8; unit += shared::halves * GROUPS) {
        const int pair = unit / 4, columns = unit % 2 * 8;
        const bool is_p = unit / 2 % 2;
        const char *rows = is_p ? sh.level.q + 16 * pair * shared::row
                                : sh.level.k + (32 * pair + 16) * shared::row;
        const uint32_t left = shared_address(rows) + tiles::lane(shared::row);
        const uint32_t right = shared_address(sh.level.k) +
                               (32 * pair + columns + lane % 8) * shared::row + lane / 8 * 16;
        float sum[4] = {};
#pragma unroll
        for (int y = 0; y < deep; y += 32) {
            typename tiles::operand first, second;
            uint32_t k[4];
            tiles::load(first, left + 2 * y, shared::row);
            tiles::load(second, left + 2 * y + 32, shared::row);
            load_matrices(k, right + 2 * y);
            pairs::mma(sum, first.x, k[0], k[1]);
            pairs::mma(sum, second.x, k[2], k[3]);
        }
#pragma unroll
        for (int e = 0; e < 4; e += 2)
            put_sums(is_p, 32 * pair + 16 + block_row(e), 32 * pair + columns + block_column(0, 0),
                     sum[e], sum[e + 1]);
    }
    __syncthreads();
}

/* Computes a block of L and one of P, of 32 x 32. A warp has 16 x 16 of one at a time. */
template <int io, int deep> __device__ __forceinline__ void chunk_maker<io, deep>::level_32()
{
    char *const own = sh.level.k + 16 * group * shared::row;
    if (group >= 2)
        put_rows(own, sh.level.q + (group - 2) * 16 * shared::row, total(2, group));
    else
        put_columns(own, total(group + 1, 2));
    __syncthreads();
#pragma unroll 1
    for (int unit = warp; unit < 8; unit += shared::halves * GROUPS) {
        const int row = unit / 2 % 2 * 16, column = unit % 2 * 16;
        const bool is_p = unit / 4;
        const char *rows = (is_p ? sh.level.q : sh.level.k + 32 * shared::row) + row * shared::row;
        const uint32_t left = shared_address(rows) + tiles::lane(shared::row);
        const uint32_t right =
            shared_address(sh.level.k + column * shared::row) + tiles::lane(shared::row);
        mma_block sum = {};
#pragma unroll
        for (int y = 0; y < deep; y += 16) {
            typename tiles::operand q, k;
            tiles::load(q, left + 2 * y, shared::row);
            tiles::load(k, right + 2 * y, shared::row);
            tiles::multiply(sum, q, k);
        }
#pragma unroll
        for (int n = 0; n < 8; n += 2)
            put_sums(is_p, 32 + row + block_row(n % 4), column + block_column(n / 4, 0),
                     sum[n / 4][n % 4], sum[n / 4][n % 4 + 1]);
    }
}

/* ---- T, and what leaves the block ------------------------------------------------------------ */

/* Computes T from L. Four warps call it. */
template <int io, int deep> __device__ __forceinline__ void chunk_maker<io, deep>::make_T()
{
    if (warp >= GROUPS) return;
    invert_diagonal<CHUNK>(sh.square, sh.inverse.diagonal, warp);
    barrier_wait(1, 32 * GROUPS);
    invert_column<io, CHUNK>(sh.square, sh.inverse.diagonal, sh.inverse.T, SQUARE_ROW, warp);
}

/* Stores K~, Q~ and K^. */
template <int io, int deep>
__device__ __forceinline__ void chunk_maker<io, deep>::store_keys() const
{
    enum { MATRIX = CHUNK * deep * 2 };
    char *const own = record + half * TILE + 16 * group * 128;
    const float *const l = sh.scales.l + token(0), *const p = sh.scales.p + token(0);
    const float *const column = sh.scales.column + token(0);
    float2 f = total(0, group);
#pragma unroll
    for (int t = 0; t < 16; t++) {
        char *const at = own + tile_place(t, 2 * lane);
        f = times(f, x.a[t]);
        *(uint32_t *)at = scale_word<pairs>(x.e[t], f.x * l[t], f.y * l[t]);
        *(uint32_t *)(at + MATRIX) = scale_word<pairs>(x.q[t], f.x * p[t], f.y * p[t]);
    }
    f = total(group + 1, GROUPS);
#pragma unroll
    for (int t = 15; t >= 0; t--) {
        *(uint32_t *)(own + 2 * MATRIX + tile_place(t, 2 * lane)) =
            scale_word<pairs>(x.k[t], f.x * column[t], f.y * column[t]);
        f = times(f, x.a[t]);
    }
}

/* Returns eight elements of a square of 16 bits, with zeros above the blocks of the diagonal. They
 * are number n of 512. */
GDN_DEVICE uint4 load_eight(const char *from, int n)
{
    const int i = n / 8, j = n % 8 * 8;
    return j / 16 > i / 16 ? make_uint4(0, 0, 0, 0)
                           : *(const uint4 *)(from + i * SQUARE_ROW + 2 * j);
}

/* Stores a square as a tile. */
GDN_DEVICE void store_square(char *to, const char *from)
{
    for (int n = threadIdx.x; n < CHUNK * CHUNK / 8; n += blockDim.x)
        *(uint4 *)(to + tile_place(n / 8, n % 8 * 8)) = load_eight(from, n);
}

/* Looks for elements of P that are not finite. U does not depend on them, and a token that writes
 * nothing has U = 0: the product with P would be NaN. */
template <int io, int deep> GDN_DEVICE void check_P(chunks_shared<deep> &sh)
{
    typedef mma_tiles<io> tiles;
    typename tiles::taint taint = 0;
    for (int n = threadIdx.x; n < CHUNK * CHUNK / 8; n += blockDim.x) {
        const uint4 x = load_eight(sh.P, n);
        tiles::collect(taint, { { x.x, x.y, x.z, x.w } });
    }
    if (tiles::is_tainted(taint)) sh.factors.busy = WALKS;
}

/* Stores w v, if the call has write gates. A warp has some tokens at once, a lane two columns. */
template <int io, int deep>
GDN_DEVICE void store_written(chunks_shared<deep> &sh, char *to, const struct gdn_cu_rule &r,
                              int head)
{
    typedef typename mma_tiles<io>::pairs pairs;
    enum { AT_ONCE = 4 };
    const struct stage_chunk &c = sh.chunk;
    const int hv = source_head(r, head, r.Hv), bytes = r.family.write.dtype == GDN_F32 ? 4 : 2;
    const int step = blockDim.x / 32;
    bool writes = false;
#pragma unroll 1
    for (int v = threadIdx.x % 32 * 2; v < r.V; v += 64)
#pragma unroll 1
        for (int first = threadIdx.x / 32; first < CHUNK; first += AT_ONCE * step) {
            uint32_t word[AT_ONCE], w[AT_ONCE][2];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const int64_t t = min(first + i * step, (int)c.n - 1) + c.t0;
                const char *const gate = find_w(r, c.seq, t, head, 0).at + v * bytes;
                word[i] = *(const uint32_t *)(row_at(r.v, c.seq, t, hv) + 2 * v);
                w[i][0] = ld_4_or_2(gate, bytes);
                w[i][1] = ld_4_or_2(gate + bytes, bytes);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const int t = first + i * step;
                float f[2];
#pragma unroll
                for (int e = 0; e < 2; e++)
                    f[e] =
                        t < c.n ? family_w_value(r, bits_to_f32(w[i][e], r.family.write.dtype)) : 0;
                writes |= f[0] != 0 || f[1] != 0;
                *(uint32_t *)(to + 2 * ((int64_t)t * r.V + v)) =
                    pairs::pair(family_written(f[0], pairs::low(word[i])),
                                family_written(f[1], pairs::high(word[i])));
            }
        }
    if (writes) sh.factors.busy = BUSY;
}

/* Returns a thread's share of a chunk and a head. */
template <int io, int deep>
GDN_DEVICE chunk_maker<io, deep> share_chunk(const struct gdn_cu_rule &r, chunks_shared<deep> &sh,
                                             char *record, int head)
{
    enum { HALVES = chunks_shared<deep>::halves };
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = warp % HALVES;
    const int group = warp / HALVES, channel = 64 * half + 2 * lane;
    const int n = channel < r.K ? max(min((int)sh.chunk.n - group * 16, 16), 0) : 0;
    return { r, sh, record, head, lane, warp, group, half, channel, n };
}

/* Makes the record of the chunk in shared memory. */
template <int io, int deep>
GDN_DEVICE void make_chunk(const struct gdn_cu_rule &r, chunks_shared<deep> &sh, char *record,
                           int head)
{
    if (sh.chunk.n == 0) return;
    chunk_maker<io, deep> m = share_chunk<io, deep>(r, sh, record, head);
    const bool begun = m.begin_gates();
    m.load_keys(m.x.k, r.k, r.Hk);
    m.load_keys(m.x.q, r.q, r.Hq);
    m.begin_e();
    m.load_betas();
    if (r.family.write.data)
        store_written<io>(sh, m.record + GDN_CHANNELS_WRITTEN(deep), r, m.head);
    m.finish_gates(begun);
    m.measure();
    __syncthreads();
    m.scale_tokens();
    if (io == GDN_F16) {
        __syncthreads();
        m.normalise();
    }
    m.make_e();
    m.template own_level<8>();
    m.template own_level<4>();
    m.template own_level<2>();
    m.template own_level<1>();
    __syncthreads(); /* the rows of all warps have been read */
    m.level_16();
    m.level_32();
    m.store_keys();
    m.join_diagonal();
    if (threadIdx.x < deep)
        sh.factors.decay[threadIdx.x] = sh.total[0][threadIdx.x] * sh.total[1][threadIdx.x] *
                                        (sh.total[2][threadIdx.x] * sh.total[3][threadIdx.x]);
    __syncthreads();
    check_P<io>(sh);
    m.make_T();
    __syncthreads();
    char *const squares = m.record + 3 * CHUNK * deep * 2;
    store_square(squares, sh.inverse.T);
    store_square(squares + TILE, sh.P);
    for (int n = threadIdx.x; n < (int)sizeof sh.factors / 16; n += blockDim.x)
        ((uint4 *)(m.record + GDN_CHANNELS_FACTORS(deep)))[n] = ((const uint4 *)&sh.factors)[n];
}

/* Makes a record. A block has a chunk of the window and a head. */
template <int io, int deep> GDN_DEVICE void make_chunk(const struct gdn_cu_prefill_channels &a)
{
    chunks_shared<deep> &sh = *(chunks_shared<deep> *)gdn_shared;
    if (threadIdx.x < 32) {
        const struct stage_chunk found = find_window_chunk(a, blockIdx.x / a.rule.H);
        if (threadIdx.x == 0) {
            sh.chunk = found;
            sh.factors.forgets = 0, sh.factors.busy = IDLE;
        }
    }
    __syncthreads();
    make_chunk<io, deep>(a.rule, sh, a.records + (int64_t)blockIdx.x * a.record_bytes,
                         (int)(blockIdx.x % a.rule.H));
}

#endif
