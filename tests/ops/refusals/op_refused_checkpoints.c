/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu */
/* G1 for the checkpoints of gdn_prefill and gdn_decode: lists and pools that are refused. */
#include "ring2_rule.h"

enum { H = 4, K = 16, V = 12 };

static gdn_tensor pool(int64_t P)
{
    gdn_tensor t = ring2_new(GDN_F32, 0, 4, P, H, V, K);
    ring2_fill(&t, -1, 1);
    return t;
}

/* Three sequences in slots 6, 2, 8 of 9; a list for them, and 5 slots for checkpoints. */
static gdn_rule_args spoilable(gdn_batch **t)
{
    static const int64_t lengths[3] = { 20, 12, 9 }, slots[3] = { 6, 2, 8 };
    static const int64_t starts[4] = { 0, 2, 2, 4 }, at[4] = { 5, 20, 1, 9 };
    static const int64_t to[4] = { 3, 0, -1, 1 };
    static const int heads[3] = { 2, 2, H };
    gdn_rule_args a = ring2_rule_packed(GDN_F32, GDN_F32, 3, lengths, heads, K, V, t);
    a.state = pool(9);
    a.checkpoints = pool(5);
    (*t)->read_slots = ring2_indices(GDN_I32, 3, slots);
    (*t)->checkpoint_starts = ring2_indices(GDN_I32, 4, starts);
    (*t)->checkpoint_positions = ring2_indices(GDN_I64, 4, at);
    (*t)->checkpoint_slots = ring2_indices(GDN_I32, 4, to);
    return a;
}

#define REFUSE(seen, status, needle, ...)                         \
    do {                                                          \
        gdn_batch *t;                                             \
        gdn_rule_args a_ = spoilable(&t), *a = &a_;               \
        __VA_ARGS__;                                              \
        ring2_refused(ring2_ctx(1), op, a, seen, status, needle); \
    } while (0)
#define LIST(...) list_of(sizeof((int64_t[]){ __VA_ARGS__ }) / 8, (int64_t[]){ __VA_ARGS__ })

static gdn_tensor list_of(size_t n, const int64_t *values)
{
    return ring2_indices(GDN_I64, (int64_t)n, values);
}

static void refuse_lists(gdn_op op)
{
    REFUSE(RING2_CONTENTS, GDN_E_ARG, "slot 3: written by sequence 0 and by sequence 2",
           t->checkpoint_slots = LIST(3, 0, -1, 3));
    REFUSE(RING2_CONTENTS, GDN_E_ARG, "slot 0: written by sequence 0 and by sequence 0",
           t->checkpoint_slots = LIST(0, 0, -1, 3));
    REFUSE(RING2_CONTENTS, GDN_E_ARG, "checkpoint_slots[1]: 5, wanted below 5",
           t->checkpoint_slots = LIST(3, 5, -1, 1));
    REFUSE(RING2_CONTENTS, GDN_E_ARG, "checkpoint_positions[1]: 4, wanted 5 to 20",
           t->checkpoint_positions = LIST(5, 4, 1, 9));
    REFUSE(RING2_CONTENTS, GDN_E_ARG, "checkpoint_positions[3]: 10, wanted 1 to 9",
           t->checkpoint_positions = LIST(5, 20, 1, 10));
    REFUSE(RING2_CONTENTS, GDN_E_ARG, "checkpoint_positions[2]: 0, wanted 1 to 9",
           t->checkpoint_positions = LIST(5, 20, 0, 9));
    REFUSE(RING2_CONTENTS, GDN_E_ARG, "checkpoint_starts[0]: 1",
           t->checkpoint_starts = LIST(1, 2, 2, 4));
    REFUSE(RING2_CONTENTS, GDN_E_ARG, "checkpoint_starts[2]: 1",
           t->checkpoint_starts = LIST(0, 2, 1, 4));
    REFUSE(RING2_CONTENTS, GDN_E_ARG, "checkpoint_starts[3]: 5",
           t->checkpoint_starts = LIST(0, 2, 2, 5));
    REFUSE(RING2_STRUCT, GDN_E_SHAPE, "checkpoint_starts", t->checkpoint_starts = LIST(0, 2, 4));
    REFUSE(RING2_STRUCT, GDN_E_SHAPE, "checkpoint_slots", t->checkpoint_slots = LIST(0, 1, 2));
    REFUSE(RING2_STRUCT, GDN_E_ARG, "checkpoint_starts: absent", t->checkpoint_starts.data = NULL);
    REFUSE(RING2_STRUCT, GDN_E_ARG, "checkpoint_positions: absent",
           t->checkpoint_positions.data = NULL);
    REFUSE(RING2_STRUCT, GDN_E_ARG, "checkpoint_every: 4", t->checkpoint_every = 4);
    REFUSE(RING2_STRUCT, GDN_E_ARG, "checkpoint_positions: absent, and checkpoint_every is 0",
           t->checkpoint_starts.data = t->checkpoint_positions.data = NULL);
    REFUSE(RING2_STRUCT, GDN_E_ARG, "checkpoints: absent, wanted with checkpoint_positions",
           a->checkpoints.data = NULL);
    REFUSE(RING2_STRUCT, GDN_E_ARG, "checkpoints: absent, wanted with checkpoint_every",
           a->checkpoints.data = NULL, t->checkpoint_every = 4,
           t->checkpoint_starts.data = t->checkpoint_positions.data = NULL);
    REFUSE(RING2_STRUCT, GDN_E_ARG, "checkpoints: absent, wanted with checkpoint_slots",
           a->checkpoints.data = NULL,
           t->checkpoint_starts.data = t->checkpoint_positions.data = NULL);
    REFUSE(RING2_STRUCT, GDN_E_ARG, "checkpoint_every: -1", t->checkpoint_every = -1);
    REFUSE(RING2_CONTENTS, GDN_E_SHAPE, "checkpoint_slots: [4], wanted 5 at least",
           t->checkpoint_every = 6,
           t->checkpoint_starts.data = t->checkpoint_positions.data = NULL);
    REFUSE(RING2_CONTENTS, GDN_E_ARG,
           "checkpoint_slots: absent, so slot 5 for checkpoint 5 of 5 slots",
           t->checkpoint_every = 6, t->checkpoint_slots.data = NULL,
           t->checkpoint_starts.data = t->checkpoint_positions.data = NULL);
}

