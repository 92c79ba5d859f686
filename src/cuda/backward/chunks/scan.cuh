/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two walks through the chunks of a window, from the records of prepare.cuh. A block has a
 * sequence, a head, a direction and 64 columns of V; a warp has 16 of these, of a state or of its
 * gradient, transposed, in registers.
 *
 *     forward    R^T = (w V)^T - S^T K~^T        U^T = R^T T^T      S^T <- S^T diag(D) + U^T K^
 *     reverse    dU^T = J^T K^^T + dO^T P        Z^T = dU^T T
 *                J^T <- J^T diag(D) + dO^T Q~ - Z^T K~
 *
 * They leave S before each chunk and U; J after each chunk and Z. What is not finite must not reach
 * tokens that do not depend on it, but products take all of it times zero. R and U, or dU and Z,
 * say so; then the warp goes through the chunk token by token.
 */
#ifndef GDN_CUDA_BACKWARD_CHUNKS_SCAN_CUH
#define GDN_CUDA_BACKWARD_CHUNKS_SCAN_CUH

#include "cuda/backward/chunks/record.cuh"

enum { WALK_COLUMNS = 64 };

/* The chunks that a block walks through. */
struct chunks_way {
    struct backward_window in;
    int64_t row;
    int head, column;
};
static_assert(sizeof(struct chunks_way) <= GDN_CHUNKS_WAY_BYTES, "args.h");

/* A chunk in shared memory, in rows of tiles. x: w v, or dO. */
template <int deep> struct chunks_stage {
    static constexpr int row = GDN_PREFILL_ROW(deep, 2), x_row = GDN_PREFILL_ROW(WALK_COLUMNS, 2);
    alignas(16) char keys[3][CHUNK * row], squares[2][CHUNK * SQUARE_ROW]; /* K~ Q~ K^, T P */
    alignas(16) char x[CHUNK * x_row];
    channels_factors<deep> factors;
};
static_assert(sizeof(chunks_stage<64>) == GDN_CHUNKS_STAGE_BYTES(64), "args.h");
static_assert(sizeof(chunks_stage<128>) == GDN_CHUNKS_STAGE_BYTES(128), "args.h");

template <int deep> GDN_DEVICE chunks_stage<deep> &chunks_stage_at(int i)
{
    return ((chunks_stage<deep> *)(gdn_shared + GDN_CHUNKS_WAY_BYTES))[i];
}

/* Finds the chunks of walk `item`. Returns false if there are none. */
GDN_DEVICE bool find_way(struct chunks_way &w, const struct gdn_cu_backward &a, int64_t item)
{
    w.row = row_of_walk(a, item / a.n_strips / a.rule.H);
    if (w.row >= a.rule.batch.B) return false;
    w.head = (int)(item / a.n_strips % a.rule.H);
    w.column = (int)(item % a.n_strips) * WALK_COLUMNS;
    w.in = find_window(a, w.row);
    return w.in.is_there;
}

GDN_DEVICE int tokens_of_chunk(const struct chunks_way &w, int64_t i)
{
    return (int)clamp64(w.in.seq.n_valid - i * CHUNK, 0, CHUNK);
}

/* ---- Loads: by all threads ------------------------------------------------------------------- */

/* Begins to copy n rows of 64 columns, `step` bytes apart, and zeros for the others. */
GDN_DEVICE void begin_columns(char *to, const char *from, int64_t step, int n, int columns)
{
    const uint32_t at = shared_address(to);
    for (int i = threadIdx.x; i < CHUNK * 8; i += blockDim.x) {
        const int t = i / 8, column = i % 8 * 8;
        const bool there = t < n && column < columns;
        copy_async<16>(at + t * SQUARE_ROW + 2 * column, from + (there ? t * step + 2 * column : 0),
                       there ? 16 : 0);
    }
}

