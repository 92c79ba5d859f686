/* SPDX-License-Identifier: Apache-2.0 */
/* Columns of heads.cuh: dk, and their part of dg. */
#ifndef GDN_CUDA_BACKWARD_CHUNKS_HEADS_COLUMNS_CUH
#define GDN_CUDA_BACKWARD_CHUNKS_HEADS_COLUMNS_CUH

#include "cuda/backward/chunks/heads_sums.cuh"

/* Begins dk with the terms of the state after the chunk, and those of each token with itself. */
template <int io, int deep>
__device__ __forceinline__ void chunk_heads<io, deep>::start_columns(lane_rows &dk)
{
    const int64_t step = a.base.head_dk.token;
    const char *by_u = lane_row(a.base.head_dk) + 15 * step;
    float *const sums = sh.level.sums[m.warp] + 2 * m.lane;
    float2 f = total(m.group + 1, GROUPS), sum = make_float2(0, 0);
    __syncwarp();
#pragma unroll
    for (int t = 15; t >= 0; t--, by_u -= step) {
        float2 k = make_float2(0, 0);
        if (m.has(t)) k = times(f, *(const float2 *)by_u);
        const float y = diagonal(t);
        dk[t] = fma_to(make_float2(y, y), word(m.x.q[t]), add_to(dk[t], k));
        *(float2 *)(sums + t * SUMS_LD) = times(word(m.x.k[t]), k);
        f = ::times(f, m.x.a[t]);
    }
#pragma unroll
    for (int t = 0; t < 16; t++) {
        add_dg(t, sum);
        sum = add_to(sum, *(const float2 *)(sums + t * SUMS_LD));
    }
    *(float2 *)&sh.of_columns[m.group][m.channel] = sum;
}

/* Computes the level of blocks of 2 s tokens (chunk_maker::put_level_rows()). */
template <int io, int deep>
template <int s>
__device__ __forceinline__ void chunk_heads<io, deep>::own_columns(lane_rows &dk)
{
    char *const own = sh.level.own[m.warp];
    const uint32_t left[4] = { turn_matrix(level_pair<s>(sh.X)), 0,
                               turn_matrix(level_pair<s>(sh.Y)), 0 };
    const uint32_t rows = shared_address(own) + tiles::lane(STAGE_ROW);
    float *const to = sh.level.sums[m.warp] + m.lane / 4 * SUMS_LD + m.lane % 4 * 2;
    const float *const from = sh.level.sums[m.warp] + 2 * m.lane;
    m.template put_level_rows<s>(own);
    __syncwarp();
#pragma unroll
    for (int y = 0; y < 64; y += 16) {
        uint32_t e[4];
        load_matrices_turned(e, rows + 2 * y);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float sum[4] = {};
            pairs::mma(sum, left, e[2 * i], e[2 * i + 1]);
            *(float2 *)(to + y + 8 * i) = make_float2(sum[0], sum[1]);
        }
    }
    __syncwarp();
#pragma unroll
    for (int block = 0; block < 16; block += 2 * s) {
        float2 f[s], sum = make_float2(0, 0);
#pragma unroll
        for (int j = s - 1; j >= 0; j--)
            f[j] = j == s - 1 ? make_float2(1, 1) : ::times(f[j + 1], m.x.a[block + j + 1]);
#pragma unroll
        for (int j = 0; j < s; j++) {
            const int t = block + j;
            const float2 k = times(f[j], *(const float2 *)(from + (block / 2 + j) * SUMS_LD));
            add_dg(t, sum);
            dk[t] = add_to(dk[t], k);
            sum = fma_to(word(m.x.k[t]), k, sum);
        }
    }
    __syncwarp();
}

/* Adds the warp's sums, times the factors f of its tokens. Returns the part of them in dg of later
 * tokens. */
template <int io, int deep>
__device__ __forceinline__ float2 chunk_heads<io, deep>::add_columns(lane_rows &dk, float2 f)
{
    float *const sums = sh.level.sums[m.warp] + 2 * m.lane;
    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int t = 15; t >= 0; t--) {
        float2 &part = *(float2 *)(sums + t * SUMS_LD);
        const float2 k = times(f, part);
        dk[t] = add_to(dk[t], k);
        part = times(word(m.x.k[t]), k);
        f = ::times(f, m.x.a[t]);
    }
#pragma unroll
    for (int t = 0; t < 16; t++) {
        add_dg(t, sum);
        sum = add_to(sum, *(const float2 *)(sums + t * SUMS_LD));
    }
    return sum;
}

/* Computes the level of blocks of 2 n groups. */
template <int io, int deep>
__device__ __forceinline__ void chunk_heads<io, deep>::level_columns(lane_rows &dk, int n)
{
    const int middle = m.group / (2 * n) * 2 * n + n; /* the first group whose tokens are rows */
    const int q = n == 1 ? m.group / 2 : m.group - n; /* the place of rows of q, in groups */
    mma_block x[4];
    __syncthreads(); /* the memory has been read */
    if (m.group >= middle)
        m.put_rows(sh.level.k + 16 * m.group * row, sh.level.q + 16 * q * row,
                   total(middle, m.group));
    __syncthreads();
    if (in_warp(m.group >= middle)) return;
    clear_blocks(x);
#pragma unroll 1
    for (int i = middle; i < middle + n; i++) {
        multiply_block(x, sh.X, i, m.group, sh.level.k, 16 * i, true);
        multiply_block(x, sh.Y, i, m.group, sh.level.q, 16 * (n == 1 ? i / 2 : i - n), true);
    }
    put_sums(0, x);
    __syncwarp();
    const float2 sum = add_columns(dk, total(m.group + 1, middle));
    if (n == 2 && m.group == 0) *(float2 *)&sh.of_half_columns[m.channel] = sum;
}

/* Completes dg. Stores rows of dg and dk. */
template <int io, int deep>
__device__ __forceinline__ void chunk_heads<io, deep>::end_columns(const lane_rows &dk,
                                                                   float &taint) const
{
    char *to_k = lane_row(a.base.head_dk), *to_g = lane_row(a.a);
    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < GROUPS; i++) sum = add_to(sum, *(const float2 *)&sh.inner[i][m.channel]);
    sum = times(sum, total(0, GROUPS));
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        if (i > m.group) sum = add_to(sum, *(const float2 *)&sh.of_rows[i][m.channel]);
        if (i < m.group) sum = add_to(sum, *(const float2 *)&sh.of_columns[i][m.channel]);
    }
    if (m.group == 2) sum = add_to(sum, *(const float2 *)&sh.of_half_rows[m.channel]);
    if (m.group == 1) sum = add_to(sum, *(const float2 *)&sh.of_half_columns[m.channel]);
#pragma unroll
    for (int t = 0; t < 16; t++, to_k += a.base.head_dk.token, to_g += a.a.token) {
        if (!m.has(t)) continue;
        float2 x = add_to(dg(t), sum);
        if (m.x.a[t][0] == 0) x.x = 0;
        if (m.x.a[t][1] == 0) x.y = 0;
        *(float2 *)to_k = dk[t];
        *(float2 *)to_g = x;
        taint = fmaf(dk[t].x + dk[t].y + x.x + x.y, 0, taint);
    }
}

#endif
