/* SPDX-License-Identifier: Apache-2.0 */
/* fakes: cuda */
/*
 * Device code with the driver of fake_cuda.c: what is loaded when, what a load that fails or is
 * slow says, which code a device runs. A device that takes no code but PTX runs every op.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda/driver/load.h"
#include "fake_ctx.h"
#include "gdn_train.h"
#include "ring2_calls.h"

static char lines[4096]; /* of the log */

static void take_line(void *user, const char *line)
{
    const size_t used = strlen(lines);
    (void)user;
    snprintf(lines + used, sizeof lines - used, "%s\n", line);
}

/* A device of that compute capability, 10 major + minor. */
static void pretend(int capability, int from_ptx)
{
    *fake = hopper;
    fake->major = capability / 10;
    fake->minor = capability % 10;
    fake->from_ptx = from_ptx;
    lines[0] = 0;
}

static gdn_ctx *make(void)
{
    char text[512] = "";
    gdn_ctx *ctx;
    gdn_options o = gdn_options_init();
    o.backend = GDN_BACKEND_CUDA;
    o.log = take_line;
    o.error_text = text;
    o.error_text_bytes = sizeof text;
    ring2_status(NULL, "create", gdn_ctx_create(&o, &ctx), GDN_OK);
    if (!ctx) ring2_fail("%s", text);
    return ctx;
}

/* ---- Loads --------------------------------------------------------------------------------- */

/* A context loads one image. The first launch of a kernel finds the kernel, and loads its image
 * if the device has code for it. */
static void test_loads(void)
{
    static const struct {
        int capability, from_ptx;
    } devices[] = {
        { 80, 0 }, { 86, 0 }, { 90, 0 }, { 90, 1 }, { 100, 0 }, { 110, 1 }, { 120, 0 }
    };
    for (size_t d = 0; d < sizeof devices / sizeof *devices; d++) {
        int n_images = 0, n_kernels = 0;
        pretend(devices[d].capability, devices[d].from_ptx);
        gdn_ctx *ctx = make();
        const bool hopper_code = devices[d].capability == 90 && !devices[d].from_ptx;
        if (!ctx) return;
        CHECK(fake->n_calls[FAKE_cuLibraryLoadData] == 1, "a context loads %d images",
              fake->n_calls[FAKE_cuLibraryLoadData]);
        CHECK(gdn_cuda_runs_sm_90a(ctx->cuda) == hopper_code, "device %d: code", (int)d);
        for (int i = 0; i < GDN_N_IMAGES; i++) n_images += !gdn_images[i].only || hopper_code;
        for (int i = 0; i < GDN_N_KERNELS; i++) {
            const enum gdn_kernel_id kernel = (enum gdn_kernel_id)i;
            const bool has = !gdn_images[gdn_cuda_kernel_image(kernel)].only || hopper_code;
            n_kernels += has;
            CHECK(gdn_cuda_has_kernel(ctx, kernel) == has, "device %d: %s", (int)d,
                  gdn_cuda_kernel_name(kernel));
            ring2_status(ctx, "load", gdn_cuda_load(ctx, kernel), GDN_OK);
            CHECK(has == (ctx->cuda->kernels[i] != NULL), "device %d: %s", (int)d,
                  gdn_cuda_kernel_name(kernel));
        }
        CHECK(fake->n_calls[FAKE_cuLibraryLoadData] == n_images, "%d images loaded, wanted %d",
              fake->n_calls[FAKE_cuLibraryLoadData], n_images);
        CHECK(fake->n_calls[FAKE_cuLibraryGetKernel] == n_kernels + 1, "%d kernels, wanted %d",
              fake->n_calls[FAKE_cuLibraryGetKernel], n_kernels + 1);
        gdn_ctx_destroy(ctx);
        CHECK(fake->n_calls[FAKE_cuLibraryUnload] == n_images, "%d images unloaded of %d",
              fake->n_calls[FAKE_cuLibraryUnload], n_images);
    }
}

/* A small call; what it points to is never looked at. */
static gdn_l2norm_args norm_args(void)
{
    char *at = (char *)((uintptr_t)1 << 44);
    gdn_l2norm_args a = gdn_l2norm_args_init();
    a.x = gdn_dense(at, GDN_F32, 2, 100, 128, 0, 0);
    a.out = gdn_dense(at + 65536, GDN_F32, 2, 100, 128, 0, 0);
    return a;
}

