/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks on a device: the functions for other areas. */
#ifndef GDN_CUDA_PREFILL_FACE_H
#define GDN_CUDA_PREFILL_FACE_H

#include "cuda/driver/launch.h"
#include "cuda/prefill/args.h"
#include "cuda/prefill/plan.h"
#include "cuda/prefill/sm90/cache.h"
#include "cuda/prefill/wanted.h"

/* Plans a call, and runs it in memory of plan->bytes. A plan keeps the address of the rule. If rows
 * of the rule have moved by multiples of 64 bytes since the plan was made, call
 * gdn_cuda_prefill_move() before the run. */
void gdn_cuda_prefill_plan(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                           struct gdn_cuda_cut_options options, struct gdn_cuda_prefill_plan *plan);
void gdn_cuda_prefill_move(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                           struct gdn_cuda_prefill_plan *plan);
gdn_status gdn_cuda_prefill_run(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                                struct gdn_cuda_prefill_plan *plan, void *memory, void *stream);

/* Returns how many bytes of rows move at once, at most 16: data and steps are multiples of that. */
int32_t gdn_cuda_rows_wide(const struct gdn_rows *rows);

/* Returns a view of dense float32 states, [H][V][K] each. */
struct gdn_pool_view gdn_cuda_dense_states(const struct gdn_cu_rule *args, char *data);

/* Refuses a call whose bits could differ from those of other calls with its dtypes and sizes. Such
 * a call would go token by token, or its rows are not aligned. */
gdn_status gdn_cuda_prefill_check_alike(gdn_ctx *ctx, const struct gdn_cu_rule *args);

/* gdn_prefill without rows of GDN_SPLIT_INVARIANT. */
extern const struct gdn_op_backend gdn_cuda_prefill_op;

/* The kernels of prefill/sm90. why_not returns why they do not take a call, as text for the log, or
 * NULL. plan decides the cut and the bytes. */
const char *gdn_cuda_prefill_sm90_why_not(const gdn_ctx *ctx, const struct gdn_cu_rule *args);
void gdn_cuda_prefill_sm90_plan(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                                struct gdn_cuda_chunks *how);
gdn_status gdn_cuda_prefill_sm90(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                                 const struct gdn_cuda_chunks *how, struct gdn_cuda_ran *ran,
                                 void *stream);

/* Sequences of one chunk each: rows of 64 dense tokens that all count, and their states by
 * read_slots and write_slots (-1: zeros; not written). A block may be left out if token_count of
 * all its sequences is 0. The bits are those of gdn_cuda_prefill_sm90(). */
bool gdn_cuda_prefill_sm90_takes_each(const gdn_ctx *ctx, const struct gdn_cu_rule *args);
gdn_status gdn_cuda_prefill_sm90_each(gdn_ctx *ctx, const struct gdn_cu_rule *args, void *stream);

/* gdn_summary by the kernels of prefill/sm90. why_not is as above. rule.to is U. */
struct gdn_cuda_summary {
    struct gdn_cu_rule rule;
    struct gdn_pool_view M;
    bool batch_invariant, every_token; /* of the call's flags */
    bool back;                         /* the walk back for the gradient of states, see below */
};
const char *gdn_cuda_summary_sm90_why_not(const gdn_ctx *ctx, const struct gdn_cuda_summary *s);
struct gdn_range_cut gdn_cuda_summary_sm90_cut(const gdn_ctx *ctx,
                                               const struct gdn_cuda_summary *s);

/* The same units for a walk back to dstate (backward.c), which is rule.to. walk_cut: fills in where
 * the walk finds the units of c, and returns the bytes of memory. If there are no units, the walk
 * goes through whole sequences. maps: computes stops and M, before the walk. join: joins the D of
 * units, after the walk. */
size_t gdn_cuda_walk_cut(const struct gdn_cuda_summary *s, const struct gdn_range_cut *c,
                         struct gdn_cu_segments *cut, char *memory);
gdn_status gdn_cuda_walk_maps(gdn_ctx *ctx, const struct gdn_cuda_summary *s,
                              const struct gdn_cu_segments *cut, struct gdn_cuda_ran *ran,
                              void *stream);
gdn_status gdn_cuda_walk_join(gdn_ctx *ctx, const struct gdn_cuda_summary *s,
                              const struct gdn_range_cut *c, const struct gdn_cu_segments *cut,
                              struct gdn_cuda_ran *ran, void *stream);

#endif
