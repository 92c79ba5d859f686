/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradients of chunks on tensor cores. A block goes through pairs of a chunk and a key head;
 * of each, through the state heads that read it, and adds up dq and dk of these in registers:
 *
 *     X, Y    -beta (Z U^T) and dO U^T, with the gates between two tokens
 *     states  dO S^T, Z S^T and U J^T, with the gates of one token
 *     tokens  dq += Y K      D += X K      dw += Y^T Q + X^T K         dk = D + dw
 *
 * Tiles of the next state head are on their way meanwhile. D has beta in it. Where beta is 0,
 * LEAST_BETA stands for it in X and D, so that dbeta = Z . v + k . D / beta holds for every beta.
 * Letters: docs/design/math.md, section 13.
 */
#ifndef GDN_CUDA_BACKWARD_HEADS_CUH
#define GDN_CUDA_BACKWARD_HEADS_CUH

#include "cuda/prefill/backward_gates.cuh"
#include "cuda/prefill/backward_mma.cuh"
#include "cuda/prefill/backward_rows.cuh"

#define LEAST_BETA 0x1p-60f

enum { HEADS_THREADS = 512, HEADS_WARPS = HEADS_THREADS / 32 };

struct head_rows {
    alignas(16) char    dout[CHUNK * DEEP_ROW], u[CHUNK * DEEP_ROW], z[CHUNK * DEEP_ROW];
    alignas(16) vectors g;
};
struct heads_shared {
    struct head_rows rows[2]; /* of this state head and the next */
    alignas(16) char S[DEEP * DEEP_ROW], J[DEEP * DEEP_ROW];
    struct key_record keys;
    union {
        struct {
            alignas(16) char X[CHUNK * CHUNK_ROW], Y[CHUNK * CHUNK_ROW];
        };
        float parts[DEEP / 16][CHUNK][2]; /* sums of a row by warps of columns */
    };
    float zv[CHUNK];         /* Z . v */
    float ends[HEADS_WARPS]; /* what reaches the end, of a warp: dG of the last token */
    struct gdn_cu_place places[2]; /* of the chunks of rows[] */
    uint64_t rows_loaded[2], states_loaded, keys_loaded; /* barriers */
};
static_assert(sizeof(struct heads_shared) <= GDN_CU_HEADS_BYTES, "heads_shared");

/* A warp has 32 rows, tokens, from 32 m on, and 16 columns of k, from 16 n on. */
struct heads_warp {
    int m, n;
};
GDN_DEVICE struct heads_warp heads_warp_of(void)
{
    return { (int)(threadIdx.x / 32 % 2), (int)(threadIdx.x / 64) };
}
typedef mma_block warp_tile[2];
GDN_DEVICE int tile_row(const struct heads_warp &w, int i, int e)
{
    return 32 * w.m + 16 * i + block_row(e);
}
GDN_DEVICE int tile_column(const struct heads_warp &w, int h, int e)
{
    return 16 * w.n + block_column(h, e);
}

GDN_DEVICE void clear_tile(warp_tile &x)
{
    clear_block(x[0]), clear_block(x[1]);
}
GDN_DEVICE void multiply_tile(warp_tile &d, const tiles::operand (&a)[2],
                              const right_operand &b)
{
#pragma unroll
    for (int i = 0; i < 2; i++) multiply(d[i], a[i], b);
}
/* Rows get factors; zero where one is. */
GDN_DEVICE void weigh_rows(warp_tile &x, const struct heads_warp &w, const float *factors)
{
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float f = factors[tile_row(w, i, e)];
#pragma unroll
            for (int h = 0; h < 2; h++) x[i][h][e] = f == 0 ? 0 : f * x[i][h][e];
        }
}

/* ---- The way through the work -------------------------------------------------------------- */

