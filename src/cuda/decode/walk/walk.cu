/* SPDX-License-Identifier: Apache-2.0 */
/* Decode of trees, with records, and on states of 8 bits, for all dtypes and strides. */
#include "cuda/decode/walk/walk.cuh"

#define GDN_KERNEL_decode_walk(threads, shared, layout, KC)                           \
    extern "C" __global__ void __launch_bounds__(threads, 2)                          \
        gdn_decode_walk_##layout##_##KC(const __grid_constant__ struct gdn_cu_walk a) \
    {                                                                                 \
        static_assert(threads == DECODE_THREADS, "as the code is written");           \
        walk_all<tile_##layout<KC>, KC>(a);                                           \
    }
#include "cuda/driver/kernels.cuh"
