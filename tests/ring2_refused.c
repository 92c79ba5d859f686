/* SPDX-License-Identifier: Apache-2.0 */
/* Refused calls, for every op: see ring2.h. */
#include <string.h>

#include "ring2.h"
#include "ring2_device.h"

#define N_TENSORS(type, first, end) \
    ((offsetof(type, end) - offsetof(type, first)) / sizeof(gdn_tensor))

const struct ring2_op ring2_ops[] = {
    [GDN_OP_PREFILL]       = { sizeof(gdn_rule_args), N_TENSORS(gdn_rule_args, q, batch),
                               offsetof(gdn_rule_args, batch) },
    [GDN_OP_DECODE]        = { sizeof(gdn_rule_args), N_TENSORS(gdn_rule_args, q, batch),
                               offsetof(gdn_rule_args, batch) },
    [GDN_OP_CONV1D]        = { sizeof(gdn_conv1d_args), N_TENSORS(gdn_conv1d_args, x, batch),
                               offsetof(gdn_conv1d_args, batch) },
    [GDN_OP_GATES]         = { sizeof(gdn_gates_args), N_TENSORS(gdn_gates_args, a, gate), 0 },
    [GDN_OP_L2NORM]        = { sizeof(gdn_l2norm_args), N_TENSORS(gdn_l2norm_args, x, norm), 0 },
    [GDN_OP_RMSNORM_GATED] = { sizeof(gdn_rmsnorm_gated_args),
                               N_TENSORS(gdn_rmsnorm_gated_args, x, activation), 0 },
    [GDN_OP_BLOCK]         = { sizeof(gdn_block_args), N_TENSORS(gdn_block_args, hidden, batch),
                               offsetof(gdn_block_args, batch) },
    [GDN_OP_STATE_COPY]    = { sizeof(gdn_state_copy_args),
                               N_TENSORS(gdn_state_copy_args, from_pool, from_layout), 0 },
    [GDN_OP_SUMMARY]         = { sizeof(gdn_summary_args), N_TENSORS(gdn_summary_args, k, batch),
                                 offsetof(gdn_summary_args, batch) },
    [GDN_OP_SUMMARY_COMPOSE] = { sizeof(gdn_summary_compose_args),
                                 N_TENSORS(gdn_summary_compose_args, M1, state_layout), 0 },
    [GDN_OP_SUMMARY_APPLY]   = { sizeof(gdn_summary_apply_args),
                                 N_TENSORS(gdn_summary_apply_args, M, state_layout), 0 },
    [GDN_OP_CHUNK_CUMSUM] = { sizeof(gdn_chunk_cumsum_args),
                              N_TENSORS(gdn_chunk_cumsum_args, g, batch),
                              offsetof(gdn_chunk_cumsum_args, batch) },
    [GDN_OP_CHUNK_UW] = { sizeof(gdn_chunk_uw_args),
                              N_TENSORS(gdn_chunk_uw_args, k, batch),
                              offsetof(gdn_chunk_uw_args, batch) },
    [GDN_OP_CHUNK_STATES] = { sizeof(gdn_chunk_states_args),
                              N_TENSORS(gdn_chunk_states_args, k, batch),
                              offsetof(gdn_chunk_states_args, batch) },
    [GDN_OP_CHUNK_OUTPUT] = { sizeof(gdn_chunk_output_args),
                              N_TENSORS(gdn_chunk_output_args, q, batch),
                              offsetof(gdn_chunk_output_args, batch) },
    [GDN_OP_RECORD_COMMIT] = { sizeof(gdn_record_commit_args),
                               N_TENSORS(gdn_record_commit_args, record_k, batch),
                               offsetof(gdn_record_commit_args, batch) },
    [GDN_OP_RECORD_FOLD] = { sizeof(gdn_record_fold_args),
                             N_TENSORS(gdn_record_fold_args, state, batch),
                             offsetof(gdn_record_fold_args, batch) },
};

gdn_status ring2_run(gdn_ctx *ctx, gdn_op op, const void *args)
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
    }
    return GDN_OK;
}

/* Far from all memory of the process, by a multiple of every alignment. */
static void move_away(gdn_tensor *t)
{
    if (t->data) t->data = (void *)((uintptr_t)t->data - ((uintptr_t)1 << 44));
}

/* The question asked with pointers that nobody may read through. */
static gdn_status ask(gdn_ctx *ctx, gdn_op op, const void *args)
{
    const struct ring2_op *o = &ring2_ops[op];
    char                  *copy = ring2_heap(o->bytes);
    const gdn_batch       *batch = NULL;
    gdn_batch             *own = ring2_heap(sizeof *own);
    gdn_tensor            *t = (gdn_tensor *)(void *)(copy + 8);
    const size_t n_arrays = (sizeof *own - offsetof(gdn_batch, cu_seqlens)) / sizeof *t;
    memcpy(copy, args, o->bytes);
    for (size_t i = 0; i < o->n_tensors; i++) move_away(&t[i]);
    if (o->batch_at) memcpy(&batch, copy + o->batch_at, sizeof batch);
    if (batch) {
        *own = *batch;
        t    = &own->cu_seqlens;
        for (size_t i = 0; i < n_arrays; i++) move_away(&t[i]);
        memcpy(copy + o->batch_at, &own, sizeof own);
    }
    return gdn_supported(ctx, op, copy);
}

void ring2_refused(gdn_ctx *ctx, gdn_op op, const void *args, enum ring2_seen seen,
                   gdn_status want, const char *needle)
{
    uint32_t   size = 0;
    size_t     bytes = 77;
    gdn_status status;
    if (seen != RING2_STRUCT && ring2_on_device()) return; /* nobody reads contents there */
    ring2_call_begin();
    status = ring2_run(ctx, op, args);
    ring2_status(ctx, "the call", status, want);
    CHECK(strstr(gdn_last_error(ctx), needle), "the error \"%s\" does not name %s",
          gdn_last_error(ctx), needle);
    want = seen == RING2_STRUCT ? want : GDN_OK;
    if (args) memcpy(&size, args, sizeof size);
    if (size == ring2_ops[op].bytes) ring2_status(ctx, "gdn_supported", ask(ctx, op, args), want);
    status = gdn_workspace_bytes(ctx, op, args, &bytes);
    ring2_status(ctx, "gdn_workspace_bytes", status, want);
    CHECK(want == GDN_OK || bytes == 77, "gdn_workspace_bytes wrote %zu", bytes);
    ring2_call_end();
}