/* State head i of the key head of a chunk; items are chunks x key heads. */
struct heads_step {
    int     i, key, head;
    int64_t number; /* of the chunk; -1: no more */
};
/* The first step of the first item from `item` on, one for each block further, that has tokens. */
GDN_DEVICE struct heads_step find_step(const struct gdn_cu_backward &a, int64_t &item)
{
    const struct gdn_cu_rule &r = a.rule;
    for (; item < a.n_chunks * r.Hk; item += gridDim.x) {
        const int64_t number = item / r.Hk;
        const int     key = (int)(item - number * r.Hk);
        if (a.places[number].n) return { 0, key, first_reader(r, key, r.Hk), number };
    }
    return { 0, 0, 0, -1 };
}
GDN_DEVICE struct heads_step next_step(const struct gdn_cu_backward &a, struct heads_step s,
                                       int64_t &item, int n_readers, int reader)
{
    if (++s.i < n_readers) {
        s.head += reader;
        return s;
    }
    item += gridDim.x;
    return find_step(a, item);
}
GDN_DEVICE bool is_step(const struct heads_step &s) { return s.number >= 0; }

GDN_DEVICE void load_head_rows(struct head_rows &to, const struct gdn_cu_backward &a,
                               const struct heads_step &s, uint64_t &barrier)
{
    if (is_step(s)) {
        const struct chunk_record &from = record_of(a, s.number, s.head);
        const struct stage_chunk   c = chunk_at(a.places[s.number], s.number);
        copy_rows<2 * DEEP, HEADS_THREADS>(to.dout, DEEP_ROW,
                                           source_of<2 * DEEP>(a.dout, c, s.head), (int)c.n);
        if (threadIdx.x < 32) {
            copy_begin(barrier, sizeof to.u + sizeof to.z + sizeof to.g);
            copy_part(to.u, from.u, barrier, 0);
            copy_part(to.z, from.z, barrier, 1);
            copy_part(to.g, from.v, barrier, 2);
        }
    }
    copy_commit();
}
/* By the first warp, as that which follows. */
GDN_DEVICE void load_head_states(struct heads_shared &sh, const struct gdn_cu_backward &a,
                                 const struct heads_step &s)
{
    if (threadIdx.x >= 32 || !is_step(s)) return;
    const struct chunk_record &from = record_of(a, s.number, s.head);
    copy_begin(sh.states_loaded, sizeof sh.S + sizeof sh.J);
    copy_part(sh.S, from.S, sh.states_loaded, 0);
    copy_part(sh.J, from.J, sh.states_loaded, 1);
}
GDN_DEVICE void load_head_keys(struct heads_shared &sh, const struct gdn_cu_backward &a,
                               const struct heads_step &s)
{
    if (threadIdx.x >= 32) return;
    copy_begin(sh.keys_loaded, sizeof sh.keys);
    copy_part(sh.keys, keys_of(a, s.number, s.key), sh.keys_loaded, 0);
}

/* ---- Values: dv and Z . v ------------------------------------------------------------------ */

/* A thread has an eighth of a row: 8 of every 64 columns. */
struct value_rows {
    uint4 v[2];
};
GDN_DEVICE void fetch_values(struct value_rows &to, const struct gdn_cu_backward &a,
                             const struct stage_chunk &c, int head)
{
    const int   t = threadIdx.x / 8;
    const char *row = row_at(a.rule.v, c.seq, t, head) + threadIdx.x % 8 * 16;
#pragma unroll
    for (int i = 0; i < 2; i++)
        to.v[i] = t < c.n ? *(const uint4 *)(row + 128 * i) : make_uint4(0, 0, 0, 0);
}

/* Eight numbers of 16 bits. */
GDN_DEVICE void unpack_eight(float (&x)[8], const uint4 &from)
{
    const uint32_t words[4] = { from.x, from.y, from.z, from.w };
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i]     = mma_format_bf16::low(words[i]);
        x[2 * i + 1] = mma_format_bf16::high(words[i]);
    }
}
/* How a gradient is stored: two numbers at once, of bf16 or float32, or one at a time. */
enum { STORE_BF16, STORE_F32, STORE_ANY };
GDN_DEVICE int store_form(const struct gdn_rows &to, bool adds)
{
    const uint64_t all = (uint64_t)to.data | (uint64_t)to.batch | (uint64_t)to.token |
                         (uint64_t)to.head;
    if (adds || all % 8 || to.dtype == GDN_F16) return STORE_ANY;
    return to.dtype == GDN_BF16 ? STORE_BF16 : STORE_F32;
}
__device__ __noinline__ void store_any(char *row, int column, int dtype, bool adds, float x,
                                       float y)
{
    if (adds) {
        x += load_float(row, column, dtype);
        y += load_float(row, column + 1, dtype);
    }
    store_float(row, column, dtype, x);
    store_float(row, column + 1, dtype, y);
}
template <int form>
GDN_DEVICE void store_two(char *row, int column, const struct gdn_rows &to, bool adds, float x,
                          float y)
{
    if (form == STORE_BF16) *(uint32_t *)(row + 2 * column) = mma_format_bf16::pair(x, y);
    else if (form == STORE_F32) *(float2 *)(row + 4 * column) = make_float2(x, y);
    else store_any(row, column, to.dtype, adds, x, y);
}

