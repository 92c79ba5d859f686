/* SPDX-License-Identifier: Apache-2.0 */
/* Decode for all dtypes, sizes, strides and batches. */
#include "cuda/decode/general.cuh"

#define GDN_IMAGE_decode_general GDN_THIS_IMAGE
#define GDN_KERNEL_decode_general(threads, shared, layout, KC) \
    DECODE_KERNEL(threads, 2, gdn_decode_general_##layout##_##KC, tile_##layout<KC>, KC)
#include "cuda/driver/kernels.cuh"
