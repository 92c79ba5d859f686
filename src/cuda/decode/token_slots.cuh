/* SPDX-License-Identifier: Apache-2.0 */
/*
 * token.cuh for a few sequences whose states are in slots of a pool. The load of the slot comes
 * before the load of the state. The loads of the token and of the arguments begin meanwhile. With
 * many sequences, or without slots, it is faster to load the state first.
 */
#ifndef GDN_CUDA_DECODE_SLOTS_CUH
#define GDN_CUDA_DECODE_SLOTS_CUH

#include "cuda/decode/token.cuh"

struct slots_place : token_place {
    enum { LATE = 1 };
    uint32_t arguments;
    bool is; /* both slots exist */

    __device__ __forceinline__ bool real(void) const { return is; }
    /* Reads the slots after all other loads have begun. If a slot does not exist, it reads slot 0,
     * which does. */
    __device__ __forceinline__ void settle(const struct gdn_cu_token &a)
    {
        await_arguments(arguments);
        is = (from >= a.first_slot) & (from < a.read_pool) & (to < a.write_pool);
        if (!is) from = 0;
    }
};

template <int KC, int dtype, int io>
GDN_DEVICE void decode_token_slots_vk(const struct gdn_cu_token &a)
{
    typedef token_rows<KC, dtype, io> Tile;
    const int v = blockIdx.x * Tile::ROWS;
    struct slots_place w;
    w.head = blockIdx.y;
    w.row = blockIdx.z;
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    const int32_t *read = a.read_slots + w.row * a.read_step;
    w.from = ld_b32(read);
    w.to = ld_b32(a.write_slots ? a.write_slots + w.row * a.write_step : read);
    w.arguments = ask_arguments(a);
    if (!token_decode_rows<Tile>(a, w, v)) token_zero(a, w, v, Tile::ROWS, threadIdx.x);
}

#define DECODE_SLOTS_KERNEL(threads, name, dtype, io, KC)                           \
    extern "C" __global__ void __launch_bounds__(threads, ONE_BLOCKS_vk(dtype, KC)) \
        name(const __grid_constant__ struct gdn_cu_token a)                         \
    {                                                                               \
        decode_token_slots_vk<KC, GDN_##dtype, GDN_##io>(a);                        \
    }

#endif
