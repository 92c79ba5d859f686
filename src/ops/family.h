/* SPDX-License-Identifier: Apache-2.0 */
/* The shapes of a rule of the family (gdn.h): which of its tensors have a number per channel, and
 * how many rows a token has. */
#ifndef GDN_FAMILY_H
#define GDN_FAMILY_H

#include "batch/plan.h"
#include "calls/rule.h"

/* The tensors of a call, in the library's copy of its struct. Absent ones may be NULL. */
struct gdn_family_tensors {
    gdn_tensor *k, *v, *g, *beta, *write, *dt_bias;
};

/* Drops a last size of 1 of g and beta: it means one number per head. Sets *updates to the tokens
 * as k has them, with n_updates rows each. */
gdn_status gdn_family_tokens(gdn_ctx *ctx, const struct gdn_family_tensors *t, int32_t n_updates,
                             const struct gdn_tokens *tokens, struct gdn_tokens *updates);

/* Returns the last size of record_g: K if g has channels, else -1, for there is none. */
int64_t gdn_family_gate_size(const struct gdn_family_tensors *t, const struct gdn_tokens *tokens,
                             int64_t K);

/* Makes rows of the first of n updates of each token. Returns bytes from one update to the next. */
int64_t gdn_family_rows(const gdn_tensor *t, const struct gdn_tokens *tokens, int n,
                        struct gdn_rows *rows);

/* Fills the rule's k, v, g, beta and family. Shapes are checked. */
gdn_status gdn_family_fill(gdn_ctx *ctx, const struct gdn_family_tensors *t, int32_t n_updates,
                           const struct gdn_tokens *tokens, struct gdn_rule *r);

/* Refuses what calls of several updates cannot have. */
gdn_status gdn_family_check_updates(gdn_ctx *ctx, int32_t n_updates, const gdn_batch *batch,
                                    const gdn_tensor *record_k);

/* Checks that a gradient has the dimensions of its tensor. */
gdn_status gdn_family_alike(gdn_ctx *ctx, const gdn_tensor *d, const char *name,
                            const gdn_tensor *of, const char *of_name);

#endif