/* A thread's part of Z . v; dv = beta Z. */
template <int form>
GDN_DEVICE float store_values(const struct head_rows &in, const struct value_rows &values,
                              const struct gdn_cu_backward &a, const struct stage_chunk &c,
                              int head)
{
    const int   t = threadIdx.x / 8;
    const float beta = in.g.beta[t], spoil = spoil_with(in.g, t);
    const bool  stores = t < c.n && a.dv.data;
    float       sum = 0;
    char       *row = row_at(a.dv, c.seq, t, head);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int column = 64 * i + threadIdx.x % 8 * 8;
        float     z[8], v[8];
        unpack_eight(z, *(const uint4 *)(in.z + t * DEEP_ROW + 2 * column));
        unpack_eight(v, values.v[i]);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            sum  = fmaf(z[e], v[e], sum);
            z[e] = fmaf(beta, z[e], spoil);
        }
        for (int e = 0; e < 8 && stores; e += 2)
            store_two<form>(row, column + e, a.dv, a.adds, z[e], z[e + 1]);
    }
    return sum;
}
GDN_DEVICE void store_values(struct heads_shared &sh, const struct head_rows &in,
                             const struct value_rows &values, const struct gdn_cu_backward &a,
                             const struct stage_chunk &c, int head)
{
    const int form = store_form(a.dv, a.adds);
    float     sum = form == STORE_BF16  ? store_values<STORE_BF16>(in, values, a, c, head)
                    : form == STORE_F32 ? store_values<STORE_F32>(in, values, a, c, head)
                                        : store_values<STORE_ANY>(in, values, a, c, head);
    for (int step = 1; step < 8; step *= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    if (threadIdx.x % 8 == 0) sh.zv[threadIdx.x / 8] = sum;
}

/* ---- X and Y ------------------------------------------------------------------------------- */

GDN_DEVICE float beta_or_least(float beta) { return beta == 0 ? LEAST_BETA : beta; }

/* Of a thread's rows and columns in a block. */
struct xy_factors {
    float G_row[2], x[2], y[2];           /* rows 8 r */
    float G_column[4], k_scale_column[4]; /* columns 8 h + e, at 2 h + e */
};
GDN_DEVICE struct xy_factors xy_factors_of(const vectors &g, int row, int column)
{
    struct xy_factors f;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int t = row + block_row(2 * r);
        f.G_row[r]  = g.G[t];
        f.x[r]      = -beta_or_least(g.beta[t]) * g.k_scale[t];
        f.y[r]      = g.q_scale[t];
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int t         = column + block_column(i / 2, i % 2);
        f.G_column[i]       = g.G[t];
        f.k_scale_column[i] = g.k_scale[t];
    }
    return f;
}

/* Products become X and Y, with their factors, zero where no token looks. */
GDN_DEVICE void weigh_xy(mma_block &x, mma_block &y, const vectors &g, int row, int column)
{
    const token_mask        resets = tokens_of(g.resets);
    const struct xy_factors f = xy_factors_of(g, row, column);
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const int   i = row + block_row(e % 4), j = column + block_column(e / 4, e);
        const int   of_row = e % 4 / 2, of_column = 2 * (e / 4) + e % 2;
        const float decay = ex2_approx(f.G_row[of_row] - f.G_column[of_column]) *
                            f.k_scale_column[of_column];
        bool        looks = j <= i;
        if (resets) looks = looks && !are_parted(resets, j, i);
        float &one = x[e / 4][e % 4], &two = y[e / 4][e % 4];
        one = looks && j < i ? one * f.x[of_row] * decay : 0;
        two = looks ? two * f.y[of_row] * decay : 0;
    }
}

