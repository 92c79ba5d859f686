/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu, gpu, sm_80 --every=8, sm_90 "tensor cores" */
/*
 * gdn_prefill_backward() of longer and wider calls: checkpoints of the forward call, NaN, tensor
 * cores, and windows of a batch.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backward_calls.h"

/* ---- Checkpoints of the forward call --------------------------------------------------------- */

static bool has_nan(const gdn_tensor *t)
{
    for (int64_t i = 0; i < ring2_count(t); i++)
        if (isnan(ring2_get(t, i))) return true;
    return false;
}

/* Checks that a call reads its checkpoints: a NaN there reaches dq. */
static void expect_read(const gdn_prefill_backward_args *call)
{
    gdn_prefill_backward_args a = *call;
    a.checkpoints = ring2_clone(&call->checkpoints), a.dq = ring2_clone(&call->dq);
    ring2_fill_value(&a.checkpoints, NAN);
    run(ring2_ctx(1), &a);
    CHECK(has_nan(&a.dq), "checkpoints were not read");
}

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

/* The calls in 16 bits that tensor cores take. */
enum { MOST_ROWS = 72, EMPTY = -1 };
struct wide_call {
    const char *name;
    int64_t T[MOST_ROWS];
    int Hk, H, gate, norm, map, beta;
    double strength;        /* of log gates: from -strength to 0; below 0: some forget */
    bool states, adds, f32; /* f32: gradients */
    int K, V, dtype;
};

static gdn_prefill_backward_args make_wide(const struct wide_call *w)
{
    gdn_prefill_backward_args a = gdn_prefill_backward_args_init();
    gdn_batch *t = ring2_heap(sizeof *t);
    int64_t cu[MOST_ROWS + 1] = { 0 }, n = 0;
    for (; n < MOST_ROWS && w->T[n]; n++) cu[n + 1] = cu[n] + (w->T[n] == EMPTY ? 0 : w->T[n]);
    const int64_t N = cu[n], H = w->H, K = w->K, V = w->V;
    const int32_t A = w->dtype, out = w->f32 ? GDN_F32 : A;
    *t = gdn_batch_init(), t->cu_seqlens = ring2_indices(GDN_I32, n + 1, cu), a.batch = t;
    a.q = ring2_new(A, 0, 3, N, w->Hk, K, 0), a.dq = ring2_new(out, 0, 3, N, w->Hk, K, 0);
    a.k = ring2_new(A, 0, 3, N, w->Hk, K, 0), a.dk = ring2_new(out, 0, 3, N, w->Hk, K, 0);
    a.v = ring2_new(A, 0, 3, N, H, V, 0), a.dv = ring2_new(out, 0, 3, N, H, V, 0);
    a.dout = ring2_new(A, 0, 3, N, H, V, 0);
    a.g = ring2_new(GDN_F32, 0, 2, N, H, 0, 0), a.dg = ring2_new(GDN_F32, 0, 2, N, H, 0, 0);
    a.beta = ring2_new(GDN_F32, 0, 2, N, H, 0, 0), a.dbeta = ring2_clone(&a.dg);
    a.dstate = ring2_new(GDN_F32, 0, 4, n, H, V, K);
    if (w->states) {
        a.state = ring2_clone(&a.dstate), a.dstate_out = ring2_clone(&a.dstate);
        ring2_fill(&a.state, -1, 1);
        ring2_fill(&a.dstate_out, -1, 1);
    }
    fill_keys(&a.q, !oracle_normalises(w->norm), false);
    fill_keys(&a.k, !oracle_normalises(w->norm), false);
    ring2_fill(&a.v, -1, 1);
    ring2_fill(&a.dout, -1, 1);
    a.gate = w->gate, a.norm = w->norm, a.head_map = w->map, a.beta_kind = w->beta;
    if (w->gate == GDN_GATE_RAW) {
        a.A_log = ring2_new(GDN_F32, 0, 1, H, 0, 0, 0), a.dA_log = ring2_clone(&a.A_log);
        a.dt_bias = ring2_new(GDN_F32, 0, 1, H, 0, 0, 0), a.ddt_bias = ring2_clone(&a.dt_bias);
        ring2_fill(&a.A_log, -1, 1);
        ring2_fill(&a.dt_bias, -1, 1);
        ring2_fill(&a.g, -4, 1);
    } else {
        ring2_fill(&a.g, -fabs(w->strength), 0);
    }
    for (int64_t i = 0; w->strength < 0 && i < ring2_count(&a.g); i++)
        if (ring2_below(20) == 0) ring2_set(&a.g, i, -INFINITY);
    if (!oracle_squashes(w->beta))
        for (int64_t i = 0; i < ring2_count(&a.beta); i++)
            ring2_set(&a.beta, i, ring2_below(8) ? ring2_uniform(0, 1) : 0);
    else
        ring2_fill(&a.beta, -3, 3);
    if (w->adds) a.flags = GDN_ACCUMULATE;
    for (int i = 0; i < N_GRADIENTS; i++)
        if (ring2_gradient(&a, i)->data) ring2_fill(ring2_gradient(&a, i), -1, 1);
    return a;
}

