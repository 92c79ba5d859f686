/* SPDX-License-Identifier: Apache-2.0 */
/* The parts that both forms of `scan` share: loads and stores of states, chunks that are not
 * finite, and the block of threads. A warp has 16 value columns of a state, transposed: 16 x 16
 * blocks of rows v and columns k. */
#ifndef GDN_CUDA_PREFILL_CHANNELS_SCAN_STATE_CUH
#define GDN_CUDA_PREFILL_CHANNELS_SCAN_STATE_CUH

#include "cuda/prefill/channels/products.cuh"
#include "cuda/prefill/channels/walk.cuh"

/* The start of shared memory. */
struct scan_head {
    struct gdn_cu_seq s;
    struct channels_part part;
    struct gdn_cu_checkpoints checkpoints;
};
static_assert(sizeof(struct scan_head) <= GDN_CHANNELS_HEAD_BYTES, "args.h");

/* The values that every thread of a block holds. */
struct scan_block {
    const struct gdn_cu_prefill_channels &a;
    const struct gdn_cu_rule &r;
    const struct gdn_cu_seq &s;
    const struct channels_part &part;
    const struct gdn_cu_checkpoints &checkpoints;
    int head, slice, first_column, columns;

    __device__ __forceinline__ int n_chunks() const { return (int)(part.end - part.begin); }
    __device__ __forceinline__ int tokens(int64_t c) const
    {
        return (int)min(s.n_valid - c * CHUNK, (int64_t)CHUNK);
    }
    __device__ __forceinline__ const char *record(int64_t c) const
    {
        return a.records + ((part.record + c - part.begin) * r.H + head) * a.record_bytes;
    }
};

/* Rows of V or of w v of chunk c, from the head's first column on. */
struct value_rows {
    const char *data;
    int64_t step; /* bytes */
};
template <int deep> GDN_DEVICE struct value_rows rows_of_values(const scan_block &b, int64_t c)
{
    const struct gdn_cu_rule &r = b.r;
    if (r.family.write.data) return { b.record(c) + GDN_CHANNELS_WRITTEN(deep), 2 * r.V };
    return { row_at(r.v, b.s, c * CHUNK, source_head(r, b.head, r.Hv)), r.v.token };
}

/* A lane's rows of the warp's columns in memory: every 16th token, and 8 columns. */
struct lane_rows {
    char *at;            /* address of the first row */
    int64_t step, chunk; /* bytes from a row to the next, and from a chunk to the next */
    __device__ __forceinline__ char *row(int i) const { return at + i * step; }
};

/* A lane's part of V and of the output, which pass through rows of shared memory. */
struct lane_columns {
    int n_tokens;     /* from the part's first chunk on; a large number if there are more */
    bool exist;       /* the lane has eight columns that exist */
    lane_rows values; /* V of the chunk to be loaded next */
    lane_rows out;    /* output of the current chunk */

    /* Return the tokens of chunk i from the lane's first row on. */
    __device__ __forceinline__ int tokens(int i) const
    {
        return n_tokens - i * CHUNK - (int)(threadIdx.x % 32 / 2);
    }

    template <int deep>
    __device__ __forceinline__ void begin(const scan_block &b, const struct state_part &part)
    {
        const struct gdn_cu_rule &r = b.r;
        const int64_t c = b.part.begin;
        const struct value_rows v = rows_of_values<deep>(b, c);
        const int lane = threadIdx.x % 32, column = part.v + lane % 2 * 8, t = lane / 2;
        n_tokens = (int)min(b.s.n_valid - c * CHUNK, (int64_t)INT32_MAX);
        exist = column < r.V;
        values = { (char *)v.data + t * v.step + 2 * column, 16 * v.step,
                   r.family.write.data ? r.H * b.a.record_bytes : CHUNK * v.step };
        out = { row_at(r.out, b.s, c * CHUNK + t, b.head) + 2 * column, 16 * r.out.token,
                CHUNK * r.out.token };
    }
    /* Begins to load V of chunk i to rows from `to` on, `step` bytes apart. */
    __device__ __forceinline__ void load(const scan_block &b, int i, uint32_t to, int step)
    {
        const int n = tokens(i);
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            const bool there = 16 * j < n && exist;
            copy_async<16>(to + j * step, there ? values.row(j) : b.a.records, there ? 16 : 0);
        }
        values.at += values.chunk;
    }
    /* Stores the output of chunk i from such rows. */
    __device__ __forceinline__ void store(const scan_block &b, int i, const char *from,
                                          int step) const
    {
        const int n = tokens(i);
        if (exist && b.r.out.data)
#pragma unroll
            for (int j = 0; j < GROUPS; j++)
                if (16 * j < n) *(uint4 *)out.row(j) = *(const uint4 *)(from + j * step);
    }
};

