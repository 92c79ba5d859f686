/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernel arguments that areas share; those of one area are in its own args.h. C and CUDA read
 * both, and check the sizes.
 */
#ifndef GDN_CUDA_ARGS_H
#define GDN_CUDA_ARGS_H

#include "core/formulas.h"
#include "core/views.h"
#include "gdn.h"

#ifdef __cplusplus
#define GDN_CU_SIZE(type, bytes) static_assert(sizeof(struct type) == (bytes), #type)
#else
#define GDN_CU_SIZE(type, bytes) _Static_assert(sizeof(struct type) == (bytes), #type)
#endif

/* A vector or a small matrix in device memory; data NULL: absent. Strides in elements. */
struct gdn_cu_array {
    const void *data;
    int64_t stride[2];
    int32_t dtype, n_columns;
};
GDN_CU_SIZE(gdn_cu_array, 32);

/* gdn_batch as kernels read it, by batch.cuh. The host has not checked the contents. */
struct gdn_cu_batch {
    struct gdn_cu_array cu_seqlens, read_slots, write_slots, has_initial_state, num_accepted_tokens,
        token_start, token_count, parents, path, checkpoint_starts, checkpoint_positions,
        checkpoint_slots;
    int64_t B, T, N; /* T: tokens of a padded row; N: tokens of the tensors */
    int64_t read_pool, write_pool, checkpoint_pool;     /* slots of the pools; -1: no such pool */
    int64_t checkpoint_every, sink_slot, n_checkpoints; /* n_checkpoints: slots for checkpoints */
    int64_t first_slot;                                 /* a smaller number in an array of slots
                                                           names none */
    int32_t pad_policy, write;
    int32_t padded, pad; /* padded: the batch is [B][T] */
};
GDN_CU_SIZE(gdn_cu_batch, 12 * 32 + 10 * 8 + 16);

/* x[i] *= factor, n times 16 bytes. */
struct gdn_cu_yardstick {
#ifdef __CUDACC__
    float4 *x;
#else
    void *x;
#endif
    int64_t n;
    float factor;
    int32_t pad;
};
GDN_CU_SIZE(gdn_cu_yardstick, 24);

/* ---- Tensors as lines: rows of the last dimension, for ops that take each by itself ---- */

enum { GDN_CU_LEADS = GDN_MAX_DIMS - 1 };

/* The leading dimensions that an op's tensors share: all but the last, merged where strides allow.
 * There is at least one, and the last one is the fastest. Their product is the number of lines. */
struct gdn_cu_leads {
    int64_t size[GDN_CU_LEADS];
    int32_t n, pad;
};
GDN_CU_SIZE(gdn_cu_leads, 48);

struct gdn_cu_lines {
    char *data;                 /* NULL: absent */
    int64_t step[GDN_CU_LEADS]; /* bytes */
    int32_t dtype;
    int32_t access;  /* bytes that may move at once: 16 or 8, which are whole quads of elements; 0:
                        single elements */
    int64_t element; /* step from one element to the next, in elements; other than 1 only in
                        gdn_gates and its gradients */
};
GDN_CU_SIZE(gdn_cu_lines, 64);

/* ---- The rule, and maps of tensors --------------------------------------------------------- */

/* The arguments of the rule: of gdn_prefill, gdn_decode and the ops of records. */
struct gdn_cu_rule {
    struct gdn_cu_batch batch;
    struct gdn_rows q, k, v, g, beta, out;
    struct gdn_pool_view from, to, checkpoints;
    struct gdn_cu_array A_log, dt_bias;                  /* for raw gates */
    struct gdn_record_rows record_k, record_u, record_g; /* data NULL: no record */
    struct gdn_cu_array record_count;
    int64_t record_rows;
    int32_t Hq, Hk, Hv, H, K, V;
    int32_t head_map, gate, beta_kind, norm;
    float norm_eps, scale, bound;
    int32_t exact;
    struct gdn_family family; /* device/family.cuh; all zero for Gated DeltaNet */
};
GDN_CU_SIZE(gdn_cu_rule, 480 + 6 * 40 + 3 * 80 + 2 * 32 + 3 * 40 + 32 + 8 + 14 * 4 + 96);

#ifdef __cplusplus
#define GDN_CU_ALIGNED(bytes) alignas(bytes)
#else
#define GDN_CU_ALIGNED(bytes) _Alignas(bytes)
#endif

/* CUtensorMap */
struct gdn_cu_map {
    GDN_CU_ALIGNED(64) uint64_t words[16];
};
GDN_CU_SIZE(gdn_cu_map, 128);

#endif
