/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_90 "float64" */
/*
 * gdn_prefill_backward for dstate alone on Hopper's tensor cores: sequences cut into units by the
 * planner or by this test, and early stops. The limits are those of whole walks.
 */
#include <math.h>
#include <string.h>

#include "oracle.h"
#include "ring2_device.h"
#include "ring2_gradients.h"
#include "ring2_rule.h"

enum { D = 128, MOST = 7 };
enum { MILD, SPRINKLED, STRONG, MIXED, NONE };

/* A call: sequences, units of so many tokens, and chunks of a window (0: all). whole: a block has
 * all columns of a head. */
static const struct walk {
    const char *name;
    int64_t T[MOST], each, window;
    int Hk, H, gates, norm, map, layout, beta, flags;
    bool ends, whole; /* ends: with dstate_out */
    int K, V;
} walks[] = {
    { "one long",
      { 1000 },
      320,
      2,
      1,
      2,
      MILD,
      GDN_NORM_L2,
      0,
      GDN_STATE_VK,
      0,
      0,
      true,
      false,
      D,
      D },
    { "ragged",
      { 63, 64, 65, 500, 1, 129 },
      128,
      0,
      2,
      4,
      MIXED,
      GDN_NORM_NONE,
      0,
      GDN_STATE_KV,
      0,
      GDN_BATCH_INVARIANT,
      true,
      false,
      D,
      D },
    { "forgetting",
      { 320, 321, 130 },
      64,
      0,
      1,
      2,
      SPRINKLED,
      GDN_NORM_NONE,
      1,
      GDN_STATE_VK,
      0,
      0,
      true,
      false,
      D,
      D },
    { "stops", /* memory ends with those of 4 x 4 heads: some units have no sequence, and no stop */
      { 700, 3, 300, 1 },
      64,
      0,
      2,
      4,
      MIXED,
      GDN_NORM_L2_MAX,
      1,
      GDN_STATE_VK,
      GDN_BETA_TWICE_SIGMOID,
      0,
      true,
      true,
      D,
      D },
    { "every token",
      { 700, 3, 300 },
      192,
      2,
      2,
      4,
      MIXED,
      GDN_NORM_L2_MAX,
      1,
      GDN_STATE_VK,
      GDN_BETA_TWICE_SIGMOID,
      GDN_NO_EARLY_STOP,
      true,
      false,
      D,
      D },
    { "strong",
      { 500, 200 },
      128,
      1,
      1,
      2,
      STRONG,
      GDN_NORM_L2,
      0,
      GDN_STATE_KV,
      0,
      0,
      false,
      false,
      D,
      D },
    { "no gates",
      { 450 },
      64,
      0,
      1,
      1,
      NONE,
      GDN_NORM_L2_ADD,
      0,
      GDN_STATE_VK,
      GDN_BETA_SIGMOID,
      0,
      false,
      false,
      D,
      D },
    { "stops in whole sequences",
      { 700, 3 },
      1024,
      3,
      1,
      4,
      MIXED,
      GDN_NORM_L2,
      0,
      GDN_STATE_VK,
      0,
      0,
      true,
      false,
      D,
      D },
    { "K64 V40",
      { 500, 200 },
      128,
      0,
      1,
      2,
      SPRINKLED,
      GDN_NORM_L2,
      0,
      GDN_STATE_KV,
      0,
      0,
      true,
      false,
      64,
      40 },
    { "K72 V128",
      { 200, 70 },
      64,
      0,
      2,
      2,
      MILD,
      GDN_NORM_NONE,
      0,
      GDN_STATE_VK,
      0,
      0,
      true,
      false,
      72,
      128 },
};
enum { N_WALKS = sizeof walks / sizeof *walks };

/* ---- Calls --------------------------------------------------------------------------------- */

static void set_gates(const gdn_tensor *g, int gates)
{
    static const double low[] = { -0.02, -0.1, -8, 0 }, mixed[] = { -3, -0.25, 0, -0.03 };
    for (int64_t i = 0; i < ring2_count(g); i++) {
        const int64_t head = i % g->size[g->ndim - 1] % 4;
        double x = ring2_uniform(gates == MIXED ? mixed[head] : low[gates], 0);
        if (gates == SPRINKLED && ring2_below(150) == 0) x = -(double)INFINITY;
        ring2_set(g, i, x);
    }
}

