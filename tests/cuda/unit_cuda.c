/* SPDX-License-Identifier: Apache-2.0 */
/* fakes: cuda */
/*
 * The host's part of the CUDA backend, with a driver that computes nothing (fake_cuda.c): when it
 * refuses a context, and which kernels it finds. A call only launches: it does not allocate, copy
 * or wait.
 */
#include <string.h>

#include "fake_ctx.h"
#include "gdn_research.h"

static void refused(const char *what, int device, gdn_status want, const char *needle)
{
    char text[512] = "";
    gdn_ctx *ctx;
    ring2_status(NULL, what, create(device, &ctx, text, sizeof text), want);
    CHECK(!ctx, "%s: there is a context", what);
    CHECK(strstr(text, needle), "%s: \"%s\" does not name %s", what, text, needle);
    CHECK(fake->depth == 0, "%s: %d contexts left on the stack", what, fake->depth);
    CHECK(fake->n_calls[FAKE_cuDevicePrimaryCtxRetain] ==
              fake->n_calls[FAKE_cuDevicePrimaryCtxRelease] +
                  (fake->fails && !strcmp(fake->fails, "cuDevicePrimaryCtxRetain")),
          "%s: the context is not released", what);
}

static void test_refusals(void)
{
    static const char *const first[] = {
        "cuInit",          "cuDeviceGetCount",         "cuDeviceGet",
        "cuDeviceGetName", "cuDevicePrimaryCtxRetain", "cuLibraryLoadData"
    };
    for (size_t i = 0; i < sizeof first / sizeof *first; i++) {
        *fake = hopper;
        fake->fails = first[i];
        refused(first[i], 0, GDN_E_CUDA, "CUDA_ERROR_FAKE (as it was told)");
    }
    *fake = hopper;
    refused("device 1 of 1", 1, GDN_E_ARG, "device: 1, wanted 0 to 0");
    refused("device -1", -1, GDN_E_ARG, "device: -1");
    fake->major = 7, fake->minor = 5;
    refused("an old chip", 0, GDN_E_UNSUPPORTED, "7.5");
    *fake = hopper;
    fake->missing = "cuLibraryGetKernel";
    refused("an old driver", 0, GDN_E_UNSUPPORTED, "cuLibraryGetKernel");
}

/* A small call of a norm, whose memory nothing reads. */
static gdn_l2norm_args norm_args(void *x, void *out)
{
    gdn_l2norm_args a = gdn_l2norm_args_init();
    a.x = gdn_dense(x, GDN_F32, 2, 100, 128, 0, 0);
    a.out = gdn_dense(out, GDN_F32, 2, 100, 128, 0, 0);
    return a;
}

static void test_kernels(void)
{
    static float x[1 << 14], out[1 << 14];
    gdn_ctx *ctx;
    char text[512];
    *fake = hopper;
    fake->lacks = gdn_cuda_kernel_name(GDN_CU_norm_row);
    ring2_status(NULL, "create", create(0, &ctx, text, sizeof text), GDN_OK);
    if (!ctx) return;
    const gdn_l2norm_args a = norm_args(x, out);
    ring2_status(ctx, "a kernel that is not there", gdn_l2norm(ctx, &a), GDN_E_UNSUPPORTED);
    CHECK(strstr(gdn_last_error(ctx), fake->lacks), "\"%s\"", gdn_last_error(ctx));
    CHECK(!strcmp(gdn_isa(ctx), "sm_90"), "isa %s", gdn_isa(ctx));
    gdn_ctx_destroy(ctx);
    CHECK(fake->depth == 0, "%d contexts left on the stack", fake->depth);
    CHECK(fake->n_calls[FAKE_cuLibraryUnload] == fake->n_calls[FAKE_cuLibraryLoadData],
          "%d of %d "
          "images unloaded",
          fake->n_calls[FAKE_cuLibraryUnload], fake->n_calls[FAKE_cuLibraryLoadData]);
}

