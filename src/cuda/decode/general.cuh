/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Token by token, of whatever dtypes, sizes, strides and batches there are; what engines decode is
 * in warp.cuh.
 *
 *     S <- alpha S;    p = S^T k    z = S^T q;    u = beta (v - p);    o = z + (k . q) u;
 *     S <- S + k u^T
 *
 * A block of 128 threads has 32 columns of one state of one sequence, all of K, in registers for
 * the whole call: read once, element by element, and written where the caller wants it. What the
 * tokens need comes beside it in windows (general_tokens.cuh), so that a pass over the state is one
 * token's decay, sums and update.
 */
#ifndef GDN_CUDA_DECODE_CUH
#define GDN_CUDA_DECODE_CUH

#include "cuda/decode/args.h"
#include "cuda/decode/general_tile.cuh"

template <class Tile, int KC> struct decode_shared {
    struct decode_work work;
    struct decode_window<KC> windows[2];
    typename Tile::shared tile;
};

/* ---- A tile in memory ------------------------------------------------------------------------ */

/* The block's part of a state in a slot, as rows and columns of the tile. */
struct decode_place {
    char *data;
    int32_t dtype;
    int rows, columns;             /* where they end */
    int64_t row_step, column_step; /* in elements */
};

template <class Tile>
GDN_DEVICE struct decode_place place_of(const struct gdn_cu_rule &r, const struct decode_work &w,
                                        const struct gdn_pool_view &view, int64_t slot, int bytes)
{
    const bool turned = view.k_first != Tile::K_FIRST;
    const int64_t step = 1 + view.gap;
    struct decode_place p;
    p.dtype = view.dtype;
    p.rows = Tile::K_FIRST ? r.K : w.n_columns;
    p.columns = Tile::K_FIRST ? w.n_columns : r.K;
    p.row_step = turned ? step : view.ld;
    p.column_step = turned ? view.ld : step;
    p.data = view.data + (pool_at(view, slot, w.head) +
                          w.column * (Tile::K_FIRST ? p.column_step : p.row_step)) *
                             bytes;
    return p;
}
template <class Tile>
GDN_DEVICE struct decode_place place_of(const struct gdn_cu_rule &r, const struct decode_work &w,
                                        const struct gdn_pool_view &view, int64_t slot)
{
    return place_of<Tile>(r, w, view, slot, float_bytes(view.dtype));
}

/* Loads element by element; the copy is for the loops, which are not unrolled whole. */
template <class Tile> GDN_DEVICE void load_any(Tile &tile, const struct decode_place &from)
{
    float S[Tile::N * 4];
#pragma unroll 4
    for (int i = 0; i < Tile::N * 4; i++) {
        const int r = Tile::row() + Tile::row_step(i / 4);
        const int c = Tile::column() + Tile::column_step(i / 4) + i % 4;
        const bool there = r < from.rows && c < from.columns;
        S[i] = bits_to_f32(
            load_bits(from.data, r * from.row_step + c * from.column_step, from.dtype, there),
            from.dtype);
    }
    for (int i = 0; i < Tile::N * 4; i++) tile.S[i / 4][i % 4] = S[i];
}

template <class Tile> GDN_DEVICE void store_any(const Tile &tile, const struct decode_place &to)
{
    float S[Tile::N * 4];
    for (int i = 0; i < Tile::N * 4; i++) S[i] = tile.S[i / 4][i % 4];
#pragma unroll 1
    for (int i = 0; i < Tile::N * 4; i++) {
        const int r = Tile::row() + Tile::row_step(i / 4);
        const int c = Tile::column() + Tile::column_step(i / 4) + i % 4;
        if (r < to.rows && c < to.columns)
            store_float(to.data, r * to.row_step + c * to.column_step, to.dtype, S[i]);
    }
}

/* Copies bit for bit, between places of one dtype (G9). By all threads, which copy what is others'
 * of the tile: none may go on to a token whose state goes to where this one came from. */
GDN_DEVICE void copy_part(const struct decode_place &to, const struct decode_place &from)
{
    if (to.data == from.data) return;
#pragma unroll 1
    for (int i = threadIdx.x; i < to.rows * to.columns; i += DECODE_THREADS) {
        const int r = i / to.columns, c = i % to.columns;
        const int64_t at = r * to.row_step + c * to.column_step;
        const uint32_t x =
            load_bits(from.data, r * from.row_step + c * from.column_step, from.dtype);
        if (to.dtype == GDN_F32)
            ((uint32_t *)to.data)[at] = x;
        else
            ((uint16_t *)to.data)[at] = (uint16_t)x;
    }
    __syncthreads();
}

/* Stores the state as it is now, to a slot; `changed`: it is no longer what was there at the
 * start. */
