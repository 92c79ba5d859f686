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
 * channels, in registers. Levels of up to 8 tokens are the warp's own.
 */
#ifndef GDN_CUDA_PREFILL_CHANNELS_CHUNKS_CUH
#define GDN_CUDA_PREFILL_CHANNELS_CHUNKS_CUH

#include "cuda/device/family.cuh"
#include "cuda/device/warp_sums.cuh"
#include "cuda/prefill/channels/window.cuh"
#include "cuda/prefill/general_gram.cuh"

extern __shared__ __align__(128) char gdn_shared[];

/* Behind the matrices of a record. */
template <int deep> struct channels_factors {
    float decay[deep];      /* of the state's rows */
    float w[CHUNK];         /* of v */
    uint32_t forgets, busy; /* some channel forgets; the chunk changes the state */
    uint32_t pad[2];
};
static_assert(sizeof(channels_factors<128>) == GDN_CHANNELS_FACTORS_BYTES(128), "args.h");

enum {
    GROUPS = CHUNK / 16,
    STAGE_ROW = GDN_PREFILL_ROW(64, 2),  /* of a warp's factors, bytes */
    SQUARE_ROW = GDN_PREFILL_ROW(64, 2), /* of T and P */
    SQUARE_LD = GDN_PREFILL_LD(CHUNK),
    PART_LD = 17
};

template <int deep> struct chunks_shared {
    static constexpr int halves = deep / 64, row = GDN_PREFILL_ROW(deep, 2);
    alignas(16) float square[CHUNK * SQUARE_LD]; /* L; then T, transposed */
    alignas(16) float diagonal[CHUNK * GDN_PREFILL_LD_DIAGONAL];
    union {
        alignas(16) char own[halves * GROUPS][24 * STAGE_ROW]; /* rows of e, q; columns */
        struct {
            alignas(16) char k[CHUNK * row], q[CHUNK / 2 * row];
        } level;
        alignas(16) char T[CHUNK * SQUARE_ROW];
    };
    alignas(16) char P[CHUNK * SQUARE_ROW];
    float parts[halves][GROUPS][2][16 * PART_LD]; /* of blocks on the diagonals of L and P */
    float sums[halves][GROUPS][32];               /* squares of k, then of q */
    float total[GROUPS][deep];                    /* products of all gates of 16 tokens */
    float b[CHUNK];
    alignas(16) channels_factors<deep> factors;
    struct stage_chunk chunk;
};
static_assert(sizeof(chunks_shared<64>) <= GDN_CU_CHUNKS_64, "chunks_shared");
static_assert(sizeof(chunks_shared<128>) <= GDN_CU_CHUNKS_128, "chunks_shared");

/* A lane's two channels of the 16 tokens of its warp. */
struct chunk_rows {
    float k[16][2], q[16][2], a[16][2];
};

template <int io, int deep> struct chunk_maker {
    typedef mma_tiles<io> tiles;
    typedef typename tiles::pairs pairs;
    typedef chunks_shared<deep> shared;

    const struct gdn_cu_prefill_channels &args;
    const struct gdn_cu_rule &r;
    shared &sh;
    char *record;
    int head, lane, warp, group, half;
    int channel; /* the first of two */
    bool there;  /* they are below K */
    chunk_rows x;

    /* Token t of the warp, in the chunk. */
    __device__ __forceinline__ int token(int t) const { return 16 * group + t; }
    __device__ __forceinline__ bool has(int t) const { return there && token(t) < sh.chunk.n; }

    __device__ __forceinline__ void load_keys(float (&to)[16][2], const struct gdn_rows &rows,
                                              int n_heads);
    __device__ __forceinline__ void load_gates();
    __device__ __forceinline__ void load_betas();
    __device__ __forceinline__ void normalise();
    __device__ __forceinline__ float2 b(int t) const;
    template <int s> __device__ __forceinline__ void own_level();
    __device__ __forceinline__ void last_level();
    __device__ __forceinline__ void put_row(int t, char *k, char *q, float2 f) const;
    __device__ __forceinline__ void put_column(int t, char *k, float2 f) const;
    __device__ __forceinline__ void put_rows(char *k, char *q, float2 f) const;
    __device__ __forceinline__ void put_columns(char *k, float2 f) const;
    __device__ __forceinline__ void level_16();
    __device__ __forceinline__ void level_32();
    __device__ __forceinline__ void join_diagonal();
    __device__ __forceinline__ void make_T();
    __device__ __forceinline__ void store_keys() const;
    __device__ __forceinline__ float2 total(int from, int to) const;
};

