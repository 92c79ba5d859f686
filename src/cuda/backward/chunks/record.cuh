/* SPDX-License-Identifier: Apache-2.0 */
/* The record of a chunk and a state head in memory, and its blocks of four matrices (args.h). */
#ifndef GDN_CUDA_BACKWARD_CHUNKS_RECORD_CUH
#define GDN_CUDA_BACKWARD_CHUNKS_RECORD_CUH

#include "cuda/backward/channels/channels.cuh"
#include "cuda/backward/chunks/args.h"
#include "cuda/prefill/channels/chunks.cuh"
#include "cuda/prefill/channels/products.cuh"
#include "cuda/prefill/channels/walk.cuh"

enum { BLOCK = 4 * 8 * 8 * 2 }; /* bytes */

/* A record. Its blocks are of columns of V from 16 v on. */
template <int deep> struct chunks_record {
    char *at;
    int V;
    bool writes;

    __device__ __forceinline__ char *S(int v) const
    {
        return at + GDN_CHUNKS_S(deep, V, writes) + v * (deep / 16) * BLOCK;
    }
    __device__ __forceinline__ char *J(int v) const
    {
        return at + GDN_CHUNKS_J(deep, V, writes) + v * (deep / 16) * BLOCK;
    }
    __device__ __forceinline__ char *u(int v) const
    {
        return at + GDN_CHUNKS_U(deep, V, writes) + v * GROUPS * BLOCK;
    }
    __device__ __forceinline__ char *z(int v) const
    {
        return at + GDN_CHUNKS_Z(deep, V, writes) + v * GROUPS * BLOCK;
    }
};
template <int deep>
GDN_DEVICE chunks_record<deep> record_of(const struct gdn_cu_backward_channels &a, int64_t number,
                                         int head)
{
    const struct gdn_cu_rule &r = a.base.rule;
    return { a.base.records + (number * r.H + head) * a.base.record_bytes, r.V,
             r.family.write.data != NULL };
}

/* ---- Blocks of four matrices ----------------------------------------------------------------- */

/* Stores a block. Matrix 2 h + r has rows 8 r to 8 r + 7 and columns 8 h to 8 h + 7. */
template <class Operand> GDN_DEVICE void put_block(char *to, const Operand &o)
{
#pragma unroll
    for (int i = 0; i < 4; i++) *(uint32_t *)(to + 128 * i + threadIdx.x % 32 * 4) = o.x[i];
}
/* Loads an operand from shared memory. Its rows are columns of the block. */
template <class Operand> GDN_DEVICE void load_block_turned(Operand &o, uint32_t block)
{
    const int l = threadIdx.x % 32, matrix = l / 8 % 2 * 2 + l / 16;
    load_matrices_turned(o.x, block + 128 * matrix + l % 8 * 16);
}
/* Returns the place of an element in blocks that lie side by side. */
GDN_DEVICE int64_t block_place(int row, int column)
{
    return column / 16 * BLOCK + (column / 8 % 2 * 2 + row / 8) * 128 + row % 8 * 16 +
           column % 8 * 2;
}

#endif
