/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of states as views of a pool. */
#ifndef GDN_POOL_VIEW_H
#define GDN_POOL_VIEW_H

#include "core/ctx.h"
#include "core/views.h"

/* A state tensor [P][H]([V][K] or [K][V]) as a view; absent: data NULL. One of its last two
 * strides is 1. */
gdn_status gdn_state_view(gdn_ctx *ctx, const gdn_tensor *t, const char *name, int32_t layout,
                          int64_t H, int64_t K, int64_t V, struct gdn_pool_view *view);

/* The same for pools of any strides, and of 8 bits with scales. */
struct gdn_scaled {
    const gdn_tensor *t, *scales;
    const char *name, *scales_name;
};
gdn_status gdn_scaled_view(gdn_ctx *ctx, const struct gdn_scaled *s, int32_t layout, int64_t H,
                           int64_t K, int64_t V, struct gdn_pool_view *view);
/* Check scales, float32 [P][H][V]. States of i8 need scales, 8-bit floats may have them, others
 * have none. Two pools in one memory have their scales in one memory too. */
gdn_status gdn_check_scales(gdn_ctx *ctx, const struct gdn_scaled *s, int64_t H, int64_t V);
gdn_status gdn_check_twins(gdn_ctx *ctx, const struct gdn_scaled *a, const struct gdn_scaled *b);

#endif
