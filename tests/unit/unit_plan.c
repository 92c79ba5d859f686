/* SPDX-License-Identifier: Apache-2.0 */
/* Batches: tokens, counts, shapes, rows. Slots are in unit_plan_slots.c. */
#include <stdio.h>

#include "core/tensor_check.h"
#include "plan_call.h"

/* ---- Tokens -------------------------------------------------------------------------------- */

static void test_tokens(void)
{
    float x[1];
    struct gdn_tokens t;
    gdn_tensor like = gdn_dense(x, GDN_F32, 3, 5, 2, 3, 0);
    ring2_status(ctx, "packed", gdn_plan_tokens(ctx, &like, "q", 2, &t), GDN_OK);
    CHECK(!t.padded && t.N == 5 && t.B == 1 && t.T == 5, "packed");
    ring2_status(ctx, "padded", gdn_plan_tokens(ctx, &like, "q", 1, &t), GDN_OK);
    CHECK(t.padded && t.N == 10 && t.B == 5 && t.T == 2, "padded");
    ring2_status(ctx, "rank", gdn_plan_tokens(ctx, &like, "q", 3, &t), GDN_E_SHAPE);
    CHECK(strstr(gdn_last_error(ctx), "q: 3 dimensions, wanted 4"), "%s", gdn_last_error(ctx));
    like.data = NULL;
    ring2_status(ctx, "absent", gdn_plan_tokens(ctx, &like, "q", 2, &t), GDN_E_ARG);
}

static void test_check(void)
{
    float x[1];
    const int64_t trailing[] = { 3, -1 };
    struct gdn_tokens t = { .padded = true, .B = 2, .T = 5, .N = 10 };
    gdn_tensor four = gdn_dense(x, GDN_F32, 4, 2, 5, 3, 7);
    gdn_tensor three = gdn_dense(x, GDN_F32, 3, 10, 3, 7, 0);
    ring2_status(ctx, "padded", gdn_plan_check(ctx, &t, &four, "k", 2, trailing), GDN_OK);
    ring2_status(ctx, "packed", gdn_plan_check(ctx, &t, &three, "k", 2, trailing), GDN_E_SHAPE);
    CHECK(strstr(gdn_last_error(ctx), "k: [10][3][7], wanted [2][5][3][*]"), "%s",
          gdn_last_error(ctx));
    t.padded = false;
    ring2_status(ctx, "packed", gdn_plan_check(ctx, &t, &three, "k", 2, trailing), GDN_OK);
    ring2_status(ctx, "padded", gdn_plan_check(ctx, &t, &four, "k", 2, trailing), GDN_E_SHAPE);
}

static void test_no_batch(void)
{
    struct call c = padded(3, 4);
    if (accepted("padded", &c))
        for (int64_t b = 0; b < 3; b++)
            expect_seq("padded", &c, b,
                       SEQ(.batch = b, .n_tokens = 4, .n_valid = 4, .read = b, .write = b));
    CHECK(c.plan.padded && c.plan.B == 3 && c.plan.longest == 4, "padded plan");
    c = packed(7);
    if (accepted("packed", &c)) expect_seq("packed", &c, 0, SEQ(.n_tokens = 7, .n_valid = 7));
    CHECK(!c.plan.padded && c.plan.B == 1 && c.plan.longest == 7 && c.plan.end == 7, "packed plan");
    c = padded(9, 4);
    refused("more sequences than slots", c, GDN_E_ARG, "read_slots: absent, so slot 8");

    static float x[1];
    const gdn_tensor like = gdn_dense(x, GDN_F32, 2, 5, 1, 0, 0);
    struct gdn_tokens tokens;
    struct gdn_plan plan;
    ring2_status(ctx, "tokens", gdn_plan_tokens(ctx, &like, "x", 1, &tokens), GDN_OK);
    ring2_status(ctx, "NULL", gdn_plan_describe(ctx, NULL, &tokens, 0, &plan), GDN_OK);
    CHECK(plan.B == 1 && plan.batch.write == GDN_WRITE_FINAL, "the default batch");
}

