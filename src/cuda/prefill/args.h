/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of the stages, of summaries and of segments; general.h and sm90/args.h have those
 * of gdn_prefill. */
#ifndef GDN_CUDA_PREFILL_ARGS_H
#define GDN_CUDA_PREFILL_ARGS_H

#include "cuda/driver/args.h"
#include "cuda/driver/shared_bytes.h"

/* The stages of the chunked form, and gdn_summary: one struct for all, of which each reads what it
 * has. rule: q k v g beta, out (of cumsum and output), the state that a sequence starts from and
 * the final one (U of a summary). */
struct gdn_cu_stage {
    struct gdn_cu_rule rule;
    struct gdn_rows u, w, T;     /* data NULL: not wanted */
    struct gdn_pool_view states; /* of chunks; */
    int64_t n_states;            /* so many are there */
    struct gdn_pool_view M;      /* of a summary: K columns */
    int64_t C;
    int64_t n_chunks;           /* at most; with cu_seqlens enough beyond for the tokens that
                                      belong to no sequence */
    int32_t n_strips, n_before; /* of columns; those of U before those of M */
};
GDN_CU_SIZE(gdn_cu_stage, 1336 + 3 * 40 + 2 * 80 + 3 * 8 + 2 * 4);

/* S = M S + U of ranges in their order, for every slot and head; S and U: data NULL for zero. */
struct gdn_cu_product {
    struct gdn_pool_view M, S, U, out;
    struct gdn_cu_array order;         /* [slot][n]; data NULL: slot, slot + B, slot + 2 B, ... */
    int64_t P, B;                      /* ranges; others of the order are left out; slots */
    int32_t H, K, V, n_strips, n, pad; /* n: ranges that a slot passes */
};
GDN_CU_SIZE(gdn_cu_product, 4 * 80 + 32 + 16 + 6 * 4);

/* Columns of a head's state that a block of combine.cuh has; what is known of a segment's M:
 * identity, zero. */
enum { GDN_SEGMENT_COLUMNS = 8 };
enum { GDN_SEGMENT_IDLE = 1, GDN_SEGMENT_FORGETS = 2 };

/* A sequence of more than `whole` tokens as segments (segments.cuh): the tokens of the first, and
 * of those after it, both multiples of 64; and the token where unit 1 begins: `first`, or 0
 * in gdn_summary and in gradients, where the first segment of a longer sequence is a unit too. */
struct gdn_cu_segments {
    int64_t whole, first, each, start;
    float *states, *M; /* [units][H][V][K], [units][H][K][K]; states NULL: there are none */
    uint32_t *marks;   /* [units][H][2]: GDN_SEGMENT_... of chunks that are even and odd */
    int32_t later;     /* those after the first are the launch's */
    int32_t units;     /* memory has room for so many; cu_seqlens may have fewer */
    float *left;       /* [H][n_left]: with an early stop of those (left.cuh) */
    int64_t n_left;
    int32_t *stops; /* [B][H]: so many first chunks count in a walk back; NULL: all do */
};
GDN_CU_SIZE(gdn_cu_segments, 88);

/*
 * A record of channels/chunks.cuh: K~, Q~ and K^, rows of `deep` elements of 16 bits; T and P, rows
 * of 64; then factors (struct channels_factors); and w v, rows of V, if the call has write gates.
 */
#define GDN_CHANNELS_FACTORS(deep) (3 * 64 * (deep)*2 + 2 * 64 * 64 * 2)
#define GDN_CHANNELS_FACTORS_BYTES(deep) ((deep)*4 + 64 * 4 + 16)
#define GDN_CHANNELS_WRITTEN(deep) (GDN_CHANNELS_FACTORS(deep) + GDN_CHANNELS_FACTORS_BYTES(deep))

#endif
