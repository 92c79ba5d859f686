/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments of a long sequence, computed at the same time. A segment changes a state S to M S + U,
 * with M of K x K (gdn.h, gdn_summary). Kernels of one call, in this order:
 *
 *     1  the first segment of each sequence, like a sequence of its own; stores its last state
 *     2  M and U of every segment except the first and the last (summary.cu), beside 1
 *     3  S <- M S + U from segment to segment (segments.cu)
 *     4  all segments except the first, each from its state
 *
 * Segments after first ones are units, numbered through the batch. Place u holds the state that
 * unit u starts from, and M of u. U of u is in place u + 1, until the state replaces it.
 */
#ifndef GDN_CUDA_PREFILL_SEGMENTS_CUH
#define GDN_CUDA_PREFILL_SEGMENTS_CUH

#include "cuda/prefill/sm90/args.h"
#include "cuda/prefill/general_state.cuh"

/* The tokens of a block: those of its sequence from `start` on. from, to: places of the states it
 * starts from and leaves, -1: those of the sequence. */
struct hopper_segment {
    int64_t start, from, to, checkpoint; /* checkpoint: the first one after `start` */
    bool    last;
};

/* Returns the number of segments after the first one in n tokens. */
GDN_DEVICE int64_t later_segments(const struct gdn_cu_segments &cut, int64_t n)
{
    if (n <= cut.whole || n <= cut.first) return 0;
    return (n - cut.start + cut.each - 1) / cut.each;
}

/* Returns the tokens of a sequence that count. */
GDN_DEVICE int64_t valid_tokens(const struct gdn_cu_batch &b, int64_t row)
{
    struct gdn_cu_seq s = {};
    if (row >= b.B) return 0;
    s.row = row;
    read_range(b, s);
    return s.n_valid;
}

GDN_DEVICE int64_t later_segments_of(const struct gdn_cu_batch &b, const struct gdn_cu_segments &cut,
                                     int64_t row)
{
    return later_segments(cut, valid_tokens(b, row));
}

/* Returns the cut with what the lengths of the batch say: if many sequences are long, they fill the
 * device, and none is cut. All threads of a warp call it. */
GDN_DEVICE struct gdn_cu_segments cut_of_batch(const struct gdn_cu_batch    &b,
                                               const struct gdn_cu_segments &cut)
{
    struct gdn_cu_segments found = cut;
    int                    n     = 0;
    if (cut.most_long >= b.B) return found;
    for (int64_t row = 0; row < b.B; row += 32) {
        const int64_t mine = valid_tokens(b, row + threadIdx.x % 32);
        n += __popc(__ballot_sync(0xffffffff, mine > cut.whole));
    }
    if (n > cut.most_long) found.first = INT64_MAX;
    return found;
}

/* Returns the sequence that is number `of` of those of more than `whole` tokens; B: there is no such
 * sequence. All threads of a warp call it. */
GDN_DEVICE int64_t find_long(const struct gdn_cu_batch &b, int64_t whole, int64_t of)
{
    for (int64_t row = 0; row < b.B; row += 32) {
        const int64_t mine = valid_tokens(b, row + threadIdx.x % 32);
        unsigned      some = __ballot_sync(0xffffffff, mine > whole);
        for (; some && of; of--) some &= some - 1;
        if (some) return row + __ffs((int)some) - 1;
    }
    return b.B;
}

/* Returns the units of the sequences before `row`. All threads of a warp call it. */
GDN_DEVICE int64_t units_before(const struct gdn_cu_batch &b, const struct gdn_cu_segments &cut,
                                int64_t row)
{
    long long n = 0;
    for (int64_t i = threadIdx.x % 32; i < row; i += 32) n += later_segments_of(b, cut, i);
    for (int step = 16; step; step /= 2) n += __shfl_xor_sync(0xffffffff, n, step);
    return n;
}