/* Begins to load chunk i of the window. Ends a group of copies, even if there is no such chunk. */
template <int deep>
GDN_DEVICE void begin_chunk(chunks_stage<deep> &to, const struct gdn_cu_backward_channels &a,
                            const struct chunks_way &w, int64_t i, bool reverse)
{
    enum { MATRIX = CHUNK * deep * 2 };
    const struct gdn_cu_rule &r = a.base.rule;
    if (i >= 0 && i < w.in.n_chunks) {
        const char *record = record_of<deep>(a, w.in.first + i, w.head).at;
        const char *squares = record + 3 * MATRIX;
        const bool written = !reverse && r.family.write.data;
        const struct gdn_rows &rows = reverse ? a.base.dout : r.v;
        const int head = reverse ? w.head : source_head(r, w.head, r.Hv);
        const char *x =
            written ? record + GDN_CHANNELS_WRITTEN(deep) : row_at(rows, w.in.seq, i * CHUNK, head);
        begin_columns(to.x, x + 2 * w.column, written ? 2 * r.V : rows.token, tokens_of_chunk(w, i),
                      r.V - w.column);
        begin_matrices<deep>(to.keys[0], to.row, record, 1);
        if (reverse) begin_matrices<deep>(to.keys[1], to.row, record + MATRIX, 1);
        begin_matrices<deep>(to.keys[2], to.row, record + 2 * MATRIX, 1);
        begin_matrices<CHUNK>(to.squares[0], SQUARE_ROW, squares, 1);
        if (reverse) begin_matrices<CHUNK>(to.squares[1], SQUARE_ROW, squares + TILE, 1);
        begin_rows<sizeof to.factors>((char *)&to.factors, 0, record + GDN_CHANNELS_FACTORS(deep),
                                      1);
    }
    copy_commit();
}

/* ---- Token by token, in reverse -------------------------------------------------------------- */

/* Walks back through tokens. leave() gets z of a token for the lane's rows. */
template <int io, int deep, class Leave>
static __device__ __noinline__ void
walk_chunk_back(mma_block (&J)[deep / 16], const struct walk_tokens &b,
                const struct state_part &part, const struct gdn_rows &dout, const Leave leave)
{
    typedef typename gdn_io<io>::type element;
    const struct gdn_cu_rule &r = b.r;
#pragma unroll 1
    for (int t = b.n - 1; t >= 0; t--) {
        const int64_t at = b.t0 + t;
        const char *key = row_at(r.k, b.s, at, source_head(r, b.head, r.Hk));
        const char *query = row_at(r.q, b.s, at, source_head(r, b.head, r.Hq));
        const char *given = row_at(dout, b.s, at, b.head);
        const float k_length = row_length<io, deep>(r, key);
        const float q_length = row_length<io, deep>(r, query) * r.scale;
        float z[2] = {}, x[2];
#pragma unroll
        for (int d = 0; d < 2; d++) {
            const int v = part.v + block_row(2 * d);
            x[d] = v < part.V ? gdn_io<io>::load((const element *)given + v) : 0;
        }
#pragma unroll
        for (int i = 0; i < deep / 4; i++) { /* this lane's keys */
            const int y = i / 4, h = i / 2 % 2, e = i % 2, c = 16 * y + block_column(h, e);
            if (c >= r.K) continue;
            const float k = gdn_io<io>::load((const element *)key + c) * k_length;
            const float q = gdn_io<io>::load((const element *)query + c) * q_length;
#pragma unroll
            for (int d = 0; d < 2; d++) {
                float &state = J[y][h][e + 2 * d];
                state = fmaf(q, x[d], state);
                z[d] = fmaf(k, state, z[d]);
            }
        }
        z[0] = sum_row_lanes(z[0]), z[1] = sum_row_lanes(z[1]);
#pragma unroll
        for (int i = 0; i < deep / 4; i++) {
            const int y = i / 4, h = i / 2 % 2, e = i % 2, c = 16 * y + block_column(h, e);
            if (c >= r.K) continue;
            const float a = family_gate(r, b.s, at, b.head, c, true);
            const float beta = family_b(r, b.s, at, b.head, 0, c);
            const float k = gdn_io<io>::load((const element *)key + c) * k_length;
#pragma unroll
            for (int d = 0; d < 2; d++) {
                float &state = J[y][h][e + 2 * d];
                if (beta != 0) state = fmaf(-(beta * k), z[d], state);
                state = a == 0 ? 0 : state * a;
            }
        }
        leave(t, z);
    }
}

/* ---- A chunk: by a warp ---------------------------------------------------------------------- */

