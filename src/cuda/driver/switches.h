/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forms, and sets of them, that a context can do without. Tests and measurements name some in the
 * environment: GDN_CUDA_WITHOUT="sm90,token packed". A call then takes the next form that can
 * compute it, as it would on a chip that has no such kernels.
 */
#ifndef GDN_CUDA_SWITCHES_H
#define GDN_CUDA_SWITCHES_H

#include <stdbool.h>

#include "core/ctx.h"

/* X(number, name). sm90: every kernel for Hopper alone; and clusters, and launches that overlap.
 * portable prefill: the form on tensor cores (prefill/chunks.c). Those of gradients: the same
 * (backward/select.c). channels: chunks with a gate per key channel (prefill/channels). The others
 * are forms of gdn_decode (decode/select.c). The last two take every call: one those with records
 * that accept tokens, the other all. */
#define GDN_CUDA_SWITCHES(X)                    \
    X(SM90, "sm90")                             \
    X(PORTABLE_PREFILL, "portable prefill")     \
    X(SM90_GRADIENTS, "sm90 gradients")         \
    X(FUSED_GRADIENTS, "fused gradients")       \
    X(PORTABLE_GRADIENTS, "portable gradients") \
    X(CHANNELS, "channels")                     \
    X(TOKEN_SLOTS, "token slots")               \
    X(TOKEN, "token")                           \
    X(TOKEN_PACKED, "token packed")             \
    X(WINDOW_K128, "window k128")               \
    X(WINDOW, "window")                         \
    X(WARP, "warp")                             \
    X(TOKEN_EIGHT, "token eight")               \
    X(GENERAL, "general")                       \
    X(LAZY_FEW, "lazy few")                     \
    X(LAZY, "lazy")                             \
    X(FOLD, "fold")                             \
    X(WALK, "walk")

enum gdn_cuda_switch {
#define GDN_CUDA_SWITCH(number, name) GDN_CUDA_##number,
    GDN_CUDA_SWITCHES(GDN_CUDA_SWITCH)
#undef GDN_CUDA_SWITCH
        GDN_CUDA_N_SWITCHES
};

const char *gdn_cuda_switch_name(enum gdn_cuda_switch which);

/* Reads the environment. Errors: GDN_E_ARG, a name that is not above. */
gdn_status gdn_cuda_read_switches(gdn_ctx *ctx);

#endif
