/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of channels.cu for sequences of at most four updates. Without a next window a kernel
 * has fewer registers, so a multiprocessor loads more states at once. */
#include "cuda/decode/channels/tokens.cuh"
#include "cuda/decode/general.cuh"

/* The least blocks of a multiprocessor. */
enum { FEW_BLOCKS_64 = 7, FEW_BLOCKS_128 = 6, FEW_BLOCKS_256 = 3 };

#define GDN_IMAGE_decode_channels_few GDN_THIS_IMAGE
#define GDN_KERNEL_decode_channels_few(threads, shared, layout, KC)                  \
    DECODE_KERNEL(threads, FEW_BLOCKS_##KC, gdn_decode_channels_few_##layout##_##KC, \
                  tile_##layout<KC, struct channels_window<KC>>, KC, true)
#include "cuda/driver/kernels.cuh"
