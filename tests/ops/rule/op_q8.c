/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 --every=5 */
/* runs as wide with TEST_V=300: cpu once --every=3, gpu, sm_80 --every=19 */
/*
 * Calls with states of 8 bits (G21). The one idea: a call with such a state is the call with a
 * float32 state between two conversions, bit for bit. The rest are records, and what is refused.
 */
#include "gdn_blob.h"
#include "gdn_record.h"
#include "q8_model.h"

/* ---- One call between two conversions ------------------------------------------------------- */

enum { IN_PLACE, SEPARATE, EACH, CHECKPOINTS, TREE, FROZEN, N_WRITES };
enum { DRAWN, NO_G, G_ZERO, BETA_ZERO, ONE_TOKEN, N_GATES };
enum { B = 3, EVERY = 7 };
static const int64_t lengths[2][B] = { { 5, 8, 1 }, { 33, 0, 50 } };

/* The same call twice: with 8-bit pools, and with float32 ones. */
struct twin {
    gdn_rule_args eight, wide;
    gdn_batch batch;
    int64_t length[B], cu[B + 1];
    struct pool from, to, left; /* of 8 bits */
    struct pool wide_from, wide_to, wide_left;
    struct rounding rounding;
    int layout, write, gates;
};

static void make_batch(struct twin *t)
{
    static const int64_t parents[B * 8] = { -1, 0, 1, 1, 0,  4,  2, 3, -1, 0, 0, 1,
                                            2,  3, 4, 5, -1, -1, 0, 1, 0,  2, 2, 6 };
    int64_t write[B * 64], slot = 1;
    t->batch = gdn_batch_init();
    for (int b = 0; b < B; b++) t->cu[b + 1] = t->cu[b] + t->length[b];
    t->batch.cu_seqlens = ring2_indices(GDN_I64, B + 1, t->cu);
    if (t->write == FROZEN) t->batch.write = GDN_WRITE_NONE;
    if (t->write == CHECKPOINTS) t->batch.checkpoint_every = EVERY;
    if (t->write == TREE) {
        t->batch.parents = ring2_new(GDN_I32, 0, 2, B, 8, 0, 0);
        for (int64_t i = 0; i < B * 8; i++) ring2_set(&t->batch.parents, i, (double)parents[i]);
    }
    if (t->write != EACH && t->write != TREE) return;
    t->batch.write = GDN_WRITE_EACH;
    t->batch.write_slots = ring2_new(GDN_I64, 0, 2, B, 64, 0, 0);
    for (int64_t i = 0; i < B * 64; i++)
        write[i] = i % 64 < t->length[i / 64] && i % 3 ? slot++ : -1;
    for (int64_t i = 0; i < B * 64; i++) ring2_set(&t->batch.write_slots, i, (double)write[i]);
}

/* With ONE_TOKEN one token of a sequence writes: the last, or the first if states of all tokens
 * are stored. */
static void set_gates(struct twin *t)
{
    gdn_rule_args *a = &t->eight;
    if (t->gates == NO_G) a->g.data = NULL;
    if (t->gates == G_ZERO || t->gates == ONE_TOKEN) ring2_fill_value(&a->g, 0);
    if (t->gates == BETA_ZERO || t->gates == ONE_TOKEN) ring2_fill_value(&a->beta, 0);
    for (int b = 0; b < B && t->gates == ONE_TOKEN; b++) {
        const bool last = t->write == IN_PLACE || t->write == SEPARATE;
        const int64_t at = last ? t->cu[b + 1] - 1 : t->cu[b];
        for (int h = 0; h < heads[2] && t->length[b]; h++) ring2_set(&a->beta, at * 4 + h, 0.5);
    }
}

