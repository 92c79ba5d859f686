/* SPDX-License-Identifier: Apache-2.0 */
/* runs: gpu, sm_90 "segments: checkpoints" --every=4 */
/*
 * gdn_prefill with sequences in segments: cut by the planner, or by this test, so that short
 * sequences have many segments. The limits are those of whole sequences. Cases for Hopper alone are
 * skipped elsewhere.
 */
#include <math.h>
#include <string.h>

#include "ring2_device.h"
#include "ring2_rule.h"

/* A call, and its segments of so many tokens. first 0: as the planner cuts. */
static const struct shape {
    int32_t dtype, state, layout, norm;
    int64_t K, V, first, each;
} shapes[] = {
    { GDN_BF16, GDN_F32, GDN_STATE_VK, GDN_NORM_NONE, 128, 128, 192, 128 },
    { GDN_F16, GDN_F32, GDN_STATE_KV, GDN_NORM_L2, 128, 128, 64, 64 },
    { GDN_BF16, GDN_BF16, GDN_STATE_VK, GDN_NORM_L2, 96, 72, 128, 192 },
    { GDN_BF16, GDN_F16, GDN_STATE_VK, GDN_NORM_NONE, 64, 128, 64, 128 },
    { GDN_F16, GDN_F32, GDN_STATE_VK, GDN_NORM_NONE, 128, 64, 256, 64 },
    { GDN_BF16, GDN_F32, GDN_STATE_VK, GDN_NORM_L2, 64, 64, 192, 128 },
    { GDN_F16, GDN_BF16, GDN_STATE_KV, GDN_NORM_NONE, 40, 64, 64, 64 },
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };
#define FOR_EACH_SHAPE(s) for (const struct shape *s = shapes; s < shapes + N_SHAPES; s++)

static void expect_cut(gdn_ctx *ctx, bool cut)
{
    CHECK(!strstr(gdn_last_kernel(ctx), "segments") == !cut, "%s", gdn_last_kernel(ctx));
}

static gdn_rule_args packed(const struct shape *s, int n, const int64_t *lengths)
{
    static const int heads[3] = { 2, 2, 4 };
    gdn_rule_args a = ring2_rule_packed(s->dtype, s->state, n, lengths, heads, s->K, s->V, NULL);
    if (s->layout == GDN_STATE_KV) {
        a.state = ring2_new(s->state, 0, 4, n, 4, s->K, s->V);
        ring2_fill(&a.state, -1, 1);
    }
    a.state_layout = s->layout;
    a.norm = s->norm;
    return a;
}

static void call(gdn_ctx *ctx, const gdn_rule_args *a)
{
    ring2_status(ctx, "gdn_prefill", gdn_prefill(ctx, a), GDN_OK);
}

/* ---- Values -------------------------------------------------------------------------------- */

/* Lengths around those of segments: one sequence is long, and most have one segment or less. */
static void agrees_with_float64(void)
{
    static const int64_t lengths[][6] = { { 1000 }, { 63, 64, 65, 700, 0, 129 }, { 1, 320, 321 } };
    static const int counts[] = { 1, 6, 3 };
    FOR_EACH_SHAPE(s) for (int i = 0; i < 3 && !ring2_failed(); i++)
    {
        gdn_ctx *ctx = ring2_segments(s->first, s->each);
        if (!ctx) return;
        const gdn_rule_args a = packed(s, counts[i], lengths[i]);
        ring2_rule_inputs(&a, s->norm == GDN_NORM_NONE, i ? -0.1 : -0.01);
        ring2_rule_check(ctx, &a, false);
        expect_cut(ctx, true);
        ring2_free();
    }
}

static bool same_bytes(const gdn_tensor *a, const gdn_tensor *b)
{
    return !memcmp(a->data, b->data, (size_t)ring2_count(a) * gdn_dtype_bytes(a->dtype));
}

/* Sequences that are cut have a launch of their own, whether host code or a kernel chooses the
 * cut. Those that stay whole have the bits of a call without segments: short ones, and all if no
 * cut can win. */
