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
#include "cuda/prefill/sm90/units.cuh"

/* The tokens of a block: those of its sequence from `start` on. from, to: places of the states it
 * starts from and leaves, -1: those of the sequence. */
struct hopper_segment {
    int64_t start, from, to, checkpoint; /* checkpoint: the first one after `start` */
    bool last;
};

/* Waits for the plan of the call. Returns the number of segments after first ones. wide: whether they
 * have wide blocks. */
GDN_DEVICE int64_t wait_for_plan(const struct gdn_cu_prefill_sm90 &a, bool &wide)
{
    uint64_t units;
    while (!(units = ld_acquire(&a.plan->units))) continue;
    wide = units & 1;
    return (int64_t)(units / 2) - 1;
}

/* Returns the cut of the call. split: sequences of more tokens have clusters. */
GDN_DEVICE struct gdn_cu_segments cut_of_call(const struct gdn_cu_prefill_sm90 &a, int64_t &split)
{
    struct gdn_cu_segments cut = a.cut;
    bool wide;
    split = a.split;
    if (!a.plan) return cut;
    wait_for_plan(a, wide);
    const volatile struct gdn_cu_plan *p = a.plan;
    cut.whole = p->whole;
    cut.first = cut.start = p->first;
    cut.each = p->each;
    split = p->split;
    return cut;
}

/* Returns the sequence that is number `of` of the long ones; B: there is no such sequence. All
 * threads of a warp call it. */
GDN_DEVICE int64_t find_long(const struct gdn_cu_prefill_sm90 &a, int64_t of)
{
    const struct gdn_cu_batch &b = a.rule.batch;
    for (int64_t row = 0; row < b.B; row += 32) {
        const int64_t mine = valid_tokens(b, row + threadIdx.x % 32);
        unsigned some = __ballot_sync(0xffffffff, mine > a.split);
        for (; some && of; of--) some &= some - 1;
        if (some) return row + __ffs((int)some) - 1;
    }
    return b.B;
}

/* Returns the first checkpoint after n tokens. Checkpoints ascend. */
GDN_DEVICE int64_t checkpoint_after(const struct gdn_cu_batch &b,
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
GDN_DEVICE struct hopper_segment
cut_segment(struct gdn_cu_seq &s, const struct gdn_cu_segments &cut, int64_t i, int64_t unit)
{
    const int64_t most = i == 0 ? cut.first : cut.each;
    struct hopper_segment g = { 0, -1, -1, 0, i >= later_segments(cut, s.n_valid) };
    if (i > 0) {
        g.start = cut.start + (i - 1) * cut.each;
        g.from = unit + i - 1;
        s.first += g.start;
        s.n_tokens -= s.n_before + g.start;
        s.n_valid -= g.start;
        s.n_before = 0;
        if (s.n_valid <= 0) s.n_valid = s.n_tokens = 0;
    }
    if (g.last) return g;
    s.n_valid = most;
    s.n_tokens = s.n_before + most;
    if (unit + i >= cut.units) s.n_valid = s.n_tokens = 0;
    s.write = -1;
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