/* A call whose kernel is loaded pushes the context, launches, and pops it. */
static void test_call(void)
{
    static float x[1 << 14], out[1 << 14];
    gdn_ctx *ctx = hopper_ctx();
    const gdn_l2norm_args a = norm_args(x, out);
    if (!ctx) return;
    ring2_status(ctx, "the first call", gdn_l2norm(ctx, &a), GDN_OK);
    memset(fake->n_calls, 0, sizeof fake->n_calls);
    ring2_status(ctx, "the call", gdn_l2norm(ctx, &a), GDN_OK);
    for (int i = 0; i < FAKE_N_CALLS; i++) {
        const int want = i == FAKE_cuCtxGetCurrent || i == FAKE_cuCtxPushCurrent ||
                         i == FAKE_cuCtxPopCurrent || i == FAKE_cuLaunchKernelEx;
        CHECK(fake->n_calls[i] == want, "driver call %d: %d times, wanted %d", i, fake->n_calls[i],
              want);
    }
    CHECK(!strcmp(fake->kernel, "gdn_norm_row"), "kernel %s", fake->kernel);
    CHECK(fake->launch.grid[0] == 4, "grid %u for 100 rows", fake->launch.grid[0]);
    CHECK(!strcmp(gdn_last_kernel(ctx), "l2norm: gdn_norm_row"), "%s", gdn_last_kernel(ctx));
    fake->fails = "cuLaunchKernelEx";
    ring2_status(ctx, "a launch that fails", gdn_l2norm(ctx, &a), GDN_E_CUDA);
    CHECK(strstr(gdn_last_error(ctx), "cuLaunchKernelEx: CUDA_ERROR_FAKE"), "\"%s\"",
          gdn_last_error(ctx));
    gdn_ctx_destroy(ctx);
}

/* ---- Prefill --------------------------------------------------------------------------------- */

/* A call of gdn_prefill: memory that is never looked at, v's from so many bytes on. */
struct prefill {
    int major, shared_bytes;
    int32_t dtype;
    int64_t K, V, offset;
    const char *kernel; /* that shall take it */
};

static gdn_rule_args prefill_args(const struct prefill *p)
{
    enum { N = 70, HK = 2, HV = 4 };
    static _Alignas(64) char memory[4][N * HV * 256 * 4 + 64];
    gdn_rule_args a = gdn_rule_args_init();
    a.q = gdn_dense(memory[0], p->dtype, 3, N, HK, p->K, 0);
    a.k = gdn_dense(memory[1], p->dtype, 3, N, HK, p->K, 0);
    a.v = gdn_dense(memory[2] + p->offset, p->dtype, 3, N, HV, p->V, 0);
    a.out = gdn_dense(memory[3], p->dtype, 3, N, HV, p->V, 0);
    return a;
}

/* Hopper's own kernels take what a tensor map can describe. */
static void test_prefill(void)
{
    enum { MOST = 232448 };
    static const struct prefill calls[] = {
        { 9, MOST, GDN_BF16, 128, 128, 0, "prefill: gdn_prefill_sm90_cluster_BF16" },
        { 9, MOST, GDN_F16, 128, 128, 0, "prefill: gdn_prefill_sm90_cluster_F16" },
        { 9, MOST, GDN_BF16, 64, 64, 16, "prefill: gdn_prefill_sm90_k64_BF16" },
        { 9, MOST, GDN_F16, 8, 64, 0, "prefill: gdn_prefill_sm90_k64_F16" },
        { 9, MOST, GDN_BF16, 72, 64, 0, "prefill: gdn_prefill_sm90_cluster_BF16" },
        { 9, MOST, GDN_BF16, 64, 72, 0, "prefill: gdn_prefill_sm90_cluster_BF16" },
        { 9, MOST, GDN_BF16, 64, 192, 0, "prefill: gdn_prefill_sm90_cluster_BF16" },
        { 9, MOST, GDN_F16, 8, 120, 0, "prefill: gdn_prefill_sm90_cluster_F16" },
        { 9, MOST, GDN_F32, 128, 128, 0, "prefill: gdn_prefill_general_f32_128" },
        { 9, MOST, GDN_BF16, 60, 64, 0,
          "prefill: gdn_prefill_portable_chunks_BF16 gdn_prefill_portable_scan64_BF16" },
        { 9, MOST, GDN_BF16, 64, 60, 0,
          "prefill: gdn_prefill_portable_chunks_BF16 gdn_prefill_portable_scan64_BF16" },
        { 9, MOST, GDN_BF16, 136, 128, 0, "prefill: gdn_prefill_sm90_k256_BF16" },
        { 9, MOST, GDN_BF16, 128, 136, 0, "prefill: gdn_prefill_sm90_cluster_BF16" },
        { 9, MOST, GDN_F16, 256, 256, 0, "prefill: gdn_prefill_sm90_k256_F16" },
        { 9, MOST, GDN_BF16, 132, 128, 0, "prefill: gdn_prefill_general_bf16_256" },
        { 9, MOST, GDN_BF16, 128, 132, 0,
          "prefill: gdn_prefill_portable_chunks_BF16 gdn_prefill_portable_scan128_BF16" },
        { 9, MOST, GDN_F16, 128, 128, 2,
          "prefill: gdn_prefill_portable_chunks_F16 gdn_prefill_portable_scan128_F16" },
        { 9, 166912, GDN_BF16, 128, 128, 0,
          "prefill: gdn_prefill_portable_chunks_BF16 gdn_prefill_portable_scan128_BF16" },
        { 8, 166912, GDN_BF16, 128, 128, 0,
          "prefill: gdn_prefill_portable_chunks_BF16 gdn_prefill_portable_scan128_BF16" },
        { 10, MOST, GDN_BF16, 128, 128, 0,
          "prefill: gdn_prefill_portable_chunks_BF16 gdn_prefill_portable_scan128_BF16" },
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        const gdn_rule_args a = prefill_args(&calls[i]);
        char text[512];
        gdn_ctx *ctx;
        *fake = hopper;
        fake->major = calls[i].major;
        fake->shared_bytes = calls[i].shared_bytes;
        ring2_status(NULL, "create", create(0, &ctx, text, sizeof text), GDN_OK);
        if (!ctx) return;
        ring2_status(ctx, "the call", gdn_prefill(ctx, &a), GDN_OK);
        CHECK(!strcmp(gdn_last_kernel(ctx), calls[i].kernel), "call %d: %s, wanted %s", (int)i,
              gdn_last_kernel(ctx), calls[i].kernel);
        gdn_ctx_destroy(ctx);
    }
}