static void apart(void)
{
    static const int64_t lengths[] = { 300, 1000, 63, 0, 301, 320, 129 };
    enum { B = sizeof lengths / sizeof *lengths, WHOLE = 300, ALWAYS = 30000, NEVER = 1 };
    for (int i = 0; i < 2 * N_SHAPES && !ring2_failed(); i++) {
        const struct shape *s = &shapes[i / 2];
        const int win = i % 2 ? ALWAYS : i % 4 ? NEVER : 0;
        gdn_ctx *ctx = ring2_hopper_apart(WHOLE, win, s->first, s->each);
        if (!ctx) return;
        if (s->K <= 64 && s->V <= 64) continue;
        gdn_rule_args a = packed(s, B, lengths);
        ring2_rule_inputs(&a, s->norm == GDN_NORM_NONE, -0.05);
        gdn_rule_args whole = ring2_rule_clone(&a);
        ring2_rule_check(ctx, &a, false);
        expect_cut(ctx, true);
        whole.flags = GDN_BATCH_INVARIANT;
        call(ctx, &whole);
        int64_t token = 0;
        for (int row = 0; row < B; token += lengths[row++]) {
            const gdn_tensor got = ring2_narrow(&a.out, 0, token, lengths[row]),
                             want = ring2_narrow(&whole.out, 0, token, lengths[row]);
            if (lengths[row] <= WHOLE || win == NEVER)
                ring2_expect_bits("out of a whole one", &got, &want);
            else if (lengths[row] == 1000)
                CHECK(!same_bytes(&got, &want), "shape %d, win %d: nothing was cut", i / 2, win);
        }
        ring2_free();
    }
}

/* Padded rows with tokens at both ends that do not count. Each gives what its counting tokens
 * give alone. */
static void check_masked_rows(gdn_ctx *ctx)
{
    enum { T = 400 };
    static const int heads[3] = { 2, 2, 4 };
    static const int64_t start[3] = { 0, 70, 333 }, count[3] = { T, 330, 60 };
    gdn_batch t = gdn_batch_init();
    if (!ctx) return;
    gdn_rule_args a = ring2_rule_args(GDN_BF16, GDN_F32, 3 * T, 3, heads, 128, 128), before;
    a.state_out = ring2_clone(&a.state);
    before = a;
    gdn_tensor *rows[] = { &a.q, &a.k, &a.v, &a.g, &a.beta, &a.out };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const gdn_tensor p = *rows[i];
        *rows[i] = gdn_dense(p.data, p.dtype, p.ndim + 1, 3, T, p.size[1], p.size[2]);
    }
    t.token_start = ring2_indices(GDN_I32, 3, start);
    t.token_count = ring2_indices(GDN_I64, 3, count);
    a.batch = &t;
    call(ctx, &a);
    expect_cut(ctx, true);
    for (int b = 0; b < 3; b++) {
        gdn_rule_args row = ring2_rule_slice(&before, b * T + start[b], count[b]);
        const gdn_tensor out = row.out, state = ring2_narrow(&a.state_out, 0, b, 1);
        struct ring2_rule m;
        row.state = ring2_narrow(&a.state, 0, b, 1);
        row.state_out = ring2_clone(&state);
        ring2_rule_model(&row, false, &m);
        ring2_compare("out", &out, m.out, m.out_limit, m.out_noise, NULL);
        ring2_compare("state", &state, m.state, m.state_limit, m.state_noise, NULL);
    }
}

static void masked_rows(void)
{
    check_masked_rows(ring2_segments(128, 64));
    if (ring2_on_hopper()) check_masked_rows(ring2_hopper_apart(340, 0, 128, 64));
}

/* Keys, values and tokens of a head that every planner cuts: elsewhere than on Hopper, devices of
 * few multiprocessors gain only where heads are narrow. */
static int64_t cut_width(void) { return ring2_on_hopper() ? 128 : 16; }
static int64_t cut_tokens(void) { return ring2_on_hopper() ? 6000 : 12000; }

/* Long enough for the planner; and another bit than whole, or nothing has been tried. */
static void where_the_planner_cuts(void)
{
    static const int heads[3] = { 1, 1, 1 };
    const int64_t width = cut_width();
    gdn_ctx *ctx = ring2_segments(0, 0);
    if (!ctx) return;
    gdn_rule_args a = ring2_rule_args(GDN_BF16, GDN_F32, cut_tokens(), 1, heads, width, width);
    ring2_rule_inputs(&a, true, -0.001); /* with stronger gates M is 0 to float32 */
    gdn_rule_args whole = ring2_rule_clone(&a);
    ring2_rule_check(ctx, &a, false);
    expect_cut(ctx, true);
    whole.flags = GDN_BATCH_INVARIANT;
    call(ctx, &whole);
    expect_cut(ctx, false);
    CHECK(!ring2_same_bits(&a.out, &whole.out), "segments have the bits of a whole sequence");
}

