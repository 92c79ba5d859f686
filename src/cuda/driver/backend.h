/* SPDX-License-Identifier: Apache-2.0 */
/* The ops on a device: each enqueues a checked call on the stream and returns. */
#ifndef GDN_CUDA_OPS_H
#define GDN_CUDA_OPS_H

#include "calls/backward.h"
#include "calls/op_backends.h"
#include "calls/gates.h"
#include "calls/layer.h"
#include "calls/layer_step.h"
#include "calls/state_copy.h"
#include "cuda/driver/contents.h"
#include "cuda/driver/launch.h"
#include "cuda/driver/lines.h"

/* Fills in a checked call of gdn_prefill or gdn_decode as kernels take it: what rule and plan say
 * of it. */
void gdn_cuda_fill_rule(struct gdn_cu_rule *to, const struct gdn_rule *rule,
                        const gdn_tensor *A_log, const gdn_tensor *dt_bias,
                        const struct gdn_plan *plan, const struct gdn_tokens *tokens,
                        const struct gdn_plan_pools *pools);

/* For a checked call: fills in the kernels' arguments; checks the contents that the context has to
 * check; checks that a tree has no more tokens than kernels count. */
struct gdn_rule_call;
void       gdn_cuda_fill_call(struct gdn_cu_rule *to, const struct gdn_rule_call *call);
/* Refuses, by the name of its tensor, what kernels do not take of the family (gdn.h). */
gdn_status gdn_cuda_check_family(gdn_ctx *ctx, const struct gdn_rule *rule, const gdn_tensor *A_log);
gdn_status gdn_cuda_check_gates(gdn_ctx *ctx, int64_t channels, const gdn_tensor *a,
                                const gdn_tensor *A_log);
gdn_status gdn_cuda_check_rule(gdn_ctx *ctx, const struct gdn_rule_call *call);
gdn_status gdn_cuda_check_tree(gdn_ctx *ctx, const gdn_batch *batch,
                               const struct gdn_tokens *tokens);
/* Contents of a gdn_decode with a record, if the context checks them. */
gdn_status gdn_cuda_check_record(gdn_ctx *ctx, const struct gdn_plan *plan,
                                 const struct gdn_tokens *tokens, const struct gdn_record *record,
                                 void *stream);

/* Token by token (gdn_decode; gdn_prefill with GDN_EXACT), and in chunks. memory, of
 * gdn_cuda_decode_bytes(): for the states of trees. */
size_t     gdn_cuda_decode_bytes(const gdn_ctx *ctx, const struct gdn_cu_rule *args);
gdn_status gdn_cuda_decode(gdn_ctx *ctx, const char *op, const struct gdn_cu_rule *args,
                           void *memory, void *stream);
/* The sequences of one token of a packed call of gdn_prefill (decode/token_single.cuh).
 * takes_singles returns true if decode takes them, and then fills in their launch. decode_singles
 * launches them, behind the kernels of the other sequences, and adds their kernel to ran. */
struct gdn_cuda_singles {
    struct gdn_cu_singles args;
    struct gdn_cuda_call  call; /* without args and stream */
};
bool       gdn_cuda_takes_singles(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                                  struct gdn_cuda_singles *singles);
gdn_status gdn_cuda_decode_singles(gdn_ctx *ctx, const struct gdn_cuda_singles *singles,
                                   struct gdn_cuda_ran *ran, void *stream);
/* By warps (decode/warp.cuh): is this a batch, and are these states, that they take? q and k need
 * rows of whole chunks beside, of 16 bytes for `whole` and `products`. And fills in what they
 * take. */
bool               gdn_cuda_takes_warps(const struct gdn_cu_rule *args);
/* Returns true if q, k, v and out do not have one dtype. */
bool               gdn_cuda_mixes_dtypes(const struct gdn_cu_rule *args);
void               gdn_cuda_fill_warp(struct gdn_cu_warp *to, const struct gdn_cu_rule *args);
/* One token of each sequence, as rows that all have a state (decode/token.cuh). */
bool               gdn_cuda_takes_one(const struct gdn_cu_rule *args,
                                      const struct gdn_cu_warp *warp);
struct gdn_cu_one  gdn_cuda_one_args(const struct gdn_cu_rule *args,
                                     const struct gdn_cu_warp *warp);
struct gdn_cu_at   gdn_cuda_at_vector(const struct gdn_cu_array *vector); /* heads: elements */
/* Return true if n such steps fit 32 bits, whatever the step: of a number, of rows, of a vector. */
bool               gdn_cuda_is_near(int64_t step, int64_t n);
bool               gdn_cuda_are_near(const struct gdn_rows *rows);
bool               gdn_cuda_is_near_vector(const struct gdn_cu_array *vector);
struct gdn_cu_near gdn_cuda_near(const struct gdn_rows *rows, const struct gdn_cu_batch *batch);
/* x / n is the high half of x times this, for x and n below 2^16; 0: x itself. */
uint32_t           gdn_cuda_inverse(int n);
/* The options of a call for cuts into segments: none; no early stop; tokens of the longest
 * sequence, 0: unknown. */
