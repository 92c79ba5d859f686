/* SPDX-License-Identifier: Apache-2.0 */
/* runs: gpu --every=4, sm_90 --every=47 */
/*
 * gdn_prefill on Hopper by each of its forms, with gates that change from chunk to chunk: plain
 * ones, whose sums stay small; gated ones, whose sums are in reach of a start below zero; uneven
 * ones, whose sums go beyond what V can be divided by; and some that forget or grow. Every order
 * of these is held to float64, and to the guarantees that name bits.
 */
#include <math.h>
#include <string.h>

#include "core/ctx.h"
#include "cuda/driver/launch.h"
#include "cuda/driver/launch.h"
#include "ring2_device.h"
#include "ring2_rule.h"

enum { CHUNK = 64, H = 2 };
static const int heads[3] = { 1, 1, H };

/* ---- Gates ---- */

enum class { PLAIN, GATED, UNEVEN, DEAD, LATE_DEAD, ALL_DEAD, RISES, FALLS, N_CLASSES };

/* The gate of the token at `at` in a chunk of a class. */
static double of_class(int class, int64_t at)
{
    switch (class) {
    case GATED: return -2;
    case UNEVEN: return -3;
    case DEAD: return at ? -0.2 : -(double)INFINITY;
    case LATE_DEAD: return at == 37 ? -(double)INFINITY : -0.2;
    case ALL_DEAD: return -(double)INFINITY;
    case RISES: return at < 40 ? -4 : 0.5;
    case FALLS: return at < 8 ? 0.25 : -3;
    default: return -0.2;
    }
}

/* A class below n that a chunk of a head has, at random. */
static int draw(int64_t chunk, int64_t h, uint32_t n)
{
    uint32_t z = ((uint32_t)chunk * 2 + (uint32_t)h + 1) * 0x9e3779b1u;
    z = (z ^ z >> 15) * 0x85ebca77u;
    return (int)((z ^ z >> 13) % n);
}

/* -A softplus(a + dt_bias) of a model, a normal: the first gates of chunks of head 0 lie about
 * where they count as strong, the sums of head 1 about where chunks count as uneven. */
static double of_model(int64_t h)
{
    static const double A[H] = { 9, 16 }, dt_bias[H] = { -2.97, -2.25 };
    const double radius = sqrt(-2 * log(ring2_uniform(1e-12, 1)));
    return -A[h] * log1p(exp(radius * cos(ring2_uniform(0, 6.283185307179586)) + dt_bias[h]));
}

/* Chunks are of the class `few` where their number modulo `of` is at least `from`, else `most`. */
static const struct pattern {
    const char *name;
    int most, few, of, from;
    enum { OF_CLASSES, ODD_HEADS, RANDOM, MODEL } how;
    double scale, strongest_first, weakest_first; /* of a model */
} patterns[] = {
    { "none", PLAIN, PLAIN, 1, 1, OF_CLASSES, 0, 0, 0 },
    { "all plain", PLAIN, PLAIN, 1, 1, OF_CLASSES, 1, 0, 0 },
    { "all gated", GATED, GATED, 1, 1, OF_CLASSES, 1, 0, 0 },
    { "all uneven", UNEVEN, UNEVEN, 1, 1, OF_CLASSES, 1, 0, 0 },
    { "all dead", ALL_DEAD, ALL_DEAD, 1, 1, OF_CLASSES, 1, 0, 0 },
    { "gated every 2nd", PLAIN, GATED, 2, 1, OF_CLASSES, 1, 0, 0 },
    { "gated 2 of 4", PLAIN, GATED, 4, 2, OF_CLASSES, 1, 0, 0 },
    { "gated 8 of 16", PLAIN, GATED, 16, 8, OF_CLASSES, 1, 0, 0 },
    { "gated every 10th", PLAIN, GATED, 10, 9, OF_CLASSES, 1, 0, 0 },
    { "uneven every 2nd", PLAIN, UNEVEN, 2, 1, OF_CLASSES, 1, 0, 0 },
    { "uneven every 10th", PLAIN, UNEVEN, 10, 9, OF_CLASSES, 1, 0, 0 },
    { "uneven and gated", GATED, UNEVEN, 2, 1, OF_CLASSES, 1, 0, 0 },
    { "dead every 2nd", PLAIN, DEAD, 2, 1, OF_CLASSES, 1, 0, 0 },
    { "dead every 10th", GATED, DEAD, 10, 9, OF_CLASSES, 1, 0, 0 },
    { "dead in the middle", PLAIN, LATE_DEAD, 3, 2, OF_CLASSES, 1, 0, 0 },
    { "dead throughout", UNEVEN, ALL_DEAD, 3, 2, OF_CLASSES, 1, 0, 0 },
    { "random half gated", PLAIN, GATED, 2, 1, RANDOM, 1, 0, 0 },
    { "any class", PLAIN, PLAIN, N_CLASSES, 0, RANDOM, 1, 0, 0 },
    { "odd heads all gated", PLAIN, GATED, 1, 0, ODD_HEADS, 1, 0, 0 },
    { "odd heads gated every 2nd", PLAIN, GATED, 2, 1, ODD_HEADS, 1, 0, 0 },
    { "model", 0, 0, 1, 0, MODEL, 1, -INFINITY, 0 },
    { "model, firsts weak", 0, 0, 1, 0, MODEL, 1, -0.2, 0 },
    { "model, firsts strong", 0, 0, 1, 0, MODEL, 1, -INFINITY, -0.5 },
    { "model halved", 0, 0, 1, 0, MODEL, 0.5, -INFINITY, 0 },
    { "model / 4", 0, 0, 1, 0, MODEL, 0.25, -INFINITY, 0 },
};
enum { N_PATTERNS = sizeof patterns / sizeof *patterns };

