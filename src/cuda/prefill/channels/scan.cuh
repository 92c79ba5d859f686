/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of one head through the chunks of a window, from the records of chunks.cuh. A warp has
 * 16 value columns of it, transposed, in registers: 16 x 16 blocks of rows v and columns k.
 *
 *     R^T = (w V)^T - S^T K~^T         U^T = R^T T^T          O = Q~ S + P U
 *     S^T <- S^T diag(D) + U^T K^
 *
 * While a chunk is worked on, the record of the next one is on its way to shared memory, if there
 * is room for two.
 */
#ifndef GDN_CUDA_PREFILL_CHANNELS_SCAN_CUH
#define GDN_CUDA_PREFILL_CHANNELS_SCAN_CUH

#include "cuda/prefill/channels/products.cuh"
#include "cuda/prefill/channels/walk.cuh"

/* The start of shared memory. */
struct scan_head {
    struct gdn_cu_seq s;
    struct channels_part part;
    struct gdn_cu_checkpoints checkpoints;
};
static_assert(sizeof(struct scan_head) <= GDN_CHANNELS_HEAD_BYTES, "args.h");

/* A record in shared memory, in rows of tiles (mma.cuh), and columns of V. */
template <int deep> struct scan_stage {
    static constexpr int row = GDN_PREFILL_ROW(deep, 2);
    alignas(16) char keys[3][CHUNK * row], squares[2][CHUNK * SQUARE_ROW]; /* K~ Q~ K^, T P */
    channels_factors<deep> factors;
    /* Columns of V, and then the output. */
    __device__ __forceinline__ char *v() { return (char *)(this + 1); }
};

/* The values that every thread of a block holds. */
template <int io, int deep> struct scan_block {
    typedef scan_stage<deep> stage;

    const struct gdn_cu_prefill_channels &a;
    const struct gdn_cu_rule &r;
    const struct gdn_cu_seq &s;
    const struct channels_part &part;
    const struct gdn_cu_checkpoints &checkpoints;
    int head, slice, first_column, columns, v_row, stage_bytes;

    __device__ __forceinline__ stage &at(int i) const
    {
        return *(stage *)(gdn_shared + GDN_CHANNELS_HEAD_BYTES + i * stage_bytes);
    }
    __device__ __forceinline__ int tokens(int64_t c) const
    {
        return (int)min(s.n_valid - c * CHUNK, (int64_t)CHUNK);
    }
    __device__ __forceinline__ const char *record(int64_t c) const
    {
        return a.records + ((part.record + c - part.begin) * r.H + head) * a.record_bytes;
    }
};

/* ---- Loads: by all threads ------------------------------------------------------------------- */

