/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state's walk through a sequence or a segment, after chunks.cuh. A block has a head and some
 * of its columns, 16 of them in each warp, as in general.cuh. T, P and gates come from memory. Two
 * warps copy K, V, T and gates of later chunks into stages of shared memory. Two other warps copy Q
 * and P into stages of their own, which are free again before the state is updated.
 *
 * Long sequences take three launches (sm90/segments.cuh): first segments, with M and U of all
 * others but the last; combine.cuh; segments after the first. A column of M is the last state of a
 * walk without values that begins as a column of the identity.
 */
#ifndef GDN_CUDA_PREFILL_SCAN_CUH
#define GDN_CUDA_PREFILL_SCAN_CUH

#include "cuda/prefill/general_loads.cuh"
#include "cuda/prefill/general_walk.cuh"
#include "cuda/prefill/portable/record.cuh"
#include "cuda/prefill/segment.cuh"

enum {
    LOAD_THREADS = 64,
    BARRIER_LOADED = 1, /* two barriers, one for the warps of each kind of load */
    BARRIER_FULL = 3,   /* three stages, and two of queries */
    BARRIER_EMPTY = 8,  /* as many */
    QUERIES = 3         /* the number of the first barrier of queries, after those of stages */
};

/* The start of shared memory. */
struct scan_head {
    struct gdn_cu_seq s;
    struct gdn_cu_checkpoints checkpoints;
    struct sequence_segment segment;
    struct prefill_cursor cursors[8];
    int64_t number; /* number of the first chunk's record */
    bool is_map;    /* the block computes M and U */
};
static_assert(sizeof(scan_head) <= GDN_PORTABLE_HEAD_BYTES, "portable/args.h");

/* The values that every thread of a block holds. */
template <int io_, int deep_> struct scan_block {
    static constexpr int io = io_, deep = deep_, chunk = CHUNK;
    typedef mma_tiles<io> tiles;
    typedef chunk_work<io, deep> work;
    static constexpr int k_row = GDN_PREFILL_ROW(deep, 2), k_bytes = chunk * k_row;
    static constexpr int t_row = GDN_PREFILL_ROW(chunk, 2), t_bytes = chunk * t_row;
    static_assert(GDN_PREFILL_CHUNK(2, deep) == chunk, "chunks of the records");

    const struct gdn_cu_prefill_portable &a;
    const struct gdn_cu_rule &r;
    struct scan_head &shared;
    const struct gdn_cu_seq &s;
    int head, first_column, v_row, stage_bytes;
    bool of_M; /* the columns are those of M */
    int64_t n_chunks;

    /* Return the parts of a stage: T, gates, K and V; and of a stage of queries: P and Q. */
    __device__ char *t(int i) const
    {
        return gdn_shared + GDN_PORTABLE_HEAD_BYTES + i * stage_bytes;
    }
    __device__ portable_vectors &gates(int i) const
    {
        return *(portable_vectors *)(t(i) + t_bytes);
    }
    __device__ char *k(int i) const { return t(i) + t_bytes + GDN_PREFILL_VECTORS_BYTES(chunk); }
    __device__ char *v(int i) const { return k(i) + k_bytes; }
    __device__ char *p(int i) const { return t(a.n_stages) + i * (t_bytes + k_bytes); }
    __device__ char *q(int i) const { return p(i) + t_bytes; }

    __device__ bool has_output() const { return r.out.data && !shared.is_map; }
    __device__ int tokens(int64_t c) const
    {
        const int64_t rest = s.n_valid - c * chunk;
        return rest < chunk ? (int)rest : chunk;
    }
    __device__ int columns() const { return of_M ? r.K : r.V; }
    /* Return the threads that meet to pass a stage on, and to give it back. */
    __device__ int n_threads() const { return LOAD_THREADS + 32 * a.n_state; }
    __device__ void await(int stage) const { barrier_wait(BARRIER_FULL + stage, n_threads()); }
    __device__ void release(int stage, int64_t c, int n) const
    {
        if (c + n < n_chunks) barrier_arrive(BARRIER_EMPTY + stage, n_threads());
    }
    __device__ int query_stage(int64_t c) const { return (int)c & (a.n_queries - 1); }
    __device__ void await_queries(int64_t c) const { await(QUERIES + query_stage(c)); }
    __device__ void release_queries(int64_t c) const
    {
        release(QUERIES + query_stage(c), c, a.n_queries);
    }
};

/* ---- Loads ----------------------------------------------------------------------------------- */