/* Computes R^T = (w V)^T - x. values: the lane's place in V, whose rows are `row` bytes apart. */
template <int io>
GDN_DEVICE void make_r(typename mma_tiles<io>::operand (&r)[GROUPS], const mma_block (&x)[GROUPS],
                       const float (&w)[CHUNK], uint32_t values, int row)
{
    typedef mma_tiles<io> tiles;
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        typename tiles::operand m;
        mma_block y;
        tiles::load_turned(m, values + 16 * row * j, row);
        tiles::unpack(y, m);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float2 f = *(const float2 *)(w + 16 * j + block_column(h, 0));
#pragma unroll
            for (int e = 0; e < 4; e++)
                y[h][e] = family_written(e % 2 ? f.y : f.x, y[h][e]) - x[j][h][e];
        }
        tiles::pack(r[j], y);
    }
}

/* ---- What is not finite ---------------------------------------------------------------------- */

/* A value that is not finite must not reach earlier tokens, and a channel that forgets must drop
 * it. But a product of matrices multiplies it by zero, which gives NaN. So the warp then walks
 * through the chunk token by token, in float32. U shows whether it must: every token reads S in R,
 * and a value of R that is not finite makes U not finite, because T has ones on its diagonal.
 * Columns whose state is lost before the chunk need no walk if no channel forgets: all their
 * results are lost too. */

/* Returns true if each column of U with an element that is not finite has one in S too. A whole
 * warp calls it. */
template <int io, int deep>
GDN_DEVICE bool were_lost(const mma_block (&S)[deep / 16],
                          const typename mma_tiles<io>::operand (&u)[GROUPS])
{
    typedef mma_tiles<io> tiles;
    bool were = true;
#pragma unroll
    for (int d = 0; d < 2; d++) { /* columns are rows g and g + 8 */
        typename tiles::taint taint = 0;
        bool lost = false;
#pragma unroll
        for (int j = 0; j < 2 * GROUPS; j++)
            taint = tiles::pairs::taint(taint, u[j / 2].x[2 * (j % 2) + d]);
#pragma unroll
        for (int i = 0; i < deep / 4; i++) lost |= !is_finite(S[i / 4][i / 2 % 2][i % 2 + 2 * d]);
        const unsigned row = 15u << (threadIdx.x % 32 & ~3u);
        const bool bad = __ballot_sync(0xffffffff, tiles::is_tainted(taint)) & row;
        const bool is_lost = __ballot_sync(0xffffffff, lost) & row; /* of all lanes of the row */
        were &= !bad || is_lost;
    }
    return !in_warp(!were);
}

/* Walks through a chunk. It copies its arguments, so that the originals stay in registers. out: the
 * output of the first token in the warp's first column, or NULL; step: bytes to the next token. */
template <int io, int deep>
GDN_DEVICE void mend(mma_block (&S)[deep / 16], const scan_block &b, const struct state_part &part,
                     int64_t c, char *out, int64_t step)
{
    mma_block copy[deep / 16];
    const struct state_part columns = part;
    const struct gdn_cu_rule &r = b.r;
    const struct gdn_cu_seq &s = b.s;
    const int64_t t0 = c * CHUNK;
    const int head = b.head;
    const struct walk_tokens tokens = { r, s, t0, b.tokens(c), head };
    const auto leave = [out, step, columns](int t, const float(&)[2], const float(&o)[2]) {
        typedef typename gdn_io<io>::type element;
        if (!out || threadIdx.x % 4) return;
#pragma unroll
        for (int d = 0; d < 2; d++) {
            const int v = block_row(2 * d);
            if (columns.v + v < columns.V) gdn_io<io>::store((element *)(out + t * step) + v, o[d]);
        }
    };
#pragma unroll
    for (int i = 0; i < deep / 2; i++) copy[i / 8][i / 4 % 2][i % 4] = S[i / 8][i / 4 % 2][i % 4];
    walk_chunk<io, deep>(copy, tokens, columns, leave);
#pragma unroll
    for (int i = 0; i < deep / 2; i++) S[i / 8][i / 4 % 2][i % 4] = copy[i / 8][i / 4 % 2][i % 4];
}

/* Walks through chunk i of the part, and writes its output to memory. */
template <int io, int deep>
GDN_DEVICE void walk_to_memory(mma_block (&S)[deep / 16], const scan_block &b,
                               const struct state_part &part, int i)
{
    const struct gdn_rows &out = b.r.out;
    const int64_t c = b.part.begin + i;
    char *const to = out.data ? row_at(out, b.s, c * CHUNK, b.head) + 2 * part.v : NULL;
    mend<io, deep>(S, b, part, c, to, out.token);
}

/* ---- The state before and after the window --------------------------------------------------- */

/* Returns the address of a warp's part of the state between windows. Elements have the order of its
 * lanes. */
template <int deep> GDN_DEVICE float *carried(const scan_block &b, int64_t place)
{
    const int64_t strip = (place * b.r.H + b.head) * b.a.n_slices + b.slice;
    return b.a.carry + strip * b.columns * deep + threadIdx.x / 32 * 16 * deep + threadIdx.x % 32;
}