template <class Tile>
GDN_DEVICE void leave(const Tile &tile, bool changed, const struct gdn_cu_rule &r,
                      const struct decode_work &w, const struct gdn_pool_view &view, int64_t slot)
{
    const struct decode_place to = place_of<Tile>(r, w, view, slot);
    if (!changed && w.seq.read >= 0 && r.from.dtype == to.dtype)
        copy_part(to, place_of<Tile>(r, w, r.from, w.seq.read));
    else
        store_any(tile, to);
}

template <class Tile>
GDN_DEVICE void enter(Tile &tile, const struct gdn_cu_rule &r, const struct decode_work &w)
{
    if (w.seq.read < 0) {
        decay(tile.S, 0);
        return;
    }
    load_any(tile, place_of<Tile>(r, w, r.from, w.seq.read));
}

/* ---- A block --------------------------------------------------------------------------------- */

/* Returns the sequence of a batch that has nothing but cu_seqlens and slots. */
GDN_DEVICE struct gdn_cu_seq read_simple(const struct gdn_cu_batch &b, int64_t row)
{
    struct gdn_cu_seq s = {};
    const int64_t start = named_slot(b, load_index(b.read_slots, row, 0, row));
    const int64_t end = load_index(b.cu_seqlens, row + 1, 0, INT64_MAX);
    const bool reads = b.read_pool >= 0, writes = b.write == GDN_WRITE_FINAL;
    s.row = row;
    s.batch = b.padded ? row : 0;
    s.first = clamp64(load_index(b.cu_seqlens, row), 0, b.N);
    s.n_tokens = b.cu_seqlens.data ? clamp64(end, s.first, b.N) - s.first : b.T;
    s.read = reads ? start : -1;
    s.write = writes ? named_slot(b, load_index(b.write_slots, row, 0, start)) : -1;
    s.padding = start < 0 || (reads && start >= b.read_pool) || (writes && s.write >= b.write_pool);
    s.n_valid = s.padding ? 0 : s.n_tokens;
    s.keep_out = s.padding && b.pad_policy == GDN_PAD_KEEP;
    return s;
}

/* Reads a sequence of any batch. After the last one come the tokens that belong to none, and
 * then, if a grid has more rows than are wanted, nothing. Not inline: few blocks have to step
 * over it. */
static __device__ __noinline__ void read_any(struct decode_work *w, const struct gdn_cu_batch *b,
                                             int64_t row)
{
    struct gdn_cu_seq s = {};
    struct gdn_cu_checkpoints c = {};
    if (row < b->B) {
        s = read_sequence(*b, row);
        c = read_checkpoints(*b, s);
    } else if (row == b->B && b->cu_seqlens.data) {
        s.first = clamp64(load_index(b->cu_seqlens, row), 0, b->N);
        s.n_tokens = b->N - s.first;
        s.padding = true;
    }
    if (threadIdx.x % 32 != 0) return;
    w->seq = s;
    w->checkpoints = c;
}

/* Reads a piece of work, by one warp: of sequence `row`, part `part` of the states of all heads. */
GDN_DEVICE void read_work(struct decode_work &w, const struct gdn_cu_decode &a, int part,
                          int64_t row)
{
    const struct gdn_cu_rule &r = a.rule;
    const int head = part / a.n_parts;
    if (a.simple && row < r.batch.B) {
        const struct gdn_cu_seq s = read_simple(r.batch, row);
        if (threadIdx.x == 0) w.seq = s, w.checkpoints = {};
    } else {
        read_any(&w, &r.batch, row);
    }
    if (threadIdx.x != 0) return;
    w.head = head;
    w.column = (part - head * a.n_parts) * DECODE_COLUMNS;
    w.n_columns = r.V - w.column < DECODE_COLUMNS ? r.V - w.column : DECODE_COLUMNS;
    w.hq = source_head(r, head, r.Hq);
    w.hk = source_head(r, head, r.Hk);
    w.hv = source_head(r, head, r.Hv);
    w.A_log = load_vector(r.A_log, head, 0);
    w.dt_bias = load_vector(r.dt_bias, head, 0);
}

/* Zeroes the block's columns of the outputs of tokens [from, to). */
GDN_DEVICE void zero_tokens(const struct gdn_cu_rule &r, const struct decode_work &w, int64_t from,
                            int64_t to)
{
    const int column = threadIdx.x % DECODE_COLUMNS;
    if (column >= w.n_columns) return;
    for (int64_t t = from + threadIdx.x / DECODE_COLUMNS; t < to;
         t += DECODE_THREADS / DECODE_COLUMNS)
        store_float(row_at(r.out, w.seq, t, w.head), w.column + column, r.out.dtype, 0);
}

