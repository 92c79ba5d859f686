/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of the kernels that go token by token, and of those of records. */
#ifndef GDN_CUDA_DECODE_ARGS_H
#define GDN_CUDA_DECODE_ARGS_H

#include "cuda/driver/args.h"

/* The arguments of gdn_decode, and of gdn_prefill with GDN_EXACT. */
struct gdn_cu_decode {
    struct gdn_cu_rule rule;
    int32_t n_parts;  /* blocks of a state */
    int32_t rounding; /* the dtype that the state is rounded to after each token; GDN_F32: it is not
                         rounded */
    int32_t simple;   /* the batch has no arrays of indices but cu_seqlens and slots */
    int32_t wide;     /* GDN_CU_WIDE_... */
};
GDN_CU_SIZE(gdn_cu_decode, 1336 + 4 * 4);

/* Bits of `wide`: the pools and rows that can be read and written in whole, aligned chunks. */
enum {
    GDN_CU_WIDE_FROM = 1,
    GDN_CU_WIDE_TO = 2,
    GDN_CU_WIDE_CHECKPOINTS = 4,
    GDN_CU_WIDE_ROWS = 8 /* of q and k */
};

enum { GDN_CU_TREE_ON_CHIP = 64 }; /* the most tokens of a tree whose order is kept on the chip */

/* struct gdn_rows and struct gdn_pool_view with steps of 32 bits, in bytes. Such a step costs a
 * kernel one instruction. row: the step from one sequence to the next. */
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

/* The arguments of gdn_decode as engines call it: decode/warp.cuh. */
struct gdn_cu_warp {
    struct gdn_cu_near q, k, v, g, beta, out;
    struct gdn_cu_pool from, to;
    struct gdn_cu_array cu_seqlens, read_slots, write_slots, has_initial_state, num_accepted_tokens,
        A_log, dt_bias;
    int64_t first_slot;
    int32_t read_pool, write_pool; /* slots of the pools; without the pool, any number */
    int32_t N, B, T, K, V;
    int32_t each, keep, rounds; /* keep: outputs of padding stay as they are; rounds: the state is
                                   rounded after every token */
    int32_t plain;              /* sequence i is row i of the tensors and slot i */
    int32_t whole;              /* GDN_EXACT is not set, and states are whole tiles of 16-byte
                                   pieces */
    int32_t products;           /* `whole`, and q, k and v are bf16: tensor cores may be used */
    int32_t n_rows;             /* sequences, and one more row for tokens behind the last */
    int32_t n_blocks;           /* blocks of a head; head_blocks: the inverse of n_blocks */
    uint32_t head_blocks;
    uint32_t group_q, group_k, group_v; /* 2^32 / heads of a group, rounded up; 0: a group of one */
    int32_t gate, beta_kind, norm;
    float norm_eps, scale, bound;
};
GDN_CU_SIZE(gdn_cu_warp, 6 * 24 + 2 * 24 + 7 * 32 + 8 + 25 * 4 + 4);

/* A tensor by sequence (or slot) and by head, steps in bytes. */
struct gdn_cu_at {
    char *data;
    int32_t row, head;
};
GDN_CU_SIZE(gdn_cu_at, 16);

/* Rows of v of a block of channels/token.cuh. */
enum { GDN_CU_CHANNELS_ROWS = 16 };

/* The arguments of gdn_decode of one token for each sequence: decode/token.cuh. */
struct gdn_cu_token {
    struct gdn_cu_at from, to, k, q, v, g, beta, A_log, dt_bias, out; /* data of to or out NULL:
                                                                         there is none */
    int32_t from_row, to_row;                                         /* steps from a row of a state
                                                                         to the next, in bytes */
    uint32_t group_k, group_q, group_v; /* 2^22 / heads of a group, rounded up */
    int32_t g_bytes, beta_bytes, A_log_bytes, dt_bias_bytes; /* bytes of an element, 4 or 2; 0:
                                                                absent */
    int32_t gate, beta_kind, norm; /* of absent gates: the kinds that make 1 of 0 */
    float norm_eps, scale, bound;
    const int32_t *read_slots, *write_slots; /* NULL: the slot is the number of the sequence;
                                                write_slots NULL: the slots are read_slots */
    int32_t read_step, write_step, read_pool, write_pool;
    int32_t first_slot;
    int32_t keep; /* outputs of padding stay as they are */
};
GDN_CU_SIZE(gdn_cu_token, 10 * 16 + 15 * 4 + 4 + 2 * 8 + 6 * 4);

/* The arguments of as many tokens as sequences by cu_seqlens, or with has_initial_state:
 * decode/token_packed.cuh. `head` is the bytes of an element of either; data NULL: absent. */
struct gdn_cu_token_packed {
    struct gdn_cu_token one;
    struct gdn_cu_at cu_seqlens, initial;
    int32_t initial_bytes; /* bytes of an element, 4 or 1 */
    int32_t n;             /* sequences; row n of blocks has the tokens behind the last one */
};
GDN_CU_SIZE(gdn_cu_token_packed, 264 + 2 * 16 + 2 * 4);

