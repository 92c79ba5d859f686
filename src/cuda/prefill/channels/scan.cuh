/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of one head through the chunks of a window, from the records of chunks.cuh, by
 * mma.sync.
 *
 *     R^T = (w V)^T - S^T K~^T         U^T = R^T T^T          O = Q~ S + P U
 *     S^T <- S^T diag(D) + U^T K^
 *
 * While a chunk is worked on, the record of the next one is on its way to shared memory, if there
 * is room for two. All threads load it; a warp loads its own columns of V.
 */
#ifndef GDN_CUDA_PREFILL_CHANNELS_SCAN_CUH
#define GDN_CUDA_PREFILL_CHANNELS_SCAN_CUH

#include "cuda/prefill/channels/chunks.cuh"
#include "cuda/prefill/channels/scan_state.cuh"

/* A record in shared memory, in rows of tiles (mma.cuh), and the columns of V. */
template <int deep> struct scan_stage {
    static constexpr int row = GDN_PREFILL_ROW(deep, 2);
    alignas(16) char keys[3][CHUNK * row], squares[2][CHUNK * SQUARE_ROW]; /* K~ Q~ K^, T P */
    channels_factors<deep> factors;
    /* Returns the columns of V, which the output replaces. */
    __device__ __forceinline__ char *v() { return (char *)(this + 1); }
};

/* Return the bytes of a row of V, and those of a stage. */
GDN_DEVICE int row_of_values(const scan_block &b) { return GDN_PREFILL_ROW(b.columns, 2); }
template <int deep> GDN_DEVICE scan_stage<deep> &stage_at(const scan_block &b, int i)
{
    const int bytes = (int)sizeof(scan_stage<deep>) + CHUNK * row_of_values(b);
    return *(scan_stage<deep> *)(gdn_shared + GDN_CHANNELS_HEAD_BYTES + i * bytes);
}

/* ---- A chunk: by a warp ---------------------------------------------------------------------- */

/* The values that a warp keeps from chunk to chunk. */
template <int io, int deep> struct scan_warp {
    typedef mma_tiles<io> tiles;
    typedef state_products<io, deep> products;
    typedef typename products::operand operand;
    typedef typename products::operands operands;
    static constexpr int row = products::row;

    const scan_block &b;
    struct state_part part;
    int v_row;
    mma_block S[deep / 16];
    lane_columns columns;
    const char *record; /* of the chunk to be loaded next */

    /* Return the stage of chunk i, and the warp's columns of V in it. */
    __device__ __forceinline__ scan_stage<deep> &stage(int i) const
    {
        return stage_at<deep>(b, b.a.n_stages == 2 ? i % 2 : 0);
    }
    __device__ __forceinline__ char *v(int i) const { return stage(i).v() + threadIdx.x / 32 * 32; }
    /* Returns the place of the lane's first row of V. */
    __device__ __forceinline__ char *rows(int i) const
    {
        const int lane = threadIdx.x % 32;
        return v(i) + lane / 2 * v_row + lane % 2 * 16;
    }

    __device__ __forceinline__ void begin_chunk(int i);
    __device__ __forceinline__ void turn_to(int i);
    __device__ __forceinline__ void make_u(operands &u, int i) const;
    __device__ __forceinline__ void make_o(const operands &u, int i) const;
    __device__ __forceinline__ int pass(int i, int end);
    __device__ __forceinline__ void pass_other(int i);
    __device__ __forceinline__ void run();
};

/* Begins to load chunk i. Ends a group of copies, even if there is no such chunk. */
template <int io, int deep> __device__ __forceinline__ void scan_warp<io, deep>::begin_chunk(int i)
{
    if (i < b.n_chunks()) {
        scan_stage<deep> &to = stage(i);
        begin_matrices<deep>(to.keys[0], to.row, record, 3);
        begin_matrices<CHUNK>(to.squares[0], SQUARE_ROW, record + 3 * CHUNK * deep * 2, 2);
        begin_rows<sizeof to.factors>((char *)&to.factors, 0, record + GDN_CHANNELS_FACTORS(deep),
                                      1);
        columns.load(b, i, shared_address(rows(i)), 16 * v_row);
        record += b.r.H * b.a.record_bytes;
    }
    copy_commit();
}