static void make_twin(struct twin *t, struct kind kind, struct kind other)
{
    const bool each = t->write == EACH || t->write == TREE;
    make_batch(t);
    t->eight = ring2_rule_args(GDN_F32, GDN_F32, t->cu[B], 0, heads, K, V);
    t->eight.batch = &t->batch;
    t->eight.state_layout = t->layout;
    t->eight.rounding = t->rounding.random;
    t->eight.seed = t->rounding.seed;
    set_gates(t);
    t->from = make_kind(kind, t->layout, SLOTS);
    fill_eight(&t->from, t->layout);
    t->wide_from = widened(&t->from, t->layout);
    t->to = t->wide_to = (struct pool){ none(), none() };
    t->left = t->wide_left = t->to;
    if (t->write == SEPARATE || each) {
        t->to = make_kind(other, t->layout, each ? 1 + t->cu[B] : SLOTS);
        t->wide_to = make_wide(t->layout, each ? 1 + t->cu[B] : SLOTS);
    }
    if (t->write == CHECKPOINTS) {
        t->left = make_kind(other, t->layout, 1 + t->cu[B] / EVERY);
        t->wide_left = make_wide(t->layout, 1 + t->cu[B] / EVERY);
    }
    t->wide = ring2_rule_clone(&t->eight);
    t->eight.state = t->from.t, t->eight.state_scales = t->from.scales;
    t->eight.state_out = t->to.t, t->eight.state_out_scales = t->to.scales;
    t->eight.checkpoints = t->left.t, t->eight.checkpoint_scales = t->left.scales;
    t->wide.state = t->wide_from.t, t->wide.state_out = t->wide_to.t;
    t->wide.checkpoints = t->wide_left.t;
}

/* A state that is copied from a slot of a float32 pool to the same slot of an 8-bit pool. */
struct stored {
    const struct pool *to, *wide;
    int64_t slot, n;
};

static int find_stored(const struct twin *t, struct stored *s)
{
    const bool in_place = t->write == IN_PLACE || t->write == CHECKPOINTS;
    int n = 0;
    int64_t c = 0;
    for (int64_t b = 0; b < B; b++) {
        const int64_t T = t->length[b];
        if (T && in_place) s[n++] = (struct stored){ &t->from, &t->wide_from, b, T };
        if (T && t->write == SEPARATE) s[n++] = (struct stored){ &t->to, &t->wide_to, b, T };
        for (int64_t i = 0; i < T && (t->write == EACH || t->write == TREE); i++) {
            const int64_t slot = (int64_t)ring2_get(&t->batch.write_slots, b * 64 + i);
            if (slot >= 0) s[n++] = (struct stored){ &t->to, &t->wide_to, slot, i + 1 };
        }
        for (int64_t i = EVERY; i <= T && t->write == CHECKPOINTS; i += EVERY)
            s[n++] = (struct stored){ &t->left, &t->wide_left, c++, i };
    }
    return n;
}

static void expect_stored(const struct twin *t, const struct stored *s)
{
    const struct pool got = slot_of(s->to, s->slot), wide = slot_of(s->wide, s->slot);
    const struct pool want = cloned(&got);
    round_slot(&want, &wide, t->layout, 0, s->n, t->rounding);
    expect_pool("a stored state", &got, &want);
}

static void run_twin(struct twin *t, gdn_ctx *ctx, bool decode)
{
    struct stored stored[B * 64];
    const int n = find_stored(t, stored);
    ring2_status(ctx, "float32", ring2_rule_call(ctx, &t->wide, decode), GDN_OK);
    ring2_status(ctx, "supported",
                 gdn_supported(ctx, decode ? GDN_OP_DECODE : GDN_OP_PREFILL, &t->eight), GDN_OK);
    ring2_call_begin();
    ring2_may_write(&t->eight.out);
    for (int i = 0; i < n; i++) may_write(stored[i].to, stored[i].slot);
    ring2_status(ctx, "8 bits", ring2_rule_call(ctx, &t->eight, decode), GDN_OK);
    ring2_call_end();
    ring2_expect_bits("out", &t->eight.out, &t->wide.out);
    for (int i = 0; i < n; i++) expect_stored(t, &stored[i]);
}

