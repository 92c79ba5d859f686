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
#include "cuda/prefill/segment.cuh"

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

/* Returns the long sequence number `of`; B: there are fewer. All threads of a warp call it. */
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

#endif
