/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_workspace_bytes() on a device, which the driver of fake_cuda.c pretends: never above what
 * gdn.h says. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>

#include "fake_cuda.h"
#include "gdn_research.h"
#include "ring2.h"

enum { KIB = 1024, SMS = 132 }; /* the driver's */

static gdn_ctx *ctx;

/* Descriptors only: the queries follow no pointer. */
static gdn_tensor fake(int32_t dtype, int ndim, int64_t s0, int64_t s1, int64_t s2, int64_t s3)
{
    static uintptr_t n;
    n++;
    return gdn_dense((void *)(n << 40), dtype, ndim, s0, s1, s2, s3);
}

static size_t bytes_of(gdn_op op, const void *args)
{
    size_t bytes = 0;
    ring2_status(ctx, "bytes", gdn_workspace_bytes(ctx, op, args, &bytes), GDN_OK);
    return bytes;
}

static bool is_q8(int32_t dtype) { return dtype == GDN_I8 || dtype == GDN_E4M3; }

/* ---- The rule ---- */

enum { H = 4 };

struct rule {
    int64_t   B, T, K, V;
    int32_t   dtype, state;
    gdn_batch batch;
};

static gdn_rule_args rule_of(const struct rule *r)
{
    gdn_rule_args a = gdn_rule_args_init();
    a.q     = fake(r->dtype, 4, r->B, r->T, 2, r->K);
    a.k     = fake(r->dtype, 4, r->B, r->T, 2, r->K);
    a.v     = fake(r->dtype, 4, r->B, r->T, H, r->V);
    a.out   = fake(r->dtype, 4, r->B, r->T, H, r->V);
    a.state = fake(r->state, 4, r->B, H, r->V, r->K);
    if (is_q8(r->state)) a.state_scales = fake(GDN_F32, 3, r->B, H, r->V, 0);
    if (r->batch.checkpoint_every) {
        a.checkpoints = fake(r->state, 4, 99, H, r->V, r->K);
        if (is_q8(r->state)) a.checkpoint_scales = fake(GDN_F32, 3, 99, H, r->V, 0);
    }
    a.norm  = GDN_NORM_L2;
    a.batch = &r->batch;
    return a;
}

static size_t prefill_limit(const struct rule *r)
{
    const int64_t every    = r->batch.checkpoint_every;
    const int64_t n        = r->B + (every ? r->B * r->T / every : 0);
    const int64_t segments = 5 * SMS * (4 * r->K * (r->K + r->V) + 8) + 192;
    return (size_t)(segments + (is_q8(r->state) ? 4 * H * r->K * r->V * n + 128 : 0));
}

static void prefill_is_bounded(void)
{
    static const int64_t sizes[][2] = { { 64, 64 }, { 128, 128 }, { 72, 200 }, { 256, 256 } };
    static const int64_t batches[][2] = { { 1, 9 }, { 3, 131 }, { 1, 8192 }, { 40, 500 },
                                          { 1, 1 << 20 }, { 0, 100 } };
    int n_segments = 0;
    for (int i = 0; i < 4 * 6 * 5 * 3 * 2; i++) {
        const int64_t *d = sizes[i % 4], *b = batches[i / 4 % 6];
        struct rule    r = { b[0], b[1], d[0], d[1], i / 120 % 3, i / 24 % 5, gdn_batch_init() };
        r.batch.checkpoint_every = i / 360 ? 100 : 0;
        gdn_rule_args  a     = rule_of(&r);
        const size_t   limit = prefill_limit(&r), bytes = bytes_of(GDN_OP_PREFILL, &a);
        CHECK(bytes <= limit, "case %d: %zu bytes, at most %zu", i, bytes, limit);
        if (is_q8(r.state))
            CHECK(bytes >= (size_t)(4 * H * r.K * r.V * r.B), "case %d: %zu bytes", i, bytes);
        n_segments += bytes && !is_q8(r.state);
        a.flags = GDN_EXACT;
        CHECK(bytes_of(GDN_OP_PREFILL, &a) == 0, "case %d: exact", i);
    }
    CHECK(n_segments > 0, "no case has segments");
}

/* Rows that a tensor map cannot describe have kernels without segments. */
static void alignment_counts(void)
{
    const struct rule r = { 1, 8192, 128, 128, GDN_BF16, GDN_F32, gdn_batch_init() };
    gdn_rule_args     a = rule_of(&r);
    CHECK(bytes_of(GDN_OP_PREFILL, &a) > 0, "no segments");
    a.q.data = (char *)a.q.data + 2;
    CHECK(bytes_of(GDN_OP_PREFILL, &a) == 0, "segments of rows at odd addresses");
}

static size_t tree_limit(int64_t T, int64_t K)
{
    const int64_t size = K <= 64 ? 64 : K <= 128 ? 128 : 256;
    const double  block = 128 * (double)size * log2((double)T + 2) + 32 * (double)T + 128;
    return (size_t)(4 * SMS * block);
}

