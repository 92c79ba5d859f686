/* SPDX-License-Identifier: Apache-2.0 */
/* What each op says of a call before it runs: its check of the descriptors, contents unread,
 * and the workspace it would need; and ops by their numbers. */
#ifndef GDN_OPS_H
#define GDN_OPS_H

#include <stdbool.h>
#include <stddef.h>

#include "gdn.h"

gdn_status gdn_rule_check(gdn_ctx *ctx, const gdn_rule_args *args, bool decode, size_t *bytes);
gdn_status gdn_record_commit_check(gdn_ctx *ctx, const gdn_record_commit_args *args, size_t *bytes);
gdn_status gdn_record_fold_check(gdn_ctx *ctx, const gdn_record_fold_args *args, size_t *bytes);
gdn_status gdn_conv1d_check(gdn_ctx *ctx, const gdn_conv1d_args *args, size_t *bytes);
gdn_status gdn_gates_check(gdn_ctx *ctx, const gdn_gates_args *args, size_t *bytes);
gdn_status gdn_l2norm_check(gdn_ctx *ctx, const gdn_l2norm_args *args, size_t *bytes);
gdn_status gdn_rmsnorm_gated_check(gdn_ctx *ctx, const gdn_rmsnorm_gated_args *args, size_t *bytes);
gdn_status gdn_block_check(gdn_ctx *ctx, const gdn_block_args *args, size_t *bytes);
gdn_status gdn_state_copy_check(gdn_ctx *ctx, const gdn_state_copy_args *args, size_t *bytes);
gdn_status gdn_summary_check(gdn_ctx *ctx, const gdn_summary_args *args, size_t *bytes);
gdn_status gdn_summary_compose_check(gdn_ctx *ctx, const gdn_summary_compose_args *args,
                                     size_t *bytes);
gdn_status gdn_summary_apply_check(gdn_ctx *ctx, const gdn_summary_apply_args *args, size_t *bytes);
gdn_status gdn_chunk_cumsum_check(gdn_ctx *ctx, const gdn_chunk_cumsum_args *args, size_t *bytes);
gdn_status gdn_chunk_uw_check(gdn_ctx *ctx, const gdn_chunk_uw_args *args, size_t *bytes);
gdn_status gdn_chunk_states_check(gdn_ctx *ctx, const gdn_chunk_states_args *args, size_t *bytes);
gdn_status gdn_chunk_output_check(gdn_ctx *ctx, const gdn_chunk_output_args *args, size_t *bytes);
gdn_status gdn_step_check(gdn_ctx *ctx, const gdn_step_args *args, size_t *bytes);

/* What an op's struct holds: so many tensors after struct_size and flags, and where its batch is
 * (0: it has none). */
struct gdn_op_shape {
    const char *name; /* of the struct */
    size_t      bytes, n_tensors, batch_at;
};
extern const struct gdn_op_shape gdn_op_shapes[];

/* The op that args belong to. */
gdn_status gdn_run_op(gdn_ctx *ctx, gdn_op op, const void *args);

#endif