/* ---- Loads --------------------------------------------------------------------------------- */

template <int io, int deep>
__device__ __forceinline__ void
chunk_maker<io, deep>::load_keys(float (&to)[16][2], const struct gdn_rows &rows, int n_heads)
{
    const char *at =
        row_at(rows, sh.chunk.seq, sh.chunk.t0 + token(0), source_head(r, head, n_heads)) +
        2 * channel;
    uint32_t words[16];
#pragma unroll
    for (int t = 0; t < 16; t++)
        words[t] = rows.data && has(t) ? *(const uint32_t *)(at + t * rows.token) : 0;
#pragma unroll
    for (int t = 0; t < 16; t++) {
        to[t][0] = pairs::low(words[t]);
        to[t][1] = pairs::high(words[t]);
    }
}

/* Returns a of a gate as it was given. A: exp(A_log) of a raw one. */
GDN_DEVICE float gate_factor(const struct gdn_cu_rule &r, float g, float A, float bias)
{
    if (r.gate == GDN_GATE_LINEAR) return g;
    if (r.gate == GDN_GATE_RAW)
        g = r.bound < 0 ? r.bound * sigmoid(A * (g + bias)) : -A * softplus(g + bias);
    return gate_forgets(g) ? 0 : ex2_approx(g * 1.44269504f);
}

template <int io, int deep> __device__ __forceinline__ void chunk_maker<io, deep>::load_gates()
{
    const struct gdn_rows &rows = r.g;
    const int bytes = rows.dtype == GDN_F32 ? 4 : 2;
    const int64_t step = r.family.g_channel; /* 0: of the head */
    const char *at = row_at(rows, sh.chunk.seq, sh.chunk.t0 + token(0), head) + channel * step;
    const bool raw = r.gate == GDN_GATE_RAW;
    const float A = raw ? expf(load_vector(r.A_log, head, 0)) : 0;
    const float bias[2] = { raw && there ? load_bias(r, head, step ? channel : 0) : 0,
                            raw && there ? load_bias(r, head, step ? channel + 1 : 0) : 0 };
    const bool pairs_lie =
        step == bytes && ((uint64_t)(uintptr_t)at | rows.token) % (2 * bytes) == 0;
    if (!rows.data) {
#pragma unroll
        for (int t = 0; t < 16; t++) x.a[t][0] = x.a[t][1] = 1;
        return;
    }
#pragma unroll
    for (int t = 0; t < 16; t++) {
        const char *p = at + t * rows.token;
        x.a[t][0] = x.a[t][1] = 0;
        if (!has(t)) continue;
        if (pairs_lie && bytes == 4) {
            const float2 g = *(const float2 *)p;
            x.a[t][0] = g.x, x.a[t][1] = g.y;
        } else if (pairs_lie) {
            const uint32_t g = *(const uint32_t *)p;
            x.a[t][0] = bits_to_f32(g & 0xffff, rows.dtype);
            x.a[t][1] = bits_to_f32(g >> 16, rows.dtype);
        } else {
            x.a[t][0] = load_float(p, 0, rows.dtype);
            x.a[t][1] = load_float(p + step, 0, rows.dtype);
        }
    }
    bool forgets = false, decays = false;
#pragma unroll
    for (int t = 0; t < 16; t++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float a = has(t) ? gate_factor(r, x.a[t][i], A, bias[i]) : 1;
            x.a[t][i] = a;
            forgets |= a == 0;
            decays |= a != 1;
        }
    if (forgets) sh.factors.forgets = 1;
    if (decays) sh.factors.busy = 1;
}

