/* SPDX-License-Identifier: Apache-2.0 */
/* Batches: left padding, trees, paths and checkpoints, as the plan reads them. */
#include <stdio.h>

#include "plan_call.h"

/* ---- token_start --------------------------------------------------------------------------- */

static void test_token_start(void)
{
    struct call c = padded(3, 6);
    c.batch.token_start = LIST(0, 2, 6);
    if (accepted("left padding", &c)) {
        const int64_t first[] = { 0, 2, 6 };
        for (int b = 0; b < 3; b++)
            CHECK(c.seqs[b].first == first[b] && c.seqs[b].n_before == first[b] &&
                      c.seqs[b].n_tokens == 6 && c.seqs[b].n_valid == 6 - first[b] &&
                      c.seqs[b].total == 6 - first[b],
                  "sequence %d: first %d before %d valid %d", b, (int)c.seqs[b].first,
                  (int)c.seqs[b].n_before, (int)c.seqs[b].n_valid);
    }
    c.batch.token_count = LIST(5, 4, 0);
    if (accepted("both sides", &c))
        CHECK(c.seqs[0].n_valid == 5 && c.seqs[1].n_valid == 4 && c.seqs[2].n_valid == 0, "counts");
    c.batch.token_count = LIST(5, 5, 0);
    refused("past the end", c, GDN_E_ARG, "token_count[1]: 5, wanted 0 to 4");
    c.batch.token_start = LIST(0, 7, 6);
    refused("start", c, GDN_E_ARG, "token_start[1]: 7, wanted 0 to 6");
    c.batch.token_start = LIST(0, 1);
    refused("shape", c, GDN_E_SHAPE, "token_start: [2], wanted [3]");

    c = packed(10);
    c.batch.cu_seqlens = LIST(0, 4, 4, 9);
    c.batch.token_start = LIST(1, 0, 5);
    if (accepted("packed", &c))
        CHECK(c.seqs[0].first == 1 && c.seqs[1].first == 4 && c.seqs[2].first == 9 &&
                  c.seqs[2].n_valid == 0,
              "packed: %d %d %d", (int)c.seqs[0].first, (int)c.seqs[1].first, (int)c.seqs[2].first);
}

/* ---- Trees and paths ----------------------------------------------------------------------- */

static void test_parents(void)
{
    struct call c = padded(2, 4);
    c.batch.parents = TABLE(2, -1, 0, 0, 1, /**/ -1, -1, 1, 2);
    if (accepted("trees", &c)) {
        CHECK(gdn_plan_parent(&c.plan, &c.seqs[0], 3) == 1, "the second branch");
        CHECK(gdn_plan_parent(&c.plan, &c.seqs[1], 1) == -1, "a second root");
    }
    c.batch.token_count = LIST(1, 2); /* of the others nothing is asked */
    c.batch.parents = TABLE(2, -1, 9, /**/ -1, 0);
    accepted("few count", &c);
    c.batch.token_count = LIST(3, 2);
    refused("columns", c, GDN_E_SHAPE, "parents: 2 columns, wanted 3 for sequence 0");
    c = padded(2, 4);
    c.batch.parents = TABLE(2, -1, 0, 0, 1, /**/ -1, 1, 1, 2);
    refused("its own parent", c, GDN_E_ARG, "parents[1][1]: 1, wanted -1 to 0");
    c.batch.parents = TABLE(2, -2, 0, 0, 1, /**/ -1, 0, 1, 2);
    refused("below -1", c, GDN_E_ARG, "parents[0][0]: -2, wanted -1 to -1");
    c.batch.parents = LIST(-1, 0);
    refused("rank", c, GDN_E_SHAPE, "parents");
    c = padded(2, 4);
    c.batch.parents = TABLE(2, -1, 0, 0, 1, /**/ -1, 0, 1, 2);
    c.takes = GDN_PLAN_EACH;
    refused("no kernel", c, GDN_E_UNSUPPORTED, "parents: given");
    c.batch.parents.data = NULL;
    if (accepted("a chain", &c)) CHECK(gdn_plan_parent(&c.plan, &c.seqs[0], 0) == -1, "a chain");
}

/* A padding row with the sink's slot runs like other rows, so its lists are checked. Lists of a
 * skipped padding row are not. */
static void test_lists_of_padding(void)
{
    struct call c = padded(2, 3);
    c.batch.read_slots = LIST(4, -1);
    c.batch.parents = TABLE(2, -1, 0, 1, /**/ 7, 7, 7);
    accepted("skipped", &c);
    c.batch.pad_policy = GDN_PAD_SINK;
    c.batch.sink_slot = 5;
    refused("sunk", c, GDN_E_ARG, "parents[1][0]: 7, wanted -1 to -1");
    c.batch.parents.data = NULL;
    c.batch.token_count = LIST(1, 2);
    c.batch.path = TABLE(2, 0, /**/ 1);
    refused("sunk path", c, GDN_E_SHAPE, "path: 1 columns, wanted 2 for sequence 1");
}