/* A warp has a block of 16 x 16 of both; those above the diagonal are zero. */
GDN_DEVICE void make_xy(struct heads_shared &sh, const struct head_rows &in)
{
    const int      m = threadIdx.x / 32 % 4, n = threadIdx.x / 128;
    const int      at = 16 * m * CHUNK_ROW + 32 * n;
    mma_block      x, y;
    tiles::operand o;
    clear_block(x), clear_block(y);
    if (n <= m) {
#pragma unroll
        for (int d = 0; d < DEEP / 16; d++) {
            right_operand u;
            load_right(u, in.u, DEEP_ROW, n, d);
            load_part(o, in.z, DEEP_ROW, m, d);
            multiply(x, o, u);
            load_part(o, in.dout, DEEP_ROW, m, d);
            multiply(y, o, u);
        }
        weigh_xy(x, y, in.g, 16 * m, 16 * n);
    }
    tiles::pack(o, x);
    store_part(sh.X + at, CHUNK_ROW, o);
    tiles::pack(o, y);
    store_part(sh.Y + at, CHUNK_ROW, o);
}

/* ---- Gradients of a state head ------------------------------------------------------------- */

struct head_gradients {
    warp_tile dq, D, dw;
};

/* Returns the warp's part of the sum of S J: the diagonal of its blocks of S^T J, of every other
 * block of v, which the warps of other rows have. */
GDN_DEVICE float add_states(struct head_gradients &d, const struct heads_shared &sh,
                            const struct head_rows &in, const struct heads_warp &w)
{
    mma_block inner;
    float     sum = 0;
    clear_block(inner);
#pragma unroll 2
    for (int v = 0; v < DEEP / 16; v++) {
        tiles::operand rows[2];
        right_operand  S, J;
        load_right_turned(S, sh.S, DEEP_ROW, w.n, v);
        load_right_turned(J, sh.J, DEEP_ROW, w.n, v);
#pragma unroll
        for (int i = 0; i < 2; i++) load_part(rows[i], in.dout, DEEP_ROW, 2 * w.m + i, v);
        multiply_tile(d.dq, rows, S);
#pragma unroll
        for (int i = 0; i < 2; i++) load_part(rows[i], in.z, DEEP_ROW, 2 * w.m + i, v);
        multiply_tile(d.D, rows, S);
#pragma unroll
        for (int i = 0; i < 2; i++) load_part(rows[i], in.u, DEEP_ROW, 2 * w.m + i, v);
        multiply_tile(d.dw, rows, J);
        if (v % 2 == w.m) multiply(inner, { S.x[0], S.x[2], S.x[1], S.x[3] }, J);
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (block_row(i % 4) == block_column(i / 4, i)) sum += inner[i / 4][i % 4];
    weigh_rows(d.dq, w, in.g.q_start);
    weigh_rows(d.dw, w, in.g.to_end);
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int   t = tile_row(w, i, e);
            const float f = -beta_or_least(in.g.beta[t]) * in.g.from_start[t];
#pragma unroll
            for (int h = 0; h < 2; h++) d.D[i][h][e] = f == 0 ? 0 : f * d.D[i][h][e];
        }
    return sum;
}

/* Products over tokens t, in blocks of 16; what X and Y do not have is left out. */
GDN_DEVICE void add_token_products(struct head_gradients &d, const struct heads_shared &sh,
                                   const struct heads_warp &w)
{
#pragma unroll 1
    for (int t = 0; t < CHUNK / 16; t++) {
        tiles::operand x;
        right_operand  keys, queries;
        load_right_turned(keys, sh.keys.k, DEEP_ROW, w.n, t);
        load_right_turned(queries, sh.keys.q, DEEP_ROW, w.n, t);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = 2 * w.m + i;
            if (t <= row) {
                load_part(x, sh.Y, CHUNK_ROW, row, t);
                multiply(d.dq[i], x, keys);
                load_part(x, sh.X, CHUNK_ROW, row, t);
                multiply(d.D[i], x, keys);
            }
            if (t >= row) {
                load_part_turned(x, sh.Y, CHUNK_ROW, row, t);
                multiply(d.dw[i], x, queries);
                load_part_turned(x, sh.X, CHUNK_ROW, row, t);
                multiply(d.dw[i], x, keys);
            }
        }
    }
}

/* ---- Sums of rows -------------------------------------------------------------------------- */

/* Of a thread's rows, [i][row of the block / 8]. */
struct tile_sums {
    float x[2][2];
};