static double gate(const struct pattern *p, int64_t t, int64_t h)
{
    const int64_t chunk = t / CHUNK, at = t % CHUNK;
    if (p->scale == 0) return 0;
    if (p->how == MODEL) {
        const double g = p->scale * of_model(h);
        return at ? g : fmin(fmax(g, p->strongest_first), p->weakest_first);
    }
    if (p->how == RANDOM) {
        const int class = draw(chunk, h, (uint32_t)p->of);
        return of_class(p->of == N_CLASSES ? class : class ? p->few : p->most, at);
    }
    const bool here = chunk % p->of >= p->from && (p->how != ODD_HEADS || h % 2 == 1);
    return of_class(here ? p->few : p->most, at);
}

/* Fills the gates of n tokens from row `first` on. */
static void fill_gates(const gdn_rule_args *a, const struct pattern *p, int64_t first, int64_t n)
{
    for (int64_t t = 0; t < n; t++)
        for (int64_t h = 0; h < H; h++) ring2_set(&a->g, (first + t) * H + h, gate(p, t, h));
}

/* ---- Forms ---- */

/* Forms, and the number of multiprocessors with which the planner takes each. first 0: whole
 * sequences. */
static const struct form {
    const char *kernel;
    int64_t K, V;
    int sm_count;
    int64_t first, each;
} forms[] = {
    { "prefill_sm90_cluster", 128, 128, 132, 0, 0 },
    { "prefill_sm90_wide", 128, 128, 4, 0, 0 },
    { "prefill_sm90_k64", 64, 64, 132, 0, 0 },
    { "prefill_sm90_k256", 192, 72, 132, 0, 0 },
    { "prefill_sm90_summary", 128, 128, 132, 64, 192 },
    { "prefill_sm90_summary", 64, 48, 132, 64, 256 },
};
enum { N_FORMS = sizeof forms / sizeof *forms, N_WHOLE = 4, N_KINDS = 4 };

/* Opens a Hopper with the properties that make the planner choose the form; NULL: another
 * device. */
static gdn_ctx *open_for(const struct form *f)
{
    gdn_ctx *ctx = ring2_hopper(f->first, f->each);
    if (!ctx) return NULL;
    ctx->cuda->sm_count = f->sm_count;
    return ctx;
}

/* Case i of n_forms forms: every pattern, form, dtype and norm. */
struct turn {
    const struct pattern *pattern;
    const struct form *form;
    int32_t dtype, norm;
};

static struct turn turn_of(int i, int n_forms)
{
    const int kind = i / n_forms % N_KINDS;
    return (struct turn){ &patterns[i / n_forms / N_KINDS], &forms[i % n_forms],
                          kind % 2 ? GDN_F16 : GDN_BF16,
                          kind / 2 ? GDN_NORM_L2 : GDN_NORM_DEFAULT };
}

