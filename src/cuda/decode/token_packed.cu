/* SPDX-License-Identifier: Apache-2.0 */
/* Decode of N tokens of B sequences, N = B: most sequences have one token. */
#include "cuda/decode/token_packed.cuh"

#define GDN_IMAGE_decode_token_packed GDN_THIS_IMAGE
#define GDN_KERNEL_decode_token_packed(threads, shared, layout, dtype, io, KC)              \
    DECODE_PACKED_KERNEL(threads, gdn_decode_token_packed_##layout##_##dtype##_##io##_##KC, \
                         layout, dtype, io, KC)
#include "cuda/driver/kernels.cuh"
