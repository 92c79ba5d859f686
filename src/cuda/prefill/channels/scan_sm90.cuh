/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of one head through the chunks of a window (scan.cuh) on Hopper, by WGMMA, for heads
 * that fill the device. A block has one or two warpgroups of the state (scan_state_sm90.cuh). It
 * has room for two records, and one thread loads the next one. A warp for loads alone would cost a
 * third of the registers.
 *
 * The chain from S to S is the products with K~, T and K^. The product with Q~ runs while U becomes
 * a factor and is tested. The product with P runs while S decays. The output is written while the
 * product with K^ runs. After a result is read, the assembler needs a wait for all products before
 * the next product, without a branch in between.
 */
#ifndef GDN_CUDA_PREFILL_CHANNELS_SCAN_SM90_CUH
#define GDN_CUDA_PREFILL_CHANNELS_SCAN_SM90_CUH

#include "cuda/prefill/channels/scan_state_sm90.cuh"

/* A record in shared memory, and the columns of V, a tile for each warpgroup. The output replaces
 * V. */
template <int deep> struct sm90_stage {
    alignas(1024) char keys[3][deep / 64][TILE], squares[2][TILE]; /* K~ Q~ K^, T P */
    channels_factors<deep> factors;
    __device__ __forceinline__ char *v() { return (char *)(this + 1); }
};
static_assert(sizeof(sm90_stage<128>) + TILE == GDN_CHANNELS_SM90_STAGE_BYTES(128, 64), "args.h");

/* Barriers of a stage, after scan_head. FULL: the record is there. FREE: all warps have read it. */
enum { SM90_STAGES = 2, SM90_FULL = 0, SM90_FREE = SM90_STAGES };

/* The values that every thread of a block holds. */
template <int deep> struct sm90_block {
    const scan_block &b;
    int n_groups;

    __device__ __forceinline__ sm90_stage<deep> &stage(int i) const
    {
        const int bytes = (int)sizeof(sm90_stage<deep>) + n_groups * TILE;
        return *(sm90_stage<deep> *)(gdn_shared + GDN_CHANNELS_SM90_HEAD_BYTES +
                                     i % SM90_STAGES * bytes);
    }
    __device__ __forceinline__ uint32_t barrier(int first, int i) const
    {
        return shared_address(gdn_shared) + GDN_CHANNELS_HEAD_BYTES + 8 * (first + i % SM90_STAGES);
    }
    __device__ __forceinline__ void wait(int first, int i) const
    {
        mbarrier_wait(barrier(first, i), i / SM90_STAGES & 1);
    }
};

/* ---- A chunk --------------------------------------------------------------------------------- */

/* The values that a warp keeps from chunk to chunk beside its state. */
template <int io, int deep> struct sm90_warp : sm90_state<io, deep> {
    typedef sm90_state<io, deep> state;
    typedef mma_tiles<io> tiles;
    typedef state_products<io, deep> products;
    typedef typename products::operand operand;
    typedef typename products::operands operands;
    using state::b;
    using state::group;
    using state::part;
    using state::S;

    const sm90_block<deep> &block;
    int warp, lane; /* warp: its number in the group */
    lane_columns columns;
    const char *record; /* of the chunk to be loaded next */

    /* Return the warpgroup's tile of V, and the addresses of the lane's matrices and of its
     * rows. */
    __device__ __forceinline__ uint32_t tile(int i) const
    {
        return shared_address(block.stage(i).v()) + group * TILE;
    }
    __device__ __forceinline__ uint32_t matrices(int i) const
    {
        return tile(i) + tile_place(lane % 8 + lane / 16 * 8, 16 * warp + lane / 8 % 2 * 8);
    }
    __device__ __forceinline__ uint32_t rows() const
    {
        return tile_place(lane / 2, 16 * warp + lane % 2 * 8);
    }

    __device__ __forceinline__ void begin_record(int i);
    __device__ __forceinline__ void begin_values(int i);
    __device__ __forceinline__ void turn_to(int i);
    __device__ __forceinline__ void store_output(int i) const;
    __device__ __forceinline__ void release(int i);
    __device__ __forceinline__ int pass(int i, int end);
    __device__ __forceinline__ void pass_idle(int i);
    __device__ __forceinline__ void pass_other(int i);
    __device__ __forceinline__ void run();
};

/* Begins to load the record of chunk i. One thread of the block does it, when all warps have read
 * the record before. */
template <int io, int deep> __device__ __forceinline__ void sm90_warp<io, deep>::begin_record(int i)
{
    if (threadIdx.x != 0 || i >= b.n_chunks()) return;
    const uint32_t full = block.barrier(SM90_FULL, i);
    if (i >= SM90_STAGES) block.wait(SM90_FREE, i - SM90_STAGES);
    mbarrier_expect(full, GDN_CHANNELS_WRITTEN(deep));
    copy_in(shared_address(&block.stage(i)), record, GDN_CHANNELS_WRITTEN(deep), full);
    record += b.r.H * b.a.record_bytes;
}

/* Begins to load the warp's columns of V of chunk i. Ends a group of copies, even if there is no
 * such chunk. */
template <int io, int deep> __device__ __forceinline__ void sm90_warp<io, deep>::begin_values(int i)
{
    if (i < b.n_chunks()) columns.load(b, i, tile(i) + rows(), 16 * 128);
    copy_commit();
}

