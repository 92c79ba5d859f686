/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_prefill in chunks: what the host code and the kernels share. */
#ifndef GDN_CUDA_PREFILL_H
#define GDN_CUDA_PREFILL_H

#include "cuda/driver/args.h"

struct gdn_cu_prefill {
    struct gdn_cu_rule rule;
    int32_t q_wide, k_wide, v_wide, out_wide; /* bytes of a row that move at once: 2, 4, 8 or 16 */
    int32_t n_slices;       /* slices of a head's value columns, 16 n_state of them each */
    int32_t n_state, n_aux; /* n_state: warps with 16 columns of the state each; n_aux: 4 or 8 warps
                               for the rest */
    int32_t n_stages;       /* chunks of K, Q and V in shared memory: n_slots of them, or one
                               more */
    int32_t n_slots;        /* chunks of T, P and gates in shared memory */
    int32_t by_number;      /* GDN_PREFILL_...: pools without slots, which have the state of each
                               sequence, or each checkpoint, in order */
};
GDN_CU_SIZE(gdn_cu_prefill, sizeof(struct gdn_cu_rule) + 40);

enum { GDN_PREFILL_FROM = 1, GDN_PREFILL_TO = 2, GDN_PREFILL_CHECKPOINTS = 4 };

/* The arguments of q8.cu, for states of 8 bits or without a stride of 1. Chunks work on these
 * pools, by number, in place of the rule's. data NULL: chunks work on the rule's own pool. For
 * chunks that know slots alone, the first kernel fills in the slot of each sequence: its number, or
 * -1 for padding. */
enum { GDN_PREFILL_EIGHT_COLUMNS = 32 };
struct gdn_cu_prefill_q8 {
    struct gdn_cu_rule rule;
    struct gdn_pool_view from, to, checkpoints;
    int64_t n_parts; /* parts of a head's columns */
    int64_t *slots;  /* NULL: chunks take states by number */
};
GDN_CU_SIZE(gdn_cu_prefill_q8, sizeof(struct gdn_cu_rule) + 3 * 80 + 16);

/* The tokens of a chunk, if elements have `bytes` and a tile has `deep` columns of keys. Float32
 * has chunks as short as on a CPU, and the same error bounds. With 256 columns there are registers
 * for 32 tokens. */
#define GDN_PREFILL_CHUNK(bytes, deep) ((bytes) == 4 ? 16 : (deep) > 128 ? 32 : 64)
/* Bytes from one row of a tile to the next (mma.cuh). */
#define GDN_PREFILL_ROW(columns, bytes) (((columns) + 8) * (bytes))
/* Floats from one row to the next, in the matrix that is inverted and in the inverses of its
 * diagonal blocks. Rows that are read at once are in different banks. */
#define GDN_PREFILL_LD(chunk) ((chunk) + 4)
#define GDN_PREFILL_LD_DIAGONAL 20

/* Shared memory, in this order: the block's sequence, the inversion, slots, stages. */
#define GDN_PREFILL_HEAD_BYTES 384
#define GDN_PREFILL_SOLVE_BYTES(chunk) \
    ((chunk) * (GDN_PREFILL_LD(chunk) + GDN_PREFILL_LD_DIAGONAL) * 4)
#define GDN_PREFILL_VECTORS_BYTES(chunk) ((chunk)*28 + 64)
#define GDN_PREFILL_SLOT_BYTES(chunk, bytes) \
    (2 * (chunk)*GDN_PREFILL_ROW(chunk, bytes) + GDN_PREFILL_VECTORS_BYTES(chunk))
#define GDN_PREFILL_STAGE_BYTES(chunk, bytes, deep, n_state) \
    ((chunk) * (2 * GDN_PREFILL_ROW(deep, bytes) + GDN_PREFILL_ROW(16 * (n_state), bytes)))

#endif