static void fill_keys(const gdn_tensor *k, bool unit)
{
    const int64_t K = k->size[2];
    double x[D];
    for (int64_t r = 0; r < ring2_count(k) / K; r++) {
        for (int64_t d = 0; d < K; d++) x[d] = ring2_uniform(-1, 1);
        if (unit) oracle_l2norm(x, x, K, GDN_NORM_L2, 1e-30);
        for (int64_t d = 0; d < K; d++) ring2_set(k, r * K + d, x[d]);
    }
}

/* Makes a packed call of these lengths. Two tokens behind the sequences belong to none. */
static gdn_prefill_backward_args make(const struct walk *w)
{
    gdn_prefill_backward_args a = gdn_prefill_backward_args_init();
    gdn_batch *t = ring2_heap(sizeof *t);
    int64_t cu[MOST + 1] = { 0 };
    int n = 0;
    for (; n < MOST && w->T[n]; n++) cu[n + 1] = cu[n] + w->T[n];
    const int64_t N = cu[n] + 2, K = w->K, V = w->V;
    *t = gdn_batch_init(), t->cu_seqlens = ring2_indices(GDN_I32, n + 1, cu), a.batch = t;
    a.q = ring2_new(GDN_BF16, 0, 3, N, w->Hk, K, 0), a.k = ring2_clone(&a.q);
    a.v = ring2_new(GDN_BF16, 0, 3, N, w->H, V, 0), a.dout = ring2_clone(&a.v);
    fill_keys(&a.q, w->norm == GDN_NORM_NONE), fill_keys(&a.k, w->norm == GDN_NORM_NONE);
    ring2_fill(&a.v, -1, 1), ring2_fill(&a.dout, -1, 1);
    a.beta = ring2_new(GDN_F32, 0, 2, N, w->H, 0, 0);
    ring2_fill(&a.beta, w->beta == GDN_BETA_DEFAULT ? 0 : -3, w->beta == GDN_BETA_DEFAULT ? 1 : 3);
    if (w->gates != NONE) {
        a.g = ring2_new(GDN_F32, 0, 2, N, w->H, 0, 0);
        set_gates(&a.g, w->gates);
    }
    a.dstate = ring2_new(GDN_F32, 0, 4, n, w->H, w->layout == GDN_STATE_KV ? K : V,
                         w->layout == GDN_STATE_KV ? V : K);
    if (w->ends) {
        a.dstate_out = ring2_clone(&a.dstate);
        ring2_fill(&a.dstate_out, -1, 1);
    }
    a.flags = (uint32_t)w->flags;
    a.beta_kind = w->beta, a.norm = w->norm, a.head_map = w->map, a.state_layout = w->layout;
    return a;
}

/* Returns a context whose calls have units of so many tokens (0: as planned). */
static gdn_ctx *walker(int64_t each, int64_t window)
{
    gdn_ctx *ctx = ring2_hopper(each, each);
    ring2_windows(window);
    return ctx;
}

static void run(gdn_ctx *ctx, const gdn_prefill_backward_args *a)
{
    ring2_status(ctx, "gdn_prefill_backward", gdn_prefill_backward(ctx, a), GDN_OK);
    ring2_windows(0); /* which changes no bit of a second run */
}

static void expect_kernels(gdn_ctx *ctx, bool cut, bool stops)
{
    const char *ran = gdn_last_kernel(ctx);
    CHECK(!strstr(ran, "segments_maps") == !cut, "%s", ran);
    CHECK(!strstr(ran, "segments_stops") == !stops, "%s", ran);
    CHECK(strstr(ran, "alone") != NULL, "%s", ran);
}

/* ---- Values -------------------------------------------------------------------------------- */

