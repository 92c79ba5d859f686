/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan of windows through the batch. Each block finds all windows; then each thread lists the
 * checkpoints of a sequence.
 *
 * A window has n_chunks numbers at most. It ends with a sequence if the next one fits into a window
 * and this one is at least two thirds full. So most sequences lie in one window, and need no state
 * before one. Else it ends inside a sequence: at a checkpoint, if the caller gave some. The last
 * windows may have no numbers. The plan has, one after the other:
 *
 *     numbers      [n_windows + 1]   with which a window begins
 *     rows         [n_windows + 1]   the sequences that have these numbers
 *     starts       [B + 1]           checkpoint_starts for gdn_prefill's kernels: checkpoint w is
 *     positions    [n_windows]       the state before window w, after so many tokens
 *     counts       [B]               token_count for these kernels: up to the last checkpoint
 *
 * Where no sequence goes on, the position is behind the end of one, which no kernel reaches. If
 * lengths are out of range, numbers overlap and positions may be any, but rows name sequences and
 * starts name positions.
 */
#ifndef GDN_CUDA_BACKWARD_PLAN_CUH
#define GDN_CUDA_BACKWARD_PLAN_CUH

#include "cuda/backward/backward.cuh"

/* Returns the last of n rows, from `row` on, whose number is at most `number`. Numbers do not
 * decrease. That of the first row does not count. A whole warp calls it. */
template <class Number>
GDN_DEVICE int64_t find_last(int64_t row, int64_t n, int64_t number, Number number_of)
{
    const int lane = threadIdx.x % 32;
    while (n > 1) {
        const int64_t step = (n + 31) / 32, i = lane * step;
        const unsigned below =
            __ballot_sync(0xffffffff, i == 0 || (i < n && number_of(row + i) <= number));
        const int64_t skipped = (31 - __clz(below)) * step;
        row += skipped;
        n = n - skipped < step ? n - skipped : step;
    }
    return row;
}

/* Returns the last sequence from `row` on whose first number is at most `number`. A whole warp
 * calls it. */
GDN_DEVICE int64_t find_row(const struct gdn_cu_batch &b, int64_t row, int64_t number)
{
    return find_last(row, b.B - row, number, [&](int64_t i) { return first_number(b, i); });
}

/* Finds the numbers with which windows begin, and their sequences. A whole warp calls it. */
GDN_DEVICE void cut_batch(const struct gdn_cu_backward &a)
{
    const struct gdn_cu_batch &b = a.rule.batch;
    const int64_t n = a.n_chunks, all = first_number(b, b.B);
    const int64_t every = b.checkpoint_pool < 0 ? 1 : a.starts_every / GDN_CU_BACKWARD_CHUNK;
    int64_t cut = 0, row = 0;
    for (int64_t w = 0; w <= a.n_windows; w++) {
        if (threadIdx.x == 0) {
            a.plan[w] = cut;
            a.plan[a.n_windows + 1 + w] = row;
        }
        row = find_row(b, row, min(cut + n, all));
        if (all - cut <= n) {
            cut = all;
            continue;
        }
        const int64_t end = cut + n, first = first_number(b, row);
        const bool fits = first_number(b, row + 1) - first <= n;
        const int64_t inside = first + (end - first) / every * every;
        const int64_t next = fits && 3 * (first - cut) >= 2 * n ? first : inside;
        cut = next > cut ? next : end;
    }
}

/* Writes the part of the plan that gdn_prefill's kernels read of a sequence. */
GDN_DEVICE void list_checkpoints(const struct gdn_cu_backward &a, int64_t row)
{
    const struct gdn_cu_batch &b = a.rule.batch;
    const int64_t W = a.n_windows;
    int64_t *const starts = a.plan + 2 * (W + 1), *const positions = starts + b.B + 1;
    const int64_t first = first_number(b, row), next = first_number(b, row + 1);
    int64_t w = 0, last = 0;
    for (int64_t end = W; w < end;) { /* the first window that begins after `first` */
        const int64_t middle = w + (end - w) / 2;
        if (a.plan[middle] <= first)
            w = middle + 1;
        else
            end = middle;
    }
    starts[row] = w;
    for (; w < W && a.plan[w] <= next; w++) {
        positions[w] = (a.plan[w] - first) * GDN_CU_BACKWARD_CHUNK;
        if (a.plan[w] < next) last = positions[w];
    }
    positions[W + row] = min(last, range_of(b, row).n_valid);
}

GDN_DEVICE void backward_plan(const struct gdn_cu_backward &a)
{
    const int64_t B = a.rule.batch.B, row = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (threadIdx.x < 32) cut_batch(a);
    __syncthreads();
    if (row < B) list_checkpoints(a, row);
    if (row == 0) a.plan[2 * (a.n_windows + 1) + B] = a.n_windows;
}

/* Returns the part of walk i of a window; B or more: there is none. */
GDN_DEVICE int64_t row_of_walk(const struct gdn_cu_backward &a, int64_t i)
{
    if (!a.plan) return i;
    const int64_t row = first_row(a, a.window) + i;
    return row <= first_row(a, a.window + 1) ? row : a.rule.batch.B;
}

#endif