/* A wide block each if there is no room for as many clusters at once. Long rows are an exception,
 * if a third round of clusters has little to do for them. 132 processors, 4 heads a row. */
static void test_rounds(void)
{
    static const struct prefill of = { .dtype = GDN_BF16, .K = 128, .V = 128 };
    static const struct {
        int64_t B, T;
        const char *kernel;
    } calls[] = {
        { 1, 1, "prefill: gdn_prefill_sm90_cluster_BF16" },
        { 16, 1, "prefill: gdn_prefill_sm90_cluster_BF16" },
        { 17, 1, "prefill: gdn_prefill_sm90_wide_BF16" },
        { 34, 1, "prefill: gdn_prefill_sm90_wide_BF16" },
        { 17, 8192, "prefill: gdn_prefill_sm90_wide_BF16" },
        { 33, 8192, "prefill: gdn_prefill_sm90_wide_BF16" },
        { 34, 8192, "prefill: gdn_prefill_sm90_cluster_BF16" },
        { 50, 8192, "prefill: gdn_prefill_sm90_wide_BF16" },
    };
    gdn_ctx *ctx = hopper_ctx();
    if (!ctx) return;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        gdn_rule_args a = prefill_args(&of);
        gdn_tensor *rows[4] = { &a.q, &a.k, &a.v, &a.out };
        for (int t = 0; t < 4; t++)
            *rows[t] = gdn_dense((char *)((uintptr_t)(t + 1) << 40), GDN_BF16, 4, calls[i].B,
                                 calls[i].T, rows[t]->size[1], 128);
        ring2_status(ctx, "the call", gdn_prefill(ctx, &a), GDN_OK);
        CHECK(!strcmp(gdn_last_kernel(ctx), calls[i].kernel), "%d rows of %d: %s, wanted %s",
              (int)calls[i].B, (int)calls[i].T, gdn_last_kernel(ctx), calls[i].kernel);
    }
    gdn_ctx_destroy(ctx);
}

/* A long sequence of few heads takes four kernels, unless the flag for batch-invariant bits is set;
 * in a workspace. */
/* Lines of the log about segments. */
static void count_cuts(void *n, const char *line)
{
    *(int *)n += !strncmp(line, "prefill: segments of ", 21);
}

