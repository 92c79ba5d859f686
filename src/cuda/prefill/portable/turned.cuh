/* SPDX-License-Identifier: Apache-2.0 */
/* Stores blocks of 16 x 16 by their columns, on all devices from sm_80 on. */
#ifndef GDN_CUDA_PREFILL_TURNED_CUH
#define GDN_CUDA_PREFILL_TURNED_CUH

#include "cuda/device/mma.cuh"

/* turned_place: the address of a block of 16 x 16 in rows of `row` bytes. The function stores a
 * block there, transposed. */
typedef char *turned_place;
GDN_DEVICE turned_place turned_place_of(char *rows, int row)
{
    const int l = threadIdx.x % 32;
    return rows + l / 4 * row + l % 4 * 4;
}
GDN_DEVICE void store_turned(turned_place at, int row, const uint32_t (&x)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        *(uint32_t *)(at + i / 2 * 8 * row + i % 2 * 16) = turn_matrix(x[i]);
}

#endif
