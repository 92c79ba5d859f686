/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same as scan_sm90.cuh, for heads that leave multiprocessors free: the time is that of one
 * chain of chunks. A block has one warpgroup of the state (scan_state_sm90.cuh), and another one of
 * which a warp loads records, one loads V, and one stores the output.
 *
 * The chain from S to S is the products with K~, T and K^. The product with Q~ runs while U becomes
 * a factor and is tested. The product with P runs while S decays. The output is written while the
 * product with K^ runs. After a result is read, the assembler needs a wait for all products before
 * the next product, without a branch in between.
 *
 * A record comes in three parts, which are free at different times: K~ and T, Q~ and P, K^.
 */
#ifndef GDN_CUDA_PREFILL_CHANNELS_SCAN_FEW_SM90_CUH
#define GDN_CUDA_PREFILL_CHANNELS_SCAN_FEW_SM90_CUH

#include "cuda/prefill/channels/scan_state_sm90.cuh"

/* Two chunks are in shared memory. V has three places, because the output replaces it and leaves
 * after the chunk; its rows are as far apart as reads of eight of them want. Numbers of a record
 * have four places: they are read until the chunk ends, but come with K~. */
enum { FEW_STAGES = 2, FEW_VALUES = 3, FEW_NUMBERS = 4 };
template <int deep> struct few_shared {
    static constexpr int v_row = 128 + 16;
    alignas(1024) char head[GDN_CHANNELS_SM90_HEAD_BYTES]; /* scan_head, barriers */
    struct stage {
        char keys[deep / 64][TILE], T[TILE]; /* K~ */
        char queries[deep / 64][TILE], P[TILE];
        char ends[deep / 64][TILE]; /* K^ */
    } stages[FEW_STAGES];
    channels_factors<deep> numbers[FEW_NUMBERS];
    alignas(16) char v[FEW_VALUES][CHUNK * v_row];
};
static_assert(sizeof(few_shared<128>) <= GDN_CHANNELS_FEW_BYTES(128), "args.h");

/* Barriers of a chunk's parts. FULL: the part is there. FREE: all warps have read it. OUT_FULL: the
 * output is in the place of V. */
enum {
    FEW_KEYS_FULL,
    FEW_QUERIES_FULL,
    FEW_ENDS_FULL,
    FEW_V_FULL,
    FEW_OUT_FULL,
    FEW_KEYS_FREE,
    FEW_QUERIES_FREE,
    FEW_ENDS_FREE,
    FEW_V_FREE,
    FEW_BARRIERS
};
static_assert(GDN_CHANNELS_HEAD_BYTES + 8 * FEW_VALUES * FEW_BARRIERS <=
                  GDN_CHANNELS_SM90_HEAD_BYTES,
              "args.h");

/* The values that every thread of a block holds. */
template <int deep> struct few_block {
    typedef few_shared<deep> shared;
    const scan_block &b;

    __device__ __forceinline__ shared &sh() const { return *(shared *)gdn_shared; }
    __device__ __forceinline__ typename shared::stage &stage(int i) const
    {
        return sh().stages[i % FEW_STAGES];
    }
    __device__ __forceinline__ channels_factors<deep> &numbers(int i) const
    {
        return sh().numbers[i % FEW_NUMBERS];
    }
    __device__ __forceinline__ char *v(int i) const { return sh().v[i % FEW_VALUES]; }
    /* Returns the tokens of chunk i that exist. */
    __device__ __forceinline__ int tokens(int i) const { return b.tokens(b.part.begin + i); }
    /* Returns the bytes of the block's columns that exist. */
    __device__ __forceinline__ int bytes() const { return 2 * min(64, b.r.V - b.first_column); }
    /* Returns the places for a part. The output is in a place of V: if it had fewer barriers, the
     * state could be two of their phases ahead of the stores. */
    static __device__ __forceinline__ int places(int which)
    {
        return which == FEW_V_FULL || which == FEW_V_FREE || which == FEW_OUT_FULL ? FEW_VALUES
                                                                                   : FEW_STAGES;
    }
    __device__ __forceinline__ uint32_t barrier(int which, int i) const
    {
        return shared_address(gdn_shared) + GDN_CHANNELS_HEAD_BYTES +
               8 * (which * FEW_VALUES + i % places(which));
    }
    __device__ __forceinline__ void wait(int which, int i) const
    {
        mbarrier_wait(barrier(which, i), i / places(which) & 1);
    }
    /* Waits until the place of chunk i is free. */
    __device__ __forceinline__ void wait_free(int which, int i) const
    {
        if (i >= places(which)) wait(which, i - places(which));
    }
    __device__ __forceinline__ void arrive(int which, int i) const
    {
        if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier(which, i));
    }
};