enum { RAW_G = GDN_GATE_RAW, LOG_G = GDN_GATE_LOG, L2 = GDN_NORM_L2 };
enum { B16 = GDN_BF16, H16 = GDN_F16 };
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
};

/* As nan_stays() and nan_is_skipped(), where sums over tokens take all of a chunk: token 18
 * forgets; a token behind it, and then the state before, have NaN. */
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

static void wide_nan(void)
{
    for (int D = 128; D <= 256; D *= 2) {
        expect_nan(GDN_BF16, D);
        expect_nan(GDN_F16, D);
    }
}

/* ---- Windows through a batch ----------------------------------------------------------------- */

/* A call, its gradients fresh, with so many chunks of a window. */
static gdn_prefill_backward_args run_windows(const gdn_prefill_backward_args *call, int64_t chunks)
{
    gdn_prefill_backward_args a = *call;
    for (int i = 0; i < N_GRADIENTS; i++) {
        gdn_tensor *t = (gdn_tensor *)ring2_gradient(&a, i);
        if (!t->data) continue;
        *t = ring2_clone(t);
        ring2_fill_value(t, 7);
    }
    ring2_windows(chunks);
    run(ring2_ctx(1), &a);
    const bool through = strstr(gdn_last_kernel(ring2_ctx(1)), "backward_general_plan") != NULL;
    CHECK(through == (chunks < 0), "%d chunks: %s", (int)chunks, gdn_last_kernel(ring2_ctx(1)));
    ring2_windows(0);
    return a;
}

/* Long, short and empty sequences, more than a window has chunks. Windows change no bit of what is
 * computed with GDN_BATCH_INVARIANT. Else states before them come from gdn_prefill's kernels. */
static void windows_through(void)
{
    static const struct wide_call w = {
        "",    { 3, 300, EMPTY, 64, 1, 1, 130, 2, 65, 192, 1, EMPTY },
        1,     2,
        RAW_G, L2,
        0,     GDN_BETA_SIGMOID,
        0,     true,
        false, false,
        64,    72,
        B16
    };
    static const int64_t starts[] = { 1, 0, 0, 64, 0, 1, 70, 0, 0, 3, 0, 0 };
    static const int64_t counts[] = { 2, 300, 0, 0, 1, 0, 60, 1, 64, 189, 1, 0 };
    static const int64_t chunks[] = { -1, -2, -5, 1 };
    if (!ring2_windows(0)) {
        ring2_skip("on a device");
        return;
    }
    for (int masked = 0; masked < 2; masked++) {
        gdn_prefill_backward_args a = make_wide(&w), alone;
        gdn_batch *t = ring2_heap(sizeof *t);
        *t = *a.batch, a.batch = t;
        if (masked) {
            t->token_start = ring2_indices(GDN_I32, 12, starts);
            t->token_count = ring2_indices(GDN_I64, 12, counts);
        }
        ring2_windows(masked ? -3 : -1);
        ring2_give_workspace(ring2_ctx(1), GDN_OP_PREFILL_BACKWARD, &a);
        ring2_gradients_check(ring2_ctx(1), &a);
        a.workspace = NULL, a.workspace_bytes = 0;
        a.flags = GDN_BATCH_INVARIANT | GDN_NO_EARLY_STOP;
        const gdn_prefill_backward_args want = run_windows(&a, 0);
        alone = a;
        alone.dq = alone.dk = alone.dv = alone.dg = alone.dbeta = (gdn_tensor){ 0 };
        alone.dA_log = alone.ddt_bias = (gdn_tensor){ 0 };
        for (int i = 0; i < 4; i++) {
            gdn_prefill_backward_args got = run_windows(&a, chunks[i]);
            got.dA_log = want.dA_log, got.ddt_bias = want.ddt_bias; /* sums over the batch */
            expect_bits("windows", &got, &want);
        }
        const gdn_prefill_backward_args got = run_windows(&alone, masked ? -1 : -4);
        ring2_expect_bits("dstate alone", &got.dstate, &want.dstate);
    }
}