/* The first call that needs an image loads it, even while the driver forbids that in a capture; the
 * second one launches alone. */
static void test_on_use(void)
{
    const gdn_l2norm_args a = norm_args();
    pretend(90, 0);
    gdn_ctx *ctx = make();
    if (!ctx) return;
    for (int call = 0; call < 3; call++) {
        memset(fake->n_calls, 0, sizeof fake->n_calls);
        fake->fails = call == 0 ? "cuLibraryLoadData" : NULL;
        ring2_status(ctx, "a norm", gdn_l2norm(ctx, &a), call == 0 ? GDN_E_CUDA : GDN_OK);
        CHECK(call || strstr(gdn_last_error(ctx), "cuLibraryLoadData: CUDA_ERROR_FAKE"), "\"%s\"",
              gdn_last_error(ctx));
        CHECK(call || strstr(gdn_last_error(ctx), "norm"), "\"%s\"", gdn_last_error(ctx));
        CHECK(fake->n_calls[FAKE_cuLibraryLoadData] == (call < 2), "call %d: %d images loaded",
              call, fake->n_calls[FAKE_cuLibraryLoadData]);
        CHECK(fake->n_calls[FAKE_cuThreadExchangeStreamCaptureMode] == 2 * (call < 2) &&
                  fake->capture_mode == 0,
              "call %d: mode %d after %d changes", call, fake->capture_mode,
              fake->n_calls[FAKE_cuThreadExchangeStreamCaptureMode]);
        CHECK(fake->n_calls[FAKE_cuLaunchKernelEx] == (call > 0), "call %d: %d launches", call,
              fake->n_calls[FAKE_cuLaunchKernelEx]);
    }
    gdn_ctx_destroy(ctx);
    CHECK(fake->n_calls[FAKE_cuLibraryUnload] == 2, "the images are not unloaded");
}

/* The driver may find only when a kernel is wanted that it cannot compile the image. */
static void test_late_error(void)
{
    static const char *const calls[] = { "cuLibraryGetKernel", "cuKernelSetAttribute" };
    gdn_rule_args a = gdn_rule_args_init();
    char *at = (char *)((uintptr_t)1 << 44);
    gdn_tensor *rows[] = { &a.q, &a.k, &a.v, &a.out };
    for (int i = 0; i < 4; i++)
        *rows[i] = gdn_dense(at + ((int64_t)i << 40), GDN_F32, 3, 70, 2, 64, 0);
    for (int i = 0; i < 2; i++) {
        pretend(90, 0);
        gdn_ctx *ctx = make();
        if (!ctx) return;
        fake->fails = calls[i];
        ring2_status(ctx, calls[i], gdn_prefill(ctx, &a), GDN_E_CUDA);
        CHECK(strstr(gdn_last_error(ctx), calls[i]), "\"%s\"", gdn_last_error(ctx));
        fake->fails = NULL;
        ring2_status(ctx, "again", gdn_prefill(ctx, &a), GDN_OK);
        gdn_ctx_destroy(ctx);
    }
}

/* A build without any code for the device. */
static void test_no_code(void)
{
    static const char *const calls[] = { "cuLibraryLoadData", "cuLibraryGetKernel",
                                         "cuKernelGetAttribute" };
    for (int i = 0; i < 3; i++) {
        char text[512] = "";
        gdn_ctx *ctx;
        pretend(90, 0);
        fake->fails = calls[i], fake->error = 209;
        ring2_status(NULL, calls[i], create(0, &ctx, text, sizeof text), GDN_E_UNSUPPORTED);
        CHECK(strstr(text, "sm_90, this build has code for 80"), "\"%s\"", text);
        CHECK(!ctx && fake->depth == 0, "%s: %d contexts left", calls[i], fake->depth);
    }
}

/* ---- The log ------------------------------------------------------------------------------- */

