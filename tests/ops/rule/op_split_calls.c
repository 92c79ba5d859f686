/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 "G6", sm_90 "G1" */
/*
 * GDN_SPLIT_INVARIANT beside the splits of op_split.c: calls without a record, tokens of no
 * sequence, refusals, and contents that cannot be.
 */
#include "split_calls.h"

/* Tokens that belong to no sequence: their output is zero. */
static void behind(int number)
{
    struct run r = new_run(&layers[number]);
    struct tokens t = new_tokens(r.m, 3);
    const int64_t starts[] = { 0, 1, 2 }, slots[] = { 3, 1 };
    gdn_batch b = gdn_batch_init();
    gdn_rule_args a = args_of(&r, &t, &b);
    fill_tokens(r.m, &t);
    ring2_fill_value(&t.beta, 1), ring2_fill_value(&t.out, 7);
    pack(&a, &b, 3);
    b.cu_seqlens = ring2_indices(GDN_I32, 3, starts);
    b.read_slots = ring2_indices(GDN_I32, 2, slots);
    a.state = r.state;
    a.record_k = r.k, a.record_u = r.u, a.record_g = r.g, a.record_count = r.count;
    ring2_status(ring2_ctx(2), "behind", gdn_decode(ring2_ctx(2), &a), GDN_OK);
    for (int64_t i = 0, H = state_heads(r.m); i < ring2_count(&a.out); i++)
        CHECK((ring2_get(&a.out, i) == 0) == (i >= 2 * H * r.m->V), "out [%d]: %g", (int)i,
              ring2_get(&a.out, i));
}

/* Without a record, chunks begin with the sequence: the bits of gdn_prefill. */
static void plain(int number)
{
    struct run r = new_run(&layers[number]);
    const gdn_tensor out = ring2_clone(&r.all.out);
    gdn_rule_args a = args_of(&r, &r.all, NULL);
    a.flags = GDN_BATCH_INVARIANT;
    ring2_status(ring2_ctx(2), "plain", gdn_prefill(ring2_ctx(2), &a), GDN_OK);
    ring2_expect_bits("out", &out, &r.all.out);
}

/* ---- Refusals ------------------------------------------------------------------------------ */

