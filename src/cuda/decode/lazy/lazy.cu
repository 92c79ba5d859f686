/* SPDX-License-Identifier: Apache-2.0 */
/* Decode of up to eight tokens of each sequence beside a record that accepts them. */
#include "cuda/decode/lazy/few.cuh"
#include "cuda/decode/lazy/lazy.cuh"
#include "cuda/decode/lazy/tokens.cuh"

#define GDN_IMAGE_decode_lazy GDN_THIS_IMAGE
#define GDN_KERNEL_decode_lazy_rows(threads, shared, io, KC) \
    DECODE_LAZY_ROWS_KERNEL(threads, gdn_decode_lazy_rows_##io##_##KC, io, KC)
#define GDN_KERNEL_decode_lazy(threads, shared, dtype, io, KC) \
    DECODE_LAZY_KERNEL(threads, gdn_decode_lazy_##dtype##_##io##_##KC, dtype, io, KC)
#define GDN_KERNEL_decode_lazy_tokens_rows(threads, shared, io, KC) \
    DECODE_LAZY_TOKENS_ROWS_KERNEL(threads, gdn_decode_lazy_tokens_rows_##io##_##KC, io, KC)
#define GDN_KERNEL_decode_lazy_tokens(threads, shared, dtype, io, KC) \
    DECODE_LAZY_TOKENS_KERNEL(threads, gdn_decode_lazy_tokens_##dtype##_##io##_##KC, dtype, io, KC)
#define GDN_KERNEL_decode_lazy_few(threads, shared, dtype, io, KC) \
    DECODE_LAZY_FEW_KERNEL(threads, gdn_decode_lazy_few_##dtype##_##io##_##KC, dtype, io, KC)
#define GDN_KERNEL_decode_lazy_few_kv(threads, shared, dtype, io, KC) \
    DECODE_LAZY_FEW_KV_KERNEL(threads, gdn_decode_lazy_few_kv_##dtype##_##io##_##KC, dtype, io, KC)
#include "cuda/driver/kernels.cuh"
