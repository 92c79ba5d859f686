/* SPDX-License-Identifier: Apache-2.0 */
/* Ops as parts of another op. A part checks and runs a call that the other op made. It uses the
 * frame, the workspace and the stream of the other op. */
#ifndef GDN_PARTS_H
#define GDN_PARTS_H

#include "gdn.h"
#include "gdn_research.h"
#include "gdn_train.h"

gdn_status gdn_conv1d_part(gdn_ctx *ctx, const gdn_conv1d_args *args);
gdn_status gdn_conv1d_backward_part(gdn_ctx *ctx, const gdn_conv1d_backward_args *args);
gdn_status gdn_gates_part(gdn_ctx *ctx, const gdn_gates_args *args);
gdn_status gdn_prefill_part(gdn_ctx *ctx, const gdn_rule_args *args);
gdn_status gdn_prefill_backward_part(gdn_ctx *ctx, const gdn_prefill_backward_args *args);
gdn_status gdn_rmsnorm_gated_part(gdn_ctx *ctx, const gdn_rmsnorm_gated_args *args);
gdn_status gdn_rmsnorm_gated_backward_part(gdn_ctx *ctx,
                                           const gdn_rmsnorm_gated_backward_args *args);
gdn_status gdn_state_copy_part(gdn_ctx *ctx, const gdn_state_copy_args *args);
gdn_status gdn_summary_part(gdn_ctx *ctx, const gdn_summary_args *args);
gdn_status gdn_summary_fold_part(gdn_ctx *ctx, const gdn_summary_fold_args *args);

#endif
