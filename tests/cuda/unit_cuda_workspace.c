/* SPDX-License-Identifier: Apache-2.0 */
/* fakes: cuda */
/* gdn_workspace_bytes() on the device of fake_cuda.c: the bytes grow, stay within limits and are
 * 0 where gdn.h promises so. */
#include <dlfcn.h>
#include <stdio.h>

#include "fake_cuda.h"
#include "gdn_record.h"
#include "ring2.h"

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
    int64_t B, T, K, V;
    int32_t dtype, state;
    gdn_batch batch;
};

static gdn_rule_args rule_of(const struct rule *r)
{
    gdn_rule_args a = gdn_rule_args_init();
    a.q = fake(r->dtype, 4, r->B, r->T, 2, r->K);
    a.k = fake(r->dtype, 4, r->B, r->T, 2, r->K);
    a.v = fake(r->dtype, 4, r->B, r->T, H, r->V);
    a.out = fake(r->dtype, 4, r->B, r->T, H, r->V);
    a.state = fake(r->state, 4, r->B, H, r->V, r->K);
    if (is_q8(r->state)) a.state_scales = fake(GDN_F32, 3, r->B, H, r->V, 0);
    if (r->batch.checkpoint_every) {
        a.checkpoints = fake(r->state, 4, 99, H, r->V, r->K);
        if (is_q8(r->state)) a.checkpoint_scales = fake(GDN_F32, 3, 99, H, r->V, 0);
    }
    a.norm = GDN_NORM_L2;
    a.batch = &r->batch;
    return a;
}

/* Segments with K = V = 128 on an H100, whose multiprocessors the driver has. */
enum { SEGMENTS_MOST = 83 << 20 };

/* float32 states of B sequences and their checkpoints. */
static size_t state_bytes(const struct rule *r)
{
    const int64_t every = r->batch.checkpoint_every;
    return (size_t)(4 * H * r->K * r->V * (r->B + (every ? r->B * r->T / every : 0)));
}

static void prefill_is_bounded(void)
{
    static const int64_t sizes[][2] = { { 64, 64 }, { 128, 128 }, { 72, 104 } };
    static const int64_t batches[][2] = { { 1, 9 },    { 3, 131 },     { 1, 8192 },
                                          { 40, 500 }, { 1, 1 << 20 }, { 0, 100 } };
    int n_segments = 0;
    for (int i = 0; i < 3 * 6 * 3 * 2; i++) {
        const int64_t *d = sizes[i % 3], *b = batches[i / 3 % 6];
        struct rule r = { b[0], b[1], d[0], d[1], i / 18 % 3, GDN_F32, gdn_batch_init() };
        r.batch.checkpoint_every = i / 54 ? 100 : 0;
        gdn_rule_args a = rule_of(&r);
        const size_t bytes = bytes_of(GDN_OP_PREFILL, &a);
        CHECK(bytes <= SEGMENTS_MOST, "case %d: %zu bytes", i, bytes);
        n_segments += bytes > 0;
        a.flags = GDN_EXACT;
        CHECK(bytes_of(GDN_OP_PREFILL, &a) == 0, "case %d: exact", i);
        r.state = GDN_I8, a = rule_of(&r);
        const size_t q8 = bytes_of(GDN_OP_PREFILL, &a), more = state_bytes(&r);
        CHECK(q8 >= more && q8 <= more + SEGMENTS_MOST, "case %d: %zu bytes of 8 bits", i, q8);
    }
    CHECK(n_segments > 0, "no case has segments");
}

