/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots of a batch: where each sequence reads and writes, and what is refused. The rules are
 * also compared with a model that looks at all pairs of sequences.
 */
#include "plan_call.h"

/* ---- Slots --------------------------------------------------------------------------------- */

static void test_slots(void)
{
    struct call c = padded(3, 2);
    c.batch.read_slots = LIST(5, 0, 7);
    if (accepted("read_slots", &c)) {
        expect_slots("in place", &c, 0, 5, 5);
        expect_slots("in place", &c, 2, 7, 7);
    }
    c.batch.write_slots = LIST(1, 2, 7);
    if (accepted("write_slots", &c)) {
        expect_slots("elsewhere", &c, 0, 5, 1);
        expect_slots("same", &c, 2, 7, 7);
    }
    c.batch.write_slots = LIST(1, -1, 7);
    if (accepted("dropped", &c)) expect_slots("dropped", &c, 1, 0, -1);
    c.batch.write_slots = LIST(1, 2, 7);
    c.batch.read_slots = LIST(5, 5, 5);
    if (accepted("many readers", &c)) expect_slots("fork", &c, 1, 5, 2);
    c.batch.read_slots = (gdn_tensor){ 0 };
    refused("default read, another's write", c, GDN_E_ARG, "slot 1: read by sequence 1");
    c.batch.has_initial_state = LIST(0, 0, 0);
    if (accepted("fresh", &c)) expect_slots("fresh", &c, 0, -1, 1);
    c.batch.write_slots = (gdn_tensor){ 0 };
    c.batch.read_slots = LIST(5, 0, 7);
    if (accepted("fresh, in place", &c)) expect_slots("fresh, in place", &c, 0, -1, 5);
}

static void test_bad_slots(void)
{
    struct call c = padded(3, 2);
    c.batch.read_slots = LIST(5, 8, 7);
    refused("read", c, GDN_E_ARG, "read_slots: slot 8 for sequence 1, wanted 0 to 7");
    c.batch.read_slots = LIST(5, 0, 7);
    c.batch.write_slots = LIST(5, 0, 8);
    refused("write", c, GDN_E_ARG, "write_slots: slot 8 for sequence 2, wanted 0 to 7");
    c.batch.write_slots = LIST(1, 2, 1);
    refused("twice", c, GDN_E_ARG, "write_slots: slot 1: written by sequence 0 and by sequence 2");
    c.batch.write_slots = (gdn_tensor){ 0 };
    c.batch.read_slots = LIST(5, 0, 5);
    refused("twice in place", c, GDN_E_ARG,
            "read_slots: slot 5: written by sequence 0 and by sequence 2");
    c.batch.read_slots = LIST(5, 0, 7);
    c.batch.write_slots = LIST(1, 2, 0);
    refused("another's", c, GDN_E_ARG, "slot 0: read by sequence 1 and written by sequence 2");
    c.two_pools = true;
    accepted("another's in another pool", &c);
    c.batch.write_slots = LIST(1, 2, 3, 4);
    refused("shape", c, GDN_E_SHAPE, "write_slots: [4], wanted [3]");
    c.batch.write_slots = TABLE(3, 1, 2, 3);
    refused("columns", c, GDN_E_SHAPE, "write_slots: [3][1], wanted [3]");
    c = padded(3, 2);
    c.batch.read_slots = LIST(1, 2, 3);
    c.batch.read_slots.dtype = GDN_F32;
    refused("dtype", c, GDN_E_DTYPE, "read_slots");
    c.batch.read_slots.dtype = GDN_U8;
    refused("bytes", c, GDN_E_DTYPE, "read_slots");
}

