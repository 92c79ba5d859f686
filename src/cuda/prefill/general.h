/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_prefill in chunks: what its host part and its kernels agree on. */
#ifndef GDN_CUDA_PREFILL_H
#define GDN_CUDA_PREFILL_H

#include "cuda/driver/args.h"

struct gdn_cu_prefill {
    struct gdn_cu_rule rule;
    int32_t q_wide, k_wide, v_wide, out_wide; /* bytes of a row that move at once: 2, 4, 8, 16 */
    int32_t n_slices;       /* of a head's value columns, 16 n_state of them each */
    int32_t n_state, n_aux; /* warps: with 16 columns of the state each; 4 or 8 for the rest */
    int32_t n_stages;       /* chunks of K, Q and V in shared memory: n_slots, or one more */
    int32_t n_slots;        /* chunks of T, P and gates there */
    int32_t by_number;      /* GDN_PREFILL_...: pools that have no slots but a state for each
                                sequence, or each checkpoint, in order */
};
GDN_CU_SIZE(gdn_cu_prefill, sizeof(struct gdn_cu_rule) + 40);

enum { GDN_PREFILL_FROM = 1, GDN_PREFILL_TO = 2, GDN_PREFILL_CHECKPOINTS = 4 };

/* States of 8 bits, or without a stride of 1: the chunks work on these pools, by number, in place
 * of the rule's. data NULL: the rule's own is taken. */
enum { GDN_PREFILL_EIGHT_COLUMNS = 32 };
struct gdn_cu_prefill_q8 {
    struct gdn_cu_rule rule;
    struct gdn_pool_view from, to, checkpoints;
    int64_t n_parts; /* of a head's columns */
};
GDN_CU_SIZE(gdn_cu_prefill_q8, sizeof(struct gdn_cu_rule) + 3 * 80 + 8);

/* Tokens of a chunk, of elements of so many bytes and keys in a tile of so many columns. Float32
 * keeps the chunk of the CPU, and its error bounds; 256 columns leave registers for 32. */
#define GDN_PREFILL_CHUNK(bytes, deep) ((bytes) == 4 ? 16 : (deep) > 128 ? 32 : 64)
/* Bytes from one row of a tile to the next (mma.cuh). */
#define GDN_PREFILL_ROW(columns, bytes) (((columns) + 8) * (bytes))
/* Floats from one row of the matrix that is inverted to the next, and of the inverses of its
 * diagonal blocks: rows that are read at once meet in no bank. */
#define GDN_PREFILL_LD(chunk) ((chunk) + 4)
#define GDN_PREFILL_LD_DIAGONAL 20

/* Shared memory, in this order: the sequence, the inversion, slots, stages. */
#define GDN_PREFILL_HEAD_BYTES 384
#define GDN_PREFILL_SOLVE_BYTES(chunk) \
    ((chunk) * (GDN_PREFILL_LD(chunk) + GDN_PREFILL_LD_DIAGONAL) * 4)
#define GDN_PREFILL_VECTORS_BYTES(chunk) ((chunk)*28 + 64)
#define GDN_PREFILL_SLOT_BYTES(chunk, bytes) \
    (2 * (chunk)*GDN_PREFILL_ROW(chunk, bytes) + GDN_PREFILL_VECTORS_BYTES(chunk))
#define GDN_PREFILL_STAGE_BYTES(chunk, bytes, deep, n_state) \
    ((chunk) * (2 * GDN_PREFILL_ROW(deep, bytes) + GDN_PREFILL_ROW(16 * (n_state), bytes)))

#endif