static void test_log(void)
{
    static const struct {
        int capability, from_ptx, ms;
        const char *code, *load; /* parts of lines of the log; NULL: no line may have one */
    } devices[] = {
        { 80, 0, 0, "sm_80, portable kernels; untested", NULL },
        { 89, 0, 0, "sm_89, portable kernels; untested", NULL },
        { 90, 0, 0, NULL, NULL },
        { 90, 0, 120, NULL, "device: gdn_norm_row took 0.1 s to load\n" },
        { 90, 1, 120, NULL, "took 0.1 s to load: the driver compiled PTX, no code for sm_90\n" },
        { 103, 0, 0, "sm_103, portable kernels; untested", NULL },
        { 110, 1, 120, "portable kernels, which the driver compiles when a call first needs them",
          "took 0.1 s to load: the driver compiled PTX, no code for sm_110\n" },
        { 120, 0, 0, "sm_120, portable kernels; untested", NULL },
    };
    const gdn_l2norm_args a = norm_args();
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        pretend(devices[i].capability, devices[i].from_ptx);
        gdn_ctx *ctx = make();
        if (!ctx) return;
        fake->load_ms = devices[i].ms;
        for (int call = 0; call < 2; call++)
            ring2_status(ctx, "a norm", gdn_l2norm(ctx, &a), GDN_OK);
        const char *code = strstr(lines, "portable kernels"), *load = strstr(lines, "to load");
        CHECK(devices[i].code ? strstr(lines, devices[i].code) != NULL : !code, "device %d: %s",
              (int)i, lines);
        CHECK(devices[i].load ? strstr(lines, devices[i].load) != NULL : !load, "device %d: %s",
              (int)i, lines);
        CHECK(!load || !strstr(load + 1, "to load"), "device %d: twice: %s", (int)i, lines);
        gdn_ctx_destroy(ctx);
    }
}

/* ---- Portable code runs every op ----------------------------------------------------------- */

/* Launches of a device without code for Hopper: no kernel that is for it alone, and none of what
 * its code alone waits for. */
static void check_launch(const char *what)
{
    CHECK(fake->launch.n_attributes == 0, "%s: %s has %u attributes", what, fake->kernel,
          fake->launch.n_attributes);
    for (int i = 0; i < GDN_N_KERNELS; i++) {
        const enum gdn_kernel_id kernel = (enum gdn_kernel_id)i;
        if (gdn_images[gdn_cuda_kernel_image(kernel)].only)
            CHECK(!fake->kernel || strcmp(fake->kernel, gdn_cuda_kernel_name(kernel)),
                  "%s: %s is launched", what, fake->kernel);
    }
}

/* Returns true if the op opens cuBLAS. All its other kernels belong to other ops. */
static bool has_products(int op) { return op == GDN_OP_BLOCK || op == GDN_OP_BLOCK_BACKWARD; }

/* Random calls of every op. */
static void check_random_calls(gdn_ctx *ctx)
{
    struct ring2_draw d;
    ring2_draw_init(&d, false);
    for (int op = 0; op < GDN_N_OPS; op++) {
        int n_ran = 0;
        for (int i = 0; i < 200 && !has_products(op); i++) {
            union ring2_call c;
            gdn_batch batch;
            ring2_draw_call(&d, (gdn_op)op, &c, &batch);
            fake->launch.n_attributes = 0;
            const gdn_status status = gdn_run_op(ctx, (gdn_op)op, &c);
            n_ran += status == GDN_OK;
            CHECK(status == GDN_OK || !strstr(gdn_last_error(ctx), "not for this device"),
                  "op %d: %s", op, gdn_last_error(ctx));
            check_launch(gdn_op_shapes[op].name);
        }
        CHECK(n_ran || has_products(op), "op %d never ran", op);
    }
}

/* Calls that take Hopper's kernels, if the device has them. */
static void check_large_calls(gdn_ctx *ctx)
{
    enum { T = 70, HK = 2, H = 4, D = 128 };
    char *at = (char *)((uintptr_t)1 << 44);
    gdn_rule_args a = gdn_rule_args_init();
    gdn_prefill_backward_args b = gdn_prefill_backward_args_init();
    gdn_tensor *const key[] = { &a.q, &a.k, &b.q, &b.k, &b.dq, &b.dk };
    gdn_tensor *const value[] = { &a.v, &a.out, &b.v, &b.dout, &b.dv };
    for (int dtype = GDN_F32; dtype <= GDN_F16; dtype++) {
        for (int i = 0; i < 6; i++)
            *key[i] = gdn_dense(at + ((int64_t)i << 40), dtype, 3, T, HK, D, 0);
        for (int i = 0; i < 5; i++)
            *value[i] = gdn_dense(at + ((int64_t)(i + 8) << 40), dtype, 3, T, H, D, 0);
        ring2_status(ctx, "prefill", gdn_prefill(ctx, &a), GDN_OK);
        check_launch("prefill");
        ring2_status(ctx, "its gradients", gdn_prefill_backward(ctx, &b), GDN_OK);
        CHECK(strstr(gdn_last_kernel(ctx), dtype == GDN_F32 ? "gdn_backward_general_chunk"
                                                            : "gdn_backward_portable_heads"),
              "%s", gdn_last_kernel(ctx));
        check_launch("its gradients");
    }
}

