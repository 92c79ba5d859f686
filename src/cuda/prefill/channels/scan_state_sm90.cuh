/* SPDX-License-Identifier: Apache-2.0 */
/* Products and a warpgroup of the state of both scans by WGMMA (scan_sm90.cuh, scan_few_sm90.cuh).
 * It has 64 value columns, and a warp 16 of them, as with mma.sync. First factors are in registers;
 * second factors are the tiles of a record as they lie. */
#ifndef GDN_CUDA_PREFILL_CHANNELS_SCAN_STATE_SM90_CUH
#define GDN_CUDA_PREFILL_CHANNELS_SCAN_STATE_SM90_CUH

#include "cuda/device/ptx_wgmma.cuh"
#include "cuda/prefill/channels/scan_state.cuh"

/* Computes x = a times rows of tiles, or adds that to x. tie: keeps x in its registers, because the
 * compiler would move it. Ends a group of products. */
template <int io, bool add, bool tie = false, int n, int m>
GDN_DEVICE void multiply_rows(mma_block (&x)[m], const typename mma_tiles<io>::operand (&a)[n],
                              const char *tiles)
{
    const uint32_t place = wgmma_place(shared_address(tiles));
    float(&d)[8 * m] = *(float(*)[8 * m]) x;
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < n; i++) {
        const uint64_t f = wgmma_factor(place + i / 4 * (TILE / 16) + i % 4 * 2);
        if (i > 0 || add)
            wgmma<io>::add_rows(d, a[i].x, f);
        else if constexpr (tie)
            wgmma<io>::rows_tied(d, a[i].x, f);
        else
            wgmma<io>::rows(d, a[i].x, f);
    }
    wgmma_commit();
}

/* Adds u times rows of tiles. */
template <int io, int n>
GDN_DEVICE void add_tokens(mma_block (&S)[n], const typename mma_tiles<io>::operand (&u)[GROUPS],
                           const char *keys)
{
    const uint32_t place = wgmma_place(shared_address(keys), TILE);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < GROUPS; j++)
        wgmma<io>::add_columns(*(float(*)[8 * n]) S, u[j].x,
                               wgmma_factor(place + j * (16 * 128 / 16)));
    wgmma_commit();
}

/* Writes the output in the place of V, whose rows are `row` bytes apart. values: the lane's
 * address of the first matrix. */
template <int io, int row> GDN_DEVICE void put_output(const mma_block (&o)[GROUPS], uint32_t values)
{
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        typename mma_tiles<io>::operand m;
        mma_tiles<io>::pack(m, o[j]);
        store_matrices_turned(values + 16 * row * j, m.x[0], m.x[1], m.x[2], m.x[3]);
    }
    __syncwarp();
}

/* The values that a warp keeps from chunk to chunk. */
template <int io, int deep> struct sm90_state {
    typedef mma_tiles<io> tiles;
    typedef typename tiles::operand operand;
    typedef typename state_products<io, deep>::operands operands;

    const scan_block &b;
    int group;
    struct state_part part;
    mma_block S[deep / 16];

    __device__ __forceinline__ bool is_any_tainted(typename tiles::taint taint) const;
    __device__ __forceinline__ bool is_any_bad(const operands &u) const;
    __device__ __forceinline__ bool must_mend(const operands &u, bool forgets) const;
    __device__ __forceinline__ bool pack_all(operand (&s)[deep / 16]) const;
};

/* Returns true if one of the warpgroup's warps has found an element that is not finite. */
template <int io, int deep>
__device__ __forceinline__ bool
sm90_state<io, deep>::is_any_tainted(typename tiles::taint taint) const
{
    return barrier_any(1 + group, 128, tiles::is_tainted(taint));
}

/* Returns true if any thread of the warpgroup has an element of U that is not finite. */
template <int io, int deep>
__device__ __forceinline__ bool sm90_state<io, deep>::is_any_bad(const operands &u) const
{
    typename tiles::taint taint = 0;
#pragma unroll
    for (int j = 0; j < GROUPS; j++) tiles::collect(taint, u[j]);
    return is_any_tainted(taint);
}

/* Returns true if a warp of the group must walk through a chunk (scan_state.cuh). */
template <int io, int deep>
__device__ __forceinline__ bool sm90_state<io, deep>::must_mend(const operands &u,
                                                                bool forgets) const
{
    const bool must = forgets || !were_lost<io, deep>(S, u);
    return in_warp(barrier_any(1 + group, 128, must));
}

/* Makes S a first factor. Returns false if an element of the group is too large for 16 bits. */
template <int io, int deep>
__device__ __forceinline__ bool sm90_state<io, deep>::pack_all(operand (&s)[deep / 16]) const
{
    typename tiles::taint taint = 0;
#pragma unroll
    for (int y = 0; y < deep / 16; y++) {
        tiles::pack(s[y], S[y]);
        tiles::collect(taint, s[y]);
    }
    return !in_warp(is_any_tainted(taint));
}

#endif
