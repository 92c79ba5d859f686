/* SPDX-License-Identifier: Apache-2.0 */
#define BACKWARD_IO GDN_F16
#include "cuda/backward/sm90/run.cuh"

#define GDN_IMAGE_backward_sm90_f16 GDN_THIS_IMAGE
#define GDN_KERNEL_backward_sm90(threads, shared, what, io) \
    BACKWARD_KERNEL(threads, shared, what, io)
#include "cuda/driver/kernels.cuh"