template <int io, int deep> struct chunks_walker {
    typedef state_products<io, deep> products;
    typedef mma_tiles<io> tiles;
    typedef typename products::operand operand;
    typedef typename products::operands operands;
    typedef chunks_stage<deep> stage;

    const struct gdn_cu_backward_channels &a;
    const struct chunks_way &w;
    struct state_part part;
    int block, column; /* block: of 16 columns of the state; column: the warp's first one in the
                          block */
    mma_block S[deep / 16];

    __device__ __forceinline__ struct walk_tokens tokens(int64_t i) const
    {
        return { a.base.rule, w.in.seq, i * CHUNK, tokens_of_chunk(w, i), w.head };
    }
    __device__ __forceinline__ void load_columns(operands &x, stage &in) const
    {
        const uint32_t at =
            shared_address(in.x + 2 * column) + tiles::lane_turned(chunks_stage<deep>::x_row);
#pragma unroll
        for (int j = 0; j < GROUPS; j++) tiles::load_turned(x[j], at + 16 * j * in.x_row, in.x_row);
    }
    __device__ __forceinline__ void send_state(char *to) const
    {
        operand o;
#pragma unroll
        for (int y = 0; y < deep / 16; y++) {
            tiles::pack(o, S[y]);
            put_block(to + y * BLOCK, o);
        }
    }
    __device__ __forceinline__ void send_rows(char *to, const operands &x) const
    {
#pragma unroll
        for (int j = 0; j < GROUPS; j++) put_block(to + j * BLOCK, x[j]);
    }
    /* Copies the state, so that the original stays in registers. */
    __device__ __forceinline__ void copy_state(mma_block (&to)[deep / 16],
                                               const mma_block (&from)[deep / 16]) const
    {
#pragma unroll
        for (int i = 0; i < deep / 2; i++)
            to[i / 8][i / 4 % 2][i % 4] = from[i / 8][i / 4 % 2][i % 4];
    }

    __device__ __forceinline__ void mend(int64_t i, char *u);
    __device__ __forceinline__ void mend_back(int64_t i, char *z);
    __device__ __forceinline__ void forward(stage &in, int64_t i);
    __device__ __forceinline__ void reverse(stage &in, int64_t i);
    __device__ __forceinline__ void store_z(const mma_block (&z)[GROUPS], int64_t i) const;
};

/* Stores two numbers of token t in rows of blocks. */
template <int io> GDN_DEVICE void put_token(char *rows, int t, const float (&x)[2])
{
    typedef typename gdn_io<io>::type element;
    if (threadIdx.x % 4) return;
#pragma unroll
    for (int d = 0; d < 2; d++)
        gdn_io<io>::store((element *)(rows + block_place(block_row(2 * d), t)), x[d]);
}
GDN_DEVICE void zero_rows(char *to)
{
    for (int j = 0; j < GROUPS; j++)
        ((uint4 *)(to + j * BLOCK))[threadIdx.x % 32] = make_uint4(0, 0, 0, 0);
    __syncwarp();
}

template <int io, int deep>
__device__ __forceinline__ void chunks_walker<io, deep>::mend(int64_t i, char *u)
{
    mma_block copy[deep / 16];
    const struct state_part columns = part;
    copy_state(copy, S);
    zero_rows(u);
    walk_chunk<io, deep>(
        copy, tokens(i), columns,
        [u](int t, const float(&x)[2], const float(&)[2]) { put_token<io>(u, t, x); });
    copy_state(S, copy);
}
template <int io, int deep>
__device__ __forceinline__ void chunks_walker<io, deep>::mend_back(int64_t i, char *z)
{
    mma_block copy[deep / 16];
    const struct state_part columns = part;
    const struct gdn_cu_backward_channels &args = a;
    const int64_t number = w.in.first + i;
    const int head = w.head;
    copy_state(copy, S);
    zero_rows(z);
    walk_chunk_back<io, deep>(copy, tokens(i), columns, a.base.dout,
                              [&args, z, columns, number, head](int t, const float(&x)[2]) {
                                  put_token<io>(z, t, x);
                                  float *row = memory_row(args.base.z, number * CHUNK + t, head);
                                  if (threadIdx.x % 4) return;
#pragma unroll
                                  for (int d = 0; d < 2; d++) {
                                      const int v = columns.v + block_row(2 * d);
                                      if (args.base.z.data && v < columns.V) row[v] = x[d];
                                  }
                              });
    copy_state(S, copy);
}

