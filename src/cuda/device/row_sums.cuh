/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over lines, for the gradients of a vector. Each block has written its sums; this file
 * adds the sums of all blocks. */
#ifndef GDN_CUDA_ROW_SUMS_CUH
#define GDN_CUDA_ROW_SUMS_CUH

#include "cuda/device/lines.cuh"

/* Adds the sums of blocks to element i of `to`: n_blocks of them, `step` apart. A warp takes 32 at
 * a time, and adds its lanes by a tree. */
GDN_DEVICE void add_blocks(const struct gdn_cu_array &to, int64_t i, const float *sums,
                           int64_t n_blocks, int64_t step, bool adds)
{
    float sum = 0;
    for (int64_t block = threadIdx.x % 32; block < n_blocks; block += 32) sum += sums[block * step];
    sum = sum_lanes(sum, 32);
    float *p = (float *)to.data + i * to.stride[0];
    if (threadIdx.x % 32 == 0) *p = adds ? *p + sum : sum;
}

#endif
