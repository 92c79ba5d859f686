/* SPDX-License-Identifier: Apache-2.0 */
/* Token by token on a device: the functions for other areas. */
#ifndef GDN_CUDA_DECODE_H
#define GDN_CUDA_DECODE_H

#include "calls/rule_call.h"
#include "cuda/decode/args.h"
#include "cuda/driver/launch.h"

/* Fills in the arguments of kernels from a checked call of gdn_prefill or gdn_decode: from its rule
 * and its plan. */
void gdn_cuda_fill_rule(struct gdn_cu_rule *to, const struct gdn_rule *rule,
                        const gdn_tensor *A_log, const gdn_tensor *dt_bias,
                        const struct gdn_plan *plan, const struct gdn_tokens *tokens,
                        const struct gdn_plan_pools *pools);

/* Fills in the arguments of kernels from a checked call. gdn_cuda_check_rule() checks contents, if
 * the context does; gdn_cuda_check_tree() checks that kernels can count the tokens of a tree. */
void gdn_cuda_fill_call(struct gdn_cu_rule *to, const struct gdn_rule_call *call);
/* Checks the contents of a call with a record, if the context does. */
gdn_status gdn_cuda_check_record(gdn_ctx *ctx, const struct gdn_plan *plan,
                                 const struct gdn_tokens *tokens,
                                 const struct gdn_plan_pools *pools,
                                 const struct gdn_record *record, void *stream);
/* Folds the records of the slots that a call reads. Records of slots that the call writes become
 * empty. So do records of its checkpoints' slots, if `has_checkpoints`: checkpoints are in this
 * pool. */
gdn_status gdn_cuda_fold_first(gdn_ctx *ctx, const struct gdn_cu_rule *args, bool has_checkpoints,
                               void *stream);
/* Refuses a record whose channels are too far apart for kernels. NULL: there is no record. */
gdn_status gdn_cuda_check_channels(gdn_ctx *ctx, const struct gdn_record *record);
gdn_status gdn_cuda_check_rule(gdn_ctx *ctx, const struct gdn_rule_call *call);
gdn_status gdn_cuda_check_tree(gdn_ctx *ctx, const gdn_batch *batch,
                               const struct gdn_tokens *tokens);

/* Checks the contents of a fold, if the context does. Fills in its arguments. */
gdn_status gdn_cuda_record_fold_check(gdn_ctx *ctx, const struct gdn_fold_call *call);
void gdn_cuda_record_fold_rule(struct gdn_cu_rule *to, const struct gdn_fold_call *call);

/* These ops without GDN_SPLIT_INVARIANT. */
extern const struct gdn_op_backend gdn_cuda_decode_op;
extern const struct gdn_op_backend gdn_cuda_record_fold_op;

/* A call, and the facts that its form depends on. */
struct gdn_decode_call {
    gdn_ctx *ctx;
    const char *op; /* for lines of the log */
    const struct gdn_cu_rule *rule;
    int n_runs;                       /* the call runs as so many calls of grouped heads, see
                                         gdn_decode_runs() */
    const struct gdn_pool_view *pool; /* a pool that has the dtype and the layout of the states */
    const char *not_near;             /* why no kernel of 32-bit strides takes the call, apart from
                                         trees, records, reasons in the rule, rows of q and k, and
                                         states of 8 bits */
    const char *not_form;             /* the same with trees and records */
    const char *not_step;             /* the same with the rule and rows of q and k, apart from
                                         states of 8 bits */
    const char *not_warp;             /* why the kernels of warp.cuh do not take the call */
    const char *not_token;            /* why those of token.cuh and window_k128.cuh do not */
    struct gdn_cu_warp warp;          /* filled in if not_near is NULL */
    void *memory;                     /* of the plan's bytes */
    void *stream;
};

/* The plan of a call that goes token by token: its form, and the call as the form takes it. */
struct gdn_cuda_decode_plan {
    int form;     /* of the lists in select.c */
    size_t bytes; /* of memory that it takes */
    const struct gdn_cu_rule *rule;
    struct gdn_decode_call call; /* the first run of heads */
};

/* Token by token: gdn_decode, and gdn_prefill with GDN_EXACT. memory: the plan's bytes, which trees
 * and records take. The plan keeps the address of the rule. If rows of the rule have moved by
 * multiples of 64 bytes since the plan was made, call gdn_cuda_decode_move() before the run. */
void gdn_cuda_decode_plan(gdn_ctx *ctx, const char *op, const struct gdn_cu_rule *args,
                          struct gdn_cuda_decode_plan *plan);
void gdn_cuda_decode_move(struct gdn_cuda_decode_plan *plan);
gdn_status gdn_cuda_decode_run(struct gdn_cuda_decode_plan *plan, void *memory, void *stream);
/* The sequences of one token of a packed call of gdn_prefill (decode/token_single.cuh).
 * takes_singles returns true if decode takes them, and then fills in their launch. move_singles
 * fills it in again, see gdn_cuda_decode_move(). decode_singles launches them, after the kernels of
 * the other sequences, and adds their kernel to ran. */
struct gdn_cuda_singles {
    struct gdn_cu_token_single args;
    struct gdn_cuda_call call; /* without args and stream */
};
bool gdn_cuda_takes_singles(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                            struct gdn_cuda_singles *singles);
void gdn_cuda_move_singles(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                           struct gdn_cuda_singles *singles);
gdn_status gdn_cuda_decode_singles(gdn_ctx *ctx, const struct gdn_cuda_singles *singles,
                                   struct gdn_cuda_ran *ran, void *stream);

/* Returns true if the kernels of decode/warp.cuh take the batch and its states. */
bool gdn_cuda_takes_warps(const struct gdn_cu_rule *args);
/* Returns true if q, k, v and out do not have one dtype. */
bool gdn_cuda_mixes_dtypes(const struct gdn_cu_rule *args);
void gdn_cuda_fill_warp(struct gdn_cu_warp *to, const struct gdn_cu_rule *args);
/* Returns true if the kernels of decode/token.cuh take the call: one token of each sequence, as
 * rows that all have a state. */
bool gdn_cuda_takes_one(const struct gdn_cu_rule *args, const struct gdn_cu_warp *warp);
struct gdn_cu_token gdn_cuda_token_args(const struct gdn_cu_rule *args,
                                        const struct gdn_cu_warp *warp);
struct gdn_cu_at gdn_cuda_at_vector(const struct gdn_cu_array *vector); /* head: bytes of an
                                                                           element */
/* Return true if n times the step fits 32 bits: for a number, for all steps of rows, for a
 * vector. */
bool gdn_cuda_is_near(int64_t step, int64_t n);
bool gdn_cuda_are_near(const struct gdn_rows *rows);
bool gdn_cuda_is_near_vector(const struct gdn_cu_array *vector);
struct gdn_cu_near gdn_cuda_near(const struct gdn_rows *rows, const struct gdn_cu_batch *batch);
/* Returns a number whose product with x has x / n as its high half, for x and n below 2^16. 0: n is
 * 1, and x / n is x. */
uint32_t gdn_cuda_inverse(int n);

#endif
