/* SPDX-License-Identifier: Apache-2.0 */
/* Decode of one token of each sequence, states of 8 bits. */
#include "cuda/decode/token_eight.cuh"

#define GDN_IMAGE_decode_token_eight GDN_THIS_IMAGE
#define GDN_KERNEL_decode_token_eight(threads, shared, dtype, io, KC) \
    DECODE_EIGHT_KERNEL(threads, gdn_decode_token_eight_##dtype##_##io##_##KC, dtype, io, KC)
#include "cuda/driver/kernels.cuh"
