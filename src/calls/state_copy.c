/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of the slots of gdn_state_copy; see state_copy.h. */
#include "calls/state_copy.h"

#include "core/tensor_check.h"

static int64_t slot_of(const gdn_tensor *slots, int64_t pair)
{
    return slots->data ? gdn_index(slots, pair) : pair;
}

size_t gdn_state_bytes(const struct gdn_state_move *m)
{
    return gdn_align64((size_t)m->args.to_pool.size[0] / 8 + 1);
}

static gdn_status check_below(gdn_ctx *ctx, const char *name, int64_t pair, int64_t slot,
                              int64_t end)
{
    if (slot < end) return GDN_OK;
    return gdn_fail(ctx, GDN_E_ARG, "%s[%lld]: slot %lld, wanted below %lld", name, (long long)pair,
                    (long long)slot, (long long)end);
}

/* Returns true if the slot of the target is written. */
static bool is_written(const unsigned char *bits, int64_t slot)
{
    return bits[slot / 8] >> slot % 8 & 1;
}

gdn_status gdn_state_check_slots(gdn_ctx *ctx, const struct gdn_state_move *m, void *memory)
{
    const gdn_state_copy_args *a = &m->args;
    unsigned char *bits = memory;
    memset(bits, 0, gdn_state_bytes(m));
    for (int64_t i = 0; i < m->n_pairs; i++) {
        const int64_t from = slot_of(&a->from_slots, i), to = slot_of(&a->to_slots, i);
        if (to < 0) continue;
        TRY(check_below(ctx, m->to_slots_name, i, to, a->to_pool.size[0]));
        if (m->from.data) TRY(check_below(ctx, m->from_slots_name, i, from, a->from_pool.size[0]));
        if (is_written(bits, to))
            return gdn_fail(ctx, GDN_E_ARG, "%s[%lld]: slot %lld, which an earlier pair writes",
                            m->to_slots_name, (long long)i, (long long)to);
        bits[to / 8] |= (unsigned char)(1 << to % 8);
    }
    for (int64_t i = 0; i < m->n_pairs && m->same_pool; i++) {
        const int64_t from = slot_of(&a->from_slots, i), to = slot_of(&a->to_slots, i);
        if (to >= 0 && from >= 0 && from != to && is_written(bits, from))
            return gdn_fail(ctx, GDN_E_ARG, "%s[%lld]: slot %lld, which another pair writes",
                            m->from_slots_name, (long long)i, (long long)from);
    }
    return GDN_OK;
}
