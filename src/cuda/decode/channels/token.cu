/* SPDX-License-Identifier: Apache-2.0 */
/* Decode of one token of each sequence, with gates per channel. */
#include "cuda/decode/channels/token.cuh"

#define GDN_IMAGE_decode_channels_token GDN_THIS_IMAGE
#define GDN_KERNEL_decode_channels_token(threads, shared, dtype, io, KC)                          \
    DECODE_CHANNELS_TOKEN_KERNEL(threads, gdn_decode_channels_token_##dtype##_##io##_##KC, dtype, \
                                 io, KC)
#include "cuda/driver/kernels.cuh"