/* ---- The warps beside memory ----------------------------------------------------------------- */

/* Loads a part of a record: a matrix, and a square if its number is not negative. One lane calls
 * it. */
template <int deep>
GDN_DEVICE void load_matrices_of(char *to, const char *record, int matrix, int square,
                                 uint32_t barrier)
{
    enum { MATRIX = deep / 64 * TILE };
    copy_in(shared_address(to), record + matrix * MATRIX, MATRIX, barrier);
    if (square >= 0)
        copy_in(shared_address(to) + MATRIX, record + 3 * MATRIX + square * TILE, TILE, barrier);
}

/* Loads records. One lane calls it. */
template <int deep> GDN_DEVICE void load_records(const few_block<deep> &block)
{
    enum { MATRIX = deep / 64 * TILE, NUMBERS = sizeof(channels_factors<deep>) };
    const scan_block &b = block.b;
    const int64_t step = b.r.H * b.a.record_bytes;
    const char *record = b.record(b.part.begin);
    const int n = b.n_chunks();
#pragma unroll 1
    for (int i = 0; i < n; i++, record += step) {
        const uint32_t keys = block.barrier(FEW_KEYS_FULL, i);
        const uint32_t queries = block.barrier(FEW_QUERIES_FULL, i);
        const uint32_t ends = block.barrier(FEW_ENDS_FULL, i);
        block.wait_free(FEW_KEYS_FREE, i);
        mbarrier_expect(keys, MATRIX + TILE + NUMBERS);
        load_matrices_of<deep>(block.stage(i).keys[0], record, 0, 0, keys);
        copy_in(shared_address(&block.numbers(i)), record + GDN_CHANNELS_FACTORS(deep), NUMBERS,
                keys);
        block.wait_free(FEW_QUERIES_FREE, i);
        mbarrier_expect(queries, MATRIX + TILE);
        load_matrices_of<deep>(block.stage(i).queries[0], record, 1, 1, queries);
        block.wait_free(FEW_ENDS_FREE, i);
        mbarrier_expect(ends, MATRIX);
        load_matrices_of<deep>(block.stage(i).ends[0], record, 2, -1, ends);
    }
}

/* A lane's pieces of 16 bytes of a chunk's rows: of every ROWS-th token, in memory and in tiles. */
template <int deep> struct few_pieces {
    enum { EACH = 8, ROWS = 32 / EACH, N = CHUNK / ROWS };
    char *at;            /* of the first token, in memory */
    int64_t step, chunk; /* bytes to the next of the lane's tokens, and to the next chunk */
    int token, column;   /* column: of the block */
    bool is;             /* the piece's columns exist */

    __device__ __forceinline__ few_pieces(const few_block<deep> &block, const char *from,
                                          int64_t token_bytes, int64_t chunk_bytes)
    {
        const int lane = threadIdx.x % 32;
        token = lane / EACH, column = lane % EACH * 8;
        at = (char *)from + 2 * (block.b.first_column + column) + token * token_bytes;
        step = ROWS * token_bytes, chunk = chunk_bytes;
        is = 2 * column < block.bytes();
    }
    __device__ __forceinline__ bool has(int n, int n_tokens) const
    {
        return is && token + n * ROWS < n_tokens;
    }
    __device__ __forceinline__ int place_of(int n) const
    {
        return (token + n * ROWS) * few_shared<deep>::v_row + 2 * column;
    }
};

/* Loads V. A warp calls it. A bulk copy of each row takes twice the time of a whole chunk. */
template <int deep> GDN_DEVICE void load_values(const few_block<deep> &block)
{
    typedef few_pieces<deep> pieces;
    const scan_block &b = block.b;
    const int n = b.n_chunks();
    const struct value_rows rows = rows_of_values<deep>(b, b.part.begin);
    pieces x(block, rows.data, rows.step,
             b.r.family.write.data ? b.r.H * b.a.record_bytes : CHUNK * rows.step);
#pragma unroll 1
    for (int i = 0; i < n; i++, x.at += x.chunk) {
        const int n_tokens = block.tokens(i);
        const uint32_t to = shared_address(block.v(i));
        block.wait_free(FEW_V_FREE, i);
#pragma unroll
        for (int j = 0; j < pieces::N; j++)
            if (x.has(j, n_tokens)) copy_async<16>(to + x.place_of(j), x.at + j * x.step, 16);
        copy_commit();
        copy_wait<0>();
        __syncwarp();
        block.arrive(FEW_V_FULL, i);
    }
}