/* One sequence is most of a batch: it is cut whether or not the call says how long it is, and it
 * alone. */
static void one_among_many(void)
{
    enum { B = 8, LONG = 24000, SHORT = 500, AT = 5 };
    static const int heads[3] = { 1, 1, 1 };
    int64_t lengths[B];
    gdn_batch *batch;
    gdn_ctx *ctx = ring2_hopper(0, 0);
    if (!ctx) return;
    for (int i = 0; i < B; i++) lengths[i] = i == AT ? LONG : SHORT + i % 3;
    gdn_rule_args a = ring2_rule_packed(GDN_BF16, GDN_F32, B, lengths, heads, 16, 16, &batch);
    ring2_rule_inputs(&a, true, -0.001);
    gdn_rule_args whole = ring2_rule_clone(&a), said = whole;
    whole.flags = GDN_BATCH_INVARIANT;
    call(ctx, &whole);
    expect_cut(ctx, false);
    said.out = ring2_clone(&a.out), said.state = ring2_clone(&a.state);
    ring2_rule_check(ctx, &a, false);
    expect_cut(ctx, true);
    batch->max_seqlen = LONG;
    ring2_rule_check(ctx, &said, false);
    expect_cut(ctx, true);
    const int64_t before = AT * SHORT + 4;
    const gdn_tensor parts[] = { ring2_narrow(&a.out, 0, 0, before),
                                 ring2_narrow(&said.out, 0, 0, before),
                                 ring2_narrow(&whole.out, 0, 0, before) };
    ring2_expect_bits("out of short ones", &parts[0], &parts[2]);
    ring2_expect_bits("out of short ones", &parts[1], &parts[2]);
    CHECK(!ring2_same_bits(&a.out, &whole.out), "the long one has the bits of a whole one");
}

/* A wrong max_seqlen changes no bit of sequences that stay whole. */
static void whatever_is_said(void)
{
    static const int heads[3] = { 1, 1, 1 }, said[] = { 1, 4000, 12000, INT32_MAX };
    static const int64_t lengths[] = { 300, 10000, 0, 65, 5000 };
    gdn_batch *batch;
    gdn_ctx *ctx = ring2_hopper(0, 0);
    if (!ctx) return;
    gdn_rule_args a = ring2_rule_packed(GDN_BF16, GDN_F32, 5, lengths, heads, 72, 16, &batch);
    ring2_rule_inputs(&a, true, -0.001);
    gdn_rule_args whole = ring2_rule_clone(&a);
    whole.flags = GDN_BATCH_INVARIANT;
    call(ctx, &whole);
    for (size_t i = 0; i < sizeof said / sizeof *said && !ring2_failed(); i++) {
        gdn_rule_args cut = ring2_rule_clone(&a), other = ring2_rule_clone(&a);
        batch->max_seqlen = said[i];
        ring2_rule_check(ctx, &cut, false);
        expect_cut(ctx, true);
        other.flags = GDN_BATCH_INVARIANT;
        call(ctx, &other);
        expect_cut(ctx, false);
        ring2_expect_bits("out of whole ones", &other.out, &whole.out);
        ring2_expect_bits("state of whole ones", &other.state, &whole.state);
    }
}

/* States are the float32 state rounded to 8 bits, and no bit of the output differs. */
static void states_of_8_bits(void)
{
    static const int64_t lengths[] = { 500, 130 };
    gdn_ctx *ctx = ring2_segments(64, 128);
    if (!ctx) return;
    const gdn_tensor pool = ring2_new(GDN_E4M3, 0, 4, 2, 4, 128, 128);
    const gdn_tensor scales = ring2_new(GDN_F32, 0, 3, 2, 4, 128, 0);
    gdn_rule_args a = packed(&shapes[0], 2, lengths), b = ring2_rule_clone(&a);
    b.state_out = ring2_clone(&pool), b.state_out_scales = ring2_clone(&scales);
    call(ctx, &b);
    expect_cut(ctx, true);
    call(ctx, &a);
    ring2_expect_bits("out", &b.out, &a.out);
    gdn_state_copy_args c = gdn_state_copy_args_init();
    c.from_pool = a.state, c.to_pool = pool, c.to_scales = scales;
    ring2_status(ctx, "gdn_state_copy", gdn_state_copy(ctx, &c), GDN_OK);
    ring2_expect_bits("codes", &b.state_out, &pool);
    ring2_expect_bits("scales", &b.state_out_scales, &scales);
}

