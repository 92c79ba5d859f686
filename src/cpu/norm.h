/* SPDX-License-Identifier: Apache-2.0 */
/* Norms of rows as the CPU computes them. */
#ifndef GDN_CPU_NORM_H
#define GDN_CPU_NORM_H

#include "calls/norm.h"

/* Normalises rows [first, end). */
void gdn_norm_rows(const struct gdn_norm_job *s, int64_t first, int64_t end);

#endif
