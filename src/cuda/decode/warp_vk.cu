/* SPDX-License-Identifier: Apache-2.0 */
/* Decode on states whose rows are v ("k-last"). */
#include "cuda/decode/warp.cuh"

#define GDN_IMAGE_decode_warp_vk GDN_THIS_IMAGE
#define GDN_KERNEL_decode_warp_vk(threads, shared, dtype, KC) \
    DECODE_WARP_KERNEL(threads, gdn_decode_warp_vk_##dtype##_##KC, warp_vk, dtype, KC)
#include "cuda/driver/kernels.cuh"
