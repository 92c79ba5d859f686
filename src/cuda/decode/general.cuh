/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Token by token, of whatever dtypes, sizes, strides and batches there are; what engines decode is
 * in warp.cuh.
 *
 *     S <- alpha S;    p = S^T k    z = S^T q;    u = beta (v - p);    o = z + (k . q) u;
 *     S <- S + k u^T
 *
 * A block of 128 threads has 32 columns of one state of one sequence, all of K, in registers for
 * the whole call: read once and written where the caller wants it, in chunks of four elements if
 * they are whole and aligned (a.wide), else element by element. The tokens come beside it in
 * windows (general_tokens.cuh), so that a pass over the state is one token's decay, sums and
 * update.
 */
#ifndef GDN_CUDA_DECODE_CUH
#define GDN_CUDA_DECODE_CUH

#include "cuda/decode/args.h"
#include "cuda/decode/general_tile.cuh"
#include "cuda/device/q8.cuh"

template <class Tile, int KC, int n_windows = 2> struct decode_shared {
    struct decode_work work;
    typename Tile::Window windows[n_windows];
    typename Tile::shared tile;
};

/* ---- A tile in memory ------------------------------------------------------------------------ */

/* The block's part of a state in a slot, by rows and columns of the tile. */
struct decode_place {
    char *data;
    int32_t dtype;
    int rows, columns;             /* the numbers of rows and of columns that exist */
    int64_t row_step, column_step; /* in bytes */
    bool wide;                     /* chunks are whole and aligned */
};

/* Finds the place. wide: the bit GDN_CU_WIDE_... of the pool. Steps come from opaque(): otherwise
 * the compiler keeps the addresses of all chunks of all pools in registers, from the start of the
 * kernel on. */
template <class Tile>
GDN_DEVICE struct decode_place place_of(const struct gdn_cu_decode &a, const struct decode_work &w,
                                        const struct gdn_pool_view &view, int64_t slot, int wide)
{
    const bool turned = view.k_first != Tile::K_FIRST;
    const int bytes = opaque(state_bytes(view.dtype));
    const int64_t ld = view.ld * bytes, step = (1 + view.gap) * bytes;
    struct decode_place p;
    p.dtype = view.dtype;
    p.rows = Tile::K_FIRST ? a.rule.K : w.n_columns;
    p.columns = Tile::K_FIRST ? w.n_columns : a.rule.K;
    p.row_step = turned ? step : ld;
    p.column_step = turned ? ld : step;
    p.data = view.data + pool_at(view, slot, w.head) * bytes +
             w.column * (Tile::K_FIRST ? p.column_step : p.row_step);
    p.wide = a.wide & wide;
    return p;
}

/* Returns the address of chunk n, and whether it exists. bytes: of an element; 0: elements have any
 * step. */
template <class Tile, int bytes = 0>
GDN_DEVICE char *chunk_at(const struct decode_place &p, int n, bool &there)
{
    const int r = Tile::row(), c = Tile::column();
    const int64_t step = bytes ? bytes : p.column_step;
    there = r < p.rows - Tile::row_step(n) && c < p.columns - Tile::column_step(n);
    return p.data + r * p.row_step + c * step +
           (Tile::row_step(n) * p.row_step + Tile::column_step(n) * step);
}

