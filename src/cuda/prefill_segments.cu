/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From segment to segment of a sequence: S <- M S + U (prefill_segments.cuh), in float32. A block has
 * sixteen columns of a head's state, a warp sixteen keys of them. Lane 4 i + j has the terms of keys i,
 * i + 8, .. for the four keys from 4 j on; what it needs of M comes straight from memory, and that of
 * the next segment leaves as soon as this has been used.
 */
#include "prefill_segments.cuh"

enum { COLUMNS = 16, KEYS = 128, SHARE = KEYS / 8, WARP_KEYS = 16, S_ROW = COLUMNS + 4 };

/* What a thread knows of its place. */
struct combine_block {
    const struct gdn_cu_prefill_hopper &a;
    int64_t                             first; /* unit, */
    int                                 n;     /* and so many follow it */
    int                                 head, column, key, lane; /* column: the block's first */
};

/* Of M of unit u: row i of the lane's, its four keys. */
GDN_DEVICE float4 load_row(const struct combine_block &b, int64_t u, int i)
{
    const struct gdn_cu_rule &r = b.a.rule;
    const int                 k = b.lane / 4 + 8 * i;
    if (k >= r.K || b.key >= r.K) return make_float4(0, 0, 0, 0);
    return *(const float4 *)(b.a.cut.M + ((u * r.H + b.head) * r.K + k) * r.K + b.key);
}

/* Of the columns whose sums the lane ends with, the first. */
GDN_DEVICE int column_of(const struct combine_block &b)
{
    return (b.lane & 16) / 2 + (b.lane & 8) / 2 + (b.lane & 4) / 2;
}

/* Column v of the block's of the state of place u, the lane's keys; NULL: there is none, 0. */
GDN_DEVICE float4 *state_of(const struct combine_block &b, int64_t u, int v)
{
    const struct gdn_cu_rule &r = b.a.rule;
    if (b.key >= r.K || b.column + v >= r.V) return NULL;
    return (float4 *)(b.a.cut.states + ((u * r.H + b.head) * r.V + b.column + v) * r.K + b.key);
}

GDN_DEVICE float4 read_state_of(const struct combine_block &b, int64_t u, int v)
{
    const float4 *from = state_of(b, u, v);
    float4        x    = make_float4(0, 0, 0, 0);
    if (from) x = *from;
    return x;
}

GDN_DEVICE float4 add(const float4 &x, const float4 &y)
{
    return make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
}
GDN_DEVICE float4 pick(bool first, const float4 &x, const float4 &y)
{
    return make_float4(first ? x.x : y.x, first ? x.y : y.y, first ? x.z : y.z, first ? x.w : y.w);
}
GDN_DEVICE float4 shuffle(const float4 &x, int mask)
{
    return make_float4(__shfl_xor_sync(0xffffffff, x.x, mask), __shfl_xor_sync(0xffffffff, x.y, mask),
                       __shfl_xor_sync(0xffffffff, x.z, mask), __shfl_xor_sync(0xffffffff, x.w, mask));
}

/* sum[v] = the lane's terms of M S, while M of the next unit comes in. */
GDN_DEVICE void multiply(float4 (&sum)[COLUMNS], float4 (&M)[SHARE], const float (&S)[KEYS][S_ROW],
                         const struct combine_block &b, int64_t next)
{
#pragma unroll
    for (int i = 0; i < SHARE; i++) {
        const float4 m = M[i];
        M[i]           = load_row(b, next, i);
#pragma unroll
        for (int v = 0; v < COLUMNS; v += 4) {
            const float4 s    = *(const float4 *)&S[b.lane / 4 + 8 * i][v];
            const float  x[4] = { s.x, s.y, s.z, s.w };
#pragma unroll
            for (int j = 0; j < 4; j++) {
                sum[v + j].x = fmaf(m.x, x[j], sum[v + j].x);
                sum[v + j].y = fmaf(m.y, x[j], sum[v + j].y);
                sum[v + j].z = fmaf(m.z, x[j], sum[v + j].z);
                sum[v + j].w = fmaf(m.w, x[j], sum[v + j].w);
            }
        }
    }
}