static void test_pools(void)
{
    struct call c = padded(2, 2);
    c.read_end = c.write_end = -1;
    c.batch.read_slots = LIST(100, 100);
    c.batch.write_slots = LIST(200, 200);
    if (accepted("no state", &c)) expect_slots("no state", &c, 1, -1, -1);
    c.batch.read_slots = LIST(100, -1);
    if (accepted("no state", &c)) {
        CHECK(c.seqs[0].n_valid == 2 && c.seqs[1].n_valid == 0, "padding without a state");
    }
    c.batch.write_slots = LIST(1, 2, 3);
    refused("no state, shape", c, GDN_E_SHAPE, "write_slots");

    c = padded(2, 2);
    c.read_end = -1;
    if (accepted("state_out alone", &c)) expect_slots("state_out alone", &c, 1, -1, 1);
    c = padded(2, 2);
    c.write_end = 1;
    c.two_pools = true;
    c.batch.write = GDN_WRITE_NONE;
    if (accepted("frozen", &c)) expect_slots("frozen", &c, 1, 1, -1);
    c.batch.write = GDN_WRITE_FINAL;
    refused("small pool", c, GDN_E_ARG, "slot 1 for sequence 1 of 1 slots");
    c = padded(2, 2);
    c.batch.write = GDN_WRITE_NONE;
    c.batch.read_slots = LIST(3, 3);
    c.batch.write_slots = TABLE(2, 9, 9, 9, 9);
    if (accepted("frozen, readers of one slot", &c)) expect_slots("frozen", &c, 1, 3, -1);
}

/* Against all pairs, by the sentences in gdn.h. */
static bool model_accepts(const struct call *c, const int64_t *read, const int64_t *write,
                          const int64_t *fresh)
{
    for (int64_t i = 0; i < c->B; i++)
        for (int64_t j = 0; j < c->B; j++) {
            if (i == j || read[i] < 0 || read[j] < 0) continue;
            if (write[i] == write[j] && write[i] >= 0) return false;
            if (!c->two_pools && !fresh[i] && read[i] == write[j]) return false;
        }
    return true;
}

static void test_slots_against_all_pairs(void)
{
    int n_accepted = 0, n_refused = 0;
    for (int i = 0; i < 3000 && !ring2_failed(); i++) {
        int64_t read[12], write[12], has[12], fresh[12];
        struct call c = padded(1 + ring2_below(12), 1);
        c.read_end = c.write_end = 1 + ring2_below(60);
        c.two_pools = ring2_below(2);
        for (int b = 0; b < c.B; b++) {
            read[b] = ring2_below(8) ? ring2_below(c.read_end) : -1 - ring2_below(2);
            write[b] = ring2_below(3) && read[b] >= 0 ? read[b] : ring2_below(c.write_end + 1) - 1;
            has[b] = ring2_below(3);
            fresh[b] = !has[b];
        }
        c.batch.read_slots = list(read, c.B);
        c.batch.write_slots = list(write, c.B);
        c.batch.has_initial_state = list(has, c.B);
        char memory[12 * 192 + 64];
        const gdn_tensor like = gdn_dense(memory, GDN_U8, 3, c.B, 1, 1, 0);
        gdn_plan_tokens(ctx, &like, "x", 1, &c.tokens);
        gdn_plan_describe(ctx, &c.batch, &c.tokens, GDN_PLAN_EACH, &c.plan);
        void *aligned = memory + (64 - (uintptr_t)memory % 64) % 64;
        const struct gdn_plan_pools pools = { c.read_end, c.write_end, -1, !c.two_pools, false };
        const gdn_status s = gdn_plan_batch(ctx, &c.tokens, &pools, aligned, &c.plan);
        const bool want = model_accepts(&c, read, write, fresh);
        CHECK((s == GDN_OK) == want, "case %d: %s, the model %s", i, gdn_status_name(s),
              want ? "accepts" : "refuses");
        n_accepted += want;
        n_refused += !want;
        if (s != GDN_OK) continue;
        c.seqs = c.plan.seqs;
        for (int b = 0; b < c.B; b++)
            expect_slots("case", &c, b, read[b] < 0 || fresh[b] ? -1 : read[b],
                         read[b] < 0 ? -1 : write[b]);
    }
    CHECK(n_accepted > 500 && n_refused > 500, "accepted %d, refused %d", n_accepted, n_refused);
}

