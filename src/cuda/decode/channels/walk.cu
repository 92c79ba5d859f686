/* SPDX-License-Identifier: Apache-2.0 */
/* The walk for the family: trees, records, and states of 8 bits. */
#include "cuda/decode/channels/tokens.cuh"
#include "cuda/decode/walk/walk.cuh"

#define GDN_KERNEL_decode_channels_walk(threads, shared, layout, KC) \
    WALK_KERNEL(threads, gdn_decode_channels_walk_##layout##_##KC,   \
                tile_##layout<KC, struct channels_window<KC>>, KC)
#include "cuda/driver/kernels.cuh"
