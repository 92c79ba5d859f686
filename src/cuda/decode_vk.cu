/* SPDX-License-Identifier: Apache-2.0 */
/* Decode on states whose rows are v ("k-last"). */
#include "decode.cuh"

#define GDN_IMAGE_decode_vk GDN_THIS_IMAGE
#define GDN_KERNEL_decode_vk(threads, shared, dtype, KC)                                      \
    DECODE_KERNEL(threads, gdn_decode_vk_##dtype##_##KC, tile_vk, DECODE_##dtype, KC)
#include "kernels.cuh"