static void test_cu_seqlens(void)
{
    static const int64_t offsets[] = { 0, 3, 3, 8 };
    for (int wide = 0; wide < 2; wide++) {
        struct call c = packed(10);
        c.batch.cu_seqlens = ring2_indices(wide ? GDN_I64 : GDN_I32, 4, offsets);
        if (!accepted("cu_seqlens", &c)) continue;
        CHECK(c.plan.B == 3 && c.plan.longest == 5 && c.plan.end == 8, "plan");
        expect_seq("first", &c, 0, SEQ(.n_tokens = 3, .n_valid = 3));
        expect_seq("empty", &c, 1, SEQ(.first = 3, .read = -1, .write = -1));
        expect_seq("last", &c, 2,
                   SEQ(.first = 3, .n_tokens = 5, .n_valid = 5, .read = 2, .write = 2));
    }
    struct call c = packed(10);
    c.batch.cu_seqlens = list((int64_t[]){ 8, 8, 3, 3, 0 }, 5);
    c.batch.cu_seqlens.stride[0] = -1;
    c.batch.cu_seqlens.data = gdn_at(&c.batch.cu_seqlens, 4);
    c.batch.cu_seqlens.size[0] = 5;
    if (accepted("backwards", &c)) CHECK(c.plan.end == 8 && c.plan.longest == 5, "backwards");
    c.batch.cu_seqlens = LIST(3, 3, 7);
    if (accepted("from 3 on", &c))
        CHECK(c.plan.start == 3 && c.plan.end == 7 && c.plan.seqs[1].first == 3, "from 3 on");
    c = packed(10);
    c.batch.cu_seqlens = LIST(0);
    if (accepted("no sequence", &c)) CHECK(c.plan.B == 0 && c.plan.end == 0, "no sequence");
}

static void test_bad_cu_seqlens(void)
{
    struct call c = packed(10);
    c.batch.cu_seqlens = LIST(-1, 10);
    refused("start", c, GDN_E_ARG, "cu_seqlens[0]: -1, wanted 0 to 10");
    c.batch.cu_seqlens = LIST(11, 11);
    refused("start past the end", c, GDN_E_ARG, "cu_seqlens[0]: 11, wanted 0 to 10");
    c.batch.cu_seqlens = LIST(0, 15, 12);
    refused("end", c, GDN_E_ARG, "cu_seqlens[1]: 15, wanted 0 to 10");
    c.batch.cu_seqlens = LIST(0, 5, 4, 10);
    refused("decrease", c, GDN_E_ARG, "cu_seqlens[2]: 4 after 5");
    c.batch.cu_seqlens = LIST(0, -1, 10);
    refused("negative", c, GDN_E_ARG, "cu_seqlens[1]: -1 after 0");
    c.batch.cu_seqlens = LIST(0, 10);
    c.batch.cu_seqlens.dtype = GDN_U8;
    refused("dtype", c, GDN_E_DTYPE, "cu_seqlens");
    c.batch.cu_seqlens = TABLE(1, 0, 10);
    refused("rank", c, GDN_E_SHAPE, "cu_seqlens: [1][2], wanted [*]");
    c.batch.cu_seqlens = LIST(0, 10);
    c.batch.cu_seqlens.size[0] = 0;
    refused("nothing", c, GDN_E_SHAPE, "cu_seqlens: [0], wanted [B+1]");
    c = padded(1, 10);
    c.batch.cu_seqlens = LIST(0, 10);
    refused("padded", c, GDN_E_ARG, "cu_seqlens");
}

/* ---- Counts -------------------------------------------------------------------------------- */

static void test_has_initial_state(void)
{
    static const int32_t dtypes[] = { GDN_U8, GDN_I32, GDN_I64 };
    static const int64_t has[] = { 0, 1, 200 };
    for (int d = 0; d < 3; d++) {
        struct call c = padded(3, 2);
        c.batch.has_initial_state = dtypes[d] == GDN_U8
                                        ? gdn_dense((uint8_t[]){ 0, 1, 200 }, GDN_U8, 1, 3, 0, 0, 0)
                                        : ring2_indices(dtypes[d], 3, has);
        if (!accepted("has_initial_state", &c)) continue;
        expect_slots("fresh", &c, 0, -1, 0);
        expect_slots("one", &c, 1, 1, 1);
        expect_slots("other than zero", &c, 2, 2, 2);
    }
    struct call c = padded(3, 2);
    c.batch.has_initial_state = LIST(0, 1, 1);
    c.batch.has_initial_state.dtype = GDN_F32;
    refused("dtype", c, GDN_E_DTYPE, "has_initial_state");
    c.batch.has_initial_state = LIST(0, 1);
    refused("shape", c, GDN_E_SHAPE, "has_initial_state: [2], wanted [3]");
}

