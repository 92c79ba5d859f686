/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GDN_SPLIT_INVARIANT with a record: tokens from any place of a chunk on, with the bits that the
 * whole chunk gives them (docs/design/one-set-of-bits.md).
 */
#ifndef GDN_CPU_OPEN_CHUNK_H
#define GDN_CPU_OPEN_CHUNK_H

#include "cpu/rule.h"

/* Refuses rows of a record that are not float32. */
gdn_status gdn_open_check_rows(gdn_ctx *ctx, const struct gdn_record *record);

size_t gdn_open_scratch(const struct gdn_rule *r, const struct gdn_kernels *kr);

/* Computes the tokens of a sequence with a slot; its rows of u, and its states. */
void gdn_open_item(const struct gdn_rule *r, const struct gdn_kernels *kr,
                   const struct gdn_rule_item *item, void *scratch);

/* Leaves rows of k, and of g and beta, in the records of all sequences. It comes after all items,
 * which read the rows that it overwrites. */
void gdn_open_leave_rows(gdn_ctx *ctx, const struct gdn_rule *r);

/* gdn_record_fold(): whole chunks of the records go into the states. The sequences have no tokens.
 * scratch: gdn_open_scratch() for each thread. */
void gdn_open_fold(gdn_ctx *ctx, const struct gdn_rule *r, void *scratch);

#endif
