/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 --every=8, sm_90 "tensor cores" --every=2 */
/*
 * gdn_prefill_backward() of longer and wider calls: checkpoints of the forward call, NaN, tensor
 * cores.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backward_calls.h"

/* ---- Checkpoints of the forward call --------------------------------------------------------- */

/* Segments of a CPU have 432 tokens here, windows of a device 512, of which checkpoints leave 384.
 * States that are given, or computed again, differ by rounding. */
static void saved_states(void)
{
    static const int64_t on_cpu[] = { 37, 450, 5 }, on_device[] = { 900 };
    const bool device = ring2_on_device();
    gdn_prefill_backward_args a = device ? make_call(1, on_device, 16, 24)
                                         : make_call(3, on_cpu, 256, 512),
                              b;
    new_gradients(&a);
    run(ring2_ctx(1), &a);
    for (int64_t every = 192; every <= 3072; every *= 16) { /* the last is too far apart */
        b = with_states(&a, every);
        new_gradients(&b);
        run(ring2_ctx(2), &b);
        expect_near(&b, &a, 0, a.q.size[0]);
        if (every <= 384) expect_read(&b);
    }
    if (device) {
        b.flags = GDN_BATCH_INVARIANT; /* which reads none */
        run(ring2_ctx(1), &b);
        expect_bits("invariant", &b, &a);
        return;
    }
    b = with_states(&a, 192);
    new_gradients(&b);
    run(ring2_ctx(2), &b);
    gdn_prefill_backward_args alone = slice(&a, 1, 37, 450);
    alone = with_states(&alone, 192);
    new_gradients(&alone);
    run(ring2_ctx(1), &alone);
    expect_rows(&alone, &b, 37, 450);
}

/* Long enough for three windows on a device, against the oracle. */
static void long_sequence(void)
{
    static const int64_t T[][2] = { { 700, 3 }, { 1100, 40 } };
    for (int i = 0; i < 2; i++) {
        gdn_prefill_backward_args a = make_call(2, T[i], 16, 24);
        new_gradients(&a);
        ring2_gradients_check(ring2_ctx(1), &a);
    }
}

/* Every gradient where heads have more values than keys may have. */
static void wide_values(void)
{
    static const int64_t T[] = { 70, 3 }, sizes[] = { 257, 512, 1000, 1024 };
    for (int i = 0; i < 4; i++) {
        gdn_prefill_backward_args a = make_call(2, T, 20, sizes[i]);
        new_gradients(&a);
        ring2_gradients_check(ring2_ctx(2), &a);
    }
}

/* A NaN in dout of one token reaches no later chunk, no other sequence, and nothing before a gate
 * of -inf. */
static void nan_stays(void)
{
    static const int64_t T[] = { 40, 40 };
    gdn_prefill_backward_args a = make_call(2, T, 16, 24), b = a;
    a.gate = b.gate = GDN_GATE_LOG;
    a.A_log.data = a.dt_bias.data = b.A_log.data = b.dt_bias.data = NULL;
    ring2_fill(&a.g, -0.1, 0);
    for (int h = 0; h < 4; h++) ring2_set(&a.g, 18 * 4 + h, -INFINITY);
    new_gradients(&a);
    run(ring2_ctx(1), &a);
    b.dout = ring2_clone(&a.dout);
    ring2_set(&b.dout, (25 * 4 + 1) * 24 + 3, NAN);
    new_gradients(&b);
    run(ring2_ctx(1), &b);
    for (int i = DQ; i <= DBETA; i++) {
        const gdn_tensor *all = ring2_gradient(&b, i), *clean = ring2_gradient(&a, i);
        const gdn_tensor reached = ring2_narrow(all, 0, 18, 8);
        bool any = false;
        for (int64_t j = 0; j < ring2_count(&reached); j++) any |= isnan(ring2_get(&reached, j));
        CHECK(any, "%s: no NaN", ring2_gradient_names[i]);
        for (int side = 0; side < 2; side++) {
            const gdn_tensor got = ring2_narrow(all, 0, side ? 32 : 0, side ? 48 : 18);
            const gdn_tensor want = ring2_narrow(clean, 0, side ? 32 : 0, side ? 48 : 18);
            ring2_expect_bits(ring2_gradient_names[i], &got, &want);
        }
    }
    ring2_expect_bits("dstate", &b.dstate, &a.dstate);
}