static void G21_float32_between_conversions(void)
{
    for (int i = 0; i < 2 * 2 * 2 * 2 * 2 * N_WRITES; i++) {
        struct twin t = { .layout = i / 2 % 2, .write = i / 32 };
        const bool decode = i / 4 % 2, is_long = i / 8 % 2;
        const struct kind kind = kinds[i % N_KINDS], other = kinds[i / 3 % N_KINDS];
        t.rounding = (struct rounding){ i / 16 % 2, ring2_bits() };
        if ((!decode && (t.write == EACH || t.write == TREE)) || (t.write == TREE && is_long))
            continue;
        if (!ring2_begin("G21 float32 between two conversions, %03d", i)) continue;
        memcpy(t.length, lengths[is_long], sizeof t.length);
        make_twin(&t, kind, other);
        run_twin(&t, ring2_ctx(1 + i % 3), decode);
        ring2_end();
    }
}

/* A state that decays or is written is rounded again, even if its dtype does not change. */
static void G21_half_of_what_keeps_a_state(void)
{
    for (int i = 0; i < (N_GATES - 1) * 2 * 3 * FROZEN; i++) {
        struct twin t = { .gates = 1 + i % (N_GATES - 1), .write = i / (N_GATES - 1) / 6 };
        const bool decode = i / (N_GATES - 1) % 2;
        const struct kind kind = kinds[(i / (N_GATES - 1) / 2 + i) % N_KINDS];
        if (!decode && (t.write == EACH || t.write == TREE)) continue;
        if (!ring2_begin("G21 half of what keeps a state, %02d", i)) continue;
        t.layout = (int)ring2_below(2);
        t.rounding = (struct rounding){ ring2_below(2), ring2_bits() };
        memcpy(t.length, lengths[t.write != TREE && (!decode || ring2_below(2))], sizeof t.length);
        make_twin(&t, kind, kind);
        run_twin(&t, ring2_ctx(1 + i % 3), decode);
        ring2_end();
    }
}

/* ---- GDN_EXACT: rounded after every token --------------------------------------------------- */

enum { ALL_DRAWN, SOME_STAY, SOME_HALF, WITHOUT_G, N_EXACT_GATES };
enum { STAY_FROM = 5, STAY_TO = 20 };

static void set_exact_gates(gdn_rule_args *a, int gates)
{
    for (int64_t i = STAY_FROM * 4; i < STAY_TO * 4; i++) {
        if (gates == SOME_STAY || (gates == SOME_HALF && i % 3)) ring2_set(&a->g, i, 0);
        if (gates == SOME_STAY || (gates == SOME_HALF && i % 3 == 0)) ring2_set(&a->beta, i, 0);
    }
    if (gates == WITHOUT_G) a->g.data = NULL;
}

static void G21_exact_calls_of_any_length(void)
{
    enum { T = 37 };
    static const int64_t cuts[3][6] = { { 37 }, { 1, 20, 3, 13 }, { 12, 1, 24 } };
    for (int i = 0; i < 8 * N_EXACT_GATES; i++) {
        const int layout = i / 2 % 2, gates = i / 8;
        gdn_rule_args one = ring2_rule_args(GDN_F32, GDN_F32, T, 0, heads, K, V);
        struct pool start = make_kind(kinds[i % N_KINDS], layout, 1), state = start;
        fill_eight(&start, layout);
        one.state_layout = layout, one.rounding = i / 4 % 2, one.seed = 77 + (uint64_t)i;
        one.flags = GDN_EXACT;
        set_exact_gates(&one, gates);
        /* One by one, each a float32 call between two conversions. */
        const gdn_rule_args want = ring2_rule_clone(&one);
        state = cloned(&start);
        for (int64_t t = 0; t < T; t++) {
            const struct pool wide = widened(&state, layout);
            gdn_rule_args a = part_of(&want, t, 1);
            const struct rounding rounding = { one.rounding, one.seed + (uint64_t)t };
            a.state = wide.t;
            ring2_status(ring2_ctx(1), "token", gdn_decode(ring2_ctx(1), &a), GDN_OK);
            if (gates != SOME_STAY || t < STAY_FROM || t >= STAY_TO)
                round_slot(&state, &wide, layout, 0, 1, rounding);
        }
        for (int j = 0; j < 6; j++) {
            const gdn_rule_args got = ring2_rule_clone(&one);
            const struct pool p = cloned(&start);
            for (int64_t t = 0, c = 0; t < T; t += cuts[j / 2][c++]) {
                gdn_rule_args a = part_of(&got, t, cuts[j / 2][c]);
                a.state = p.t, a.state_scales = p.scales;
                ring2_status(ring2_ctx(2), "part", ring2_rule_call(ring2_ctx(2), &a, j % 2),
                             GDN_OK);
            }
            ring2_expect_bits("out", &got.out, &want.out);
            expect_pool("state", &p, &state);
        }
        ring2_free();
        if (!ring2_failed()) continue;
        ring2_fail("case %d", i);
        return;
    }
}

