/* SPDX-License-Identifier: Apache-2.0 */
/* runs: gpu, sm_90 "padded rows" --every=6 */
/*
 * gdn_summary on Hopper, of keys and values of 16 bits: whole sequences, and sequences cut into
 * units by the planner or by this test. The limits are those of whole sequences; if gates may
 * forget, 2^-24 more.
 */
#include <math.h>
#include <string.h>

#include "ring2_device.h"
#include "ring2_rule.h"
#include "summary_call.h"

enum { BOTH, ONLY_M, ONLY_U, N_PARTS };
enum { MILD, SPRINKLED, STRONG, MIXED, N_GATES };

/* A call, and units of so many tokens. */
static const struct shape {
    int32_t dtype, to, layout, norm, map;
    int64_t K, V, each;
    int heads[3]; /* H, Hk, Hv */
} shapes[] = {
    { GDN_BF16, GDN_F32, GDN_STATE_VK, GDN_NORM_NONE, 0, 128, 128, 128, { 4, 2, 4 } },
    { GDN_F16, GDN_F32, GDN_STATE_KV, GDN_NORM_L2, 0, 128, 128, 64, { 2, 1, 2 } },
    { GDN_BF16, GDN_BF16, GDN_STATE_VK, GDN_NORM_L2, 1, 96, 72, 192, { 4, 2, 4 } },
    { GDN_BF16, GDN_F16, GDN_STATE_KV, GDN_NORM_NONE, 0, 64, 128, 128, { 4, 4, 2 } },
    { GDN_F16, GDN_F32, GDN_STATE_VK, GDN_NORM_NONE, 1, 8, 40, 64, { 6, 3, 2 } },
    { GDN_BF16, GDN_F32, GDN_STATE_VK, GDN_NORM_L2_ADD, 0, 64, 64, 256, { 3, 1, 3 } },
    { GDN_F16, GDN_BF16, GDN_STATE_VK, GDN_NORM_L2, 0, 40, 16, 64, { 2, 2, 1 } },
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };
#define FOR_EACH_SHAPE(s) for (const struct shape *s = shapes; s < shapes + N_SHAPES; s++)

static const struct shape fading = { GDN_BF16, GDN_F32, GDN_STATE_VK, GDN_NORM_L2, 0,
                                     128,      128,     192,          { 2, 1, 2 } };

static gdn_batch batch;

/* ---- Calls --------------------------------------------------------------------------------- */

static void set_gates(const gdn_tensor *g, int gates)
{
    static const double low[] = { -0.02, -0.1, -8, 0 }, mixed[] = { -3, -0.25, 0, -0.03 };
    const int64_t H = g->size[g->ndim - 1];
    for (int64_t i = 0; i < ring2_count(g); i++) {
        double x = ring2_uniform(gates == MIXED ? mixed[i % H % 4] : low[gates], 0);
        if (gates == SPRINKLED && ring2_below(200) == 0) x = -(double)INFINITY;
        ring2_set(g, i, x);
    }
}

/* Makes a packed call with sequences of these lengths. */
static gdn_summary_args packed(const struct shape *s, int n, const int64_t *lengths, int gates)
{
    int64_t cu[9] = { 0 };
    gdn_summary_args a = gdn_summary_args_init();
    const int H = s->heads[0];
    const bool kv = s->layout == GDN_STATE_KV;
    for (int i = 0; i < n; i++) cu[i + 1] = cu[i] + lengths[i];
    const int64_t N = cu[n] + 2; /* two tokens belong to no sequence */
    batch = gdn_batch_init();
    batch.cu_seqlens = ring2_indices(GDN_I32, n + 1, cu);
    a.batch = &batch;
    a.k = ring2_new(s->dtype, 0, 3, N, s->heads[1], s->K, 0);
    a.v = ring2_new(s->dtype, 0, 3, N, s->heads[2], s->V, 0);
    a.g = ring2_new(GDN_F32, 0, 2, N, H, 0, 0), a.beta = ring2_new(s->dtype, 0, 2, N, H, 0, 0);
    a.M = pool(s->to, s->map, n, H, s->K, s->K);
    a.U = pool(s->to, s->map, n, H, kv ? s->K : s->V, kv ? s->V : s->K);
    a.state_layout = s->layout, a.head_map = s->map, a.norm = s->norm;
    fill_unit(&a.k);
    ring2_fill(&a.v, -1, 1), ring2_fill(&a.beta, 0, 1);
    set_gates(&a.g, gates);
    return a;
}

