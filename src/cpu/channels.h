/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Some channels of some tokens of a tensor [tokens][channels] of any strides, as rows of floats.
 * The `head` of its rows is the step from one channel to the next.
 */
#ifndef GDN_CPU_CHANNELS_H
#define GDN_CPU_CHANNELS_H

#include "calls/conv.h"
#include "cpu/loops/kernels.h"

enum { GDN_CHANNEL_TILE = 64 }; /* channels and tokens of a tile, at most */

struct gdn_channel_tile {
    int64_t token, channel; /* the first of each, tokens as gdn_row() counts them */
    int n_tokens, n_channels;
};

/* Move a tile from or to rows of floats, ld apart, one for each token. */
void gdn_load_channels(const struct gdn_kernels *kr, const struct gdn_rows *from,
                       const struct gdn_seq *seq, const struct gdn_channel_tile *tile, float *to,
                       ptrdiff_t ld);
void gdn_store_channels(const struct gdn_kernels *kr, const float *from, ptrdiff_t ld,
                        const struct gdn_rows *to, const struct gdn_seq *seq,
                        const struct gdn_channel_tile *tile);

#endif