/* Stores outputs. A warp calls it. */
template <int deep> GDN_DEVICE void store_outputs(const few_block<deep> &block)
{
    typedef few_pieces<deep> pieces;
    const scan_block &b = block.b;
    const int n = b.n_chunks();
    const int64_t step = b.r.out.token;
    pieces x(block, row_at(b.r.out, b.s, b.part.begin * CHUNK, b.head), step, CHUNK * step);
#pragma unroll 1
    for (int i = 0; i < n; i++, x.at += x.chunk) {
        const int n_tokens = b.r.out.data ? block.tokens(i) : 0;
        const char *const from = block.v(i);
        block.wait(FEW_OUT_FULL, i);
#pragma unroll
        for (int j = 0; j < pieces::N; j++)
            if (x.has(j, n_tokens))
                *(uint4 *)(x.at + j * x.step) = *(const uint4 *)(from + x.place_of(j));
        __syncwarp();
        block.arrive(FEW_V_FREE, i);
    }
}

/* ---- A chunk --------------------------------------------------------------------------------- */

/* The values that a warp of the state keeps from chunk to chunk beside it. */
template <int io, int deep> struct few_warp : sm90_state<io, deep> {
    typedef sm90_state<io, deep> state;
    typedef mma_tiles<io> tiles;
    typedef state_products<io, deep> products;
    typedef typename products::operand operand;
    typedef typename products::operands operands;
    using state::b;
    using state::part;
    using state::S;

    const few_block<deep> &block;

    /* Returns the lane's place in the place of V of chunk i, as matrices are read and written. */
    __device__ __forceinline__ uint32_t values(int i) const
    {
        const int lane = threadIdx.x % 32, column = threadIdx.x / 32 * 16 + lane / 8 % 2 * 8;
        return shared_address(block.v(i)) + (lane % 8 + lane / 16 * 8) * few_shared<deep>::v_row +
               2 * column;
    }

    __device__ __forceinline__ void load_written(mma_block (&y)[GROUPS], int i,
                                                 uint32_t place) const;
    __device__ __forceinline__ void walk(int i);
    __device__ __forceinline__ int pass(int i, int end);
    __device__ __forceinline__ void pass_idle(int i);
    __device__ __forceinline__ void pass_other(int i);
    __device__ __forceinline__ void run();
};

/* Loads (w V)^T of chunk i. */
template <int io, int deep>
__device__ __forceinline__ void few_warp<io, deep>::load_written(mma_block (&y)[GROUPS], int i,
                                                                 uint32_t place) const
{
    const float *const w = block.numbers(i).w;
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        operand v;
        load_matrices_turned(v.x, place + 16 * few_shared<deep>::v_row * j);
        tiles::unpack(y[j], v);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float2 f = *(const float2 *)(w + 16 * j + block_column(h, 0));
#pragma unroll
            for (int e = 0; e < 4; e++) y[j][h][e] = family_written(e % 2 ? f.y : f.x, y[j][h][e]);
        }
    }
}

/* Computes chunks from i to end - 1 that change the state, while U is finite. Returns the first
 * chunk that it leaves: none of it is computed. If that one is BUSY, K~ and T have been freed. */
template <int io, int deep> __device__ __forceinline__ int few_warp<io, deep>::pass(int i, int end)
{
#pragma unroll 1
    for (; in_warp(i < end); i++) {
        const typename few_shared<deep>::stage &in = block.stage(i);
        const channels_factors<deep> &numbers = block.numbers(i);
        const uint32_t place = values(i);
        operand s[deep / 16];
        operands r, u;
        mma_block o[GROUPS], y[GROUPS]; /* o: at first S^T K~^T; y: (w V)^T, then U^T */
#pragma unroll
        for (int x = 0; x < deep / 16; x++) tiles::pack(s[x], S[x]);
        block.wait(FEW_KEYS_FULL, i);
        if (in_warp(numbers.busy != BUSY)) return i;
        multiply_rows<io, false>(o, s, in.keys[0]);
        block.wait(FEW_V_FULL, i);
        load_written(y, i, place);
        wgmma_wait<0>();
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
#pragma unroll
            for (int e = 0; e < 8; e++) y[j][e / 4][e % 4] -= o[j][e / 4][e % 4];
            tiles::pack(r[j], y[j]);
        }
        multiply_rows<io, false, true>(y, r, in.T);
        block.wait(FEW_QUERIES_FULL, i);
        multiply_rows<io, false, true>(o, s, in.queries[0]);
        wgmma_wait<1>();
        block.arrive(FEW_KEYS_FREE, i);
#pragma unroll
        for (int j = 0; j < GROUPS; j++) tiles::pack(u[j], y[j]);
        const bool any = this->is_any_bad(u);
        wgmma_wait<0>();
        if (in_warp(any) && this->must_mend(u, numbers.forgets)) return i;
        multiply_rows<io, true>(o, u, in.P);
        products::decay(S, numbers.decay);
        block.wait(FEW_ENDS_FULL, i);
        add_tokens<io>(S, u, in.ends[0]);
        wgmma_wait<1>();
        block.arrive(FEW_QUERIES_FREE, i);
        put_output<io, few_shared<deep>::v_row>(o, place);
        block.arrive(FEW_OUT_FULL, i);
        wgmma_wait<0>();
        block.arrive(FEW_ENDS_FREE, i);
    }
    return i;
}

