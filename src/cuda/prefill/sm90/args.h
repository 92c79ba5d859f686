/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_prefill and gdn_summary on Hopper: the arguments that host code passes to their kernels. */
#ifndef GDN_CUDA_PREFILL_HOPPER_H
#define GDN_CUDA_PREFILL_HOPPER_H

#include "cuda/prefill/args.h"

/* For join.cuh: columns of a head's state that a block has, and its shared memory. */
enum { GDN_JOIN_COLUMNS = 32, GDN_JOIN_BYTES = 49152 };

/* The sequences of a launch of first segments: all of them, long ones, or the others. */
enum { GDN_SEQUENCES_ALL, GDN_SEQUENCES_LONG, GDN_SEQUENCES_SHORT };

/* The map from state head h to a head of a tensor of n heads. If n is 0 here, it is h / (H / n);
 * else h % n. inverse: of H / n, or of n (gdn_cuda_inverse()). */
struct gdn_cu_source {
    uint32_t inverse;
    int32_t n;
};

/* The plan of a packed batch, made from its lengths (choose_cut.cuh). whole, first, each: as in
 * struct gdn_cu_segments. Sequences of more than `split` tokens have clusters. units: twice the
 * number of later segments, plus 1 if these have wide blocks, plus 2; it is 0 until the plan is
 * written. */
struct gdn_cu_plan {
    int64_t whole, first, each, split;
    uint64_t units;
};

/* The arguments of the kernels. Maps have columns, heads, tokens and rows of the batch; a tile is
 * 64 columns of 64 tokens. */
struct gdn_cu_prefill_sm90 {
    struct gdn_cu_map q, k, v, out;
    struct gdn_cu_rule rule;
    struct gdn_cu_segments cut;
    int32_t by_number;  /* as in struct gdn_cu_prefill */
    int32_t early_stop; /* of summaries: early_stop.cuh */
    struct gdn_cu_source source_q, source_k, source_v;
    struct gdn_pool_view M;   /* of gdn_summary; U is rule.to */
    int32_t summary;          /* the call is gdn_summary: ranges.cuh */
    int32_t back;             /* the call is a walk back for gradients: M of units alone,
                                 transposed */
    int64_t split;            /* sequences of more tokens are long ones */
    struct gdn_cu_plan *plan; /* how sequences of more than cut.whole tokens are cut; NULL: as `cut`
                                 says */
    int16_t which;            /* GDN_SEQUENCES_... */
    int16_t singles;          /* decode takes sequences of one token */
    int16_t win, sm_count;    /* inputs of the plan */
    int32_t each;             /* sequences of one chunk in a block (each.cu) */
    int32_t pad[7];
};
GDN_CU_SIZE(gdn_cu_prefill_sm90, 4 * 128 + sizeof(struct gdn_cu_rule) + 88 + 32 + 80 + 64);
GDN_CU_SIZE(gdn_cu_source, 8);

#endif