/* Begins to load chunk c to a stage. Ends a group of copies in any case. */
template <int io, int deep>
GDN_DEVICE void begin_chunk(const scan_block<io, deep> &b, int64_t c, int i)
{
    if (c < b.part.end) {
        scan_stage<deep> &to = b.at(i);
        const char *record = b.record(c);
        const bool written = b.r.family.write.data != NULL;
        const int n = b.tokens(c), parts = b.v_row / 16 - 1;
        begin_rows<deep * 2>(to.keys[0], to.row, record, 3 * CHUNK);
        begin_rows<CHUNK * 2>(to.squares[0], SQUARE_ROW, record + 3 * CHUNK * deep * 2, 2 * CHUNK);
        begin_rows<sizeof to.factors>((char *)&to.factors, 0, record + GDN_CHANNELS_FACTORS(deep),
                                      1);
        const char *v = written ? record + GDN_CHANNELS_WRITTEN(deep)
                                : row_at(b.r.v, b.s, c * CHUNK, source_head(b.r, b.head, b.r.Hv));
        const int64_t step = written ? 2 * b.r.V : b.r.v.token;
        for (int x = threadIdx.x; x < CHUNK * parts; x += blockDim.x) {
            const int t = x / parts, column = b.first_column + x % parts * 8;
            const bool there = t < n && column < b.r.V;
            copy_async<16>(shared_address(to.v()) + t * b.v_row + x % parts * 16,
                           v + (there ? t * step + 2 * column : 0), there ? 16 : 0);
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

    const scan_block<io, deep> &b;
    struct state_part part;
    mma_block S[deep / 16];

    __device__ __forceinline__ void make_r(operands &r, scan_stage<deep> &in, const char *v) const;
    __device__ __forceinline__ void make_o(scan_stage<deep> &in, const operands &u, char *v) const;
    __device__ __forceinline__ void update(scan_stage<deep> &in, const operands &u);
    __device__ __forceinline__ bool were_lost(const operands &r, const operands &u) const;
    __device__ __forceinline__ void mend(int64_t c);
    __device__ __forceinline__ void run(scan_stage<deep> &in, int64_t c, int column);
};

/* Computes R^T. */
template <int io, int deep>
__device__ __forceinline__ void scan_warp<io, deep>::make_r(operands &r, scan_stage<deep> &in,
                                                            const char *v) const
{
    const uint32_t values = shared_address(v) + tiles::lane_turned(b.v_row);
    mma_block x[GROUPS];
    operand m;
    clear_blocks(x);
    products::read(x, S, in.keys[0]);
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        mma_block y;
        tiles::load_turned(m, products::at(values, b.v_row, j, 0), b.v_row);
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

/* Computes the output, to where V was. */
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
            *(uint32_t *)(v + (16 * i + block_row(e % 2 * 2)) * b.v_row +
                          2 * block_column(e / 2, 0)) = m.x[e];
    }
}

/* S after the chunk. */
template <int io, int deep>
__device__ __forceinline__ void scan_warp<io, deep>::update(scan_stage<deep> &in, const operands &u)
{
    if (!in.factors.busy) return; /* every bit stays (G9) */
    products::decay(S, in.factors.decay);
    products::add(S, u, in.keys[2]);
}

/* ---- What is not finite ---------------------------------------------------------------------- */

/*
 * What is not finite in one token must not reach those before it, and a channel that forgets must
 * forget it; but products of matrices take all of them times zero. So the warp then walks through
 * the chunk token by token, in float32. R and U say so: every token reads S in R, and what a token
 * writes is in U. It need not walk for columns whose state is lost before the chunk, since all that
 * they give is lost too, if no channel forgets.
 */

/* Returns true if S has an element that is not finite in each column where R or U has one. A whole
 * warp calls it. */
template <int io, int deep>
__device__ __forceinline__ bool scan_warp<io, deep>::were_lost(const operands &r,
                                                               const operands &u) const
{
    bool were = true;
#pragma unroll
    for (int d = 0; d < 2; d++) { /* columns are rows g and g + 8 */
        typename tiles::taint taint = 0;
        bool lost = false;
#pragma unroll
        for (int j = 0; j < 2 * GROUPS; j++) {
            taint = tiles::pairs::taint(taint, r[j / 2].x[2 * (j % 2) + d]);
            taint = tiles::pairs::taint(taint, u[j / 2].x[2 * (j % 2) + d]);
        }
#pragma unroll
        for (int i = 0; i < deep / 4; i++) lost |= !is_finite(S[i / 4][i / 2 % 2][i % 2 + 2 * d]);
        const unsigned row = 15u << (threadIdx.x % 32 & ~3u);
        const bool bad = __ballot_sync(0xffffffff, tiles::is_tainted(taint)) & row;
        const bool is_lost = __ballot_sync(0xffffffff, lost) & row; /* by all lanes */
        were &= !bad || is_lost;
    }
    return !in_warp(!were);
}

/* Walks through a chunk. Copies leave the originals in registers. */
template <int io, int deep> __device__ __forceinline__ void scan_warp<io, deep>::mend(int64_t c)
{
    mma_block copy[deep / 16];
    const struct state_part columns = part;
    const struct gdn_cu_rule &r = b.r;
    const struct gdn_cu_seq &s = b.s;
    const int64_t t0 = c * CHUNK;
    const int head = b.head;
    const struct walk_tokens tokens = { r, s, t0, b.tokens(c), head };
    const auto leave = [&r, &s, t0, head, columns](int t, const float(&)[2], const float(&o)[2]) {
        typedef typename gdn_io<io>::type element;
        if (!r.out.data || threadIdx.x % 4) return;
#pragma unroll
        for (int d = 0; d < 2; d++) {
            const int v = columns.v + block_row(2 * d);
            if (v < columns.V)
                gdn_io<io>::store((element *)row_at(r.out, s, t0 + t, head) + v, o[d]);
        }
    };
#pragma unroll
    for (int i = 0; i < deep / 2; i++) copy[i / 8][i / 4 % 2][i % 4] = S[i / 8][i / 4 % 2][i % 4];
    walk_chunk<io, deep>(copy, tokens, columns, leave);
#pragma unroll
    for (int i = 0; i < deep / 2; i++) S[i / 8][i / 4 % 2][i % 4] = copy[i / 8][i / 4 % 2][i % 4];
}

/* ---- A block --------------------------------------------------------------------------------- */

/* The chunk in a stage; column: the warp's first of the stage. */
template <int io, int deep>
__device__ __forceinline__ void scan_warp<io, deep>::run(scan_stage<deep> &in, int64_t c,
                                                         int column)
{
    const struct gdn_cu_rule &r = b.r;
    char *const v = in.v() + 2 * column;
    operands x, u;
    make_r(x, in, v);
    products::solve(u, x, in.squares[0]);
    if (!products::are_finite(x, u) && (in.factors.forgets || !were_lost(x, u))) {
        mend(c);
        return;
    }
    __syncwarp(); /* all lanes have read V */
    if (r.out.data) make_o(in, u, v);
    update(in, u);
    __syncwarp();
    if (!r.out.data) return;
    char *const to = row_at(r.out, b.s, c * CHUNK, b.head) + 2 * part.v;
    const int lane = threadIdx.x % 32, n = b.tokens(c);
    for (int t = lane / 2; t < n; t += 16)
        if (part.v + lane % 2 * 8 < r.V)
            *(uint4 *)(to + t * r.out.token + lane % 2 * 16) =
                *(const uint4 *)(v + t * b.v_row + lane % 2 * 16);
}

/* A warp's part of the state between windows: elements in the order of its lanes. */
template <int io, int deep> GDN_DEVICE float *carried(const scan_block<io, deep> &b, int64_t place)
{
    const int64_t strip = (place * b.r.H + b.head) * b.a.n_slices + b.slice;
    return b.a.carry + strip * b.columns * deep + threadIdx.x / 32 * 16 * deep + threadIdx.x % 32;
}

template <int io, int deep>
GDN_DEVICE void begin_state(scan_warp<io, deep> &w, const scan_block<io, deep> &b)
{
    const float *from = carried(b, b.part.from);
    if (b.part.is_first)
        load_state(w.S, place_of(b.r.from, b.s.read, b.head), w.part);
    else
#pragma unroll
        for (int i = 0; i < deep / 2; i++) w.S[i / 8][i / 4 % 2][i % 4] = from[32 * i];
}
template <int io, int deep>
GDN_DEVICE void end_state(const scan_warp<io, deep> &w, const scan_block<io, deep> &b)
{
    float *const to = carried(b, b.part.to);
    const struct state_place place = place_of(b.r.to, b.s.write, b.head);
    if (b.part.end < b.part.n_chunks) {
#pragma unroll
        for (int i = 0; i < deep / 2; i++) to[32 * i] = w.S[i / 8][i / 4 % 2][i % 4];
    } else if (place.data) {
#pragma unroll
        for (int x = 0; x < deep / 16; x++) store_block(w.S[x], place, w.part, 16 * x);
    }
}

/* Stores the checkpoint after n tokens, whole chunks, if there is one. */
template <int io, int deep>
GDN_DEVICE void leave_checkpoint(const scan_warp<io, deep> &w, const scan_block<io, deep> &b,
                                 int64_t n)
{
    const struct gdn_cu_batch &batch = b.r.batch;
    if (batch.checkpoint_pool < 0 || n % batch.checkpoint_every || n > b.s.n_valid) return;
    const int64_t number = b.checkpoints.first + n / batch.checkpoint_every - 1;
    int64_t slot = -1;
    if (number < b.checkpoints.end) checkpoint_at(batch, b.checkpoints, number, slot);
    const struct state_place place = place_of(b.r.checkpoints, slot, b.head);
    if (!place.data) return;
#pragma unroll
    for (int x = 0; x < deep / 16; x++) store_block(w.S[x], place, w.part, 16 * x);
}

template <int io, int deep> GDN_DEVICE void run_chunks(const scan_block<io, deep> &b)
{
    const int column = threadIdx.x / 32 * 16;
    const bool two = b.a.n_stages == 2;
    scan_warp<io, deep> w = { b, { b.first_column + column, b.r.V, b.r.K } };
    const bool active = w.part.v < b.r.V;
    int64_t c = b.part.begin;
    if (two) begin_chunk(b, c, 0);
    if (active) begin_state(w, b);
#pragma unroll 1
    for (int now = 0; in_warp(c < b.part.end); c++, now ^= two) {
        if (!two) {
            __syncthreads(); /* the chunk before has been read */
            begin_chunk(b, c, 0);
        }
        copy_wait<0>();
        __syncthreads();
        if (two) begin_chunk(b, c + 1, now ^ 1);
        if (active) w.run(b.at(now), c, column);
        if (active) leave_checkpoint(w, b, (c + 1) * CHUNK);
    }
    copy_wait<0>();
    if (active) end_state(w, b);
}

/* Writes zeros to the block's columns of tokens [from, to), counted as row_at() does. */
template <int io, int deep>
GDN_DEVICE void zero_tokens(const scan_block<io, deep> &b, int64_t from, int64_t to)
{
    const int n = min(b.columns, b.r.V - b.first_column);
    for (int64_t t = from + threadIdx.x / 32; t < to; t += blockDim.x / 32) {
        uint16_t *row = (uint16_t *)row_at(b.r.out, b.s, t, b.head) + b.first_column;
        for (int i = threadIdx.x % 32; i < n; i += 32) row[i] = 0;
    }
}

template <int io, int deep> GDN_DEVICE void scan_window(const struct gdn_cu_prefill_channels &a)
{
    struct scan_head &sh = *(struct scan_head *)gdn_shared;
    const struct gdn_cu_rule &r = a.rule;
    const int64_t each = (int64_t)r.H * a.n_slices, row = a.row + blockIdx.x / each;
    if (threadIdx.x < 32) {
        struct gdn_cu_seq s; /* after the last, the tokens of none */
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
    scan_block<io, deep> b = { a, r, sh.s, sh.part, sh.checkpoints };
    b.head = (int)(blockIdx.x % each / a.n_slices);
    b.slice = (int)(blockIdx.x % a.n_slices);
    b.columns = blockDim.x / 2;
    b.first_column = b.slice * b.columns;
    b.v_row = GDN_PREFILL_ROW(b.columns, 2);
    b.stage_bytes = sizeof(scan_stage<deep>) + CHUNK * b.v_row;
    if (sh.s.n_tokens == 0 || (!sh.part.is_first && sh.part.begin >= sh.part.end)) return;
    if (row < r.batch.B && !sh.s.padding) run_chunks(b);
    if (!r.out.data || sh.s.keep_out || !sh.part.is_first) return;
    zero_tokens(b, -sh.s.n_before, 0);
    zero_tokens(b, sh.s.n_valid, sh.s.n_tokens - sh.s.n_before);
}

#endif