static void decode_is_bounded(void)
{
    static const int64_t lengths[] = { 1, 4, 64, 5000 }, sizes[] = { 64, 100, 256 };
    for (int i = 0; i < 4 * 3 * 2 * 5; i++) {
        struct rule   r = { i / 12 % 2 ? 200 : 1, lengths[i % 4], sizes[i / 4 % 3], 64, GDN_BF16,
                            i / 24, gdn_batch_init() };
        gdn_rule_args a = rule_of(&r);
        CHECK(bytes_of(GDN_OP_DECODE, &a) == 0, "case %d: a chain", i);
        r.batch.parents    = fake(GDN_I32, 2, r.B, r.T, 0, 0);
        const size_t bytes = bytes_of(GDN_OP_DECODE, &a), limit = tree_limit(r.T, r.K);
        CHECK(bytes <= limit, "case %d: %zu bytes of a tree, at most %zu", i, bytes, limit);
    }
}

/* ---- Convolution, step, layer ---- */

static void conv_is_bounded(void)
{
    for (int i = 0; i < 4 * 5 * 7 * 2; i++) {
        const int64_t B = i % 4, T = 5 + (16 << i / 4 % 5 * 3), W = 2 + i / 20 % 7, D = 96;
        const bool    packed = i / 140;
        gdn_batch     batch  = gdn_batch_init();
        batch.cu_seqlens     = fake(GDN_I32, 1, B + 1, 0, 0, 0);
        gdn_conv1d_args a    = gdn_conv1d_args_init();
        const int64_t N = packed ? T : B * T;
        a.x      = packed ? fake(GDN_BF16, 2, N, D, 0, 0) : fake(GDN_BF16, 3, B, T, D, 0);
        a.weight = fake(GDN_BF16, 2, D, W, 0, 0);
        a.state  = fake(GDN_BF16, 3, B, D, W - 1, 0);
        a.batch  = packed ? &batch : NULL;
        a.out    = a.x;
        const size_t bytes = bytes_of(GDN_OP_CONV1D, &a);
        const size_t limit = (size_t)(4 * (W - 1) * D * (N / 32 + 2 * B + 1) + 64);
        CHECK(bytes <= limit, "case %d: %zu bytes, at most %zu", i, bytes, limit);
        a.out.data = (char *)a.x.data + ((size_t)1 << 39);
        CHECK(bytes_of(GDN_OP_CONV1D, &a) == 0, "case %d: not in place", i);
    }
}

enum { HK = 2, K = 64, V = 56, D = 2 * HK * K + H * V, HIDDEN = 96 };

static void step_is_bounded(void)
{
    for (int i = 0; i < 3 * 2 * 2; i++) {
        const int32_t A = i % 3;
        const int64_t B = 5, T = 1 + i / 3 % 2 * 6, N = B * T, unit = A == GDN_F32 ? 4 : 2;
        gdn_batch     batch = gdn_batch_init();
        batch.pad_policy    = i / 6 ? GDN_PAD_KEEP : GDN_PAD_ZERO;
        batch.parents       = fake(GDN_I32, 2, B, T, 0, 0);
        gdn_step_args a     = gdn_step_args_init();
        a.x = fake(A, 3, B, T, D, 0), a.out = fake(A, 4, B, T, H, V);
        a.a = fake(A, 3, B, T, H, 0), a.b = fake(A, 3, B, T, H, 0);
        a.conv_weight = fake(A, 2, D, 4, 0, 0), a.A_log = fake(A, 1, H, 0, 0, 0);
        a.conv_state = fake(A, 3, B, D, 3, 0), a.state = fake(A, 4, B, H, V, K);
        a.norm_weight = fake(A, 1, V, 0, 0, 0), a.batch = &batch;
        a.n_key_heads = HK, a.n_value_heads = H, a.key_head_dim = K, a.value_head_dim = V;
        const int64_t keep  = i / 6 ? unit * N * H * V : 0;
        const size_t  limit = (size_t)(unit * N * D + keep + 192) + tree_limit(T, K);
        const size_t  bytes = bytes_of(GDN_OP_STEP, &a);
        CHECK(bytes > 0 && bytes <= limit, "case %d: %zu bytes, at most %zu", i, bytes, limit);
    }
}

/* Its weights have another dtype than its activations: cuBLAS is not asked for, but the list has
 * what it gets. */
