/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of the batch that kernels on tensor cores walk through one by one. A part is a sequence. In
 * the walk to dstate alone, a sequence of more than cut.first tokens is replaced by its units of
 * cut.each tokens, which are parts numbered after the sequences. Each unit stores D: the gradient
 * of its first state, if that of its last state is zero, or dstate_out at the end of the sequence.
 * sm90/join.cuh joins them. In that walk a head may also have a stop: only so many chunks from the
 * first on count. */
#ifndef GDN_CUDA_BACKWARD_PARTS_CUH
#define GDN_CUDA_BACKWARD_PARTS_CUH

#include "cuda/backward/backward.cuh"
#include "cuda/prefill/sm90/units.cuh"

struct backward_part {
    struct backward_window in;
    int64_t number, row;
    int64_t unit;  /* number among all units; -1: a whole sequence */
    int64_t chunk; /* chunk of the sequence with which the window begins */
    bool ends;     /* the part ends with the sequence: the gradient after it is dstate_out */
};

/* Returns the window of a whole sequence. */
GDN_DEVICE struct backward_part whole_part(const struct gdn_cu_backward &a, int64_t row)
{
    const struct backward_window in = find_window(a, row);
    return { in, row, row, -1, in.before, true };
}

/* Returns part `row` of a window. All threads of a warp call it. */
GDN_DEVICE struct backward_part find_part(const struct gdn_cu_backward &a, int64_t number)
{
    const struct gdn_cu_batch &batch = a.rule.batch;
    const struct gdn_cu_segments &cut = a.cut;
    struct backward_part p = {};
    int64_t i = number - batch.B;
    if (!cut.units) return whole_part(a, number);
    if (i < 0) {
        p = whole_part(a, number);
        p.in.is_there &= later_segments_of(batch, cut, number) == 0;
        return p;
    }
    p.unit = i;
    p.row = find_unit(batch, cut, i);
    if (p.row >= batch.B) return p;
    struct gdn_cu_seq s = range_of(batch, p.row);
    const int64_t start = i * cut.each;
    s.first += start;
    s.n_valid = clamp64(s.n_valid - start, 0, cut.each);
    p.number = number;
    p.ends = i + 1 >= later_segments_of(batch, cut, p.row);
    p.chunk = start / GDN_CU_BACKWARD_CHUNK;
    p.in = window_of(
        a, s, a.window_chunks ? number * a.window_chunks : first_number(batch, p.row) + p.chunk);
    p.chunk += p.in.before;
    return p;
}

/* Returns the chunk at a place in memory, and sets the part to one whose window begins with that
 * chunk. */
GDN_DEVICE struct stage_chunk find_part_chunk(const struct gdn_cu_backward &a, int64_t place,
                                              struct backward_part &p)
{
    const int64_t row = row_of_chunk(a, place);
    struct stage_chunk none = {};
    p = {};
    if (row >= a.rule.batch.B + a.cut.units) return none;
    p = a.window_chunks ? find_part(a, row) : whole_part(a, row);
    if (!p.in.is_there) return none;
    p.chunk += place - p.in.first;
    return chunk_at(p.in, place - p.in.first).in;
}

/* Returns the most chunks of the window that count for a head. */
GDN_DEVICE int64_t chunks_before_stop(const struct gdn_cu_backward &a,
                                      const struct backward_part &p, int head)
{
    return a.cut.stops ? a.cut.stops[p.row * a.rule.H + head] - p.chunk : INT32_MAX;
}

/* Returns true if the walk through windows is only for the states between them. No state is needed
 * after the last window of a sequence. */
GDN_DEVICE bool is_first_pass(const struct gdn_cu_backward &a)
{
    return a.walks == GDN_CU_WALK_FORWARD;
}

/* Leaves out the chunks that do not count. */
GDN_DEVICE void stop_part(const struct gdn_cu_backward &a, struct backward_part &p, int head)
{
    if (!p.in.is_there) return; /* no sequence has the unit: its row has no stops */
    const int64_t n = chunks_before_stop(a, p, head);
    if (n > p.in.n_chunks) return;
    p.in.n_chunks = n;
    p.in.is_there = n > 0;
    p.in.is_last = true;
    p.ends = false;
}

#endif
