/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernel arguments, one struct per family, shared by C and CUDA. Both compilers check the sizes.
 */
#ifndef GDN_CUDA_ARGS_H
#define GDN_CUDA_ARGS_H

#include "gdn.h"
#include "views.h"

/* A vector or a small matrix in device memory; data NULL: absent. Strides in elements. */
struct gdn_cu_array {
    const void *data;
    int64_t     stride[2];
    int32_t     dtype, n_columns;
};

/* gdn_batch as kernels read it, by batch.cuh: nobody has looked at the contents before. */
struct gdn_cu_batch {
    struct gdn_cu_array cu_seqlens, read_slots, write_slots, has_initial_state,
        num_accepted_tokens, token_start, token_count, parents, path, checkpoint_starts,
        checkpoint_positions, checkpoint_slots;
    int64_t B, T, N; /* T: tokens of a padded row; N: tokens of the tensors */
    int64_t read_pool, write_pool, checkpoint_pool; /* slots; -1: no such pool */
    int64_t checkpoint_every, sink_slot, n_checkpoints; /* n_: as many as there are slots for */
    int32_t pad_policy, write;
    int32_t padded, single; /* [B][T]; or N sequences of one token */
};

/* x[i] *= factor, n times 16 bytes. */
struct gdn_cu_yardstick {
#ifdef __CUDACC__
    float4 *x;
#else
    void *x;
#endif
    int64_t n;
    float   factor;
    int32_t pad;
};

/* gdn_l2norm, gdn_rmsnorm_gated: z and weight may be absent. */
struct gdn_cu_norm {
    gdn_tensor x, z, weight, out;
    int64_t    n_rows, D;
    int32_t    formula; /* gdn_norm; GDN_NORM_NONE: root mean square */
    int32_t    sigmoid;
    float      eps;
    int32_t    pad;
};

/* The rule: gdn_prefill and gdn_decode, the record ops too. */
struct gdn_cu_rule {
    struct gdn_cu_batch    batch;
    struct gdn_rows        q, k, v, g, beta, out;
    struct gdn_pool_view   from, to, checkpoints;
    struct gdn_cu_array    A_log, dt_bias; /* for raw gates */
    struct gdn_record_rows record_k, record_u, record_g; /* data NULL: no record */
    struct gdn_cu_array    record_count;
    int64_t                record_rows;
    int32_t                Hq, Hk, Hv, H, K, V;
    int32_t                head_map, gate, beta_kind, norm;
    float                  norm_eps, scale, bound;
    int32_t                exact;
};

/* gdn_decode, and gdn_prefill with GDN_EXACT. */
struct gdn_cu_decode {
    struct gdn_cu_rule rule;
    int32_t            n_parts;  /* blocks of a state */
    int32_t            rounding; /* the dtype of the state after each token; GDN_F32: as it is */
    int32_t            simple;   /* nothing in the batch but cu_seqlens and slots */
    int32_t            pad;
};

/* Which pools and rows can be read and written in whole, aligned chunks. */
enum {
    GDN_CU_WIDE_FROM        = 1,
    GDN_CU_WIDE_TO          = 2,
    GDN_CU_WIDE_CHECKPOINTS = 4,
    GDN_CU_WIDE_ROWS        = 8, /* of q and k */
    GDN_CU_WIDE_ALL         = 15
};

enum { GDN_CU_TREE_ON_CHIP = 64 }; /* tokens of a tree whose order needs no memory */

/* gdn_decode with a tree, a record or states of 8 bits; gdn_record_fold. */
struct gdn_cu_walk {
    struct gdn_cu_decode decode;
    char                *memory;      /* of a tree: block_bytes for each block of the grid */
    int64_t              block_bytes;
    int64_t              n_pieces;    /* of work: parts of all states of all sequences */
    int64_t              most_tokens; /* of a tree */
    int32_t              wide;        /* GDN_CU_WIDE_... */
    int32_t              fold;        /* there are no tokens: the record goes into the state */
    int32_t              n_levels;    /* of a tree: states that have a place in memory */
    int32_t              pad;
};

/* gdn_record_commit; gdn_record_fold, of which n_accepted is absent. */
struct gdn_cu_record {
    struct gdn_cu_batch    batch;
    struct gdn_record_rows k, u, g;
    struct gdn_cu_array    count, n_accepted, path;
    int64_t                n_rows;
    int32_t                Hk, H, K, V;
};

#ifdef __cplusplus
#define GDN_CU_SIZE(type, bytes) static_assert(sizeof(struct type) == (bytes), #type)
#else
#define GDN_CU_SIZE(type, bytes) _Static_assert(sizeof(struct type) == (bytes), #type)
#endif
GDN_CU_SIZE(gdn_cu_array, 32);
GDN_CU_SIZE(gdn_cu_batch, 12 * 32 + 9 * 8 + 16);
GDN_CU_SIZE(gdn_cu_rule, 472 + 6 * 40 + 3 * 80 + 2 * 32 + 3 * 40 + 32 + 8 + 14 * 4);
GDN_CU_SIZE(gdn_cu_yardstick, 24);
GDN_CU_SIZE(gdn_cu_decode, 1232 + 4 * 4);
GDN_CU_SIZE(gdn_cu_walk, 1248 + 4 * 8 + 4 * 4);
GDN_CU_SIZE(gdn_cu_record, 472 + 3 * 40 + 3 * 32 + 8 + 4 * 4);
GDN_CU_SIZE(gdn_cu_norm, 4 * 112 + 32);

#endif
