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

/* Move a row of a head, or its gates, to another row. n: numbers of the row. */
void gdn_record_move_row(const struct gdn_record_rows *rows, int64_t slot, int64_t to, int64_t from,
                         int64_t head, int64_t n);
void gdn_record_move_gates(const struct gdn_record *record, int64_t slot, int64_t to, int64_t from,
                           int64_t head);

/* Before the tokens of a call with a record: reads its contents, and folds the rows that go into
 * their states first. memory: gdn_record_slots_bytes(). scratch: thread_bytes of each thread, at
 * least gdn_record_fold_scratch(). */
gdn_status gdn_record_begin(gdn_ctx *ctx, const struct gdn_rule *rule, const struct gdn_plan *plan,
                            void *memory, char *scratch, size_t thread_bytes);
size_t gdn_record_fold_scratch(const struct gdn_rule *rule);

#endif
