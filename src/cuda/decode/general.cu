/* SPDX-License-Identifier: Apache-2.0 */
/* Decode of whatever dtypes, sizes, strides and batches there are. */
#include "cuda/decode/general.cuh"

#define GDN_IMAGE_decode_any GDN_THIS_IMAGE
#define GDN_KERNEL_decode_any(threads, shared, layout, KC)                                    \
    DECODE_KERNEL(threads, gdn_decode_any_##layout##_##KC, tile_##layout, KC)
#include "cuda/driver/kernels.cuh"
