/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of the stages, of summaries and of segments; general.h and sm90/args.h have those
 * of gdn_prefill. */
#ifndef GDN_CUDA_PREFILL_ARGS_H
#define GDN_CUDA_PREFILL_ARGS_H

#include "cuda/driver/args.h"
#include "cuda/driver/shared_bytes.h"

/* The arguments of the stages of the chunked form and of gdn_summary. A kernel reads the fields
 * that its stage has. rule: q, k, v, g, beta, out (of cumsum and output), the initial state and the
 * final one (U of a summary). */
struct gdn_cu_stage {
    struct gdn_cu_rule rule;
    struct gdn_rows u, w, T;     /* data NULL: not wanted */
    struct gdn_pool_view states; /* states of chunks, n_states of them */
    int64_t n_states;            /* states that the tensor has room for */
    struct gdn_pool_view M;      /* of a summary: K columns */
    int64_t C;
    int64_t n_chunks;           /* the most chunks. With cu_seqlens some more, for tokens that
                                   belong to no sequence */
    int32_t n_strips, n_before; /* n_strips: strips of columns; n_before: strips of U, which come
                                   before those of M */
};
GDN_CU_SIZE(gdn_cu_stage, 1336 + 3 * 40 + 2 * 80 + 3 * 8 + 2 * 4);

/* The arguments of S = M S + U, over ranges in their order, for every slot and head. data of S or U
 * NULL: zeros. */
struct gdn_cu_product {
    struct gdn_pool_view M, S, U, out;
    struct gdn_cu_array order;         /* [slot][n]; data NULL: slot, slot + B, slot + 2 B, ... */
    int64_t P, B;                      /* P: ranges, others in `order` are left out; B: slots */
    int32_t H, K, V, n_strips, n, pad; /* n: ranges of a slot */
};
GDN_CU_SIZE(gdn_cu_product, 4 * 80 + 32 + 16 + 6 * 4);

/* GDN_SEGMENT_COLUMNS: columns of a head's state of a block of combine.cuh. GDN_SEGMENT_IDLE,
 * GDN_SEGMENT_FORGETS: a segment's M is the identity, or zero. */
enum { GDN_SEGMENT_COLUMNS = 8 };
enum { GDN_SEGMENT_IDLE = 1, GDN_SEGMENT_FORGETS = 2 };

/* Segments of sequences of more than `whole` tokens (segments.cuh). first, each: the tokens of the
 * first segment and of later ones, multiples of 64. The token where unit 1 begins is `first`; in
 * gdn_summary and in gradients it is 0, because there the first segment of a longer sequence is a
 * unit too. */
struct gdn_cu_segments {
    int64_t whole, first, each, start;
    float *states, *M; /* [units][H][V][K], [units][H][K][K]; states NULL: there are no units */
    uint32_t *marks;   /* [units][H][2]: GDN_SEGMENT_... of even chunks and of odd ones */
    int32_t later;     /* the launch has the segments after the first */
    int32_t units;     /* units that memory has room for; cu_seqlens may give fewer */
    float *left;       /* [H][n_left]: for an early stop (left.cuh) */
    int64_t n_left;
    int32_t *stops; /* [B][H]: chunks from the first on that count in a walk back; NULL: all
                       count */
};
GDN_CU_SIZE(gdn_cu_segments, 88);

/* A record of channels/chunks.cuh: K~, Q~ and K^, rows of `deep` elements of 16 bits; T and P, rows
 * of 64; then factors (struct channels_factors). If the call has write gates, w v follows, rows of
 * V. */
#define GDN_CHANNELS_FACTORS(deep) (3 * 64 * (deep)*2 + 2 * 64 * 64 * 2)
#define GDN_CHANNELS_FACTORS_BYTES(deep) ((deep)*4 + 64 * 4 + 16)
#define GDN_CHANNELS_WRITTEN(deep) (GDN_CHANNELS_FACTORS(deep) + GDN_CHANNELS_FACTORS_BYTES(deep))

#endif
