/* SPDX-License-Identifier: Apache-2.0 */
/* Decode on states whose rows are k ("k-first"). */
#include "cuda/decode/warp.cuh"

#define GDN_IMAGE_decode_warp_kv GDN_THIS_IMAGE
#define GDN_KERNEL_decode_warp_kv(threads, shared, dtype, KC) \
    DECODE_WARP_KERNEL(threads, gdn_decode_warp_kv_##dtype##_##KC, warp_kv, dtype, KC)
#include "cuda/driver/kernels.cuh"