/* Loads b, if it is one number per head, and w. */
template <int io, int deep> __device__ __forceinline__ void chunk_maker<io, deep>::load_betas()
{
    const int t = threadIdx.x;
    if (t >= CHUNK) return;
    const bool counts = t < sh.chunk.n;
    const float beta =
        counts && !r.family.beta_rows ? family_b(r, sh.chunk.seq, sh.chunk.t0 + t, head, 0, 0) : 0;
    const float w = r.family.write.data || r.family.beta_rows ? 1 : beta;
    sh.b[t] = beta;
    sh.factors.w[t] = counts ? w : 0;
    if (beta != 0 || (counts && r.family.beta_rows && !r.family.write.data)) sh.factors.busy = 1;
}

/* Returns b of a token. */
template <int io, int deep> __device__ __forceinline__ float2 chunk_maker<io, deep>::b(int t) const
{
    if (!r.family.beta_rows) return make_float2(sh.b[token(t)], sh.b[token(t)]);
    if (!has(t)) return make_float2(0, 0);
    const int64_t at = sh.chunk.t0 + token(t);
    return make_float2(family_b(r, sh.chunk.seq, at, head, 0, channel),
                       family_b(r, sh.chunk.seq, at, head, 0, channel + 1));
}

/* Returns, to lanes i and i + 16, the sum of x[i] over all lanes. */
GDN_DEVICE float sum_to_lanes(float (&x)[16])
{
    halve<8>(x, 8), halve<4>(x, 4), halve<2>(x, 2), halve<1>(x, 1);
    return x[0] + __shfl_xor_sync(0xffffffff, x[0], 16);
}

/* The same of squares of the lane's two channels. */
GDN_DEVICE float sum_squares(const float (&x)[16][2])
{
    float square[16];
#pragma unroll
    for (int t = 0; t < 16; t++) square[t] = fmaf(x[t][0], x[t][0], x[t][1] * x[t][1]);
    return sum_to_lanes(square);
}

/* Makes keys and queries rows of length one, and gives the scale to queries. */
template <int io, int deep> __device__ __forceinline__ void chunk_maker<io, deep>::normalise()
{
    float length = lane < 16 ? 1 : r.scale;
    if (r.norm != GDN_NO_NORM) {
        const float k = sum_squares(x.k), q = sum_squares(x.q);
        sh.sums[half][group][lane] = lane < 16 ? k : q;
        __syncthreads();
        float sum = 0;
        for (int i = 0; i < shared::halves; i++) sum += sh.sums[i][group][lane];
        if (token(lane % 16) < sh.chunk.n) length *= inverse_length(sum, r.norm, r.norm_eps);
    }
#pragma unroll
    for (int t = 0; t < 16; t++) {
        const float k = __shfl_sync(0xffffffff, length, t);
        const float q = __shfl_sync(0xffffffff, length, 16 + t);
        for (int i = 0; i < 2; i++) x.k[t][i] *= k, x.q[t][i] *= q;
    }
}

/* ---- Factors of a level, as rows of tiles --------------------------------------------------- */

GDN_DEVICE float2 times(float2 f, const float (&a)[2])
{
    return make_float2(f.x * a[0], f.y * a[1]);
}

