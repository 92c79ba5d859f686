/* SPDX-License-Identifier: Apache-2.0 */
/* Token by token on a device: what other families may call. */
#ifndef GDN_CUDA_DECODE_H
#define GDN_CUDA_DECODE_H

#include "calls/rule_call.h"
#include "cuda/decode/args.h"
#include "cuda/driver/launch.h"

/* Fills in a checked call of gdn_prefill or gdn_decode as kernels take it: what rule and plan say
 * of it. */
void gdn_cuda_fill_rule(struct gdn_cu_rule *to, const struct gdn_rule *rule,
                        const gdn_tensor *A_log, const gdn_tensor *dt_bias,
                        const struct gdn_plan *plan, const struct gdn_tokens *tokens,
                        const struct gdn_plan_pools *pools);

/* For a checked call: fills in the kernels' arguments; checks the contents that the context has to
 * check; checks that a tree has no more tokens than kernels count. */
void gdn_cuda_fill_call(struct gdn_cu_rule *to, const struct gdn_rule_call *call);
/* Refuses a record, for ops other than gdn_decode. */
gdn_status gdn_cuda_refuse_record(gdn_ctx *ctx, const struct gdn_rule *rule);
/* Refuse, by the name of its tensor, what kernels do not take of the family (gdn.h): any of it, for
 * ops that have no kernel for it, g being the name of the gates; and what gdn_decode, gdn_prefill
 * and gdn_step do not take beside it. */
gdn_status gdn_cuda_check_family(gdn_ctx *ctx, const struct gdn_rule *rule, const char *g,
                                 const gdn_tensor *A_log);
gdn_status gdn_cuda_check_channels(gdn_ctx *ctx, const struct gdn_rule *rule);
gdn_status gdn_cuda_check_rule(gdn_ctx *ctx, const struct gdn_rule_call *call);
/* Refuses GDN_SPLIT_INVARIANT, which kernels do not have. */
gdn_status gdn_cuda_check_split(gdn_ctx *ctx, const struct gdn_rule *rule);
gdn_status gdn_cuda_check_tree(gdn_ctx *ctx, const gdn_batch *batch,
                               const struct gdn_tokens *tokens);

/* A call, and what its form depends on. */
struct gdn_decode_call {
    gdn_ctx *ctx;
    const char *op; /* for the log */
    const struct gdn_cu_rule *rule;
    int n_runs;                       /* calls like this one, see gdn_decode_runs() */
    const struct gdn_pool_view *pool; /* has the dtype and the layout of the states */
    const char *not_form;             /* why no kernel of 32-bit strides takes the call: the
                                              rule, rows of q and k, 8-bit states aside */
    const char *not_step;             /* the same, 8-bit states aside */
    const char *not_warp;             /* why the kernels of 32-bit strides refuse the call */
    const char *not_token;            /* why those of token.cuh and window_k128.cuh do */
    struct gdn_cu_warp warp;          /* if not_form is NULL */
    void *memory;                     /* gdn_cuda_decode_bytes() */
    void *stream;
};

/* A planned call, token by token: the form, and the call as that form takes it. */
struct gdn_cuda_decode_plan {
    int form; /* of the lists in select.c */
    const struct gdn_cu_rule *rule;
    struct gdn_decode_call call; /* the first run of heads */
};

/* Token by token (gdn_decode; gdn_prefill with GDN_EXACT). memory, of gdn_cuda_decode_bytes(): for
 * the states of trees. The plan keeps the address of the rule. If rows of the rule have moved by
 * multiples of 64 bytes since the plan was made, call gdn_cuda_decode_move() before the run. */
size_t gdn_cuda_decode_bytes(const gdn_ctx *ctx, const struct gdn_cu_rule *args);
void gdn_cuda_decode_plan(gdn_ctx *ctx, const char *op, const struct gdn_cu_rule *args,
                          struct gdn_cuda_decode_plan *plan);
void gdn_cuda_decode_move(struct gdn_cuda_decode_plan *plan);
gdn_status gdn_cuda_decode_run(struct gdn_cuda_decode_plan *plan, void *memory, void *stream);
/* The sequences of one token of a packed call of gdn_prefill (decode/token_single.cuh).
 * takes_singles returns true if decode takes them, and then fills in their launch. move_singles
 * fills it in again, see gdn_cuda_decode_move(). decode_singles launches them, behind the kernels of
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
/* One token of each sequence, as rows that all have a state (decode/token.cuh). */
bool gdn_cuda_takes_one(const struct gdn_cu_rule *args, const struct gdn_cu_warp *warp);
struct gdn_cu_token gdn_cuda_token_args(const struct gdn_cu_rule *args,
                                        const struct gdn_cu_warp *warp);
struct gdn_cu_at gdn_cuda_at_vector(const struct gdn_cu_array *vector); /* heads: elements */
/* Return true if n such steps fit 32 bits, whatever the step: of a number, of rows, of a vector. */
bool gdn_cuda_is_near(int64_t step, int64_t n);
bool gdn_cuda_are_near(const struct gdn_rows *rows);
bool gdn_cuda_is_near_vector(const struct gdn_cu_array *vector);
struct gdn_cu_near gdn_cuda_near(const struct gdn_rows *rows, const struct gdn_cu_batch *batch);
/* x / n is the high half of x times this, for x and n below 2^16; 0: x itself. */
uint32_t gdn_cuda_inverse(int n);

#endif
