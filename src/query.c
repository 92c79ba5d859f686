/* SPDX-License-Identifier: Apache-2.0 */
/* Questions before a call: both run the op's own check and stop there. */
#include "ctx.h"
#include "ops.h"

static gdn_status check(gdn_ctx *ctx, gdn_op op, const void *args, size_t *bytes)
{
    switch (op) {
    case GDN_OP_PREFILL: return gdn_rule_check(ctx, args, false, bytes);
    case GDN_OP_DECODE: return gdn_rule_check(ctx, args, true, bytes);
    case GDN_OP_CONV1D: return gdn_conv1d_check(ctx, args, bytes);
    case GDN_OP_GATES: return gdn_gates_check(ctx, args, bytes);
    case GDN_OP_L2NORM: return gdn_l2norm_check(ctx, args, bytes);
    case GDN_OP_RMSNORM_GATED: return gdn_rmsnorm_gated_check(ctx, args, bytes);
    case GDN_OP_BLOCK: return gdn_block_check(ctx, args, bytes);
    case GDN_OP_STATE_COPY: return gdn_state_copy_check(ctx, args, bytes);
    case GDN_OP_SUMMARY: return gdn_summary_check(ctx, args, bytes);
    case GDN_OP_SUMMARY_COMPOSE: return gdn_summary_compose_check(ctx, args, bytes);
    case GDN_OP_SUMMARY_APPLY: return gdn_summary_apply_check(ctx, args, bytes);
    case GDN_OP_CHUNK_CUMSUM: return gdn_chunk_cumsum_check(ctx, args, bytes);
    case GDN_OP_CHUNK_UW: return gdn_chunk_uw_check(ctx, args, bytes);
    case GDN_OP_CHUNK_STATES: return gdn_chunk_states_check(ctx, args, bytes);
    case GDN_OP_CHUNK_OUTPUT: return gdn_chunk_output_check(ctx, args, bytes);
    case GDN_OP_RECORD_COMMIT: return gdn_record_commit_check(ctx, args, bytes);
    case GDN_OP_RECORD_FOLD: return gdn_record_fold_check(ctx, args, bytes);
    }
    return gdn_fail(ctx, GDN_E_ARG, "op: %d, wanted a gdn_op", (int)op);
}

gdn_status gdn_workspace_bytes(gdn_ctx *ctx, gdn_op op, const void *args, size_t *bytes)
{
    if (!ctx || !bytes) return gdn_fail(ctx, GDN_E_ARG, "%s: NULL", ctx ? "bytes" : "ctx");
    size_t needed;
    TRY(check(ctx, op, args, &needed));
    *bytes = needed;
    return GDN_OK;
}

gdn_status gdn_supported(gdn_ctx *ctx, gdn_op op, const void *args)
{
    size_t bytes;
    return gdn_workspace_bytes(ctx, op, args, &bytes);
}