/* ---- Records -------------------------------------------------------------------------------- */

/* Folding c rows is the float32 fold between two conversions, for n = c. */
static void G21_fold(void)
{
    enum { R = 6 };
    for (int i = 0; i < 4 * N_KINDS; i++) {
        const int layout = i / N_KINDS % 2;
        const struct rounding r = { i / N_KINDS / 2, 321 };
        const struct pool p = make_kind(kinds[i % N_KINDS], layout, 2);
        gdn_record_fold_args a = gdn_record_fold_args_init(), wide;
        fill_eight(&p, layout);
        a.record_k = ring2_new(GDN_F32, 0, 4, 2, R, 2, K);
        a.record_u = ring2_new(GDN_F32, 0, 4, 2, R, 4, V);
        a.record_g = ring2_new(GDN_F32, 0, 3, 2, R, 4, 0);
        ring2_fill(&a.record_k, -0.2, 0.2), ring2_fill(&a.record_u, -1, 1);
        ring2_fill(&a.record_g, 0.5, 1);
        a.state_layout = layout, a.rounding = r.random, a.seed = r.seed;
        wide = a;
        a.record_count = ring2_indices(GDN_I32, 2, (const int64_t[]){ 4, 0 });
        wide.record_count = ring2_clone(&a.record_count);
        const struct pool from = widened(&p, layout), want = cloned(&p);
        a.state = p.t, a.state_scales = p.scales, wide.state = from.t;
        ring2_status(ring2_ctx(2), "fold", gdn_record_fold(ring2_ctx(2), &a), GDN_OK);
        ring2_status(ring2_ctx(2), "float32", gdn_record_fold(ring2_ctx(2), &wide), GDN_OK);
        round_slot(&want, &from, layout, 0, 4, r);
        expect_pool("state", &p, &want);
    }
}

