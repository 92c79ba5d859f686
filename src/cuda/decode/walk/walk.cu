/* SPDX-License-Identifier: Apache-2.0 */
/* Decode of trees, with records, and on states of 8 bits, for all dtypes and strides. */
#include "cuda/decode/walk/walk.cuh"

#define GDN_KERNEL_decode_walk(threads, shared, layout, KC) \
    WALK_KERNEL(threads, gdn_decode_walk_##layout##_##KC, tile_##layout<KC>, KC)
#include "cuda/driver/kernels.cuh"
