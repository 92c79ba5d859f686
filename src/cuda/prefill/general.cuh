/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_prefill in chunks, one launch: a block of threads takes one sequence, one state head and some
 * of its value columns from the first chunk to the last. Its warps have roles:
 *
 *     state   16 value columns each, in registers (general_state.cuh)
 *     loads   four warps: tiles of K, Q, V on their way for later chunks, the gates, P
 *     T       four warps, the same ones or others: T (general_gram.cuh)
 *
 * What they hand to each other lies in rings in shared memory. A full slot (T, P, gates, and with
 * them the tiles of its chunk) is passed on by one barrier, an empty one back by another. No result
 * depends on how columns and roles are dealt to warps.
 */
#ifndef GDN_CUDA_PREFILL_CUH
#define GDN_CUDA_PREFILL_CUH

#include "cuda/prefill/general_loads.cuh"
#include "cuda/prefill/general_walk.cuh"

extern __shared__ __align__(128) char gdn_shared[];

enum { BARRIER_LOADED = 1, BARRIER_SOLVE, BARRIER_FULL, BARRIER_EMPTY = BARRIER_FULL + 2 };

/* The start of shared memory. */
struct prefill_head {
    struct gdn_cu_seq s;
    struct gdn_cu_checkpoints checkpoints;
    struct prefill_cursor cursors[8];
};
static_assert(sizeof(prefill_head) <= GDN_PREFILL_HEAD_BYTES, "general.h");

/* The values that every thread of a block holds. */
template <int io_, int deep_> struct prefill_block {
    static constexpr int io = io_, deep = deep_;
    typedef mma_tiles<io> tiles;
    typedef chunk_work<io, deep> work;
    static constexpr int chunk = GDN_PREFILL_CHUNK(tiles::bytes, deep), blocks = chunk / 16;
    static constexpr int k_row = GDN_PREFILL_ROW(deep, tiles::bytes), k_bytes = chunk * k_row;
    static constexpr int t_row = GDN_PREFILL_ROW(chunk, tiles::bytes), t_bytes = chunk * t_row;
    static constexpr int slot_bytes = GDN_PREFILL_SLOT_BYTES(chunk, tiles::bytes);
    typedef chunk_vectors<chunk> vectors;

    const struct gdn_cu_prefill &a;
    const struct gdn_cu_rule &r;
    struct prefill_head &shared;
    const struct gdn_cu_seq &s;
    int head, first_column, v_row, stage_bytes;
    int64_t n_chunks;

    __device__ float *square() const { return (float *)(gdn_shared + GDN_PREFILL_HEAD_BYTES); }
    __device__ float *diagonal() const { return square() + chunk * GDN_PREFILL_LD(chunk); }
    __device__ char *slot(int i) const
    {
        return gdn_shared + GDN_PREFILL_HEAD_BYTES + GDN_PREFILL_SOLVE_BYTES(chunk) +
               i * slot_bytes;
    }
    __device__ char *t(int i) const { return slot(i); }
    __device__ char *p(int i) const { return slot(i) + t_bytes; }
    __device__ vectors &gates(int i) const { return *(vectors *)(slot(i) + 2 * t_bytes); }
    __device__ char *k(int i) const { return slot(a.n_slots) + i * stage_bytes; }
    __device__ char *q(int i) const { return k(i) + k_bytes; }
    __device__ char *v(int i) const { return k(i) + 2 * k_bytes; }
    /* Returns the tokens of chunk c. */
    __device__ int tokens(int64_t c) const
    {
        const int64_t rest = s.n_valid - c * chunk;
        return rest < chunk ? (int)rest : chunk;
    }
    /* Return the threads that meet when a full slot is passed on, and when an empty one is given
     * back. */
    __device__ int n_full() const { return 32 * (a.n_aux + a.n_state); }
    __device__ int n_empty() const { return 32 * (4 + a.n_state); }
};

/* ---- Loads: 128 threads ---------------------------------------------------------------------- */

/* The sources of the rows of a block's tiles. */
struct prefill_sources {
    const char *k, *q, *v; /* addresses of the first token; q NULL: no output is wanted */
    int v_bytes, v_log_lanes;
};

template <int io, int deep>
GDN_DEVICE struct prefill_sources find_sources(const prefill_block<io, deep> &b)
{
    constexpr int bytes = mma_tiles<io>::bytes;
    struct prefill_sources f;
    const int wide = 16 * b.a.n_state, columns = b.r.V - b.first_column;
    f.k = row_at(b.r.k, b.s, 0, source_head(b.r, b.head, b.r.Hk));
    f.q = b.r.out.data ? row_at(b.r.q, b.s, 0, source_head(b.r, b.head, b.r.Hq)) : NULL;
    f.v = row_at(b.r.v, b.s, 0, source_head(b.r, b.head, b.r.Hv)) + b.first_column * bytes;
    f.v_bytes = (columns < wide ? columns : wide) * bytes;
    f.v_log_lanes = min(31 - __clz(b.a.n_state * bytes), 5);
    return f;
}

