/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of the kernels of gradients of the family. */
#ifndef GDN_CUDA_BACKWARD_CHANNELS_ARGS_H
#define GDN_CUDA_BACKWARD_CHANNELS_ARGS_H

#include "cuda/backward/args.h"

/* Updates of a piece, at most; a chunk has whole pieces. Columns of a strip. What is known of an
 * update beside its rows: it writes; a channel forgets before it. */
enum { GDN_CU_PIECE = 16, GDN_CU_CHANNELS_STRIP = 32 };
/* Blocks that share the rows of a chunk and a head, where rows do not meet. */
enum { GDN_CU_ROW_BLOCKS = 4 };
enum { GDN_CU_WRITES = 1, GDN_CU_FORGETS = 2 };

/*
 * gdn_prefill_backward of the family: backward/channels/channels.cu. Rows of q, k, a, e, u, z, dq
 * and dk in memory are float32, ld numbers or V; a row of k, e, u, z and dk is an update. States in
 * memory, S before a piece and J after it: [piece][H][ld / 4][V][4].
 */
struct gdn_cu_backward_channels {
    struct gdn_cu_backward base; /* rule.q, rule.k, u, z, head_dq, head_dk: rows in memory; S, J,
                                    starts, carry: states in memory */
    struct gdn_rows a, e;        /* decays and b * k; in the end dg of their logarithms, and db */
    struct gdn_rows dwrite;
    int64_t dk_update, dv_update, dbeta_update, dwrite_update; /* bytes */
    int64_t dg_channel, dbeta_channel;
    int32_t *flags;            /* [update][H] */
    int32_t ld;                /* K, rounded up to a multiple of 4 */
    int32_t tokens, n_updates; /* of a piece; of a token */
    int32_t pad;
};
GDN_CU_SIZE(gdn_cu_backward_channels, 2816 + 3 * 40 + 6 * 8 + 8 + 4 * 4);

#endif
