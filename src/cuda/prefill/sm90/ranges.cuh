/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The blocks of gdn_summary. Sequences of up to cut.first tokens come first, and their U and M go
 * to the caller's tensors. Longer ones are cut into units of cut.each tokens, which are numbered
 * through the batch. Their U and M go to the workspace, and join.cuh makes one map of them.
 *
 * For gradients (a.back) there are units alone, and M is made only of those that the gradient of a
 * state passes: not of the last unit of a sequence, nor of one that forgets the rest, nor of later
 * ones.
 */
#ifndef GDN_CUDA_PREFILL_RANGES_CUH
#define GDN_CUDA_PREFILL_RANGES_CUH

#include "cuda/prefill/sm90/early_stop.cuh"

/* Returns true if no gradient comes from tokens after the unit, and notes that for join.cuh. A warp
 * calls it. */
GDN_DEVICE bool is_walk_end(const struct hopper_block &b, const struct sequence_segment &g,
                            int64_t row)
{
    const struct gdn_cu_segments &cut = b.a.cut;
    const bool stops =
        cut.stops && g.start + cut.each >= (int64_t)cut.stops[row * b.r.H + b.head] * 64;
    if (!g.last && !stops) return false;
    if (threadIdx.x < 2 && b.rank == 0)
        cut.marks[(g.from * b.r.H + b.head) * 2 + threadIdx.x] = GDN_SEGMENT_FORGETS;
    return true;
}

/* Finds the block's part of the batch: a whole sequence (segment.to: its number) or a unit
 * (segment.from). n_tokens count to the end of the sequence. A warp calls it. */
GDN_DEVICE void find_range(const struct hopper_block &b)
{
    const struct gdn_cu_batch &batch = b.r.batch;
    const struct gdn_cu_segments &cut = b.a.cut;
    struct gdn_cu_seq s = {};
    struct sequence_segment g = { 0, -1, -1, 0, true };
    const int64_t number = blockIdx.x / HOPPER_BLOCKS / b.r.H + (b.a.back ? batch.B : 0);
    const bool is_unit = number >= batch.B;
    int64_t row = number, i = number - batch.B, unit = i;
    if (is_unit) {
        row = find_unit(batch, cut, i);
        unit -= i;
    }
    s.row = row;
    if (row < batch.B) read_range(batch, s);
    const bool is_cut = later_segments(cut, s.n_valid) > 0;
    const int64_t left = s.n_valid - (is_unit ? i * cut.each : 0);
    if (row < batch.B && !is_unit && !is_cut) g.to = row;
    if (row < batch.B && is_unit) g = cut_segment(s, cut, i + 1, unit);
    if (g.from >= cut.units) g.from = -1; /* lengths that overlap may give too many units */
    if (b.a.back && g.from >= 0 && is_walk_end(b, g, row)) g.from = -1;
    s.n_tokens = left;
    if (threadIdx.x % 32 != 0) return;
    b.common().s = s;
    b.common().segment = g;
}

GDN_DEVICE bool is_no_range(const struct hopper_block &b)
{
    return b.common().segment.from < 0 && b.common().segment.to < 0;
}

/* Returns the last chunk after which nothing is left, at the end of the sequence, of what came
 * before that chunk; -1: there is none. It counts from the block's first chunk, and may be after
 * the block's last. All blocks of a sequence find the same chunk. All threads call it. */
GDN_DEVICE int find_range_tail(const struct hopper_block &b)
{
    struct left_sums &sh = *(struct left_sums *)(gdn_shared + HOPPER_GATES);
    const struct gdn_cu_segments &cut = b.a.cut;
    const struct sequence_segment &g = b.common().segment;
    const int64_t first = left_place(b.r.batch, b.s().row, b.s().first - g.start) + g.start / 64;
    const float *left = cut.left + b.head * cut.n_left + first;
    float sum = 0;
    for (int end = (int)((b.s().n_tokens + 63) / 64); end > 0; end -= blockDim.x) {
        const int c = end - 1 - (int)threadIdx.x;
        const float2 here = sum_threads(sh, c >= 0 ? left[c] : 0);
        const int at = first_thread(sh, sum + here.x <= tail_left);
        if (at >= 0) return end - 1 - at;
        sum += here.y;
    }
    return -1;
}

/* Leaves out the chunks that the sequence forgets. Returns true if these are all of the block's. */
GDN_DEVICE bool skip_range(struct hopper_block &b)
{
    griddepcontrol_wait(); /* the sums of left.cuh are needed */
    skip_chunks(b, min(find_range_tail(b), b.n_chunks));
    if (b.n_chunks > 0 || !b.forgets) return false;
    if (threadIdx.x < 2 && b.rank == 0) *mark_of(b, threadIdx.x) = GDN_SEGMENT_FORGETS;
    return true;
}

#endif