/* Rows that a tensor map cannot describe have kernels whose records grow with the tokens. */
static void alignment_counts(void)
{
    enum { RECORD = 12064, CHUNKS = 8192 / 64 };
    const struct rule r = { 1, 8192, 128, 128, GDN_BF16, GDN_F32, gdn_batch_init() };
    gdn_rule_args a = rule_of(&r);
    CHECK(bytes_of(GDN_OP_PREFILL, &a) > 0, "no segments");
    a.flags = GDN_BATCH_INVARIANT;
    CHECK(bytes_of(GDN_OP_PREFILL, &a) == 0, "whole sequences");
    a.q.data = (char *)a.q.data + 2;
    const size_t bytes = bytes_of(GDN_OP_PREFILL, &a), least = (size_t)H * CHUNKS * RECORD;
    CHECK(bytes >= least && bytes < least + 4096, "%zu bytes of rows at odd addresses", bytes);
}

static void trees_alone_count(void)
{
    static const int64_t sizes[] = { 64, 100, 256 };
    for (int i = 0; i < 3 * 2 * 5; i++) {
        size_t less = 0;
        for (int64_t T = 4; T <= 4096; T *= 8) {
            struct rule r = { i / 3 % 2 ? 200 : 1, T, sizes[i % 3], 64, GDN_BF16, i / 6,
                              gdn_batch_init() };
            gdn_rule_args a = rule_of(&r);
            CHECK(bytes_of(GDN_OP_DECODE, &a) == 0, "case %d: a chain", i);
            r.batch.parents = fake(GDN_I32, 2, r.B, T, 0, 0);
            const size_t more = bytes_of(GDN_OP_DECODE, &a);
            CHECK(more > less, "case %d: %zu bytes of a longer tree, %zu", i, more, less);
            less = more;
        }
    }
}

/* ---- Convolution, step, layer ---- */

static void conv_in_place_alone_counts(void)
{
    for (int i = 0; i < 4 * 7 * 2; i++) {
        const int64_t B = 1 + i % 4, W = 2 + i / 4 % 7, D = 96;
        const bool packed = i / 28;
        gdn_batch batch = gdn_batch_init();
        batch.cu_seqlens = fake(GDN_I32, 1, B + 1, 0, 0, 0);
        size_t less = 0;
        for (int64_t T = 500; T < 1 << 20; T *= 8) {
            gdn_conv1d_args a = gdn_conv1d_args_init();
            a.x = packed ? fake(GDN_BF16, 2, T, D, 0, 0) : fake(GDN_BF16, 3, B, T, D, 0);
            a.weight = fake(GDN_BF16, 2, D, W, 0, 0);
            a.state = fake(GDN_BF16, 3, B, D, W - 1, 0);
            a.batch = packed ? &batch : NULL;
            a.out = a.x;
            const size_t more = bytes_of(GDN_OP_CONV1D, &a);
            CHECK(more > less, "case %d: %zu bytes of more tokens, %zu", i, more, less);
            less = more;
            a.out.data = (char *)a.x.data + ((size_t)1 << 39);
            CHECK(bytes_of(GDN_OP_CONV1D, &a) == 0, "case %d: not in place", i);
        }
    }
}

enum { HK = 2, K = 64, V = 56, D = 2 * HK * K + H * V, HIDDEN = 96 };

/* Returns the bytes of a step with trees, which may run in several launches. */
static size_t step_bytes(int32_t A, int64_t T, gdn_pad_policy policy)
{
    const int64_t B = 5;
    gdn_batch batch = gdn_batch_init();
    batch.pad_policy = policy;
    batch.parents = fake(GDN_I32, 2, B, T, 0, 0);
    gdn_step_args a = gdn_step_args_init();
    a.x = fake(A, 3, B, T, D, 0), a.out = fake(A, 4, B, T, H, V);
    a.a = fake(A, 3, B, T, H, 0), a.b = fake(A, 3, B, T, H, 0);
    a.conv_weight = fake(A, 2, D, 4, 0, 0), a.A_log = fake(A, 1, H, 0, 0, 0);
    a.conv_state = fake(A, 3, B, D, 3, 0), a.state = fake(A, 4, B, H, V, K);
    a.norm_weight = fake(A, 1, V, 0, 0, 0), a.batch = &batch;
    a.n_key_heads = HK, a.n_value_heads = H, a.key_head_dim = K, a.value_head_dim = V;
    return bytes_of(GDN_OP_STEP, &a);
}

