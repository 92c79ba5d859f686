/* SPDX-License-Identifier: Apache-2.0 */
/* Records as the CPU applies them. */
#ifndef GDN_CPU_RECORD_H
#define GDN_CPU_RECORD_H

#include "calls/record.h"
#include "cpu/rule.h"

/* Applies the rows of a slot to columns [col, col + n) of a head's state, which lie in S as
 * float32. */
void gdn_record_apply(const struct gdn_rule *r, const struct gdn_kernels *kr, int64_t slot,
                      int head, int col, int n, bool k_first, float *S);

#endif