/* Waits for the warp's columns of V of chunk i, and begins the loads of the next chunk. */
template <int io, int deep> __device__ __forceinline__ void sm90_warp<io, deep>::turn_to(int i)
{
    copy_wait<0>();
    __syncwarp();
    begin_values(i + 1);
    begin_record(i + 1);
    __syncwarp();
}

template <int io, int deep>
__device__ __forceinline__ void sm90_warp<io, deep>::store_output(int i) const
{
    columns.store(b, i, block.stage(i).v() + group * TILE + rows(), 16 * 128);
}

/* Releases chunk i: the warp has read it. */
template <int io, int deep> __device__ __forceinline__ void sm90_warp<io, deep>::release(int i)
{
    columns.out.at += columns.out.chunk;
    __syncwarp(); /* V of a later chunk goes to the place of the output */
    if (lane == 0) mbarrier_arrive(block.barrier(SM90_FREE, i));
}

/* Computes chunks from i to end - 1 that change the state, as long as U is finite. Returns the
 * first chunk that is not computed; its record is loaded. */
template <int io, int deep> __device__ __forceinline__ int sm90_warp<io, deep>::pass(int i, int end)
{
#pragma unroll 1
    for (; in_warp(i < end); i++) {
        sm90_stage<deep> &in = block.stage(i);
        const uint32_t v = matrices(i);
        operand s[deep / 16], r[GROUPS], u[GROUPS];
        mma_block o[GROUPS], y[GROUPS]; /* o: at first S^T K~^T */
        block.wait(SM90_FULL, i);
        if (in_warp(in.factors.busy != BUSY)) return i;
#pragma unroll
        for (int y = 0; y < deep / 16; y++) tiles::pack(s[y], S[y]);
        multiply_rows<io, false>(o, s, in.keys[0][0]);
        turn_to(i);
        wgmma_wait<0>();
        make_r<io>(r, o, in.factors.w, v, 128);
        multiply_rows<io, false>(y, r, in.squares[0]);
        multiply_rows<io, false, true>(o, s, in.keys[1][0]);
        wgmma_wait<1>();
#pragma unroll
        for (int j = 0; j < GROUPS; j++) tiles::pack(u[j], y[j]);
        const bool any = this->is_any_bad(u);
        wgmma_wait<0>();
        if (in_warp(any) && this->must_mend(u, in.factors.forgets)) return i;
        multiply_rows<io, true>(o, u, in.squares[1]);
        products::decay(S, in.factors.decay);
        add_tokens<io>(S, u, in.keys[2][0]);
        wgmma_wait<1>();
        put_output<io, 128>(o, v);
        wgmma_wait<0>();
        store_output(i);
        release(i);
    }
    return i;
}

/* Computes a chunk without gates and updates, which keeps every bit of S (G9). If an element is too
 * large for 16 bits, the warp walks. */
template <int io, int deep> __device__ __forceinline__ void sm90_warp<io, deep>::pass_idle(int i)
{
    operand s[deep / 16];
    mma_block o[GROUPS];
    if (!this->pack_all(s)) {
        walk_to_memory<io, deep>(S, b, part, i);
        return;
    }
    multiply_rows<io, false>(o, s, block.stage(i).keys[1][0]);
    wgmma_wait<0>();
    put_output<io, 128>(o, matrices(i));
    store_output(i);
}

/* Computes a chunk that pass() has left. */
template <int io, int deep> __device__ __forceinline__ void sm90_warp<io, deep>::pass_other(int i)
{
    const uint32_t busy = block.stage(i).factors.busy;
    if (in_warp(busy != BUSY)) turn_to(i); /* if not, pass() has done so */
    if (in_warp(busy != IDLE))
        walk_to_memory<io, deep>(S, b, part, i);
    else
        pass_idle(i);
    release(i);
}

template <int io, int deep> __device__ __forceinline__ void sm90_warp<io, deep>::run()
{
    columns.begin<deep>(b, part);
    record = b.record(b.part.begin);
    begin_record(0);
    begin_values(0);
    begin_state(S, b, part);
    pass_all(*this);
    copy_wait<0>();
    end_state(S, b, part);
}

/* ---- A block --------------------------------------------------------------------------------- */

template <int io, int deep> GDN_DEVICE void run_part(const scan_block &scan)
{
    const sm90_block<deep> b = { scan, scan.columns / 64 };
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < SM90_STAGES; i++) {
            mbarrier_init(b.barrier(SM90_FULL, i), 1);
            mbarrier_init(b.barrier(SM90_FREE, i), 4 * b.n_groups);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    sm90_warp<io, deep> w = {
        { scan, warp / 4, { scan.first_column + 16 * warp, scan.r.V, scan.r.K } }, b, warp % 4, lane
    };
    w.run();
}

template <int io> GDN_DEVICE void run_scan_sm90(const struct gdn_cu_prefill_channels &a)
{
    griddepcontrol_launch_dependents(); /* the kernel for chunks of the next window */
    scan_window(a, *(struct scan_head *)gdn_shared, blockDim.x / 2,
                [](const scan_block &b) { run_part<io, GDN_CHANNELS_MOST_K>(b); });
}

#endif
