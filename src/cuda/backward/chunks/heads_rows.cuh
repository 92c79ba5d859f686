/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of heads.cuh: dq, de, and their part of dg. */
#ifndef GDN_CUDA_BACKWARD_CHUNKS_HEADS_ROWS_CUH
#define GDN_CUDA_BACKWARD_CHUNKS_HEADS_ROWS_CUH

#include "cuda/backward/chunks/heads_sums.cuh"

/* Begins dq and de with the terms of the state before the chunk, and those of each token with
 * itself. */
template <int io, int deep>
__device__ __forceinline__ void chunk_heads<io, deep>::start_rows(lane_rows &dq, lane_rows &de)
{
    float2 f = total(0, m.group), sum = make_float2(0, 0);
#pragma unroll
    for (int t = 0; t < 16; t++) {
        f = ::times(f, m.x.a[t]);
        dq[t] = times(f, dq[t]);
        de[t] = times(make_float2(-f.x, -f.y), de[t]);
    }
#pragma unroll
    for (int t = 15; t >= 0; t--) {
        const float y = diagonal(t);
        sum = fma_to(word(m.x.q[t]), dq[t], fma_to(word(m.x.e[t]), de[t], sum));
        dg(t) = sum;
        dq[t] = fma_to(make_float2(y, y), word(m.x.k[t]), dq[t]);
    }
    *(float2 *)&sh.of_rows[m.group][m.channel] = sum;
}

/* Computes the level of blocks of 2 s tokens (chunk_maker::put_level_columns()). */
template <int io, int deep>
template <int s>
__device__ __forceinline__ void chunk_heads<io, deep>::own_rows(lane_rows &dq, lane_rows &de)
{
    char *const own = sh.level.own[m.warp];
    const uint32_t left[4] = { level_pair<s>(sh.X), level_pair<s>(sh.Y), 0, 0 };
    const uint32_t columns = shared_address(own) + m.lane % 8 * STAGE_ROW + m.lane / 8 * 16;
    float *const to = sh.level.sums[m.warp] + m.lane / 4 * SUMS_LD + m.lane % 4 * 2;
    const float *const from = sh.level.sums[m.warp] + 2 * m.lane;
    m.template put_level_columns<s>(own);
    __syncwarp();
#pragma unroll
    for (int y = 0; y < 64; y += 32) {
        uint32_t k[4];
        load_matrices_turned(k, columns + 2 * y);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float sum[4] = {};
            pairs::mma(sum, left, k[i], 0);
            *(float2 *)(to + y + 8 * i) = make_float2(sum[0], sum[1]);
            *(float2 *)(to + 8 * SUMS_LD + y + 8 * i) = make_float2(sum[2], sum[3]);
        }
    }
    __syncwarp();
#pragma unroll
    for (int block = 0; block < 16; block += 2 * s) {
        float2 f[s], sum = make_float2(0, 0);
#pragma unroll
        for (int i = 0; i < s; i++)
            f[i] = ::times(i ? f[i - 1] : make_float2(1, 1), m.x.a[block + s + i]);
#pragma unroll
        for (int i = s - 1; i >= 0; i--) {
            const int t = block + s + i, at = (block / 2 + i) * SUMS_LD;
            const float2 e = times(f[i], *(const float2 *)(from + at));
            const float2 q = times(f[i], *(const float2 *)(from + at + 8 * SUMS_LD));
            de[t] = add_to(de[t], e);
            dq[t] = add_to(dq[t], q);
            sum = fma_to(word(m.x.e[t]), e, fma_to(word(m.x.q[t]), q, sum));
            add_dg(t, sum);
        }
    }
    __syncwarp();
}

/* Adds the sums of e, then those of q, from the warp's memory, times the factors f of the
 * tokens. Returns their part of dg of earlier tokens. */