static gdn_summary_args without(gdn_summary_args a, int parts)
{
    if (parts == ONLY_M) a.v.data = a.U.data = NULL;
    if (parts == ONLY_U) a.M.data = NULL;
    return a;
}

static void expect_kernels(gdn_ctx *ctx, bool cut)
{
    const char *ran = gdn_last_kernel(ctx);
    CHECK(strstr(ran, "prefill_sm90_summary"), "%s", ran);
    CHECK(!strstr(ran, "segments_maps") == !cut, "%s", ran);
}

/* ---- Values -------------------------------------------------------------------------------- */

static void compare(const char *what, const gdn_summary_args *a, bool transition)
{
    const gdn_tensor *got = transition ? &a->M : &a->U;
    const gdn_rule_args r = as_rule(a, transition);
    const int64_t K = a->k.size[a->k.ndim - 1];
    struct ring2_rule m;
    if (!got->data) return;
    ring2_rule_model(&r, false, &m);
    for (int64_t i = 0; i < ring2_count(got); i++) {
        const double want = transition && i / K % K == i % K;
        if (m.state_kept[i]) CHECK(ring2_get(got, i) == want, "%s[%d] of no token", what, (int)i);
        if (!oracle_normalises(a->norm)) continue;
        m.state_limit[i] += 16 * 0x1p-24;
        m.state_noise[i] += 0x1p-24;
    }
    ring2_compare(what, got, m.state, m.state_limit, m.state_noise, m.state_kept);
}

static void check(gdn_ctx *ctx, const gdn_summary_args *a, bool cut)
{
    ring2_call_begin();
    ring2_may_write(&a->M), ring2_may_write(&a->U);
    ring2_may_write_bytes(a->workspace, a->workspace_bytes);
    call(ctx, a);
    ring2_call_end();
    expect_kernels(ctx, cut);
    compare("U", a, false), compare("M", a, true);
}

/* Lengths around those of units. */
static void agrees_with_float64(void)
{
    static const int64_t lengths[][6] = { { 1000 }, { 63, 64, 65, 700, 0, 129 }, { 1, 320, 321 } };
    static const int counts[] = { 1, 6, 3 };
    int number = 0;
    FOR_EACH_SHAPE(s) for (int i = 0; i < 3 && !ring2_failed(); i++, number++)
    {
        gdn_ctx *ctx = ring2_hopper(s->each, s->each);
        if (!ctx) return;
        const gdn_summary_args a = packed(s, counts[i], lengths[i], number % N_GATES);
        const gdn_summary_args b = without(a, number % N_PARTS);
        check(ctx, &b, true);
        ring2_free();
    }
}

/* If no sequence is longer than a unit, none is cut. */
static void whole_sequences(void)
{
    static const int64_t lengths[] = { 0, 300, 64, 1, 0, 129 };
    int number = 0;
    FOR_EACH_SHAPE(s)
    {
        gdn_ctx *ctx = ring2_hopper(0, 0);
        if (!ctx) return;
        const gdn_summary_args a = packed(s, 6, lengths, number % N_GATES);
        const gdn_summary_args b = without(a, number++ % N_PARTS);
        check(ctx, &b, false);
        ring2_free();
    }
}

/* Rows [B][T], of which some tokens count; a row without any has the identity. */
static void padded_rows(void)
{
    enum { B = 4, T = 300 };
    static const int64_t count[B] = { T, 170, 0, 64 };
    FOR_EACH_SHAPE(s)
    {
        gdn_ctx *ctx = ring2_hopper(s->each, s->each);
        if (!ctx) return;
        gdn_summary_args a = packed(s, B, (int64_t[]){ T, T, T, T - 2 }, MILD);
        gdn_tensor *t[] = { &a.k, &a.v, &a.g, &a.beta };
        for (int i = 0; i < 4; i++) {
            const gdn_tensor p = *t[i];
            *t[i] = gdn_dense(p.data, p.dtype, p.ndim + 1, B, T, p.size[1], p.size[2]);
        }
        batch = gdn_batch_init();
        batch.token_count = ring2_indices(GDN_I64, B, count);
        check(ctx, &a, s->each < T);
        ring2_free();
    }
}