/* More sequences than a warp has threads, one of them longer than a window. */
static void windows_of_many(void)
{
    struct wide_call w = { "", { 0 }, 1,     2,     RAW_G, L2, 0,  GDN_BETA_SIGMOID,
                           0,  true,  false, false, 64,    40, B16 };
    if (!ring2_windows(0)) {
        ring2_skip("on a device");
        return;
    }
    for (int i = 0; i < 70; i++) w.T[i] = ring2_below(6) ? 1 + (int64_t)ring2_below(90) : EMPTY;
    w.T[50] = 700;
    const gdn_prefill_backward_args a = make_wide(&w);
    for (int n = 2; n <= 50; n *= 5) {
        ring2_windows(-n);
        ring2_gradients_check(ring2_ctx(1), &a);
    }
    ring2_windows(0);
}

/* Makes [B][T].. of a tensor [B x T].. */
static gdn_tensor in_rows(gdn_tensor t, int64_t B)
{
    for (int i = t.ndim++; i > 0; i--) t.size[i] = t.size[i - 1], t.stride[i] = t.stride[i - 1];
    t.size[1] /= B;
    t.size[0] = B;
    t.stride[0] = t.size[1] * t.stride[1];
    return t;
}

/* Returns the bytes that a call needs with so many chunks of a window. */
static size_t bytes_with(const gdn_prefill_backward_args *a, int64_t chunks)
{
    size_t bytes = 0;
    ring2_windows(chunks);
    ring2_status(ring2_ctx(1), "bytes",
                 gdn_workspace_bytes(ring2_ctx(1), GDN_OP_PREFILL_BACKWARD, a, &bytes), GDN_OK);
    return bytes;
}

/* Padded batches in windows of whole sequences, the last of which has one: the same bits as in one
 * window, with less memory. */
static void windows_of_rows(void)
{
    enum { B = 5, CHUNKS = 3 };
    static const struct wide_call calls[] = {
        { "",
          { 130, 130, 130, 130, 130 },
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
          64,
          72,
          B16 },
        { "",
          { 130, 130, 130, 130, 130 },
          1,
          2,
          LOG_G,
          L2,
          0,
          0,
          -1,
          true,
          true,
          true,
          256,
          136,
          H16 },
    };
    static const int64_t starts[] = { 1, 0, 0, 64, 0 }, counts[] = { 2, 130, 0, 60, 129 };
    if (!ring2_windows(0)) {
        ring2_skip("on a device");
        return;
    }
    for (int i = 0; i < 4; i++) {
        gdn_prefill_backward_args a = make_wide(&calls[i / 2]), alone;
        gdn_batch *t = ring2_heap(sizeof *t);
        if (!ring2_gradients_on_tiles(&a)) continue;
        gdn_tensor *const rows[] = { &a.q,  &a.k,  &a.v,  &a.g,  &a.beta, &a.dout,
                                     &a.dq, &a.dk, &a.dv, &a.dg, &a.dbeta };
        for (int j = 0; j < 11; j++) *rows[j] = in_rows(*rows[j], B);
        *t = gdn_batch_init(), a.batch = t;
        if (i % 2) {
            t->token_start = ring2_indices(GDN_I32, B, starts);
            t->token_count = ring2_indices(GDN_I64, B, counts);
        }
        CHECK(bytes_with(&a, -2 * CHUNKS) < bytes_with(&a, -B * CHUNKS),
              "windows have all sequences");
        ring2_windows(-2 * CHUNKS);
        ring2_give_workspace(ring2_ctx(1), GDN_OP_PREFILL_BACKWARD, &a);
        ring2_gradients_check(ring2_ctx(1), &a);
        a.workspace = NULL, a.workspace_bytes = 0;
        const gdn_prefill_backward_args want = run_windows(&a, 0);
        gdn_prefill_backward_args got = run_windows(&a, -CHUNKS * (i + 1));
        got.dA_log = want.dA_log, got.ddt_bias = want.ddt_bias; /* sums over the batch */
        expect_bits("windows", &got, &want);
        alone = a;
        alone.flags |= GDN_BATCH_INVARIANT | GDN_NO_EARLY_STOP;
        alone.dq = alone.dk = alone.dv = alone.dg = alone.dbeta = (gdn_tensor){ 0 };
        alone.dA_log = alone.ddt_bias = (gdn_tensor){ 0 };
        got = run_windows(&alone, -CHUNKS);
        ring2_expect_bits("dstate alone", &got.dstate, &want.dstate);
    }
}

