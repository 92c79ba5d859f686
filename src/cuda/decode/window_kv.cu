/* SPDX-License-Identifier: Apache-2.0 */
/* Decode of several tokens on states whose rows are k. */
#include "cuda/decode/window_kv.cuh"

#define GDN_IMAGE_decode_few GDN_THIS_IMAGE
#define GDN_KERNEL_decode_few(threads, shared, dtype, KC)                                     \
    DECODE_FEW_KERNEL(threads, gdn_decode_few_##dtype##_##KC, dtype, KC)
#include "cuda/driver/kernels.cuh"
