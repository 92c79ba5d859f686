/* SPDX-License-Identifier: Apache-2.0 */
/* Decode of more than four tokens. */
#include "cuda/decode/window_vk.cuh"

#define GDN_IMAGE_decode_window_vk GDN_THIS_IMAGE
#define GDN_KERNEL_decode_window_vk(threads, shared, dtype, KC) \
    DECODE_WINDOW_VK_KERNEL(threads, gdn_decode_window_vk_##dtype##_##KC, dtype, KC)
#include "cuda/driver/kernels.cuh"