/* The sum of row of `tile` times `with`, of the warp's columns. */
GDN_DEVICE void dot_tile(struct tile_sums &sum, const warp_tile &x, const char *with,
                         const struct heads_warp &w)
{
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint32_t pair = *(const uint32_t *)(
                    with + tile_row(w, i, 2 * r) * DEEP_ROW + 2 * tile_column(w, h, 0));
                const float(&y)[4] = x[i][h];
                sum.x[i][r] = fmaf(mma_format_bf16::low(pair), y[2 * r], sum.x[i][r]);
                sum.x[i][r] = fmaf(mma_format_bf16::high(pair), y[2 * r + 1], sum.x[i][r]);
            }
}
/* The sum over all rows. */
GDN_DEVICE void dot_tile(float &sum, const warp_tile &x, const char *with,
                         const struct heads_warp &w)
{
    struct tile_sums rows = {};
    dot_tile(rows, x, with, w);
    sum += (rows.x[0][0] + rows.x[0][1]) + (rows.x[1][0] + rows.x[1][1]);
}
/* Sums of the warp's columns to part `which`. */
GDN_DEVICE void share_tile_sums(struct heads_shared &sh, struct tile_sums &sum, int which,
                                const struct heads_warp &w)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float &x = sum.x[i / 2][i % 2];
        for (int step = 1; step < 4; step *= 2) x += __shfl_xor_sync(0xffffffff, x, step);
        if (threadIdx.x % 4 == 0) sh.parts[w.n][tile_row(w, i / 2, i % 2 * 2)][which] = x;
    }
}
GDN_DEVICE float all_parts(const struct heads_shared &sh, int t, int which)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < DEEP / 16; i++) sum += sh.parts[i][t][which];
    return sum;
}

/* ---- Gates --------------------------------------------------------------------------------- */

/* dg of log alpha, of tokens lane and lane + 32: sums of dG from a token to the next gate that
 * forgets, or to the end, where the last token has what reaches the end. By a warp. */
GDN_DEVICE void sum_back(float (&x)[2], token_mask resets)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 1; i >= 0; i--) {
        if (i == 0) {
            const float later = __shfl_sync(0xffffffff, x[1], 0);
            if (lane == 31 && !(resets >> 32 & 1)) x[0] += later;
        }
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const float y = __shfl_down_sync(0xffffffff, x[i], step);
            const int   t = lane + 32 * i;
            if (lane + step < 32 && !are_parted(resets, t, t + step)) x[i] += y;
        }
    }
}

GDN_DEVICE void store_head_gates(const struct heads_shared &sh, const vectors &g,
                                 const struct gdn_cu_backward &a, const struct stage_chunk &c,
                                 int head)
{
    const int        lane = threadIdx.x % 32, n = g.n;
    const token_mask resets = tokens_of(g.resets);
    float            ends = 0, dg[2];
    double           sums[2] = {};
    for (int i = 0; i < HEADS_WARPS; i++) ends += sh.ends[i];
#pragma unroll
    for (int i = 0; i < 2; i++)
        dg[i] = all_parts(sh, lane + 32 * i, 0) + (lane + 32 * i == n - 1 ? ends : 0);
    sum_back(dg, resets);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int t = lane + 32 * i;
        if (t >= n) continue;
        const float spoil = spoil_with(g, t), beta = beta_or_least(g.beta[t]);
        const struct gate_gradient d =
            through_gate(a.rule, c, t, head, resets >> t & 1 ? 0 : dg[i] + spoil);
        store_gradient_of(a.dg, c, t, head, d.g, a.adds);
        const float dbeta = sh.zv[t] + all_parts(sh, t, 1) / beta + spoil;
        store_gradient_of(a.dbeta, c, t, head, through_beta(a.rule, c, t, head, dbeta), a.adds);
        sums[0] += d.A_log;
        sums[1] += d.dt_bias;
    }
    if (!a.sums) return;
    sums[0] = sum_warp(sums[0]), sums[1] = sum_warp(sums[1]);
    const double parts[1][2] = { { sums[0], sums[1] } };
    if (lane == 0) keep_sums(a, c.number, head, parts, 1);
}

/* ---- dq and dk ----------------------------------------------------------------------------- */

