/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of the library for the command, beside the public headers: names, times on a device,
 * and a device that need not be there. They give no structs. The files of this folder are linked to
 * the command alone.
 */
#ifndef GDN_INTERNAL_H
#define GDN_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>

#include "gdn.h"

/* ---- Names: number i of a list, NULL behind its end ------------------------------------------ */

const char *gdn_internal_op(int i);
/* Returns the name of feature i of processors. Sets *is_here: whether this machine has it. */
const char *gdn_internal_feature(int i, bool *is_here);
/* Returns the name of table i of loops in this build. Sets *runs: whether this machine runs it. */
const char *gdn_internal_table(int i, bool *runs);
/* The loops that every table has. */
const char *gdn_internal_loop(int i);
/* Returns the name of kernel i of the build; NULL: there are no more, or the build has no device
 * code. */
const char *gdn_internal_kernel(int i);
/* Returns the count of the images that have these kernels. */
int gdn_internal_images(void);
/* Returns true if the context's device runs that kernel. */
bool gdn_internal_runs_kernel(const gdn_ctx *ctx, int i);

/* Returns the name of the context's device; NULL: it computes on the CPU. */
const char *gdn_internal_device(const gdn_ctx *ctx);
/* Writes the chips of the device code in this build, and the devices there are. */
const char *gdn_internal_devices(char *text, size_t bytes);

/* ---- Calls of an op by its number ------------------------------------------------------------ */

/* Calls the op on tensors in host memory, wherever the context computes. */
gdn_status gdn_internal_call(gdn_ctx *ctx, gdn_op op, const void *args);

/* ---- Times on a device: events on the stream. 256 MB are written before each call, so that
 * nothing starts in the L2 cache. -------------------------------------------------------------- */

/* Runs the call once on a device. Returns the seconds of its kernels alone. */
gdn_status gdn_internal_timed_call(gdn_ctx *ctx, gdn_op op, const void *args, double *seconds);

/* Calls the op n times on copies of the tensors: the seconds of each call. */
gdn_status gdn_internal_time_rounds(gdn_ctx *ctx, gdn_op op, const void *args, int n,
                                    double *seconds);

/* Measures what a device reaches in a second, the best of 13 rounds: bytes copied, bytes read plus
 * bytes written by scaling `bytes` in place, or operations of a bf16 matrix product. */
enum gdn_yardstick { GDN_YARDSTICK_COPY, GDN_YARDSTICK_SCALE, GDN_YARDSTICK_PRODUCT };
gdn_status gdn_internal_yardstick(gdn_ctx *ctx, enum gdn_yardstick kind, size_t bytes,
                                  double *per_second);

/* ---- A device that need not be there --------------------------------------------------------- */

/*
 * Puts such a device in place of the context's CPU. Calls check, plan and choose kernels as on
 * that device, and launch nothing. Tensors may have any address, and `workspace` has to be given.
 * capability: 10 major + minor. shared_most: bytes of shared memory that a block may have. The name
 * is cut at 63 characters. After an error the context is good for gdn_last_error() and
 * gdn_ctx_destroy() alone.
 */
gdn_status gdn_internal_imagine(gdn_ctx *ctx, const char *name, int capability, int sm_count,
                                int shared_most);

/* Lines about the choice of kernels of the calls so far: number i, or NULL. They are kept if the
 * context has a log; a CPU has none. */
const char *gdn_internal_choice(const gdn_ctx *ctx, int i);

#endif
