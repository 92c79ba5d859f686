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

gdn_status gdn_frame_call(gdn_ctx *ctx, const struct gdn_frame *frame, const char *op,
                          const void *args, void *call)
{
    uint32_t fp;
    TRY(gdn_enter(ctx, &fp));
    gdn_status status = frame->describe(ctx, args, call);
    if (status == GDN_OK)
        status = ctx->cuda ? frame->enqueue(ctx, call) : run(ctx, frame, op, call);
    return gdn_leave(ctx, fp, status);
}

gdn_status gdn_frame_check(gdn_ctx *ctx, const struct gdn_frame *frame, const void *args,
                           void *call, size_t *bytes)
{
    TRY(frame->describe(ctx, args, call));
    *bytes = *(const size_t *)(const void *)((const char *)call + frame->bytes_at);
    return GDN_OK;
}

gdn_status gdn_frame_part(gdn_ctx *ctx, const struct gdn_frame *frame, const void *args, void *call)
{
    TRY(frame->describe(ctx, args, call));
    return ctx->cuda ? frame->enqueue(ctx, call) : frame->run(ctx, call);
}
