/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens, slots and checkpoints of a sequence, as the arrays of its batch name them. */
#include "batch/plan.h"
#include "core/tensor_check.h"

int64_t gdn_plan_each_slot(const struct gdn_plan *plan, const struct gdn_seq *s, int64_t t)
{
    if (s->write >= 0) return t == s->n_valid - 1 ? s->write : -1; /* sunk: the last one stays */
    return gdn_plan_named_slot(&plan->batch, gdn_index2(&plan->batch.write_slots, s->row, t));
}

int64_t gdn_plan_parent(const struct gdn_plan *plan, const struct gdn_seq *s, int64_t t)
{
    return plan->batch.parents.data ? gdn_index2(&plan->batch.parents, s->row, t) : t - 1;
}

int64_t gdn_plan_path(const struct gdn_plan *plan, const struct gdn_seq *s, int64_t t)
{
    return plan->batch.path.data ? gdn_index2(&plan->batch.path, s->row, t) : t;
}

int64_t gdn_plan_checkpoint(const struct gdn_plan *plan, const struct gdn_seq *s, int64_t i,
                            int64_t *slot)
{
    const gdn_batch *b = &plan->batch;
    const int64_t c = s->first_checkpoint + i;
    *slot =
        b->checkpoint_slots.data ? gdn_plan_named_slot(b, gdn_index(&b->checkpoint_slots, c)) : c;
    if (b->checkpoint_every) return (i + 1) * b->checkpoint_every - s->base;
    return gdn_index(&b->checkpoint_positions, c) - s->base;
}

int64_t gdn_plan_checkpoint_after(const struct gdn_plan *plan, const struct gdn_seq *s, int64_t t)
{
    int64_t first = 0, end = s->n_checkpoints, slot;
    while (first < end) {
        const int64_t middle = first + (end - first) / 2;
        if (gdn_plan_checkpoint(plan, s, middle, &slot) > t)
            end = middle;
        else
            first = middle + 1;
    }
    return first;
}
