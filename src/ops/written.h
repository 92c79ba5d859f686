/* SPDX-License-Identifier: Apache-2.0 */
/* What an op writes: the check that follows from the rows of ops.def. */
#ifndef GDN_WRITTEN_H
#define GDN_WRITTEN_H

#include "core/ctx.h"

/* Checks the tensors that a call writes: none has an element twice, and none overlaps another
 * tensor of the struct or an array of the batch (NULL: none). Some pairs may be one view.
 * args is the library's copy, whose tensors have passed gdn_check_tensor(); the batch is
 * described. */
gdn_status gdn_check_written(gdn_ctx *ctx, gdn_op op, const void *args, const gdn_batch *batch);

#endif
