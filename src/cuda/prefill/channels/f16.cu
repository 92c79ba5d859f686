/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/prefill/channels/run.cuh"

#define GDN_KERNEL_prefill_channels(threads, shared, what, io, deep) \
    CHANNELS_KERNEL(threads, shared, what, io, deep)
#include "cuda/driver/kernels.cuh"
