/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A backend: who computes the calls of a context. Ops describe a call (ops/entry.h) and hand it to
 * the row that ctx->backend has for the op; they name no backend.
 */
#ifndef GDN_BACKEND_H
#define GDN_BACKEND_H

#include <stddef.h>

#include "gdn.h"

/* The decisions of a backend about a call: memory for a struct of its own, of any type. */
enum { GDN_PLAN_ROOM = 6144 };
struct gdn_plan_room {
    _Alignas(64) char bytes[GDN_PLAN_ROOM];
};

/* The struct that the backend keeps there; its size is at most GDN_PLAN_ROOM. */
#define GDN_PLANNED(type, call) ((type *)(void *)(call)->room->bytes)

/* The caller's memory and stream, from the struct of any op. */
#define GDN_CALL_OF(args)                                           \
    ((struct gdn_call){ .workspace = (args)->workspace,             \
                        .workspace_bytes = (args)->workspace_bytes, \
                        .stream = (args)->stream })

/* The beginning of every checked call. */
struct gdn_call {
    void *workspace, *stream; /* the caller's */
    size_t workspace_bytes;   /* its bytes */
    const char *op;           /* its name */
    struct gdn_plan_room *room;
    size_t bytes; /* of workspace that the call needs: set by plan() */
};

/* An op on a backend. `call` points to the op's checked call (calls/), which begins with a
 * struct gdn_call. */
struct gdn_op_backend {
    /* Decides what run() will do and sets call->bytes, which is 0 before. Reads no contents. NULL:
     * there is nothing to decide, and no workspace. */
    gdn_status (*plan)(gdn_ctx *ctx, void *call);
    /* Computes or enqueues the call, then notes what ran. memory has call->bytes. NULL: the
     * backend lacks the op. */
    gdn_status (*run)(gdn_ctx *ctx, void *call, void *memory);
};

struct gdn_backend_table {
    const char *name;
    /* open() makes what a context of the backend needs, close() frees it. isa() is for
     * gdn_isa(). */
    gdn_status (*open)(gdn_ctx *ctx);
    void (*close)(gdn_ctx *ctx);
    const char *(*isa)(const gdn_ctx *ctx);
    /* Sets *memory to the caller's workspace if given (checked), else to the context's, grown. */
    gdn_status (*get_workspace)(gdn_ctx *ctx, void *given, size_t given_bytes, size_t needed,
                                void **memory);
    /* Copies host memory to new memory of the device, and waits and copies it back. upload is NULL
     * if the backend computes in host memory; then so are the other two. */
    gdn_status (*upload)(gdn_ctx *ctx, const void *host, size_t bytes, void **device);
    gdn_status (*download)(gdn_ctx *ctx, void *host, const void *device, size_t bytes);
    void (*release)(gdn_ctx *ctx, void *device);
    /* By gdn_op. */
    const struct gdn_op_backend *const *ops;
};

extern const struct gdn_backend_table gdn_cpu_backend, gdn_cuda_backend;

#endif