static void test_segments(void)
{
    enum { N = 32768 };
    const char *at = (const char *)((uintptr_t)1 << 44);
    gdn_ctx *ctx = hopper_ctx();
    gdn_rule_args a = gdn_rule_args_init();
    size_t bytes;
    int n_told = 0;
    if (!ctx) return;
    ctx->options.log = count_cuts;
    ctx->options.log_user = &n_told;
    gdn_tensor *rows[4] = { &a.q, &a.k, &a.v, &a.out };
    for (int i = 0; i < 4; i++)
        *rows[i] = gdn_dense((void *)(at + ((size_t)i << 40)), GDN_BF16, 3, N, 4, 128, 0);
    ring2_status(ctx, "bytes", gdn_workspace_bytes(ctx, GDN_OP_PREFILL, &a, &bytes), GDN_OK);
    CHECK(bytes > 0 && bytes <= 5 * 132 * (4 * 128 * 256 + 8) + 192, "%zu bytes", bytes);
    ring2_status(ctx, "the call", gdn_prefill(ctx, &a), GDN_OK);
    CHECK(!strncmp(gdn_last_kernel(ctx),
                   "prefill: gdn_prefill_sm90_cluster_segment_BF16 "
                   "gdn_prefill_sm90_summary_BF16 gdn_prefill_sm90_segments_states",
                   97),
          "%s", gdn_last_kernel(ctx));
    ring2_status(ctx, "again", gdn_prefill(ctx, &a), GDN_OK);
    CHECK(n_told == 1, "the log was told %d times of segments, wanted once", n_told);
    a.flags = GDN_BATCH_INVARIANT;
    ring2_status(ctx, "bytes", gdn_workspace_bytes(ctx, GDN_OP_PREFILL, &a, &bytes), GDN_OK);
    CHECK(bytes == 0, "%zu bytes for a whole sequence", bytes);
    ring2_status(ctx, "the call", gdn_prefill(ctx, &a), GDN_OK);
    CHECK(!strcmp(gdn_last_kernel(ctx), "prefill: gdn_prefill_sm90_cluster_BF16"), "%s",
          gdn_last_kernel(ctx));
    gdn_ctx_destroy(ctx);
}

/* Heads whose columns are whole warps, of 16 each, but not whole blocks of two or four of them: no
 * warp is beyond. Enough sequences for a device; every state kept, or one. */
static void test_columns(void)
{
    enum { B = 128, H = 8, K = 64, T = 3 };
    const char *at = (const char *)((uintptr_t)1 << 44);
    gdn_ctx *ctx = hopper_ctx();
    if (!ctx) return;
    for (int V = 16; V <= 128; V += 16) {
        gdn_rule_args a = gdn_rule_args_init();
        gdn_batch b = gdn_batch_init();
        gdn_tensor *rows[4] = { &a.q, &a.k, &a.v, &a.out };
        for (int i = 0; i < 4; i++)
            *rows[i] =
                gdn_dense((void *)(at + ((size_t)i << 40)), GDN_BF16, 4, B, T, H, i < 2 ? K : V);
        a.state = gdn_dense((void *)(at + ((size_t)4 << 40)), GDN_BF16, 4, B * T, H, V, K);
        b.read_slots = gdn_dense((void *)(at + ((size_t)5 << 40)), GDN_I32, 1, B, 0, 0, 0);
        b.write_slots = gdn_dense((void *)(at + ((size_t)6 << 40)), GDN_I32, 2, B, T, 0, 0);
        b.write = GDN_WRITE_EACH;
        a.batch = &b;
        ring2_status(ctx, "every state", gdn_decode(ctx, &a), GDN_OK);
        CHECK(!strcmp(gdn_last_kernel(ctx), "decode: gdn_decode_window_vk_BF16_64"), "%s",
              gdn_last_kernel(ctx));
        CHECK(fake->launch.grid[0] * (fake->launch.block[0] / 32) * 16 == (unsigned)(H * V),
              "V %d: %u blocks of %u threads", V, fake->launch.grid[0], fake->launch.block[0]);
        b.write_slots = gdn_dense((void *)(at + ((size_t)6 << 40)), GDN_I32, 1, B, 0, 0, 0);
        b.write = GDN_WRITE_FINAL;
        ring2_status(ctx, "one state", gdn_decode(ctx, &a), GDN_OK);
        CHECK(fake->launch.grid[0] * (fake->launch.block[0] / 32) * 16 == (unsigned)(H * V),
              "V %d: %u blocks of %u threads, %s", V, fake->launch.grid[0], fake->launch.block[0],
              gdn_last_kernel(ctx));
    }
    gdn_ctx_destroy(ctx);
}