static void steps_grow(void)
{
    for (int i = 0; i < 3 * 2; i++) {
        const gdn_pad_policy policy = i / 3 ? GDN_PAD_KEEP : GDN_PAD_ZERO;
        const size_t one = step_bytes(i % 3, 1, policy), more = step_bytes(i % 3, 7, policy);
        CHECK(one > 0 && more > one, "case %d: %zu bytes of a token, %zu of seven", i, one, more);
    }
}

/* A layer whose weights have another dtype than its activations, so that cuBLAS computes no product
 * and takes no scratch. */
static gdn_block_args block_of(const struct rule *r)
{
    gdn_block_args a = gdn_block_args_init();
    a.hidden = fake(r->dtype, 3, r->B, r->T, HIDDEN, 0);
    a.out = fake(r->dtype, 3, r->B, r->T, HIDDEN, 0);
    a.in_proj_qkvz = fake(GDN_F32, 2, D + H * V, HIDDEN, 0, 0);
    a.in_proj_ba = fake(GDN_F32, 2, 2 * H, HIDDEN, 0, 0);
    a.out_proj = fake(GDN_F32, 2, HIDDEN, H * V, 0, 0);
    a.conv_weight = fake(GDN_F32, 2, D, 4, 0, 0);
    a.A_log = fake(GDN_F32, 1, H, 0, 0, 0);
    a.dt_bias = fake(GDN_F32, 1, H, 0, 0, 0);
    a.norm_weight = fake(GDN_F32, 1, V, 0, 0, 0);
    a.conv_state = fake(r->dtype, 3, r->B, D, 3, 0);
    a.state = fake(r->state, 4, r->B, H, V, K);
    if (is_q8(r->state)) a.state_scales = fake(GDN_F32, 3, r->B, H, V, 0);
    a.n_key_heads = HK, a.n_value_heads = H, a.key_head_dim = K, a.value_head_dim = V;
    a.batch = &r->batch;
    return a;
}

static void blocks_grow(void)
{
    for (int i = 0; i < 2 * 5 * 2; i++) {
        size_t less = 0;
        for (int64_t T = 1; T < 30000; T *= 70) {
            struct rule r = { 1 + i % 2 * 4, T, K, V, GDN_BF16, i / 2 % 5, gdn_batch_init() };
            r.batch.pad_policy = i / 10 ? GDN_PAD_KEEP : GDN_PAD_ZERO;
            const gdn_block_args a = block_of(&r);
            const size_t more = bytes_of(GDN_OP_BLOCK, &a);
            CHECK(more > less, "case %d: %zu bytes of more tokens, %zu", i, more, less);
            less = more;
        }
    }
}

/* A layer's workspace has room for the rule's; with GDN_EXACT the rule needs none. */
static void blocks_have_the_rules_bytes(void)
{
    static const int64_t sizes[][2] = { { 2, 300 }, { 1, 8192 } };
    for (int i = 0; i < 2 * 2 * 2; i++) {
        const int64_t *n = sizes[i % 2];
        const struct rule r = {
            n[0], n[1], K, V, i / 2 % 2 ? GDN_F16 : GDN_BF16, GDN_F32, gdn_batch_init()
        };
        gdn_block_args block = block_of(&r);
        gdn_rule_args a = rule_of(&r);
        a.g = fake(GDN_F32, i / 4 ? 4 : 3, r.B, r.T, H, K);
        if (i / 4) { /* KDA */
            block.in_proj_qkvz.data = block.in_proj_ba.data = NULL;
            block.in_proj_qkv = fake(GDN_F32, 2, D, HIDDEN, 0, 0);
            block.in_proj_z = fake(GDN_F32, 2, H * V, HIDDEN, 0, 0);
            block.in_proj_b = fake(GDN_F32, 2, H, HIDDEN, 0, 0);
            block.in_proj_a = fake(GDN_F32, 2, H * K, HIDDEN, 0, 0);
            block.dt_bias = fake(GDN_F32, 2, H, K, 0, 0);
        }
        const size_t all = bytes_of(GDN_OP_BLOCK, &block), rule = bytes_of(GDN_OP_PREFILL, &a);
        block.flags = GDN_EXACT;
        const size_t rest = bytes_of(GDN_OP_BLOCK, &block);
        CHECK(all - rest == rule, "case %d: %zu bytes, wanted %zu", i, all - rest, rule);
        CHECK(rule > 0 || i / 4 == 0, "case %d: KDA needs no bytes", i);
    }
}

