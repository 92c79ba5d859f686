/* SPDX-License-Identifier: Apache-2.0 */
/* fakes: cuda */
/* The log of ops other than gdn_decode and gdn_prefill: which form ran, and why each earlier
 * form did not. unit_cuda_decode_select.c has decode and prefill, unit_cuda_layer.c has layers. */
#include <stdlib.h>

#include "fake_ctx.h"
#include "gdn_train.h"
#include "told.h"

static gdn_ctx *ctx;

/* A tensor of its own memory, which nothing here reads. */
static gdn_tensor fresh(int32_t dtype, int ndim, int64_t s0, int64_t s1, int64_t s2, int64_t s3)
{
    static uintptr_t n;
    n = n % 60 + 1;
    return gdn_dense((void *)(n << 40), dtype, ndim, s0, s1, s2, s3);
}

/* Checks that a call runs, and that the log has the line. */
static void logs(gdn_op op, const void *args, const char *line)
{
    struct told told;
    listen(ctx, &told);
    ring2_status(ctx, line, gdn_run_op(ctx, op, args), GDN_OK);
    expect_line(&told, line);
}

static void test_gates(void)
{
    enum { N = 5, K = 8 };
    gdn_gates_args a = gdn_gates_args_init();
    a.a = fresh(GDN_F32, 2, N, 4, 0, 0), a.g = fresh(GDN_F32, 2, N, 4, 0, 0);
    a.A_log = fresh(GDN_F32, 1, 4, 0, 0, 0);
    logs(GDN_OP_GATES, &a, "gates: flat");
    a.A_log.data = (char *)a.A_log.data + 4;
    logs(GDN_OP_GATES, &a,
         "gates: heads (flat: four heads of A_log or dt_bias do not move at once)");
    a.A_log = fresh(GDN_F32, 1, 3, 0, 0, 0);
    a.a = fresh(GDN_F32, 2, N, 3, 0, 0), a.g = fresh(GDN_F32, 2, N, 3, 0, 0);
    logs(GDN_OP_GATES, &a, "gates: heads (flat: four heads of a row do not move at once)");
    a.A_log = fresh(GDN_F32, 1, 4, 0, 0, 0), a.dt_bias = fresh(GDN_F32, 2, 4, K, 0, 0);
    a.a = fresh(GDN_F32, 3, N, 4, K, 0), a.g = fresh(GDN_F32, 3, N, 4, K, 0);
    logs(GDN_OP_GATES, &a, "gates: heads (flat: a has channels)");
}

static void test_norms(void)
{
    gdn_l2norm_args a = gdn_l2norm_args_init();
    a.x = fresh(GDN_BF16, 2, 9, 128, 0, 0), a.out = fresh(GDN_BF16, 2, 9, 128, 0, 0);
    logs(GDN_OP_L2NORM, &a, "norm: flat");
    a.x = fresh(GDN_F32, 2, 9, 2048, 0, 0), a.out = fresh(GDN_F32, 2, 9, 2048, 0, 0);
    logs(GDN_OP_L2NORM, &a,
         "norm: wide (flat: rows are not of 32, 64, 128 or 256 elements; row: rows are of more "
         "than 256 elements; long: rows are of more than 1024 elements)");
}

static void test_norm_gradients(void)
{
    static const struct {
        int64_t D;
        const char *l2norm, *rmsnorm;
    } rows[] = {
        { 128, "l2norm_backward: row", "rmsnorm_gated_backward: row" },
        { 512, "l2norm_backward: row",
          "rmsnorm_gated_backward: long (row: rows are of more than 256 elements)" },
        { 2048, "l2norm_backward: wide (row: rows are of more than 1024 elements)",
          "rmsnorm_gated_backward: wide (row: rows are of more than 256 elements; long: rows are "
          "of more than 1024 elements)" },
    };
    for (int i = 0; i < 3; i++) {
        const gdn_tensor x = fresh(GDN_F32, 2, 9, rows[i].D, 0, 0);
        gdn_l2norm_backward_args l = gdn_l2norm_backward_args_init();
        gdn_rmsnorm_gated_backward_args r = gdn_rmsnorm_gated_backward_args_init();
        l.x = l.dout = r.x = r.dout = x;
        l.dx = r.dx = fresh(GDN_F32, 2, 9, rows[i].D, 0, 0);
        logs(GDN_OP_L2NORM_BACKWARD, &l, rows[i].l2norm);
        logs(GDN_OP_RMSNORM_GATED_BACKWARD, &r, rows[i].rmsnorm);
    }
}

