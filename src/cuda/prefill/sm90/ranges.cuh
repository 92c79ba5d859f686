/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The blocks of gdn_summary. Sequences of up to cut.first tokens come first, one after the other: their
 * U and M are the caller's. Those of longer ones are cut into units of cut.each tokens, which are
 * numbered through the batch; their U and M go to the workspace, and join.cuh makes one map of them.
 */
#ifndef GDN_CUDA_PREFILL_RANGES_CUH
#define GDN_CUDA_PREFILL_RANGES_CUH

#include "cuda/prefill/sm90/early_stop.cuh"

/* The block's part of the batch: a whole sequence (segment.to: its number) or a unit (segment.from).
 * n_tokens are those up to the end of the sequence. By a warp. */
GDN_DEVICE void find_range(const struct hopper_block &b)
{
    const struct gdn_cu_batch    &batch   = b.r.batch;
    const struct gdn_cu_segments &cut     = b.a.cut;
    struct gdn_cu_seq             s       = {};
    struct hopper_segment         g       = { 0, -1, -1, 0, true };
    const int64_t                 number  = blockIdx.x / HOPPER_BLOCKS / b.r.H;
    const bool                    is_unit = number >= batch.B;
    int64_t row = number, i = number - batch.B, unit = i;
    if (is_unit) {
        row = find_unit(batch, cut, i);
        unit -= i;
    }
    s.row = row;
    if (row < batch.B) read_range(batch, s);
    const bool    is_cut = later_segments(cut, s.n_valid) > 0;
    const int64_t left   = s.n_valid - (is_unit ? i * cut.each : 0);
    if (row < batch.B && !is_unit && !is_cut) g.to = row;
    if (row < batch.B && is_unit) g = cut_segment(s, cut, i + 1, unit);
    if (g.from >= cut.units) g.from = -1; /* by lengths that overlap */
    s.n_tokens = left;
    if (threadIdx.x % 32 != 0) return;
    b.common().s       = s;
    b.common().segment = g;
}

GDN_DEVICE bool is_no_range(const struct hopper_block &b)
{
    return b.common().segment.from < 0 && b.common().segment.to < 0;
}

#endif