/* Rows of x: the gradient of a row of `given`, times the inverse of its length; through the norm,
 * to `to`. parts: sums of rows of x . given and given . given. */
template <int form>
GDN_DEVICE void store_normed(const struct heads_shared &sh, const warp_tile &x, const char *given,
                             const struct gdn_rows &to, const struct gdn_cu_backward &a,
                             const struct stage_chunk &c, int head, const vectors &g,
                             const struct heads_warp &w)
{
    const struct gdn_cu_rule &r = a.rule;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int t = tile_row(w, i, 2 * h);
            if (t >= c.n) continue;
            float f = 0; /* of given, in the gradient */
            if (r.norm != GDN_NORM_NONE) {
                const float square = all_parts(sh, t, 1);
                const float inverse = inverse_length(square, r.norm, r.norm_eps);
                f = -norm_slope(square, r) * inverse * inverse * all_parts(sh, t, 0);
            }
            const float spoil = spoil_with(g, t);
            char       *row = row_at(to, c.seq, t, head);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int column = tile_column(w, j, 0);
                const float(&y)[4] = x[i][j];
                float           z[2] = { y[2 * h] + spoil, y[2 * h + 1] + spoil };
                if (r.norm != GDN_NORM_NONE) {
                    const uint32_t pair = *(const uint32_t *)(given + t * DEEP_ROW + 2 * column);
                    z[0] = fmaf(f, mma_format_bf16::low(pair), z[0]);
                    z[1] = fmaf(f, mma_format_bf16::high(pair), z[1]);
                }
                store_two<form>(row, column, to, a.adds, z[0], z[1]);
            }
        }
}

/* The squares of rows of `given` beside x . given. */
GDN_DEVICE void share_norms(struct heads_shared &sh, const warp_tile &x, const char *given,
                            const struct heads_warp &w)
{
    struct tile_sums along = {}, squares = {};
    warp_tile        own;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int row = tile_row(w, i / 8, i % 4), column = tile_column(w, i / 4 % 2, i % 4);
        own[i / 8][i / 4 % 2][i % 4] =
            bf16_to_f32(*(const uint16_t *)(given + row * DEEP_ROW + 2 * column));
    }
    dot_tile(along, x, given, w);
    dot_tile(squares, own, given, w);
    __syncthreads();
    share_tile_sums(sh, along, 0, w);
    share_tile_sums(sh, squares, 1, w);
    __syncthreads();
}

GDN_DEVICE void store_rows(struct heads_shared &sh, const warp_tile &x, const char *given,
                           const struct gdn_rows &to, const struct gdn_cu_backward &a,
                           const struct stage_chunk &c, int key, const vectors &g)
{
    const struct heads_warp  w = heads_warp_of();
    const int                form = store_form(to, a.adds);
    if (!to.data) return;
    if (a.rule.norm != GDN_NORM_NONE) share_norms(sh, x, given, w);
    if (form == STORE_BF16) store_normed<STORE_BF16>(sh, x, given, to, a, c, key, g, w);
    else if (form == STORE_F32) store_normed<STORE_F32>(sh, x, given, to, a, c, key, g, w);
    else store_normed<STORE_ANY>(sh, x, given, to, a, c, key, g, w);
}

/* ---- A state head -------------------------------------------------------------------------- */

/* Rows with something not finite, where a gate forgets; by the whole block. */
GDN_DEVICE void clean_head(struct heads_shared &sh, struct head_rows &in)
{
    if (!tokens_of(in.g.resets)) return;
    clean_rows(sh.keys.q, DEEP_ROW, DEEP, in.g);
    clean_rows(sh.keys.k, DEEP_ROW, DEEP, in.g);
    async_fence();
    __syncthreads();
}

/* Steps and items that a block has done, which say whose turn at a barrier it is. */
struct heads_count {
    int step, item;
};

/* Adds a state head's dq and dk, once its rows are there, and stores the rest. `next`: the step
 * whose states are loaded when these are done with. */