/* Slots far apart, and slots that a weak hash would throw together. */
static void test_many_slots(void)
{
    enum { B = 2000 };
    int64_t *slots = ring2_heap(B * sizeof *slots);
    for (int shift = 0; shift < 40; shift += 13) {
        struct call c = padded(B, 1);
        c.read_end = c.write_end = (int64_t)1 << 60;
        for (int b = 0; b < B; b++) slots[b] = (int64_t)b << shift;
        c.batch.read_slots = list(slots, B);
        accepted("distinct", &c);
        slots[B - 1] = slots[7];
        refused("one twice", c, GDN_E_ARG, "written by sequence 7 and by sequence 1999");
    }
}

/* ---- Padding ------------------------------------------------------------------------------- */

static void test_padding(void)
{
    struct call c = padded(3, 2);
    c.batch.read_slots = LIST(4, -1, -7);
    c.batch.write_slots = LIST(4, 4, 99); /* not looked at for padding */
    if (accepted("zero", &c)) {
        expect_seq("zero", &c, 0, SEQ(.n_tokens = 2, .n_valid = 2, .read = 4, .write = 4));
        expect_seq("zero", &c, 1, SEQ(.batch = 1, .n_tokens = 2, .read = -1, .write = -1));
        expect_seq("zero", &c, 2, SEQ(.batch = 2, .n_tokens = 2, .read = -1, .write = -1));
    }
    c.batch.pad_policy = GDN_PAD_KEEP;
    if (accepted("keep", &c)) {
        expect_seq("keep", &c, 0, SEQ(.n_tokens = 2, .n_valid = 2, .read = 4, .write = 4));
        expect_seq("keep", &c, 1,
                   SEQ(.batch = 1, .n_tokens = 2, .read = -1, .write = -1, .keep_out = true));
    }
    c.batch.has_initial_state = LIST(0, 0, 0);
    if (accepted("fresh padding", &c)) expect_slots("fresh padding", &c, 1, -1, -1);
}

static void test_first_slot(void)
{
    struct call c = padded(4, 2);
    c.batch.first_slot = 2;
    c.batch.read_slots = LIST(4, 1, 0, 2);
    c.batch.write_slots = LIST(5, 99, 4, 2); /* not looked at for padding */
    if (accepted("first slot", &c)) {
        expect_slots("first slot", &c, 0, 4, 5);
        expect_slots("below", &c, 1, -1, -1);
        expect_slots("slot 0", &c, 2, -1, -1);
        expect_slots("the first one", &c, 3, 2, 2);
        CHECK(c.seqs[1].n_valid == 0 && c.seqs[3].n_valid == 2, "tokens of padding");
    }
    c.batch.pad_policy = GDN_PAD_SINK;
    if (accepted("sink below", &c)) expect_slots("sink below", &c, 1, 0, 0);
    c.batch.pad_policy = GDN_PAD_ZERO;
    c.batch.write = GDN_WRITE_EACH;
    c.batch.write_slots = TABLE(4, 5, 1, 5, 5, 5, 5, 6, 2);
    if (accepted("each", &c)) {
        CHECK(gdn_plan_each_slot(&c.plan, &c.seqs[0], 0) == 5, "a slot");
        CHECK(gdn_plan_each_slot(&c.plan, &c.seqs[0], 1) == -1, "dropped");
        CHECK(gdn_plan_each_slot(&c.plan, &c.seqs[3], 1) == 2, "the first slot");
    }
    c.batch.first_slot = -1;
    refused("negative", c, GDN_E_ARG, "first_slot: -1");
    c.batch.first_slot = 1;
    c.batch.read_slots = (gdn_tensor){ 0 };
    refused("alone", c, GDN_E_ARG, "read_slots: absent, wanted with first_slot");
}