static void test_num_accepted(void)
{
    struct call c = padded(2, 3);
    c.batch.read_slots = TABLE(2, 0, 1, 2, 3, 4, -1);
    c.batch.num_accepted_tokens = LIST(3, 1);
    if (accepted("accepted", &c)) {
        expect_slots("third", &c, 0, 2, 2);
        expect_slots("first", &c, 1, 3, 3);
    }
    c.batch.num_accepted_tokens = LIST(1, 3);
    if (accepted("padding", &c)) expect_slots("padding", &c, 1, -1, -1);
    c.batch.num_accepted_tokens = LIST(0, 1);
    refused("none", c, GDN_E_ARG, "num_accepted_tokens[0]: 0, wanted 1 to 3");
    c.batch.num_accepted_tokens = LIST(1, 4);
    refused("too many", c, GDN_E_ARG, "num_accepted_tokens[1]: 4, wanted 1 to 3");
    c.batch.read_slots = LIST(1, 2);
    refused("one column missing", c, GDN_E_SHAPE, "read_slots: [2], wanted [2][*]");
    c.batch.read_slots = TABLE(2, 1, 2);
    c.batch.read_slots.size[1] = 0;
    refused("no column", c, GDN_E_SHAPE, "read_slots: [2][0], wanted 1 columns at least");
    c.batch.read_slots = (gdn_tensor){ 0 };
    refused("no slots", c, GDN_E_ARG, "read_slots: absent");
    c.batch.read_slots = TABLE(2, 0, 1, 2, 3);
    c.batch.num_accepted_tokens = (gdn_tensor){ 0 };
    refused("columns without counts", c, GDN_E_SHAPE, "read_slots: [2][2], wanted [2]");
}

static void test_token_count(void)
{
    struct call c = padded(3, 4);
    c.batch.token_count = LIST(4, 0, 2);
    if (accepted("token_count", &c)) {
        expect_seq("all", &c, 0, SEQ(.n_tokens = 4, .n_valid = 4));
        /* the final state is the initial one */
        expect_seq("none", &c, 1, SEQ(.batch = 1, .n_tokens = 4, .read = 1, .write = 1));
        expect_seq("some", &c, 2,
                   SEQ(.batch = 2, .n_tokens = 4, .n_valid = 2, .read = 2, .write = 2));
    }
    c.batch.token_count = LIST(4, 5, 2);
    refused("too many", c, GDN_E_ARG, "token_count[1]: 5, wanted 0 to 4");
    c.batch.token_count = LIST(4, 4, -1);
    refused("negative", c, GDN_E_ARG, "token_count[2]: -1, wanted 0 to 4");
    c.batch.token_count = TABLE(3, 1, 1, 1);
    refused("rank", c, GDN_E_SHAPE, "token_count");
}

/* ---- Fields, bytes ------------------------------------------------------------------------- */

static void test_fields(void)
{
    struct call c = padded(2, 3);
    c.batch.pad_policy = 3;
    refused("pad_policy", c, GDN_E_ARG, "pad_policy: 3");
    c.batch.pad_policy = -1;
    refused("pad_policy", c, GDN_E_ARG, "pad_policy: -1");
    c = padded(2, 3);
    c.batch.write = 3;
    refused("write", c, GDN_E_ARG, "write: 3");
    c = padded(2, 3);
    c.batch.max_seqlen = -1;
    refused("max_seqlen", c, GDN_E_ARG, "max_seqlen: -1");
    c = padded(2, 3);
    c.batch.struct_size = 0;
    refused("struct_size", c, GDN_E_ARG, "batch: struct_size 0");
    c = padded(2, 3);
    c.batch.token_count = LIST(1, 2);
    c.batch.token_count.stride[0] = INT64_MAX;
    refused("stride", c, GDN_E_SHAPE, "token_count: sizes and strides");
    c = packed(3);
    c.batch.cu_seqlens = LIST(0, 0);
    c.batch.cu_seqlens.stride[0] = 0;
    c.batch.cu_seqlens.size[0] = ((int64_t)1 << 31) + 2;
    refused("too many", c, GDN_E_UNSUPPORTED, "2147483649 sequences");
}

