/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_prefill with gates per channel, by mma.sync: for each window of chunks (window.cuh)
 *
 *     chunks     T, P and scaled keys of each chunk and state head         chunks.cuh
 *     scan       the states through these chunks, and the output           scan.cuh
 */
#ifndef GDN_CUDA_PREFILL_CHANNELS_RUN_CUH
#define GDN_CUDA_PREFILL_CHANNELS_RUN_CUH

#include "cuda/prefill/channels/scan.cuh"

template <int io, int deep>
GDN_DEVICE void run_chunks_kernel(const struct gdn_cu_prefill_channels &a)
{
    make_chunk<io, deep>(a);
    /* The launch may begin before the scan ahead ends. One block waits for that scan, so the
     * launch ends after the scan. */
    if (blockIdx.x == gridDim.x - 1) griddepcontrol_wait();
}
template <int io, int deep> GDN_DEVICE void run_scan_kernel(const struct gdn_cu_prefill_channels &a)
{
    scan_window<io, deep>(a);
}

/* The least blocks of a multiprocessor. */
enum { CHANNELS_BLOCKS_chunks = 2, CHANNELS_BLOCKS_scan = 1 };

#define CHANNELS_KERNEL(threads, shared, what, io, deep)                          \
    extern "C" __global__ void __launch_bounds__(threads, CHANNELS_BLOCKS_##what) \
        gdn_prefill_channels_##what##_##io##_##deep(                              \
            const __grid_constant__ struct gdn_cu_prefill_channels a)             \
    {                                                                             \
        run_##what##_kernel<GDN_##io, deep>(a);                                   \
    }

#endif
