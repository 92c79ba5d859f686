/* SPDX-License-Identifier: Apache-2.0 */
/* Computes S <- M S + U from segment to segment of a sequence (sm90/segments.cuh), in float32. A
 * block has eight columns of a head's state. Each warp has 16 of the 128 keys of a sum. It loads
 * their rows of M from memory, which no other warp needs, and requests those of the next segment as
 * soon as it has used these. */
#ifndef GDN_CUDA_PREFILL_COMBINE_CUH
#define GDN_CUDA_PREFILL_COMBINE_CUH

#include "cuda/device/io.cuh"
#include "cuda/prefill/args.h"

enum { COLUMNS = GDN_SEGMENT_COLUMNS, KEYS = 128, WARPS = 8, SHARE = KEYS / WARPS };

/* The values that a block holds. */
struct combine_block {
    const struct gdn_cu_rule &r;
    const struct gdn_cu_segments &cut;
    int64_t first; /* the first unit */
    int n;         /* units after it */
    int head, column, warp, lane;
};

/* Returns four columns of the warp's row i of M of unit u. */
GDN_DEVICE float4 load_row(const struct combine_block &b, int64_t u, int i)
{
    const struct gdn_cu_rule &r = b.r;
    const int k = b.warp * SHARE + i;
    if (k >= r.K || 4 * b.lane >= r.K) return make_float4(0, 0, 0, 0);
    return *(const float4 *)(b.cut.M + ((u * r.H + b.head) * r.K + k) * r.K + 4 * b.lane);
}

/* Returns the address of column v of the state of place u, for this lane's four keys. */
GDN_DEVICE float4 *column_of(const struct combine_block &b, int64_t u, int v)
{
    const struct gdn_cu_rule &r = b.r;
    return (float4 *)(b.cut.states + ((u * r.H + b.head) * r.V + b.column + v) * r.K) + b.lane;
}

/* Adds the warp's part of M S to sum[v], while M of the next unit is loaded. */
GDN_DEVICE void add_product(float4 (&sum)[COLUMNS], float4 (&M)[SHARE],
                            const float (&S)[COLUMNS][KEYS], const struct combine_block &b,
                            int64_t next)
{
#pragma unroll
    for (int i = 0; i < SHARE; i += 4) {
        float4 s[COLUMNS];
#pragma unroll
        for (int v = 0; v < COLUMNS; v++) s[v] = *(const float4 *)&S[v][b.warp * SHARE + i];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float4 m = M[i + j];
            M[i + j] = load_row(b, next, i + j);
#pragma unroll
            for (int v = 0; v < COLUMNS; v++) {
                const float x = j == 0 ? s[v].x : j == 1 ? s[v].y : j == 2 ? s[v].z : s[v].w;
                sum[v].x = fmaf(m.x, x, sum[v].x);
                sum[v].y = fmaf(m.y, x, sum[v].y);
                sum[v].z = fmaf(m.z, x, sum[v].z);
                sum[v].w = fmaf(m.w, x, sum[v].w);
            }
        }
    }
}

GDN_DEVICE void combine(const struct combine_block &b)
{
    __shared__ __align__(16) float S[COLUMNS][KEYS], parts[WARPS][COLUMNS][KEYS];
    const struct gdn_cu_rule &r = b.r;
    const int v = b.warp; /* the column whose sums the warp adds up */
    const bool there = 4 * b.lane < r.K;
    float4 M[SHARE];
    *(float4 *)&S[v][4 * b.lane] = there ? *column_of(b, b.first, v) : make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < SHARE; i++) M[i] = load_row(b, b.first, i);
    __syncthreads();
    for (int64_t u = b.first; u < b.first + b.n; u++) {
        const uint32_t *marks = b.cut.marks + (u * r.H + b.head) * 2;
        const uint32_t idle = marks[0] & marks[1], forgets = marks[0] | marks[1];
        float4 sum[COLUMNS] = {}, U = make_float4(0, 0, 0, 0);
        if (there) U = *column_of(b, u + 1, v);
        add_product(sum, M, S, b, u + 1 < b.first + b.n ? u + 1 : u);
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) *(float4 *)&parts[b.warp][i][4 * b.lane] = sum[i];
        __syncthreads();
        float4 x = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float4 y = *(const float4 *)&parts[w][v][4 * b.lane];
            x.x += y.x, x.y += y.y, x.z += y.z, x.w += y.w;
        }
        x.x += U.x, x.y += U.y, x.z += U.z, x.w += U.w;
        if (forgets & GDN_SEGMENT_FORGETS) /* sets S to zero whatever it holds (G7), beyond K too */
            x = U;
        else if (idle & GDN_SEGMENT_IDLE) /* keeps every bit of S (G9) */
            x = *(const float4 *)&S[v][4 * b.lane];
        *(float4 *)&S[v][4 * b.lane] = x;
        if (there) *column_of(b, u + 1, v) = x;
        __syncthreads();
    }
}

#endif
