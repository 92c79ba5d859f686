/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_prefill by mma.sync for 16 bits and K of up to 128, in several launches:
 *
 *     chunks    gates, T and P of each chunk and state head, in parallel     chunks.cuh
 *     scan      the state from chunk to chunk, and the output                scan.cuh
 *     segments  states from segment to segment of long sequences             ../combine.cuh
 *
 * Each dtype is a file that includes this one.
 */
#ifndef GDN_CUDA_PREFILL_PORTABLE_RUN_CUH
#define GDN_CUDA_PREFILL_PORTABLE_RUN_CUH

#include "cuda/device/mma.cuh"

extern __shared__ __align__(128) char gdn_shared[];

#include "cuda/prefill/combine.cuh"
#include "cuda/prefill/portable/chunks.cuh"
#include "cuda/prefill/portable/scan.cuh"

/* Sums segments. Blocks are numbered by columns, then heads, then sequences of several segments. */
GDN_DEVICE void run_segments(const struct gdn_cu_prefill_portable &a)
{
    const struct gdn_cu_rule &r = a.rule;
    const int slices = r.V / COLUMNS;
    int64_t first, row;
    const int64_t n = find_units(r.batch, a.cut, blockIdx.x / slices / r.H, first, row);
    if (n < 2 || first + n > a.cut.units) return;
    const struct combine_block b = { r,
                                     a.cut,
                                     first,
                                     (int)n - 1,
                                     (int)(blockIdx.x / slices % r.H),
                                     (int)(blockIdx.x % slices) * COLUMNS,
                                     (int)threadIdx.x / 32,
                                     (int)threadIdx.x % 32 };
    combine(b);
}

/* A multiprocessor has room for several blocks of `chunks`. */
#define PORTABLE_KERNEL(threads, shared, what, io)                                  \
    extern "C" __global__ void __launch_bounds__(threads, (threads) == 128 ? 4 : 1) \
        gdn_prefill_portable_##what##_##io(                                         \
            const __grid_constant__ struct gdn_cu_prefill_portable a)               \
    {                                                                               \
        portable_##what<GDN_##io>(a);                                               \
    }

template <int io> GDN_DEVICE void portable_chunks(const struct gdn_cu_prefill_portable &a)
{
    run_chunks<io>(a);
}
template <int io> GDN_DEVICE void portable_scan64(const struct gdn_cu_prefill_portable &a)
{
    run_scan<io, 64>(a);
}
template <int io> GDN_DEVICE void portable_scan128(const struct gdn_cu_prefill_portable &a)
{
    run_scan<io, 128>(a);
}
template <int io> GDN_DEVICE void portable_segments(const struct gdn_cu_prefill_portable &a)
{
    run_segments(a);
}

#endif
