/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan of windows through the batch, by a thread for each sequence. A window has n_chunks
 * numbers, so a window begins with number w n_chunks, and at most one sequence goes on there. The
 * plan has, one after the other:
 *
 *     rows         [n_windows + 1]   the sequence that has the first number of a window
 *     starts       [B + 1]           checkpoint_starts for gdn_prefill's kernels: checkpoint w is
 *     positions    [n_windows]       the state before window w, after so many tokens
 *
 * Where no sequence goes on, the position is behind the end of one, which no kernel reaches. If
 * lengths are out of range, numbers overlap, but every entry is set and names a sequence.
 */
#ifndef GDN_CUDA_BACKWARD_PLAN_CUH
#define GDN_CUDA_BACKWARD_PLAN_CUH

#include "cuda/prefill/backward.cuh"

GDN_DEVICE void backward_plan(const struct gdn_cu_backward &a)
{
    const struct gdn_cu_batch &b = a.rule.batch;
    const int64_t              row = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int64_t              n = a.n_chunks, W = a.n_windows;
    int64_t *const             rows = a.plan, *const starts = rows + W + 1;
    int64_t *const             positions = starts + b.B + 1;
    if (row >= b.B) return;
    const int64_t first = first_by_token(b, row);
    const int64_t next  = row + 1 < b.B ? first_by_token(b, row + 1) : (W + 1) * n;
    for (int64_t w = chunks_of(first, n); w <= W && w * n < next; w++) rows[w] = row;
    for (int64_t w = first / n + 1; w < W && w * n <= next; w++)
        positions[w] = (w * n - first) * GDN_CU_BACKWARD_CHUNK;
    starts[row] = first / n + 1;
    if (row + 1 == b.B) starts[b.B] = W;
}

/* Returns the sequence of walk i of a window; B: there is none. */
GDN_DEVICE int64_t row_of_walk(const struct gdn_cu_backward &a, int64_t i)
{
    if (!a.plan) return i;
    const int64_t row = a.plan[a.window] + i;
    return row <= a.plan[a.window + 1] ? row : a.rule.batch.B;
}

#endif
