/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of several values over the lanes of a warp. */
#ifndef GDN_CUDA_LANES_CUH
#define GDN_CUDA_LANES_CUH

#include "cuda/device/ptx.cuh"

/* Adds 2 n values over the lanes that differ in `bit`. A lane keeps n sums: those of the second
 * half if its bit is set. */
template <int n> GDN_DEVICE void halve(float *x, int bit)
{
    const bool high = threadIdx.x & bit;
#pragma unroll
    for (int i = 0; i < n; i++) {
        const float mine = high ? x[n + i] : x[i], other = high ? x[i] : x[n + i];
        x[i] = mine + __shfl_xor_sync(0xffffffff, other, bit);
    }
}

#endif
