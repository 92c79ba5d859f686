/* SPDX-License-Identifier: Apache-2.0 */
/* Ops by their numbers, from the table ops.def. It has the check that each op runs before a call,
 * the form of its struct, and the call itself. */
#ifndef GDN_OPS_H
#define GDN_OPS_H

#include <stdbool.h>
#include <stddef.h>

#include "gdn.h"
#include "gdn_record.h"
#include "gdn_research.h"
#include "gdn_train.h"

/* gdn_<name>_check() checks the descriptors of a call, reads no contents and sets *bytes to the
 * workspace that the call needs. */
#define GDN_OP_ROW(NUMBER, name, args) \
    gdn_status gdn_##name##_check(gdn_ctx *ctx, const gdn_##args##_args *a, size_t *bytes);
#include "calls/ops.def"

enum {
#define GDN_OP_ROW(NUMBER, name, args) GDN_PLACE_OF_##NUMBER,
#include "calls/ops.def"
    GDN_N_OPS
};

/* An op: its name, the name of its struct, and how many tensors that has (gdn_tensor_rows() of
 * ops/tensors.h). Then the places of the batch (0: there is none) and of the workspace. */
struct gdn_op_shape {
    const char *name, *args;
    size_t bytes, n_tensors, batch_at, workspace_at;
};
extern const struct gdn_op_shape gdn_op_shapes[GDN_N_OPS];

/* Runs the op that args belong to. */
gdn_status gdn_run_op(gdn_ctx *ctx, gdn_op op, const void *args);

#endif
