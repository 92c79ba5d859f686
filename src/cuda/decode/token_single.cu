/* SPDX-License-Identifier: Apache-2.0 */
/* Decode of sequences of one token, which gdn_prefill leaves out of its chunks. */
#include "cuda/decode/token_single.cuh"

#define GDN_IMAGE_decode_token_single GDN_THIS_IMAGE
#define GDN_KERNEL_decode_token_single(threads, shared, layout, dtype, io, KC)              \
    DECODE_SINGLE_KERNEL(threads, gdn_decode_token_single_##layout##_##dtype##_##io##_##KC, \
                         layout, dtype, io, KC)
#include "cuda/driver/kernels.cuh"
