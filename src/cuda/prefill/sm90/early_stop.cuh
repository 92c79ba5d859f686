/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the summary of a segment may begin (gdn.h, GDN_NO_EARLY_STOP). Of a state S a token leaves
 *
 *     (I - beta k k^T) alpha S    with, in the 2-norm, |I - beta k k^T| <= max(1, |1 - beta |k|^2|)
 *
 * so of what was before some tokens nothing is left but the product of these bounds and of their alpha.
 * If that is 2^-25 or less from some chunk on, the summary is of the chunks from there: U from zeros, and
 * M nothing. (gdn.h says 2^-24: sums of float32 may be off by as much as the rest.)
 *
 * Keys have a length of one, and what rounding added, as the call normalises them: of others nothing is
 * known, and none of this is done. Of a segment of gdn_prefill the second half alone is looked at: where
 * less than half could be saved, it would not pay for looking. Of a sequence of gdn_summary, the last 4096
 * tokens are: what lies before the chunk that is found there needs no summary. If there is none, each unit
 * looks at its own last 4096 tokens.
 */
#ifndef GDN_CUDA_PREFILL_HOPPER_TAIL_CUH
#define GDN_CUDA_PREFILL_HOPPER_TAIL_CUH

#include "cuda/device/quad.cuh"
#include "cuda/prefill/sm90/kernel.cuh"

/* Chunks that are summed at once, four tokens in each thread. */
enum { TAIL_CHUNKS = 32, TAIL_EACH = 4, TAIL_THREADS = TAIL_CHUNKS * 64 / TAIL_EACH };

/* log2 of what may be left at the end of a segment; and the square of the longest key, 1 + 2^-8. */
constexpr float tail_left = -25, tail_longest = 257 * 257 / 65536.0f;

/* log2 of what a token may leave, of its gate and beta as they lie in memory. */
GDN_DEVICE float log_left(const struct hopper_block &b, uint32_t gate, uint32_t given, float A_log,
                          float dt_bias)
{
    const struct gdn_cu_rule &r = b.r;
    float                     g = 0, beta = 1;
    if (r.g.data) g = gate_value(r, bits_to_f32(gate, r.g.dtype), A_log, dt_bias, false);
    if (r.beta.data) beta = beta_value(r, bits_to_f32(given, r.beta.dtype));
    const float reach = fabsf(1 - beta * tail_longest);
    return g * 1.44269504f + (reach <= 1 ? 0 : log2f(reach));
}

/* The thread's tokens before chunk `end`; 0 where there is none. */
GDN_DEVICE void read_left(float (&x)[TAIL_EACH], const struct hopper_block &b, int end)
{
    const struct gdn_cu_rule &r     = b.r;
    const float               A_log = load_vector(r.A_log, b.head, 0);
    const float               dt_bias = load_vector(r.dt_bias, b.head, 0);
    const int64_t             last    = (int64_t)end * 64 - 1 - threadIdx.x, n = b.s().n_tokens;
    uint32_t                  g[TAIL_EACH], beta[TAIL_EACH];
#pragma unroll
    for (int i = 0; i < TAIL_EACH; i++) { /* all on their way at once */
        const int64_t t = last - i * TAIL_THREADS;
        const bool    there = t >= 0 && t < n;
        g[i]    = load_parts(row_at(r.g, b.s(), t, b.head), 0, r.g.dtype, there && r.g.data);
        beta[i] = load_parts(row_at(r.beta, b.s(), t, b.head), 0, r.beta.dtype, there && r.beta.data);
    }
#pragma unroll
    for (int i = 0; i < TAIL_EACH; i++) {
        const int64_t t = last - i * TAIL_THREADS;
        x[i] = t < 0 || t >= n ? 0 : log_left(b, g[i], beta[i], A_log, dt_bias);
    }
}

/* Sums of chunks: of lane l, of the l + 1 chunks before chunk `end`. By all threads. */
GDN_DEVICE float sum_left(const struct hopper_block &b, int end)
{
    static_assert(2 * TAIL_CHUNKS * sizeof(float) <= sizeof(chunk_gates<64>), "fill_lengths() is behind");
    float    *halves = (float *)(gdn_shared + HOPPER_GATES); /* of chunks, the last one first */
    const int thread = threadIdx.x;
    float     x[TAIL_EACH];
    read_left(x, b, end);
    __syncthreads(); /* all have read those before */
#pragma unroll
    for (int i = 0; i < TAIL_EACH; i++) {
        for (int step = 16; step; step /= 2) x[i] += __shfl_xor_sync(0xffffffff, x[i], step);
        if (thread % 32 == 0) halves[(thread + i * TAIL_THREADS) / 32] = x[i];
    }
    __syncthreads();
    const float2 chunk = ((const float2 *)halves)[thread % 32];
    return scan_lanes(chunk.x + chunk.y);
}

/* Returns the last chunk from which on nothing is left of what was before, if it is one of the
 * 32 n_steps chunks before chunk `end`; else -1. By all threads. */
GDN_DEVICE int find_tail(const struct hopper_block &b, int end, int n_steps)
{
    float left = 0;
    for (; end > 0 && n_steps > 0; end -= TAIL_CHUNKS, n_steps--) {
        const float    here  = left + sum_left(b, end);
        const unsigned found = __ballot_sync(0xffffffff, here <= tail_left);
        if (found) return end - __ffs((int)found);
        left = __shfl_sync(0xffffffff, here, 31);
    }
    return -1;
}

/* The same of a segment of gdn_prefill: one of its second half. */
GDN_DEVICE int find_segment_tail(const struct hopper_block &b)
{
    const int n = b.n_chunks, chunk = find_tail(b, n, ((n + 1) / 2 + TAIL_CHUNKS - 1) / TAIL_CHUNKS);
    return 2 * chunk > n ? chunk : -1;
}

/* The same of a unit of gdn_summary: of the end of its sequence, which may be behind the unit; or of
 * its own end. The blocks of a sequence find one chunk at its end. */
GDN_DEVICE int find_range_tail(const struct hopper_block &b)
{
    enum { STEPS = 2 };
    const int all = (int)((b.s().n_tokens + 63) / 64), tail = find_tail(b, all, STEPS);
    return tail < 0 && all > b.n_chunks ? find_tail(b, b.n_chunks, STEPS) : tail;
}

/* The segment becomes what its summary has to be of: nothing, if what it leaves is forgotten before
 * the end of a sequence of gdn_summary. By all threads, before gates are made: their memory is
 * used. */
GDN_DEVICE void skip_forgotten(struct hopper_block &b)
{
    const int tail  = b.a.summary ? find_range_tail(b) : find_segment_tail(b);
    const int first = min(tail, b.n_chunks);
    __syncthreads();
    if (first < 0) return;
    if (threadIdx.x == 0) {
        b.common().s.first += (int64_t)first * 64;
        b.common().s.n_valid -= (int64_t)first * 64;
        b.common().s.n_tokens -= (int64_t)first * 64;
    }
    __syncthreads();
    b.forgets = true;
    b.n_chunks -= first;
}

#endif
