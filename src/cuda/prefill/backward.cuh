/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The common parts of the kernels of gdn_prefill_backward: windows of sequences, and chunks of a
 * window. A chunk has a place in the tensors, and a place in memory, where its rows are numbered.
 */
#ifndef GDN_CUDA_BACKWARD_CUH
#define GDN_CUDA_BACKWARD_CUH

#include "cuda/prefill/stages.cuh"

static_assert((int)GDN_CU_BACKWARD_CHUNK <= (int)CHUNK, "chunks of the stages");

/* The part of a sequence inside a window. Tokens before the window do not count here. */
struct backward_window {
    struct gdn_cu_seq seq;
    int64_t           first;    /* the number of its first chunk */
    int64_t           n_chunks;
    bool              is_there; /* it has a chunk here, or this is the first window */
    bool              is_last;  /* no tokens come after the window */
};

/* Returns the number of a sequence's first chunk, counted from the first sequence, if starts of
 * sequences give the numbers. */
GDN_DEVICE int64_t first_by_token(const struct gdn_cu_batch &b, int64_t row)
{
    const int64_t start = clamp64(load_index(b.cu_seqlens, 0), 0, b.N);
    const int64_t first = clamp64(load_index(b.cu_seqlens, row), start, b.N);
    return (first - start) / GDN_CU_BACKWARD_CHUNK + row;
}

/* Returns the window of a sequence, or of a part of one. first: the number of its first chunk. */
GDN_DEVICE struct backward_window window_of(const struct gdn_cu_backward &a,
                                            const struct gdn_cu_seq &s, int64_t first)
{
    const int64_t          most = a.window_chunks * GDN_CU_BACKWARD_CHUNK, before = a.window * most;
    struct backward_window w = {};
    w.seq     = s;
    w.first   = first;
    w.is_last = !most || w.seq.n_valid - before <= most;
    w.is_there = a.window == 0 || w.seq.n_valid > before;
    w.seq.first += before;
    w.seq.n_valid = clamp64(w.seq.n_valid - before, 0, most ? most : w.seq.n_valid);
    w.n_chunks    = chunks_of(w.seq.n_valid, GDN_CU_BACKWARD_CHUNK);
    return w;
}

GDN_DEVICE struct backward_window find_window(const struct gdn_cu_backward &a, int64_t row)
{
    const int64_t each = a.window_chunks;
    return window_of(a, range_of(a.rule.batch, row),
                     each ? row * each : first_by_token(a.rule.batch, row));
}

/* A chunk as the tensors have it, and as rows in memory have it. */
struct backward_chunk {
    struct stage_chunk in, own;
};

/* Returns chunk i of the window. */
GDN_DEVICE struct backward_chunk chunk_at(const struct backward_window &w, int64_t i)
{
    struct backward_chunk c = {};
    c.in.seq    = w.seq;
    c.in.number = w.first + i;
    cut_chunk(c.in, i, GDN_CU_BACKWARD_CHUNK);
    c.own           = c.in;
    c.own.t0        = 0;
    c.own.seq.batch = 0;
    c.own.seq.first = c.in.number * GDN_CU_BACKWARD_CHUNK;
    return c;
}

/* Returns the sequence, or the part of one, that has chunk `number`, if any has. */
GDN_DEVICE int64_t row_of_chunk(const struct gdn_cu_backward &a, int64_t number)
{
    const struct gdn_cu_batch &b = a.rule.batch;
    int64_t                    row = 0, end = b.B; /* it is of one of the sequences [row, end) */
    if (a.window_chunks) row = number / a.window_chunks;
    while (!a.window_chunks && end - row > 1) {
        const int64_t middle = row + (end - row) / 2;
        if (first_by_token(b, middle) <= number) row = middle;
        else end = middle;
    }
    return row;
}

/* Returns chunk `number`. n is 0 if no sequence has it. */
GDN_DEVICE struct backward_chunk find_backward_chunk(const struct gdn_cu_backward &a,
                                                     int64_t number)
{
    const struct backward_window w = find_window(a, row_of_chunk(a, number));
    return chunk_at(w, number - w.first);
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

/* Return the first state head that reads a head of a tensor with n_heads, and the step to the next
 * reader. H / n_heads state heads read each. */
GDN_DEVICE int first_reader(const struct gdn_cu_rule &r, int head, int n_heads)
{
    return r.head_map == GDN_HEADS_GROUPED ? head * (r.H / n_heads) : head;
}
GDN_DEVICE int reader_step(const struct gdn_cu_rule &r, int n_heads)
{
    return r.head_map == GDN_HEADS_GROUPED ? 1 : n_heads;
}

#endif