/* Waits for chunk i, and begins to load the next one if there is room. All warps call it. */
template <int io, int deep> __device__ __forceinline__ void scan_warp<io, deep>::turn_to(int i)
{
    const bool two = b.a.n_stages == 2;
    copy_wait<0>();
    __syncthreads(); /* with two stages chunk i has arrived; chunk i - 1 has been read */
    begin_chunk(i + two);
    if (two) return;
    copy_wait<0>();
    __syncthreads();
}

/* Computes U^T. */
template <int io, int deep>
__device__ __forceinline__ void scan_warp<io, deep>::make_u(operands &u, int i) const
{
    scan_stage<deep> &in = stage(i);
    operands r;
    mma_block x[GROUPS];
    clear_blocks(x);
    products::read(x, S, in.keys[0]);
    make_r<io>(r, x, in.factors.w, shared_address(v(i)) + tiles::lane_turned(v_row), v_row);
    products::solve(u, r, in.squares[0]);
}

/* Computes the output, transposed, and stores it by way of the place of V. */
template <int io, int deep>
__device__ __forceinline__ void scan_warp<io, deep>::make_o(const operands &u, int i) const
{
    scan_stage<deep> &in = stage(i);
    mma_block o[GROUPS];
    clear_blocks(o);
    products::read(o, S, in.keys[1]);
    products::read(o, u, in.squares[1]);
    __syncwarp(); /* all lanes have read V */
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        operand m;
        tiles::pack(m, o[j]);
#pragma unroll
        for (int x = 0; x < 4; x++)
            *(uint32_t *)(v(i) + (16 * j + x / 2 * 8 + block_row(0)) * v_row +
                          2 * (x % 2 * 8 + block_column(0, 0))) = turn_matrix(m.x[x]);
    }
    __syncwarp();
    columns.store(b, i, rows(i), 16 * v_row);
}

/* Computes chunks from i to end - 1 that change the state, as long as U is finite. Returns the
 * first chunk that is not computed; its record is loaded. */
template <int io, int deep> __device__ __forceinline__ int scan_warp<io, deep>::pass(int i, int end)
{
#pragma unroll 1
    for (; in_warp(i < end); i++) {
        operands u;
        turn_to(i);
        scan_stage<deep> &in = stage(i);
        if (in_warp(in.factors.busy != BUSY)) return i;
        make_u(u, i);
        if (!are_finite<tiles>(u)) return i;
        if (b.r.out.data) make_o(u, i);
        columns.out.at += columns.out.chunk;
        products::decay(S, in.factors.decay);
        products::add(S, u, in.keys[2]);
    }
    return i;
}

/* Computes a chunk that pass() has left. If it is IDLE, every bit of S stays (G9). */
template <int io, int deep> __device__ __forceinline__ void scan_warp<io, deep>::pass_other(int i)
{
    scan_stage<deep> &in = stage(i);
    operands u;
    make_u(u, i);
    const bool is_bad = !are_finite<tiles>(u);
    if (in.factors.busy == WALKS ||
        (is_bad && (in.factors.forgets || !were_lost<io, deep>(S, u)))) {
        walk_to_memory<io, deep>(S, b, part, i);
    } else {
        if (b.r.out.data) make_o(u, i);
        if (in.factors.busy != IDLE) {
            products::decay(S, in.factors.decay);
            products::add(S, u, in.keys[2]);
        }
    }
    columns.out.at += columns.out.chunk;
}

/* Computes all chunks. A warp without columns only loads. */
template <int io, int deep> __device__ __forceinline__ void scan_warp<io, deep>::run()
{
    columns.begin<deep>(b, part);
    record = b.record(b.part.begin);
    if (b.a.n_stages == 2) begin_chunk(0);
    if (part.v < b.r.V) {
        begin_state(S, b, part);
        pass_all(*this);
        end_state(S, b, part);
    } else {
        for (int i = 0; i < b.n_chunks(); i++) turn_to(i);
    }
    copy_wait<0>();
}

/* ---- A block --------------------------------------------------------------------------------- */

template <int io, int deep> GDN_DEVICE void scan_window(const struct gdn_cu_prefill_channels &a)
{
    scan_window(a, *(struct scan_head *)gdn_shared, blockDim.x / 2, [](const scan_block &b) {
        const int column = b.first_column + threadIdx.x / 32 * 16;
        scan_warp<io, deep> w = { b, { column, b.r.V, b.r.K }, row_of_values(b) };
        w.run();
    });
}

#endif