/* Checkpoint c is the state after its tokens alone, to the limits of a state. */
static void checkpoints(void)
{
    enum { T = 700, EVERY = 48, N = T / EVERY };
    static const int64_t one[] = { T };
    FOR_EACH_SHAPE(s)
    {
        gdn_ctx *ctx = ring2_segments(s->first, s->each);
        gdn_batch t = gdn_batch_init();
        if (!ctx) return;
        if (s->layout == GDN_STATE_KV) continue;
        gdn_rule_args a = packed(s, 1, one), before = ring2_rule_clone(&a);
        t.checkpoint_every = EVERY;
        a.batch = &t;
        a.checkpoints = ring2_new(GDN_F32, 0, 4, N, 4, s->V, s->K);
        call(ctx, &a);
        expect_cut(ctx, true);
        for (int c = 0; c < N && !ring2_failed(); c += 3) {
            gdn_rule_args part = ring2_rule_slice(&before, 0, (c + 1) * EVERY);
            const gdn_tensor got = ring2_narrow(&a.checkpoints, 0, c, 1);
            struct ring2_rule m;
            part.state_out = ring2_new(GDN_F32, 0, 4, 1, 4, s->V, s->K);
            ring2_rule_model(&part, false, &m);
            ring2_compare("checkpoint", &got, m.state, m.state_limit, m.state_noise, NULL);
        }
    }
}

/* ---- Early stop ------------------------------------------------------------------------------ */

/* Segments of 64, 512 and the last 124 tokens: of the second one at most three chunks of eight are
 * kept. */
enum { STOP_FIRST = 64, STOP_EACH = 512, STOP_T = 700, STOP_KEPT = 192 };

static gdn_rule_args stopping(int32_t dtype, int32_t norm)
{
    static const int heads[3] = { 1, 1, 2 };
    gdn_rule_args a = ring2_rule_args(dtype, GDN_F32, STOP_T, 1, heads, 128, 128);
    a.norm = norm;
    return a;
}

/* Keys, as they are, times x. */
static void stretch(const gdn_tensor *k, double x)
{
    for (int64_t i = 0; i < ring2_count(k); i++) ring2_set(k, i, x * ring2_get(k, i));
}

/* If the bound is met, values that are not finite are forgotten, so tokens were left out; never
 * with the flag. */
