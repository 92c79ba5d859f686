/* SPDX-License-Identifier: Apache-2.0 */
/* fakes: cuda */
/*
 * Chunks with a gate per channel: which calls they take, why not others, and how many windows they
 * launch.
 */
#include <string.h>

#include "cuda/prefill/forms.h"
#include "fake_ctx.h"

enum { H = 4, V = 64 };

/* A padded call that is taken. */
static struct gdn_cu_rule make(int64_t B, int64_t T, int K)
{
    static _Alignas(64) char memory[64];
    const struct gdn_rows rows = {
        .data = memory, .dtype = GDN_BF16, .batch = T * H * 256, .token = H * 256, .head = 256
    };
    struct gdn_cu_rule r = { .q = rows, .k = rows, .v = rows, .g = rows, .out = rows };
    r.batch = (struct gdn_cu_batch){ .B = B, .T = T, .N = B * T, .padded = true };
    r.batch.read_pool = r.batch.write_pool = r.batch.checkpoint_pool = -1;
    r.Hq = r.Hk = r.Hv = r.H = H;
    r.K = K, r.V = V;
    r.family = (struct gdn_family){ .is = true, .g_rows = true, .updates = 1, .g_channel = 2 };
    return r;
}

static void refused(gdn_ctx *ctx, const struct gdn_cu_rule *r, const char *why)
{
    const char *said = gdn_cuda_prefill_channels_why_not(ctx, r);
    CHECK(said && !strcmp(said, why), "\"%s\", wanted \"%s\"", said ? said : "taken", why);
}

static void test_calls(void)
{
    gdn_ctx *ctx = hopper_ctx();
    if (!ctx) return;
    const struct gdn_cu_rule valid = make(1, 70, 128);
    struct gdn_cu_rule r = valid;
    CHECK(!gdn_cuda_prefill_channels_why_not(ctx, &r), "refused: %s",
          gdn_cuda_prefill_channels_why_not(ctx, &r));
    r.family.is = false, refused(ctx, &r, "a gate is one number per head");
    r = valid, r.family.updates = 2, refused(ctx, &r, "a token has several updates");
    r = valid, r.v.dtype = GDN_F32, refused(ctx, &r, "q, k and v are float32");
    r = valid, r.q.dtype = GDN_F16, refused(ctx, &r, "q, k, v and out differ in dtype");
    r = valid, r.K = 130, refused(ctx, &r, "K is above 128");
    r = valid, r.K = 63, refused(ctx, &r, "K is odd, or V is not a multiple of 8");
    r = valid, r.V = 60, refused(ctx, &r, "K is odd, or V is not a multiple of 8");
    r = valid, r.k.token += 2, refused(ctx, &r, "q or k is not aligned to 4 bytes");
    r = valid, r.v.token += 8, refused(ctx, &r, "v or out is not aligned to 16 bytes");
    r = valid, r.batch.checkpoint_pool = 1, r.batch.checkpoint_every = 96;
    refused(ctx, &r, "checkpoints are not at multiples of 64 tokens");
    r.batch.checkpoint_every = 192;
    CHECK(!gdn_cuda_prefill_channels_why_not(ctx, &r), "checkpoints are refused");
    r = valid, r.to.data = r.q.data, r.to.gap = 2;
    refused(ctx, &r, "a state has 8 bits, or no stride of 1");
    gdn_ctx_destroy(ctx);
}

/* A window has about 256 KiB of records for each of 132 multiprocessors: 520 of K = 128. By
 * Hopper's scan it has up to twice as many, if there are two windows. */
static void test_windows(void)
{
    static const struct {
        int64_t B, T;
        int K, launches;
    } calls[] = { { 1, 64, 128, 2 },    { 1, 8320, 128, 2 }, { 1, 8384, 128, 4 },
                  { 4, 2000, 128, 2 },  { 4, 2112, 128, 4 }, { 200, 64, 128, 4 },
                  { 1, 8384, 64, 2 },   { 200, 100, 64, 4 }, { 200, 100, 128, 4 },
                  { 1, 25600, 128, 4 }, { 1, 44800, 128, 6 } };
    gdn_ctx *ctx = hopper_ctx();
    if (!ctx) return;
    for (size_t n = 0; n < 2 * (sizeof calls / sizeof *calls); n++) {
        static _Alignas(64) char memory[64];
        const size_t i = n / 2;
        struct gdn_cu_rule r = make(calls[i].B, calls[i].T, calls[i].K);
        if (n % 2) r.V = 128;
        const struct gdn_channels_windows w = gdn_cuda_prefill_channels_cut(ctx, &r);
        struct gdn_cuda_ran ran = { .n = 0 };
        const int *launches = &fake->n_calls[FAKE_cuLaunchKernelEx], before = *launches;
        ring2_status(ctx, "launch", gdn_cuda_prefill_channels(ctx, &r, &w, memory, &ran, NULL),
                     GDN_OK);
        CHECK(*launches - before == calls[i].launches, "call %d: %d launches, wanted %d", (int)i,
              *launches - before, calls[i].launches);
        CHECK(ran.n == 2, "call %d: %d kernels", (int)i, ran.n);
        const bool few = 4 * calls[i].B * r.H <= 132;
        const enum gdn_kernel_id scan = calls[i].K <= 64 ? GDN_CU_prefill_channels_scan_BF16_64
                                        : few ? GDN_CU_prefill_channels_scan_few_sm90_BF16
                                              : GDN_CU_prefill_channels_scan_sm90_BF16;
        CHECK(ran.kernels[1] == scan, "call %d: not the scan of its K and heads", (int)i);
    }
    gdn_ctx_destroy(ctx);
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "calls", test_calls },
        { "windows", test_windows },
    };
    return fake_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
