/* SPDX-License-Identifier: Apache-2.0 */
/* The forms of prefill: what this family alone calls. */
#ifndef GDN_CUDA_PREFILL_FORMS_H
#define GDN_CUDA_PREFILL_FORMS_H

#include "cuda/prefill/prefill.h"

/* Returns true if chunks work on copies of some states: of 8 bits, or without a stride of 1. */
bool gdn_cuda_prefill_is_apart(const struct gdn_cu_rule *args);

/* The call with such states: its bytes, and its launches. The last two are the same for all other
 * calls. ran: the kernels that ran are added. */
size_t gdn_cuda_prefill_q8_bytes(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                                 struct gdn_cuda_cut_options options);
gdn_status gdn_cuda_prefill_q8(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                               struct gdn_cuda_cut_options options, void *memory, void *stream);
gdn_status gdn_cuda_prefill_chunks(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                                   const struct gdn_cuda_chunks *how, struct gdn_cuda_ran *ran,
                                   void *stream);

/* Gates per channel, by the kernels of prefill/channels; why_not as in prefill.h. */
const char *gdn_cuda_prefill_channels_why_not(const gdn_ctx *ctx, const struct gdn_cu_rule *args);
size_t gdn_cuda_prefill_channels_bytes(const gdn_ctx *ctx, const struct gdn_cu_rule *args);
gdn_status gdn_cuda_prefill_channels(gdn_ctx *ctx, const struct gdn_cu_rule *args, void *memory,
                                     struct gdn_cuda_ran *ran, void *stream);

/* Returns how many bytes of rows move at once: as data and steps are aligned, at most 16. */
int32_t gdn_cuda_rows_wide(const struct gdn_rows *r);

/* Chunks in kernels of their own, then states, on any GPU (portable/run.cuh). */
const char *gdn_cuda_prefill_portable_why_not(const gdn_ctx *ctx, const struct gdn_cu_rule *args);
size_t gdn_cuda_prefill_portable_bytes(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                                       struct gdn_cuda_cut_options options);
gdn_status gdn_cuda_prefill_portable(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                                     const struct gdn_cuda_chunks *how, struct gdn_cuda_ran *ran,
                                     void *stream);

/* Returns the workspace of chunks, by the form that takes the call. */
size_t gdn_cuda_prefill_chunks_bytes(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                                     struct gdn_cuda_cut_options options);

/* gdn_summary on Hopper. */
size_t gdn_cuda_summary_hopper_bytes(const gdn_ctx *ctx, const struct gdn_cuda_summary *s);
gdn_status gdn_cuda_summary_hopper(gdn_ctx *ctx, const struct gdn_cuda_summary *s, void *memory,
                                   struct gdn_cuda_ran *ran, void *stream);

#endif
