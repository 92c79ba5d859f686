/* SPDX-License-Identifier: Apache-2.0 */
/* Decode on states whose rows are k ("k-first"). */
#include "decode.cuh"

#define GDN_IMAGE_decode_kv GDN_THIS_IMAGE
#define GDN_KERNEL_decode_kv(threads, shared, dtype, KC)                                      \
    DECODE_KERNEL(threads, gdn_decode_kv_##dtype##_##KC, tile_kv, DECODE_##dtype, KC)
#include "kernels.cuh"
