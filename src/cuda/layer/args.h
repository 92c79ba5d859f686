/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of the kernels of layers and of gdn_step. */
#ifndef GDN_CUDA_LAYER_ARGS_H
#define GDN_CUDA_LAYER_ARGS_H

#include "cuda/decode/args.h"

/* struct gdn_conv_view with steps of 32 bits, in bytes. All steps inside a slot fit. */
struct gdn_cu_taps {
    char *data;
    int32_t dtype, slot, channel, entry;
};
GDN_CU_SIZE(gdn_cu_taps, 24);

/* The arguments of gdn_step in one launch: layer/step_general.cuh. Kernels do not read q, k and v
 * of the rule. */
struct gdn_cu_step_general {
    struct gdn_cu_warp rule;
    struct gdn_cu_near x, z;               /* z absent: no gate */
    struct gdn_cu_taps weight, bias, conv; /* conv: the pool of its states */
    struct gdn_cu_array norm_weight;
    int32_t Hk, group; /* key heads; value heads of a key head */
    int32_t n_columns; /* of a state, that a block has */
    int32_t part_bits; /* log2 of the blocks of a value head */
    int32_t n_blocks;  /* blocks of a key head; key_blocks: the inverse of n_blocks */
    uint32_t key_blocks;
    int32_t share;  /* channels of q and k, of 2 K, whose states a block moves */
    int32_t length; /* of a state of the convolution */
    int32_t moves;  /* the convolution's states are moved on */
    int32_t normed;
    float rms_eps;
};
GDN_CU_SIZE(gdn_cu_step_general, 528 + 2 * 24 + 3 * 24 + 32 + 11 * 4 + 4);

/* The arguments of gdn_step of one token for each sequence: layer/step_rows.cuh. Kernels do not
 * read q, k and v of `one`. */
struct gdn_cu_step_rows {
    struct gdn_cu_token one;
    struct gdn_cu_at x, z, norm_weight;    /* z or norm_weight absent: the norm has none */
    struct gdn_cu_taps weight, bias, conv; /* conv: the pool of its states */
    int32_t norm_weight_bytes;
    int32_t Hk, group, V; /* key heads; value heads of a key head */
    int32_t n_columns;    /* of a state, that a block has */
    int32_t part_bits;    /* log2 of the blocks of a value head */
    int32_t n_blocks;     /* of a key head */
    int32_t share;        /* channels of q and k, of 2 K, whose states a block moves */
    int32_t pair_step;    /* from a pair of entries of two channels to the next, in bytes */
    int32_t by_entry;     /* the entries of a channel lie side by side */
    int32_t moves;        /* the convolution's states are moved on */
    int32_t normed;
    float rms_eps;
    int32_t pad;
};
GDN_CU_SIZE(gdn_cu_step_rows, 264 + 3 * 16 + 3 * 24 + 14 * 4);

/* The arguments of a product of layer/layer.cu: out = x weight^T, or out += x weight^T. x has rows
 * of n_in elements, out of n_out; T of them are a row of the batch. weight.token: from one output
 * to the next. x_step, weight_step: from one summed element to the next, in elements. */
struct gdn_cu_layer_project {
    struct gdn_rows x, weight, out;
    int64_t T, n_rows, n_out, n_in, x_step, weight_step;
    int32_t adds, pad;
};
GDN_CU_SIZE(gdn_cu_layer_project, 3 * 40 + 48 + 8);

/* The arguments of rows in another order of columns, see calls/layer_backward.h. */
struct gdn_cu_layer_weave {
    struct gdn_rows from, to;
    int64_t n; /* elements of all rows */
    int32_t heads, part[4], weaves;
};
GDN_CU_SIZE(gdn_cu_layer_weave, 2 * 40 + 8 + 6 * 4);

/* The arguments of copies between rows of tokens, n elements each, and a dense buffer. adds: the
 * copy adds to what is there. */
struct gdn_cu_layer_rows {
    struct gdn_cu_batch batch;
    struct gdn_rows rows, dense;
    int64_t n;
    int32_t adds, pad;
};
GDN_CU_SIZE(gdn_cu_layer_rows, 480 + 2 * 40 + 16);

/* The arguments of a copy from dense rows of n elements to out, which has `head` of them in a head.
 * Rows of padding that keeps its output are left out. gdn_step uses it too. */
struct gdn_cu_layer_store {
    struct gdn_cu_batch batch;
    struct gdn_rows out;
    const char *from;
    int64_t n, head;
};
GDN_CU_SIZE(gdn_cu_layer_store, 480 + 40 + 24);

#endif
