/* SPDX-License-Identifier: Apache-2.0 */
/* Refused calls, for every op: see ring2.h. */
#include <string.h>

#include "ops/tensors.h"
#include "ring2.h"
#include "ring2_device.h"

/* Far from all memory of the process, by a multiple of every alignment. */
static void move_away(gdn_tensor *t)
{
    if (t->data) t->data = (void *)((uintptr_t)t->data - ((uintptr_t)1 << 44));
}

/* Asks with pointers that must not be read through. */
static gdn_status ask(gdn_ctx *ctx, gdn_op op, const void *args)
{
    const struct gdn_op_shape *o = &gdn_op_shapes[op];
    char *copy = ring2_heap(o->bytes);
    const gdn_batch *batch = NULL;
    gdn_batch *own = ring2_heap(sizeof *own);
    gdn_tensor *t;
    const size_t n_arrays = (sizeof *own - offsetof(gdn_batch, cu_seqlens)) / sizeof *t;
    memcpy(copy, args, o->bytes);
    for (size_t i = 0; i < o->n_tensors; i++)
        move_away(gdn_tensor_of(&gdn_tensor_rows(op)[i], copy));
    if (o->batch_at) memcpy(&batch, copy + o->batch_at, sizeof batch);
    if (batch) {
        *own = *batch;
        t = &own->cu_seqlens;
        for (size_t i = 0; i < n_arrays; i++) move_away(&t[i]);
        memcpy(copy + o->batch_at, &own, sizeof own);
    }
    return gdn_supported(ctx, op, copy);
}

void ring2_refused(gdn_ctx *ctx, gdn_op op, const void *args, enum ring2_seen seen, gdn_status want,
                   const char *needle)
{
    uint32_t size = 0;
    size_t bytes = 77;
    gdn_status status;
    if (seen != RING2_STRUCT && ring2_on_device()) return; /* contents are not read there */
    ring2_call_begin();
    status = gdn_run_op(ctx, op, args);
    ring2_status(ctx, "the call", status, want);
    CHECK(strstr(gdn_last_error(ctx), needle), "the error \"%s\" does not name %s",
          gdn_last_error(ctx), needle);
    want = seen == RING2_STRUCT ? want : GDN_OK;
    if (args) memcpy(&size, args, sizeof size);
    if (size == gdn_op_shapes[op].bytes)
        ring2_status(ctx, "gdn_supported", ask(ctx, op, args), want);
    status = gdn_workspace_bytes(ctx, op, args, &bytes);
    ring2_status(ctx, "gdn_workspace_bytes", status, want);
    CHECK(want == GDN_OK || bytes == 77, "gdn_workspace_bytes wrote %zu", bytes);
    ring2_call_end();
}