/* Checkpoints that are still to come: number `next` is after `at` tokens. */
struct decode_checkpoints {
    int64_t next, at, slot;
};

/* On to the first that is not before t tokens. */
GDN_DEVICE void seek_checkpoint(struct decode_checkpoints &c, const struct gdn_cu_batch &b,
                                const struct decode_work &w, int64_t t)
{
    for (; c.next < w.checkpoints.end; c.next++) {
        c.at = checkpoint_at(b, w.checkpoints, c.next, c.slot);
        if (c.at >= t) return;
    }
    c.at = INT64_MAX;
}

/* Stores the state after t tokens, of which the last is number i of the window, to where it is
 * wanted. */
template <class Tile, int KC>
GDN_DEVICE void leave_all(const Tile &tile, bool changed, struct decode_checkpoints &points,
                          const struct gdn_cu_rule &r, const struct decode_work &w, int64_t slot,
                          int64_t t)
{
    if (slot >= 0) leave<Tile>(tile, changed, r, w, r.to, slot);
    while (points.at == t) {
        if (points.slot >= 0) leave<Tile>(tile, changed, r, w, r.checkpoints, points.slot);
        points.next++;
        seek_checkpoint(points, r.batch, w, t);
    }
}

template <class Tile, int KC>
GDN_DEVICE void compute_tokens(Tile &tile, struct decode_shared<Tile, KC> &sh,
                               struct decode_fetched<KC> &fetched, const struct gdn_cu_decode &a)
{
    const struct gdn_cu_rule &r = a.rule;
    const struct decode_work &w = sh.work;
    const int warp = threadIdx.x / 32;
    const int64_t T = w.seq.n_valid;
    struct decode_checkpoints points = { w.checkpoints.first, 0, 0 };
    bool changed = false;
    seek_checkpoint(points, r.batch, w, 1);
    for (int64_t t0 = 0; t0 < T; t0 += DECODE_WINDOW) {
        struct decode_window<KC> &window = sh.windows[t0 / DECODE_WINDOW % 2];
        const int64_t next = t0 + DECODE_WINDOW;
        if (t0 + warp < T) commit_token<KC>(window, fetched, r, w);
        __syncthreads();
        if (next + warp < T) fetch_token<KC, false>(fetched, r, w, next + warp);
#pragma unroll 1
        for (int i = 0; i < DECODE_WINDOW && t0 + i < T; i++) {
            void *const out = r.out.data ? row_at(r.out, w.seq, t0 + i, w.head) : NULL;
            tile.step({ &window, i, out, r.out.dtype, w.column, w.n_columns }, sh.tile);
            changed |= window.alpha[i] != 1 || window.beta[i] != 0;
            if (a.rounding != GDN_F32)
                for (int n = 0; n < 4 * Tile::N; n++)
                    tile.S[n / 4][n % 4] = round_to(tile.S[n / 4][n % 4], a.rounding);
            leave_all<Tile, KC>(tile, changed, points, r, w, window.to[i], t0 + i + 1);
        }
    }
}

template <class Tile, int KC> GDN_DEVICE void decode(const struct gdn_cu_decode &a)
{
    __shared__ struct decode_shared<Tile, KC> sh;
    const struct gdn_cu_rule &r = a.rule;
    const struct decode_work &w = sh.work;
    const int warp = threadIdx.x / 32;
    Tile tile;
    struct decode_fetched<KC> fetched;
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    if (warp == 0) read_work(sh.work, a, blockIdx.x, blockIdx.y + (int64_t)blockIdx.z * gridDim.y);
    __syncthreads();
    if (w.seq.n_tokens == 0) return;
    if (!w.seq.padding) {
        if (warp < w.seq.n_valid) fetch_token<KC, false>(fetched, r, w, warp);
        enter<Tile>(tile, r, w);
        compute_tokens<Tile, KC>(tile, sh, fetched, a);
        if (w.seq.n_valid == 0 && r.batch.write == GDN_WRITE_FINAL && w.seq.write >= 0)
            leave<Tile>(tile, false, r, w, r.to, w.seq.write);
    }
    if (!r.out.data || w.seq.keep_out) return;
    zero_tokens(r, w, -w.seq.n_before, 0);
    zero_tokens(r, w, w.seq.n_valid, w.seq.n_tokens - w.seq.n_before);
}

#define DECODE_KERNEL(threads, name, tile, KC)                              \
    extern "C" __global__ void __launch_bounds__(threads, 2)                \
        name(const __grid_constant__ struct gdn_cu_decode a)                \
    {                                                                       \
        static_assert(threads == DECODE_THREADS, "as the code is written"); \
        decode<tile<KC>, KC>(a);                                            \
    }

#endif
