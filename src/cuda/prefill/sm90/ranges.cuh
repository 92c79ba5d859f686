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

/* Returns the sums of the threads' numbers, up to this thread's and of all. By all threads. */
GDN_DEVICE float2 sum_threads(float x)
{
    float    *totals = (float *)(gdn_shared + HOPPER_GATES); /* of warps */
    const int warp = threadIdx.x / 32, n = blockDim.x / 32;
    float2    sum  = make_float2(scan_lanes(x), 0);
    __syncthreads(); /* all have read those before */
    if (threadIdx.x % 32 == 31) totals[warp] = sum.x;
    __syncthreads();
    for (int i = 0; i < n; i++) {
        if (i < warp) sum.x += totals[i];
        sum.y += totals[i];
    }
    return sum;
}

/* Returns the first thread that says yes; -1: there is none. By all threads. */
GDN_DEVICE int first_thread(bool yes)
{
    uint32_t      *votes = (uint32_t *)(gdn_shared + HOPPER_GATES) + 32; /* of warps, behind totals */
    const unsigned mine  = __ballot_sync(0xffffffff, yes);
    if (threadIdx.x % 32 == 0) votes[threadIdx.x / 32] = mine;
    __syncthreads();
    for (int i = 0; i < (int)blockDim.x / 32; i++)
        if (votes[i]) return 32 * i + __ffs((int)votes[i]) - 1;
    return -1;
}

/* Returns the last chunk, counted from the block's first, from which on nothing is left of what was
 * before at the end of the sequence; it may be behind the block's. -1: there is none. All blocks of
 * a sequence find the same. By all threads. */
GDN_DEVICE int find_range_tail(const struct hopper_block &b)
{
    const struct gdn_cu_segments &cut = b.a.cut;
    const struct hopper_segment  &g   = b.common().segment;
    const int64_t first = left_place(b.r.batch, b.s().row, b.s().first - g.start) + g.start / 64;
    const float  *left  = cut.left + b.head * cut.n_left + first;
    float         sum   = 0;
    for (int end = (int)((b.s().n_tokens + 63) / 64); end > 0; end -= blockDim.x) {
        const int    c    = end - 1 - (int)threadIdx.x;
        const float2 here = sum_threads(c >= 0 ? left[c] : 0);
        const int    at   = first_thread(sum + here.x <= tail_left);
        if (at >= 0) return end - 1 - at;
        sum += here.y;
    }
    return -1;
}

/* Leaves out what the sequence forgets. Returns true if that is all of the block's. */
GDN_DEVICE bool skip_range(struct hopper_block &b)
{
    griddepcontrol_wait(); /* for the sums */
    skip_chunks(b, min(find_range_tail(b), b.n_chunks));
    if (b.n_chunks > 0 || !b.forgets) return false;
    if (threadIdx.x < 2 && b.rank == 0) *mark_of(b, threadIdx.x) = GDN_SEGMENT_FORGETS;
    return true;
}

#endif