/* Over the lanes with other rows: 2 n columns become n, and in the end sum[0] and sum[1] are those from
 * column_of() on. */
template <int n> GDN_DEVICE void gather(float4 (&sum)[COLUMNS], int lane)
{
    const bool upper = lane & 2 * n;
#pragma unroll
    for (int i = 0; i < n; i++) {
        const float4 low = sum[i], high = sum[i + n];
        sum[i] = add(pick(upper, high, low), shuffle(pick(upper, low, high), 2 * n));
    }
    if constexpr (n > 2) gather<n / 2>(sum, lane);
}

GDN_DEVICE void put(float (&S)[KEYS][S_ROW], int key, int v, const float4 &x)
{
    S[key][v] = x.x, S[key + 1][v] = x.y, S[key + 2][v] = x.z, S[key + 3][v] = x.w;
}
GDN_DEVICE float4 get(const float (&S)[KEYS][S_ROW], int key, int v)
{
    return make_float4(S[key][v], S[key + 1][v], S[key + 2][v], S[key + 3][v]);
}

GDN_DEVICE void combine(const struct combine_block &b)
{
    __shared__ __align__(16) float S[2][KEYS][S_ROW];
    const int                      own = column_of(b);
    float4                         M[SHARE];
#pragma unroll
    for (int i = 0; i < SHARE; i++) M[i] = load_row(b, b.first, i);
    for (int v = own; v < own + 2; v++) put(S[0], b.key, v, read_state_of(b, b.first, v));
    __syncthreads();
    for (int n = 0; n < b.n; n++) {
        const int64_t   u     = b.first + n;
        const uint32_t *marks = b.a.cut.marks + (u * b.a.rule.H + b.head) * 2;
        const uint32_t  idle = marks[0] & marks[1], forgets = marks[0] | marks[1];
        float4          sum[COLUMNS] = {}, U[2];
#pragma unroll
        for (int i = 0; i < 2; i++) U[i] = read_state_of(b, u + 1, own + i);
        multiply(sum, M, S[n % 2], b, n + 1 < b.n ? u + 1 : u);
        gather<COLUMNS / 2>(sum, b.lane);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float4 x = add(U[i], sum[i]);
            if (forgets & GDN_SEGMENT_FORGETS) /* whatever S holds (G7) */
                x = U[i];
            else if (idle & GDN_SEGMENT_IDLE) /* every bit of S stays (G9) */
                x = get(S[n % 2], b.key, own + i);
            put(S[(n + 1) % 2], b.key, own + i, x);
            if (float4 *to = state_of(b, u + 1, own + i)) *to = x;
        }
        __syncthreads();
    }
}

/* Blocks: columns, heads, sequences. */
GDN_DEVICE void run_combine(const struct gdn_cu_prefill_hopper &a)
{
    const struct gdn_cu_rule &r      = a.rule;
    const int                 slices = (r.V + COLUMNS - 1) / COLUMNS, lane = threadIdx.x % 32;
    const int64_t             row    = blockIdx.x / slices / r.H;
    griddepcontrol_launch_dependents();
    const int64_t n = later_segments_of(r.batch, a.cut, row), first = units_before(r.batch, a.cut, row);
    griddepcontrol_wait();
    if (n < 2) return;
    const struct combine_block b = { a, first, (int)n - 1, (int)(blockIdx.x / slices % r.H),
                                     (int)(blockIdx.x % slices) * COLUMNS,
                                     (int)threadIdx.x / 32 * WARP_KEYS + lane % 4 * 4, lane };
    combine(b);
}

#define GDN_IMAGE_prefill_segments GDN_THIS_IMAGE
#define GDN_KERNEL_prefill_segments(threads, shared, form)                                     \
    extern "C" __global__ void __launch_bounds__(threads, 1)                                   \
        gdn_prefill_segments_##form(const __grid_constant__ struct gdn_cu_prefill_hopper a)    \
    {                                                                                         \
        run_combine(a);                                                                        \
    }
#include "kernels.cuh"
