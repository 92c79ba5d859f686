/* SPDX-License-Identifier: Apache-2.0 */
/* Decode of more than four tokens. */
#include "cuda/decode/window_vk.cuh"

#define GDN_IMAGE_decode_windows GDN_THIS_IMAGE
#define GDN_KERNEL_decode_windows(threads, shared, dtype, KC)                                 \
    DECODE_WINDOWS_KERNEL(threads, gdn_decode_windows_##dtype##_##KC, dtype, KC)
#include "cuda/driver/kernels.cuh"
