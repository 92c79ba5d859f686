/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The common parts of the kernels of gdn_prefill_backward: windows of sequences, and chunks of a
 * window. A chunk has a place in the tensors, and a place in memory, where its rows are numbered.
 *
 * Windows are those of each sequence, or go through the batch: then all chunks are numbered by the
 * start of their sequence (first_number()), and a window has as many numbers as memory has places,
 * or fewer (plan.cuh). A sequence has one number too many at most, which no chunk has.
 */
#ifndef GDN_CUDA_BACKWARD_CUH
#define GDN_CUDA_BACKWARD_CUH

#include "cuda/backward/args.h"
#include "cuda/prefill/stages.cuh"

static_assert((int)GDN_CU_BACKWARD_CHUNK <= (int)CHUNK, "chunks of the stages");

/* The part of a sequence inside a window. Tokens before the window do not count here. */
struct backward_window {
    struct gdn_cu_seq seq;
    int64_t first; /* number of its first chunk in memory */
    int64_t n_chunks;
    int64_t before; /* its chunks before the window */
    bool is_there;  /* the sequence has a chunk here, or has no chunk and would begin here */
    bool is_last;   /* no tokens come after the window */
};

GDN_DEVICE int64_t first_number(const struct gdn_cu_batch &b, int64_t row)
{
    return first_number(b, row, GDN_CU_BACKWARD_CHUNK);
}

/* The numbers of a window through the batch. */
struct backward_numbers {
    int64_t first, n;
};
GDN_DEVICE struct backward_numbers numbers_of(const struct gdn_cu_backward &a)
{
    if (!a.plan) return { 0, a.n_chunks };
    const int64_t first = a.plan[a.window];
    return { first, a.plan[a.window + 1] - first };
}

/* Returns the window of a sequence, or of a part of one. first: the place in memory of its first
 * chunk if windows are its own, else the number of that chunk. */
GDN_DEVICE struct backward_window window_of(const struct gdn_cu_backward &a,
                                            const struct gdn_cu_seq &s, int64_t first)
{
    const bool through = a.window_chunks == 0;
    struct backward_numbers of = { a.window * a.window_chunks, a.window_chunks };
    if (through) of = numbers_of(a);
    const int64_t most = of.n;
    const int64_t begin = of.first - (through ? first : 0); /* in the sequence */
    const int64_t late = begin < 0 ? -begin : 0;            /* chunks of earlier sequences in the
                                                               window */
    const int64_t room = (most - late) * GDN_CU_BACKWARD_CHUNK;
    struct backward_window w = {};
    w.seq = s;
    w.first = through ? late : first;
    w.before = begin < 0 ? 0 : begin;
    w.seq.first += w.before * GDN_CU_BACKWARD_CHUNK;
    w.seq.n_valid -= w.before * GDN_CU_BACKWARD_CHUNK;
    w.is_last = w.seq.n_valid <= room;
    w.is_there = room > 0 && (w.before == 0 || w.seq.n_valid > 0);
    w.seq.n_valid = clamp64(w.seq.n_valid, 0, room > 0 ? room : 0);
    w.n_chunks = chunks_of(w.seq.n_valid, GDN_CU_BACKWARD_CHUNK);
    return w;
}

GDN_DEVICE struct backward_window find_window(const struct gdn_cu_backward &a, int64_t row)
{
    const int64_t each = a.window_chunks;
    return window_of(a, range_of(a.rule.batch, row),
                     each ? row * each : first_number(a.rule.batch, row));
}

/* A chunk in the tensors, and its rows in memory. */
struct backward_chunk {
    struct stage_chunk in, own;
};

/* Returns chunk i of the window. */
GDN_DEVICE struct backward_chunk chunk_at(const struct backward_window &w, int64_t i)
{
    struct backward_chunk c = {};
    c.in.seq = w.seq;
    c.in.number = w.first + i;
    cut_chunk(c.in, i, GDN_CU_BACKWARD_CHUNK);
    c.own = c.in;
    c.own.t0 = 0;
    c.own.seq.batch = 0;
    c.own.seq.first = c.in.number * GDN_CU_BACKWARD_CHUNK;
    return c;
}

/* Returns the first sequence of a window through the batch, of n_windows: the last window too. */
GDN_DEVICE int64_t first_row(const struct gdn_cu_backward &a, int64_t window)
{
    return a.plan[a.n_windows + 1 + window];
}

/* Returns the sequence, or the part of one, that has the chunk at a place in memory; if none has,
 * it may be any, or B. */
GDN_DEVICE int64_t row_of_chunk(const struct gdn_cu_backward &a, int64_t place)
{
    const struct gdn_cu_batch &b = a.rule.batch;
    if (a.window_chunks) return place / a.window_chunks;
    const struct backward_numbers of = numbers_of(a);
    const int64_t number = of.first + place;
    if (place >= of.n) return b.B;
    /* the chunk belongs to one of the sequences [row, end) */
    int64_t row = a.plan ? first_row(a, a.window) : 0;
    int64_t end = a.plan ? first_row(a, a.window + 1) + 1 : b.B;
    while (end - row > 1) {
        const int64_t middle = row + (end - row) / 2;
        if (first_number(b, middle) <= number)
            row = middle;
        else
            end = middle;
    }
    return row;
}

/* Returns the chunk at a place in memory. n is 0 if no sequence has it. */
GDN_DEVICE struct backward_chunk find_backward_chunk(const struct gdn_cu_backward &a, int64_t place)
{
    const struct backward_window w = find_window(a, row_of_chunk(a, place));
    return chunk_at(w, place - w.first);
}

GDN_DEVICE float *row_in(const struct gdn_rows &rows, const struct backward_chunk &c, int t,
                         int head)
{
    return (float *)row_at(rows, c.own.seq, t, head);
}

template <class T> GDN_DEVICE T sum_warp(T x)
{
#pragma unroll
    for (int step = 16; step; step /= 2) x += __shfl_xor_sync(0xffffffff, x, step);
    return x;
}

#endif
