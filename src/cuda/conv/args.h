/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of the kernels of the convolution. */
#ifndef GDN_CUDA_CONV_ARGS_H
#define GDN_CUDA_CONV_ARGS_H

#include "cuda/driver/args.h"

/* gdn_conv1d. An item is a warp's: some channels of a sequence, a tile or an edge. */
struct gdn_cu_conv {
    struct gdn_cu_batch batch;
    struct gdn_rows x, out; /* heads: the steps of channels */
    struct gdn_conv_view weight, bias, from, to, checkpoints;
    /* In place: the inputs before a tile, then the first outputs of a sequence, which wait until
     * the inputs there have been read: [tiles, then sequences][W - 1][D]. Else NULL. */
    float *edges;
    int64_t D, n_items, n_walks; /* n_walks: the first items that are walks */
    int64_t tile, n_tiles;       /* tokens of a tile; tiles in all, */
    int64_t row_tiles;           /* and of one row of a padded batch */
    int32_t W, silu;
    int32_t kept;   /* entries of a state in shared memory, see conv/conv_walk.cuh */
    int32_t access; /* of x and out: 16, 8: channels lie side by side and so many bytes, or four
                       elements at least, move at once; 0: single elements */
    /* key_head not 0 (then access is set): the channels, q of all heads, k of all, v of all, lie in
     * x as Qwen3-Next projects them: each of Hk key heads has K of q, K of k and V of v in
     * key_head elements. */
    int32_t key_head, Hk, K, V;
    /* By rows: those of blocks that walk, before the others; and whether all tokens are valid. */
    int32_t walk_blocks, plain;
};
GDN_CU_SIZE(gdn_cu_conv, 480 + 2 * 40 + 5 * 48 + 56 + 32 + 8);

/* gdn_conv1d_backward. Blocks of `rows` tokens, of all N that the tensors hold, write to
 * sums[block][W + 1][D] what the weights and the bias get from them. */
struct gdn_cu_conv_backward {
    struct gdn_cu_batch batch;
    struct gdn_rows x, dout, dx; /* heads: the steps of channels, in elements */
    struct gdn_conv_view weight, bias, dweight, dbias, state, dstate_out, dstate;
    float *sums; /* NULL: neither is wanted */
    int64_t D, N, rows, n_blocks;
    int32_t W, silu;
    int32_t adds, pad; /* adds: to what the gradients hold */
};
GDN_CU_SIZE(gdn_cu_conv_backward, 480 + 3 * 40 + 7 * 48 + 40 + 16);

#endif
