/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Families of kernels that a context can do without. Tests and measurements name some in the
 * environment: GDN_CUDA_WITHOUT="sm90,token packed". A call then takes the next family that can
 * compute it, as it would on a chip that has no such kernels.
 */
#ifndef GDN_CUDA_FAMILIES_H
#define GDN_CUDA_FAMILIES_H

#include <stdbool.h>

#include "core/ctx.h"

/* X(number, name). sm90: every kernel for Hopper alone; and clusters, and launches that overlap.
 * portable prefill: the form on tensor cores (prefill/chunks.c). Those of gradients: the same
 * (backward/select.c). channels: chunks with a gate per key channel (prefill/channels). The others
 * are forms of gdn_decode (decode/select.c). The last two take every call: one those with records
 * that accept tokens, the other all. */
#define GDN_CUDA_FAMILIES(X)                    \
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

enum gdn_cuda_family {
#define GDN_CUDA_FAMILY(number, name) GDN_CUDA_##number,
    GDN_CUDA_FAMILIES(GDN_CUDA_FAMILY)
#undef GDN_CUDA_FAMILY
        GDN_CUDA_N_FAMILIES
};

const char *gdn_cuda_family_name(enum gdn_cuda_family family);

/* Reads the environment. Errors: GDN_E_ARG, a name that is not above. */
gdn_status gdn_cuda_read_families(gdn_ctx *ctx);

#endif