static void test_bytes(void)
{
    for (int64_t B = 0; B < 3000; B = B < 300 ? B + 1 : B * 3 / 2) {
        struct call c = padded(B, 2);
        float x[1];
        gdn_tensor like = gdn_dense(x, GDN_F32, 3, B, 2, 1, 0);
        gdn_plan_tokens(ctx, &like, "x", 1, &c.tokens);
        ring2_status(ctx, "plan",
                     gdn_plan_describe(ctx, &c.batch, &c.tokens, GDN_PLAN_EACH, &c.plan), GDN_OK);
        const size_t bytes = gdn_plan_bytes(&c.plan, &c.tokens);
        CHECK(bytes <= 192 * (size_t)B, "%zu bytes for %d sequences", bytes, (int)B);
        CHECK(bytes % 64 == 0, "%zu bytes", bytes);
        c.plan.batch.write = GDN_WRITE_EACH;
        CHECK(gdn_plan_bytes(&c.plan, &c.tokens) <= 192 * (size_t)B + 64 * 2 * (size_t)B,
              "%zu bytes for %d sequences of 2 slots", gdn_plan_bytes(&c.plan, &c.tokens), (int)B);
    }
}

/* Checks that a written tensor overlaps none of a batch's. */
static gdn_status check_overlaps(const gdn_batch *b, const gdn_tensor *out)
{
    struct gdn_extents all = { .n = 0 };
    gdn_plan_add_extents(b, &all);
    gdn_add_extent(&all, out, "out");
    return gdn_check_apart(ctx, &all, &all.of[all.n - 1], NULL, NULL);
}

static void test_overlaps(void)
{
    int64_t values[] = { 0, 1, 2, 3 };
    gdn_tensor out = gdn_dense(values, GDN_F32, 1, 2, 0, 0, 0);
    gdn_batch b = gdn_batch_init();
    gdn_tensor *const arrays[] = { &b.cu_seqlens,        &b.read_slots,          &b.write_slots,
                                   &b.has_initial_state, &b.num_accepted_tokens, &b.token_count };
    static const char *const names[] = {
        "cu_seqlens",        "read_slots",          "write_slots",
        "has_initial_state", "num_accepted_tokens", "token_count"
    };
    ring2_status(ctx, "none", check_overlaps(&b, &out), GDN_OK);
    for (int i = 0; i < 6; i++) {
        *arrays[i] = list(values, 4);
        ring2_status(ctx, names[i], check_overlaps(&b, &out), GDN_E_ARG);
        CHECK(strstr(gdn_last_error(ctx), names[i]), "%s: %s", names[i], gdn_last_error(ctx));
        *arrays[i] = list(values + 1, 3);
        ring2_status(ctx, names[i], check_overlaps(&b, &out), GDN_OK);
        *arrays[i] = (gdn_tensor){ 0 };
    }
}

/* ---- Rows ---------------------------------------------------------------------------------- */

static void test_rows(void)
{
    static const int64_t offsets[] = { 0, 3, 8 };
    for (int form = 0; form < 2; form++) {
        struct call c = form ? padded(2, 3) : packed(10);
        gdn_tensor t =
            form ? ring2_new(GDN_BF16, 3, 4, 2, 3, 2, 4) : ring2_new(GDN_BF16, 3, 3, 10, 2, 4, 0);
        if (!form) c.batch.cu_seqlens = list(offsets, 3);
        if (!accepted("rows", &c)) return;
        const struct gdn_rows r = gdn_rows_of(&t, &c.tokens);
        for (int64_t b = 0; b < 2; b++)
            for (int64_t i = 0; i < c.seqs[b].n_tokens; i++)
                for (int64_t h = 0; h < 2; h++) {
                    const int64_t token = form ? b * 3 + i : offsets[b] + i;
                    CHECK(gdn_row(&r, &c.seqs[b], i, h) == ring2_element(&t, (token * 2 + h) * 4),
                          "sequence %d, token %d, head %d", (int)b, (int)i, (int)h);
                }
    }
    const struct gdn_tokens tokens = { .padded = true, .B = 1, .T = 1, .N = 1 };
    gdn_tensor one = gdn_dense(ctx, GDN_F32, 4, 1, 1, 1, 8);
    for (int i = 0; i < 3; i++) one.stride[i] = INT64_MAX; /* of one element: never used */
    const struct gdn_rows r = gdn_rows_of(&one, &tokens);
    CHECK(r.batch == 0 && r.token == 0 && r.head == 0, "strides of one element");
    one.data = NULL;
    CHECK(!gdn_rows_of(&one, &tokens).data, "absent");
}

