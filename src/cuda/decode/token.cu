/* SPDX-License-Identifier: Apache-2.0 */
/* Decode of one token of each sequence. */
#include "cuda/decode/token.cuh"

#define GDN_IMAGE_decode_token GDN_THIS_IMAGE
#define GDN_KERNEL_decode_token(threads, shared, layout, dtype, io, KC)                            \
    DECODE_TOKEN_KERNEL(threads, gdn_decode_token_##layout##_##dtype##_##io##_##KC, layout, dtype, \
                        io, KC)
#include "cuda/driver/kernels.cuh"
