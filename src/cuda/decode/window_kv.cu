/* SPDX-License-Identifier: Apache-2.0 */
/* Decode of several tokens on states whose rows are k. */
#include "cuda/decode/window_kv.cuh"

#define GDN_IMAGE_decode_window_kv GDN_THIS_IMAGE
#define GDN_KERNEL_decode_window_kv(threads, shared, dtype, KC) \
    DECODE_WINDOW_KV_KERNEL(threads, gdn_decode_window_kv_##dtype##_##KC, dtype, KC)
#include "cuda/driver/kernels.cuh"