/* Begins the loads of chunk c, or none after the last chunk. It also loads v of tokens with beta 0,
 * because write_gates() finds these tokens later. */
template <int io, int deep>
GDN_DEVICE void load_chunk(const prefill_block<io, deep> &b, const struct prefill_sources &f,
                           int64_t c, int stage)
{
    typedef prefill_block<io, deep> block;
    constexpr int bytes = mma_tiles<io>::bytes, most = deep * bytes;
    if (c < b.n_chunks) {
        const int n = b.tokens(c), K = b.r.K * bytes;
        const int64_t t = c * block::chunk;
        load_keys<block::chunk, most, 128>(b.k(stage), block::k_row, f.k + t * b.r.k.token,
                                           b.r.k.token, n, K, b.a.k_wide);
        if (f.q)
            load_keys<block::chunk, most, 128>(b.q(stage), block::k_row, f.q + t * b.r.q.token,
                                               b.r.q.token, n, K, b.a.q_wide);
        load_tile<128>(b.v(stage), b.v_row, f.v + t * b.r.v.token, b.r.v.token, block::chunk, n,
                       f.v_bytes, b.a.v_wide, f.v_log_lanes);
    }
    copy_commit();
}

/* ---- The roles ------------------------------------------------------------------------------- */

template <int io, int deep>
GDN_DEVICE void make_t(const prefill_block<io, deep> &b, int slot, int stage)
{
    typedef prefill_block<io, deep> block;
    const int w = threadIdx.x / 32;
    if (w < block::blocks) {
        mma_block gram[block::blocks];
        multiply_rows<io, deep>(gram, shared_address(b.k(stage)), shared_address(b.k(stage)), w);
        write_l<block::chunk>(b.square(), b.gates(slot), gram, w);
        __syncwarp();
        invert_diagonal<block::chunk>(b.square(), b.diagonal(), w);
    }
    barrier_wait(BARRIER_SOLVE, 128);
    invert_below<block::chunk>(b.square(), b.diagonal(), w);
    write_t<io, block::chunk>(b.t(slot), b.square(), b.gates(slot), w);
}

/* Computes P. If the same warps make T, the warp with the fewest blocks of T has the most of P. */
template <int io, int deep>
GDN_DEVICE void make_p(const prefill_block<io, deep> &b, int slot, int stage)
{
    typedef prefill_block<io, deep> block;
    const int w = 3 - threadIdx.x / 32 % 4;
    if (w >= block::blocks) return;
    mma_block gram[block::blocks];
    multiply_rows<io, deep>(gram, shared_address(b.q(stage)), shared_address(b.k(stage)), w);
    write_p<io, block::chunk>(b.p(slot), b.gates(slot), gram, w);
}

template <int io, int deep> GDN_DEVICE void run_aux(const prefill_block<io, deep> &b)
{
    typedef prefill_block<io, deep> block;
    const int warp = threadIdx.x / 32, ahead = b.a.n_stages - b.a.n_slots;
    const bool makes_t = warp < 4, loads = warp >= b.a.n_aux - 4, gates = warp == b.a.n_aux - 1;
    const struct prefill_sources f = find_sources(b);
    raw_gates<block::chunk> raw;
    if (gates) {
        start_gates(raw, b.r, b.s, b.head, 0);
        fetch_gates<1>(raw, b.r);
    }
    if (loads && ahead) load_chunk(b, f, 0, 0);

    int slot = 0, stage = 0, next = ahead;
    for (int64_t c = 0; c < b.n_chunks; c++) {
        if (loads) {
            if (c >= b.a.n_slots) barrier_wait(BARRIER_EMPTY + slot, b.n_empty());
            load_chunk(b, f, c + ahead, next);
            if (gates) {
                float G[raw_gates<block::chunk>::each] = {};
                expand_gates<block::chunk>(G, b.gates(slot), raw, b.r, b.tokens(c));
                write_gates<block::chunk>(b.gates(slot), G, b.r, b.tokens(c));
                fill_tokens(b.gates(slot).k_scale, 1);
                fill_tokens(b.gates(slot).q_scale, b.r.scale);
                fetch_gates<1>(raw, b.r);
            }
            if (ahead)
                copy_wait<1>();
            else
                copy_wait<0>();
        }
        barrier_wait(BARRIER_LOADED, 32 * b.a.n_aux);
        if (b.r.norm != GDN_NO_NORM) {
            write_lengths<io, deep>(b.gates(slot), b.k(stage), f.q ? b.q(stage) : NULL, b.r);
            barrier_wait(BARRIER_LOADED, 32 * b.a.n_aux);
        }
        if (loads) drop_rows<128>(b.v(stage), b.v_row, b.gates(slot), b.tokens(c));
        if (makes_t) make_t(b, slot, stage);
        if (loads && f.q) make_p(b, slot, stage);
        barrier_arrive(BARRIER_FULL + slot, b.n_full());
        slot = slot + 1 == b.a.n_slots ? 0 : slot + 1;
        stage = stage + 1 == b.a.n_stages ? 0 : stage + 1;
        next = next + 1 == b.a.n_stages ? 0 : next + 1;
    }
}