static gdn_block_args block_of(const struct rule *r)
{
    gdn_block_args a = gdn_block_args_init();
    a.hidden       = fake(r->dtype, 3, r->B, r->T, HIDDEN, 0);
    a.out          = fake(r->dtype, 3, r->B, r->T, HIDDEN, 0);
    a.in_proj_qkvz = fake(GDN_F32, 2, D + H * V, HIDDEN, 0, 0);
    a.in_proj_ba   = fake(GDN_F32, 2, 2 * H, HIDDEN, 0, 0);
    a.out_proj     = fake(GDN_F32, 2, HIDDEN, H * V, 0, 0);
    a.conv_weight  = fake(GDN_F32, 2, D, 4, 0, 0);
    a.A_log        = fake(GDN_F32, 1, H, 0, 0, 0);
    a.dt_bias      = fake(GDN_F32, 1, H, 0, 0, 0);
    a.norm_weight  = fake(GDN_F32, 1, V, 0, 0, 0);
    a.conv_state   = fake(r->dtype, 3, r->B, D, 3, 0);
    a.state        = fake(r->state, 4, r->B, H, V, K);
    if (is_q8(r->state)) a.state_scales = fake(GDN_F32, 3, r->B, H, V, 0);
    a.n_key_heads = HK, a.n_value_heads = H, a.key_head_dim = K, a.value_head_dim = V;
    a.batch = &r->batch;
    return a;
}

static void block_is_bounded(void)
{
    for (int i = 0; i < 2 * 5 * 3 * 2; i++) {
        const int64_t T = i / 10 % 3 == 0 ? 1 : i / 10 % 3 == 1 ? 70 : 30000;
        struct rule   r = { 1 + i % 2 * 4, T, K, V, GDN_BF16, i / 2 % 5, gdn_batch_init() };
        r.batch.pad_policy     = i / 30 ? GDN_PAD_KEEP : GDN_PAD_ZERO;
        const gdn_block_args a = block_of(&r);
        const int64_t N = r.B * T, keep = i / 30 ? 2 * N * HIDDEN : 0;
        const int64_t buffers = 2 * N * (4 * HK * K + 3 * H * V) + 16 * N * H + keep + KIB;
        const size_t  limit   = (size_t)(buffers + 32 * KIB * KIB) + prefill_limit(&r);
        const size_t  bytes   = bytes_of(GDN_OP_BLOCK, &a);
        CHECK(bytes > 0 && bytes <= limit, "case %d: %zu bytes, at most %zu", i, bytes, limit);
    }
}

/* ---- Others ---- */

static void others_need_none(void)
{
    gdn_state_copy_args s = gdn_state_copy_args_init();
    s.from_pool = fake(GDN_F32, 4, 99, H, V, K), s.to_pool = fake(GDN_BF16, 4, 99, H, V, K);
    CHECK(bytes_of(GDN_OP_STATE_COPY, &s) == 0, "state_copy");
    gdn_record_fold_args f = gdn_record_fold_args_init();
    f.state = s.from_pool, f.record_k = fake(GDN_BF16, 4, 99, 8, HK, K);
    f.record_u = fake(GDN_F32, 4, 99, 8, H, V), f.record_g = fake(GDN_F32, 3, 99, 8, H, 0);
    f.record_count = fake(GDN_I32, 1, 99, 0, 0, 0);
    CHECK(bytes_of(GDN_OP_RECORD_FOLD, &f) == 0, "record_fold");
    gdn_summary_args m = gdn_summary_args_init();
    m.k = fake(GDN_BF16, 4, 3, 99, HK, K), m.v = fake(GDN_BF16, 4, 3, 99, H, V);
    m.M = fake(GDN_F32, 4, 3, H, K, K), m.U = fake(GDN_F32, 4, 3, H, V, K);
    CHECK(bytes_of(GDN_OP_SUMMARY, &m) == 0, "summary");
    gdn_chunk_cumsum_args c = gdn_chunk_cumsum_args_init();
    c.g = fake(GDN_F32, 3, 3, 99, H, 0), c.out = fake(GDN_F32, 3, 3, 99, H, 0), c.chunk_size = 64;
    CHECK(bytes_of(GDN_OP_CHUNK_CUMSUM, &c) == 0, "chunk_cumsum");
}

static bool make_context(void)
{
    static char       text[512] = "the driver is not the fake one: run this by ctest";
    void             *library   = dlopen("libcuda.so.1", RTLD_NOW);
    struct fake_cuda *driver    = library ? dlsym(library, "fake_cuda") : NULL;
    gdn_options       o         = gdn_options_init();
    o.backend    = GDN_BACKEND_CUDA;
    o.error_text = text, o.error_text_bytes = sizeof text;
    if (driver) {
        *driver = (struct fake_cuda){ .n_devices = 1, .major = 9, .shared_bytes = 232448 };
        gdn_ctx_create(&o, &ctx);
    }
    if (!ctx) printf("%s\n", text);
    return ctx;
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "prefill", prefill_is_bounded }, { "alignment", alignment_counts },
        { "decode", decode_is_bounded },   { "conv1d", conv_is_bounded },
        { "step", step_is_bounded },       { "block", block_is_bounded },
        { "others", others_need_none },
    };
    if (!make_context()) return 1;
    const int status = ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
    gdn_ctx_destroy(ctx);
    return status;
}