/* Token t as row e f of one tile and q f of another, at the lane's place; or as column k f. */
template <int io, int deep>
__device__ __forceinline__ void chunk_maker<io, deep>::put_row(int t, char *k, char *q,
                                                               float2 f) const
{
    const float2 e = b(t);
    *(uint32_t *)k = pairs::pair(e.x * x.k[t][0] * f.x, e.y * x.k[t][1] * f.y);
    *(uint32_t *)q = pairs::pair(x.q[t][0] * f.x, x.q[t][1] * f.y);
}
template <int io, int deep>
__device__ __forceinline__ void chunk_maker<io, deep>::put_column(int t, char *k, float2 f) const
{
    *(uint32_t *)k = pairs::pair(x.k[t][0] * f.x, x.k[t][1] * f.y);
}

/* ---- Levels inside 16 tokens ---------------------------------------------------------------- */

/* Blocks of 2 s tokens: eight tokens are rows, eight columns, of which s by s belong together. */
template <int io, int deep>
template <int s>
__device__ __forceinline__ void chunk_maker<io, deep>::own_level()
{
    char *const rows = sh.own[warp], *const own = rows + 4 * lane;
#pragma unroll
    for (int from = 0; from < 16; from += 2 * s) {
        float2 f = make_float2(1, 1);
#pragma unroll
        for (int i = 0; i < s; i++) {
            char *const at = own + (from / 2 + i) * STAGE_ROW;
            f = times(f, x.a[from + s + i]);
            put_row(from + s + i, at, at + 8 * STAGE_ROW, f);
        }
        f = make_float2(1, 1);
#pragma unroll
        for (int j = s - 1; j >= 0; j--) {
            put_column(from + j, own + (16 + from / 2 + j) * STAGE_ROW, f);
            f = times(f, x.a[from + j]);
        }
    }
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

/* Pairs of neighbours, and the diagonal of P, without products of matrices. */
template <int io, int deep> __device__ __forceinline__ void chunk_maker<io, deep>::last_level()
{
    float near[16], own[16];
#pragma unroll
    for (int t = 0; t < 16; t++) own[t] = fmaf(x.q[t][0], x.k[t][0], x.q[t][1] * x.k[t][1]);
    const float diagonal = sum_to_lanes(own);
#pragma unroll
    for (int t = 1; t < 16; t += 2) {
        const float2 e = b(t);
        const float k0 = x.k[t - 1][0] * x.a[t][0], k1 = x.k[t - 1][1] * x.a[t][1];
        near[t / 2] = fmaf(e.x * x.k[t][0], k0, e.y * x.k[t][1] * k1);
        near[8 + t / 2] = fmaf(x.q[t][0], k0, x.q[t][1] * k1);
    }
    const float pair = sum_to_lanes(near), sum = lane < 16 ? pair : diagonal;
    const int i = lane < 16 ? lane % 8 * 2 + 1 : lane - 16, j = lane < 16 ? i - 1 : i;
    sh.parts[half][group][lane >= 8][i * PART_LD + j] = sum;
}

/* Adds the halves of the channels: blocks on the diagonals of L and P, and zeros beside them. */
template <int io, int deep> __device__ __forceinline__ void chunk_maker<io, deep>::join_diagonal()
{
    for (int n = threadIdx.x; n < GROUPS * 16 * 8; n += blockDim.x) {
        const int from = n / 128 * 16, i = n / 8 % 16, j = n % 8 * 2;
        float l[2] = {}, p[2] = {};
        for (int e = 0; e < 2; e++)
            for (int h = 0; h < shared::halves; h++) {
                const float(&part)[2][16 * PART_LD] = sh.parts[h][n / 128];
                if (j + e < i) l[e] += part[0][i * PART_LD + j + e];
                if (j + e <= i) p[e] += part[1][i * PART_LD + j + e];
            }
        *(float2 *)(sh.square + (from + i) * SQUARE_LD + from + j) = make_float2(l[0], l[1]);
        tiles::store_pair(sh.P + (from + i) * SQUARE_ROW + 2 * (from + j), p[0], p[1]);
    }
}

/* ---- Levels of the block --------------------------------------------------------------------- */

/* The product of all gates of groups [from, to). */
template <int io, int deep>
__device__ __forceinline__ float2 chunk_maker<io, deep>::total(int from, int to) const
{
    float2 f = make_float2(1, 1);
    for (int i = from; i < to; i++) {
        const float2 y = *(const float2 *)&sh.total[i][channel];
        f = make_float2(f.x * y.x, f.y * y.y);
    }
    return f;
}

/* The warp's tokens as rows, behind f, or as columns, before f. */
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
        put_column(t, k + t * shared::row + 2 * channel, f);
        f = times(f, x.a[t]);
    }
}