/* More units than a warp looks at at once; what forgets is among the first of them, or none. */
static void many_units(void)
{
    enum { T = 64 * 45 + 7 };
    static const struct shape s = { GDN_BF16, GDN_F32, GDN_STATE_VK, GDN_NORM_NONE, 0,
                                    16,       8,       64,           { 2, 1, 2 } };
    for (int i = 0; i < 3; i++) {
        gdn_ctx *ctx = ring2_hopper(64, 64);
        if (!ctx) return;
        gdn_summary_args a = packed(&s, 1, (int64_t[]){ T }, MILD);
        ring2_fill(&a.g, -0.001, 0);
        if (i) ring2_set(&a.g, 2 * (i == 1 ? 200 : 64 * 40), -(double)INFINITY);
        check(ctx, &a, true);
        ring2_free();
    }
}

/* Long enough for the planner. */
static void where_the_planner_cuts(void)
{
    gdn_ctx *ctx = ring2_hopper(0, 0);
    if (!ctx) return;
    gdn_summary_args a = packed(&shapes[4], 2, (int64_t[]){ 5000, 1 }, MILD);
    ring2_fill(&a.g, -0.001, 0);
    ring2_status(ctx, "bytes", gdn_workspace_bytes(ctx, GDN_OP_SUMMARY, &a, &a.workspace_bytes),
                 GDN_OK);
    a.workspace = ring2_alloc((a.workspace_bytes + 63) / 64 * 64, 64);
    check(ctx, &a, true);
}

/* ---- Joined ranges --------------------------------------------------------------------------- */

/* Summaries of parts, folded, and a prefill of the rest agree with one prefill of all, within
 * twice its limits. */
static void parts_and_the_whole(void)
{
    enum { N = 900, LAST = 600, H = 4 };
    static const int64_t lengths[] = { 250, 350 };
    static const int heads[3] = { 2, 2, H };
    for (int norm = GDN_NORM_DEFAULT; norm <= GDN_NORM_L2; norm++) {
        gdn_ctx *ctx = ring2_hopper(128, 128);
        gdn_rule_args whole = ring2_rule_args(GDN_BF16, GDN_F32, N, 1, heads, 128, 128);
        if (!ctx) return;
        whole.norm = norm;
        ring2_rule_inputs(&whole, !oracle_normalises(norm), -0.01);
        gdn_rule_args rest = ring2_rule_slice(&whole, LAST, N - LAST);
        gdn_summary_args a = gdn_summary_args_init();
        struct ring2_rule m;
        batch = gdn_batch_init();
        batch.cu_seqlens = ring2_indices(GDN_I64, 3, (int64_t[]){ 0, lengths[0], LAST });
        a.k = whole.k, a.v = whole.v, a.g = whole.g, a.beta = whole.beta, a.norm = norm;
        a.M = ring2_new(GDN_F32, 0, 4, 2, H, 128, 128), a.U = ring2_clone(&a.M);
        a.batch = &batch;
        call(ctx, &a);
        expect_kernels(ctx, true);
        gdn_summary_fold_args f = gdn_summary_fold_args_init();
        f.M = a.M, f.U = a.U, f.state = whole.state;
        f.state_out = ring2_clone(&whole.state);
        ring2_status(ctx, "gdn_summary_fold", gdn_summary_fold(ctx, &f), GDN_OK);
        rest.state = f.state_out;
        ring2_rule_model(&whole, false, &m);
        ring2_status(ctx, "gdn_prefill", gdn_prefill(ctx, &rest), GDN_OK);
        for (int64_t i = 0; i < ring2_count(&rest.state); i++) m.state_limit[i] *= 2;
        ring2_compare("state", &rest.state, m.state, m.state_limit, m.state_noise, NULL);
        for (int64_t i = 0; i < ring2_count(&rest.out); i++) {
            const int64_t at = LAST * H * 128 + i;
            const double error = fabs(ring2_get(&rest.out, i) - m.out[at]);
            CHECK(error <= 2 * m.out_limit[at], "out[%d] is off by %g", (int)i, error);
        }
        ring2_free();
    }
}