/* Windows of each sequence, and through the batch, begin at checkpoints. */
static void windows_at_checkpoints(void)
{
    enum { B = 3 };
    static const struct wide_call calls[] = {
        { "",
          { 210, 210, 210 },
          1,
          2,
          LOG_G,
          L2,
          0,
          GDN_BETA_SIGMOID,
          0.5,
          true,
          false,
          false,
          64,
          72,
          B16 },
        { "",
          { 193, 193, 193 },
          1,
          1,
          LOG_G,
          GDN_NORM_L2_ADD,
          0,
          0,
          -1,
          true,
          true,
          true,
          256,
          136,
          H16 },
    };
    static const int64_t starts[] = { 1, 0, 7 }, counts[] = { 129, 193, 0 };
    if (!ring2_windows(0)) {
        ring2_skip("on a device");
        return;
    }
    for (int i = 0; i < 6; i++) {
        gdn_prefill_backward_args a = make_wide(&calls[i / 3]);
        gdn_batch *t = ring2_heap(sizeof *t);
        if (!ring2_gradients_on_tiles(&a)) continue;
        gdn_tensor *const rows[] = { &a.q,  &a.k,  &a.v,  &a.g,  &a.beta, &a.dout,
                                     &a.dq, &a.dk, &a.dv, &a.dg, &a.dbeta };
        *t = i % 3 ? gdn_batch_init() : *a.batch, a.batch = t;
        for (int j = 0; j < 11 && i % 3; j++) *rows[j] = in_rows(*rows[j], B);
        if (i % 3 == 2) {
            t->token_start = ring2_indices(GDN_I32, B, starts);
            t->token_count = ring2_indices(GDN_I64, B, counts);
        }
        a = with_states(&a, 64);
        ring2_windows(i % 3 ? 2 : -3);
        ring2_give_workspace(ring2_ctx(1), GDN_OP_PREFILL_BACKWARD, &a);
        ring2_gradients_check(ring2_ctx(1), &a);
        a.workspace = NULL, a.workspace_bytes = 0;
        expect_read(&a);
        a.checkpoints.size[0] = 1; /* a state that is not there is zero */
        run(ring2_ctx(1), &a);
        ring2_windows(0);
    }
    static const struct wide_call alone = { "",  { 330 }, 1,     2,     LOG_G, L2, 0,  0,
                                            0.5, true,    false, false, 64,    72, B16 };
    const gdn_prefill_backward_args a = make_wide(&alone);
    for (int64_t every = 64; every <= 4096; every *= 64) { /* the last is too far apart */
        const gdn_prefill_backward_args b = with_states(&a, every);
        ring2_windows(-4);
        ring2_gradients_check(ring2_ctx(1), &b);
        ring2_windows(0);
    }
}

/* A batch of many sequences needs about as much memory as one sequence of as many tokens. */
static void memory_of_windows(void)
{
    enum { B = 29, N = 131072, Hk = 16, H = 32, D = 128 };
    gdn_prefill_backward_args a = gdn_prefill_backward_args_init();
    gdn_batch t = gdn_batch_init();
    size_t one, many;
    int64_t cu[B + 1] = { 0 };
    if (!ring2_windows(0)) {
        ring2_skip("on a device");
        return;
    }
    for (int i = 1; i <= B; i++) cu[i] = (int64_t)N * i / B;
    gdn_tensor *const all[] = { &a.q,    &a.k, &a.dq,   &a.dk, &a.v,    &a.dv,
                                &a.dout, &a.g, &a.beta, &a.dg, &a.dbeta };
    for (int i = 0; i < 11; i++) { /* nothing is read */
        void *const data = (void *)((uintptr_t)(i + 1) << 36);
        *all[i] = i < 7 ? gdn_dense(data, GDN_BF16, 3, N, i < 4 ? Hk : H, D, 0)
                        : gdn_dense(data, GDN_F32, 2, N, H, 0, 0);
    }
    ring2_status(ring2_ctx(1), "bytes of one",
                 gdn_workspace_bytes(ring2_ctx(1), GDN_OP_PREFILL_BACKWARD, &a, &one), GDN_OK);
    t.cu_seqlens = ring2_indices(GDN_I32, B + 1, cu), a.batch = &t;
    ring2_status(ring2_ctx(1), "bytes of many",
                 gdn_workspace_bytes(ring2_ctx(1), GDN_OP_PREFILL_BACKWARD, &a, &many), GDN_OK);
    CHECK(many <= one + one / 4, "%zu bytes of many, %zu of one", many, one);
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
        ring2_gradients_check(ring2_ctx(1), &a);
        const char *ran = gdn_last_kernel(ring2_ctx(1));
        CHECK(!ring2_gradients_on_tiles(&a) || strstr(ran, "backward_sm90_heads") ||
                  strstr(ran, "backward_portable_heads"),
              "%s", ran);
        ring2_windows(0);
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
        { "tensor cores: windows through a batch", windows_through },
        { "tensor cores: windows through many", windows_of_many },
        { "tensor cores: windows of whole sequences", windows_of_rows },
        { "tensor cores: windows at checkpoints", windows_at_checkpoints },
        { "tensor cores: memory of windows", memory_of_windows },
    };
    ring2_options(argc, argv);
    run_wide_calls();
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
