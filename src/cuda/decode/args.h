/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of the kernels that go token by token, and of those of records. */
#ifndef GDN_CUDA_DECODE_ARGS_H
#define GDN_CUDA_DECODE_ARGS_H

#include "cuda/driver/args.h"

/* gdn_decode, and gdn_prefill with GDN_EXACT. */
struct gdn_cu_decode {
    struct gdn_cu_rule rule;
    int32_t n_parts;  /* blocks of a state */
    int32_t rounding; /* the dtype of the state after each token; GDN_F32: as it is */
    int32_t simple;   /* nothing in the batch but cu_seqlens and slots */
    int32_t wide;     /* GDN_CU_WIDE_... */
};
GDN_CU_SIZE(gdn_cu_decode, 1336 + 4 * 4);

/* The pools and rows that can be read and written in whole, aligned chunks. */
enum {
    GDN_CU_WIDE_FROM = 1,
    GDN_CU_WIDE_TO = 2,
    GDN_CU_WIDE_CHECKPOINTS = 4,
    GDN_CU_WIDE_ROWS = 8, /* of q and k */
    GDN_CU_WIDE_ALL = 15
};

enum { GDN_CU_TREE_ON_CHIP = 64 }; /* tokens of a tree whose order needs no memory */

/* gdn_rows and gdn_pool_view with steps of 32 bits, in bytes, which cost a kernel an instruction
 * each. row: from one sequence to the next. */
struct gdn_cu_near {
    char *data;
    int32_t dtype, row, token, head;
};
struct gdn_cu_pool {
    char *data;
    int32_t slot, head, row, pad;
};
GDN_CU_SIZE(gdn_cu_near, 24);
GDN_CU_SIZE(gdn_cu_pool, 24);

/* gdn_decode of what engines decode: decode/warp.cuh. */
struct gdn_cu_warp {
    struct gdn_cu_near q, k, v, g, beta, out;
    struct gdn_cu_pool from, to;
    struct gdn_cu_array cu_seqlens, read_slots, write_slots, has_initial_state, num_accepted_tokens,
        A_log, dt_bias;
    int64_t first_slot;
    int32_t read_pool, write_pool; /* slots; a pool that is not there has any */
    int32_t N, B, T, K, V;
    int32_t each, keep, rounds; /* keep: outputs of padding; rounds: every token */
    int32_t plain;              /* sequence i is row i of the tensors and slot i */
    int32_t whole;              /* no GDN_EXACT, and whole tiles of 16-byte pieces */
    int32_t products;           /* whole, and q, k, v of bf16: tensor cores may be used */
    int32_t n_rows;             /* sequences, and one for what is behind the last */
    int32_t n_blocks;           /* of a head, and the inverse of that */
    uint32_t head_blocks;
    uint32_t group_q, group_k, group_v; /* 2^32 / heads of a group, rounded up; 0: 1 */
    int32_t gate, beta_kind, norm;
    float norm_eps, scale, bound;
};
GDN_CU_SIZE(gdn_cu_warp, 6 * 24 + 2 * 24 + 7 * 32 + 8 + 25 * 4 + 4);

/* A tensor by sequence (or slot) and head, steps in bytes. */
struct gdn_cu_at {
    char *data;
    int32_t row, head;
};
GDN_CU_SIZE(gdn_cu_at, 16);

/* gdn_decode of one token for each sequence: decode/token.cuh. */
struct gdn_cu_token {
    struct gdn_cu_at from, to, k, q, v, g, beta, A_log, dt_bias, out; /* to, out: data NULL: no */
    int32_t from_row, to_row;                                         /* of a state, in bytes */
    uint32_t group_k, group_q, group_v; /* 2^22 / heads of a group, rounded up */
    int32_t g_bytes, beta_bytes, A_log_bytes, dt_bias_bytes; /* 4 or 2; 0: absent */
    int32_t gate, beta_kind, norm; /* of absent gates: those that make 1 of 0 */
    float norm_eps, scale, bound;
    const int32_t *read_slots, *write_slots; /* NULL: as row; as read_slots */
    int32_t read_step, write_step, read_pool, write_pool;
    int32_t first_slot;
    int32_t keep; /* outputs of padding */
};
GDN_CU_SIZE(gdn_cu_token, 10 * 16 + 15 * 4 + 4 + 2 * 8 + 6 * 4);

/* The same for as many tokens as sequences by cu_seqlens, or with has_initial_state. `head` holds
 * the bytes of an entry of either; data NULL: absent. */
struct gdn_cu_token_packed {
    struct gdn_cu_token one;
    struct gdn_cu_at cu_seqlens, initial;
    int32_t initial_bytes; /* 4 or 1 */
    int32_t n;             /* sequences; block row n has what is behind the last one */
};
GDN_CU_SIZE(gdn_cu_token_packed, 264 + 2 * 16 + 2 * 4);

/* The same for those of n packed sequences that have one token: decode/token_single.cuh. */
struct gdn_cu_token_single {
    struct gdn_cu_token one;
    struct gdn_cu_at cu_seqlens, initial;
    int32_t initial_bytes, n;
    int32_t n_tokens, pad; /* n_tokens: of all */
};
GDN_CU_SIZE(gdn_cu_token_single, 264 + 2 * 16 + 4 * 4);

/* The same for states of 8 bits: decode/token_eight.cuh. */
struct gdn_cu_token_eight {
    struct gdn_cu_token one;
    struct gdn_cu_at from_scales, to_scales;
    uint64_t seed;
    int32_t random, pad; /* random: GDN_ROUND_STOCHASTIC from this seed */
};
GDN_CU_SIZE(gdn_cu_token_eight, 264 + 2 * 16 + 8 + 2 * 4);

/* The same for up to four tokens of each sequence, without initial states: decode/window_k128.cuh.
 * ..._token: step from one token to the next, in bytes; for slots in elements. each: the state
 * after every token is kept, in its slot of write_slots. */
struct gdn_cu_window_k128 {
    struct gdn_cu_token one;
    int32_t k_token, q_token, v_token, g_token, beta_token, out_token;
    int32_t T, each;
    int32_t write_token, n_writes; /* n_: so many tokens have a slot */
    const int32_t *accepted;       /* NULL: none */
    int32_t accepted_step, read_token, n_reads;
    int32_t pad;
};
GDN_CU_SIZE(gdn_cu_window_k128, 264 + 10 * 4 + 8 + 4 * 4);

/* gdn_decode with a tree, a record or states of 8 bits; gdn_record_fold. */
struct gdn_cu_walk {
    struct gdn_cu_decode decode;
    char *memory; /* of a tree: block_bytes for each block of the grid */
    int64_t block_bytes;
    int64_t n_pieces;    /* of work: parts of all states of all sequences */
    int64_t most_tokens; /* of a tree */
    int32_t fold;        /* there are no tokens: the record goes into the state */
    int32_t n_levels;    /* of a tree: states that have a place in memory */
};
GDN_CU_SIZE(gdn_cu_walk, 1352 + 4 * 8 + 2 * 4);

/* gdn_record_commit; gdn_record_fold, of which n_accepted is absent. */
struct gdn_cu_record {
    struct gdn_cu_batch batch;
    struct gdn_record_rows k, u, g;
    struct gdn_cu_array count, n_accepted, path;
    int64_t n_rows;
    int32_t Hk, H, K, V;
};
GDN_CU_SIZE(gdn_cu_record, 480 + 3 * 40 + 3 * 32 + 8 + 4 * 4);

#endif