static void test_path(void)
{
    struct call c = padded(2, 4);
    c.batch.path = TABLE(2, 1, 3, 9, /**/ 0, 1, 2);
    c.batch.token_count = LIST(2, 3);
    if (accepted("paths", &c)) {
        CHECK(gdn_plan_path(&c.plan, &c.seqs[0], 1) == 3, "the second of a path");
        CHECK(c.seqs[0].n_valid == 2, "its length");
    }
    c.batch.token_count = LIST(3, 3);
    refused("past the tokens", c, GDN_E_ARG, "path[0][2]: 9, wanted 4 to 3");
    c.batch.path = TABLE(2, 1, 3, 3, /**/ 0, 1, 2);
    refused("twice", c, GDN_E_ARG, "path[0][2]: 3, wanted 4 to 3");
    c.batch.path = TABLE(2, 0, 1, 2, /**/ 0, 2, 1);
    refused("descending", c, GDN_E_ARG, "path[1][2]: 1, wanted 3 to 3");
    c.batch.token_start = LIST(1, 0);
    c.batch.path = TABLE(2, 0, 1, 3, /**/ 0, 1, 2);
    refused("left padding counts", c, GDN_E_ARG, "path[0][2]: 3, wanted 2 to 2");
    c = padded(2, 4);
    c.batch.path = TABLE(2, 1, 2, 3, /**/ 0, 1, 2);
    refused("no count", c, GDN_E_ARG, "token_count: absent, wanted with path");
    c.batch.token_count = LIST(3, 4);
    refused("columns", c, GDN_E_SHAPE, "path: 3 columns, wanted 4 for sequence 1");
    c.takes = 0;
    refused("no kernel", c, GDN_E_UNSUPPORTED, "path: given");
    c = padded(1, 3);
    if (accepted("none", &c)) CHECK(gdn_plan_path(&c.plan, &c.seqs[0], 2) == 2, "a row");
}

/* ---- Checkpoints --------------------------------------------------------------------------- */

static void expect_checkpoint(const struct call *c, int64_t b, int64_t i, int64_t tokens,
                              int64_t slot)
{
    int64_t to;
    const int64_t n = gdn_plan_checkpoint(&c->plan, &c->seqs[b], i, &to);
    CHECK(n == tokens && to == slot, "checkpoint %d of sequence %d: after %d in %d, wanted %d, %d",
          (int)i, (int)b, (int)n, (int)to, (int)tokens, (int)slot);
}

static void expect_numbers(const struct call *c, const int64_t *n)
{
    for (int64_t b = 0, first = 0; b < c->plan.B; first += n[b++])
        CHECK(c->seqs[b].first_checkpoint == first && c->seqs[b].n_checkpoints == n[b],
              "sequence %d: %d checkpoints from %d, wanted %d from %d", (int)b,
              (int)c->seqs[b].n_checkpoints, (int)c->seqs[b].first_checkpoint, (int)n[b],
              (int)first);
}

static void test_every(void)
{
    struct call c = packed(20);
    c.checkpoint_end = 5;
    c.own_checkpoints = true;
    c.batch.cu_seqlens = LIST(0, 7, 7, 9, 19);
    c.batch.checkpoint_every = 3;
    if (accepted("every", &c)) {
        expect_numbers(&c, (const int64_t[]){ 2, 0, 0, 3 });
        expect_checkpoint(&c, 0, 1, 6, 1);
        expect_checkpoint(&c, 3, 2, 9, 4);
    }
    c.batch.checkpoint_slots = LIST(4, -1, 0, 3, -9);
    if (accepted("slots", &c)) {
        expect_checkpoint(&c, 0, 1, 6, -1);
        expect_checkpoint(&c, 3, 0, 3, 0);
    }
    c.batch.checkpoint_slots = LIST(4, -1, 0, 3);
    refused("few slots", c, GDN_E_SHAPE, "checkpoint_slots: [4], wanted 5 at least");
    c.batch.checkpoint_slots = LIST(4, 0, -1, 4, 3);
    refused("one twice", c, GDN_E_ARG, "slot 4: written by sequence 0 and by sequence 3");
    c.batch.checkpoint_slots = LIST(5, 0, -1, 4, 3);
    refused("past the end", c, GDN_E_ARG, "checkpoint_slots[0]: 5, wanted below 5");
    c.batch.checkpoint_every = -3;
    refused("below 0", c, GDN_E_ARG, "checkpoint_every: -3, wanted 0 or more");
    c.takes = 0;
    c.checkpoint_end = -1;
    c.batch.checkpoint_positions = LIST(-1);
    accepted("slots are not needed", &c);
}

