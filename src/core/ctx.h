/* SPDX-License-Identifier: Apache-2.0 */
/* The context: options, loops, threads, workspace and the last error, for every op. */
#ifndef GDN_CTX_H
#define GDN_CTX_H

#include <stdatomic.h>

#include "core/status.h"
#include "core/threads.h"
#include "gdn.h"

struct gdn_kernels;       /* cpu/loops/kernels.h */
struct gdn_bf16_products; /* cpu/loops/bf16.h */

struct gdn_ctx {
    gdn_options options;                      /* hooks filled in */
    const struct gdn_kernels *kr;             /* the inner loops, chosen once */
    const struct gdn_bf16_products *products; /* loops for products in bfloat16; NULL: there are
                                                 none */
    struct gdn_threads *threads;
    const struct gdn_backend_table *backend; /* who computes: core/backend.h */
    struct gdn_cuda *cuda;                   /* the device (cuda/driver/launch.h); NULL on a CPU */
    void *workspace;                         /* the context's own, grown on demand */
    size_t workspace_bytes;
    atomic_bool is_busy; /* a call is using all of this: gdn_enter() */
    char error[512];
    char kernel[1024]; /* a layer has some thirty */
};

/*
 * Copies a caller's struct, of the struct_size that it begins with, into the library's own. A
 * struct of an earlier version is shorter; the rest of the library's own is then zero. GDN_E_ARG:
 * args NULL, a shorter size that no version had, or a longer struct whose unknown tail is not
 * zero.
 */
gdn_status gdn_copy_args(gdn_ctx *ctx, void *own, size_t own_bytes, const void *args,
                         const char *name);

/* The same with a list of earlier sizes, which a NULL name ends. */
struct gdn_old_size {
    const char *name;
    size_t bytes;
};
gdn_status gdn_copy_sized(gdn_ctx *ctx, void *own, size_t own_bytes, const void *args,
                          const char *name, const struct gdn_old_size *old);

/* The caller's memory if given (checked: size, alignment), else the context's, grown. */
gdn_status gdn_get_workspace(gdn_ctx *ctx, void *given, size_t given_bytes, size_t needed,
                             void **memory);

/* Ends a call that ran: checks that the caller's parallel_for did what gdn_options says (else
 * GDN_E_ARG). Then it names the loops for gdn_last_kernel() and the log, as "op: loop.isa
 * loop.isa". loops: their names with spaces between. */
gdn_status gdn_note_kernel(gdn_ctx *ctx, const char *op, const char *loops)
    __attribute__((warn_unused_result));

/* Does the same with one name, "op: name". */
gdn_status gdn_note_line(gdn_ctx *ctx, const char *op, const char *name);

/* Writes the line to the caller's log, if the caller has one. */
void gdn_log_line(const gdn_ctx *ctx, const char *line);
/* Logs the new size of the context's workspace. */
void gdn_log_workspace(const gdn_ctx *ctx, size_t bytes);

/* Returns a variable of the environment that is not empty, else NULL. A setuid program always
 * gets NULL, so that no variable steers it. */
const char *gdn_environment(const char *name);

/*
 * The frame of every call of gdn.h that computes or checks. gdn_enter() refuses a context that
 * another call is using (GDN_E_ARG), else sets the float environment. A call that entered ends
 * with gdn_leave(), which returns `status`.
 */
gdn_status gdn_enter(gdn_ctx *ctx, uint32_t *fp) __attribute__((warn_unused_result));
gdn_status gdn_leave(gdn_ctx *ctx, uint32_t fp, gdn_status status);

/* Rounds up to a whole number of cache lines. */
static inline size_t gdn_align64(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

/* A piece of scratch: its bytes, and the address of the pointer to set. */
struct gdn_room {
    void *at;
    size_t bytes;
};

/* Lays pieces out one after the other, each from a cache line on. Sets their pointers (to NULL
 * if memory is NULL), and returns the bytes of all. */
size_t gdn_lay_out_rooms(const struct gdn_room *rooms, size_t n, char *memory);

/* One array of scratch: n floats, and the pointer that will find them. */
struct gdn_part {
    float **at;
    size_t n;
};

/* Lays arrays out one after the other, each from a cache line on. Sets their pointers unless
 * memory is NULL, and returns the bytes of all. */
static inline size_t gdn_lay_out(const struct gdn_part *parts, size_t n_parts, char *memory)
{
    size_t bytes = 0;
    for (size_t i = 0; i < n_parts; i++) {
        if (memory) *parts[i].at = (float *)(void *)(memory + bytes);
        bytes += gdn_align64(parts[i].n * sizeof(float));
    }
    return bytes;
}

#endif
