/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the part of a record that gdn_prefill makes too (prefill/channels/chunks.cuh). */
#ifndef GDN_CUDA_BACKWARD_CHUNKS_PREPARE_CUH
#define GDN_CUDA_BACKWARD_CHUNKS_PREPARE_CUH

#include "cuda/backward/chunks/record.cuh"

/* Finds the block's chunk. The first warp calls it. */
template <int deep>
GDN_DEVICE void find_shared_chunk(chunks_shared<deep> &sh, const struct gdn_cu_backward_channels &a,
                                  int64_t number)
{
    if (threadIdx.x < 32) {
        const struct stage_chunk found = chunk_in(a, number).in;
        if (threadIdx.x == 0) {
            sh.chunk = found;
            sh.factors.forgets = sh.factors.busy = 0;
        }
    }
    __syncthreads();
}

/* Makes a record. A block has a chunk and a state head. */
template <int io, int deep> GDN_DEVICE void prepare_chunk(const struct gdn_cu_backward_channels &a)
{
    chunks_shared<deep> &sh = *(chunks_shared<deep> *)gdn_shared;
    const int H = a.base.rule.H, head = (int)(blockIdx.x % H);
    find_shared_chunk(sh, a, blockIdx.x / H);
    make_chunk<io, deep>(a.base.rule, sh, record_of<deep>(a, blockIdx.x / H, head).at, head);
}

#endif
