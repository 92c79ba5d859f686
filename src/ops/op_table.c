/* SPDX-License-Identifier: Apache-2.0 */
/* Ops by their numbers: questions before a call, which run the op's own check and stop there;
 * the calls; and the form of their structs. */
#include "ops/op_table.h"

#include "core/ctx.h"
#include "ops/mirror.h"

/* The rows of ops.def are in the order of gdn_op. */
#define GDN_OP_ROW(NUMBER, name, args) \
    _Static_assert((int)GDN_OP_##NUMBER == (int)GDN_PLACE_OF_##NUMBER, "ops.def: " #name);
#include "calls/ops.def"

static gdn_status check(gdn_ctx *ctx, gdn_op op, const void *args, size_t *bytes)
{
    switch (op) {
        /* clang-format off */
#define GDN_OP_ROW(NUMBER, name, type) \
    case GDN_OP_##NUMBER: return gdn_##name##_check(ctx, args, bytes);
#include "calls/ops.def"
        /* clang-format on */
    }
    return gdn_fail(ctx, GDN_E_ARG, "op: %d, wanted a gdn_op", (int)op);
}

gdn_status gdn_workspace_bytes(gdn_ctx *ctx, gdn_op op, const void *args, size_t *bytes)
{
    uint32_t fp;
    size_t needed;
    TRY(gdn_enter(ctx, &fp));
    const gdn_status status =
        bytes ? check(ctx, op, args, &needed) : gdn_fail(ctx, GDN_E_ARG, "bytes: NULL");
    if (status == GDN_OK) *bytes = needed;
    return gdn_leave(ctx, fp, status);
}

gdn_status gdn_supported(gdn_ctx *ctx, gdn_op op, const void *args)
{
    size_t bytes;
    return gdn_workspace_bytes(ctx, op, args, &bytes);
}

/* ---- Calls --------------------------------------------------------------------------------- */

/* For each struct: its tensors, and the place of its batch. */
#define PLACE_OF_batch(type) offsetof(type, batch)
#define PLACE_OF_none(type) 0
enum {
#define GDN_TENSOR(args, tensor, is, dtypes, shape) ROW_##args##_##tensor,
#include "calls/ops.def"
};
enum {
#define GDN_ARGS_ROW(args, first, last, batch)                         \
    N_TENSORS_##args = ROW_##args##_##last - ROW_##args##_##first + 1, \
    BATCH_AT_##args = PLACE_OF_##batch(gdn_##args##_args),
#include "calls/ops.def"
};

/* Each tensor of a call may be a block of its mirror. */
#define GDN_ARGS_ROW(args, first, last, batch) \
    _Static_assert((int)N_TENSORS_##args + (int)GDN_BATCH_TENSORS <= (int)GDN_MIRROR_BLOCKS, #args);
#include "calls/ops.def"

const struct gdn_op_shape gdn_op_shapes[GDN_N_OPS] = {
#define GDN_OP_ROW(NUMBER, name, args)               \
    [GDN_OP_##NUMBER] = { #name,                     \
                          "gdn_" #args "_args",      \
                          sizeof(gdn_##args##_args), \
                          N_TENSORS_##args,          \
                          BATCH_AT_##args,           \
                          offsetof(gdn_##args##_args, workspace) },
#include "calls/ops.def"
};

gdn_status gdn_run_op(gdn_ctx *ctx, gdn_op op, const void *args)
{
    switch (op) {
        /* clang-format off */
#define GDN_OP_ROW(NUMBER, name, type) \
    case GDN_OP_##NUMBER: return gdn_##name(ctx, args);
#include "calls/ops.def"
        /* clang-format on */
    }
    return gdn_fail(ctx, GDN_E_ARG, "op: %d, wanted a gdn_op", (int)op);
}