/* Numbers go on through rows that leave none; counts and starts count. */
static void test_rows(void)
{
    struct call c = padded(4, 8);
    c.checkpoint_end = 6;
    c.own_checkpoints = true;
    c.batch.read_slots = LIST(0, -1, 2, 3);
    c.batch.token_start = LIST(0, 2, 3, 8);
    c.batch.token_count = LIST(7, 6, 4, 0);
    c.batch.checkpoint_every = 3;
    if (accepted("rows", &c)) {
        CHECK(c.seqs[1].n_checkpoints == 0 && c.seqs[2].first_checkpoint == 4 &&
                  c.seqs[2].n_checkpoints == 1 && c.seqs[3].n_checkpoints == 0,
              "padding");
        expect_checkpoint(&c, 2, 0, 3, 4);
    }
    c.batch.checkpoint_every = 0;
    c.batch.checkpoint_starts = LIST(0, 1, 3, 4, 4);
    c.batch.checkpoint_positions = LIST(7, 1, 6, 4);
    if (accepted("a list", &c)) expect_checkpoint(&c, 2, 0, 4, 3);
    c.batch.checkpoint_positions = LIST(7, 1, 7, 4);
    refused("of padding too", c, GDN_E_ARG, "checkpoint_positions[2]: 7, wanted 1 to 6");
    c.batch.checkpoint_positions = LIST(8, 1, 6, 4);
    refused("past the count", c, GDN_E_ARG, "checkpoint_positions[0]: 8, wanted 1 to 7");
    c.batch.checkpoint_positions = LIST(7, 6, 5, 4);
    refused("descending", c, GDN_E_ARG, "checkpoint_positions[2]: 5, wanted 6 to 6");
    c.batch.checkpoint_positions = LIST(7, 1, 6, 4);
    c.batch.checkpoint_starts = LIST(0, 1, 3, 5, 4);
    refused("starts past the end", c, GDN_E_ARG, "checkpoint_starts[3]: 5");
    c.batch.checkpoint_starts = LIST(0, 3, 1, 4, 4);
    c.batch.checkpoint_positions = LIST(5, 6, 7, 4);
    refused("starts descending", c, GDN_E_ARG, "checkpoint_starts[2]: 1, wanted 3 to 4");
    c.batch.checkpoint_starts = LIST(1, 1, 3, 4, 4);
    refused("starts at 1", c, GDN_E_ARG, "checkpoint_starts[0]: 1");
    c.batch.checkpoint_starts = LIST(0, 1, 3, 4);
    refused("starts' shape", c, GDN_E_SHAPE, "checkpoint_starts: [4], wanted [5]");
}

/* If checkpoints are in the pool of states, their slots differ from all slots that sequences
 * start from or end in. */
static void test_one_pool(void)
{
    struct call c = padded(2, 8);
    c.checkpoint_end = 8;
    c.batch.checkpoint_starts = LIST(0, 1, 3);
    c.batch.checkpoint_positions = LIST(5, 5, 8);
    c.batch.checkpoint_slots = LIST(7, 3, -1);
    accepted("beside them", &c);
    c.batch.checkpoint_slots = LIST(7, 0, -1);
    refused("where one ends", c, GDN_E_ARG,
            "checkpoint_slots: slot 0: written by sequence 0 and by sequence 1");
    c.batch.write_slots = LIST(5, 6);
    refused("where one starts", c, GDN_E_ARG, "read by sequence 0 and written by sequence 1");
    c.batch.checkpoint_slots = LIST(7, 1, -1);
    refused("where it starts", c, GDN_E_ARG, "read by sequence 1 and written by sequence 1");
    c.two_pools = true;
    accepted("in the pool that is only written", &c);
    c.batch.checkpoint_slots = LIST(7, 6, -1);
    refused("where it ends", c, GDN_E_ARG, "slot 6: written by sequence 1 and by sequence 1");
    c.own_checkpoints = true;
    accepted("in a pool of their own", &c);
    c.two_pools = c.own_checkpoints = false;
    c.batch.write = GDN_WRITE_NONE;
    c.batch.checkpoint_slots = LIST(7, 0, -1);
    refused("frozen", c, GDN_E_ARG, "slot 0: read by sequence 0");
}

/* The first after t tokens, as a search from the front finds it. */
static void test_search(void)
{
    for (int i = 0; i < 300; i++) {
        const int64_t T = 1 + ring2_below(40);
        int64_t at[64], starts[2] = { 0, 0 }, n = 0;
        struct call c = packed(T);
        c.checkpoint_end = 64;
        c.own_checkpoints = true;
        for (int64_t t = 1; t <= T; t++)
            while (n < 64 && ring2_below(3) == 0) at[n++] = t;
        starts[1] = n;
        if (i % 4 == 0) {
            c.batch.checkpoint_every = 1 + i % 7;
        } else {
            c.batch.checkpoint_starts = list(starts, 2);
            c.batch.checkpoint_positions = list(at, n);
        }
        if (!accepted("search", &c)) return;
        struct gdn_seq *s = &c.seqs[0];
        s->base = ring2_below(T);
        for (int64_t t = -3; t <= T; t++) {
            int64_t want = 0, slot;
            while (want < s->n_checkpoints && gdn_plan_checkpoint(&c.plan, s, want, &slot) <= t)
                want++;
            CHECK(gdn_plan_checkpoint_after(&c.plan, s, t) == want, "case %d, after %d", i, (int)t);
        }
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "token_start", test_token_start },
        { "parents", test_parents },
        { "lists of padding rows", test_lists_of_padding },
        { "path", test_path },
        { "checkpoint_every", test_every },
        { "checkpoints of rows", test_rows },
        { "checkpoints in one pool", test_one_pool },
        { "checkpoints: the search", test_search },
    };
    ctx = ring2_ctx(1);
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
