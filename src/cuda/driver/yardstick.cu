/* SPDX-License-Identifier: Apache-2.0 */
/* Computes x[i] = c x[i] in place, for gdn bench. No kernel that reads and writes a state once can
 * be faster. */
#include "cuda/device/io.cuh"

GDN_DEVICE void scale_in_place(const struct gdn_cu_yardstick &a)
{
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += 4 * step) {
        float4 x[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (i + j * step < a.n) x[j] = a.x[i + j * step];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (i + j * step >= a.n) break;
            x[j].x *= a.factor, x[j].y *= a.factor, x[j].z *= a.factor, x[j].w *= a.factor;
            a.x[i + j * step] = x[j];
        }
    }
}

#define GDN_IMAGE_yardstick GDN_THIS_IMAGE
#define GDN_KERNEL_yardstick(threads, shared, what)                             \
    extern "C" __global__ void __launch_bounds__(threads)                       \
        gdn_yardstick_##what(const __grid_constant__ struct gdn_cu_yardstick a) \
    {                                                                           \
        scale_in_place(a);                                                      \
    }
#include "cuda/driver/kernels.cuh"