/* The arguments for those of n packed sequences that have one token (decode/token_single.cuh). */
struct gdn_cu_token_single {
    struct gdn_cu_token one;
    struct gdn_cu_at cu_seqlens, initial;
    int32_t initial_bytes, n;
    int32_t n_tokens, pad; /* n_tokens: of all sequences */
};
GDN_CU_SIZE(gdn_cu_token_single, 264 + 2 * 16 + 4 * 4);

/* The arguments of one token for each sequence on states of 8 bits: decode/token_eight.cuh. */
struct gdn_cu_token_eight {
    struct gdn_cu_token one;
    struct gdn_cu_at from_scales, to_scales;
    uint64_t seed;
    int32_t random, pad; /* random: GDN_ROUND_STOCHASTIC, from `seed` */
};
GDN_CU_SIZE(gdn_cu_token_eight, 264 + 2 * 16 + 8 + 2 * 4);

/* The arguments of up to four tokens of each sequence, without initial states:
 * decode/window_k128.cuh. ..._token: the step from one token to the next, in bytes; of slots, in
 * elements. each: the state after every token is kept, in the token's slot of write_slots. */
struct gdn_cu_window_k128 {
    struct gdn_cu_token one;
    int32_t k_token, q_token, v_token, g_token, beta_token, out_token;
    int32_t T, each;
    int32_t write_token, n_writes; /* n_writes: the number of tokens that have a slot */
    const int32_t *accepted;       /* NULL: absent */
    int32_t accepted_step, read_token, n_reads;
    int32_t pad;
};
GDN_CU_SIZE(gdn_cu_window_k128, 264 + 10 * 4 + 8 + 4 * 4);

/* One of record_k, record_u and record_g, steps in bytes; bytes: of an element, 4 or 2. */
struct gdn_cu_lazy_rows {
    char *data;
    int32_t slot, row, head, bytes;
};
GDN_CU_SIZE(gdn_cu_lazy_rows, 24);

enum { GDN_CU_LAZY_TOKENS = 8 }; /* the most tokens of a sequence that decode/lazy takes */

/* The arguments of up to eight tokens of each sequence beside a record that accepts them:
 * decode/lazy. The counters stand in the line of the end of `one`, so that few.cuh has them with
 * it. memory: of each sequence and state head `step` floats. ..._token: the step from one token to
 * the next, in bytes; for one token they are not used. */
struct gdn_cu_lazy {
    struct gdn_cu_token one;
    char *count; /* a counter of each slot */
    float *memory;
    int32_t count_step, count_bytes; /* from slot to slot; of a counter, 4 or 8 */
    int32_t n_rows, n_places;        /* R; rows that a token follows, in whole quads */
    struct gdn_cu_lazy_rows k, u, g;
    int32_t n_heads, step;
    int32_t n_pairs, n_sharing, n_k_pairs; /* pairs of a head of k and one of q; state heads of a
                                              pair; pairs of a head of k */
    int32_t ahead;     /* rows are read before the count is known: all, which are at most 16 */
    int32_t n_early;   /* blocks that may begin before the first kernel ends */
    int32_t n_parts;   /* blocks of a state */
    int32_t row_lines; /* lines of 128 bytes of a row of a state */
    int32_t n_tokens;  /* of each sequence */
    int32_t k_token, q_token, v_token, g_token, beta_token, out_token;
};
GDN_CU_SIZE(gdn_cu_lazy, 264 + 3 * 24 + 2 * 8 + 20 * 4);

/* The arguments of gdn_decode with a tree, a record or states of 8 bits, and of gdn_record_fold. */
struct gdn_cu_walk {
    struct gdn_cu_decode decode;
    char *memory; /* of a tree: block_bytes for each block of the grid */
    int64_t block_bytes;
    int64_t n_pieces;    /* pieces of work: all parts of all states of all sequences */
    int64_t most_tokens; /* of a tree */
    int32_t fold;        /* there are no tokens: the record is applied to the state */
    int32_t n_levels;    /* of a tree: states that have a place in memory at a time */
};
GDN_CU_SIZE(gdn_cu_walk, 1352 + 4 * 8 + 2 * 4);

/* The arguments of gdn_record_commit, and of gdn_record_fold, which has no n_accepted. */
struct gdn_cu_record {
    struct gdn_cu_batch batch;
    struct gdn_record_rows k, u, g;
    struct gdn_cu_array count, n_accepted, path;
    int64_t n_rows;
    int32_t Hk, H, K, V;
    int32_t n_gates, pad; /* n_gates: numbers of g of a head */
};
GDN_CU_SIZE(gdn_cu_record, 480 + 3 * 40 + 3 * 32 + 8 + 6 * 4);

#endif
