/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of the kernels of the convolution. */
#ifndef GDN_CUDA_CONV_ARGS_H
#define GDN_CUDA_CONV_ARGS_H

#include "cuda/driver/args.h"

/* The tokens that are valid, from descriptors alone: only each sequence says it; all tokens; those
 * between the first and the last bound of cu_seqlens. */
enum gdn_cu_conv_valid { GDN_CU_CONV_ASK, GDN_CU_CONV_ALL, GDN_CU_CONV_BOUNDED };

/* The arguments of gdn_conv1d. A warp computes an item: some channels of a sequence, a tile or an
 * edge. */
struct gdn_cu_conv {
    struct gdn_cu_batch batch;
    struct gdn_rows x, out; /* heads: the steps of channels */
    struct gdn_conv_view weight, bias, from, to, checkpoints;
    /* For calls in place, else NULL: the inputs before each tile, then the first outputs of each
     * sequence. These outputs wait until the inputs at their place have been read. [tiles, then
     * sequences][W - 1][D]. */
    float *edges;
    int64_t D, n_items, n_walks; /* n_walks: of the items, the first ones, which walk */
    int64_t tile, n_tiles;       /* tokens of a tile; all tiles */
    int64_t row_tiles;           /* tiles of one row of a padded batch */
    int32_t W, silu;
    int32_t kept;   /* entries of a state in shared memory, see conv/conv_walk.cuh */
    int32_t access; /* bytes of x and out that move at once: 16 or 8, at least four elements, and
                       channels lie side by side; 0: single elements */
    /* key_head is not 0, and access is set, if x has its channels as Qwen3-Next projects them. Each
     * of Hk key heads then has K of q, K of k and V of v, in key_head elements. The channels are q
     * of all heads, then k of all, then v of all. */
    int32_t key_head, Hk, K, V;
    int32_t walk_blocks; /* of form `rows`: blocks that start sequences, the first ones */
    int32_t valid;       /* of form `rows`: enum gdn_cu_conv_valid */
};
GDN_CU_SIZE(gdn_cu_conv, 480 + 2 * 40 + 5 * 48 + 56 + 32 + 8);

/* The arguments of gdn_conv1d_backward. The tensors hold N tokens. A block has `rows` of them. It
 * writes its part of the gradients of the weights and of the bias to sums[block][W + 1][D]. */
struct gdn_cu_conv_backward {
    struct gdn_cu_batch batch;
    struct gdn_rows x, dout, dx; /* heads: the steps of channels, in elements */
    struct gdn_conv_view weight, bias, dweight, dbias, state, dstate_out, dstate;
    float *sums; /* NULL: no gradient of weights or bias is wanted */
    int64_t D, N, rows, n_blocks;
    int32_t W, silu;
    int32_t adds, pad; /* adds: the results are added to what the gradients hold */
};
GDN_CU_SIZE(gdn_cu_conv_backward, 480 + 3 * 40 + 7 * 48 + 40 + 16);

#endif