/* G7, G11: a state of NaN behind a gate of -inf, and tokens of NaN that do not count. */
static void nan_is_skipped(void)
{
    static const int64_t T[] = { 40 };
    gdn_prefill_backward_args a = make_call(1, T, 16, 24);
    gdn_batch *t = ring2_heap(sizeof *t);
    *t = *a.batch;
    t->token_start = ring2_indices(GDN_I32, 1, (int64_t[]){ 3 });
    t->token_count = ring2_indices(GDN_I32, 1, (int64_t[]){ 30 });
    a.batch = t;
    a.gate = GDN_GATE_LOG;
    a.A_log.data = a.dt_bias.data = NULL;
    ring2_fill(&a.g, -0.1, 0);
    for (int h = 0; h < 4; h++) ring2_set(&a.g, 3 * 4 + h, -INFINITY);
    ring2_fill_value(&a.state, NAN);
    gdn_tensor *const rows_of[] = { &a.q, &a.k, &a.v, &a.g, &a.beta, &a.dout };
    for (int i = 0; i < 6; i++) {
        const gdn_tensor before = ring2_narrow(rows_of[i], 0, 0, 3);
        const gdn_tensor after = ring2_narrow(rows_of[i], 0, 33, 7);
        ring2_fill_value(&before, NAN);
        ring2_fill_value(&after, NAN);
    }
    new_gradients(&a);
    run(ring2_ctx(1), &a);
    for (int i = 0; i < N_GRADIENTS; i++) {
        const gdn_tensor *got = ring2_gradient(&a, i);
        for (int64_t j = 0; got->data && j < ring2_count(got); j++)
            CHECK(isfinite(ring2_get(got, j)), "%s: %g", ring2_gradient_names[i],
                  ring2_get(got, j));
    }
}

/* ---- Tensor cores -------------------------------------------------------------------------- */