/* With the memory that the call asks for. */
static void run_walk(const struct walk *w)
{
    const bool cut = w->each < w->T[0] || w->each < w->T[3];
    const bool stops = w->norm != GDN_NORM_NONE && !(w->flags & GDN_NO_EARLY_STOP);
    gdn_ctx *ctx = walker(w->each, w->window);
    if (!ctx) return;
    gdn_prefill_backward_args a = make(w);
    ring2_give_workspace(ctx, GDN_OP_PREFILL_BACKWARD, &a);
    ring2_gradients_check(ctx, &a);
    expect_kernels(ctx, cut, stops);
    CHECK(!strstr(gdn_last_kernel(ctx), "whole_alone") == !w->whole, "%s", gdn_last_kernel(ctx));
    ring2_windows(0);
}

static void run_walks(void)
{
    for (int i = 0; i < N_WALKS; i++) {
        if (!ring2_begin("walk: float64, %s", walks[i].name)) continue;
        run_walk(&walks[i]);
        ring2_end();
    }
}

/* Rows [B][T], of which some tokens count; without any, dstate is dstate_out. */
static void padded_rows(void)
{
    enum { B = 3, T = 300 };
    static const struct walk w = { "", { 300, 300, 298 }, 128, 1, 1,    2,     MILD, GDN_NORM_L2,
                                   0,  GDN_STATE_VK,      0,   0, true, false, D,    D };
    gdn_ctx *ctx = walker(w.each, w.window);
    if (!ctx) return;
    gdn_prefill_backward_args a = make(&w);
    gdn_batch *t = ring2_heap(sizeof *t);
    gdn_tensor *const rows[] = { &a.q, &a.k, &a.v, &a.dout, &a.g, &a.beta };
    for (int i = 0; i < 6; i++) {
        const gdn_tensor r = *rows[i];
        *rows[i] = gdn_dense(r.data, r.dtype, r.ndim + 1, B, T, r.size[1], r.size[2]);
    }
    *t = gdn_batch_init();
    t->token_start = ring2_indices(GDN_I32, B, (int64_t[]){ 0, 3, 7 });
    t->token_count = ring2_indices(GDN_I64, B, (int64_t[]){ T, 270, 0 });
    a.batch = t;
    ring2_gradients_check(ctx, &a);
    expect_kernels(ctx, true, true);
    ring2_windows(0);
}

/* Long enough for the planner. */
static void where_the_planner_cuts(void)
{
    static const struct walk w = { "", { 4000, 1 },  0, 0, 1,    1,     MILD, GDN_NORM_NONE,
                                   0,  GDN_STATE_VK, 0, 0, true, false, D,    D };
    gdn_ctx *ctx = walker(w.each, w.window);
    if (!ctx) return;
    gdn_prefill_backward_args a = make(&w);
    ring2_fill(&a.g, -0.002, 0);
    ring2_give_workspace(ctx, GDN_OP_PREFILL_BACKWARD, &a);
    ring2_gradients_check(ctx, &a);
    expect_kernels(ctx, true, false);
}

/* ---- Early stop ------------------------------------------------------------------------------ */

/* The first chunks of 700 tokens leave so many bits. A NaN behind them is forgotten. By gates a
 * little weaker the stop is a chunk later, and the NaN is kept, as without a stop. */
static void where_it_stops(void)
{
    static const struct walk w = { "", { 700 },      192, 2, 1,    2,     MILD, GDN_NORM_L2,
                                   0,  GDN_STATE_VK, 0,   0, true, false, D,    D };
    static const int chunks[] = { 7, 6, 2, 3 };
    for (int i = 0; i < 24; i++) {
        const bool stops = i % 2 && i / 8 == 0;
        const int n = chunks[i / 2 % 4];
        gdn_ctx *ctx = walker(w.each, w.window);
        if (!ctx) return;
        gdn_prefill_backward_args a = make(&w);
        ring2_fill_value(&a.g, -(i % 2 ? 25.1 : 24.9) / (64 * n) * log(2));
        ring2_fill(&a.beta, 0, 2);
        if (i / 8 == 1) a.flags = GDN_NO_EARLY_STOP;
        if (i / 8 == 2) a.norm = GDN_NORM_NONE;
        ring2_set(&a.dout, 64 * n * 2 * D, (double)NAN);
        run(ctx, &a);
        CHECK(isnan(ring2_get(&a.dstate, 0)) == !stops, "case %d: dstate is %g", i,
              ring2_get(&a.dstate, 0));
        ring2_free();
    }
}

/* ---- Guarantees ------------------------------------------------------------------------------ */