/* Returns the sum over the lanes up to this one. */
GDN_DEVICE long long sum_up_to(long long x)
{
    for (int step = 1; step < 32; step *= 2) {
        const long long before = __shfl_up_sync(0xffffffff, x, step);
        if (threadIdx.x % 32 >= step) x += before;
    }
    return x;
}

/* Returns the sequence of a unit, and changes the unit to its number there; B: there is no such
 * unit. All threads of a warp call it. */
GDN_DEVICE int64_t find_unit(const struct gdn_cu_batch &b, const struct gdn_cu_segments &cut,
                             int64_t &unit)
{
    for (int64_t row = 0; row < b.B; row += 32) {
        const long long mine   = later_segments_of(b, cut, row + threadIdx.x % 32);
        const long long end    = sum_up_to(mine);
        const unsigned  beyond = __ballot_sync(0xffffffff, unit < end);
        if (beyond) {
            const int at = __ffs((int)beyond) - 1;
            unit -= __shfl_sync(0xffffffff, end - mine, at);
            return row + at;
        }
        unit -= __shfl_sync(0xffffffff, end, 31);
    }
    return b.B;
}

/* Returns how many units the sequence has that is number `of` of those with two or more, the first of
 * them, and the sequence. 0: there is no such sequence. All threads of a warp call it. */
GDN_DEVICE int64_t find_units(const struct gdn_cu_batch &b, const struct gdn_cu_segments &cut,
                              int64_t of, int64_t &first, int64_t &row)
{
    first = 0;
    for (row = 0; row < b.B; row += 32) {
        const long long mine = later_segments_of(b, cut, row + threadIdx.x % 32);
        const long long end  = sum_up_to(mine);
        unsigned        some = __ballot_sync(0xffffffff, mine > 1);
        for (; some && of; of--) some &= some - 1;
        if (some) {
            const int at = __ffs((int)some) - 1;
            first += __shfl_sync(0xffffffff, end - mine, at);
            row += at;
            return __shfl_sync(0xffffffff, mine, at);
        }
        first += __shfl_sync(0xffffffff, end, 31);
    }
    return 0;
}

/* Returns the first checkpoint after n tokens. Checkpoints ascend. */
GDN_DEVICE int64_t checkpoint_after(const struct gdn_cu_batch       &b,
                                    const struct gdn_cu_checkpoints &list, int64_t n)
{
    int64_t low = list.first, high = list.end, slot;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (checkpoint_at(b, list, middle, slot) > n)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Replaces a sequence by its segment i. `unit` is that of segment 1. A result without tokens means
 * that the segment does not exist, or that overlapping lengths leave it no place for its state. */
GDN_DEVICE struct hopper_segment cut_segment(struct gdn_cu_seq &s, const struct gdn_cu_segments &cut,
                                             int64_t i, int64_t unit)
{
    const int64_t         most = i == 0 ? cut.first : cut.each;
    struct hopper_segment g    = { 0, -1, -1, 0, i >= later_segments(cut, s.n_valid) };
    if (i > 0) {
        g.start = cut.start + (i - 1) * cut.each;
        g.from  = unit + i - 1;
        s.first += g.start;
        s.n_tokens -= s.n_before + g.start;
        s.n_valid -= g.start;
        s.n_before = 0;
        if (s.n_valid <= 0) s.n_valid = s.n_tokens = 0;
    }
    if (g.last) return g;
    s.n_valid  = most;
    s.n_tokens = s.n_before + most;
    if (unit + i >= cut.units) s.n_valid = s.n_tokens = 0;
    s.write    = -1;
    if (i == 0) g.to = unit;
    return g;
}

/* Returns the place of a head's state (number `at`), or of M: columns by columns. */
GDN_DEVICE struct state_place segment_place(float *states, const struct gdn_cu_rule &r, int columns,
                                            int64_t at, int head)
{
    const struct state_place p = { (char *)(states + (at * r.H + head) * columns * r.K), r.K * 4, 4,
                                   GDN_F32 };
    return p;
}

#endif