/* A token that changes nothing, behind a record: its checkpoint is the state with the record. */
static void G21_checkpoint_of_a_record(void)
{
    enum { R = 6 };
    static const int64_t three[] = { 3 };
    for (int i = 0; i < 2 * N_KINDS; i++) {
        const int layout = i / N_KINDS;
        gdn_rule_args a = ring2_rule_args(GDN_F32, GDN_F32, 1, 0, heads, K, V);
        gdn_record_fold_args f = gdn_record_fold_args_init();
        const struct pool p = make_kind(kinds[i % N_KINDS], layout, 1);
        fill_eight(&p, layout);
        const struct pool got = cloned(&p), want = cloned(&p);
        ring2_fill_value(&a.g, 0), ring2_fill_value(&a.beta, 0);
        gdn_rule_args call = part_of(&a, 0, 1);
        gdn_batch t = *call.batch;
        t.write = GDN_WRITE_NONE, t.checkpoint_every = 1, call.batch = &t;
        call.record_k = ring2_new(GDN_F32, 0, 4, 1, R, 2, K);
        call.record_u = ring2_new(GDN_F32, 0, 4, 1, R, 4, V);
        call.record_g = ring2_new(GDN_F32, 0, 3, 1, R, 4, 0);
        ring2_fill(&call.record_k, -0.2, 0.2), ring2_fill(&call.record_u, -1, 1);
        ring2_fill(&call.record_g, 0.5, 1);
        call.record_count = ring2_indices(GDN_I32, 1, three);
        f.record_k = ring2_clone(&call.record_k), f.record_u = ring2_clone(&call.record_u);
        f.record_g = ring2_clone(&call.record_g), f.record_count = ring2_clone(&call.record_count);
        call.state = p.t, call.state_scales = p.scales;
        call.checkpoints = got.t, call.checkpoint_scales = got.scales;
        f.state = want.t, f.state_scales = want.scales;
        call.state_layout = f.state_layout = layout;
        ring2_status(ring2_ctx(2), "token", gdn_decode(ring2_ctx(2), &call), GDN_OK);
        ring2_status(ring2_ctx(2), "fold", gdn_record_fold(ring2_ctx(2), &f), GDN_OK);
        expect_pool("the checkpoint", &got, &want);
    }
}

/* ---- Refusals ------------------------------------------------------------------------------- */

static gdn_rule_args refusable(void)
{
    static const int64_t cu[2] = { 0, 20 };
    static gdn_batch batch;
    gdn_rule_args a = ring2_rule_args(GDN_F32, GDN_F32, 20, 0, heads, K, V);
    const struct pool p = make_kind(kinds[0], 0, 2), q = make_kind(kinds[1], 0, 2);
    fill_eight(&p, 0);
    fill_eight(&q, 0);
    batch = gdn_batch_init();
    batch.cu_seqlens = ring2_indices(GDN_I32, 2, cu);
    a.batch = &batch;
    a.state = p.t, a.state_scales = p.scales, a.state_out = q.t, a.state_out_scales = q.scales;
    return a;
}

#define REFUSE(what, want, needle, ...)                                                       \
    do {                                                                                      \
        if (!ring2_begin("G1 8 bits: %s", what)) break;                                       \
        gdn_rule_args a = refusable();                                                        \
        __VA_ARGS__;                                                                          \
        for (int i = 0; i < 2; i++)                                                           \
            ring2_refused(ring2_ctx(2), i ? GDN_OP_DECODE : GDN_OP_PREFILL, &a, RING2_STRUCT, \
                          want, needle);                                                      \
        ring2_end();                                                                          \
    } while (0)

static void refuse_calls(void)
{
    REFUSE("no scales", GDN_E_ARG, "state_scales: absent, but state is GDN_I8",
           a.state_scales.data = NULL);
    REFUSE("no scales of state_out", GDN_E_ARG, "state_out_scales: absent",
           a.state_out.dtype = GDN_I8, a.state_out_scales.data = NULL);
    REFUSE("scales of a float state", GDN_E_ARG, "state_scales: given, but state is not of 8",
           a.state = ring2_new(GDN_F32, 0, 4, 2, 4, V, K));
    REFUSE("scales of no state", GDN_E_ARG, "state_scales: given, but state is absent",
           a.state.data = NULL);
    REFUSE("scales of no checkpoints", GDN_E_ARG, "checkpoint_scales: given, but checkpoints is",
           a.checkpoint_scales = ring2_clone(&a.state_scales));
    REFUSE("scales of bf16", GDN_E_DTYPE, "state_scales: GDN_BF16",
           a.state_scales.dtype = GDN_BF16);
    REFUSE("other heads", GDN_E_SHAPE, "state_scales", a.state_scales.size[1] = 3);
    REFUSE("other slots", GDN_E_SHAPE, "state_scales", a.state_scales.size[0] = 1);
    REFUSE("not dense", GDN_E_SHAPE, "state_scales", a.state_scales.stride[2] = 2);
    REFUSE("misaligned", GDN_E_ARG, "state_scales",
           a.state_scales.data = (char *)a.state_scales.data + 2);
    REFUSE("scales share memory", GDN_E_SHAPE, "state_out_scales",
           a.state_out_scales.stride[1] = 1);
    REFUSE("scales overlap scales", GDN_E_ARG, "state_out_scales: overlaps state_scales",
           a.state_out_scales = a.state_scales);
    REFUSE("scales overlap out", GDN_E_ARG, "state_out_scales",
           a.state_out_scales.data = a.out.data);
    REFUSE("one state, two scales", GDN_E_ARG, "state_out_scales: not state_scales, but state_out",
           a.state_out = a.state);
    REFUSE("one state, with scales and without", GDN_E_ARG, "state_out_scales: not state_scales",
           a.state_out = a.state = a.state_out, a.state_out_scales.data = NULL);
    REFUSE("q of i8", GDN_E_DTYPE, "q: GDN_I8", a.q.dtype = GDN_I8);
    REFUSE("rounding", GDN_E_ARG, "rounding: 2", a.rounding = 2);
}