static void test_sink(void)
{
    struct call c = padded(4, 2);
    c.batch.read_slots = LIST(4, -1, -1, 5);
    c.batch.pad_policy = GDN_PAD_SINK;
    c.batch.sink_slot = 6;
    c.batch.token_count = LIST(2, 1, 2, 2);
    if (accepted("sink", &c)) {
        expect_seq("sink", &c, 0, SEQ(.n_tokens = 2, .n_valid = 2, .read = 4, .write = 4));
        expect_seq("first", &c, 1,
                   SEQ(.batch = 1, .n_tokens = 2, .n_valid = 1, .read = 6, .write = 6));
        expect_seq("next", &c, 2, SEQ(.batch = 2, .n_tokens = 2, .read = -1, .write = -1));
    }
    c.batch.sink_slot = 5;
    refused("somebody's slot", c, GDN_E_ARG, "slot 5: written by sequence 1 and by sequence 3");
    c.batch.sink_slot = 8;
    refused("no slot", c, GDN_E_ARG, "sink_slot: slot 8 for sequence 1, wanted 0 to 7");
    c.batch.sink_slot = -1;
    refused("negative", c, GDN_E_ARG, "sink_slot: -1");
    c.batch.sink_slot = 6;
    c.batch.write_slots = LIST(4, 3, 2, 5);
    if (accepted("with write slots", &c)) expect_slots("with write slots", &c, 1, 6, 6);
    c.batch.write = GDN_WRITE_NONE;
    if (accepted("frozen", &c)) expect_slots("frozen", &c, 1, 6, -1);

    c = packed(4);
    c.batch.cu_seqlens = LIST(0, 0, 2, 4);
    c.batch.read_slots = LIST(-1, -1, -1);
    c.batch.pad_policy = GDN_PAD_SINK;
    if (accepted("an empty one first", &c)) {
        expect_slots("empty", &c, 0, -1, -1);
        expect_slots("sunk", &c, 1, 0, 0);
        expect_slots("skipped", &c, 2, -1, -1);
    }
    c.batch.read_slots = LIST(0, 1, 2);
    if (accepted("no padding", &c)) expect_slots("no padding", &c, 1, 1, 1);
}

/* An empty sequence asks for nothing, whatever its entries say. */
static void test_empty(void)
{
    struct call c = packed(4);
    c.batch.cu_seqlens = LIST(0, 2, 2, 4);
    c.batch.read_slots = TABLE(3, 1, 1, 99, -5, 2, 2);
    c.batch.num_accepted_tokens = LIST(1, 77, 2);
    c.batch.write_slots = LIST(1, 1, 2);
    if (accepted("empty", &c)) {
        expect_seq("before", &c, 0, SEQ(.n_tokens = 2, .n_valid = 2, .read = 1, .write = 1));
        expect_seq("empty", &c, 1, SEQ(.first = 2, .read = -1, .write = -1));
        expect_seq("after", &c, 2,
                   SEQ(.first = 2, .n_tokens = 2, .n_valid = 2, .read = 2, .write = 2));
    }
    c = padded(3, 0);
    if (accepted("T = 0", &c)) expect_slots("T = 0", &c, 2, -1, -1);
    c = padded(0, 4);
    if (accepted("B = 0", &c)) CHECK(c.plan.B == 0 && c.plan.longest == 0, "B = 0");
}

/* ---- A slot for each token ----------------------------------------------------------------- */

static void test_each(void)
{
    struct call c = padded(2, 3);
    c.batch.write = GDN_WRITE_EACH;
    c.batch.read_slots = LIST(1, 5);
    c.batch.write_slots = TABLE(2, 0, 1, 2, 7, -3, 5, 4, 7); /* a column more than tokens */
    c.batch.token_count = LIST(3, 2);
    if (!accepted("each", &c)) return;
    static const int64_t want[2][3] = { { 0, 1, 2 }, { -1, 5, 4 } };
    for (int64_t b = 0; b < 2; b++) {
        expect_slots("each", &c, b, b ? 5 : 1, -1);
        for (int64_t t = 0; t < c.seqs[b].n_valid; t++)
            CHECK(gdn_plan_each_slot(&c.plan, &c.seqs[b], t) == want[b][t], "slot [%d][%d]", (int)b,
                  (int)t);
    }
    c.write_end = -1; /* no state to write: slots are not needed */
    c.read_end = -1;
    if (accepted("each, no state", &c))
        CHECK(c.plan.batch.write == GDN_WRITE_NONE, "each without a state");
}