template <int io, int deep>
__device__ __forceinline__ float2 chunk_heads<io, deep>::add_rows(lane_rows &dq, lane_rows &de,
                                                                  float2 f)
{
    float *const sums = sh.level.sums[m.warp] + 2 * m.lane;
    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int t = 0; t < 16; t++) {
        float2 &part = *(float2 *)(sums + t * SUMS_LD);
        f = ::times(f, m.x.a[t]);
        const float2 e = times(f, part);
        const float2 q = times(f, *(const float2 *)(sums + (16 + t) * SUMS_LD));
        de[t] = add_to(de[t], e);
        dq[t] = add_to(dq[t], q);
        part = fma_to(word(m.x.q[t]), q, times(word(m.x.e[t]), e));
    }
#pragma unroll
    for (int t = 15; t >= 0; t--) {
        sum = add_to(sum, *(const float2 *)(sums + t * SUMS_LD));
        add_dg(t, sum);
    }
    return sum;
}

/* Computes the level of blocks of 2 n groups. */
template <int io, int deep>
__device__ __forceinline__ void chunk_heads<io, deep>::level_rows(lane_rows &dq, lane_rows &de,
                                                                  int n)
{
    const int middle = m.group / (2 * n) * 2 * n + n; /* the first group whose tokens are rows */
    __syncthreads();                                  /* the memory has been read */
    if (m.group < middle)
        m.put_columns(sh.level.k + 16 * m.group * row, total(m.group + 1, middle));
    __syncthreads();
    if (in_warp(m.group < middle)) return;
#pragma unroll 1
    for (int y = 0; y < 2; y++) {
        mma_block x[4];
        clear_blocks(x);
#pragma unroll 1
        for (int j = middle - n; j < middle; j++)
            multiply_block(x, y ? sh.Y : sh.X, m.group, j, sh.level.k, 16 * j, false);
        put_sums(16 * y, x);
    }
    __syncwarp();
    const float2 sum = add_rows(dq, de, total(middle, m.group));
    if (n == 2 && m.group == GROUPS - 1) *(float2 *)&sh.of_half_rows[m.channel] = sum;
}

/* Puts b of the lane's tokens into the warp's memory. It is a loop, because code for each token,
 * which seldom runs, would delay all code behind it. */
template <int io, int deep>
__device__ __forceinline__ void chunk_heads<io, deep>::put_betas(float *betas) const
{
    const struct gdn_cu_rule &r = m.r;
#pragma unroll 1
    for (int t = 0; t < 16 && m.has(t); t++) {
        const float beta = sh.tokens.beta[16 * m.group + t];
        const int64_t at = sh.chunk.t0 + 16 * m.group + t;
        float2 b = make_float2(beta, beta);
        if (r.family.beta_rows) {
            b.x = family_b(r, sh.chunk.seq, at, m.head, 0, m.channel);
            b.y = family_b(r, sh.chunk.seq, at, m.head, 0, m.channel + 1);
        }
        *(float2 *)(betas + t * SUMS_LD) = b;
    }
}

/* Stores rows of dq and of db. de becomes its part of dk. */
template <int io, int deep>
__device__ __forceinline__ void chunk_heads<io, deep>::end_rows(lane_rows &dq, lane_rows &de,
                                                                float &taint) const
{
    char *to_q = lane_row(a.base.head_dq), *to_b = lane_row(a.e);
    float *const betas = sh.level.sums[m.warp] + 2 * m.lane;
    put_betas(betas);
#pragma unroll
    for (int t = 0; t < 16; t++, to_q += a.base.head_dq.token, to_b += a.e.token) {
        if (!m.has(t)) continue;
        const float2 b = *(const float2 *)(betas + t * SUMS_LD);
        const float2 db = times(word(m.x.k[t]), de[t]);
        *(float2 *)to_q = dq[t];
        *(float2 *)to_b = db;
        de[t] = times(b, de[t]);
        taint = fmaf(db.x + db.y + dq[t].x + dq[t].y, 0, taint);
    }
}

#endif
