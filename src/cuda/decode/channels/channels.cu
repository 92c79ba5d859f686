/* SPDX-License-Identifier: Apache-2.0 */
/* Decode of the family, for all dtypes, sizes, strides and batches. */
#include "cuda/decode/channels/tokens.cuh"
#include "cuda/decode/general.cuh"

/* The least blocks of a multiprocessor: as many as have enough registers. */
enum { CHANNELS_BLOCKS_64 = 4, CHANNELS_BLOCKS_128 = 4, CHANNELS_BLOCKS_256 = 2 };

#define GDN_IMAGE_decode_channels GDN_THIS_IMAGE
#define GDN_KERNEL_decode_channels(threads, shared, layout, KC)                       \
    DECODE_KERNEL(threads, CHANNELS_BLOCKS_##KC, gdn_decode_channels_##layout##_##KC, \
                  tile_##layout<KC, struct channels_window<KC>>, KC)
#include "cuda/driver/kernels.cuh"