/* ---- Early stop ------------------------------------------------------------------------------ */

/* One sequence of 700 tokens in units of 192, whose gates leave KEPT tokens at the end so many
 * bits. It stops at chunk 4, inside unit 1, or at chunk 9, where unit 3 begins. */
enum { STOP_T = 700 };
static gdn_summary_args fade(double bits, int first)
{
    const int64_t one[] = { STOP_T };
    gdn_summary_args a = packed(&fading, 1, one, MILD);
    ring2_fill_value(&a.g, -bits / (STOP_T - 64 * first) * log(2));
    return a;
}

/* M is zero, and a NaN right before the stop is forgotten; by gates a little weaker the stop is a
 * chunk before, and the NaN is kept. Without a stop both are there. */
static void where_it_stops(void)
{
    static const int first[] = { 4, 9, 6, 8 };
    for (int i = 0; i < 24; i++) {
        const bool stops = i % 2 && i / 8 == 0;
        gdn_ctx *ctx = ring2_hopper(192, 192);
        if (!ctx) return;
        gdn_summary_args a = fade(i % 2 ? 25.1 : 24.9, first[i / 2 % 4]);
        if (i / 8 == 1) a.flags = GDN_NO_EARLY_STOP;
        if (i / 8 == 2) a.norm = GDN_NORM_NONE;
        ring2_set(&a.v, (64 * first[i / 2 % 4] - 1) * 2 * 128, (double)NAN);
        call(ctx, &a);
        expect_kernels(ctx, true);
        CHECK(isnan(ring2_get(&a.U, 0)) == !stops, "case %d: U is %g", i, ring2_get(&a.U, 0));
        CHECK((ring2_get(&a.M, 0) == 0) == (i / 8 == 0), "case %d: M is %g", i, ring2_get(&a.M, 0));
        ring2_free();
    }
}

static void stops_agree_with_float64(void)
{
    for (int i = 0; i < 8 && !ring2_failed(); i++) {
        const int64_t each = i % 4 < 2 ? 192 : 1024;
        gdn_ctx *ctx = ring2_hopper(each, each);
        if (!ctx) return;
        gdn_summary_args a = i % 2 ? fade(25.1, i < 4 ? 4 : 9)
                                   : packed(&shapes[2], 2, (int64_t[]){ 900, 800 }, MIXED);
        ring2_fill(&a.beta, 0, 2);
        check(ctx, &a, each == 192 || i % 2 == 0);
        ring2_free();
    }
}

/* ---- Guarantees ------------------------------------------------------------------------------ */

static void G3_repeat(void)
{
    static const int64_t lengths[] = { 1000, 1, 333 };
    FOR_EACH_SHAPE(s)
    {
        gdn_ctx *ctx = ring2_hopper(s->each, s->each);
        if (!ctx) return;
        const gdn_summary_args a = packed(s, 3, lengths, MIXED);
        call(ctx, &a);
        for (int i = 0; i < 3; i++) {
            const gdn_summary_args b = fresh(&a);
            call(ctx, &b);
            ring2_expect_bits("U", &b.U, &a.U);
            ring2_expect_bits("M", &b.M, &a.M);
        }
    }
}