static void refuse_others(void)
{
    const struct pool p = make_kind(kinds[0], 0, 2), q = make_wide(0, 2);
    gdn_ctx *ctx = ring2_ctx(1);
    gdn_state_copy_args a = copy_args(&p, 0, &q, 0, (struct rounding){ false, 0 }), b = a;
    gdn_conv1d_args c = gdn_conv1d_args_init();
    gdn_blob_args blob = gdn_blob_args_init();
    size_t bytes;
    fill_eight(&p, 0);
    b.from_scales.data = NULL;
    ring2_refused(ctx, GDN_OP_STATE_COPY, &b, RING2_STRUCT, GDN_E_ARG, "from_scales: absent");
    b = a, b.to_scales = p.scales;
    ring2_refused(ctx, GDN_OP_STATE_COPY, &b, RING2_STRUCT, GDN_E_ARG, "to_scales: given");
    b = a, b.rounding = -1;
    ring2_refused(ctx, GDN_OP_STATE_COPY, &b, RING2_STRUCT, GDN_E_ARG, "rounding");
    b = a, b.from_pool = ring2_new(GDN_I8, 0, 3, 2, 5, 3, 0);
    ring2_refused(ctx, GDN_OP_STATE_COPY, &b, RING2_STRUCT, GDN_E_DTYPE, "from_pool: GDN_I8");
    c.x = ring2_new(GDN_F32, 0, 2, 4, 5, 0, 0), c.out = ring2_new(GDN_F32, 0, 2, 4, 5, 0, 0);
    c.weight = ring2_new(GDN_F32, 0, 2, 5, 4, 0, 0), c.state = ring2_new(GDN_I8, 0, 3, 1, 5, 3, 0);
    ring2_refused(ctx, GDN_OP_CONV1D, &c, RING2_STRUCT, GDN_E_DTYPE, "state: GDN_I8");
    blob.state = p.t, blob.n_key_heads = blob.n_value_heads = 4;
    blob.key_head_dim = K, blob.value_head_dim = V;
    if (ring2_on_device()) return; /* blobs are of the host's memory */
    CHECK(gdn_blob_bytes(ctx, &blob, &bytes) == GDN_E_ARG, "a blob without scales");
    CHECK(strstr(gdn_last_error(ctx), "state_scales: absent"), "\"%s\"", gdn_last_error(ctx));
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "G21 GDN_EXACT: calls of any length", G21_exact_calls_of_any_length },
        { "G21 records folded", G21_fold },
        { "G21 a checkpoint of a record", G21_checkpoint_of_a_record },
        { "G1 other ops", refuse_others },
    };
    ring2_options(argc, argv);
    refuse_calls();
    G21_float32_between_conversions();
    G21_half_of_what_keeps_a_state();
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