static const struct wide_call wide_calls[] = {
    { "one chunk", { 64 }, 1, 1, LOG_G, 0, 0, 0, 0.1, false, false, true, 128, 128, B16 },
    { "raw",
      { 200, 3, 64 },
      2,
      4,
      RAW_G,
      L2,
      0,
      GDN_BETA_SIGMOID,
      0,
      true,
      false,
      false,
      128,
      128,
      B16 },
    { "strong", { 130 }, 1, 3, LOG_G, GDN_NORM_L2_MAX, 1, 0, 8, true, true, true, 128, 128, B16 },
    { "some forget",
      { 150, 70 },
      1,
      2,
      LOG_G,
      GDN_NORM_L2_ADD,
      0,
      GDN_BETA_TWICE_SIGMOID,
      -1,
      true,
      false,
      true,
      128,
      128,
      B16 },
    { "model", { 1, 127 }, 2, 2, LOG_G, L2, 0, 0, 1.6, true, true, false, 128, 128, B16 },
    { "full device",
      { 70, 3, 64, 5 },
      6,
      12,
      LOG_G,
      L2,
      0,
      GDN_BETA_SIGMOID,
      0.5,
      true,
      false,
      true,
      128,
      128,
      B16 },
    { "K64 V64",
      { 130, 1, 64 },
      2,
      4,
      RAW_G,
      L2,
      1,
      GDN_BETA_SIGMOID,
      0,
      true,
      true,
      false,
      64,
      64,
      B16 },
    { "K72 V24",
      { 100, 29 },
      1,
      2,
      LOG_G,
      GDN_NORM_L2_ADD,
      0,
      0,
      -1,
      true,
      false,
      true,
      72,
      24,
      B16 },
    { "six readers of a key",
      { 70, 5 },
      1,
      6,
      RAW_G,
      L2,
      0,
      0,
      0,
      false,
      false,
      false,
      64,
      64,
      B16 },
    { "K8 V128", { 77 }, 1, 1, LOG_G, 0, 0, 0, 0.1, true, true, false, 8, 128, B16 },
    { "K40 V104, full device",
      { 70, 64, 25 },
      6,
      12,
      LOG_G,
      L2,
      0,
      0,
      0.5,
      true,
      false,
      false,
      40,
      104,
      B16 },
    { "raw",
      { 200, 3, 64 },
      2,
      4,
      RAW_G,
      L2,
      0,
      GDN_BETA_SIGMOID,
      0,
      true,
      false,
      false,
      128,
      128,
      H16 },
    { "some forget",
      { 150, 70 },
      1,
      2,
      LOG_G,
      GDN_NORM_L2_ADD,
      0,
      GDN_BETA_TWICE_SIGMOID,
      -1,
      true,
      false,
      true,
      128,
      128,
      H16 },
    { "strong", { 130 }, 1, 3, LOG_G, GDN_NORM_L2_MAX, 1, 0, 8, true, true, true, 64, 64, H16 },
    { "full device", { 70, 33, 64 }, 6, 12, LOG_G, 0, 0, 0, 0.5, true, true, false, 96, 120, H16 },
    { "K256 V256",
      { 130, EMPTY, 1, 64 },
      1,
      2,
      RAW_G,
      L2,
      0,
      GDN_BETA_SIGMOID,
      0,
      true,
      false,
      false,
      256,
      256,
      B16 },
    { "K128 V256",
      { 100, 29, EMPTY },
      2,
      4,
      LOG_G,
      L2,
      1,
      0,
      0.5,
      true,
      true,
      true,
      128,
      256,
      B16 },
    { "K192 V128, some forget",
      { 70, 64 },
      1,
      2,
      LOG_G,
      GDN_NORM_L2_ADD,
      0,
      GDN_BETA_TWICE_SIGMOID,
      -1,
      true,
      false,
      true,
      192,
      128,
      B16 },
    { "K256 V512", { 66 }, 1, 1, LOG_G, 0, 0, 0, 0.1, true, true, true, 256, 512, B16 },
    { "K64 V328, some forget",
      { 70, 5 },
      1,
      1,
      LOG_G,
      L2,
      0,
      0,
      -1,
      true,
      false,
      true,
      64,
      328,
      B16 },
    { "K136 V40, strong",
      { 130 },
      1,
      3,
      LOG_G,
      GDN_NORM_L2_MAX,
      1,
      0,
      8,
      true,
      true,
      true,
      136,
      40,
      H16 },
    { "K256 V192",
      { EMPTY, 70, 33, EMPTY },
      2,
      2,
      LOG_G,
      L2,
      0,
      0,
      -0.5,
      true,
      false,
      false,
      256,
      192,
      H16 },
    { "K72 V256, full device",
      { 70, 33 },
      6,
      24,
      LOG_G,
      L2,
      0,
      0,
      0.5,
      true,
      false,
      false,
      72,
      256,
      H16 },
    { "K104 V80, full chunks",
      { 128, EMPTY, 65 },
      2,
      4,
      LOG_G,
      L2,
      1,
      GDN_BETA_SIGMOID,
      0.5,
      true,
      false,
      false,
      104,
      80,
      B16 },
};

/* nan_stays() and nan_is_skipped() for forms that sum over all tokens of a chunk: token 18
 * forgets; a later token has a NaN, then the state before. */
static void expect_nan(int dtype, int D)
{
    const struct wide_call w = { "",  { 40, 40 }, 2,     4,    LOG_G, 0, 0,    0,
                                 0.1, true,       false, true, D,     D, dtype };
    gdn_prefill_backward_args a = make_wide(&w), b;
    for (int h = 0; h < 4; h++) ring2_set(&a.g, 18 * 4 + h, -INFINITY);
    b = a;
    for (int i = 0; i < N_GRADIENTS; i++)
        if (ring2_gradient(&a, i)->data)
            *(gdn_tensor *)ring2_gradient(&b, i) = ring2_clone(ring2_gradient(&a, i));
    run(ring2_ctx(1), &a);
    b.dout = ring2_clone(&a.dout);
    ring2_set(&b.dout, (25 * 4 + 1) * D + D - 3, NAN);
    run(ring2_ctx(1), &b);
    for (int i = DQ; i <= DBETA; i++) {
        const gdn_tensor *all = ring2_gradient(&b, i), *clean = ring2_gradient(&a, i);
        const gdn_tensor reached = ring2_narrow(all, 0, 25, 1);
        bool any = false;
        for (int64_t j = 0; j < ring2_count(&reached); j++) any |= isnan(ring2_get(&reached, j));
        CHECK(any, "%s: no NaN", ring2_gradient_names[i]);
        for (int side = 0; side < 2; side++) {
            const gdn_tensor got = ring2_narrow(all, 0, side ? 40 : 0, side ? 40 : 18);
            const gdn_tensor want = ring2_narrow(clean, 0, side ? 40 : 0, side ? 40 : 18);
            ring2_expect_bits(ring2_gradient_names[i], &got, &want);
        }
    }
    ring2_expect_bits("dstate", &b.dstate, &a.dstate);

    ring2_fill_value(&a.state, NAN);
    run(ring2_ctx(1), &a);
    for (int i = DQ; i <= DBETA; i++) {
        const gdn_tensor behind = ring2_narrow(ring2_gradient(&a, i), 0, 18, 22);
        for (int64_t j = 0; j < ring2_count(&behind); j++)
            CHECK(isfinite(ring2_get(&behind, j)), "%s: %g", ring2_gradient_names[i],
                  ring2_get(&behind, j));
    }
}

