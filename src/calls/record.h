/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records of drafted tokens: rows of k, u and alpha beside each slot of a pool, which applied
 * to its state give the bits that the tokens gave. The sign of an alpha says that beta was 0:
 * such a row only decays, whatever its k.
 */
#ifndef GDN_RECORD_H
#define GDN_RECORD_H

#include "batch/plan.h"
#include "calls/rule.h"
#include "core/backend.h"
#include "core/tensor_check.h"
#include "gdn_record.h"

enum { GDN_RECORD_SPLIT_ROWS = 64 }; /* least rows with GDN_SPLIT_INVARIANT */

static inline void *gdn_record_at(const struct gdn_record_rows *r, int64_t slot, int64_t row,
                                  int64_t head)
{
    return r->data + slot * r->slot + row * r->row + head * r->head;
}

struct gdn_record {
    struct gdn_record_rows k, u, g;
    gdn_tensor count;
    int64_t P, R;
    int64_t channels, g_channel; /* numbers of g for a head, bytes between them */
    bool accepts;                /* tokens at once: GDN_WRITE_FINAL */
    int64_t lazy_tokens;         /* ... of a sequence of so many at most; others fold first */
    int chunk;                   /* tokens of a chunk, whose end writes the state; 0: row R does */
};

/* Returns number x of the gate of a head. */
static inline float *gdn_record_gate(const struct gdn_record *record, int64_t slot, int64_t row,
                                     int64_t head, int64_t x)
{
    char *g = gdn_record_at(&record->g, slot, row, head);
    return (float *)(void *)(g + x * record->g_channel);
}

/* The contents: no slot twice, counts not negative and at most R; if drafts append, so are they
 * with the sequence's tokens. memory: gdn_record_slots_bytes(). */
size_t gdn_record_slots_bytes(const struct gdn_record *record);
gdn_status gdn_record_check_slots(gdn_ctx *ctx, const struct gdn_record *record,
                                  const struct gdn_plan *plan, bool append, void *memory);

/* Returns rows in use of a slot; and sets their number. */
int64_t gdn_record_count(const struct gdn_record *record, int64_t slot);
void gdn_record_set_count(const struct gdn_record *record, int64_t slot, int64_t count);

/* Returns the rows that belong to the state that a sequence starts from; it has a slot. */
int64_t gdn_record_pending(const struct gdn_record *record, const struct gdn_seq *seq);

/* Returns true if the call writes the state of a sequence, which has a slot: its tokens fill the
 * record or a chunk, or are too many, or the state is not where the sequence starts. */
bool gdn_record_folds(const struct gdn_record *record, const struct gdn_seq *seq);
/* Returns true if the rows go into the state before the call, which then has none of them. */
bool gdn_record_folds_first(const struct gdn_record *record, const struct gdn_seq *seq);
/* Counts the tokens of such a call when it is done. Slots whose states it wrote have no rows. So
 * do slots of checkpoints in the same pool. */
void gdn_record_accept(const struct gdn_record *record, const struct gdn_plan *plan,
                       bool has_checkpoints);

/* ---- Checked calls ------------------------------------------------------------------------- */

/* The part of both ops: a record and slots. */
struct gdn_record_call {
    struct gdn_tokens tokens; /* one for each sequence, since a plan needs tokens */
    struct gdn_plan plan;
    struct gdn_record record;
    size_t plan_bytes;
};

struct gdn_commit_call {
    struct gdn_call base;
    gdn_record_commit_args args;
    struct gdn_record_call c;
    int64_t K, V, Hk, H;
};

struct gdn_fold_call {
    struct gdn_call base;
    gdn_record_fold_args args;
    struct gdn_record_call c;
    struct gdn_rule rule; /* sizes, heads, the pool and the record */
};

/* The contents of both ops. bytes: memory for them. read: loads the slots and counts. check:
 * refuses what n_accepted and path may not hold. */
size_t gdn_record_contents_bytes(const struct gdn_record_call *call);
gdn_status gdn_record_read_contents(gdn_ctx *ctx, struct gdn_record_call *call, void *memory);
gdn_status gdn_record_check_accepted(gdn_ctx *ctx, const struct gdn_commit_call *call);

/* Returns the row of a sequence's accepted token i. */
static inline int64_t gdn_record_row(const gdn_record_commit_args *a, int64_t b, int64_t i)
{
    return a->path.data ? gdn_index2(&a->path, b, i) : i;
}

#endif