/* Begins to copy a square. */
GDN_DEVICE void load_square(char *to, int to_row, const char *from)
{
#pragma unroll
    for (int x = threadIdx.x % LOAD_THREADS; x < SQUARE_PIECES; x += LOAD_THREADS) {
        const struct square_piece p = piece_of(x);
        copy_async<16>(shared_address(to) + p.row * to_row + p.byte, from + 16 * x, 16);
    }
}

/* The loads of keys, values, T and gates. */
template <class Block> struct key_loads {
    const Block &b;
    const char *k, *v; /* addresses in the next chunk; v NULL: none */
    int64_t k_token, k_step;
    int k_width, k_wide, v_width, v_log_lanes;
    const struct portable_record *record;
    bool idle, forgets; /* of all chunks together */

    __device__ void start()
    {
        const struct gdn_cu_rule &r = b.r;
        const int wide = 16 * b.a.n_state, columns = b.columns() - b.first_column;
        const int key = source_head(r, b.head, r.Hk);
        record = &record_at(b.a, b.shared.number, b.head);
        k = row_at(r.k, b.s, 0, key);
        k_token = r.k.token, k_step = CHUNK * k_token;
        k_width = 2 * r.K, k_wide = b.a.k_wide;
        if (b.a.keys) {
            k = keys_at(b.a, b.shared.number, key);
            k_token = k_width = key_bytes(r);
            k_step = r.Hk * CHUNK * k_token;
            k_wide = 16;
        }
        v = b.of_M ? NULL : row_at(r.v, b.s, 0, source_head(r, b.head, r.Hv)) + 2 * b.first_column;
        v_width = 2 * (columns < wide ? columns : wide);
        v_log_lanes = min(31 - __clz(2 * b.a.n_state), 5);
        idle = true, forgets = false;
    }
    __device__ void load(int64_t c, int i)
    {
        enum { N = LOAD_THREADS };
        const int n = b.tokens(c);
        load_keys<CHUNK, 2 * Block::deep, N>(b.k(i), Block::k_row, k, k_token, n, k_width, k_wide);
        load_square(b.t(i), Block::t_row, record->T);
        for (int x = threadIdx.x % N; x < (int)sizeof record->v / 16; x += N)
            copy_async<16>(shared_address(&b.gates(i)) + 16 * x, (const char *)&record->v + 16 * x,
                           16);
        if (v)
            load_tile<N>(b.v(i), b.v_row, v, b.r.v.token, CHUNK, n, v_width, b.a.v_wide,
                         v_log_lanes);
        k += k_step, record += b.r.H;
        if (v) v += CHUNK * b.r.v.token;
    }
    __device__ void finish(int64_t c, int i)
    {
        portable_vectors &g = b.gates(i);
        drop_rows<LOAD_THREADS>(b.v(i), b.v_row, g, b.tokens(c));
        idle &= g.decay == 1 && !tokens_of(g.writers);
        forgets |= tokens_of(g.resets) != 0;
    }
};

/* The loads of queries and P. */
template <class Block> struct query_loads {
    const Block &b;
    const char *q;
    const struct portable_record *record;

    __device__ void start()
    {
        record = &record_at(b.a, b.shared.number, b.head);
        q = row_at(b.r.q, b.s, 0, source_head(b.r, b.head, b.r.Hq));
    }
    __device__ void load(int64_t c, int i)
    {
        load_keys<CHUNK, 2 * Block::deep, LOAD_THREADS>(b.q(i), Block::k_row, q, b.r.q.token,
                                                        b.tokens(c), 2 * b.r.K, b.a.q_wide);
        load_square(b.p(i), Block::t_row, record->P);
        q += CHUNK * b.r.q.token, record += b.r.H;
    }
    __device__ void finish(int64_t, int) {}
};

/* Loads all chunks into n stages, whose barriers begin at `first`. With three stages it waits for a
 * chunk when the load of the next one has begun. With fewer stages there is no room for a next
 * one. */
template <class Block, class Loads>
GDN_DEVICE void run_loads(const Block &b, Loads &loads, int first, int n)
{
    const int loaded = BARRIER_LOADED + (first ? 1 : 0), late = n > 2 ? 1 : 0;
    int stage = 0, passed = 0;
    loads.start();
#pragma unroll 1
    for (int64_t c = 0; c < b.n_chunks + late; c++) {
        if (c >= n && c < b.n_chunks) barrier_wait(BARRIER_EMPTY + first + stage, b.n_threads());
        if (c < b.n_chunks) loads.load(c, stage);
        copy_commit();
        stage = stage + 1 == n ? 0 : stage + 1;
        if (c < late) continue;
        if (late)
            copy_wait<1>();
        else
            copy_wait<0>();
        barrier_wait(loaded, LOAD_THREADS);
        loads.finish(c - late, passed);
        barrier_arrive(BARRIER_FULL + first + passed, b.n_threads());
        passed = passed + 1 == n ? 0 : passed + 1;
    }
}

