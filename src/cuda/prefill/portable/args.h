/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_prefill by mma.sync, with T once for all columns: what the host code and the kernels
 * share. */
#ifndef GDN_CUDA_PREFILL_PORTABLE_H
#define GDN_CUDA_PREFILL_PORTABLE_H

#include "cuda/prefill/args.h"
#include "cuda/prefill/general.h"

/* Bytes of a chunk and a state head in memory; the most keys of a tile. */
enum {
    GDN_PORTABLE_CHUNK = 64,
    GDN_PORTABLE_SQUARE = 5120, /* of T or P, blocks up to the diagonal */
    GDN_PORTABLE_RECORD = 1824 + 2 * GDN_PORTABLE_SQUARE,
    GDN_PORTABLE_DEEP = 128,
    GDN_PORTABLE_LOAD_WARPS = 4
};

struct gdn_cu_prefill_portable {
    struct gdn_cu_rule rule;
    struct gdn_cu_segments cut; /* of long sequences; units 0: none */
    char *records;              /* [number][H], see first_number() */
    char *keys;                 /* [number][Hk][64][K]: of length one, in f16; else NULL. Rows are
                                   multiples of 16 bytes */
    int32_t q_wide, k_wide, v_wide, out_wide; /* as in struct gdn_cu_prefill; by_number too */
    int32_t by_number;
    int32_t n_groups;               /* blocks of a chunk in kernel `chunks` */
    int32_t n_each;                 /* state heads of such a block, which share k and q */
    int32_t n_state;                /* groups of three warps that have 16 columns each */
    int32_t n_slices, n_map_slices; /* slices of V and of M's columns, 16 n_state of them each */
    int32_t n_stages, n_queries;    /* chunks of K, V and T in shared memory; chunks of Q and P */
    int32_t pad[2];
};
GDN_CU_SIZE(gdn_cu_prefill_portable, sizeof(struct gdn_cu_rule) + 88 + 16 + 14 * 4);

/* The shared memory of `scan`: the block's sequence, the stages, the stages of queries, what warps
 * hand to each other, the tile of the output. */
enum { GDN_PORTABLE_HEAD_BYTES = 512 };
#define GDN_PORTABLE_STAGE_BYTES(deep, n_state)                                                   \
    (64 * (GDN_PREFILL_ROW(deep, 2) + GDN_PREFILL_ROW(16 * (n_state), 2)) + GDN_PORTABLE_SQUARE + \
     GDN_PREFILL_VECTORS_BYTES(64))
#define GDN_PORTABLE_QUERIES_BYTES(deep) \
    (64 * GDN_PREFILL_ROW(deep, 2) + GDN_PORTABLE_SQUARE + GDN_PREFILL_VECTORS_BYTES(64))
#define GDN_PORTABLE_HANDED_BYTES(deep) (16 * 2 * ((deep) + 2 * 64))
#define GDN_PORTABLE_OUTPUT_BYTES(n_state) (64 * GDN_PREFILL_ROW(16 * (n_state), 2))

#endif
