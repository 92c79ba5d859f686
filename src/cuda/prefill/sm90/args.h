/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_prefill and gdn_summary on Hopper: the arguments that host code passes to their kernels. */
#ifndef GDN_CUDA_PREFILL_HOPPER_H
#define GDN_CUDA_PREFILL_HOPPER_H

#include "cuda/driver/args.h"

/* Columns of a head's state that a block of segments.cu has, and of join.cuh; what is known of a
 * segment's M: identity, zero. */
enum { GDN_SEGMENT_COLUMNS = 8, GDN_JOIN_COLUMNS = 32, GDN_JOIN_BYTES = 49152 };
enum { GDN_SEGMENT_IDLE = 1, GDN_SEGMENT_FORGETS = 2 };

/* The sequences of a launch: all; those of more than `whole` tokens; the others. */
enum { GDN_SEQUENCES_ALL, GDN_SEQUENCES_LONG, GDN_SEQUENCES_SHORT };

/* A sequence of more than `whole` tokens as segments (segments.cuh): the tokens of the first,
 * INT64_MAX: all of them, and of those after it, both multiples of 64; and the token where unit 1
 * begins: `first`, or 0 in gdn_summary, where the first segment of a longer sequence is a unit
 * too. */
struct gdn_cu_segments {
    int64_t   whole, first, each, start;
    float    *states, *M; /* [units][H][V][K], [units][H][K][K]; states NULL: there are none */
    uint32_t *marks;      /* [units][H][2]: GDN_SEGMENT_... of chunks that are even and odd */
    int32_t   later;      /* those after the first are the launch's */
    int32_t   units;      /* there is room for so many, whatever cu_seqlens says */
    int32_t   which;      /* GDN_SEQUENCES_..., of first segments */
    int32_t   most_long;  /* if more sequences than that have more than `whole` tokens, none is cut */
    float    *left;       /* [H][n_left]: of gdn_summary with an early stop (left.cuh) */
    int64_t   n_left;
};

/* The map from state head h to a tensor of n heads: h / (H / n), or, if n is not 0 here, h % n;
 * inverse: of H / n, or of n (gdn_cuda_inverse()). */
struct gdn_cu_source {
    uint32_t inverse;
    int32_t  n;
};

/* Tensors as columns, heads, tokens, rows of the batch; a tile is 64 columns of 64 tokens. */
struct gdn_cu_prefill_hopper {
    struct gdn_cu_map      q, k, v, out;
    struct gdn_cu_rule     rule;
    struct gdn_cu_segments cut;
    int32_t                by_number;  /* as in struct gdn_cu_prefill */
    int32_t                early_stop; /* of summaries: early_stop.cuh */
    struct gdn_cu_source   source_q, source_k, source_v;
    struct gdn_pool_view   M;       /* of gdn_summary; U is rule.to */
    int32_t                summary; /* the call is gdn_summary: ranges.cuh */
    int32_t                pad[7];
};
GDN_CU_SIZE(gdn_cu_prefill_hopper, 4 * 128 + sizeof(struct gdn_cu_rule) + 88 + 32 + 80 + 32);
GDN_CU_SIZE(gdn_cu_segments, 88);
GDN_CU_SIZE(gdn_cu_source, 8);

#endif