GDN_DEVICE void run_head(warp_tile &dq, warp_tile &dk, struct heads_shared &sh,
                         struct head_rows &in, const struct gdn_cu_backward &a,
                         const struct stage_chunk &c, int head, const struct heads_step &next,
                         const struct heads_count &count)
{
    const struct heads_warp  w = heads_warp_of();
    struct head_gradients    d;
    struct tile_sums         sums[3] = {};
    {
        struct value_rows values;
        fetch_values(values, a, c, head);
        make_xy(sh, in);
        store_values(sh, in, values, a, c, head);
    }
    clear_tile(d.dq), clear_tile(d.D), clear_tile(d.dw);
    mbarrier_wait(shared_address(&sh.states_loaded), count.step % 2);
    __syncthreads();
    float inner = add_states(d, sh, in, w);
    mbarrier_wait(shared_address(&sh.keys_loaded), count.item % 2);
    __syncthreads();
    load_head_states(sh, a, next);
    clean_head(sh, in);
    float ends = in.g.decay == 0 ? 0 : in.g.decay * inner;
    dot_tile(ends, d.dw, sh.keys.k, w);
    ends = sum_warp(ends);
    if (threadIdx.x % 32 == 0) sh.ends[threadIdx.x / 32] = ends;
    add_token_products(d, sh, w);
    __syncthreads(); /* X and Y are done with */
    dot_tile(sums[0], d.dq, sh.keys.q, w);
    dot_tile(sums[1], d.D, sh.keys.k, w);
    dot_tile(sums[2], d.dw, sh.keys.k, w);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float beta = in.g.beta[tile_row(w, i / 2, i % 2 * 2)];
        sums[0].x[i / 2][i % 2] +=
            (beta == 0 ? 0 : sums[1].x[i / 2][i % 2]) - sums[2].x[i / 2][i % 2];
    }
#pragma unroll
    for (int i = 0; i < 2; i++) share_tile_sums(sh, sums[i], i, w);
    __syncthreads();
    if (threadIdx.x < 32) store_head_gates(sh, in.g, a, c, head);
    float beta[4];
#pragma unroll
    for (int i = 0; i < 4; i++) beta[i] = in.g.beta[tile_row(w, i / 2, i % 2 * 2)];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float D = d.D[i / 8][i / 4 % 2][i % 4];
        dq[i / 8][i / 4 % 2][i % 4] += d.dq[i / 8][i / 4 % 2][i % 4];
        dk[i / 8][i / 4 % 2][i % 4] +=
            (beta[i / 8 * 2 + i % 4 / 2] == 0 ? 0 : D) + d.dw[i / 8][i / 4 % 2][i % 4];
    }
}

GDN_DEVICE void backward_mma_heads(const struct gdn_cu_backward &a)
{
    struct heads_shared &sh = *(struct heads_shared *)gdn_shared;
    const int            n_readers = a.rule.H / a.rule.Hk, reader = reader_step(a.rule, a.rule.Hk);
    int64_t              item = blockIdx.x;
    struct heads_step    s = find_step(a, item);
    struct heads_count   count = {};
    warp_tile            dq, dk;
    start_barriers(sh.rows_loaded, 2);
    start_barriers(&sh.states_loaded, 1);
    start_barriers(&sh.keys_loaded, 1);
    load_head_rows(sh.rows[0], a, s, sh.rows_loaded[0]);
    load_head_states(sh, a, s);
    if (threadIdx.x == 0 && is_step(s)) sh.places[0] = a.places[s.number];
    __syncthreads();
    for (; is_step(s); count.step++) {
        const int                now = count.step % 2;
        const struct heads_step  next = next_step(a, s, item, n_readers, reader);
        const struct stage_chunk c = chunk_at(sh.places[now], s.number);
        if (s.i == 0) {
            clear_tile(dq), clear_tile(dk);
            load_head_keys(sh, a, s);
        }
        load_head_rows(sh.rows[1 - now], a, next, sh.rows_loaded[1 - now]);
        if (threadIdx.x == 0 && is_step(next)) sh.places[1 - now] = a.places[next.number];
        copy_wait<1>();
        mbarrier_wait(shared_address(&sh.rows_loaded[now]), count.step / 2 % 2);
        __syncthreads();
        run_head(dq, dk, sh, sh.rows[now], a, c, s.head, next, count);
        if (s.i == n_readers - 1) {
            store_rows(sh, dq, sh.keys.q, a.dq, a, c, s.key, sh.rows[now].g);
            store_rows(sh, dk, sh.keys.k, a.dk, a, c, s.key, sh.rows[now].g);
            count.item++;
        }
        __syncthreads();
        s = next;
    }
    copy_wait<0>();
}

#endif