static void G3_repeat(void)
{
    for (int i = 0; i < N_WALKS; i++) {
        gdn_ctx *ctx = walker(walks[i].each, walks[i].window);
        if (!ctx) return;
        gdn_prefill_backward_args a = make(&walks[i]), b = a;
        b.dstate = ring2_clone(&a.dstate);
        run(ctx, &a), run(ctx, &b);
        ring2_expect_bits("dstate", &b.dstate, &a.dstate);
        ring2_free();
    }
}

/* With GDN_BATCH_INVARIANT a sequence has the bits that it has alone, and units are cut. */
static void G2_batch_invariant(void)
{
    enum { LONG = 8300 };
    static const struct walk w = { "", { 70, LONG, 300 }, 0, 0, 1,    1,     MILD, GDN_NORM_L2,
                                   0,  GDN_STATE_VK,      0, 0, true, false, D,    D };
    gdn_ctx *ctx = walker(w.each, w.window);
    if (!ctx) return;
    gdn_prefill_backward_args a = make(&w);
    ring2_fill(&a.g, -0.0005, 0);
    gdn_prefill_backward_args alone = a;
    gdn_tensor *const rows[] = { &alone.q, &alone.k, &alone.v, &alone.dout, &alone.g, &alone.beta };
    for (int i = 0; i < 6; i++) *rows[i] = ring2_narrow(rows[i], 0, 70, LONG);
    alone.batch = NULL;
    alone.dstate = ring2_new(GDN_F32, 0, 4, 1, 1, D, D);
    alone.dstate_out = ring2_narrow(&a.dstate_out, 0, 1, 1);
    a.flags = alone.flags = GDN_BATCH_INVARIANT;
    run(ctx, &a), run(ctx, &alone);
    expect_kernels(ctx, true, true);
    const gdn_tensor of_all = ring2_narrow(&a.dstate, 0, 1, 1);
    ring2_expect_bits("dstate", &alone.dstate, &of_all);
}

/* G7: nothing passes a gate of -inf to the states before it, in several units, whatever it is. */
static void selection(void)
{
    static const struct walk w = { "", { 500 },      128, 0, 1,    2,     MILD, GDN_NORM_NONE,
                                   0,  GDN_STATE_VK, 0,   0, true, false, D,    D };
    gdn_ctx *ctx = walker(w.each, w.window);
    if (!ctx) return;
    gdn_prefill_backward_args a = make(&w);
    for (int h = 0; h < 2; h++) ring2_set(&a.g, 200 * 2 + h, -(double)INFINITY);
    const gdn_prefill_backward_args clean = a;
    run(ctx, &clean);
    a.dstate = ring2_clone(&a.dstate), a.dout = ring2_clone(&a.dout);
    a.dstate_out = ring2_clone(&a.dstate_out);
    ring2_fill_value(&a.dstate_out, (double)NAN);
    ring2_set(&a.dout, 300 * 2 * D, (double)NAN);
    run(ctx, &a);
    ring2_expect_bits("dstate", &a.dstate, &clean.dstate);
}

/* dstate beside other gradients, or with GDN_ACCUMULATE, is one walk without units. */
static void what_it_does_not_cut(void)
{
    gdn_ctx *ctx = walker(192, 0);
    if (!ctx) return;
    for (int i = 0; i < 2; i++) {
        gdn_prefill_backward_args a = make(&walks[0]);
        if (i)
            a.dv = ring2_clone(&a.v);
        else
            a.flags = GDN_ACCUMULATE;
        ring2_fill(&a.dstate, -1, 1);
        ring2_gradients_check(ctx, &a);
        CHECK(!strstr(gdn_last_kernel(ctx), "segments"), "%s", gdn_last_kernel(ctx));
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "walk: padded rows", padded_rows },
        { "walk: where the planner cuts", where_the_planner_cuts },
        { "early stop: where it stops", where_it_stops },
        { "G3 repeat", G3_repeat },
        { "G2 GDN_BATCH_INVARIANT", G2_batch_invariant },
        { "G7 selection", selection },
        { "what it does not cut", what_it_does_not_cut },
    };
    ring2_options(argc, argv);
    run_walks();
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