static void refuse_pools(gdn_op op)
{
    REFUSE(RING2_STRUCT, GDN_E_DTYPE, "checkpoints", a->checkpoints.dtype = GDN_I32);
    REFUSE(RING2_STRUCT, GDN_E_SHAPE, "checkpoints", a->checkpoints.size[3] = K - 1);
    REFUSE(RING2_STRUCT, GDN_E_SHAPE, "checkpoints", a->checkpoints.stride[0] = 1);
    REFUSE(RING2_STRUCT, GDN_E_ARG, "checkpoints",
           a->checkpoints = ring2_narrow(&a->state, 0, 1, 5));
    REFUSE(RING2_STRUCT, GDN_E_ARG, "checkpoints", a->state_out = pool(9),
           a->checkpoints = a->state);
    REFUSE(RING2_STRUCT, GDN_E_ARG, "checkpoints", a->checkpoints.data = a->out.data);
    REFUSE(RING2_STRUCT, GDN_E_ARG, "checkpoints", a->checkpoints.data = t->checkpoint_slots.data);
    /* In the pool of the states: a slot that is read, by another sequence and by the same; one
     * where a final state goes. */
    REFUSE(RING2_CONTENTS, GDN_E_ARG, "slot 2: written by sequence 0 and by sequence 1",
           a->checkpoints = a->state, t->checkpoint_slots = LIST(3, 2, -1, 1));
    REFUSE(RING2_CONTENTS, GDN_E_ARG, "slot 2: read by sequence 1 and written by sequence 0",
           a->checkpoints = a->state, t->checkpoint_slots = LIST(3, 2, -1, 1),
           t->write_slots = LIST(4, 5, 7));
    REFUSE(RING2_CONTENTS, GDN_E_ARG, "slot 6: read by sequence 0 and written by sequence 0",
           a->checkpoints = a->state, t->checkpoint_slots = LIST(3, 6, -1, 1),
           t->write_slots = LIST(4, 5, 7));
    REFUSE(RING2_CONTENTS, GDN_E_ARG, "slot 2: read by sequence 1 and written by sequence 2",
           a->checkpoints = a->state, t->checkpoint_slots = LIST(3, 1, -1, 2),
           t->write = GDN_WRITE_NONE);
    REFUSE(RING2_CONTENTS, GDN_E_ARG, "slot 4: written by sequence 0 and by sequence 0",
           a->state_out = pool(9), a->checkpoints = a->state_out,
           t->checkpoint_slots = LIST(3, 4, -1, 1), t->write_slots = LIST(4, 5, 7));
}

static void G1_lists(void) { refuse_lists(GDN_OP_PREFILL), refuse_lists(GDN_OP_DECODE); }
static void G1_pools(void) { refuse_pools(GDN_OP_PREFILL), refuse_pools(GDN_OP_DECODE); }

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "G1 lists", G1_lists },
        { "G1 pools", G1_pools },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