/* Two blocks of L and two of P, of 16 x 16: a warp has 8 columns of one at a time. */
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
        for (int e = 0; e < 4; e += 2) {
            const int i = 32 * pair + 16 + block_row(e),
                      j = 32 * pair + columns + block_column(0, 0);
            if (is_p)
                tiles::store_pair(sh.P + i * SQUARE_ROW + 2 * j, sum[e], sum[e + 1]);
            else
                *(float2 *)(sh.square + i * SQUARE_LD + j) = make_float2(sum[e], sum[e + 1]);
        }
    }
    __syncthreads();
}

/* A block of L and one of P, of 32 x 32: a warp has 16 x 16 of one at a time. */
template <int io, int deep> __device__ __forceinline__ void chunk_maker<io, deep>::level_32()
{
    char *const own = sh.level.k + 16 * group * shared::row;
    if (group >= 2)
        put_rows(own, sh.level.q + (group - 2) * 16 * shared::row, total(2, group));
    else
        put_columns(own, total(group + 1, 2));
    __syncthreads();
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
        for (int n = 0; n < 8; n += 2) {
            const int i = 32 + row + block_row(n % 4), j = column + block_column(n / 4, 0);
            const float u = sum[n / 4][n % 4], v = sum[n / 4][n % 4 + 1];
            if (is_p)
                tiles::store_pair(sh.P + i * SQUARE_ROW + 2 * j, u, v);
            else
                *(float2 *)(sh.square + i * SQUARE_LD + j) = make_float2(u, v);
        }
    }
}

/* ---- T, and what leaves the block ------------------------------------------------------------ */

/* By four warps: T from L, which becomes T's transpose. */
template <int io, int deep> __device__ __forceinline__ void chunk_maker<io, deep>::make_T()
{
    if (warp >= GROUPS) return;
    invert_diagonal<CHUNK>(sh.square, sh.diagonal, warp);
    barrier_wait(1, 32 * GROUPS);
    invert_below<CHUNK>(sh.square, sh.diagonal, warp);
    barrier_wait(1, 32 * GROUPS);
#pragma unroll 1
    for (int n = threadIdx.x; n < CHUNK * CHUNK / 2; n += 32 * GROUPS) {
        const int i = n % CHUNK, j = n / CHUNK * 2;
        const float *at = sh.square + j * SQUARE_LD + i;
        tiles::store_pair(sh.T + i * SQUARE_ROW + 2 * j, j <= i ? at[0] : 0,
                          j < i ? at[SQUARE_LD] : 0);
    }
}

/* Stores K~, Q~ and K^. */
template <int io, int deep>
__device__ __forceinline__ void chunk_maker<io, deep>::store_keys() const
{
    enum { MATRIX = CHUNK * deep * 2 };
    char *const own = record + (16 * group * deep + channel) * 2;
    float2 f = total(0, group);
#pragma unroll
    for (int t = 0; t < 16; t++) {
        f = times(f, x.a[t]);
        put_row(t, own + t * deep * 2, own + MATRIX + t * deep * 2, f);
    }
    f = total(group + 1, GROUPS);
#pragma unroll
    for (int t = 15; t >= 0; t--) {
        put_column(t, own + 2 * MATRIX + t * deep * 2, f);
        f = times(f, x.a[t]);
    }
}