template <class Block> GDN_DEVICE void run_key_loads(const Block &b)
{
    key_loads<Block> loads = { b };
    run_loads(b, loads, 0, b.a.n_stages);
    if (!b.shared.is_map || b.first_column || b.of_M || threadIdx.x >= 2) return;
    b.a.cut.marks[(b.shared.segment.from * b.r.H + b.head) * 2 + threadIdx.x] =
        (loads.idle ? GDN_SEGMENT_IDLE : 0) | (loads.forgets ? GDN_SEGMENT_FORGETS : 0);
}
template <class Block> GDN_DEVICE void run_query_loads(const Block &b)
{
    query_loads<Block> loads = { b };
    if (b.has_output()) run_loads(b, loads, QUERIES, b.a.n_queries);
}

/* ---- The state ------------------------------------------------------------------------------- */

/* Return where the state of a block comes from, and where it goes. */
template <class Block> GDN_DEVICE struct state_place place_before(const Block &b)
{
    const int64_t from = b.shared.segment.from;
    if (b.shared.is_map) return {};
    if (from >= 0) return segment_place(b.a.cut.states, b.r, b.r.V, from, b.head);
    return sequence_place(b, b.r.from, b.s.read, GDN_PREFILL_FROM);
}
template <class Block> GDN_DEVICE struct state_place place_after(const Block &b)
{
    const struct sequence_segment &g = b.shared.segment;
    if (b.of_M) return segment_place(b.a.cut.M, b.r, b.r.K, g.from, b.head);
    if (b.shared.is_map) return segment_place(b.a.cut.states, b.r, b.r.V, g.from + 1, b.head);
    if (g.to >= 0) return segment_place(b.a.cut.states, b.r, b.r.V, g.to, b.head);
    return sequence_place(b, b.r.to, b.s.write, GDN_PREFILL_TO);
}

