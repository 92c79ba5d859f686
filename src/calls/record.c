/* SPDX-License-Identifier: Apache-2.0 */
/* The contents of records: see record.h. */
#include "calls/record.h"

#include <string.h>

int64_t gdn_record_count(const struct gdn_record *record, int64_t slot)
{
    return gdn_index(&record->count, slot);
}

void gdn_record_set_count(const struct gdn_record *record, int64_t slot, int64_t count)
{
    const gdn_tensor *t = &record->count;
    void *at = gdn_at(t, slot * t->stride[0]);
    if (t->dtype == GDN_I32)
        *(int32_t *)at = (int32_t)count;
    else
        *(int64_t *)at = count;
}

int64_t gdn_record_pending(const struct gdn_record *record, const struct gdn_seq *seq)
{
    return seq->read == seq->slot ? gdn_record_count(record, seq->slot) : 0;
}

/* Returns true if the state after the call has the slot of the state before it. */
static bool stays(const struct gdn_seq *seq)
{
    return seq->read == seq->slot && seq->write == seq->slot;
}

bool gdn_record_folds(const struct gdn_record *record, const struct gdn_seq *seq)
{
    if (!record->accepts) return false;
    if (!stays(seq)) return true;
    const int64_t c = gdn_record_count(record, seq->slot) + seq->n_valid;
    const int64_t full = record->chunk ? record->chunk : record->R;
    return seq->n_valid > 0 && (seq->total > record->lazy_tokens || c >= full);
}

bool gdn_record_folds_first(const struct gdn_record *record, const struct gdn_seq *seq)
{
    return seq->read == seq->slot && gdn_record_folds(record, seq) &&
           (!stays(seq) || seq->total > record->lazy_tokens);
}

static void forget_checkpoints(const struct gdn_record *record, const struct gdn_plan *plan,
                               const struct gdn_seq *seq)
{
    int64_t slot;
    for (int64_t i = 0; i < seq->n_checkpoints; i++) {
        gdn_plan_checkpoint(plan, seq, i, &slot);
        if (slot >= 0) gdn_record_set_count(record, slot, 0);
    }
}

void gdn_record_accept(const struct gdn_record *record, const struct gdn_plan *plan,
                       bool has_checkpoints)
{
    for (int64_t b = 0; record->accepts && b < plan->B; b++) {
        const struct gdn_seq *s = &plan->seqs[b];
        if (s->slot < 0) continue;
        if (has_checkpoints) forget_checkpoints(record, plan, s);
        const int64_t c = gdn_record_count(record, s->slot) + s->n_valid;
        if (!gdn_record_folds(record, s))
            gdn_record_set_count(record, s->slot, c);
        else if (s->write >= 0)
            gdn_record_set_count(record, s->write, record->chunk ? c % record->chunk : 0);
    }
}

size_t gdn_record_slots_bytes(const struct gdn_record *record)
{
    return gdn_align64((size_t)(record->P / 8 + 1));
}

gdn_status gdn_record_check_slots(gdn_ctx *ctx, const struct gdn_record *record,
                                  const struct gdn_plan *plan, bool append, void *memory)
{
    unsigned char *seen = memory;
    memset(seen, 0, gdn_record_slots_bytes(record));
    for (int64_t b = 0; b < plan->B; b++) {
        const struct gdn_seq *s = &plan->seqs[b];
        const int64_t slot = s->slot;
        if (slot < 0) continue;
        if (seen[slot / 8] >> slot % 8 & 1)
            return gdn_fail(ctx, GDN_E_ARG,
                            "read_slots[%lld]: slot %lld a second time, wanted once", (long long)b,
                            (long long)slot);
        seen[slot / 8] |= (unsigned char)(1 << slot % 8);
        const int64_t c = gdn_record_count(record, slot);
        if (c < 0 || c > record->R)
            return gdn_fail(ctx, GDN_E_ARG, "record_count[%lld]: %lld, wanted 0 to %lld",
                            (long long)slot, (long long)c, (long long)record->R);
        if (append && !record->accepts && c + s->n_valid > record->R)
            return gdn_fail(ctx, GDN_E_ARG,
                            "record_count[%lld]: %lld, and %lld drafts, wanted at most %lld rows",
                            (long long)slot, (long long)c, (long long)s->n_valid,
                            (long long)record->R);
    }
    return GDN_OK;
}

size_t gdn_record_contents_bytes(const struct gdn_record_call *c)
{
    return c->plan_bytes + gdn_record_slots_bytes(&c->record);
}

gdn_status gdn_record_read_contents(gdn_ctx *ctx, struct gdn_record_call *c, void *memory)
{
    const struct gdn_plan_pools pools = { .read = c->record.P, .write = -1, .checkpoint = -1 };
    TRY(gdn_plan_batch(ctx, &c->tokens, &pools, memory, &c->plan));
    return gdn_record_check_slots(ctx, &c->record, &c->plan, false, (char *)memory + c->plan_bytes);
}

gdn_status gdn_record_check_accepted(gdn_ctx *ctx, const struct gdn_commit_call *m)
{
    const gdn_record_commit_args *a = &m->args;
    for (int64_t b = 0; b < m->c.plan.B; b++) {
        const int64_t slot = m->c.plan.seqs[b].slot;
        if (slot < 0) continue;
        const int64_t n = gdn_index(&a->n_accepted, b);
        const int64_t rest = m->c.record.R - gdn_record_count(&m->c.record, slot);
        if (n < 0 || n > rest)
            return gdn_fail(ctx, GDN_E_ARG, "n_accepted[%lld]: %lld, wanted 0 to %lld",
                            (long long)b, (long long)n, (long long)rest);
        if (!a->path.data) continue;
        if (n > a->path.size[1])
            return gdn_fail(ctx, GDN_E_SHAPE, "path: %lld columns, wanted %lld for sequence %lld",
                            (long long)a->path.size[1], (long long)n, (long long)b);
        for (int64_t i = 0, least = 0; i < n; i++) {
            const int64_t row = gdn_record_row(a, b, i);
            if (row < least || row >= rest)
                return gdn_fail(ctx, GDN_E_ARG, "path[%lld][%lld]: %lld, wanted %lld to %lld",
                                (long long)b, (long long)i, (long long)row, (long long)least,
                                (long long)rest - 1);
            least = row + 1;
        }
    }
    return GDN_OK;
}
