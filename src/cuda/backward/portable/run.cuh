/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_prefill_backward by mma.sync, for 16 bits and K of up to 128 (formulas: docs/design/math.md,
 * section 13; the windows: backward.cuh). Of each window, from the last to the first:
 *
 *     prepare    vectors, T and P of each chunk and state head          prepare.cuh
 *     walks      S before each chunk and U; J after each chunk and Z    portable/scan.cuh
 *     heads      all gradients                                          portable/heads.cuh
 *
 * If dstate is the only gradient, prepare and alone are all. Before that, prepare and the walk
 * forward go through all windows for the states between them, unless these are checkpoints. Each
 * dtype is a file that includes this one with BACKWARD_IO.
 */
#ifndef GDN_CUDA_BACKWARD_PORTABLE_RUN_CUH
#define GDN_CUDA_BACKWARD_PORTABLE_RUN_CUH

#include "cuda/backward/portable/heads.cuh"
#include "cuda/backward/portable/scan.cuh"

#include "cuda/backward/prepare.cuh"

GDN_DEVICE void backward_portable_prepare(const struct gdn_cu_backward &a)
{
    prepare_chunks<DEEP>(a);
}
GDN_DEVICE void backward_portable_walks(const struct gdn_cu_backward &a) { run_walks(a); }
GDN_DEVICE void backward_portable_alone(const struct gdn_cu_backward &a) { run_walks_alone(a); }
GDN_DEVICE void backward_portable_heads(const struct gdn_cu_backward &a) { run_heads(a); }

/* A multiprocessor has several blocks of `prepare`. */
#define BACKWARD_KERNEL(threads, shared, what, io)                                            \
    extern "C" __global__ void __launch_bounds__(threads, (threads) == 128 ? 4 : 1)           \
        gdn_backward_portable_##what##_##io(const __grid_constant__ struct gdn_cu_backward a) \
    {                                                                                         \
        backward_portable_##what(a);                                                          \
    }

#endif
