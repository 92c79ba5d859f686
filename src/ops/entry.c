/* SPDX-License-Identifier: Apache-2.0 */
/* The frame of every op; see entry.h. */
#include "ops/entry.h"

static gdn_status run(gdn_ctx *ctx, const struct gdn_frame *frame, const char *op, void *call)
{
    char text[GDN_LOOPS_BYTES];
    TRY(frame->run(ctx, call));
    return gdn_note_kernel(ctx, op, frame->find_loops ? frame->find_loops(call, text)
                                                      : frame->loops);
}

gdn_status gdn_enter(gdn_ctx *ctx, const struct gdn_frame *frame, const char *op, const void *args,
                     void *call)
{
    if (!ctx) return GDN_E_ARG;
    const uint32_t fp     = gdn_fp_enter();
    gdn_status     status = frame->describe(ctx, args, call);
    if (status == GDN_OK)
        status = ctx->cuda ? frame->enqueue(ctx, call) : run(ctx, frame, op, call);
    gdn_fp_leave(fp);
    return status;
}

gdn_status gdn_enter_check(gdn_ctx *ctx, const struct gdn_frame *frame, const void *args,
                           void *call, size_t *bytes)
{
    TRY(frame->describe(ctx, args, call));
    *bytes = *(const size_t *)(const void *)((const char *)call + frame->bytes_at);
    return GDN_OK;
}