static void finish(struct turn t)
{
    if (ring2_failed())
        ring2_fail("gates \"%s\", %s %lldx%lld, %s%s", t.pattern->name, t.form->kernel,
                   (long long)t.form->K, (long long)t.form->V, t.dtype == GDN_F16 ? "f16" : "bf16",
                   t.norm ? ", norm" : "");
}

/* Packed sequences, all with the pattern. */
static gdn_rule_args take(struct turn t, int n, const int64_t *lengths)
{
    gdn_rule_args a =
        ring2_rule_packed(t.dtype, GDN_F32, n, lengths, heads, t.form->K, t.form->V, NULL);
    ring2_rule_inputs(&a, !t.norm, 0);
    int64_t first = 0;
    for (int i = 0; i < n; first += lengths[i++]) fill_gates(&a, t.pattern, first, lengths[i]);
    a.norm = t.norm;
    return a;
}

static void call(const struct form *f, const gdn_rule_args *a)
{
    gdn_ctx *ctx = open_for(f);
    if (ctx) ring2_status(ctx, "gdn_prefill", gdn_prefill(ctx, a), GDN_OK);
}

/* Without segments, whose cuts follow from sizes. */
static void call_whole(const struct form *f, const gdn_rule_args *a)
{
    gdn_rule_args b = *a;
    b.flags |= GDN_BATCH_INVARIANT;
    call(f, &b);
}

/* More chunks than a ring has places, so that all patterns change and places are used again. */
enum { T = 700, LONG = 1 };
static const int64_t lengths[] = { 65, T };

/* ---- Values, and the same bits again ---- */

static void agrees_with_float64(int i)
{
    const struct turn t = turn_of(i, N_FORMS);
    gdn_ctx *ctx = open_for(t.form);
    if (!ctx) return;
    gdn_rule_args a = take(t, 2, lengths), again = ring2_rule_clone(&a);
    ring2_rule_check(ctx, &a, false);
    CHECK(strstr(gdn_last_kernel(ctx), t.form->kernel), "%s", gdn_last_kernel(ctx));
    call(t.form, &again);
    ring2_expect_bits("out, again", &again.out, &a.out);
    ring2_expect_bits("state, again", &again.state, &a.state);
    finish(t);
}

/* ---- Bits of other calls ---- */

/* Clusters and wide blocks. */
static void G2_clusters_and_blocks(int i)
{
    const struct turn t = turn_of(i, 1);
    if (!open_for(t.form)) return;
    const gdn_rule_args a = take(t, 2, lengths), b = ring2_rule_clone(&a);
    call_whole(&forms[0], &a);
    call_whole(&forms[1], &b);
    CHECK(strstr(gdn_last_kernel(ring2_ctx(1)), "wide"), "%s", gdn_last_kernel(ring2_ctx(1)));
    ring2_expect_bits("out", &b.out, &a.out);
    ring2_expect_bits("state", &b.state, &a.state);
    finish(t);
}

/* Cut at multiples of 64: after one chunk, after some, before the last. */
static void G4_parts(int i)
{
    static const int64_t ends[] = { 64, 320, 640, T };
    const struct turn t = turn_of(i, N_WHOLE);
    if (!open_for(t.form)) return;
    const gdn_rule_args a = take(t, 1, &lengths[LONG]), whole = ring2_rule_clone(&a);
    call_whole(t.form, &whole);
    for (int64_t c = 0, first = 0; c < 4; first = ends[c++]) {
        const gdn_rule_args part = ring2_rule_slice(&a, first, ends[c] - first);
        call_whole(t.form, &part);
    }
    ring2_expect_bits("out", &a.out, &whole.out);
    ring2_expect_bits("state", &a.state, &whole.state);
    finish(t);
}

