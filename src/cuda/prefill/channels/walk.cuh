/* SPDX-License-Identifier: Apache-2.0 */
/* Computes a chunk token by token, in float32. A warp has 16 value columns of a state. It is for
 * chunks in which products of matrices would spread values that are not finite to tokens that do
 * not depend on them. */
#ifndef GDN_CUDA_PREFILL_CHANNELS_WALK_CUH
#define GDN_CUDA_PREFILL_CHANNELS_WALK_CUH

#include "cuda/device/family.cuh"
#include "cuda/prefill/channels/record.cuh"
#include "cuda/prefill/general_state.cuh"

/* Sums over the four lanes that share rows. */
GDN_DEVICE float sum_row_lanes(float x)
{
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

/* Returns the factor of a row of keys or queries. */
template <int io, int deep>
GDN_DEVICE float row_length(const struct gdn_cu_rule &r, const char *row)
{
    typedef typename gdn_io<io>::type element;
    float sum = 0;
    if (r.norm == GDN_NO_NORM) return 1;
    for (int i = threadIdx.x % 4; i < r.K; i += 4) {
        const float x = gdn_io<io>::load((const element *)row + i);
        sum = fmaf(x, x, sum);
    }
    return inverse_length(sum_row_lanes(sum), r.norm, r.norm_eps);
}

/* The tokens of a head, in order. */
struct walk_tokens {
    const struct gdn_cu_rule &r;
    const struct gdn_cu_seq &s;
    int64_t t0;
    int n, head;
};

/* Walks through tokens. leave() gets u and o of a token for the lane's rows. All lanes call it. */
template <int io, int deep, class Leave>
static __device__ __noinline__ void walk_chunk(mma_block (&S)[deep / 16],
                                               const struct walk_tokens &b,
                                               const struct state_part &part, const Leave leave)
{
    typedef typename gdn_io<io>::type element;
    const struct gdn_cu_rule &r = b.r;
    const int n = b.n;
#pragma unroll 1
    for (int t = 0; t < n; t++) {
        const int64_t at = b.t0 + t;
        const char *key = row_at(r.k, b.s, at, source_head(r, b.head, r.Hk));
        const char *query = r.out.data ? row_at(r.q, b.s, at, source_head(r, b.head, r.Hq)) : key;
        const char *value = row_at(r.v, b.s, at, source_head(r, b.head, r.Hv));
        const float k_length = row_length<io, deep>(r, key);
        const float q_length = row_length<io, deep>(r, query) * r.scale;
        float p[2] = {}, o[2] = {}, u[2];
        bool reads = false;
#pragma unroll
        for (int i = 0; i < deep / 4; i++) { /* this lane's keys */
            const int y = i / 4, h = i / 2 % 2, e = i % 2, x = 16 * y + block_column(h, e);
            if (x >= r.K) continue;
            const float a = family_gate(r, b.s, at, b.head, x, true);
            const float beta = family_b(r, b.s, at, b.head, 0, x);
            const float k = gdn_io<io>::load((const element *)key + x) * k_length;
            reads |= beta != 0;
#pragma unroll
            for (int d = 0; d < 2; d++) {
                float &state = S[y][h][e + 2 * d];
                state = a == 0 ? 0 : state * a;
                if (beta != 0) p[d] = fmaf(beta * k, state, p[d]);
            }
        }
        reads = (__ballot_sync(0xffffffff, reads) >> (threadIdx.x % 32 & ~3) & 15) != 0;
#pragma unroll
        for (int d = 0; d < 2; d++) {
            const int v = min(part.v + block_row(2 * d), part.V - 1);
            const float w = family_w(r, b.s, at, b.head, 0, v);
            u[d] = family_written(w, w == 0 ? 0 : gdn_io<io>::load((const element *)value + v)) -
                   sum_row_lanes(p[d]);
            if (!reads && w == 0) u[d] = 0;
        }
#pragma unroll
        for (int i = 0; i < deep / 4; i++) {
            const int y = i / 4, h = i / 2 % 2, e = i % 2, x = 16 * y + block_column(h, e);
            if (x >= r.K) continue;
            const float k = gdn_io<io>::load((const element *)key + x) * k_length;
            const float q = gdn_io<io>::load((const element *)query + x) * q_length;
#pragma unroll
            for (int d = 0; d < 2; d++) {
                float &state = S[y][h][e + 2 * d];
                if (u[d] != 0) state = fmaf(k, u[d], state);
                o[d] = fmaf(q, state, o[d]);
            }
        }
        o[0] = sum_row_lanes(o[0]), o[1] = sum_row_lanes(o[1]);
        leave(t, u, o);
    }
}

#endif
