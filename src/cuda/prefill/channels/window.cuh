/* SPDX-License-Identifier: Apache-2.0 */
/* Windows: as many chunks at a time as the L2 cache has room for. If the batch is padded, a window
 * has the same chunks of each row. Else it has chunks of the batch in their order, and at most one
 * sequence goes on from a window to the next. */
#ifndef GDN_CUDA_PREFILL_CHANNELS_WINDOW_CUH
#define GDN_CUDA_PREFILL_CHANNELS_WINDOW_CUH

#include "cuda/prefill/channels/args.h"
#include "cuda/prefill/stages.cuh"

/* The chunks of a sequence that a window has: [begin, end), of which the first n_chunks have valid
 * tokens. */
struct channels_part {
    int64_t begin, end, n_chunks;
    int64_t record;   /* number of the record of chunk `begin` */
    int64_t from, to; /* places of the states between windows, before and after the chunks */
    bool is_first;
};

/* Returns chunk i of the window. All threads of a warp call it. */
GDN_DEVICE struct stage_chunk find_window_chunk(const struct gdn_cu_prefill_channels &a, int64_t i)
{
    struct stage_chunk c = {};
    if (a.through) return find_chunk(a.rule.batch, a.first + i, CHUNK);
    c.seq = range_of(a.rule.batch, a.row + i / a.each);
    cut_chunk(c, a.first + i % a.each, CHUNK);
    return c;
}

/* Returns the part of a sequence that the window has. All threads of a warp call it. */
GDN_DEVICE struct channels_part find_part(const struct gdn_cu_prefill_channels &a,
                                          const struct gdn_cu_seq &s)
{
    struct channels_part p = {};
    p.n_chunks = chunks_of(s.n_valid, CHUNK);
    if (a.through) {
        const int64_t number = first_chunk(a.rule.batch, s.row, CHUNK);
        p.begin = clamp64(a.first - number, 0, INT64_MAX);
        p.end = clamp64(a.first + a.each - number, 0, chunks_of(s.n_tokens, CHUNK));
        p.record = number + p.begin - a.first;
        p.from = a.number % 2, p.to = 1 - p.from;
    } else {
        p.begin = a.first;
        p.end = min(a.first + a.each, max(p.n_chunks, (int64_t)1));
        p.record = (s.row - a.row) * a.each;
        p.from = p.to = s.row - a.row;
    }
    p.is_first = p.begin == 0 && p.begin < p.end;
    p.end = min(p.end, p.n_chunks);
    return p;
}

#endif