/* A NaN in dout, q, k or v of the first token of a sequence does not reach the sequence before it,
 * whose last chunk is not full. No gate forgets. segments: what ring2_gradient_segments() takes. */
static void expect_nan_behind(int dtype, int D, int segments)
{
    const struct wide_call w = { "",  { 40, 40 }, 2,     4,    LOG_G, 0, 0,    0,
                                 0.1, true,       false, true, D,     D, dtype };
    gdn_prefill_backward_args a = make_wide(&w);
    ring2_gradient_segments(segments);
    run(ring2_ctx(1), &a);
    for (int which = 0; which < 4; which++) {
        gdn_prefill_backward_args b = a;
        gdn_tensor *const all[] = { &b.dout, &b.q, &b.k, &b.v }, *const given = all[which];
        const int64_t row = ring2_count(given) / 80;
        for (int i = 0; i < N_GRADIENTS; i++)
            if (ring2_gradient(&a, i)->data)
                *(gdn_tensor *)ring2_gradient(&b, i) = ring2_clone(ring2_gradient(&a, i));
        *given = ring2_clone(given);
        for (int64_t j = 0; j < row; j++) ring2_set(given, 40 * row + j, NAN);
        run(ring2_ctx(1), &b);
        CHECK(has_nan(&b.dq) || has_nan(&b.dk), "NaN %d reaches no token", which);
        for (int i = DQ; i <= DBETA; i++) {
            const gdn_tensor got = ring2_narrow(ring2_gradient(&b, i), 0, 0, 40);
            const gdn_tensor want = ring2_narrow(ring2_gradient(&a, i), 0, 0, 40);
            ring2_expect_bits(ring2_gradient_names[i], &got, &want);
        }
    }
    ring2_gradient_segments(0);
}

/* Tokens 18 and 40 forget. A NaN in q, k or beta between them reaches none of the other tokens, and
 * not dstate. */
static void expect_nan_between(int dtype, int D)
{
    const struct wide_call w = { "",  { 100 }, 2,     4,    LOG_G, L2, 0,    GDN_BETA_SIGMOID,
                                 0.1, true,    false, true, D,     D,  dtype };
    gdn_prefill_backward_args a = make_wide(&w);
    for (int h = 0; h < 4; h++)
        ring2_set(&a.g, 18 * 4 + h, -INFINITY), ring2_set(&a.g, 40 * 4 + h, -INFINITY);
    run(ring2_ctx(1), &a);
    for (int which = 0; which < 3; which++) {
        gdn_prefill_backward_args b = a;
        gdn_tensor *const given = which == 0 ? &b.q : which == 1 ? &b.k : &b.beta;
        const int64_t row = ring2_count(given) / 100;
        *given = ring2_clone(given);
        for (int64_t j = 0; j < row; j++) ring2_set(given, 25 * row + j, NAN);
        for (int i = 0; i < N_GRADIENTS; i++)
            if (ring2_gradient(&a, i)->data)
                *(gdn_tensor *)ring2_gradient(&b, i) = ring2_clone(ring2_gradient(&a, i));
        run(ring2_ctx(1), &b);
        CHECK(has_nan(&b.dq), "NaN %d reaches no token", which);
        for (int i = DQ; i <= DBETA; i++)
            for (int side = 0; side < 2; side++) {
                const gdn_tensor *all = ring2_gradient(&b, i), *clean = ring2_gradient(&a, i);
                const gdn_tensor got = ring2_narrow(all, 0, side ? 40 : 0, side ? 60 : 18);
                const gdn_tensor want = ring2_narrow(clean, 0, side ? 40 : 0, side ? 60 : 18);
                ring2_expect_bits(ring2_gradient_names[i], &got, &want);
            }
        ring2_expect_bits("dstate", &b.dstate, &a.dstate);
    }
}

