/* SPDX-License-Identifier: Apache-2.0 */
/* Decode of one token of a few sequences, states in slots. */
#include "cuda/decode/token_slots.cuh"

#define GDN_IMAGE_decode_token_slots GDN_THIS_IMAGE
#define GDN_KERNEL_decode_token_slots(threads, shared, dtype, io, KC) \
    DECODE_SLOTS_KERNEL(threads, gdn_decode_token_slots_##dtype##_##io##_##KC, dtype, io, KC)
#include "cuda/driver/kernels.cuh"