/* Walks through chunk i (scan_state.cuh). */
template <int io, int deep> __device__ __forceinline__ void few_warp<io, deep>::walk(int i)
{
    mend<io, deep>(S, b, part, b.part.begin + i, block.v(i) + threadIdx.x / 32 * 32,
                   few_shared<deep>::v_row);
}

/* Computes a chunk without gates and updates, which keeps every bit of S (G9). If an element is too
 * large for 16 bits, the warp walks. */
template <int io, int deep> __device__ __forceinline__ void few_warp<io, deep>::pass_idle(int i)
{
    operand s[deep / 16];
    mma_block o[GROUPS];
    if (!this->pack_all(s)) {
        walk(i);
        return;
    }
    multiply_rows<io, false>(o, s, block.stage(i).queries[0]);
    wgmma_wait<0>();
    put_output<io, few_shared<deep>::v_row>(o, values(i));
}

/* Computes a chunk that pass() has left. */
template <int io, int deep> __device__ __forceinline__ void few_warp<io, deep>::pass_other(int i)
{
    const uint32_t busy = block.numbers(i).busy;
    if (in_warp(busy != BUSY)) block.arrive(FEW_KEYS_FREE, i); /* if not, pass() has done so */
    block.wait(FEW_V_FULL, i);
    block.wait(FEW_QUERIES_FULL, i);
    block.wait(FEW_ENDS_FULL, i);
    if (in_warp(busy != IDLE))
        walk(i);
    else
        pass_idle(i);
    __syncwarp();
    block.arrive(FEW_QUERIES_FREE, i);
    block.arrive(FEW_ENDS_FREE, i);
    block.arrive(FEW_OUT_FULL, i);
}

template <int io, int deep> __device__ __forceinline__ void few_warp<io, deep>::run()
{
    begin_state(S, b, part);
    pass_all(*this);
    end_state(S, b, part);
}

/* ---- A block --------------------------------------------------------------------------------- */

/* Registers of a thread of the state, and of the warps beside memory. */
enum { FEW_STATE_REGISTERS = 216, FEW_MEMORY_REGISTERS = 40 };

/* Makes the barriers, and zeros in the columns beyond the head. */
template <int deep> GDN_DEVICE void prepare_block(const few_block<deep> &b)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < FEW_VALUES; i++) {
            for (int full = FEW_KEYS_FULL; full <= FEW_V_FULL; full++)
                mbarrier_init(b.barrier(full, i), 1);
            for (int free = FEW_OUT_FULL; free <= FEW_ENDS_FREE; free++)
                mbarrier_init(b.barrier(free, i), 4);
            mbarrier_init(b.barrier(FEW_V_FREE, i), 1);
        }
        mbarrier_init_fence();
    }
    if (b.bytes() < 128)
        for (int i = threadIdx.x; i < (int)sizeof b.sh().v / 16; i += blockDim.x)
            ((uint4 *)b.sh().v)[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
}

template <int io, int deep> GDN_DEVICE void run_few_part(const scan_block &scan)
{
    const few_block<deep> b = { scan };
    const int warp = __shfl_sync(0xffffffff, (int)threadIdx.x / 32, 0);
    prepare_block(b);
    if (warp >= 4) {
        lower_registers<FEW_MEMORY_REGISTERS>();
        if (warp == 4 && threadIdx.x % 32 == 0) load_records(b);
        if (warp == 5) load_values(b);
        if (warp == 6) store_outputs(b);
        __syncwarp();
    } else {
        raise_registers<FEW_STATE_REGISTERS>();
        few_warp<io, deep> w = { { scan, 0, { scan.first_column + 16 * warp, scan.r.V, scan.r.K } },
                                 b };
        w.run();
    }
}

template <int io> GDN_DEVICE void run_scan_few_sm90(const struct gdn_cu_prefill_channels &a)
{
    griddepcontrol_launch_dependents(); /* the kernel for chunks of the next window */
    scan_window(a, *(struct scan_head *)gdn_shared, 64,
                [](const scan_block &b) { run_few_part<io, GDN_CHANNELS_MOST_K>(b); });
}

#endif