template <int io, int deep>
__device__ __forceinline__ void chunks_walker<io, deep>::forward(stage &in, int64_t i)
{
    const chunks_record<deep> record = record_of<deep>(a, w.in.first + i, w.head);
    operands r, u;
    mma_block x[GROUPS];
    clear_blocks(x);
    products::read(x, S, in.keys[0]);
    load_columns(u, in);
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        mma_block v;
        tiles::unpack(v, u[j]);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float2 f = *(const float2 *)(in.factors.w + 16 * j + block_column(h, 0));
#pragma unroll
            for (int e = 0; e < 4; e++)
                x[j][h][e] = family_written(e % 2 ? f.y : f.x, v[h][e]) - x[j][h][e];
        }
        tiles::pack(r[j], x[j]);
    }
    send_state(record.S(block));
    products::solve(u, r, in.squares[0]);
    if (!products::are_finite(r, u)) {
        mend(i, record.u(block));
        return;
    }
    send_rows(record.u(block), u);
    if (!in.factors.busy) return;
    products::decay(S, in.factors.decay);
    products::add(S, u, in.keys[2]);
}

/* Stores z of the chunk as rows of float32. */
template <int io, int deep>
__device__ __forceinline__ void chunks_walker<io, deep>::store_z(const mma_block (&z)[GROUPS],
                                                                 int64_t i) const
{
    const struct gdn_rows &rows = a.base.z;
    const int n = tokens_of_chunk(w, i);
    if (!rows.data) return;
#pragma unroll
    for (int j = 0; j < GROUPS; j++)
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const int t = 16 * j + block_column(e / 4, e), v = part.v + block_row(e % 4);
            if (t < n && v < part.V)
                memory_row(rows, (w.in.first + i) * CHUNK + t, w.head)[v] = z[j][e / 4][e % 4];
        }
}

template <int io, int deep>
__device__ __forceinline__ void chunks_walker<io, deep>::reverse(stage &in, int64_t i)
{
    const chunks_record<deep> record = record_of<deep>(a, w.in.first + i, w.head);
    operands dout, r, z;
    mma_block x[GROUPS];
    clear_blocks(x);
    load_columns(dout, in);
    products::read(x, S, in.keys[2]);
    send_state(record.J(block));
    products::add_triangle(x, dout, in.squares[1]);
#pragma unroll
    for (int j = 0; j < GROUPS; j++) tiles::pack(r[j], x[j]);
    clear_blocks(x);
    products::add_triangle(x, r, in.squares[0]);
#pragma unroll
    for (int j = 0; j < GROUPS; j++) tiles::pack(z[j], x[j]);
    if (!products::are_finite(r, z)) {
        mend_back(i, record.z(block));
        return;
    }
    send_rows(record.z(block), z);
    store_z(x, i);
    products::decay(S, in.factors.decay);
    products::add(S, dout, in.keys[1]);
#pragma unroll
    for (int j = 0; j < GROUPS; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) z[j].x[e] ^= 0x80008000u;
    products::add(S, z, in.keys[0]);
}

/* ---- A block --------------------------------------------------------------------------------- */

/* Returns the address of the warp's part of a state between windows. Elements have the order of its
 * lanes. */
template <int deep>
GDN_DEVICE float *between(const struct gdn_pool_view &view, const struct gdn_cu_backward &a,
                          int64_t slot, const struct chunks_way &w, int block)
{
    const int64_t blocks = a.n_strips * (WALK_COLUMNS / 16);
    return (float *)view.data + ((slot * a.rule.H + w.head) * blocks + block) * 16 * deep +
           threadIdx.x % 32;
}
template <int n> GDN_DEVICE void load_between(mma_block (&S)[n], const float *from)
{
#pragma unroll
    for (int i = 0; i < 8 * n; i++) S[i / 8][i / 4 % 2][i % 4] = from[32 * i];
}
template <int n> GDN_DEVICE void store_between(float *to, const mma_block (&S)[n])
{
#pragma unroll
    for (int i = 0; i < 8 * n; i++) to[32 * i] = S[i / 8][i / 4 % 2][i % 4];
}
/* Stores a gradient of a state in the caller's tensor. */
template <int n>
GDN_DEVICE void give_state(const mma_block (&S)[n], const struct state_place &p,
                           const struct state_part &part, bool adds)
{
    if (!p.data) return;
#pragma unroll
    for (int i = 0; i < 8 * n; i++) {
        const int v = part.v + block_row(i % 4), k = i / 8 * 16 + block_column(i / 4 % 2, i);
        char *const at = p.data + v * p.v_step + k * p.k_step;
        const float x = S[i / 8][i / 4 % 2][i % 4];
        if (v < part.V && k < part.K)
            store_float(at, 0, p.dtype, adds ? load_float(at, 0, p.dtype) + x : x);
    }
}