/* Stores a square of 16 bits, with zeros above the blocks of the diagonal. */
GDN_DEVICE void store_square(char *to, const char *from)
{
    for (int n = threadIdx.x; n < CHUNK * CHUNK / 8; n += blockDim.x) {
        const int i = n / 8, j = n % 8 * 8;
        uint4 x = *(const uint4 *)(from + i * SQUARE_ROW + 2 * j);
        if (j / 16 > i / 16) x = make_uint4(0, 0, 0, 0);
        *(uint4 *)(to + i * CHUNK * 2 + 2 * j) = x;
    }
}

/* Stores w v of a call with write gates. */
template <int io, int deep>
GDN_DEVICE void store_written(chunks_shared<deep> &sh, char *to, const struct gdn_cu_rule &r,
                              int head)
{
    typedef typename gdn_io<io>::type element;
    const struct stage_chunk &c = sh.chunk;
    const int hv = source_head(r, head, r.Hv);
    for (int n = threadIdx.x; n < CHUNK * r.V; n += blockDim.x) {
        const int t = n / r.V, v = n % r.V;
        float x = 0;
        if (t < c.n) {
            const float w = family_w(r, c.seq, c.t0 + t, head, 0, v);
            const element *row = (const element *)row_at(r.v, c.seq, c.t0 + t, hv);
            if (w != 0) sh.factors.busy = 1;
            x = family_written(w, gdn_io<io>::load(row + v));
        }
        gdn_io<io>::store((element *)to + n, x);
    }
}

template <int io, int deep> GDN_DEVICE void make_chunk(const struct gdn_cu_prefill_channels &a)
{
    typedef chunks_shared<deep> shared;
    shared &sh = *(shared *)gdn_shared;
    const struct gdn_cu_rule &r = a.rule;
    const int64_t i = blockIdx.x / r.H;
    if (threadIdx.x < 32) {
        const struct stage_chunk found = find_window_chunk(a, i);
        if (threadIdx.x == 0) {
            sh.chunk = found;
            sh.factors.forgets = sh.factors.busy = 0;
        }
    }
    __syncthreads();
    if (sh.chunk.n == 0) return;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = warp % shared::halves;
    const int channel = 64 * half + 2 * lane;
    chunk_maker<io, deep> m = { a,
                                r,
                                sh,
                                a.records + (int64_t)blockIdx.x * a.record_bytes,
                                (int)(blockIdx.x % r.H),
                                lane,
                                warp,
                                warp / shared::halves,
                                half,
                                channel,
                                channel < r.K };
    m.load_keys(m.x.k, r.k, r.Hk);
    m.load_keys(m.x.q, r.q, r.Hq);
    m.load_gates();
    m.load_betas();
    if (r.family.write.data)
        store_written<io>(sh, m.record + GDN_CHANNELS_WRITTEN(deep), r, m.head);
    __syncthreads();
    m.normalise();
    m.template own_level<8>();
    m.template own_level<4>();
    m.template own_level<2>();
    m.last_level();
    __syncthreads(); /* the warps' rows have been read */
    m.level_16();
    m.level_32();
    m.store_keys();
    m.join_diagonal();
    if (threadIdx.x < deep)
        sh.factors.decay[threadIdx.x] = sh.total[0][threadIdx.x] * sh.total[1][threadIdx.x] *
                                        (sh.total[2][threadIdx.x] * sh.total[3][threadIdx.x]);
    __syncthreads();
    m.make_T();
    __syncthreads();
    char *const squares = m.record + 3 * CHUNK * deep * 2;
    store_square(squares, sh.T);
    store_square(squares + CHUNK * CHUNK * 2, sh.P);
    for (int n = threadIdx.x; n < (int)sizeof sh.factors / 16; n += blockDim.x)
        ((uint4 *)(m.record + GDN_CHANNELS_FACTORS(deep)))[n] = ((const uint4 *)&sh.factors)[n];
}

#endif