static void test_bad_each(void)
{
    struct call c = padded(2, 3);
    c.batch.write = GDN_WRITE_EACH;
    c.batch.read_slots = LIST(1, 5);
    c.batch.write_slots = TABLE(2, 0, 1, 2, 3, 4, 8);
    refused("no slot", c, GDN_E_ARG, "write_slots[1][2]: 8, wanted below 8");
    c.batch.write_slots = TABLE(2, 0, 1, 2, 3, 4, 0);
    refused("twice", c, GDN_E_ARG, "slot 0: written by sequence 0 and by sequence 1");
    c.batch.write_slots = TABLE(2, 0, 1, 0, 3, 4, 6);
    refused("twice by one", c, GDN_E_ARG, "slot 0: written by sequence 0 and by sequence 0");
    c.batch.write_slots = TABLE(2, 0, 2, 5, 3, 4, 6);
    refused("another's", c, GDN_E_ARG, "slot 5: read by sequence 1 and written by sequence 0");
    c.batch.write_slots = TABLE(2, 0, 1, 2, 3);
    refused("columns", c, GDN_E_SHAPE, "write_slots: [2][2], wanted 3 columns");
    c.batch.write_slots = LIST(0, 1);
    refused("rank", c, GDN_E_SHAPE, "write_slots: [2], wanted [2][*]");
    c.batch.write_slots = (gdn_tensor){ 0 };
    refused("absent", c, GDN_E_ARG, "write_slots: absent");
    c.batch.write_slots = TABLE(2, 0, 1, 2, 3, 4, 6);
    c.takes = 0;
    refused("no kernel", c, GDN_E_UNSUPPORTED, "GDN_WRITE_EACH");

    c = packed(5); /* here the longest sequence is known from contents */
    c.batch.write = GDN_WRITE_EACH;
    c.batch.cu_seqlens = LIST(0, 2, 5);
    c.batch.write_slots = TABLE(2, 0, 2, 1, 3);
    refused("longest", c, GDN_E_SHAPE, "write_slots: 2 columns, wanted 3");
    c.batch.write_slots = TABLE(2, 0, 2, 99, 1, 3, 4);
    if (accepted("beyond a shorter one", &c)) CHECK(c.plan.longest == 3, "longest");
}

static void test_each_sink(void)
{
    struct call c = padded(3, 2);
    c.batch.write = GDN_WRITE_EACH;
    c.batch.pad_policy = GDN_PAD_SINK;
    c.batch.sink_slot = 7;
    c.batch.read_slots = LIST(1, -1, -1);
    c.batch.write_slots = TABLE(3, 1, 2, 1, 2, 1, 2);
    if (!accepted("sink", &c)) return;
    expect_slots("sunk", &c, 1, 7, 7);
    CHECK(gdn_plan_each_slot(&c.plan, &c.seqs[0], 1) == 2, "a sequence");
    CHECK(gdn_plan_each_slot(&c.plan, &c.seqs[1], 0) == -1, "sunk: only the last state stays");
    CHECK(gdn_plan_each_slot(&c.plan, &c.seqs[1], 1) == 7, "sunk: the last state");
    CHECK(c.seqs[2].n_valid == 0 && c.seqs[2].write == -1, "the second one is skipped");
    c.batch.token_count = LIST(2, 1, 2);
    if (accepted("one counts", &c))
        CHECK(gdn_plan_each_slot(&c.plan, &c.seqs[1], 0) == 7, "sunk: the last that counts");
    c.batch.write_slots = TABLE(3, 1, 7, 1, 2, 1, 2);
    refused("sink taken", c, GDN_E_ARG, "slot 7: written by sequence 0 and by sequence 1");
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "slots: slots", test_slots },
        { "slots: bad slots", test_bad_slots },
        { "slots: pools there or not", test_pools },
        { "slots: slots against all pairs", test_slots_against_all_pairs },
        { "slots: many slots", test_many_slots },
        { "slots: padding", test_padding },
        { "slots: first slot", test_first_slot },
        { "slots: sink", test_sink },
        { "slots: empty sequences", test_empty },
        { "slots: a slot for each token", test_each },
        { "slots: bad slots for each token", test_bad_each },
        { "slots: a sink for each token", test_each_sink },
    };
    ctx = ring2_ctx(1);
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
