/* SPDX-License-Identifier: Apache-2.0 */
/* Ops by their numbers: questions before a call, which run the op's own check and stop there;
 * the calls; and the form of their structs. */
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
    case GDN_OP_STEP: return gdn_step_check(ctx, args, bytes);
    }
    return gdn_fail(ctx, GDN_E_ARG, "op: %d, wanted a gdn_op", (int)op);
}

gdn_status gdn_workspace_bytes(gdn_ctx *ctx, gdn_op op, const void *args, size_t *bytes)
{
    uint32_t fp;
    size_t   needed;
    TRY(gdn_enter(ctx, &fp));
    const gdn_status status = bytes ? check(ctx, op, args, &needed)
                                    : gdn_fail(ctx, GDN_E_ARG, "bytes: NULL");
    if (status == GDN_OK) *bytes = needed;
    return gdn_leave(ctx, fp, status);
}

gdn_status gdn_supported(gdn_ctx *ctx, gdn_op op, const void *args)
{
    size_t bytes;
    return gdn_workspace_bytes(ctx, op, args, &bytes);
}

/* ---- Calls --------------------------------------------------------------------------------- */

const struct gdn_op_shape gdn_op_shapes[] = {
#define TENSORS(type, last) \
    ((offsetof(type, last) - offsetof(gdn_rule_args, q)) / sizeof(gdn_tensor) + 1)
#define WITH_BATCH(type, last) { #type, sizeof(type), TENSORS(type, last), offsetof(type, batch) }
#define WITHOUT(type, last)    { #type, sizeof(type), TENSORS(type, last), 0 }
    [GDN_OP_PREFILL]         = WITH_BATCH(gdn_rule_args, record_count),
    [GDN_OP_DECODE]          = WITH_BATCH(gdn_rule_args, record_count),
    [GDN_OP_CONV1D]          = WITH_BATCH(gdn_conv1d_args, checkpoints),
    [GDN_OP_GATES]           = WITHOUT(gdn_gates_args, beta),
    [GDN_OP_L2NORM]          = WITHOUT(gdn_l2norm_args, out),
    [GDN_OP_RMSNORM_GATED]   = WITHOUT(gdn_rmsnorm_gated_args, out),
    [GDN_OP_BLOCK]           = WITH_BATCH(gdn_block_args, checkpoint_scales),
    [GDN_OP_STATE_COPY]      = WITHOUT(gdn_state_copy_args, to_scales),
    [GDN_OP_SUMMARY]         = WITH_BATCH(gdn_summary_args, U),
    [GDN_OP_SUMMARY_COMPOSE] = WITHOUT(gdn_summary_compose_args, U),
    [GDN_OP_SUMMARY_APPLY]   = WITHOUT(gdn_summary_apply_args, state_out),
    [GDN_OP_CHUNK_CUMSUM]    = WITH_BATCH(gdn_chunk_cumsum_args, out),
    [GDN_OP_CHUNK_UW]        = WITH_BATCH(gdn_chunk_uw_args, T),
    [GDN_OP_CHUNK_STATES]    = WITH_BATCH(gdn_chunk_states_args, state_out),
    [GDN_OP_CHUNK_OUTPUT]    = WITH_BATCH(gdn_chunk_output_args, out),
    [GDN_OP_RECORD_COMMIT]   = WITH_BATCH(gdn_record_commit_args, path),
    [GDN_OP_RECORD_FOLD]     = WITH_BATCH(gdn_record_fold_args, record_count),
    [GDN_OP_STEP]            = WITH_BATCH(gdn_step_args, out),
};

gdn_status gdn_run_op(gdn_ctx *ctx, gdn_op op, const void *args)
{
    switch (op) {
    case GDN_OP_PREFILL: return gdn_prefill(ctx, args);
    case GDN_OP_DECODE: return gdn_decode(ctx, args);
    case GDN_OP_CONV1D: return gdn_conv1d(ctx, args);
    case GDN_OP_GATES: return gdn_gates(ctx, args);
    case GDN_OP_L2NORM: return gdn_l2norm(ctx, args);
    case GDN_OP_RMSNORM_GATED: return gdn_rmsnorm_gated(ctx, args);
    case GDN_OP_BLOCK: return gdn_block(ctx, args);
    case GDN_OP_STATE_COPY: return gdn_state_copy(ctx, args);
    case GDN_OP_SUMMARY: return gdn_summary(ctx, args);
    case GDN_OP_SUMMARY_COMPOSE: return gdn_summary_compose(ctx, args);
    case GDN_OP_SUMMARY_APPLY: return gdn_summary_apply(ctx, args);
    case GDN_OP_CHUNK_CUMSUM: return gdn_chunk_cumsum(ctx, args);
    case GDN_OP_CHUNK_UW: return gdn_chunk_uw(ctx, args);
    case GDN_OP_CHUNK_STATES: return gdn_chunk_states(ctx, args);
    case GDN_OP_CHUNK_OUTPUT: return gdn_chunk_output(ctx, args);
    case GDN_OP_RECORD_COMMIT: return gdn_record_commit(ctx, args);
    case GDN_OP_RECORD_FOLD: return gdn_record_fold(ctx, args);
    case GDN_OP_STEP: return gdn_step(ctx, args);
    }
    return gdn_fail(ctx, GDN_E_ARG, "op: %d, wanted a gdn_op", (int)op);
}
