/* SPDX-License-Identifier: Apache-2.0 */
/* Decode of up to four tokens of each sequence, or of more whose states are all kept. */
#include "cuda/decode/window_k128.cuh"

#define GDN_IMAGE_decode_window_k128 GDN_THIS_IMAGE
#define GDN_KERNEL_decode_window_k128(threads, shared, layout, dtype, io, KC)                   \
    DECODE_WINDOW_K128_KERNEL(threads, gdn_decode_window_k128_##layout##_##dtype##_##io##_##KC, \
                              layout, dtype, io, KC)
#include "cuda/driver/kernels.cuh"