static void test_gradients(void)
{
    enum { B = 2, T = 16, H = 4, K = 64, V = 64 };
    gdn_prefill_backward_args a = gdn_prefill_backward_args_init();
    a.q = fresh(GDN_BF16, 4, B, T, H, K), a.k = fresh(GDN_BF16, 4, B, T, H, K);
    a.v = fresh(GDN_BF16, 4, B, T, H, V), a.dout = fresh(GDN_BF16, 4, B, T, H, V);
    a.dq = fresh(GDN_BF16, 4, B, T, H, K);
    logs(GDN_OP_PREFILL_BACKWARD, &a, "prefill_backward: sm90");
    a.g = fresh(GDN_F32, 4, B, T, H, K);
    logs(GDN_OP_PREFILL_BACKWARD, &a, "prefill_backward: chunks (g has a number per channel)");
    a.q = fresh(GDN_F32, 4, B, T, H, K);
    logs(GDN_OP_PREFILL_BACKWARD, &a,
         "prefill_backward: channels (sm90, portable, general: g has a number per channel; chunks: "
         "q, k, v or dout is not bf16)");
}

struct gradient_shape {
    int64_t B, T, Hk, H;
    bool packed;
    uint32_t mib;
};

/* Rows of H heads, which are padded or packed. */
static gdn_tensor rows_of(const struct gradient_shape *s, int64_t H)
{
    enum { D = 128 };
    return s->packed ? fresh(GDN_BF16, 3, s->B * s->T, H, D, 0)
                     : fresh(GDN_BF16, 4, s->B, s->T, H, D);
}

static gdn_prefill_backward_args gradients_of(const struct gradient_shape *s, gdn_batch *batch)
{
    gdn_prefill_backward_args a = gdn_prefill_backward_args_init();
    a.q = rows_of(s, s->Hk), a.k = rows_of(s, s->Hk);
    a.v = rows_of(s, s->H), a.dout = rows_of(s, s->H), a.dv = rows_of(s, s->H);
    *batch = gdn_batch_init();
    if (s->packed) batch->cu_seqlens = fresh(GDN_I32, 1, s->B + 1, 0, 0, 0);
    a.batch = batch;
    a.window_mib = s->mib;
    return a;
}

static size_t bytes_of(const gdn_prefill_backward_args *a)
{
    size_t bytes = 0;
    ring2_status(ctx, "bytes", gdn_workspace_bytes(ctx, GDN_OP_PREFILL_BACKWARD, a, &bytes),
                 GDN_OK);
    return bytes;
}

/* One kernel walks in reverse and makes the gradients, unless multiprocessors or blocks would be
 * idle. It takes no more memory than two kernels, or than the caller allows. */
