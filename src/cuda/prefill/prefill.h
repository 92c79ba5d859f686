/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks on a device: what other families may call. */
#ifndef GDN_CUDA_PREFILL_FACE_H
#define GDN_CUDA_PREFILL_FACE_H

#include "cuda/driver/launch.h"
#include "cuda/prefill/args.h"
#include "cuda/prefill/sm90/cache.h"
#include "cuda/prefill/wanted.h"

/* The options of a call for cuts into segments: none; no early stop; tokens of the longest
 * sequence, 0: unknown. */
struct gdn_cuda_cut_options {
    bool whole, every_token;
    int64_t longest;
};
static inline struct gdn_cuda_cut_options gdn_cuda_cut_options_of(uint32_t flags,
                                                                  const gdn_batch *b)
{
    return (struct gdn_cuda_cut_options){ flags & GDN_BATCH_INVARIANT, flags & GDN_NO_EARLY_STOP,
                                          b->max_seqlen };
}

/* How chunks are done. */
struct gdn_cuda_chunks {
    void *memory; /* of the workspace */
    struct gdn_cuda_cut_options options;
    int by_number; /* see prefill/general.h */
    bool singles;  /* sequences of one token are left to decode */
};
size_t gdn_cuda_prefill_bytes(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                              struct gdn_cuda_cut_options options);
gdn_status gdn_cuda_prefill(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                            struct gdn_cuda_cut_options options, void *memory, void *stream);

/* The kernels of prefill/sm90. why_not returns why they do not take a call, as text for the log, or
 * NULL. */
const char *gdn_cuda_prefill_sm90_why_not(const gdn_ctx *ctx, const struct gdn_cu_rule *args);
size_t gdn_cuda_prefill_sm90_bytes(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                                   struct gdn_cuda_cut_options options);
gdn_status gdn_cuda_prefill_sm90(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                                 const struct gdn_cuda_chunks *how, struct gdn_cuda_ran *ran,
                                 void *stream);

/* gdn_summary by the kernels of prefill/sm90; why_not as above. rule.to is U. */
struct gdn_cuda_summary {
    struct gdn_cu_rule rule;
    struct gdn_pool_view M;
    bool batch_invariant, every_token; /* of the call's flags */
    bool back;                         /* a walk back of the gradient of states, see below */
};
const char *gdn_cuda_summary_hopper_why_not(const gdn_ctx *ctx, const struct gdn_cuda_summary *s);

/* The same units for a walk back to dstate (backward.c), which is rule.to. cut: how the walk finds
 * them, in bytes of memory; without any, all of the sequences is walked through. maps: stops and M,
 * which go before the walk. join: of the D of units, behind it. */
size_t gdn_cuda_walk_cut(const gdn_ctx *ctx, const struct gdn_cuda_summary *s,
                         struct gdn_cu_segments *cut, char *memory);
gdn_status gdn_cuda_walk_maps(gdn_ctx *ctx, const struct gdn_cuda_summary *s,
                              const struct gdn_cu_segments *cut, struct gdn_cuda_ran *ran,
                              void *stream);
gdn_status gdn_cuda_walk_join(gdn_ctx *ctx, const struct gdn_cuda_summary *s,
                              const struct gdn_cu_segments *cut, struct gdn_cuda_ran *ran,
                              void *stream);

#endif
