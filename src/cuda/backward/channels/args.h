/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of the kernels of gradients of the family. */
#ifndef GDN_CUDA_BACKWARD_CHANNELS_ARGS_H
#define GDN_CUDA_BACKWARD_CHANNELS_ARGS_H

#include "cuda/backward/args.h"

/* GDN_CU_PIECE: the most updates of a piece; a chunk has whole pieces. GDN_CU_CHANNELS_STRIP:
 * columns of a strip. The next ones are flags of an update: it writes; a channel forgets before
 * it. */
enum { GDN_CU_PIECE = 16, GDN_CU_CHANNELS_STRIP = 32 };
/* Blocks that share the rows of a chunk and a head, in kernels that treat each row alone. */
enum { GDN_CU_ROW_BLOCKS = 4 };
enum { GDN_CU_WRITES = 1, GDN_CU_FORGETS = 2 };

/* The arguments of gdn_prefill_backward of the family: backward/channels/channels.cu. Rows of q, k,
 * a, e, u, z, dq and dk in memory are float32, of ld numbers or V. A row of k, e, u, z or dk is an
 * update. States in memory are S before a piece and J after it: [piece][H][ld / 4][V][4]. */
struct gdn_cu_backward_channels {
    struct gdn_cu_backward base; /* rule.q, rule.k, u, z, head_dq, head_dk: rows in memory; S, J,
                                    starts, carry: states in memory */
    struct gdn_rows a, e;        /* decays, and b * k; at the end dg of log decays, and db */
    struct gdn_rows dwrite;
    int64_t dk_update, dv_update, dbeta_update, dwrite_update; /* bytes from one update to the
                                                                  next */
    int64_t dg_channel, dbeta_channel;
    int32_t *flags;            /* [update][H] */
    int32_t ld;                /* K, rounded up to a multiple of 4 */
    int32_t tokens, n_updates; /* tokens of a piece; updates of a token */
    int32_t pad;
};
GDN_CU_SIZE(gdn_cu_backward_channels, 3328 + 3 * 40 + 6 * 8 + 8 + 4 * 4);

#endif