/* Steps of a call: rows of the states, of a list of slots, its columns (0: it has none), A_log. */
struct far {
    int64_t T, ld, row, column, A_log;
    const char *kernel; /* that shall take it */
};

/* Kernels that count bytes or elements in 32 bits get no call in which they are more. */
static void test_far(void)
{
    enum { B = 40, H = 2, D = 128, P = 3, COLUMNS = 4 };
    static const struct far calls[] = {
        { 1, 256, 1, 0, 1, "decode: gdn_decode_token_vk_F32_BF16_128" },
        { 1, (1 << 21) - 4, 1, 0, 1, "decode: gdn_decode_token_vk_F32_BF16_128" },
        { 1, 1 << 21, 1, 0, 1, "decode: gdn_decode_general_vk_128" },
        { 1, -(1 << 22), 1, 0, 1, "decode: gdn_decode_general_vk_128" },
        { 1, 256, 32768, 0, 1, "decode: gdn_decode_token_vk_F32_BF16_128" },
        { 1, 256, 32769, 0, 1, "decode: gdn_decode_warp_vk_F32_128" },
        { 1, 256, 1, 0, (1 << 29) - 1, "decode: gdn_decode_token_vk_F32_BF16_128" },
        { 1, 256, 1, 0, 1 << 29, "decode: gdn_decode_general_vk_128" },
        { 5, 256, 1, 0, (int64_t)1 << 32, "decode: gdn_decode_general_vk_128" },
        { 3, 256, COLUMNS, 1, 1, "decode: gdn_decode_window_k128_vk_F32_BF16_128" },
        { 3, 256, 16385, 1, 1, "decode: gdn_decode_warp_vk_F32_128" },
        { 3, 256, 1, 1 << 28, 1, "decode: gdn_decode_warp_vk_F32_128" },
    };
    const char *at = (const char *)((uintptr_t)1 << 44);
    gdn_ctx *ctx = hopper_ctx();
    if (!ctx) return;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        const struct far *c = &calls[i];
        gdn_rule_args a = gdn_rule_args_init();
        gdn_batch b = gdn_batch_init();
        gdn_tensor *rows[4] = { &a.q, &a.k, &a.v, &a.out };
        void *data[10];
        for (size_t t = 0; t < 10; t++) data[t] = (void *)(at + (t << 40));
        for (int t = 0; t < 4; t++) *rows[t] = gdn_dense(data[t], GDN_BF16, 4, B, c->T, H, D);
        a.g = gdn_dense(data[4], GDN_F32, 3, B, c->T, H, 0);
        a.A_log = gdn_dense(data[5], GDN_F32, 1, H, 0, 0, 0);
        a.A_log.stride[0] = c->A_log;
        a.gate = GDN_GATE_RAW;
        a.state = gdn_dense(data[6], GDN_F32, 4, P, H, D, D);
        a.state.stride[0] = H * D, a.state.stride[1] = D, a.state.stride[2] = c->ld;
        b.write = GDN_WRITE_NONE;
        b.read_slots = gdn_dense(data[7], GDN_I32, c->column ? 2 : 1, B, COLUMNS, 0, 0);
        b.read_slots.stride[0] = c->row;
        if (c->column) {
            b.read_slots.stride[1] = c->column;
            b.num_accepted_tokens = gdn_dense(data[8], GDN_I32, 1, B, 0, 0, 0);
        }
        a.batch = &b;
        ring2_status(ctx, "the call", gdn_decode(ctx, &a), GDN_OK);
        CHECK(!strcmp(gdn_last_kernel(ctx), c->kernel), "call %d: %s, wanted %s", (int)i,
              gdn_last_kernel(ctx), c->kernel);
    }
    gdn_ctx_destroy(ctx);
}

/* One token of states in slots: few sequences and many (of 132 multiprocessors), states of the
 * inputs' dtype and others, no slots. */