static void where_it_stops(void)
{
    enum { LOG = GDN_GATE_LOG, LINEAR = GDN_GATE_LINEAR, RAW = GDN_GATE_RAW };
    static const struct {
        int32_t norm, gate, beta_kind;
        double bits, beta, length; /* that the kept tokens forget; given; of the keys */
        bool stops;
    } cases[] = {
        { GDN_NORM_L2, LOG, 0, 25.1, 1, 7, true },
        { GDN_NORM_L2, LOG, 0, 24.9, 1, 7, false },
        { GDN_NORM_L2, LOG, 0, 25.1, 1.98, 1, true },
        { GDN_NORM_L2, LOG, 0, 25.1, 2, 1, false },
        { GDN_NORM_L2, LOG, 0, 29.5, 2, 1, true },
        { GDN_NORM_L2, LOG, 0, 29.5, 2.1, 1, false },
        { GDN_NORM_L2, LOG, 0, 25.1, -0.1, 1, false },
        { GDN_NORM_L2, LOG, 0, 0, 1, 1, false },
        { GDN_NORM_L2_ADD, LINEAR, 0, 25.1, 1, 1, true },
        { GDN_NORM_L2_MAX, LINEAR, 0, 24.9, 1, 1, false },
        { GDN_NORM_L2, RAW, 1, 25.1, 9, 1, true },
        { GDN_NORM_L2, RAW, 1, 24.9, 9, 1, false },
        { GDN_NORM_L2, RAW, 2, 25.1, 9, 1, false },
        { GDN_NORM_L2, LOG, 2, 25.1, 1, 1, true },
        { GDN_NORM_NONE, LOG, 0, 25.1, 1, 1, false },
    };
    for (size_t i = 0; i < 4 * sizeof cases / sizeof *cases; i++) {
        const size_t n = i / 4;
        gdn_ctx *ctx = ring2_hopper(STOP_FIRST, STOP_EACH);
        const bool off = i % 4 / 2;
        if (!ctx) return;
        gdn_rule_args a = stopping(i % 2 ? GDN_F16 : GDN_BF16, cases[n].norm);
        const double alpha = exp2(-cases[n].bits / STOP_KEPT);
        const double gate[] = { log(alpha), alpha, log(expm1(-log(alpha))) };
        if (cases[n].gate == RAW) {
            a.A_log = ring2_new(GDN_F32, 0, 1, 2, 0, 0, 0);
            ring2_fill_value(&a.A_log, 0);
        }
        a.gate = cases[n].gate;
        a.beta_kind = cases[n].beta_kind;
        a.flags = off ? GDN_NO_EARLY_STOP : 0;
        ring2_fill_value(&a.g, gate[a.gate]);
        ring2_fill_value(&a.beta, cases[n].beta);
        stretch(&a.k, cases[n].length);
        for (int64_t j = 0; j < 2 * 128; j++) ring2_set(&a.v, 100 * 2 * 128 + j, NAN);
        call(ctx, &a);
        expect_cut(ctx, true);
        const bool stops = cases[n].stops && !off;
        for (int64_t j = 0; j < 2 * 128; j += 51) {
            const double before = ring2_get(&a.out, 300 * 2 * 128 + j);
            const double after = ring2_get(&a.out, 600 * 2 * 128 + j);
            CHECK(isnan(before) && isnan(after) == !stops, "case %d: %g, then %g", (int)i, before,
                  after);
        }
        ring2_free();
    }
}

/* Gates of heads: as strong as they get, so that a stop is due in any chunk, mild, none. */
static void mixed_gates(const gdn_rule_args *a, int64_t T)
{
    static const double low[] = { -3, -0.25, 0, -0.03 };
    for (int64_t i = 0; i < 4 * T; i++) ring2_set(&a->g, i, ring2_uniform(low[i % 4], 0));
}

/* Keys that are alike, which turn the state round and round where beta is near 2. */
static void alike(const gdn_tensor *k, int64_t K)
{
    for (int64_t i = K; i < ring2_count(k); i++)
        ring2_set(k, i, ring2_get(k, i % K) + 0.2 * ring2_get(k, i));
}

static void stops_agree_with_float64(void)
{
    static const int64_t lengths[][2] = { { 1000 }, { 300, 900 } };
    FOR_EACH_SHAPE(s) for (int i = 0; i < 2 && !ring2_failed(); i++)
    {
        if (s->norm == GDN_NORM_NONE) continue;
        gdn_ctx *ctx = ring2_hopper(64, 256 + 256 * i);
        if (!ctx) return;
        gdn_rule_args a = packed(s, 1 + i, lengths[i]);
        mixed_gates(&a, ring2_count(&a.g) / 4);
        alike(&a.k, s->K);
        ring2_fill(&a.beta, 0, 2);
        ring2_rule_check(ctx, &a, false);
        expect_cut(ctx, true);
        ring2_free();
    }
}

/* If the sum says so, nothing is left of a state that only fades, and no more than 2^-24 of it is
 * then missing. With the flag, and where gates are a little weaker, all of it is there. */