static void wide_nan(void)
{
    expect_nan_between(GDN_F32, 64);
    expect_nan_between(GDN_BF16, 128);
    expect_nan_between(GDN_F16, 64);
    expect_nan_behind(GDN_BF16, 128, 0);
    expect_nan_behind(GDN_BF16, 128, 1);
    expect_nan_behind(GDN_F16, 128, 1);
    expect_nan_behind(GDN_F16, 64, 0);
    for (int D = 128; D <= 256; D *= 2) {
        expect_nan(GDN_BF16, D);
        expect_nan(GDN_F16, D);
    }
}

static void multiply(const gdn_tensor *t, double by)
{
    for (int64_t i = 0; i < ring2_count(t); i++) ring2_set(t, i, by * ring2_get(t, i));
}

/* f16 has no room for large values over the length of tiny keys, nor for much less than dout. */
static void f16_ranges(void)
{
    static const struct wide_call w = { "",  { 150, 70 }, 1,     2,    LOG_G, L2, 0,  0,
                                        0.1, false,       false, true, 128,   64, H16 };
    gdn_prefill_backward_args a = make_wide(&w);
    multiply(&a.k, 0x1p-11), multiply(&a.q, 0x1p9);
    multiply(&a.v, 0x1p6), multiply(&a.dout, 0x1p-6);
    ring2_gradients_check(ring2_ctx(1), &a);
    multiply(&a.q, 0x1p-20), multiply(&a.v, 0x1p-12), multiply(&a.dout, 0x1p14);
    a.scale = 0x1p-5f;
    ring2_gradients_check(ring2_ctx(1), &a);
}

/* Whole; and in windows, before which states are those of gdn_prefill's kernels, or of the walk.
 * Every other call has windows through the batch, or of each sequence. */
static void run_wide_calls(void)
{
    static const struct {
        const char *name;
        int64_t chunks;
        uint32_t flags;
    } cuts[] = { { "", 0, 0 },
                 { ", windows", 1, 0 },
                 { ", windows through, of the walk", -2, GDN_BATCH_INVARIANT },
                 { "", 0, 0 },
                 { ", windows through", -1, 0 },
                 { ", windows of the walk", 2, GDN_BATCH_INVARIANT } };
    const int n_cuts = ring2_windows(0) ? 3 : 1, n = sizeof wide_calls / sizeof *wide_calls;
    for (int i = 0; i < n * n_cuts; i++) {
        const struct wide_call *w = &wide_calls[i / n_cuts];
        const int how = i % n_cuts + i / n_cuts % 2 * 3;
        if (!ring2_begin("tensor cores: %s %s%s", w->dtype == B16 ? "bf16" : "f16", w->name,
                         cuts[how].name))
            continue;
        gdn_prefill_backward_args a = make_wide(w);
        a.flags |= cuts[how].flags;
        ring2_windows(cuts[how].chunks);
        ring2_gradient_segments(1 + i % 3);
        ring2_gradients_check(ring2_ctx(1), &a);
        const char *ran = gdn_last_kernel(ring2_ctx(1));
        CHECK(!ring2_gradients_on_tiles(&a) || strstr(ran, "backward_sm90_heads") ||
                  strstr(ran, "backward_sm90_fused") || strstr(ran, "backward_portable_heads"),
              "%s", ran);
        ring2_windows(0);
        ring2_gradient_segments(0);
        ring2_end();
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "checkpoints", saved_states },
        { "long sequence", long_sequence },
        { "wide values", wide_values },
        { "NaN stays with what it reaches", nan_stays },
        { "NaN of what does not count", nan_is_skipped },
        { "tensor cores: NaN", wide_nan },
        { "tensor cores: ranges of f16", f16_ranges },
    };
    ring2_options(argc, argv);
    run_wide_calls();
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
