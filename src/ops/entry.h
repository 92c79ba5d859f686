/* SPDX-License-Identifier: Apache-2.0 */
/* The frame of every op: what happens between the caller and the op's own code. */
#ifndef GDN_ENTRY_H
#define GDN_ENTRY_H

#include <stddef.h>

#include "core/ctx.h"

enum { GDN_LOOPS_BYTES = sizeof(((struct gdn_ctx *)0)->kernel) };

/* An op's own code. `call` points to the op's checked call, a struct that the op defines. */
struct gdn_frame {
    /* Copies and checks the caller's struct and fills *call. Reads no contents, writes nothing
     * else. Sets the call's `bytes` to the workspace that the call needs. */
    gdn_status (*describe)(gdn_ctx *ctx, const void *args, void *call);
    gdn_status (*run)(gdn_ctx *ctx, void *call);     /* computes it on the CPU */
    gdn_status (*enqueue)(gdn_ctx *ctx, void *call); /* enqueues it on the context's device */
    size_t      bytes_at;                            /* offset of a size_t, the call's `bytes` */
    const char *loops;                               /* what run() runs, for gdn_note_kernel() */
    /* If not NULL, returns in place of `loops` what this call ran; it may write that to text. */
    const char *(*find_loops)(void *call, char text[GDN_LOOPS_BYTES]);
};

/* Describes a call, then runs or enqueues it, then notes what ran under the op's name. */
gdn_status gdn_frame_call(gdn_ctx *ctx, const struct gdn_frame *frame, const char *op,
                          const void *args, void *call);
/* Describes a call and returns its workspace in *bytes. */
gdn_status gdn_frame_check(gdn_ctx *ctx, const struct gdn_frame *frame, const void *args,
                           void *call, size_t *bytes);

/* Defines gdn_<name>() and gdn_<name>_check() for a row of ops.def. `type` is the struct of the
 * caller, `call_type` the checked call. */
#define GDN_OP_ENTRY(name, type, frame, call_type)                                        \
    gdn_status gdn_##name(gdn_ctx *ctx, const type *args)                                 \
    {                                                                                     \
        call_type call;                                                                   \
        return gdn_frame_call(ctx, &frame, #name, args, &call);                           \
    }                                                                                     \
    gdn_status gdn_##name##_check(gdn_ctx *ctx, const type *args, size_t *bytes)          \
    {                                                                                     \
        call_type call;                                                                   \
        return gdn_frame_check(ctx, &frame, args, &call, bytes);                          \
    }

/* As a part of another op's call: checks and runs without the frame of a call of its own. */
gdn_status gdn_frame_part(gdn_ctx *ctx, const struct gdn_frame *frame, const void *args,
                          void *call);

/* Defines gdn_<name>_part() of ops/parts.h. */
#define GDN_OP_PART(name, type, frame, call_type)                                         \
    gdn_status gdn_##name##_part(gdn_ctx *ctx, const type *args)                          \
    {                                                                                     \
        call_type call;                                                                   \
        return gdn_frame_part(ctx, &frame, args, &call);                                  \
    }

#endif
