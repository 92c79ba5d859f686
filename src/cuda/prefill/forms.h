/* SPDX-License-Identifier: Apache-2.0 */
/* The forms of prefill: what this family alone calls. */
#ifndef GDN_CUDA_PREFILL_FORMS_H
#define GDN_CUDA_PREFILL_FORMS_H

#include "cuda/prefill/prefill.h"

/* Returns true if chunks work on copies of some states: of 8 bits, or without a stride of 1. */
bool gdn_cuda_prefill_is_apart(const struct gdn_cu_rule *args);

/* Launches chunks of every rule but those of the family, as planned. ran: the kernels that ran are
 * added. */
gdn_status gdn_cuda_prefill_chunks(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                                   const struct gdn_cuda_chunks *how, struct gdn_cuda_ran *ran,
                                   void *stream);

/* For a call with such states: returns the bytes of copies and of the planned chunks; and launches
 * the copies and the chunks. */
size_t gdn_cuda_prefill_q8_bytes(const struct gdn_cu_rule *args, const struct gdn_cuda_chunks *how);
gdn_status gdn_cuda_prefill_q8(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                               const struct gdn_cuda_chunks *planned, void *memory, void *stream);

/* Gates per channel, by the kernels of prefill/channels; why_not as in prefill.h. */
const char *gdn_cuda_prefill_channels_why_not(const gdn_ctx *ctx, const struct gdn_cu_rule *args);
struct gdn_channels_windows gdn_cuda_prefill_channels_cut(const gdn_ctx *ctx,
                                                          const struct gdn_cu_rule *args);
size_t gdn_cuda_prefill_channels_bytes(const struct gdn_cu_rule *args,
                                       const struct gdn_channels_windows *w);
gdn_status gdn_cuda_prefill_channels(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                                     const struct gdn_channels_windows *w, void *memory,
                                     struct gdn_cuda_ran *ran, void *stream);

/* Returns how many bytes of rows move at once: as data and steps are aligned, at most 16. */
int32_t gdn_cuda_rows_wide(const struct gdn_rows *r);

/* Chunks in kernels of their own, then states, on any GPU (portable/run.cuh). */
const char *gdn_cuda_prefill_portable_why_not(const gdn_ctx *ctx, const struct gdn_cu_rule *args);
void gdn_cuda_prefill_portable_plan(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                                    struct gdn_cuda_chunks *how);
gdn_status gdn_cuda_prefill_portable(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                                     const struct gdn_cuda_chunks *how, struct gdn_cuda_ran *ran,
                                     void *stream);

/* gdn_summary by the kernels of prefill/sm90, in units of c. */
size_t gdn_cuda_summary_sm90_bytes(const struct gdn_cuda_summary *s, const struct gdn_range_cut *c);
gdn_status gdn_cuda_summary_sm90(gdn_ctx *ctx, const struct gdn_cuda_summary *s,
                                 const struct gdn_range_cut *c, void *memory,
                                 struct gdn_cuda_ran *ran, void *stream);

#endif
