/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu */
/*
 * Batches as a scheduler makes them: some rows are prompts or parts of prompts, some are one
 * drafted token, all in one call of gdn_prefill.
 */
#include <string.h>
#include <time.h>

#include "ring2_device.h"
#include "ring2_rule.h"
#include "sanitized.h"

/* ---- One call and its parts ----------------------------------------------------------------- */

enum { MOST_ROWS = 40 };

struct mixed {
    gdn_rule_args all;
    gdn_batch *batch;
    int64_t n, length[MOST_ROWS], first[MOST_ROWS];
};

static struct mixed make_mixed(const int64_t *lengths, int64_t n, const int heads[3], int64_t d,
                               int32_t dtype)
{
    struct mixed m = { .n = n };
    for (int64_t b = 0; b < n; b++) {
        m.length[b] = lengths[b];
        m.first[b] = b ? m.first[b - 1] + lengths[b - 1] : 0;
    }
    m.all = ring2_rule_packed(dtype, GDN_F32, (int)n, lengths, heads, d, d, &m.batch);
    m.all.flags = GDN_BATCH_INVARIANT;
    return m;
}

/* Rows [b, b + n) as a call of its own on memory of its own. */
static gdn_rule_args rows(const struct mixed *m, int64_t b, int64_t n)
{
    int64_t cu[MOST_ROWS + 1] = { 0 };
    for (int64_t i = 0; i < n; i++) cu[i + 1] = cu[i] + m->length[b + i];
    const gdn_rule_args view = ring2_rule_slice(&m->all, m->first[b], cu[n]);
    const gdn_tensor state = ring2_narrow(&m->all.state, 0, b, n);
    gdn_rule_args a = ring2_rule_clone(&view);
    gdn_batch *batch = ring2_heap(sizeof *batch);
    *batch = gdn_batch_init();
    batch->cu_seqlens = ring2_indices(GDN_I32, n + 1, cu);
    a.state = ring2_clone(&state);
    a.batch = batch;
    return a;
}

static void expect_rows(const struct mixed *m, int64_t b, int64_t n, const gdn_rule_args *want)
{
    const gdn_rule_args got = ring2_rule_slice(&m->all, m->first[b], want->q.size[0]);
    const gdn_tensor state = ring2_narrow(&m->all.state, 0, b, n);
    ring2_expect_bits("out", &got.out, &want->out);
    ring2_expect_bits("state", &state, &want->state);
}

/* In a mixed call sequences of one token have the bits of gdn_decode, and longer ones those of
 * gdn_prefill. On a device all have the bits of gdn_prefill. */
static void G2_parts_of_a_mixed_call(void)
{
    static const int64_t lengths[][5] = {
        { 70, 1, 1, 1, 1 }, { 1, 1, 1, 1, 333 }, { 1, 40, 1, 23, 1 }, { 1, 1, 1, 1, 1 }
    };
    static const int heads[3] = { 2, 2, 4 };
    for (int i = 0; i < 4 * 3; i++) {
        struct mixed m = make_mixed(lengths[i % 4], 5, heads, 48, i / 4);
        gdn_rule_args alone[5];
        for (int64_t b = 0; b < 5; b++) {
            const bool decode = m.length[b] == 1 && !ring2_on_device();
            alone[b] = rows(&m, b, 1);
            ring2_status(ring2_ctx(1), "alone", ring2_rule_call(ring2_ctx(1), &alone[b], decode),
                         GDN_OK);
        }
        ring2_status(ring2_ctx(4), "mixed", gdn_prefill(ring2_ctx(4), &m.all), GDN_OK);
        for (int64_t b = 0; b < 5; b++) expect_rows(&m, b, 1, &alone[b]);
    }
}

/* ---- What it costs -------------------------------------------------------------------------- */

/*
 * The time that 16 threads would take, on a machine that has fewer: each item runs here, and the
 * thread that is free first is charged with its processor time, the least of several calls.
 */
enum { THREADS = 16, MOST_ITEMS = 1024 };

struct timing {
    const gdn_rule_args *args;
    bool decode;
    int64_t n; /* items, and their times in seconds */
    double item[MOST_ITEMS];
};

static struct timing *timing; /* of the call that runs */

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void measure(void *user, int64_t n, gdn_work work, void *arg)
{
    struct timing *t = timing;
    (void)user;
    CHECK(n <= MOST_ITEMS && (t->n == 0 || n == t->n), "%d items", (int)n);
    for (int64_t i = 0; i < n; i++) {
        const double begin = cpu_seconds();
        work(arg, i, 0);
        const double time = cpu_seconds() - begin;
        if (i < MOST_ITEMS && (t->n == 0 || time < t->item[i])) t->item[i] = time;
    }
    t->n = n < MOST_ITEMS ? n : MOST_ITEMS;
}

static double end_of(const struct timing *t)
{
    double busy[THREADS] = { 0 }, most = 0;
    for (int64_t i = 0; i < t->n; i++) {
        int next = 0;
        for (int j = 1; j < THREADS; j++)
            if (busy[j] < busy[next]) next = j;
        busy[next] += t->item[i];
        if (busy[next] > most) most = busy[next];
    }
    return most;
}

/* Times the calls in turn, so that a slow moment of the machine slows all of them. */
static void time_calls(gdn_ctx *ctx, struct timing *timings, int n)
{
    for (int i = 0; i < 16 * n; i++) {
        timing = &timings[i % n];
        ring2_status(ctx, "call", ring2_rule_call(ctx, timing->args, timing->decode), GDN_OK);
    }
}

