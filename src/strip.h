/* SPDX-License-Identifier: Apache-2.0 */
/* States between memory and strips: [K][kr->strip] of float32, the columns of a state that the
 * chunked loops work on. */
#ifndef GDN_STRIP_H
#define GDN_STRIP_H

#include "cpu/kernels.h"
#include "plan.h"

/* Floats from one row of scratch or of a matrix with K columns to the next. */
static inline ptrdiff_t gdn_strip_ld(int K) { return (K + 15) & ~15; }

/* The state of one head at `from` (NULL: zero), columns [col, col + n); those up to the width
 * of the strip become zero. rows: scratch, [kr->strip][gdn_strip_ld(K)]. */
void gdn_load_strip(float *S, const struct gdn_kernels *kr, const void *from,
                    const struct gdn_pool_view *view, int K, int col, int n, float *rows);
void gdn_store_strip(const float *S, const struct gdn_kernels *kr, void *to,
                     const struct gdn_pool_view *view, int K, int col, int n, float *rows);

#endif
