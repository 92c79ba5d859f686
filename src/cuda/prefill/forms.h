/* SPDX-License-Identifier: Apache-2.0 */
/* The forms of prefill, for this area alone. */
#ifndef GDN_CUDA_PREFILL_FORMS_H
#define GDN_CUDA_PREFILL_FORMS_H

#include "cuda/prefill/prefill.h"

/* Return true if chunks need copies of a pool, or of some states of a call. They do if states have
 * 8 bits, or no stride of 1. */
bool gdn_cuda_prefill_apart(const struct gdn_pool_view *view);
bool gdn_cuda_prefill_is_apart(const struct gdn_cu_rule *args);

/* The forms of chunks are numbered, see chunks.c. form_of returns the first form that takes the
 * call; why_not returns why a form does not take it, or NULL. choose decides the form, its cut and
 * its bytes, for how->options. */
enum { GDN_PREFILL_SM90 }; /* the number of that form */
int gdn_cuda_prefill_form_of(const gdn_ctx *ctx, const struct gdn_cu_rule *args);
const char *gdn_cuda_prefill_why_not(const gdn_ctx *ctx, const struct gdn_cu_rule *args, int form);
void gdn_cuda_prefill_choose(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                             struct gdn_cuda_chunks *how);

/* Launches planned chunks of any rule that is not of the family. Adds the kernels to ran. */
gdn_status gdn_cuda_prefill_chunks(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                                   const struct gdn_cuda_chunks *how, struct gdn_cuda_ran *ran,
                                   void *stream);

/* For calls with such states: q8_bytes returns the bytes of copies and of the planned chunks; the
 * other one launches the copies and the chunks. */
size_t gdn_cuda_prefill_q8_bytes(const struct gdn_cu_rule *args, const struct gdn_cuda_chunks *how);
gdn_status gdn_cuda_prefill_q8(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                               const struct gdn_cuda_chunks *planned, void *memory, void *stream);

/* gdn_prefill with gates per channel, by the kernels of prefill/channels. why_not is as in
 * prefill.h. */
const char *gdn_cuda_prefill_channels_why_not(const gdn_ctx *ctx, const struct gdn_cu_rule *args);
struct gdn_channels_windows gdn_cuda_prefill_channels_cut(const gdn_ctx *ctx,
                                                          const struct gdn_cu_rule *args);
size_t gdn_cuda_prefill_channels_bytes(const struct gdn_cu_rule *args,
                                       const struct gdn_channels_windows *w);
gdn_status gdn_cuda_prefill_channels(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                                     const struct gdn_channels_windows *w, void *memory,
                                     struct gdn_cuda_ran *ran, void *stream);

/* The same beside q8.cu, for states of 8 bits or without a stride of 1. channels_q8_rule() returns
 * the rule as the channels see it, before there is memory: for their why_not, cut and bytes. */
struct gdn_cu_rule gdn_cuda_prefill_channels_q8_rule(const struct gdn_cu_rule *args);
size_t gdn_cuda_prefill_channels_q8_bytes(const struct gdn_cu_rule *args,
                                          const struct gdn_channels_windows *w);
gdn_status gdn_cuda_prefill_channels_q8(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                                        const struct gdn_channels_windows *w, void *memory,
                                        void *stream);

/* gdn_prefill on any GPU: T and P of chunks in a kernel of their own, then states
 * (portable/run.cuh). */
const char *gdn_cuda_prefill_portable_why_not(const gdn_ctx *ctx, const struct gdn_cu_rule *args);
void gdn_cuda_prefill_portable_plan(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                                    struct gdn_cuda_chunks *how);
gdn_status gdn_cuda_prefill_portable(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                                     const struct gdn_cuda_chunks *how, struct gdn_cuda_ran *ran,
                                     void *stream);

/* Launches the general kernels, which take every call. */
gdn_status gdn_cuda_prefill_general(gdn_ctx *ctx, const struct gdn_cu_rule *args,
                                    const struct gdn_cuda_chunks *how, struct gdn_cuda_ran *ran,
                                    void *stream);

/* gdn_summary by the kernels of prefill/sm90, in the units of c. */
size_t gdn_cuda_summary_sm90_bytes(const struct gdn_cuda_summary *s, const struct gdn_range_cut *c);
gdn_status gdn_cuda_summary_sm90(gdn_ctx *ctx, const struct gdn_cuda_summary *s,
                                 const struct gdn_range_cut *c, void *memory,
                                 struct gdn_cuda_ran *ran, void *stream);

#endif