static void test_slots(void)
{
    enum { H = 2, D = 128 };
    static const struct {
        int64_t B;
        int32_t dtype, state;
        bool slots;
        const char *kernel;
    } calls[] = {
        { 1, GDN_BF16, GDN_BF16, true, "decode: gdn_decode_token_slots_BF16_BF16_128" },
        { 528, GDN_F16, GDN_F16, true, "decode: gdn_decode_token_slots_F16_F16_128" },
        { 529, GDN_BF16, GDN_BF16, true, "decode: gdn_decode_token_vk_BF16_BF16_128" },
        { 1, GDN_BF16, GDN_BF16, false, "decode: gdn_decode_token_vk_BF16_BF16_128" },
        { 1, GDN_BF16, GDN_F32, true, "decode: gdn_decode_token_vk_F32_BF16_128" },
    };
    char *at = (char *)((uintptr_t)1 << 44);
    gdn_ctx *ctx = hopper_ctx();
    if (!ctx) return;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        const int64_t B = calls[i].B;
        gdn_rule_args a = gdn_rule_args_init();
        gdn_batch b = gdn_batch_init();
        gdn_tensor *rows[4] = { &a.q, &a.k, &a.v, &a.out };
        for (int t = 0; t < 4; t++)
            *rows[t] = gdn_dense(at + ((int64_t)t << 40), calls[i].dtype, 4, B, 1, H, D);
        a.state = gdn_dense(at + ((int64_t)5 << 40), calls[i].state, 4, B, H, D, D);
        if (calls[i].slots)
            b.read_slots = gdn_dense(at + ((int64_t)6 << 40), GDN_I32, 1, B, 0, 0, 0);
        a.batch = &b;
        ring2_status(ctx, "the call", gdn_decode(ctx, &a), GDN_OK);
        CHECK(!strcmp(gdn_last_kernel(ctx), calls[i].kernel), "call %d: %s", (int)i,
              gdn_last_kernel(ctx));
    }
    gdn_ctx_destroy(ctx);
}

/* A convolution of no channels: nothing is launched, for one token of each row and for many. */
static void test_no_channels(void)
{
    char *at = (char *)((uintptr_t)1 << 44);
    gdn_ctx *ctx = hopper_ctx();
    if (!ctx) return;
    for (int64_t T = 1; T < 100; T += 63) {
        gdn_conv1d_args a = gdn_conv1d_args_init();
        a.x = gdn_dense(at, GDN_BF16, 3, 2, T, 0, 0);
        a.out = gdn_dense(at + 4096, GDN_BF16, 3, 2, T, 0, 0);
        a.weight = gdn_dense(at + 8192, GDN_BF16, 2, 0, 4, 0, 0);
        ring2_status(ctx, "no channels", gdn_conv1d(ctx, &a), GDN_OK);
        a.out = a.x;
        ring2_status(ctx, "no channels, in place", gdn_conv1d(ctx, &a), GDN_OK);
    }
    CHECK(fake->n_calls[FAKE_cuLaunchKernelEx] == 0, "%d launches",
          fake->n_calls[FAKE_cuLaunchKernelEx]);
    gdn_ctx_destroy(ctx);
}

/* Gates of more heads than kernels count are refused, not cut to fewer. */
static void test_many_heads(void)
{
    const int64_t H = ((int64_t)1 << 32) + 5;
    char *at = (char *)((uintptr_t)1 << 44);
    gdn_ctx *ctx = hopper_ctx();
    gdn_chunk_cumsum_args a = gdn_chunk_cumsum_args_init();
    if (!ctx) return;
    a.g = gdn_dense(at, GDN_BF16, 2, 1, H, 0, 0);
    a.out = gdn_dense(at + 4 * H, GDN_BF16, 2, 1, H, 0, 0);
    a.chunk_size = 64;
    ring2_status(ctx, "2^32 + 5 heads", gdn_chunk_cumsum(ctx, &a), GDN_E_UNSUPPORTED);
    CHECK(strstr(gdn_last_error(ctx), "g: 4294967301 heads"), "\"%s\"", gdn_last_error(ctx));
    gdn_ctx_destroy(ctx);
}

