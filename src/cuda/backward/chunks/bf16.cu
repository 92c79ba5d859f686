/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/backward/chunks/run.cuh"

#define GDN_KERNEL_backward_chunks(threads, shared, what, io, deep) \
    CHUNKS_KERNEL(threads, shared, what, io, deep)
#include "cuda/driver/kernels.cuh"
