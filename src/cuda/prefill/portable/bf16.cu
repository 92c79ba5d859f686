/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/prefill/portable/run.cuh"

#define GDN_IMAGE_prefill_portable_bf16 GDN_THIS_IMAGE
#define GDN_KERNEL_prefill_portable(threads, shared, what, io) \
    PORTABLE_KERNEL(threads, shared, what, io)
#include "cuda/driver/kernels.cuh"
