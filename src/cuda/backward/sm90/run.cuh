/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_prefill_backward on tensor cores, for 16 bits and K and V of up to 128 (formulas:
 * docs/design/math.md, section 13; the windows: backward.cuh). Of each window, from the last to the
 * first:
 *
 *     prepare        vectors, T and P of each chunk and state head          prepare.cuh
 *     half, whole    S before each chunk and U; J after each chunk and Z    sm90/scan.cuh
 *     heads          all gradients                                          heads.cuh
 *
 * A block of half has 64 columns of a state, one of whole has all. If dstate is the only gradient,
 * prepare and half_alone, or whole_alone, are all that runs; units of a long sequence are walked
 * through at the same time (parts.cuh). The states between windows are those of gdn_prefill's
 * kernels, or prepare and the walk forward go through all windows first. The last kernels of
 * general/general.cu end the call. No sum depends on the order in which blocks run.
 * Each dtype is a file that includes this one with BACKWARD_IO.
 */
#ifndef GDN_CUDA_BACKWARD_SM90_RUN_CUH
#define GDN_CUDA_BACKWARD_SM90_RUN_CUH

#include "cuda/backward/sm90/fused.cuh"
#include "cuda/backward/sm90/heads.cuh"
#include "cuda/backward/sm90/scan.cuh"

#include "cuda/backward/prepare.cuh"

GDN_DEVICE void backward_sm90_prepare(const struct gdn_cu_backward &a) { prepare_chunks<DEEP>(a); }
GDN_DEVICE void backward_sm90_prepare_deep(const struct gdn_cu_backward &a)
{
    prepare_chunks<DEEPEST>(a);
}
GDN_DEVICE void backward_sm90_heads(const struct gdn_cu_backward &a) { run_heads<false>(a); }
GDN_DEVICE void backward_sm90_heads_wide(const struct gdn_cu_backward &a) { run_heads<true>(a); }

#define BACKWARD_WALKS(name, form)                                                \
    GDN_DEVICE void backward_sm90_##name(const struct gdn_cu_backward &a)         \
    {                                                                             \
        backward_sm90_walks<form>(a);                                             \
    }                                                                             \
    GDN_DEVICE void backward_sm90_##name##_alone(const struct gdn_cu_backward &a) \
    {                                                                             \
        walk_alone<form>(a);                                                      \
    }
GDN_DEVICE void backward_sm90_half_ends(const struct gdn_cu_backward &a)
{
    backward_sm90_walks<SCAN_HALF, SCAN_ENDS>(a);
}
GDN_DEVICE void backward_sm90_whole_ends(const struct gdn_cu_backward &a)
{
    backward_sm90_walks<SCAN_WHOLE, SCAN_ENDS>(a);
}
BACKWARD_WALKS(half, SCAN_HALF)
BACKWARD_WALKS(whole, SCAN_WHOLE)
BACKWARD_WALKS(deep, SCAN_DEEP)

/* A multiprocessor has several blocks of `prepare`. */
#define BACKWARD_BLOCKS(threads, shared) \
    ((threads) > 128 ? 1 : (shared) > GDN_CU_PREPARE_BYTES ? 3 : 4)
#define BACKWARD_KERNEL(threads, shared, what, io)                                          \
    extern "C" __global__ void __launch_bounds__(threads, BACKWARD_BLOCKS(threads, shared)) \
        gdn_backward_sm90_##what##_##io(const __grid_constant__ struct gdn_cu_backward a)   \
    {                                                                                       \
        backward_sm90_##what(a);                                                            \
    }

#endif
