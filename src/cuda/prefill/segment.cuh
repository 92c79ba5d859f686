/* SPDX-License-Identifier: Apache-2.0 */
/* A segment of a sequence (sm90/segments.cuh): its tokens, and the places of its states. */
#ifndef GDN_CUDA_PREFILL_SEGMENT_CUH
#define GDN_CUDA_PREFILL_SEGMENT_CUH

#include "cuda/prefill/general_state.cuh"
#include "cuda/prefill/sm90/units.cuh"

/* The tokens of a block, from `start` of the sequence on. from, to: the places of the states
 * that it reads and writes, in memory for segments; -1: the sequence's own. */
struct sequence_segment {
    int64_t start, from, to, checkpoint; /* checkpoint: the first one after `start` */
    bool last;
};

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

/* Replaces a sequence by its segment i. unit: the number of segment 1. The result has no tokens if
 * there is no such segment, or if lengths overlap and leave no place for its state. */
GDN_DEVICE struct sequence_segment
cut_segment(struct gdn_cu_seq &s, const struct gdn_cu_segments &cut, int64_t i, int64_t unit)
{
    const int64_t most = i == 0 ? cut.first : cut.each;
    struct sequence_segment g = { 0, -1, -1, 0, i >= later_segments(cut, s.n_valid) };
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

/* Returns the address of a head's state, or of M, in place `at`. Columns follow each other. */
GDN_DEVICE struct state_place segment_place(float *states, const struct gdn_cu_rule &r, int columns,
                                            int64_t at, int head)
{
    const struct state_place p = { (char *)(states + (at * r.H + head) * columns * r.K), r.K * 4, 4,
                                   GDN_F32 };
    return p;
}

#endif