template <int n>
GDN_DEVICE void begin_state(mma_block (&S)[n], const scan_block &b, const struct state_part &part)
{
    const float *from = carried<16 * n>(b, b.part.from);
    if (b.part.is_first)
        load_state(S, place_of(b.r.from, b.s.read, b.head), part);
    else
#pragma unroll
        for (int i = 0; i < 8 * n; i++) S[i / 8][i / 4 % 2][i % 4] = from[32 * i];
}
template <int n>
GDN_DEVICE void end_state(const mma_block (&S)[n], const scan_block &b,
                          const struct state_part &part)
{
    float *const to = carried<16 * n>(b, b.part.to);
    const struct state_place place = place_of(b.r.to, b.s.write, b.head);
    if (b.part.end < b.part.n_chunks) {
#pragma unroll
        for (int i = 0; i < 8 * n; i++) to[32 * i] = S[i / 8][i / 4 % 2][i % 4];
    } else if (place.data) {
#pragma unroll
        for (int x = 0; x < n; x++) store_block(S[x], place, part, 16 * x);
    }
}

/* Stores the checkpoint after n tokens, which are whole chunks, if there is one. */
template <int n>
GDN_DEVICE void leave_checkpoint(const mma_block (&S)[n], const scan_block &b,
                                 const struct state_part &part, int64_t tokens)
{
    const struct gdn_cu_batch &batch = b.r.batch;
    if (batch.checkpoint_pool < 0 || tokens % batch.checkpoint_every || tokens > b.s.n_valid)
        return;
    const int64_t number = b.checkpoints.first + tokens / batch.checkpoint_every - 1;
    int64_t slot = -1;
    if (number < b.checkpoints.end) checkpoint_at(batch, b.checkpoints, number, slot);
    const struct state_place place = place_of(b.r.checkpoints, slot, b.head);
    if (!place.data) return;
#pragma unroll
    for (int x = 0; x < n; x++) store_block(S[x], place, part, 16 * x);
}

/* ---- All chunks ------------------------------------------------------------------------------ */

/* Returns the chunk behind the first checkpoint from chunk i on, or the end of the part. */
GDN_DEVICE int next_stop(const scan_block &b, int i)
{
    const struct gdn_cu_batch &batch = b.r.batch;
    if (batch.checkpoint_pool < 0) return b.n_chunks();
    const int64_t each = batch.checkpoint_every / CHUNK, c = b.part.begin + i;
    return (int)min((c / each + 1) * each - b.part.begin, (int64_t)b.n_chunks());
}

/* Computes all chunks. pass() computes those that change the state and are finite, up to the
 * first other one, which pass_other() computes. So the inner loop has few instructions, which
 * stay in the nearest cache. */
template <class Warp> GDN_DEVICE void pass_all(Warp &w)
{
    const int n = w.b.n_chunks();
#pragma unroll 1
    for (int i = 0; in_warp(i < n);) {
        const int stop = next_stop(w.b, i);
        i = w.pass(i, stop);
        if (in_warp(i < stop)) w.pass_other(i++);
        leave_checkpoint(w.S, w.b, w.part, (w.b.part.begin + i) * CHUNK);
    }
}

/* ---- A block --------------------------------------------------------------------------------- */

/* Writes zeros to the block's columns of tokens [from, to), counted as row_at() does. */
GDN_DEVICE void zero_tokens(const scan_block &b, int64_t from, int64_t to)
{
    const int n = min(b.columns, b.r.V - b.first_column);
    for (int64_t t = from + threadIdx.x / 32; t < to; t += blockDim.x / 32) {
        uint16_t *row = (uint16_t *)row_at(b.r.out, b.s, t, b.head) + b.first_column;
        for (int i = threadIdx.x % 32; i < n; i += 32) row[i] = 0;
    }
}

/* Runs the block's part of the window, if there is one: run(block). Sets the outputs of tokens that
 * are not valid to zero. */
template <class Run>
GDN_DEVICE void scan_window(const struct gdn_cu_prefill_channels &a, struct scan_head &sh,
                            int columns, const Run run)
{
    const struct gdn_cu_rule &r = a.rule;
    const int64_t each = (int64_t)r.H * a.n_slices, row = a.row + blockIdx.x / each;
    if (threadIdx.x < 32) {
        struct gdn_cu_seq s; /* after the last sequence: the tokens of none */
        if (row == r.batch.B)
            s = read_rest(r.batch);
        else
            s = read_sequence(r.batch, row);
        struct channels_part part = {};
        if (row < r.batch.B)
            part = find_part(a, s);
        else
            part.is_first = true;
        const struct gdn_cu_checkpoints list = read_checkpoints(r.batch, s);
        if (threadIdx.x == 0) sh.s = s, sh.part = part, sh.checkpoints = list;
    }
    __syncthreads();
    scan_block b = { a, r, sh.s, sh.part, sh.checkpoints };
    b.head = (int)(blockIdx.x % each / a.n_slices);
    b.slice = (int)(blockIdx.x % a.n_slices);
    b.columns = columns;
    b.first_column = b.slice * columns;
    if (sh.s.n_tokens == 0 || (!sh.part.is_first && sh.part.begin >= sh.part.end)) return;
    if (row < r.batch.B && !sh.s.padding) run(b);
    if (!r.out.data || sh.s.keep_out || !sh.part.is_first) return;
    zero_tokens(b, -sh.s.n_before, 0);
    zero_tokens(b, sh.s.n_valid, sh.s.n_tokens - sh.s.n_before);
}

#endif
