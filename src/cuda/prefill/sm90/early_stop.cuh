/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The start of a segment's summary (gdn.h, GDN_NO_EARLY_STOP). A token changes a state S to
 *
 *     (I - beta k k^T) alpha S    with, in the 2-norm, |I - beta k k^T| <= max(1, |1 - beta |k|^2|)
 *
 * So of a state before some tokens at most the product of these bounds and of alpha is left. If
 * that is 2^-25 or less from some chunk on, the summary is computed from that chunk: U from zeros,
 * and M = 0. (gdn.h says 2^-24, which leaves room for the float32 sums here.)
 *
 * This needs keys that the call normalises: their length is one, up to rounding. Other lengths are
 * unknown. Only the second half of the segment is tested: saving less than half would not pay for
 * the test.
 */
#ifndef GDN_CUDA_PREFILL_HOPPER_TAIL_CUH
#define GDN_CUDA_PREFILL_HOPPER_TAIL_CUH

#include "cuda/prefill/sm90/kernel.cuh"
#include "cuda/prefill/sm90/left.cuh"

/* Chunks that are summed at once. A thread has four tokens. */
enum { TAIL_CHUNKS = 32, TAIL_EACH = 4, TAIL_THREADS = TAIL_CHUNKS * 64 / TAIL_EACH };

/* Loads the thread's tokens before chunk `end`; 0 for tokens that do not exist. */
GDN_DEVICE void read_left(float (&x)[TAIL_EACH], const struct hopper_block &b, int end)
{
    const struct gdn_cu_rule &r = b.r;
    const float A_log = load_vector(r.A_log, b.head, 0);
    const float dt_bias = load_vector(r.dt_bias, b.head, 0);
    const int64_t last = (int64_t)end * 64 - 1 - threadIdx.x;
    uint32_t g[TAIL_EACH], beta[TAIL_EACH];
#pragma unroll
    for (int i = 0; i < TAIL_EACH; i++) { /* all loads are under way at once */
        const int64_t t = last - i * TAIL_THREADS;
        g[i] = load_parts(row_at(r.g, b.s(), t, b.head), 0, r.g.dtype, t >= 0 && r.g.data);
        beta[i] =
            load_parts(row_at(r.beta, b.s(), t, b.head), 0, r.beta.dtype, t >= 0 && r.beta.data);
    }
#pragma unroll
    for (int i = 0; i < TAIL_EACH; i++)
        x[i] = last < i * TAIL_THREADS ? 0 : log_left(r, g[i], beta[i], A_log, dt_bias);
}

/* Returns a sum over chunks: lane l has that of the l + 1 chunks before chunk `end`. All threads
 * call it. */
GDN_DEVICE float sum_left(const struct hopper_block &b, int end)
{
    static_assert(2 * TAIL_CHUNKS * sizeof(float) <= sizeof(chunk_gates<64>),
                  "fill_lengths() is behind");
    float *halves = (float *)(gdn_shared + HOPPER_GATES); /* sums of half chunks, the last one
                                                             first */
    const int thread = threadIdx.x;
    float x[TAIL_EACH];
    read_left(x, b, end);
    __syncthreads(); /* all threads have read the sums before */
#pragma unroll
    for (int i = 0; i < TAIL_EACH; i++) {
        for (int step = 16; step; step /= 2) x[i] += __shfl_xor_sync(0xffffffff, x[i], step);
        if (thread % 32 == 0) halves[(thread + i * TAIL_THREADS) / 32] = x[i];
    }
    __syncthreads();
    const float2 chunk = ((const float2 *)halves)[thread % 32];
    return scan_lanes(chunk.x + chunk.y);
}

/* Returns the last chunk at which a summary may begin; -1: it must begin at the start. All threads
 * call it. */
GDN_DEVICE int find_tail(const struct hopper_block &b)
{
    float left = 0;
    for (int end = b.n_chunks; 2 * end > b.n_chunks; end -= TAIL_CHUNKS) {
        const float here = left + sum_left(b, end);
        const unsigned found = __ballot_sync(0xffffffff, here <= tail_left);
        const int chunk = end - __ffs((int)found);
        if (found) return 2 * chunk > b.n_chunks ? chunk : -1;
        left = __shfl_sync(0xffffffff, here, 31);
    }
    return -1;
}

/* Shortens the segment to the chunks from `first` on, which its summary needs; all of them, if
 * `first` is negative. All threads call it before gates are made, because `first` was found in the
 * memory of gates. */
GDN_DEVICE void skip_chunks(struct hopper_block &b, int first)
{
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
