/* SPDX-License-Identifier: Apache-2.0 */
/* runs: gpu, sm_80 "windows of whole", sm_90 --every=4 */
/*
 * gdn_prefill_backward() in windows, through a batch and of each sequence.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backward_calls.h"

/* Runs the call with windows of so many chunks, and returns it with its own gradients. */
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

/* One kernel for the walk in reverse and the gradients has the bits of two, whatever its
 * segments. */
static void segments_of_windows(void)
{
    static const struct wide_call calls[] = {
        { "",
          { 3, 700, EMPTY, 64, 330, 1 },
          1,
          2,
          LOG_G,
          L2,
          0,
          GDN_BETA_SIGMOID,
          0.01,
          true,
          false,
          false,
          128,
          128,
          B16 },
        { "", { 270, 70 }, 2, 2, LOG_G, GDN_NORM_L2_ADD, 0, 0, -1, true, true, true, 96, 72, H16 },
    };
    /* Segments, and chunks of a window: of two calls several windows of each sequence too. */
    static const struct {
        int segments;
        int64_t chunks;
    } cuts[] = { { 1, 0 }, { 2, -5 }, { 3, 4 }, { 2, 2 } };
    if (!ring2_on_hopper()) {
        ring2_skip("on Hopper");
        return;
    }
    for (int i = 0; i < 2; i++) {
        gdn_prefill_backward_args a = make_wide(&calls[i]);
        a.flags |= GDN_BATCH_INVARIANT | GDN_NO_EARLY_STOP;
        ring2_gradient_segments(-1);
        const gdn_prefill_backward_args want = run_windows(&a, 0);
        CHECK(!strstr(gdn_last_kernel(ring2_ctx(1)), "fused"), "two kernels");
        for (int n = 0; n < 4; n++) {
            ring2_gradient_segments(cuts[n].segments);
            gdn_prefill_backward_args got = run_windows(&a, cuts[n].chunks);
            CHECK(strstr(gdn_last_kernel(ring2_ctx(1)), "backward_sm90_fused"), "one kernel");
            got.dA_log = want.dA_log, got.ddt_bias = want.ddt_bias; /* sums over the batch */
            expect_bits("segments", &got, &want);
        }
    }
    ring2_gradient_segments(0);
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
        a.checkpoints.size[0] = 1; /* an absent state is zero */
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

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "tensor cores: windows through a batch", windows_through },
        { "tensor cores: segments of windows", segments_of_windows },
        { "tensor cores: windows through many", windows_of_many },
        { "tensor cores: windows of whole sequences", windows_of_rows },
        { "tensor cores: windows at checkpoints", windows_at_checkpoints },
        { "tensor cores: memory of windows", memory_of_windows },
    };
    ring2_options(argc, argv);
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
