/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of one head through the chunks of a window, from the records of chunks.cuh, by
 * mma.sync.
 *
 *     R^T = (w V)^T - S^T K~^T         U^T = R^T T^T          O = Q~ S + P U
 *     S^T <- S^T diag(D) + U^T K^
 *
 * While a chunk is worked on, the record of the next one is on its way to shared memory, if there
 * is room for two.
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

/* ---- Loads: by all threads ------------------------------------------------------------------- */

/* Begins to load chunk c into a stage. Ends a group of copies, even if there is no such chunk. */
template <int deep> GDN_DEVICE void begin_chunk(const scan_block &b, int64_t c, int i)
{
    if (c < b.part.end) {
        scan_stage<deep> &to = stage_at<deep>(b, i);
        const char *record = b.record(c);
        const int n = b.tokens(c), v_row = row_of_values(b), parts = v_row / 16 - 1;
        const struct value_rows v = rows_of_values<deep>(b, c);
        begin_matrices<deep>(to.keys[0], to.row, record, 3);
        begin_matrices<CHUNK>(to.squares[0], SQUARE_ROW, record + 3 * CHUNK * deep * 2, 2);
        begin_rows<sizeof to.factors>((char *)&to.factors, 0, record + GDN_CHANNELS_FACTORS(deep),
                                      1);
        for (int x = threadIdx.x; x < CHUNK * parts; x += blockDim.x) {
            const int t = x / parts, column = b.first_column + x % parts * 8;
            const bool there = t < n && column < b.r.V;
            copy_async<16>(shared_address(to.v()) + t * v_row + x % parts * 16,
                           v.data + (there ? t * v.step + 2 * column : 0), there ? 16 : 0);
        }
    }
    copy_commit();
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

    __device__ __forceinline__ void make_r(operands &r, scan_stage<deep> &in, const char *v) const;
    __device__ __forceinline__ void make_o(scan_stage<deep> &in, const operands &u, char *v) const;
    __device__ __forceinline__ void update(scan_stage<deep> &in, const operands &u);
    __device__ __forceinline__ void run(scan_stage<deep> &in, int64_t c, int column);
};

/* Computes R^T. */
template <int io, int deep>
__device__ __forceinline__ void scan_warp<io, deep>::make_r(operands &r, scan_stage<deep> &in,
                                                            const char *v) const
{
    const uint32_t values = shared_address(v) + tiles::lane_turned(v_row);
    mma_block x[GROUPS];
    operand m;
    clear_blocks(x);
    products::read(x, S, in.keys[0]);
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        mma_block y;
        tiles::load_turned(m, products::at(values, v_row, j, 0), v_row);
        tiles::unpack(y, m);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float2 w = *(const float2 *)(in.factors.w + 16 * j + block_column(h, 0));
#pragma unroll
            for (int e = 0; e < 4; e++)
                x[j][h][e] = family_written(e % 2 ? w.y : w.x, y[h][e]) - x[j][h][e];
        }
        tiles::pack(r[j], x[j]);
    }
}

/* Writes the output in the place of V. */
template <int io, int deep>
__device__ __forceinline__ void scan_warp<io, deep>::make_o(scan_stage<deep> &in, const operands &u,
                                                            char *v) const
{
    const uint32_t queries = shared_address(in.keys[1]) + tiles::lane(row);
    const uint32_t P = shared_address(in.squares[1]) + tiles::lane(SQUARE_ROW);
    mma_block o[GROUPS];
    operand s, m;
    clear_blocks(o);
#pragma unroll
    for (int y = 0; y < deep / 16; y++) {
        tiles::pack(s, S[y]);
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            tiles::load(m, products::at(queries, row, i, y), row);
            tiles::multiply(o[i], m, s);
        }
    }
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
#pragma unroll
        for (int j = 0; j <= i; j++) {
            tiles::load(m, products::at(P, SQUARE_ROW, i, j), SQUARE_ROW);
            tiles::multiply(o[i], m, u[j]);
        }
        tiles::pack(m, o[i]);
#pragma unroll
        for (int e = 0; e < 4; e++)
            *(uint32_t *)(v + (16 * i + block_row(e % 2 * 2)) * v_row +
                          2 * block_column(e / 2, 0)) = m.x[e];
    }
}

/* Computes S after the chunk. */
template <int io, int deep>
__device__ __forceinline__ void scan_warp<io, deep>::update(scan_stage<deep> &in, const operands &u)
{
    if (in.factors.busy == IDLE) return; /* every bit stays (G9) */
    products::decay(S, in.factors.decay);
    products::add(S, u, in.keys[2]);
}

/* Computes the chunk in a stage. column: the warp's first one in the stage. */
template <int io, int deep>
__device__ __forceinline__ void scan_warp<io, deep>::run(scan_stage<deep> &in, int64_t c,
                                                         int column)
{
    const struct gdn_cu_rule &r = b.r;
    char *const v = in.v() + 2 * column;
    char *const to = r.out.data ? row_at(r.out, b.s, c * CHUNK, b.head) + 2 * part.v : NULL;
    operands x, u;
    make_r(x, in, v);
    products::solve(u, x, in.squares[0]);
    const bool bad = !products::are_finite(x, u);
    if (in.factors.busy == WALKS || (bad && (in.factors.forgets || !were_lost<io, deep>(S, u)))) {
        mend<io, deep>(S, b, part, c, to, r.out.token);
        return;
    }
    __syncwarp(); /* all lanes have read V */
    if (to) make_o(in, u, v);
    update(in, u);
    __syncwarp();
    if (!to) return;
    const int lane = threadIdx.x % 32, n = b.tokens(c);
    for (int t = lane / 2; t < n; t += 16)
        if (part.v + lane % 2 * 8 < r.V)
            *(uint4 *)(to + t * r.out.token + lane % 2 * 16) =
                *(const uint4 *)(v + t * v_row + lane % 2 * 16);
}

/* ---- A block --------------------------------------------------------------------------------- */

template <int io, int deep> GDN_DEVICE void run_chunks(const scan_block &b)
{
    const int column = threadIdx.x / 32 * 16;
    const bool two = b.a.n_stages == 2;
    scan_warp<io, deep> w = { b, { b.first_column + column, b.r.V, b.r.K }, row_of_values(b) };
    const bool active = w.part.v < b.r.V;
    int64_t c = b.part.begin;
    if (two) begin_chunk<deep>(b, c, 0);
    if (active) begin_state(w.S, b, w.part);
#pragma unroll 1
    for (int now = 0; in_warp(c < b.part.end); c++, now ^= two) {
        if (!two) {
            __syncthreads(); /* the chunk before has been read */
            begin_chunk<deep>(b, c, 0);
        }
        copy_wait<0>();
        __syncthreads();
        if (two) begin_chunk<deep>(b, c + 1, now ^ 1);
        if (active) w.run(stage_at<deep>(b, now), c, column);
        if (active) leave_checkpoint(w.S, b, w.part, (c + 1) * CHUNK);
    }
    copy_wait<0>();
    if (active) end_state(w.S, b, w.part);
}

template <int io, int deep> GDN_DEVICE void scan_window(const struct gdn_cu_prefill_channels &a)
{
    scan_window(a, *(struct scan_head *)gdn_shared, blockDim.x / 2,
                [](const scan_block &b) { run_chunks<io, deep>(b); });
}

#endif
