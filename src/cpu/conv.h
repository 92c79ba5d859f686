/* SPDX-License-Identifier: Apache-2.0 */
/* The short convolution as the CPU runs it. */
#ifndef GDN_CPU_CONV_H
#define GDN_CPU_CONV_H

#include "calls/conv.h"
#include "core/ctx.h"

/*
 * Bytes per thread, at most 64 KiB, or 128 with more than 8 taps; scratch is 64-byte aligned, that
 * much for every thread.
 * A sequence's state after its n_valid tokens goes to `to` (or carry_to): as many inputs as
 * the view is long, those before the first token from `from` (or carry_from), and zero where
 * that has none. So a carry must be as long as the pool that it will be written to.
 */
size_t gdn_conv_scratch(const struct gdn_conv *conv);
void gdn_conv_run(gdn_ctx *ctx, const struct gdn_conv *conv, void *scratch);

#endif
