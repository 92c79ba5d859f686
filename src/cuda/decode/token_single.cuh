/* SPDX-License-Identifier: Apache-2.0 */
/* Decode of the sequences of one token among packed ones of any lengths, as token.cuh: gdn_prefill
 * leaves these out of its chunks. The host does not know how many there are. So the blocks of some
 * columns of a head share the sequences: each has every gridDim.z-th one. Each lane reads the
 * bounds of one sequence, so 32 sequences are known after one trip to memory. */
#ifndef GDN_CUDA_DECODE_SINGLE_CUH
#define GDN_CUDA_DECODE_SINGLE_CUH

#include "cuda/decode/token_packed.cuh"

struct single_place : token_place {
    bool is_fresh;
    __device__ __forceinline__ bool fresh(void) const { return is_fresh; }
};

/* The sequence that a lane has read. */
struct single_look {
    struct single_place place;
    bool is_single, is_real; /* is_single: the sequence has one token. is_real: it is no padding */
};

GDN_DEVICE struct single_look single_look_at(const struct gdn_cu_token_single &a, int row)
{
    const struct gdn_cu_token &one = a.one;
    struct single_look l = {};
    uint32_t initial[2];
    int first, end, from = row, to = row;
    if (row >= a.n) return l;
    first = packed_index(a.cu_seqlens, row);
    end = packed_index(a.cu_seqlens, row + 1);
    if (one.read_slots) from = to = ld_b32(one.read_slots + row * one.read_step);
    if (one.read_slots && one.write_slots) to = ld_b32(one.write_slots + row * one.write_step);
    ld_flag(initial, a.initial.data + mad_wide(row, a.initial.head, 0), a.initial_bytes);
    first = max(0, min(first, a.n_tokens));
    end = max(first, min(end, a.n_tokens));
    l.is_single = end == first + 1;
    l.place.is_fresh = !(initial[0] | initial[1]);
    l.is_real = !one.read_slots || (from >= one.first_slot && to < one.write_pool &&
                                    (l.place.is_fresh || from < one.read_pool));
    l.place.row = first;
    l.place.from = l.place.is_fresh ? 0 : from;
    l.place.to = to;
    return l;
}

/* Returns the place that a lane has found. real: it is to be decoded. */
GDN_DEVICE struct single_place single_of_lane(const struct single_look &l, int lane, bool &real)
{
    struct single_place w;
    w.head = blockIdx.y;
    w.row = __shfl_sync(0xffffffff, l.place.row, lane);
    w.from = __shfl_sync(0xffffffff, l.place.from, lane);
    w.to = __shfl_sync(0xffffffff, l.place.to, lane);
    w.is_fresh = __shfl_sync(0xffffffff, (int)l.place.is_fresh, lane);
    real = __shfl_sync(0xffffffff, (int)l.is_real, lane);
    return w;
}

/* Calls decode(place, real) for each sequence of the block. */
template <class Decode>
GDN_DEVICE void single_each(const struct gdn_cu_token_single &a, Decode decode)
{
    const int step = gridDim.z, lane = threadIdx.x % 32;
#pragma unroll 1
    for (int row = blockIdx.z; row < a.n; row += 32 * step) {
        const struct single_look mine = single_look_at(a, row + lane * step);
        unsigned some = __ballot_sync(0xffffffff, mine.is_single);
#pragma unroll 1
        for (; some; some &= some - 1) {
            bool real;
            struct single_place w = single_of_lane(mine, __ffs((int)some) - 1, real);
            decode(w, real);
        }
    }
    /* The last block waits for earlier kernels, so that this kernel ends after them. */
    if (blockIdx.x + 1 == gridDim.x && blockIdx.y + 1 == gridDim.y && blockIdx.z + 1 == gridDim.z)
        griddepcontrol_wait();
}

template <int KC, int dtype, int io>
GDN_DEVICE void decode_token_single_vk(const struct gdn_cu_token_single &a)
{
    typedef token_rows<KC, dtype, io> Tile;
    const int v = blockIdx.x * Tile::ROWS;
    single_each(a, [&](struct single_place &w, bool real) {
        if (real)
            token_decode_rows<Tile>(a.one, w, v);
        else
            token_zero(a.one, w, v, Tile::ROWS, threadIdx.x);
    });
}

template <int KC, int dtype, int io>
GDN_DEVICE void decode_token_single_kv(const struct gdn_cu_token_single &a)
{
    typedef token_columns<KC, dtype, io> Tile;
    const int column = blockIdx.x * Tile::COLUMNS;
    single_each(a, [&](struct single_place &w, bool real) {
        if (real)
            token_decode_columns<Tile>(a.one, w, column);
        else
            token_zero(a.one, w, column, Tile::COLUMNS, threadIdx.x);
        __syncthreads(); /* the next sequence uses the shared memory */
    });
}

/* The least blocks of a multiprocessor, as PACKED_BLOCKS_vk. The loop keeps registers beside those
 * of loads. */
#define SINGLE_BLOCKS_vk(dtype) (GDN_##dtype == GDN_F32 ? 24 : 12)
#define SINGLE_BLOCKS_kv(dtype) 0

#define DECODE_SINGLE_KERNEL(threads, name, layout, dtype, io, KC)                       \
    extern "C" __global__ void __launch_bounds__(threads, SINGLE_BLOCKS_##layout(dtype)) \
        name(const __grid_constant__ struct gdn_cu_token_single a)                       \
    {                                                                                    \
        decode_token_single_##layout<KC, GDN_##dtype, GDN_##io>(a);                      \
    }

#endif