#define REFUSE(op, want, needle, ...)                                                   \
    do {                                                                                \
        struct run r = new_run(&layers[0]);                                             \
        const struct tokens t = new_tokens(r.m, 2);                                     \
        gdn_batch b = gdn_batch_init();                                                 \
        b.read_slots = ring2_indices(GDN_I32, B, r.slots);                              \
        gdn_rule_args a = args_of(&r, &t, &b);                                          \
        a.state = r.state;                                                              \
        a.record_k = r.k, a.record_u = r.u, a.record_g = r.g, a.record_count = r.count; \
        __VA_ARGS__;                                                                    \
        ring2_refused(ring2_ctx(2), GDN_OP_##op, &a, RING2_STRUCT, want, needle);       \
    } while (0)

static void refused(int number)
{
    const int64_t H = state_heads(&layers[0]), K = layers[0].K, V = layers[0].V, R = layers[0].R;
    const gdn_tensor none = { 0 };
    (void)number;
    REFUSE(DECODE, GDN_E_ARG, "GDN_EXACT", a.flags |= GDN_EXACT);
    REFUSE(DECODE, GDN_E_ARG, "record_k: absent",
           a.record_k = a.record_u = a.record_g = a.record_count = none);
    REFUSE(DECODE, GDN_E_UNSUPPORTED, "g: of the family",
           a.g = ring2_new(GDN_F32, 0, 4, B, 2, H, K));
    REFUSE(DECODE, GDN_E_UNSUPPORTED, "state: not float32",
           a.state = ring2_new(GDN_BF16, 0, 4, P, H, V, K), a.state_layout = GDN_STATE_VK);
    REFUSE(DECODE, GDN_E_UNSUPPORTED, "parents", b.write = GDN_WRITE_NONE,
           b.parents = ring2_new(GDN_I32, 0, 2, B, 2, 0, 0));
    REFUSE(DECODE, GDN_E_SHAPE, "record_g", a.record_g = ring2_new(GDN_F32, 0, 3, P, R, H, 0));
    REFUSE(DECODE, ring2_on_device() ? GDN_E_DTYPE : GDN_E_UNSUPPORTED, "record_u: not",
           a.record_u = ring2_new(GDN_BF16, 0, 4, P, R, H, V));
    REFUSE(DECODE, GDN_E_SHAPE, "record_k: 63 rows", a.record_k = ring2_narrow(&r.k, 1, 0, 63),
           a.record_u = ring2_narrow(&r.u, 1, 0, 63), a.record_g = ring2_narrow(&r.g, 1, 0, 63));
    REFUSE(PREFILL, GDN_E_ARG, "write", b.write = GDN_WRITE_NONE);
    REFUSE(PREFILL, GDN_E_ARG, "has_initial_state",
           b.has_initial_state = ring2_new(GDN_I32, 0, 1, B, 0, 0, 0));
    REFUSE(PREFILL, GDN_E_UNSUPPORTED, "checkpoints", b.checkpoint_every = UNIT,
           a.checkpoints = new_pool(r.m, r.layout, P));
}

/* ---- Contents ------------------------------------------------------------------------------ */

/* Returns a context that checks contents; on a CPU each does. */
static gdn_ctx *checking(void)
{
    gdn_ctx *ctx = NULL;
    gdn_options o = gdn_options_init();
    o.backend = ring2_on_device() ? GDN_BACKEND_CUDA : GDN_BACKEND_CPU;
    o.flags = GDN_CTX_CHECK_CONTENTS;
    if (gdn_ctx_create(&o, &ctx) != GDN_OK) ring2_fail("no context");
    return ctx;
}

/* A call whose counts or slots cannot be is refused by name, and writes nothing. */
static void damaged(int number)
{
    static const struct {
        gdn_op op;
        int64_t count, slot; /* of the second sequence */
        const char *needle;
    } cases[] = {
        { GDN_OP_RECORD_FOLD, 65, 1, "record_count[1]: 65, wanted 0 to 64" },
        { GDN_OP_RECORD_FOLD, -1, 1, "record_count[1]: -1, wanted 0 to 64" },
        { GDN_OP_RECORD_FOLD, 64, P, "read_slots: slot 5 for sequence 1, wanted 0 to 4" },
        { GDN_OP_RECORD_FOLD, 64, 0, "read_slots[1]: slot 0 a second time" },
        { GDN_OP_DECODE, 65, 1, "record_count[1]: 65, wanted 0 to 64" },
        { GDN_OP_DECODE, -1, 1, "record_count[1]: -1, wanted 0 to 64" },
        { GDN_OP_DECODE, 64, P, "read_slots: slot 5 for sequence 1, wanted 0 to 4" },
        { GDN_OP_PREFILL, 65, 1, "record_count[1]: 65, wanted 0 to 64" },
        { GDN_OP_PREFILL, 64, 0, "slot 0: written by sequence 0 and by sequence 1" },
    };
    const struct run r = new_run(&layers[number]);
    gdn_ctx *const ctx = checking();
    const struct tokens t = new_tokens(r.m, 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases && ctx && !ring2_failed(); i++) {
        const bool folds = cases[i].op == GDN_OP_RECORD_FOLD;
        gdn_batch b = gdn_batch_init();
        b.read_slots = ring2_indices(GDN_I32, B, (const int64_t[]){ 0, cases[i].slot, 2 });
        gdn_rule_args call = args_of(&r, &t, &b);
        gdn_record_fold_args its = fold_args(&r, &b);
        call.state = r.state;
        call.record_k = r.k, call.record_u = r.u, call.record_g = r.g, call.record_count = r.count;
        for (int64_t p = 0; p < P; p++) ring2_set(&r.count, p, 64);
        ring2_set(&r.count, 1, (double)cases[i].count);
        ring2_call_begin();
        ring2_status(ctx, "damaged",
                     gdn_run_op(ctx, cases[i].op, folds ? (void *)&its : (void *)&call), GDN_E_ARG);
        CHECK(strstr(gdn_last_error(ctx), cases[i].needle), "\"%s\", wanted \"%s\"",
              gdn_last_error(ctx), cases[i].needle);
        ring2_call_end();
    }
    gdn_ctx_destroy(ctx);
}

static void refusals(int number)
{
    refused(number);
    damaged(number);
}

/* Slots that do not exist, slots named twice, counts below 0 and above R: a GPU does not refuse
 * them, and stays inside the tensors. */
static void outside(int number)
{
    const struct run r = new_run(&layers[number]);
    if (!ring2_on_device()) {
        ring2_skip("a CPU refuses them");
        return;
    }
    for (int i = 0; i < 6 && !ring2_failed(); i++) {
        const struct tokens t = new_tokens(r.m, 1 + ring2_below(70));
        int64_t slots[B];
        gdn_batch b = gdn_batch_init();
        fill_tokens(r.m, &t);
        for (int j = 0; j < B; j++) slots[j] = ring2_below(2 * P) - 2;
        for (int p = 0; p < P; p++)
            ring2_set(&r.count, p, (double)(ring2_below(3 * r.m->R) - r.m->R));
        b.read_slots = ring2_indices(GDN_I32, B, slots);
        b.write = i % 2 ? GDN_WRITE_NONE : GDN_WRITE_FINAL;
        gdn_rule_args a = args_of(&r, &t, &b);
        const gdn_record_fold_args f = fold_args(&r, &b);
        a.state = r.state;
        a.record_k = r.k, a.record_u = r.u, a.record_g = r.g, a.record_count = r.count;
        ring2_call_begin();
        const gdn_tensor *const written[] = { &a.out,      &a.state,    &a.record_k,
                                              &a.record_u, &a.record_g, &a.record_count };
        for (int j = 0; j < 6; j++) ring2_may_write(written[j]);
        ring2_status(ring2_ctx(2), "outside", gdn_decode(ring2_ctx(2), &a), GDN_OK);
        ring2_status(ring2_ctx(2), "outside", gdn_record_fold(ring2_ctx(2), &f), GDN_OK);
        ring2_call_end();
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_cases tests[] = {
        { "G1 refused", refusals, 1 }, /* first: each thinned run takes the first case */
        { "G6 contents that a GPU does not refuse", outside, N_LAYERS },
        { "G23 one call", plain, N_LAYERS },
        { "G23 tokens of no sequence", behind, N_LAYERS },
    };
    return ring2_cases_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