static void what_is_missing(void)
{
    for (int i = 0; i < 4; i++) {
        const double bits = i % 2 ? 25.1 : 24.9;
        gdn_ctx *ctx = ring2_hopper(STOP_FIRST, STOP_EACH);
        if (!ctx) return;
        gdn_rule_args a = stopping(GDN_BF16, GDN_NORM_L2);
        const gdn_tensor before = ring2_clone(&a.state);
        const double left = exp2(-bits / STOP_KEPT * STOP_T);
        const double missed = exp2(-bits / STOP_KEPT * (STOP_FIRST + STOP_EACH - STOP_KEPT));
        ring2_fill_value(&a.g, -bits / STOP_KEPT * log(2));
        ring2_fill_value(&a.beta, 0);
        a.flags = i / 2 ? GDN_NO_EARLY_STOP : 0;
        call(ctx, &a);
        for (int64_t j = 0; j < ring2_count(&before); j += 37) {
            const double was = ring2_get(&before, j), got = ring2_get(&a.state, j);
            const double limit = i == 1 ? 0x1p-24 * missed : 3e-5 * left;
            CHECK(fabs(got - left * was) <= limit * fabs(was), "%g of %g, wanted %g", got, was,
                  left * was);
            CHECK(i != 1 || got == 0, "%g is left of %g", got, was);
        }
        ring2_free();
    }
}

/* If nothing stops, because gates are weak or keys have no norm, the flag changes no bit. */
static void the_flag_alone(void)
{
    static const int64_t one[] = { 1200 };
    FOR_EACH_SHAPE(s)
    {
        gdn_ctx *ctx = ring2_hopper(64, 512);
        if (!ctx) return;
        gdn_rule_args a = packed(s, 1, one);
        ring2_fill(&a.g, s->norm == GDN_NORM_NONE ? -3 : -0.05, 0);
        gdn_rule_args b = ring2_rule_clone(&a);
        b.flags = GDN_NO_EARLY_STOP;
        call(ctx, &a), call(ctx, &b);
        expect_cut(ctx, true);
        ring2_expect_bits("out", &b.out, &a.out);
        ring2_expect_bits("state", &b.state, &a.state);
    }
}

/* ---- Guarantees ------------------------------------------------------------------------------ */

static void G3_repeat(void)
{
    static const int64_t lengths[] = { 1000, 1, 333 };
    FOR_EACH_SHAPE(s)
    {
        gdn_ctx *ctx = ring2_segments(s->first, s->each);
        if (!ctx) return;
        gdn_rule_args a = packed(s, 3, lengths), first = ring2_rule_clone(&a);
        call(ctx, &first);
        for (int i = 0; i < 5; i++) {
            gdn_rule_args b = ring2_rule_clone(&a);
            call(ctx, &b);
            ring2_expect_bits("out", &b.out, &first.out);
            ring2_expect_bits("state", &b.state, &first.state);
        }
    }
}

/* With GDN_BATCH_INVARIANT a sequence has the same bits beside others as alone, where it would
 * be cut. */
static void G2_batch_invariant(void)
{
    static const int heads[3] = { 1, 1, 1 };
    const int64_t lengths[] = { cut_tokens(), 70, 300 }, width = cut_width();
    gdn_ctx *ctx = ring2_segments(0, 0);
    if (!ctx) return;
    gdn_rule_args a = ring2_rule_packed(GDN_BF16, GDN_F32, 3, lengths, heads, width, width, NULL);
    gdn_rule_args alone = ring2_rule_slice(&a, 0, lengths[0]);
    alone.batch = NULL;
    alone.state = ring2_narrow(&a.state, 0, 0, 1);
    alone = ring2_rule_clone(&alone);
    gdn_rule_args cut = ring2_rule_clone(&alone);
    a.flags = alone.flags = GDN_BATCH_INVARIANT;
    call(ctx, &a);
    expect_cut(ctx, false);
    call(ctx, &alone);
    expect_cut(ctx, false);
    const gdn_rule_args got = ring2_rule_slice(&a, 0, lengths[0]);
    const gdn_tensor state = ring2_narrow(&a.state, 0, 0, 1);
    ring2_expect_bits("out", &alone.out, &got.out);
    ring2_expect_bits("state", &alone.state, &state);
    call(ctx, &cut);
    expect_cut(ctx, true);
}