/* Returns the slot of J before a window. With a plan, blocks may read the slot of the next window
 * while others write that of their own. */
GDN_DEVICE int64_t carried_slot(const struct gdn_cu_backward &a, int64_t row, int64_t window)
{
    return a.plan ? window % 2 : row;
}

template <bool back, int io, int deep>
GDN_DEVICE void begin_walk(chunks_walker<io, deep> &k, const struct gdn_cu_backward &a)
{
    const struct chunks_way &w = k.w;
    const bool given = back ? w.in.is_last : !w.in.before;
    const struct gdn_pool_view &view = back ? a.dstate_out : a.rule.from;
    if (given)
        load_state(k.S, place_of(view, w.row, w.head), k.part);
    else if (back)
        load_between(k.S,
                     between<deep>(a.carry, a, carried_slot(a, w.row, a.window + 1), w, k.block));
    else
        load_between(k.S, between<deep>(a.starts, a, own_start(a, w.row, a.window), w, k.block));
}
template <bool back, int io, int deep>
GDN_DEVICE void end_walk(const chunks_walker<io, deep> &k, const struct gdn_cu_backward &a)
{
    const struct chunks_way &w = k.w;
    if (!back) {
        if (!w.in.is_last)
            store_between(between<deep>(a.starts, a, own_start(a, w.row, a.window + 1), w, k.block),
                          k.S);
    } else if (w.in.before) {
        store_between(between<deep>(a.carry, a, carried_slot(a, w.row, a.window), w, k.block), k.S);
    } else {
        give_state(k.S, place_of(a.rule.to, w.row, w.head), k.part, a.adds);
    }
}

template <bool back, int io, int deep>
GDN_DEVICE void run_walk(const struct gdn_cu_backward_channels &a, const struct chunks_way &w)
{
    const struct gdn_cu_rule &r = a.base.rule;
    const int column = (int)threadIdx.x / 32 * 16;
    const bool two = a.base.walk_bytes > GDN_CHUNKS_WAY_BYTES + GDN_CHUNKS_STAGE_BYTES(deep);
    const int step = back ? -1 : 1;
    chunks_walker<io, deep> k = {
        a, w, { w.column + column, r.V, r.K }, (w.column + column) / 16, column
    };
    int64_t i = back ? w.in.n_chunks - 1 : 0;
    if (two) begin_chunk(chunks_stage_at<deep>(0), a, w, i, back);
    begin_walk<back>(k, a.base);
#pragma unroll 1
    for (int64_t n = 0; in_warp(n < w.in.n_chunks); n++, i += step) {
        const int now = two ? (int)(n % 2) : 0;
        if (!two) {
            __syncthreads(); /* the chunk before has been read */
            begin_chunk(chunks_stage_at<deep>(0), a, w, i, back);
        }
        copy_wait<0>();
        __syncthreads();
        if (two) begin_chunk(chunks_stage_at<deep>(1 - now), a, w, i + step, back);
        if (back)
            k.reverse(chunks_stage_at<deep>(now), i);
        else
            k.forward(chunks_stage_at<deep>(now), i);
    }
    copy_wait<0>();
    end_walk<back>(k, a.base);
}

/* Runs the forward walks, the reverse walks, or both. Blocks in reverse come first, because they
 * take longer. */
template <int io, int deep> GDN_DEVICE void run_walks(const struct gdn_cu_backward_channels &a)
{
    struct chunks_way &w = *(struct chunks_way *)gdn_shared;
    const int64_t n = a.base.n_parts * a.base.rule.H * a.base.n_strips;
    const bool back = (a.base.walks & GDN_CU_WALK_REVERSE) && blockIdx.x < n;
    struct chunks_way found;
    if (!find_way(found, a.base, blockIdx.x % n)) return;
    if (threadIdx.x == 0) w = found;
    __syncthreads();
    if (in_warp(back))
        run_walk<true, io, deep>(a, w);
    else
        run_walk<false, io, deep>(a, w);
}

#endif