/* With GDN_BATCH_INVARIANT a sequence has the bits that it has alone, and units are cut. */
static void G2_batch_invariant(void)
{
    enum { LONG = 8300 };
    static const struct shape s = { GDN_BF16, GDN_F32, GDN_STATE_VK, GDN_NORM_L2, 0,
                                    16,       8,       64,           { 1, 1, 1 } };
    gdn_ctx *ctx = ring2_hopper(0, 0);
    if (!ctx) return;
    gdn_summary_args a = packed(&s, 3, (int64_t[]){ 70, LONG, 300 }, MILD);
    ring2_fill(&a.g, -0.0005, 0);
    gdn_summary_args alone = part_of(&a, 70, LONG);
    alone.batch = NULL;
    alone.M = ring2_new(GDN_F32, 0, 4, 1, 1, 16, 16);
    alone.U = ring2_new(GDN_F32, 0, 4, 1, 1, 8, 16);
    a.flags = alone.flags = GDN_BATCH_INVARIANT;
    call(ctx, &a), call(ctx, &alone);
    expect_kernels(ctx, true);
    const gdn_tensor U = ring2_narrow(&a.U, 0, 1, 1), M = ring2_narrow(&a.M, 0, 1, 1);
    ring2_expect_bits("U", &alone.U, &U);
    ring2_expect_bits("M", &alone.M, &M);
}

/* G7: of what is before a gate of -inf nothing remains. G8: where beta is 0, v may be NaN. G9:
 * tokens that neither forget nor write are the identity, in several units too. */
static void selection(void)
{
    static const int64_t one[] = { 500 };
    FOR_EACH_SHAPE(s)
    {
        gdn_ctx *ctx = ring2_hopper(s->each, s->each);
        if (!ctx) return;
        gdn_summary_args a = packed(s, 1, one, MILD), b = fresh(&a);
        const int64_t H = s->heads[0], row = s->heads[2] * s->V;
        for (int64_t i = 0; i < row; i++) ring2_set(&a.v, 5 * row + i, (double)NAN);
        for (int64_t h = 0; h < H; h++) ring2_set(&a.g, 450 * H + h, -(double)INFINITY);
        call(ctx, &a);
        for (int64_t i = 0; i < ring2_count(&a.M); i++)
            CHECK(ring2_get(&a.M, i) == 0, "G7: M[%d] is %g", (int)i, ring2_get(&a.M, i));
        for (int64_t i = 0; i < row; i++) ring2_set(&a.v, 5 * row + i, 0); /* for the model */
        compare("G7", &a, false);
        ring2_fill_value(&b.g, 0), ring2_fill_value(&b.beta, 0);
        ring2_fill_value(&b.v, (double)NAN);
        call(ctx, &b);
        for (int64_t i = 0; i < ring2_count(&b.M); i++)
            CHECK(ring2_get(&b.M, i) == (i / s->K % s->K == i % s->K), "G9: M[%d] is %g", (int)i,
                  ring2_get(&b.M, i));
        for (int64_t i = 0; i < ring2_count(&b.U); i++)
            CHECK(ring2_get(&b.U, i) == 0, "G9: U[%d] is %g", (int)i, ring2_get(&b.U, i));
        ring2_free();
    }
}

/* Other dtypes, sizes and addresses take the general kernel. */
static void what_it_does_not_take(void)
{
    for (int i = 0; i < 4; i++) {
        struct shape s = fading;
        gdn_ctx *ctx = ring2_hopper(0, 0);
        if (!ctx) return;
        if (i == 0) s.K = 136;
        if (i == 1) s.V = 12;
        if (i == 2) s.dtype = GDN_F32;
        gdn_summary_args a = packed(&s, 1, (int64_t[]){ 90 }, MILD);
        if (i == 3)
            a.k.data = (char *)a.k.data + 2, a.k.size[0]--, a.v.size[0]--, a.g.size[0]--,
            a.beta.size[0]--;
        call(ctx, &a);
        CHECK(strstr(gdn_last_kernel(ctx), "stages_summary"), "%s", gdn_last_kernel(ctx));
        compare("U", &a, false), compare("M", &a, true);
        ring2_free();
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "units: float64", agrees_with_float64 },
        { "units: whole sequences", whole_sequences },
        { "units: padded rows", padded_rows },
        { "units: many", many_units },
        { "units: where the planner cuts", where_the_planner_cuts },
        { "units: parts and the whole", parts_and_the_whole },
        { "early stop: where it stops", where_it_stops },
        { "early stop: float64", stops_agree_with_float64 },
        { "G3 repeat", G3_repeat },
        { "G2 GDN_BATCH_INVARIANT", G2_batch_invariant },
        { "G7 G8 G9 selection", selection },
        { "what it does not take", what_it_does_not_take },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