/* A NaN in the old state is gone after a gate of -inf, wherever in whichever segment that is. */
static void G7_forgets(void)
{
    enum { T = 700, H = 4 };
    static const int64_t one[] = { T }, gates[] = { 0, 63, 64, 200, 255, 256, 500, 699 };
    FOR_EACH_SHAPE(s) for (int i = 0; i < 8; i++)
    {
        gdn_ctx *ctx = ring2_segments(s->first, s->each);
        if (!ctx) return;
        gdn_rule_args a = packed(s, 1, one), clean = ring2_rule_clone(&a);
        for (int h = 0; h < H; h++) ring2_set(&a.g, gates[i] * H + h, -INFINITY);
        clean.g = ring2_clone(&a.g);
        ring2_fill_value(&a.state, NAN);
        ring2_fill_value(&clean.state, 0);
        call(ctx, &a), call(ctx, &clean);
        expect_cut(ctx, true);
        const gdn_tensor after = ring2_narrow(&a.out, 0, gates[i], T - gates[i]);
        const gdn_tensor want = ring2_narrow(&clean.out, 0, gates[i], T - gates[i]);
        ring2_expect_bits("out", &after, &want);
        ring2_expect_bits("state", &a.state, &clean.state);
        ring2_free();
    }
}

/* Through segments without gates and writes every bit stays, of a NaN of float32 too. */
static void G9_every_bit_stays(void)
{
    static const int64_t one[] = { 700 };
    FOR_EACH_SHAPE(s)
    {
        gdn_ctx *ctx = ring2_segments(s->first, s->each);
        if (!ctx) return;
        gdn_rule_args a = packed(s, 1, one);
        if (s->state == GDN_F32) ring2_set(&a.state, 5, NAN);
        const gdn_tensor before = ring2_clone(&a.state);
        ring2_fill_value(&a.g, 0);
        ring2_fill_value(&a.beta, 0);
        call(ctx, &a);
        expect_cut(ctx, true);
        ring2_expect_bits("state", &a.state, &before);
    }
}

/* In the caller's workspace, of which no byte too many is written. */
static void G13_workspace(void)
{
    static const int64_t lengths[] = { 63, 64, 65, 700, 0, 129 };
    gdn_ctx *ctx = ring2_segments(64, 64);
    if (!ctx) return;
    gdn_rule_args a = packed(&shapes[0], 6, lengths);
    ring2_give_workspace(ctx, GDN_OP_PREFILL, &a);
    ring2_rule_check(ctx, &a, false);
    expect_cut(ctx, true);
    a.workspace_bytes--;
    ring2_status(ctx, "a byte less", gdn_prefill(ctx, &a), GDN_E_MEMORY);
}

/* Sequences that share tokens have more segments than the workspace has room for. The results
 * are undefined, but nothing is written outside of tensors and workspace. */
static void G6_lengths_that_overlap(void)
{
    enum { B = 6, N = 1021 };
    static const int64_t lengths[B] = { 63, 64, 65, 700, 0, 129 };
    static const int32_t wrong[B + 1] = { 0, N, 0, N, 0, N, 0 };
    FOR_EACH_SHAPE(s)
    {
        gdn_ctx *ctx = s == shapes && ring2_on_hopper()
                           ? ring2_hopper_apart(s->first + 60, 30000, s->first, s->each)
                           : ring2_segments(s->first, s->each);
        if (!ctx) return;
        gdn_rule_args a = packed(s, B, lengths);
        memcpy(a.batch->cu_seqlens.data, wrong, sizeof wrong);
        ring2_give_workspace(ctx, GDN_OP_PREFILL, &a);
        ring2_call_begin();
        ring2_may_write(&a.out);
        ring2_may_write(&a.state);
        ring2_may_write_bytes(a.workspace, a.workspace_bytes);
        call(ctx, &a);
        expect_cut(ctx, true);
        ring2_call_end();
        ring2_free();
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "segments: float64", agrees_with_float64 },
        { "segments: apart", apart },
        { "segments: masked rows", masked_rows },
        { "segments: where the planner cuts", where_the_planner_cuts },
        { "segments: one among many", one_among_many },
        { "G2 segments: whatever is said", whatever_is_said },
        { "segments: states of 8 bits", states_of_8_bits },
        { "segments: checkpoints", checkpoints },
        { "early stop: where", where_it_stops },
        { "early stop: float64", stops_agree_with_float64 },
        { "early stop: what is missing", what_is_missing },
        { "early stop: the flag alone", the_flag_alone },
        { "G3 segments repeat", G3_repeat },
        { "G2 batch-invariant", G2_batch_invariant },
        { "G6 lengths that overlap", G6_lengths_that_overlap },
        { "G7 a segment forgets by selection", G7_forgets },
        { "G9 every bit stays through segments", G9_every_bit_stays },
        { "G13 segments in the caller's workspace", G13_workspace },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