/* Checks that output rows which no token computes become zero, and that nothing else changes. */
static void check_zeroed(const char *what, struct call *c, const bool *zero)
{
    const int64_t N = c->padded ? c->B * c->T : 10;
    gdn_tensor out = c->padded ? ring2_new(GDN_F16, 5, 4, c->B, c->T, 2, 3)
                               : ring2_new(GDN_F16, 5, 3, N, 2, 3, 0);
    if (!accepted(what, c)) return;
    ring2_fill(&out, 1, 2);
    const double *before = ring2_doubles(&out);
    ring2_call_begin();
    ring2_may_write(&out);
    const struct gdn_rows rows = gdn_rows_of(&out, &c->tokens);
    gdn_plan_zero_rest(&c->plan, &c->tokens, &rows, 2, 3);
    ring2_call_end();
    for (int64_t i = 0; i < N * 6; i++)
        CHECK(ring2_get(&out, i) == (zero[i / 6] ? 0 : before[i]), "%s: token %d is %s", what,
              (int)(i / 6), ring2_get(&out, i) == 0 ? "zero" : "not zero");
}

static void test_zero_rest(void)
{
    struct call c = padded(3, 2);
    c.batch.read_slots = LIST(0, -1, 2);
    c.batch.token_count = LIST(1, 2, 2);
    check_zeroed("zero", &c, (bool[]){ 0, 1, 1, 1, 0, 0 });
    c.batch.pad_policy = GDN_PAD_KEEP;
    check_zeroed("keep", &c, (bool[]){ 0, 1, 0, 0, 0, 0 });
    c.batch.pad_policy = GDN_PAD_SINK;
    c.batch.sink_slot = 5;
    check_zeroed("sink", &c, (bool[]){ 0, 1, 0, 0, 0, 0 });
    c.batch.read_slots = LIST(0, -1, -1);
    check_zeroed("sinks", &c, (bool[]){ 0, 1, 0, 0, 1, 1 });

    c = packed(10);
    c.batch.cu_seqlens = LIST(0, 3, 3, 5, 8);
    c.batch.read_slots = LIST(0, 1, -1, 3);
    c.batch.token_count = LIST(3, 0, 2, 1);
    check_zeroed("packed", &c, (bool[]){ 0, 0, 0, 1, 1, 0, 1, 1, 1, 1 });
    c.batch.pad_policy = GDN_PAD_KEEP;
    check_zeroed("packed, keep", &c, (bool[]){ 0, 0, 0, 0, 0, 0, 1, 1, 1, 1 });
    const struct gdn_rows none = { 0 };
    gdn_plan_zero_rest(&c.plan, &c.tokens, &none, 2, 3); /* no output, nothing to do */
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "plan: tokens", test_tokens },
        { "plan: tensors of the same tokens", test_check },
        { "plan: no batch", test_no_batch },
        { "plan: cu_seqlens", test_cu_seqlens },
        { "plan: bad cu_seqlens", test_bad_cu_seqlens },
        { "plan: has_initial_state", test_has_initial_state },
        { "plan: num_accepted_tokens", test_num_accepted },
        { "plan: token_count", test_token_count },
        { "plan: fields", test_fields },
        { "plan: bytes", test_bytes },
        { "plan: overlaps with index arrays", test_overlaps },
        { "plan: rows", test_rows },
        { "plan: zeroed output", test_zero_rest },
    };
    ctx = ring2_ctx(1);
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
