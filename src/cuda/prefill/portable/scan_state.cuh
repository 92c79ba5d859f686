/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state's walk and the output of `scan`. Three warps have 16 columns. Two of them keep S^T in
 * registers, a half of the keys each. In a chunk, each computes
 *
 *     half of the tokens of R^T, over all keys, for which it takes the other's half of S^T
 *     U^T, for which it takes the other's half of R^T
 *     its own half of S^T after the chunk
 *
 * The third warp takes S^T and U^T, and computes the output while the others go on.
 */
#ifndef GDN_CUDA_PREFILL_PORTABLE_SCAN_STATE_CUH
#define GDN_CUDA_PREFILL_PORTABLE_SCAN_STATE_CUH

#include "cuda/prefill/portable/scan_block.cuh"

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

/* Sets the warp's part to that of the identity. */
template <int n> GDN_DEVICE void set_identity(mma_block (&S)[n], const struct state_part &part)
{
#pragma unroll
    for (int x = 0; x < n; x++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (part.k + 16 * x + block_column(i / 4, i) == part.v + block_row(i % 4))
                S[x][i / 4][i % 4] = 1;
}

/* Hand operand number x over, and take it. Each lane has what it stored itself, or another warp's
 * lane of the same number. */
template <class operand> GDN_DEVICE void hand(char *to, int x, const operand &o)
{
    *(uint4 *)(to + (32 * x + threadIdx.x % 32) * 16) = make_uint4(o.x[0], o.x[1], o.x[2], o.x[3]);
}
template <class operand> GDN_DEVICE void take(operand &o, const char *from, int x)
{
    const uint4 word = *(const uint4 *)(from + (32 * x + threadIdx.x % 32) * 16);
    o.x[0] = word.x, o.x[1] = word.y, o.x[2] = word.z, o.x[3] = word.w;
}

/* ---- The state ------------------------------------------------------------------------------- */

/* Passes the warp's half of S^T to the other warps with its columns. */
template <class Block, int n>
GDN_DEVICE void hand_state(const Block &b, const mma_block (&S)[n], char *to, int half)
{
    typename Block::work::operand s;
#pragma unroll
    for (int x = 0; x < n; x++) {
        Block::tiles::pack(s, S[x]);
        hand(to, half * n + x, s);
    }
    barrier_wait(BARRIER_STATE, b.state_threads());
}

/* Computes R^T: half of the tokens, over all keys. The other warp has the other half. Returns true
 * if all of it is finite. */
template <class Block>
GDN_DEVICE bool make_r_rows(const Block &b, const typename Block::work &work,
                            typename Block::work::operands &r, char *handed, int half)
{
    constexpr int n = Block::work::blocks / 2, states = Block::deep / 16;
    typename Block::work::operand s, mine[n];
    mma_block x[n];
    clear_blocks(x);
#pragma unroll
    for (int y = 0; y < states; y++) {
        take(s, handed, y);
        work.add_keys(x, s, y, n * half);
    }
    work.finish_r(mine, x, n * half);
#pragma unroll
    for (int j = 0; j < n; j++) hand(handed, states + n * half + j, mine[j]);
    barrier_wait(BARRIER_STATE, b.state_threads());
#pragma unroll
    for (int j = 0; j < 2 * n; j++) take(r[j], handed, states + j);
    return are_finite<typename Block::tiles>(r);
}

/* Hands U^T to the warp of the output. */
template <class Block>
GDN_DEVICE void hand_u(const Block &b, const typename Block::work::operands &u, char *handed, int i,
                       bool slow)
{
    constexpr int n = Block::work::blocks;
#pragma unroll
    for (int j = 0; j < n; j++) hand(handed, Block::deep / 16 + n + j, u[j]);
    if (threadIdx.x % 32 == 0) b.shared.slow[i] = slow;
}

/* Returns true if chunk c needs the careful code: it has a checkpoint, a gate that forgets, or a
 * row of T that is not finite. */
template <class Warp, class Work>
GDN_DEVICE bool wants_care(const Warp &w, const Work &work, int64_t c)
{
    return has_checkpoint(w, c) ||
           (tokens_of(work.vectors->resets) | tokens_of(work.vectors->dead)) != 0;
}

/* A warp of the state: half of the keys of its columns, and the current chunk. */
template <class Block> struct state_half {
    typedef typename Block::tiles tiles;
    typedef typename Block::work chunk_work;
    static constexpr int n_blocks = Block::deep / 32;
    const Block &b;
    int i, half;
    char *handed;
    state_warp<Block, n_blocks> &w;
    int64_t c;
    int stage;

    __device__ __forceinline__ void begin(chunk_work &work) const
    {
        work.k = shared_address(b.k(stage)) + tiles::lane(Block::k_row);
        work.k_turned =
            shared_address(b.k(stage)) + 2 * w.part.k + tiles::lane_turned(Block::k_row);
        work.t = b.square_lane(b.t(stage));
        work.v_row = b.v_row;
        work.v_turned = shared_address(b.v(stage) + 2 * 16 * i) + tiles::lane_turned(b.v_row);
        work.vectors = &b.gates(stage);
        b.await(0, stage);
    }
    /* Computes what follows R^T, which is in u. */
    template <bool careful>
    __device__ __forceinline__ void end(const chunk_work &work, typename chunk_work::operands &u,
                                        bool is_finite)
    {
        typename chunk_work::operands weighed;
        struct spoilt_rows spoilt;
        const bool slow = make_u_rows<careful, false>(w, work, u, weighed, spoilt, is_finite, c);
        if (b.has_output()) {
            if (half == 0) hand_u(b, u, handed, i, slow);
            barrier_arrive(BARRIER_HANDED, b.state_threads() + b.output_threads());
        }
        update_state<careful>(w, work, weighed, slow);
        b.release(0, stage, c, b.a.n_stages);
        stage = stage + 1 == b.a.n_stages ? 0 : stage + 1;
        if (++c == b.n_chunks) return;
        if (b.has_output()) barrier_wait(BARRIER_TAKEN, b.state_threads() + b.output_threads());
        hand_state(b, w.S, handed, half);
    }
};

/* Walks through all chunks. Careful code is not inside of the inner loop, whose instructions are so
 * few that they stay in the nearest caches. */
template <class Block> GDN_DEVICE void walk_chunks(struct state_half<Block> h)
{
    while (h.c < h.b.n_chunks) {
        typename Block::work work;
        typename Block::work::operands u;
        bool is_finite = true;
#pragma unroll 1
        while (h.c < h.b.n_chunks) {
            h.begin(work);
            const bool wants = wants_care(h.w, work, h.c);
            is_finite = make_r_rows(h.b, work, u, h.handed, h.half);
            if (in_warp(wants) || !is_finite) break;
            h.template end<false>(work, u, true);
        }
        if (h.c < h.b.n_chunks) h.template end<true>(work, u, is_finite);
    }
}

/* Runs a warp of the state: 16 columns, and half of the keys. */
template <class Block> GDN_DEVICE void run_state(const Block &b)
{
    constexpr int n_blocks = Block::deep / 32;
    const int warp = threadIdx.x / 32 - GDN_PORTABLE_LOAD_WARPS, i = warp / 2, half = warp % 2;
    state_warp<Block, n_blocks> w = { b,
                                      b.shared.cursors[warp],
                                      { b.first_column + 16 * i, b.columns(), b.r.K,
                                        16 * n_blocks * half },
                                      NULL };
    load_state(w.S, place_before(b), w.part);
    if (b.of_M) set_identity(w.S, w.part);
    w.start = b.shared.segment.start;
    set_cursor(w.cursor, b.shared.segment.checkpoint, b.r.batch, b.shared.checkpoints);
    hand_state(b, w.S, b.handed(i), half);
    walk_chunks<Block>({ b, i, half, b.handed(i), w, 0, 0 });
    const struct state_place to = place_after(b);
    if (!to.data) return;
#pragma unroll
    for (int x = 0; x < n_blocks; x++) store_block(w.S[x], to, w.part, 16 * x);
}

/* ---- The output ------------------------------------------------------------------------------ */

/* Stores the output of chunk c. o is Q S, u is U^T. careful: U may be not finite. */
template <bool careful, class Block>
GDN_DEVICE void end_output(const Block &b, const typename Block::work &work,
                           typename Block::work::tokens &o, typename Block::work::operands &u,
                           char *out, int64_t c, int &stage)
{
    struct spoilt_rows spoilt;
    if (careful) spoilt = work.mend_u(u);
    work.finish_o(o, u, careful ? &spoilt : NULL);
    b.release(QUERIES, stage, c, b.a.n_queries);
    stage = stage + 1 == b.a.n_queries ? 0 : stage + 1;
    __syncwarp(); /* the output of all lanes is in the tile */
    const int column = (int)(work.out - b.output()) / 2;
    store_output(b, work.out, out, c, b.r.V - b.first_column - column);
    __syncwarp(); /* all lanes have read it */
}

/* Computes Q S of chunk c, and takes U^T. Returns true if U is not finite. */
template <class Block>
GDN_DEVICE bool begin_output(const Block &b, typename Block::work &work,
                             typename Block::work::tokens &o, typename Block::work::operands &u,
                             int i, int64_t c, int stage)
{
    typedef typename Block::tiles tiles;
    constexpr int states = Block::deep / 16, blocks = Block::work::blocks;
    typename Block::work::operand s[states];
    const char *handed = b.handed(i);
    work.q = shared_address(b.q(stage)) + tiles::lane(Block::k_row);
    work.p = b.square_lane(b.p(stage));
    work.vectors = &b.query_gates(stage);
    b.await(QUERIES, stage);
    barrier_wait(BARRIER_HANDED, b.state_threads() + b.output_threads());
#pragma unroll
    for (int x = 0; x < states; x++) take(s[x], handed, x);
#pragma unroll
    for (int j = 0; j < blocks; j++) take(u[j], handed, states + blocks + j);
    const bool slow = b.shared.slow[i];
    if (c + 1 < b.n_chunks) barrier_arrive(BARRIER_TAKEN, b.state_threads() + b.output_threads());
    clear_blocks(o);
#pragma unroll
    for (int x = 0; x < states; x++) work.add_queries(o, s[x], x);
    return slow;
}

/* Runs a warp of the output: 16 columns. It is a chunk behind the state, at most. */
template <class Block> GDN_DEVICE void run_output(const Block &b)
{
    const int i = threadIdx.x / 32 - GDN_PORTABLE_LOAD_WARPS - 2 * b.a.n_state;
    char *const out = row_at(b.r.out, b.s, 0, b.head) + 2 * (b.first_column + 16 * i);
    typename Block::work work;
    work.out = b.output() + 2 * 16 * i;
    work.v_row = b.v_row;
    int stage = 0;
    int64_t c = 0;
    while (c < b.n_chunks) {
        typename Block::work::operands u;
        typename Block::work::tokens o;
#pragma unroll 1
        for (; c < b.n_chunks; c++) {
            if (in_warp(begin_output(b, work, o, u, i, c, stage))) break;
            end_output<false>(b, work, o, u, out, c, stage);
        }
        if (c < b.n_chunks) end_output<true>(b, work, o, u, out, c++, stage);
    }
}

#endif