template <int io, int deep> GDN_DEVICE void run_state(const prefill_block<io, deep> &b)
{
    typedef prefill_block<io, deep> block;
    typedef mma_tiles<io> tiles;
    const int i = threadIdx.x / 32 - b.a.n_aux, column = b.first_column + 16 * i;
    const bool active = column < b.r.V;
    state_warp<block> w = { b, b.shared.cursors[i], { column, b.r.V, b.r.K }, NULL };
    if (b.r.out.data) w.out = row_at(b.r.out, b.s, 0, b.head) + column * tiles::bytes;
    load_state(w.S, sequence_place(b, b.r.from, active ? b.s.read : -1, GDN_PREFILL_FROM), w.part);
    set_cursor(w.cursor, b.shared.checkpoints.first, b.r.batch, b.shared.checkpoints);

    int slot = 0, stage = 0;
    for (int64_t c = 0; c < b.n_chunks; c++) {
        chunk_work<io, deep> work;
        work.k = shared_address(b.k(stage)) + tiles::lane(block::k_row);
        work.k_turned = shared_address(b.k(stage)) + tiles::lane_turned(block::k_row);
        work.q = work.k + block::k_bytes;
        work.t = shared_address(b.t(slot)) + tiles::lane(block::t_row);
        work.p = work.t + block::t_bytes;
        work.out = b.v(stage) + 16 * i * tiles::bytes;
        work.v_row = b.v_row;
        work.v_turned = shared_address(work.out) + tiles::lane_turned(b.v_row);
        work.vectors = &b.gates(slot);
        barrier_wait(BARRIER_FULL + slot, b.n_full());
        if (active) run_chunk(w, work, c);
        if (c + b.a.n_slots < b.n_chunks) barrier_arrive(BARRIER_EMPTY + slot, b.n_empty());
        slot = slot + 1 == b.a.n_slots ? 0 : slot + 1;
        stage = stage + 1 == b.a.n_stages ? 0 : stage + 1;
    }
    const struct state_place to =
        sequence_place(b, b.r.to, active ? b.s.write : -1, GDN_PREFILL_TO);
    if (!to.data) return;
#pragma unroll
    for (int x = 0; x < deep / 16; x++) store_block(w.S[x], to, w.part, 16 * x);
}

/* ---- A block --------------------------------------------------------------------------------- */

template <int io, int deep> GDN_DEVICE void run_prefill(const struct gdn_cu_prefill &a)
{
    typedef prefill_block<io, deep> block;
    typedef mma_tiles<io> tiles;
    struct prefill_head &h = *(struct prefill_head *)gdn_shared;

    /* Blocks are numbered by parts of a head, then heads, then sequences. After the last sequence
     * come the tokens of none. */
    const int64_t each = (int64_t)a.rule.H * a.n_slices, row = blockIdx.x / each;
    if (threadIdx.x < 32) {
        const bool rest = row == a.rule.batch.B;
        struct gdn_cu_seq s;
        if (rest)
            s = read_rest(a.rule.batch);
        else
            s = read_sequence(a.rule.batch, row);
        const struct gdn_cu_checkpoints list = read_checkpoints(a.rule.batch, s);
        if (threadIdx.x == 0) {
            h.s = s;
            h.checkpoints = list;
        }
    }
    __syncthreads();
    block b = { a, a.rule, h, h.s };
    b.head = (int)(blockIdx.x % each / a.n_slices);
    b.first_column = (int)(blockIdx.x % a.n_slices) * 16 * a.n_state;
    b.v_row = GDN_PREFILL_ROW(16 * a.n_state, tiles::bytes);
    b.stage_bytes = 2 * block::k_bytes + block::chunk * b.v_row;
    b.n_chunks = (h.s.n_valid + block::chunk - 1) / block::chunk;
    if (h.s.n_tokens == 0) return;

    if (a.rule.K < deep || a.rule.V - b.first_column < 16 * a.n_state) {
        const int n = a.n_stages * b.stage_bytes / 16;
        for (int i = threadIdx.x; i < n; i += blockDim.x)
            ((uint4 *)b.k(0))[i] = make_uint4(0, 0, 0, 0);
        __syncthreads();
    }
    if ((int)threadIdx.x < 32 * a.n_aux)
        run_aux(b);
    else
        run_state(b);
    if (!a.rule.out.data || h.s.keep_out) return;
    zero_tokens(b, -h.s.n_before, 0);
    zero_tokens(b, h.s.n_valid, h.s.n_tokens - h.s.n_before);
}

#endif