struct gdn_cuda_cut_options {
    bool    whole, every_token;
    int64_t longest;
};
static inline struct gdn_cuda_cut_options gdn_cuda_cut_options_of(uint32_t         flags,
                                                                  const gdn_batch *b)
{
    return (struct gdn_cuda_cut_options){ flags & GDN_BATCH_INVARIANT, flags & GDN_NO_EARLY_STOP,
                                   b->max_seqlen };
}
/* memory: of the workspace, so many bytes. How chunks are done: */
struct gdn_cuda_chunks {
    void                *memory; /* of the workspace */
    struct gdn_cuda_cut_options options;
    int                  by_number; /* see prefill/general.h */
    bool                 singles;   /* sequences of one token are left to decode */
};
size_t     gdn_cuda_prefill_bytes(const gdn_ctx *ctx, const struct gdn_cu_rule *args,
                                  struct gdn_cuda_cut_options options);
gdn_status gdn_cuda_prefill(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                            struct gdn_cuda_cut_options options, void *memory, void *stream);
/* Returns true if chunks work on copies of some states: of 8 bits, or without a stride of 1. */
bool gdn_cuda_prefill_is_apart(const struct gdn_cu_rule *args);
/* The same with such states; by the kernels for Hopper, if they take such a call; by those that
 * take all others. ran: which ran is added. */
size_t     gdn_cuda_prefill_eight_bytes(const gdn_ctx *ctx, const struct gdn_cu_rule *args,
                                        struct gdn_cuda_cut_options options);
gdn_status gdn_cuda_prefill_eight(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                                  struct gdn_cuda_cut_options options, void *memory, void *stream);
/* The kernels of prefill/sm90. why_not returns why they do not take a call, as text for the log, or
 * NULL. */
const char *gdn_cuda_prefill_hopper_why_not(const gdn_ctx *ctx, const struct gdn_cu_rule *args);
size_t     gdn_cuda_prefill_hopper_bytes(const gdn_ctx *ctx, const struct gdn_cu_rule *args,
                                         struct gdn_cuda_cut_options options);
gdn_status gdn_cuda_prefill_hopper(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                                   const struct gdn_cuda_chunks *how, struct gdn_cuda_ran *ran,
                                   void *stream);
gdn_status gdn_cuda_prefill_chunks(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                                   const struct gdn_cuda_chunks *how, struct gdn_cuda_ran *ran,
                                   void *stream);

/* gdn_summary by the kernels of prefill/sm90; why_not as above. rule.to is U. */
struct gdn_cuda_summary {
    struct gdn_cu_rule   rule;
    struct gdn_pool_view M;
    bool                 batch_invariant, every_token; /* of the call's flags */
    bool                 back; /* a walk back of the gradient of states, see below */
};
const char *gdn_cuda_summary_hopper_why_not(const gdn_ctx *ctx, const struct gdn_cuda_summary *s);
size_t     gdn_cuda_summary_hopper_bytes(const gdn_ctx *ctx, const struct gdn_cuda_summary *s);
gdn_status gdn_cuda_summary_hopper(gdn_ctx *ctx, const struct gdn_cuda_summary *s, void *memory,
                                   struct gdn_cuda_ran *ran, void *stream);

/* The same units for a walk back to dstate (backward.c), which is rule.to. cut: how the walk finds
 * them, in bytes of memory; without any, all of the sequences is walked through. maps: stops and M,
 * which go before the walk. join: of the D of units, behind it. */
size_t     gdn_cuda_walk_cut(const gdn_ctx *ctx, const struct gdn_cuda_summary *s,
                             struct gdn_cu_segments *cut, char *memory);
gdn_status gdn_cuda_walk_maps(gdn_ctx *ctx, const struct gdn_cuda_summary *s,
                              const struct gdn_cu_segments *cut, struct gdn_cuda_ran *ran,
                              void *stream);
gdn_status gdn_cuda_walk_join(gdn_ctx *ctx, const struct gdn_cuda_summary *s,
                              const struct gdn_cu_segments *cut, struct gdn_cuda_ran *ran,
                              void *stream);

/* Rows of a norm as kernels take them; the call fills in what depends on the kernel chosen. */
struct gdn_cu_norm gdn_cuda_norm_args(const struct gdn_norm_job *s);
gdn_status gdn_cuda_norm(gdn_ctx *ctx, const char *op, struct gdn_cu_norm *args, void *stream);

/* The convolution: fills in its arguments; and the call; edges: workspace of gdn_conv1d. */
void       gdn_cuda_fill_conv(struct gdn_cu_conv *to, const gdn_ctx *ctx,
                              const struct gdn_conv *conv, const struct gdn_plan *plan,
                              const struct gdn_tokens *tokens, const struct gdn_plan_pools *pools);
gdn_status gdn_cuda_conv(gdn_ctx *ctx, struct gdn_cu_conv *args, void *edges, void *stream);

/* Applies records to the states that they are of: the rule's sizes, pool and record count. */
gdn_status gdn_cuda_fold(gdn_ctx *ctx, const struct gdn_cu_rule *args, void *stream);

#endif