/* Sets the warp's columns to those of the identity. */
template <int n> GDN_DEVICE void set_identity(mma_block (&S)[n], int column)
{
#pragma unroll
    for (int x = 0; x < n; x++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (16 * x + block_column(i / 4, i) == column + block_row(i % 4))
                S[x][i / 4][i % 4] = 1;
}

template <class Block> GDN_DEVICE void run_state(const Block &b)
{
    typedef typename Block::tiles tiles;
    const int i = threadIdx.x / 32 - GDN_PORTABLE_LOAD_WARPS, column = b.first_column + 16 * i;
    const bool active = column < b.columns();
    state_warp<Block> w = { b, b.shared.cursors[i], { column, b.columns(), b.r.K }, NULL };
    if (b.has_output()) w.out = row_at(b.r.out, b.s, 0, b.head) + 2 * column;
    load_state(w.S, active ? place_before(b) : state_place{}, w.part);
    if (b.of_M) set_identity(w.S, column);
    w.start = b.shared.segment.start;
    set_cursor(w.cursor, b.shared.segment.checkpoint, b.r.batch, b.shared.checkpoints);

    int stage = 0;
#pragma unroll 1
    for (int64_t c = 0; c < b.n_chunks; c++) {
        typename Block::work work;
        const int queries = b.query_stage(c);
        work.k = shared_address(b.k(stage)) + tiles::lane(Block::k_row);
        work.k_turned = shared_address(b.k(stage)) + tiles::lane_turned(Block::k_row);
        work.q = shared_address(b.q(queries)) + tiles::lane(Block::k_row);
        work.t = shared_address(b.t(stage)) + tiles::lane(Block::t_row);
        work.p = shared_address(b.p(queries)) + tiles::lane(Block::t_row);
        work.out = b.v(stage) + 2 * 16 * i;
        work.v_row = b.v_row;
        work.v_turned = shared_address(work.out) + tiles::lane_turned(b.v_row);
        work.vectors = &b.gates(stage);
        b.await(stage);
        if (active) {
            run_chunk(w, work, c);
        } else if (b.has_output()) {
            b.await_queries(c);
            b.release_queries(c);
        }
        b.release(stage, c, b.a.n_stages);
        stage = stage + 1 == b.a.n_stages ? 0 : stage + 1;
    }
    const struct state_place to = active ? place_after(b) : state_place{};
    if (!to.data) return;
#pragma unroll
    for (int x = 0; x < Block::deep / 16; x++) store_block(w.S[x], to, w.part, 16 * x);
}

/* ---- A block --------------------------------------------------------------------------------- */

/* Finds a block's tokens: of a sequence or its first segment; after these, of later segments. A
 * warp calls it. */
GDN_DEVICE void find_tokens(struct scan_head &h, const struct gdn_cu_prefill_portable &a,
                            int64_t item)
{
    const struct gdn_cu_batch &batch = a.rule.batch;
    const int64_t rows = batch.B + (a.rule.out.data && batch.cu_seqlens.data);
    const bool later = a.cut.later || item >= rows;
    int64_t row = item, unit = -1, number = 0;
    if (later) {
        number = unit = a.cut.later ? item : item - rows;
        row = find_unit(batch, a.cut, number);
        unit -= number++;
        if (row >= batch.B) return;
    }
    struct gdn_cu_seq s;
    if (row == batch.B)
        s = read_rest(batch);
    else
        s = read_sequence(batch, row);
    const struct gdn_cu_checkpoints list = read_checkpoints(batch, s);
    struct sequence_segment g = { 0, -1, -1, 0, true };
    if (a.cut.units && row < batch.B && (later || later_segments(a.cut, s.n_valid) > 0)) {
        if (!later) unit = units_before(batch, a.cut, row);
        g = cut_segment(s, a.cut, number, unit);
    }
    g.checkpoint = g.start ? checkpoint_after(batch, list, g.start) : list.first;
    const bool is_map = later && !a.cut.later;
    if (is_map && g.last) s.n_tokens = s.n_valid = 0;
    if (threadIdx.x % 32 != 0) return;
    h.s = s;
    h.checkpoints = list;
    if (is_map) h.checkpoints.end = h.checkpoints.first;
    h.segment = g;
    h.number = row < batch.B ? first_number(batch, row, CHUNK) + g.start / CHUNK : 0;
    h.is_map = is_map;
}

template <int io, int deep> GDN_DEVICE void run_scan(const struct gdn_cu_prefill_portable &a)
{
    typedef scan_block<io, deep> block;
    struct scan_head &h = *(struct scan_head *)gdn_shared;
    const struct gdn_cu_rule &r = a.rule;
    const int64_t rows = a.cut.later ? 0 : r.batch.B + (r.out.data && r.batch.cu_seqlens.data);
    /* Blocks are numbered by parts of a head, then heads, then sequences and segments. Those of
     * maps have more slices. */
    int64_t block_number = blockIdx.x, n_slices = a.n_slices, item = 0;
    if (!a.cut.later && block_number >= rows * r.H * n_slices) {
        block_number -= rows * r.H * n_slices;
        n_slices += a.n_map_slices;
        item = rows;
    }
    item += block_number / (r.H * n_slices);
    const int slice = (int)(block_number % n_slices);
    if (threadIdx.x == 0) h.s.n_tokens = 0;
    __syncthreads();
    if (threadIdx.x < 32) find_tokens(h, a, item);
    __syncthreads();
    if (h.s.n_tokens == 0) return;
    block b = { a, r, h, h.s };
    b.head = (int)(block_number / n_slices % r.H);
    b.of_M = slice >= a.n_slices;
    b.first_column = (b.of_M ? slice - a.n_slices : slice) * 16 * a.n_state;
    b.v_row = GDN_PREFILL_ROW(16 * a.n_state, 2);
    b.stage_bytes = GDN_PORTABLE_STAGE_BYTES(deep, a.n_state);
    b.n_chunks = (h.s.n_valid + CHUNK - 1) / CHUNK;
    if (r.K < deep || b.of_M || r.V - b.first_column < 16 * a.n_state) {
        const int n = (a.n_stages * b.stage_bytes + a.n_queries * (b.k_bytes + b.t_bytes)) / 16;
        for (int i = threadIdx.x; i < n; i += blockDim.x)
            ((uint4 *)b.t(0))[i] = make_uint4(0, 0, 0, 0);
        __syncthreads();
    }
    if (threadIdx.x < LOAD_THREADS)
        run_key_loads(b);
    else if (threadIdx.x < 2 * LOAD_THREADS)
        run_query_loads(b);
    else
        run_state(b);
    if (!b.has_output() || h.s.keep_out) return;
    zero_tokens(b, -h.s.n_before, 0);
    zero_tokens(b, h.s.n_valid, h.s.n_tokens - h.s.n_before);
}

#endif