/* A long row among many of one token: at most twice what two calls take. Cut as if all rows were
 * alike, it was four times. Other programs on the machine change the time of an item by half. */
static void cost_of_a_mixed_call(void)
{
    enum { N = 17, LONG = 512 };
    static const int heads[3] = { 4, 4, 8 };
    gdn_options o = gdn_options_init();
    gdn_ctx *ctx = NULL;
    if (ring2_on_device() || WITH_ASAN) { /* their checks take varying time */
        ring2_skip("about threads of a processor");
        return;
    }
    o.n_threads = THREADS;
    o.parallel_for = measure;
    ring2_status(NULL, "create", gdn_ctx_create(&o, &ctx), GDN_OK);
    for (int at = 0; at < N; at += N / 2) { /* the long row first, in the middle, last */
        int64_t lengths[N];
        for (int b = 0; b < N; b++) lengths[b] = b == at ? LONG : 1;
        const struct mixed m = make_mixed(lengths, N, heads, 64, GDN_F32);
        const gdn_rule_args some = rows(&m, at, 1);
        for (int b = 0; b < N; b++) lengths[b] = 1;
        const struct mixed ones = make_mixed(lengths, N - 1, heads, 64, GDN_F32);
        static struct timing timings[3];
        const gdn_rule_args *calls[3] = { &m.all, &some, &ones.all };
        for (int i = 0; i < 3; i++)
            timings[i] = (struct timing){ .args = calls[i], .decode = i == 2 };
        time_calls(ctx, timings, 3);
        const double mixed = end_of(&timings[0]), prompt = end_of(&timings[1]);
        const double decode = end_of(&timings[2]);
        CHECK(mixed <= 2 * (prompt + decode), "row %d: %.1f us, but %.1f + %.1f apart", at,
              mixed * 1e6, prompt * 1e6, decode * 1e6);
    }
    gdn_ctx_destroy(ctx);
}

/* ---- Prompts in parts ----------------------------------------------------------------------- */

/* A sequence in parts of any lengths, each beside other sequences, gives up to rounding what one
 * call gives. */
static void chunked_prefill_at_odd_splits(void)
{
    static const int64_t parts[][12] = {
        { 1, 1, 1, 7, 90, 0 },      { 17, 31, 33, 19, 0 }, { 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 10, 0 },
        { 3, 47, 5, 13, 29, 3, 0 }, { 99, 1, 0 },          { 15, 1, 16, 17, 51, 0 },
    };
    static const int heads[3] = { 2, 2, 4 };
    for (size_t i = 0; i < 2 * sizeof parts / sizeof *parts; i++) {
        const int64_t *part = parts[i / 2];
        const gdn_rule_args a =
            ring2_rule_args(i % 2 ? GDN_BF16 : GDN_F32, GDN_F32, 100, 1, heads, 64, 40);
        struct ring2_rule m;
        int64_t first = 0;
        ring2_rule_model(&a, false, &m);
        for (; *part; first += *part++) {
            const gdn_rule_args piece = ring2_rule_slice(&a, first, *part);
            ring2_status(ring2_ctx(2), "part", gdn_prefill(ring2_ctx(2), &piece), GDN_OK);
        }
        CHECK(first == 100, "the parts are not the whole");
        ring2_compare("out", &a.out, m.out, m.out_limit, m.out_noise, NULL);
        ring2_compare("state", &a.state, m.state, m.state_limit, m.state_noise, NULL);
    }
}

/* The convolution of the same parts, to the bit. */
static void convolution_at_odd_splits(void)
{
    static const int64_t parts[] = { 1, 2, 1, 17, 3, 40, 5, 1, 30, 0 };
    gdn_conv1d_args a = gdn_conv1d_args_init(), whole;
    int64_t first = 0;
    a.x = ring2_new(GDN_BF16, 0, 2, 100, 70, 0, 0);
    a.out = ring2_new(GDN_BF16, 0, 2, 100, 70, 0, 0);
    a.weight = ring2_new(GDN_F32, 0, 2, 70, 4, 0, 0);
    a.state = ring2_new(GDN_BF16, 0, 3, 1, 70, 3, 0);
    ring2_fill(&a.x, -1, 1), ring2_fill(&a.weight, -1, 1), ring2_fill(&a.state, -1, 1);
    whole = a;
    whole.out = ring2_clone(&a.out), whole.state = ring2_clone(&a.state);
    ring2_status(ring2_ctx(2), "whole", gdn_conv1d(ring2_ctx(2), &whole), GDN_OK);
    for (const int64_t *part = parts; *part; first += *part++) {
        gdn_conv1d_args piece = a;
        piece.x = ring2_narrow(&a.x, 0, first, *part);
        piece.out = ring2_narrow(&a.out, 0, first, *part);
        ring2_status(ring2_ctx(2), "part", gdn_conv1d(ring2_ctx(2), &piece), GDN_OK);
    }
    ring2_expect_bits("out", &a.out, &whole.out);
    ring2_expect_bits("state", &a.state, &whole.state);
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "G2 mixed: rows have the bits of their own calls", G2_parts_of_a_mixed_call },
        { "mixed: costs no more than its parts", cost_of_a_mixed_call },
        { "chunked prefill at odd splits", chunked_prefill_at_odd_splits },
        { "convolution at odd splits", convolution_at_odd_splits },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
