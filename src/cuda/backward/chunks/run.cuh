/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_prefill_backward with gates per channel, by mma.sync. Windows are those of backward.cuh, and
 * a window is
 *
 *     prepare    T, P and scaled keys of each chunk and state head     prepare.cuh
 *     walks      states before chunks and u; their gradients and z     scan.cuh
 *     heads      gradients of each state head, as rows                 heads.cuh
 *
 * then `store`, `betas` and `given` of channels/store.cuh.
 */
#ifndef GDN_CUDA_BACKWARD_CHUNKS_RUN_CUH
#define GDN_CUDA_BACKWARD_CHUNKS_RUN_CUH

#include "cuda/backward/chunks/heads.cuh"

template <int io, int deep>
GDN_DEVICE void run_prepare_kernel(const struct gdn_cu_backward_channels &a)
{
    prepare_chunk<io, deep>(a);
}
template <int io, int deep>
GDN_DEVICE void run_walks_kernel(const struct gdn_cu_backward_channels &a)
{
    run_walks<io, deep>(a);
}
template <int io, int deep>
GDN_DEVICE void run_heads_kernel(const struct gdn_cu_backward_channels &a)
{
    run_heads<io, deep>(a);
}

/* The least blocks of a multiprocessor. */
enum { CHUNKS_BLOCKS_prepare = 2, CHUNKS_BLOCKS_walks = 1, CHUNKS_BLOCKS_heads = 1 };

#define CHUNKS_KERNEL(threads, shared, what, io, deep)                          \
    extern "C" __global__ void __launch_bounds__(threads, CHUNKS_BLOCKS_##what) \
        gdn_backward_chunks_##what##_##io##_##deep(                             \
            const __grid_constant__ struct gdn_cu_backward_channels a)          \
    {                                                                           \
        run_##what##_kernel<GDN_##io, deep>(a);                                 \
    }

#endif