static void test_one_kernel(void)
{
    enum { BETWEEN = 64 }; /* MiB of states between windows, at most */
    static const struct {
        struct gradient_shape s;
        bool is_one;
    } rows[] = {
        { { 1, 2048, 16, 32, true, 0 }, true },     { { 1, 8192, 16, 32, true, 0 }, true },
        { { 1, 8192, 32, 32, false, 0 }, true },    { { 4, 2048, 32, 32, true, 0 }, true },
        { { 4, 2048, 32, 32, false, 0 }, true },    { { 4, 8192, 16, 32, true, 0 }, true },
        { { 4, 8192, 16, 32, false, 640 }, true },  { { 4, 8192, 16, 32, true, 1536 }, true },
        { { 4, 8192, 16, 32, false, 1536 }, true }, { { 1, 32768, 16, 32, true, 0 }, true },
        { { 1, 32768, 16, 32, true, 1536 }, true }, { { 1, 32768, 8, 32, true, 0 }, false },
        { { 8, 1024, 16, 32, false, 0 }, true },    { { 8, 1024, 16, 32, true, 0 }, true },
        { { 5, 2048, 32, 32, false, 0 }, false },   { { 64, 256, 16, 32, true, 0 }, false },
        { { 29, 4519, 16, 32, true, 0 }, true },    { { 29, 4519, 16, 32, true, 1536 }, false },
        { { 1, 16384, 24, 48, true, 0 }, true },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        gdn_batch batch;
        const gdn_prefill_backward_args a = gradients_of(&rows[i].s, &batch);
        const size_t bytes = bytes_of(&a);
        ring2_status(ctx, "run", gdn_prefill_backward(ctx, &a), GDN_OK);
        CHECK((strstr(gdn_last_kernel(ctx), "fused") != NULL) == rows[i].is_one, "row %zu: %s", i,
              gdn_last_kernel(ctx));
        setenv("GDN_CUDA_WITHOUT", "fused gradients", 1);
        gdn_ctx *const one = ctx, *const two = ctx = hopper_ctx();
        unsetenv("GDN_CUDA_WITHOUT");
        const size_t most = a.window_mib ? ((size_t)a.window_mib + BETWEEN) << 20 : bytes_of(&a);
        CHECK(bytes <= most, "row %zu: %zu bytes, at most %zu wanted", i, bytes, most);
        ctx = one;
        gdn_ctx_destroy(two);
    }
}

static void test_conv1d(void)
{
    enum { D = 64, W = 4 };
    gdn_conv1d_args a = gdn_conv1d_args_init();
    a.x = fresh(GDN_BF16, 3, 2, 500, D, 0), a.out = fresh(GDN_BF16, 3, 2, 500, D, 0);
    a.weight = fresh(GDN_F32, 2, D, W, 0, 0);
    logs(GDN_OP_CONV1D, &a,
         "conv1d: rows (turned: channels lie side by side; one token: rows are not of one token)");
}

static void test_state_copy(void)
{
    gdn_state_copy_args a = gdn_state_copy_args_init();
    a.to_pool = fresh(GDN_F32, 4, 3, 2, 16, 32), a.from_pool = fresh(GDN_F32, 4, 3, 2, 16, 32);
    a.to_slots = a.from_slots = fresh(GDN_I32, 1, 2, 0, 0, 0);
    logs(GDN_OP_STATE_COPY, &a,
         "state_copy: rows (eight: no 8 bits become another dtype, or come of one; turn: both "
         "sides have their elements side by side in one order)");
}

static void test_exact(void)
{
    enum { B = 2, T = 70, H = 4, K = 64, V = 64 };
    gdn_rule_args a = gdn_rule_args_init();
    a.q = fresh(GDN_BF16, 4, B, T, H, K), a.k = fresh(GDN_BF16, 4, B, T, H, K);
    a.v = fresh(GDN_BF16, 4, B, T, H, V), a.out = fresh(GDN_BF16, 4, B, T, H, V);
    a.flags = GDN_EXACT;
    logs(GDN_OP_PREFILL, &a, "prefill: tokens (chunks: GDN_EXACT is set)");
    a.flags = 0, a.out.dtype = GDN_F32;
    logs(GDN_OP_PREFILL, &a, "prefill: tokens (chunks: q, k, v and out differ in dtype)");
}

/* Each test has a context of its own: the log leaves out a line that it has already. */
static void with_context(void (*test)(void))
{
    ctx = hopper_ctx();
    if (ctx) test();
    gdn_ctx_destroy(ctx);
}

#define TEST(name) \
    static void in_context_##name(void) { with_context(test_##name); }
TEST(gates)
TEST(norms)
TEST(norm_gradients)
TEST(gradients)
TEST(one_kernel)
TEST(conv1d)
TEST(state_copy)
TEST(exact)

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "gates", in_context_gates },
        { "norms", in_context_norms },
        { "gradients of norms", in_context_norm_gradients },
        { "gradients of prefill", in_context_gradients },
        { "gradients in one kernel", in_context_one_kernel },
        { "conv1d", in_context_conv1d },
        { "state_copy", in_context_state_copy },
        { "prefill token by token", in_context_exact },
    };
    return fake_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
