/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the stages and summaries share: a list of tensors checked in one place, batches
 * without slots, and the numbering of chunks.
 */
#ifndef GDN_STAGE_H
#define GDN_STAGE_H

#include "ctx.h"
#include "plan.h"
#include "rule.h"

/* One tensor of a call and what it must be. */
struct gdn_stage_tensor {
    const gdn_tensor *t;
    const char       *name;
    bool              needed, written;
    bool              tokens; /* [tokens] comes before size */
    int               n;      /* sizes; rows of two and more are dense where tokens lead */
    int64_t           size[4]; /* -1: any */
    unsigned          same;    /* written: bits of the tensors of the list it may be */
};

/* Presence, form, dtype (a float), shape; written ones have no element twice and overlap
 * neither another tensor of the list nor an array of the batch (NULL: none). */
gdn_status gdn_stage_check(gdn_ctx *ctx, const struct gdn_stage_tensor *list, int n,
                           const struct gdn_tokens *tokens, const gdn_batch *batch);

/* gdn_plan_describe() for a batch that may have cu_seqlens and token_count alone. */
gdn_status gdn_stage_plan(gdn_ctx *ctx, const gdn_batch *batch, const struct gdn_tokens *tokens,
                          struct gdn_plan *plan);

/* A head size, 1 to 256, from dimension `dim` from the end; heads, which must divide H. */
gdn_status gdn_stage_head_size(gdn_ctx *ctx, const gdn_tensor *t, const char *name, int *size);
gdn_status gdn_stage_heads(gdn_ctx *ctx, const gdn_tensor *t, const char *name, int64_t H, int *n);
gdn_status gdn_stage_enum(gdn_ctx *ctx, const char *name, int32_t value, int32_t end);

#endif