/* Loads element by element. The tile is copied, because loops that are not unrolled index it. */
template <class Tile> GDN_DEVICE void load_any(Tile &tile, const struct decode_place &from)
{
    float S[Tile::N * 4];
#pragma unroll 4
    for (int i = 0; i < Tile::N * 4; i++) {
        const int r = Tile::row() + Tile::row_step(i / 4);
        const int c = Tile::column() + Tile::column_step(i / 4) + i % 4;
        const bool there = r < from.rows && c < from.columns;
        S[i] = bits_to_f32(
            load_bits(from.data + r * from.row_step + c * from.column_step, 0, from.dtype, there),
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
            store_float(to.data + r * to.row_step + c * to.column_step, 0, to.dtype, S[i]);
    }
}

/* Loads all chunks, then converts them. */
template <int dtype, class Tile>
GDN_DEVICE void load_chunks(Tile &tile, const struct decode_place &from)
{
    uint32_t x[Tile::N][4];
    for (int n = 0; n < Tile::N; n++) {
        bool there;
        const char *at = chunk_at < Tile, dtype == GDN_F32 ? 4 : 2 > (from, n, there);
        load_chunk(x[n], at, dtype, there);
    }
    expand_chunks(tile.S, x, from.dtype);
}

template <class Tile> GDN_DEVICE void load_floats(Tile &tile, const struct decode_place &from)
{
    if (!from.wide)
        load_any(tile, from);
    else if (from.dtype == GDN_F32)
        load_chunks<GDN_F32>(tile, from);
    else
        load_chunks<GDN_BF16>(tile, from);
}

template <int dtype, class Tile>
GDN_DEVICE void store_chunks(const struct decode_place &to, const Tile &tile)
{
    for (int n = 0; n < Tile::N; n++) {
        bool there;
        char *const at = chunk_at < Tile, dtype == GDN_F32 ? 4 : 2 > (to, n, there);
        if (there) store_chunk(at, tile.S[n], dtype);
    }
}

template <class Tile> GDN_DEVICE void store_floats(const struct decode_place &to, const Tile &tile)
{
    if (!to.wide)
        store_any(tile, to);
    else if (to.dtype == GDN_F32)
        store_chunks<GDN_F32>(to, tile);
    else if (to.dtype == GDN_BF16)
        store_chunks<GDN_BF16>(to, tile);
    else
        store_chunks<GDN_F16>(to, tile);
}

/* Copies bits between places of one dtype (G9). All threads call it, because a thread copies
 * elements that other threads hold in the tile. A later token may write its state to `from`, so no
 * thread goes on before all have copied. */
GDN_DEVICE void copy_part(const struct decode_place &to, const struct decode_place &from)
{
    if (to.data == from.data) return;
#pragma unroll 1
    for (int i = threadIdx.x; i < to.rows * to.columns; i += DECODE_THREADS) {
        const int r = i / to.columns, c = i % to.columns;
        char *const at = to.data + r * to.row_step + c * to.column_step;
        const uint32_t x =
            load_bits(from.data + r * from.row_step + c * from.column_step, 0, from.dtype);
        if (to.dtype == GDN_F32)
            *(uint32_t *)at = x;
        else
            *(uint16_t *)at = (uint16_t)x;
    }
    __syncthreads();
}

/* Stores the state to a slot. `changed`: it differs from the state at the start. */
template <class Tile>
GDN_DEVICE void leave(const Tile &tile, bool changed, const struct gdn_cu_decode &a,
                      const struct decode_work &w, const struct gdn_pool_view &view, int64_t slot,
                      int wide)
{
    const struct gdn_pool_view &from = a.rule.from;
    const struct decode_place to = place_of<Tile>(a, w, view, slot, wide);
    if (!changed && w.seq.read >= 0 && from.dtype == to.dtype)
        copy_part(to, place_of<Tile>(a, w, from, w.seq.read, GDN_CU_WIDE_FROM));
    else
        store_floats(to, tile);
}

template <class Tile>
GDN_DEVICE void enter(Tile &tile, const struct gdn_cu_decode &a, const struct decode_work &w)
{
    if (w.seq.read < 0) {
        decay(tile.S, 0);
        return;
    }
    load_floats(tile, place_of<Tile>(a, w, a.rule.from, w.seq.read, GDN_CU_WIDE_FROM));
}

/* ---- A block --------------------------------------------------------------------------------- */

/* Returns the sequence of a batch that has no arrays of indices but cu_seqlens and slots. */
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

/* Reads a sequence of any batch. Behind the last one comes a row for the tokens that belong to
 * none. Other rows of the grid have no work. It is not inline, because most blocks have to jump
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

/* Reads a piece of work: sequence `row`, and part `part` of the states of all heads. One warp calls
 * it. */
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

/* Sets the block's columns of the outputs of tokens [from, to) to zero. */
GDN_DEVICE void zero_tokens(const struct gdn_cu_rule &r, const struct decode_work &w, int64_t from,
                            int64_t to)
{
    const int column = threadIdx.x % DECODE_COLUMNS;
    if (column >= w.n_columns) return;
    for (int64_t t = from + threadIdx.x / DECODE_COLUMNS; t < to;
         t += DECODE_THREADS / DECODE_COLUMNS)
        store_float(row_at(r.out, w.seq, t, w.head), w.column + column, r.out.dtype, 0);
}

/* The checkpoints that are still to come. Number `next` is after `at` tokens. */
struct decode_checkpoints {
    int64_t next, at, slot;
};

/* Moves on to the first checkpoint after at least t tokens. */
GDN_DEVICE void seek_checkpoint(struct decode_checkpoints &c, const struct gdn_cu_batch &b,
                                const struct decode_work &w, int64_t t)
{
    for (; c.next < w.checkpoints.end; c.next++) {
        c.at = checkpoint_at(b, w.checkpoints, c.next, c.slot);
        if (c.at >= t) return;
    }
    c.at = INT64_MAX;
}

/* Stores the state after t tokens: to a slot (-1: none), and to checkpoints. */
template <class Tile>
GDN_DEVICE void leave_all(const Tile &tile, bool changed, struct decode_checkpoints &points,
                          const struct gdn_cu_decode &a, const struct decode_work &w, int64_t slot,
                          int64_t t)
{
#pragma unroll 1
    for (bool final = true;; final = false) {
        const struct gdn_pool_view &view = final ? a.rule.to : a.rule.checkpoints;
        const int wide = final ? GDN_CU_WIDE_TO : GDN_CU_WIDE_CHECKPOINTS;
        if (slot >= 0) leave<Tile>(tile, changed, a, w, view, slot, wide);
        if (!final) {
            points.next++;
            seek_checkpoint(points, a.rule.batch, w, t);
        }
        if (points.at != t) return;
        slot = points.slot;
    }
}

/* Loads row `row` of a sequence. A warp calls it. */
template <class Tile, int KC>
GDN_DEVICE void fetch(typename Tile::Window::fetched &f, const struct gdn_cu_decode &a,
                      const struct decode_work &w, int64_t row)
{
    if (a.wide & GDN_CU_WIDE_ROWS)
        fetch_token<KC, true>(f, a.rule, w, row);
    else
        fetch_token<KC, false>(f, a.rule, w, row);
}

/* Decodes the tokens of a sequence. few: one window holds all its rows. */
template <class Tile, int KC, bool few>
GDN_DEVICE void compute_tokens(Tile &tile, struct decode_shared<Tile, KC, few ? 1 : 2> &sh,
                               typename Tile::Window::fetched &fetched,
                               const struct gdn_cu_decode &a)
{
    typedef typename Tile::Window Window;
    const struct gdn_cu_rule &r = a.rule;
    const struct decode_work &w = sh.work;
    const int warp = threadIdx.x / 32;
    const int64_t T = Window::n_rows(r, w.seq.n_valid);
    struct decode_checkpoints points = { w.checkpoints.first, 0, 0 };
    bool changed = false;
    seek_checkpoint(points, r.batch, w, 1);
    for (int64_t t0 = 0; t0 < T; t0 += DECODE_WINDOW) {
        Window &window = sh.windows[few ? 0 : t0 / DECODE_WINDOW % 2];
        const int64_t next = t0 + DECODE_WINDOW;
        if (t0 + warp < T) commit_token<KC>(window, fetched, r, w);
        __syncthreads();
        if (!few && next + warp < T) fetch<Tile, KC>(fetched, a, w, next + warp);
#pragma unroll 1
        for (int i = 0; i < DECODE_WINDOW && t0 + i < T; i++) {
            const int64_t t = window.ends(i, t0 + i);
            void *const out = r.out.data && t >= 0 ? row_at(r.out, w.seq, t, w.head) : NULL;
            tile.step({ &window, i, out, r.out.dtype, w.column, w.n_columns }, sh.tile);
            changed |= window.changes(i);
            if (t >= 0 && a.rounding != GDN_F32)
                for (int n = 0; n < 4 * Tile::N; n++)
                    tile.S[n / 4][n % 4] = round_to(tile.S[n / 4][n % 4], a.rounding);
            if (t >= 0) leave_all<Tile>(tile, changed, points, a, w, window.to[i], t + 1);
        }
        if (few) break;
    }
}

template <class Tile, int KC, bool few = false>
GDN_DEVICE void decode(const struct gdn_cu_decode &a)
{
    __shared__ struct decode_shared<Tile, KC, few ? 1 : 2> sh;
    const struct gdn_cu_rule &r = a.rule;
    const struct decode_work &w = sh.work;
    const int warp = threadIdx.x / 32;
    Tile tile;
    typename Tile::Window::fetched fetched;
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    if (warp == 0) read_work(sh.work, a, blockIdx.x, blockIdx.y + (int64_t)blockIdx.z * gridDim.y);
    __syncthreads();
    if (w.seq.n_tokens == 0) return;
    if (!w.seq.padding) {
        if (warp < Tile::Window::n_rows(r, w.seq.n_valid)) fetch<Tile, KC>(fetched, a, w, warp);
        enter<Tile>(tile, a, w);
        compute_tokens<Tile, KC, few>(tile, sh, fetched, a);
        if (w.seq.n_valid == 0 && r.batch.write == GDN_WRITE_FINAL && w.seq.write >= 0)
            leave<Tile>(tile, false, a, w, r.to, w.seq.write, GDN_CU_WIDE_TO);
    }
    if (!r.out.data || w.seq.keep_out) return;
    zero_tokens(r, w, -w.seq.n_before, 0);
    zero_tokens(r, w, w.seq.n_valid, w.seq.n_tokens - w.seq.n_before);
}

#define DECODE_KERNEL(threads, blocks, name, ...)                           \
    extern "C" __global__ void __launch_bounds__(threads, blocks)           \
        name(const __grid_constant__ struct gdn_cu_decode a)                \
    {                                                                       \
        static_assert(threads == DECODE_THREADS, "as the code is written"); \
        decode<__VA_ARGS__>(a);                                             \
    }

#endif