/* A dimension of one element, and all of a tensor that has none, may have any strides. */
static void test_any_strides(void)
{
    enum { T = 3, H = 4, D = 128 };
    char *at = (char *)((uintptr_t)1 << 44);
    gdn_ctx *ctx = hopper_ctx();
    gdn_rule_args a = gdn_rule_args_init();
    gdn_l2norm_args n = gdn_l2norm_args_init();
    gdn_gates_args g = gdn_gates_args_init();
    gdn_tensor *const rows[] = { &a.q, &a.k, &a.v, &a.out }, *const none[] = { &n.x, &n.out };
    if (!ctx) return;
    for (int i = 0; i < 4; i++) {
        *rows[i] = gdn_dense(at + (i << 16), GDN_BF16, 4, 1, T, H, D);
        rows[i]->stride[0] = i % 2 ? INT64_MIN : INT64_MAX;
    }
    a.state = gdn_dense(at + (5 << 16), GDN_BF16, 4, 1, H, D, D);
    a.state.stride[0] = INT64_MIN;
    ring2_status(ctx, "one slot", gdn_decode(ctx, &a), GDN_OK);
    ring2_status(ctx, "one slot", gdn_prefill(ctx, &a), GDN_OK);
    for (int i = 0; i < 2; i++) {
        *none[i] = gdn_dense(at + (i << 16), GDN_F32, 4, 3, 5, 0, D);
        none[i]->stride[0] = INT64_MAX, none[i]->stride[1] = INT64_MIN;
    }
    ring2_status(ctx, "no lines", gdn_l2norm(ctx, &n), GDN_OK);
    g.b = n.x, g.beta = n.out;
    ring2_status(ctx, "no gates", gdn_gates(ctx, &g), GDN_OK);
    gdn_ctx_destroy(ctx);
}

/* The driver makes a map where the tensor is not that of the call before. */
static void test_maps(void)
{
    static const struct prefill first = { .dtype = GDN_BF16, .K = 128, .V = 128 };
    static const struct prefill moved = { .dtype = GDN_BF16, .K = 128, .V = 128, .offset = 16 };
    static const struct prefill short_q = { .dtype = GDN_BF16, .K = 64, .V = 128 };
    const struct {
        const struct prefill *call;
        int n_maps;
    } calls[] = { { &first, 4 }, { &first, 0 }, { &moved, 1 }, { &short_q, 3 }, { &short_q, 0 } };
    gdn_ctx *ctx = hopper_ctx();
    if (!ctx) return;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        const gdn_rule_args a = prefill_args(calls[i].call);
        memset(fake->n_calls, 0, sizeof fake->n_calls);
        ring2_status(ctx, "the call", gdn_prefill(ctx, &a), GDN_OK);
        CHECK(fake->n_calls[FAKE_cuTensorMapEncodeTiled] == calls[i].n_maps,
              "call %d: %d maps made, wanted %d", (int)i,
              fake->n_calls[FAKE_cuTensorMapEncodeTiled], calls[i].n_maps);
        CHECK(fake->n_calls[FAKE_cuLaunchKernelEx] == 1 && fake->depth == 0, "call %d", (int)i);
    }
    const gdn_rule_args a = prefill_args(&moved);
    fake->fails = "cuTensorMapEncodeTiled";
    ring2_status(ctx, "a map that fails", gdn_prefill(ctx, &a), GDN_E_CUDA);
    CHECK(strstr(gdn_last_error(ctx), "cuTensorMapEncodeTiled: CUDA_ERROR_FAKE"), "\"%s\"",
          gdn_last_error(ctx));
    CHECK(fake->depth == 0, "%d contexts left on the stack", fake->depth);
    fake->fails = NULL;
    memset(fake->n_calls, 0, sizeof fake->n_calls);
    ring2_status(ctx, "the call after it", gdn_prefill(ctx, &a), GDN_OK);
    CHECK(fake->n_calls[FAKE_cuTensorMapEncodeTiled] == 3, "%d maps made after one that failed",
          fake->n_calls[FAKE_cuTensorMapEncodeTiled]);
    gdn_ctx_destroy(ctx);
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "cuda: refusals", test_refusals },
        { "cuda: kernels", test_kernels },
        { "cuda: a call launches and no more", test_call },
        { "cuda: the kernels of prefill", test_prefill },
        { "prefill on Hopper by rounds", test_rounds },
        { "prefill on Hopper in segments", test_segments },
        { "decode: no warp beyond V", test_columns },
        { "decode: steps beyond 32 bits", test_far },
        { "decode: slots of few sequences", test_slots },
        { "conv1d: no channels", test_no_channels },
        { "chunk_cumsum: more heads than 2^31", test_many_heads },
        { "cuda: any strides where there are no steps", test_any_strides },
        { "cuda: maps of tensors", test_maps },
    };
    return fake_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