/* Rows of a padded batch; around their tokens everything is NaN. */
static void G11_padded_rows(int i)
{
    enum { B = 3, ROW = 400 };
    static const int64_t start[B] = { 0, 70, 133 }, count[B] = { ROW - 7, 320, 60 };
    const struct turn t = turn_of(i, N_WHOLE);
    if (!open_for(t.form)) return;
    gdn_rule_args a = ring2_rule_args(t.dtype, GDN_F32, B * ROW, B, heads, t.form->K, t.form->V);
    gdn_rule_args rows = a, alone[B];
    gdn_batch batch = gdn_batch_init();
    ring2_rule_inputs(&a, !t.norm, 0);
    a.norm = t.norm;
    gdn_tensor *all[] = { &rows.q, &rows.k, &rows.v, &rows.g, &rows.beta, &rows.out };
    for (int b = 0; b < B; b++) {
        fill_gates(&a, t.pattern, b * ROW + start[b], count[b]);
        alone[b] = ring2_rule_slice(&a, b * ROW + start[b], count[b]);
        alone[b].state = ring2_narrow(&a.state, 0, b, 1);
        alone[b] = ring2_rule_clone(&alone[b]);
        for (int x = 0; x < 5; x++)
            for (int64_t row = 0; row < ROW; row++) {
                const gdn_tensor token = ring2_narrow(all[x], 0, b * ROW + row, 1);
                if (row < start[b] || row >= start[b] + count[b])
                    ring2_fill_value(&token, (double)NAN);
            }
    }
    const gdn_tensor flat = a.out;
    for (size_t x = 0; x < sizeof all / sizeof *all; x++) {
        const gdn_tensor p = *all[x];
        *all[x] = gdn_dense(p.data, p.dtype, p.ndim + 1, B, ROW, p.size[1], p.size[2]);
    }
    batch.token_start = ring2_indices(GDN_I32, B, start);
    batch.token_count = ring2_indices(GDN_I32, B, count);
    rows.batch = &batch;
    rows.norm = t.norm;
    call_whole(t.form, &rows);
    for (int b = 0; b < B; b++) {
        const gdn_tensor out = ring2_narrow(&flat, 0, b * ROW + start[b], count[b]);
        const gdn_tensor state = ring2_narrow(&a.state, 0, b, 1);
        call_whole(t.form, &alone[b]);
        ring2_expect_bits("out", &out, &alone[b].out);
        ring2_expect_bits("state", &state, &alone[b].state);
    }
    finish(t);
}

/* A checkpoint, also inside a chunk, has the bits of a call that ends there. */
static void G18_checkpoints(int i)
{
    enum { EVERY = 216, N = T / EVERY };
    const struct turn t = turn_of(i, N_WHOLE);
    int64_t cu[] = { 0, T };
    if (!open_for(t.form)) return;
    gdn_rule_args a = take(t, 1, &lengths[LONG]);
    const gdn_rule_args before = ring2_rule_clone(&a);
    gdn_batch batch = gdn_batch_init();
    batch.cu_seqlens = ring2_indices(GDN_I64, 2, cu);
    batch.checkpoint_every = EVERY;
    a.batch = &batch;
    a.checkpoints = ring2_new(GDN_F32, 0, 4, N, H, (int)t.form->V, (int)t.form->K);
    call_whole(t.form, &a);
    for (int c = 0; c < N && !ring2_failed(); c++) {
        gdn_rule_args part = ring2_rule_slice(&before, 0, (c + 1) * EVERY);
        const gdn_tensor got = ring2_narrow(&a.checkpoints, 0, c, 1);
        const gdn_tensor out = ring2_narrow(&a.out, 0, 0, (c + 1) * EVERY);
        part.state = before.state;
        part = ring2_rule_clone(&part);
        call_whole(t.form, &part);
        ring2_expect_bits("out", &out, &part.out);
        ring2_expect_bits("checkpoint", &got, &part.state);
    }
    finish(t);
}

int main(int argc, char **argv)
{
    enum { KINDS = N_PATTERNS * N_KINDS };
    static const struct ring2_cases tests[] = {
        { "G3 gates: float64, and again", agrees_with_float64, KINDS * N_FORMS },
        { "G2 gates: clusters and blocks", G2_clusters_and_blocks, KINDS },
        { "G4 gates: parts", G4_parts, KINDS * N_WHOLE },
        { "G11 gates: padded rows", G11_padded_rows, KINDS * N_WHOLE },
        { "G18 gates: checkpoints", G18_checkpoints, KINDS * N_WHOLE },
    };
    return ring2_cases_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