static void test_portable(void)
{
    static const struct {
        int capability, from_ptx;
    } devices[] = { { 80, 0 }, { 90, 1 }, { 110, 1 }, { 120, 0 } };
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        pretend(devices[i].capability, devices[i].from_ptx);
        gdn_ctx *ctx = make();
        if (!ctx) return;
        check_random_calls(ctx);
        check_large_calls(ctx);
        gdn_ctx_destroy(ctx);
    }
}

/* ---- Kernels that are switched off -------------------------------------------------------- */

static void test_without(void)
{
    char text[512] = "";
    gdn_ctx *ctx;
    setenv("GDN_CUDA_WITHOUT", "sm90", 1);
    pretend(90, 0);
    ctx = make();
    if (!ctx) return;
    CHECK(strstr(lines, "device: without sm90 (GDN_CUDA_WITHOUT)"), "%s", lines);
    CHECK(!gdn_cuda_runs_sm_90a(ctx->cuda), "code for Hopper runs");
    CHECK(!gdn_cuda_has_kernel(ctx, GDN_CU_prefill_sm90_cluster_BF16), "it has kernels for Hopper");
    check_large_calls(ctx);
    gdn_ctx_destroy(ctx);
    setenv("GDN_CUDA_WITHOUT", "sm90,walk", 1);
    ring2_status(NULL, "a wrong name", create(0, &ctx, text, sizeof text), GDN_E_ARG);
    CHECK(strstr(text, "WITHOUT: \"walk\", wanted some of: sm90, portable prefill,"), "%s", text);
    CHECK(!ctx, "there is a context");
    unsetenv("GDN_CUDA_WITHOUT");
}

/* Each form of decode gives a call to the next. */
static void test_without_forms(void)
{
    static const struct {
        const char *list, *kernel;
    } calls[] = {
        { "sm90", "gdn_decode_token_slots_BF16_BF16_128" },
        { "token slots", "gdn_decode_token_vk_BF16_BF16_128" },
        { "token slots,token", "gdn_decode_token_packed_vk_BF16_BF16_128" },
        { "token slots,token,token packed", "gdn_decode_window_k128_vk_BF16_BF16_128" },
        { "token slots,token,token packed,window k128", "gdn_decode_warp_vk_BF16_128" },
        { "token slots,token,token packed,window k128,warp", "gdn_decode_general_vk_128" },
        { "token slots,token,token packed,window k128,warp,general", "gdn_decode_walk_vk_128" },
    };
    char *at = (char *)((uintptr_t)1 << 44);
    gdn_rule_args a = gdn_rule_args_init();
    gdn_batch b = gdn_batch_init();
    gdn_tensor *rows[] = { &a.q, &a.k, &a.v, &a.out };
    for (int i = 0; i < 4; i++)
        *rows[i] = gdn_dense(at + ((int64_t)i << 40), GDN_BF16, 4, 2, 1, 2, 128);
    a.state = gdn_dense(at + ((int64_t)5 << 40), GDN_BF16, 4, 9, 2, 128, 128);
    b.read_slots = gdn_dense(at + ((int64_t)6 << 40), GDN_I32, 1, 2, 0, 0, 0);
    a.batch = &b;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        pretend(90, 0);
        setenv("GDN_CUDA_WITHOUT", calls[i].list, 1);
        gdn_ctx *ctx = make();
        unsetenv("GDN_CUDA_WITHOUT");
        if (!ctx) return;
        ring2_status(ctx, "decode", gdn_decode(ctx, &a), GDN_OK);
        CHECK(strstr(gdn_last_kernel(ctx), calls[i].kernel), "without %s: %s", calls[i].list,
              gdn_last_kernel(ctx));
        CHECK((i > 0) == (strstr(lines, "it is switched off") != NULL), "%s", lines);
        gdn_ctx_destroy(ctx);
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "load: one image at start, others on use", test_loads },
        { "load: on use, in a capture too", test_on_use },
        { "load: errors when a kernel is wanted", test_late_error },
        { "load: no code for the device", test_no_code },
        { "load: the log has what is slow", test_log },
        { "portable code runs every op", test_portable },
        { "without kernels for Hopper", test_without },
        { "without forms of decode", test_without_forms },
    };
    return fake_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
