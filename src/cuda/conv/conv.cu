/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of the convolution, in several images. */
#include "cuda/conv/conv_walk.cuh"

/* The blocks that a multiprocessor has at once, which registers limit; as in conv.c. */
enum {
    BUSY_walk_4 = 4,
    BUSY_walk_8 = 3,
    BUSY_walk_16 = 2,
    BUSY_one_4 = 6,
    BUSY_one_alike_4 = 10,
    BUSY_one_longer_4 = 5,
    BUSY_rows_4 = 5,
    BUSY_tile_4 = 4,
    BUSY_tile_8 = 2,
    BUSY_tile_16 = 2,
    BUSY_edge_8 = 4,
    BUSY_edge_16 = 4,
    BUSY_turned_16 = 8
};

#define GDN_KERNEL_conv(threads, shared, kind, dtype, taps)                              \
    extern "C" __global__ void __launch_bounds__(threads, BUSY_##kind##_##taps)          \
        gdn_conv_##kind##_##dtype##_##taps(const __grid_constant__ struct gdn_cu_conv a) \
    {                                                                                    \
        conv_##kind<dtype, taps>(a);                                                     \
    }
#include "cuda/driver/kernels.cuh"