/* ---- Others ---- */

static void copies_and_records_need_none(void)
{
    gdn_state_copy_args s = gdn_state_copy_args_init();
    s.from_pool = fake(GDN_F32, 4, 99, H, V, K), s.to_pool = fake(GDN_BF16, 4, 99, H, V, K);
    CHECK(bytes_of(GDN_OP_STATE_COPY, &s) == 0, "state_copy");
    gdn_record_fold_args f = gdn_record_fold_args_init();
    f.state = s.from_pool, f.record_k = fake(GDN_BF16, 4, 99, 8, HK, K);
    f.record_u = fake(GDN_F32, 4, 99, 8, H, V), f.record_g = fake(GDN_F32, 3, 99, 8, H, 0);
    f.record_count = fake(GDN_I32, 1, 99, 0, 0, 0);
    CHECK(bytes_of(GDN_OP_RECORD_FOLD, &f) == 0, "record_fold");
    gdn_record_commit_args c = gdn_record_commit_args_init();
    c.record_k = f.record_k, c.record_u = f.record_u, c.record_g = f.record_g;
    c.record_count = f.record_count, c.n_accepted = fake(GDN_I32, 1, 99, 0, 0, 0);
    CHECK(bytes_of(GDN_OP_RECORD_COMMIT, &c) == 0, "record_commit");
}

static void rows_need_none(void)
{
    gdn_gates_args g = gdn_gates_args_init();
    g.a = fake(GDN_BF16, 2, 99, H, 0, 0), g.g = fake(GDN_F32, 2, 99, H, 0, 0);
    g.A_log = fake(GDN_F32, 1, H, 0, 0, 0);
    CHECK(bytes_of(GDN_OP_GATES, &g) == 0, "gates");
    gdn_l2norm_args l = gdn_l2norm_args_init();
    l.x = fake(GDN_BF16, 2, 99, V, 0, 0), l.out = fake(GDN_BF16, 2, 99, V, 0, 0);
    CHECK(bytes_of(GDN_OP_L2NORM, &l) == 0, "l2norm");
    gdn_rmsnorm_gated_args r = gdn_rmsnorm_gated_args_init();
    r.x = l.x, r.out = l.out;
    CHECK(bytes_of(GDN_OP_RMSNORM_GATED, &r) == 0, "rmsnorm_gated");
}

static bool make_context(void)
{
    static char text[512] = "the driver is not the fake one: run this by ctest";
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    struct fake_cuda *driver = library ? dlsym(library, "fake_cuda") : NULL;
    gdn_options o = gdn_options_init();
    o.backend = GDN_BACKEND_CUDA;
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
        { "prefill is bounded", prefill_is_bounded },
        { "alignment counts", alignment_counts },
        { "trees alone count", trees_alone_count },
        { "conv1d in place alone counts", conv_in_place_alone_counts },
        { "steps grow", steps_grow },
        { "blocks grow", blocks_grow },
        { "blocks have the rule's bytes", blocks_have_the_rules_bytes },
        { "copies and records need none", copies_and_records_need_none },
        { "rows need none", rows_need_none },
    };
    if (!make_context()) return 1;
    const int status = ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
    gdn_ctx_destroy(ctx);
    return status;
}
