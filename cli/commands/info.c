/* SPDX-License-Identifier: Apache-2.0 */
/* gdn info: what this machine has and this build can do. */
#include <stdio.h>

#include "cli.h"
#include "internal.h"
#include "measure.h"
#include "report.h"

static const char help[] =
    "gdn info [--json] [--threads N] [--isa NAME] [--backend cpu|cuda]\n"
    "\n"
    "Version, CPU, instruction sets found and tables of inner loops built, the table chosen\n"
    "(GDN_CPU and --isa can only lower it), threads, build, devices, ops and inner loops, or the\n"
    "kernels of --backend cuda; the kernels of the device code in this build, with or without a\n"
    "device; and whether this machine computes what it should (gdn_self_test), exit status 1 if\n"
    "not.\n";

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

#ifndef GDN_BUILD_FLAGS
#if defined(__OPTIMIZE__)
#define GDN_BUILD_FLAGS "optimised"
#else
#define GDN_BUILD_FLAGS "not optimised"
#endif
#endif

/* The fields of struct gdn_kernels; a kernel's name is "<loop>.<isa>". */
static const char *const loops[] = {
    "load_row",     "store_row",   "dot",         "norm_row",     "exp_row",
    "sigmoid_row",  "gate_row",    "transpose",   "gemm_nt",      "gemv",
    "strip_mul",    "chunk_gates", "chunk_solve", "chunk_update", "chunk_write",
    "chunk_return", "recur_vk",    "recur_kv",    "recur_strip",  "add_outer",
    "conv",         "load8_vk",    "load8_kv",    "store8_vk",    "store8_kv",
};

enum { N_LOOPS = sizeof loops / sizeof *loops };

static const struct {
    uint32_t flag;
    const char *name;
} features[] = { { GDN_CPU_AVX2, "avx2+fma+f16c" },
                 { GDN_CPU_AVX512, "avx512f+bw+dq+vl" },
                 { GDN_CPU_AVX512_BF16, "avx512bf16" },
                 { GDN_CPU_AMX, "amx" },
                 { GDN_CPU_NEON, "neon" } };

/* Device code in this build, and the devices there are. */
static const char *cuda_text(char *text, size_t bytes)
{
    struct gdn_cu_api api;
    const char *missing;
    int n = 0;
    if (!gdn_images[0].fatbin) return "no device code in this build";
    if (gdn_cu_open(&api, &missing) != 0) {
        snprintf(text, bytes, "device code for %s; no %s here", gdn_image_chips, missing);
        return text;
    }
    if (api.cuInit(0) != 0 || api.cuDeviceGetCount(&n) != 0) n = 0;
    int used = snprintf(text, bytes, "device code for %s; %d devices here", gdn_image_chips, n);
    for (int i = 0; i < n && used < (int)bytes; i++) {
        char name[64] = "";
        int major = 0, minor = 0;
        api.cuDeviceGetName(name, (int)sizeof name, i);
        api.cuDeviceGetAttribute(&major, GDN_CU_MAJOR, i);
        api.cuDeviceGetAttribute(&minor, GDN_CU_MINOR, i);
        const char *code = gdn_cuda_code_text(10 * major + minor);
        used += snprintf(text + used, bytes - (size_t)used, "%s%s (sm_%d%s%s)", i ? ", " : ": ",
                         name, 10 * major + minor, *code ? ", " : "", code);
    }
    gdn_cu_close(&api);
    return text;
}

/* Returns the next kernel that the context has, of those from *i on; NULL: there are no more. */
static const char *next_kernel(gdn_ctx *ctx, int *i, char *text, size_t bytes)
{
    if (ctx->cuda) {
        while (*i < GDN_N_KERNELS && !gdn_cuda_has_kernel(ctx, (enum gdn_kernel_id) * i)) ++*i;
        return *i < GDN_N_KERNELS ? gdn_cuda_kernel_name((enum gdn_kernel_id)(*i)++) : NULL;
    }
    if (*i >= N_LOOPS) return NULL;
    snprintf(text, bytes, "%s.%s", loops[(*i)++], gdn_isa(ctx));
    return text;
}

/* Kernels of the device code in this build, whatever devices there are. */
static int count_device_kernels(void) { return gdn_images[0].fatbin ? GDN_N_KERNELS : 0; }

/* gdn_self_test() and how long it took. */
struct self_test {
    gdn_status status;
    double ms;
};

static struct self_test run_self_test(gdn_ctx *ctx)
{
    const double before = measure_clock();
    const gdn_status status = gdn_self_test(ctx);
    return (struct self_test){ status, (measure_clock() - before) * 1e3 };
}

static void print_text(gdn_ctx *ctx, const struct self_test *test)
{
    char cpu[128], text[512];
    const uint32_t flags = gdn_cpu_detect();
    const char *name;
    printf("gdn %s\n", cli_version());
    printf("  cpu       %s\n", measure_cpu(cpu, sizeof cpu));
    printf("  found     baseline");
    for (size_t i = 0; i < sizeof features / sizeof *features; i++)
        if (flags & features[i].flag) printf(" %s", features[i].name);
    printf("\n  tables   ");
    for (const struct gdn_kernels *const *t = gdn_cpu_tables; *t; t++)
        printf(" %s%s", (*t)->name, (*t)->needs & ~flags ? " (not on this machine)" : "");
    printf("\n  chosen    %s\n", gdn_isa(ctx));
    printf("  threads   %d\n", (int)gdn_n_threads(ctx));
    if (test->status == GDN_OK)
        printf("  self-test ok, %.1f ms\n", test->ms);
    else
        printf("  self-test %s: %s\n", gdn_status_name(test->status), gdn_last_error(ctx));
    printf("  build     %s, %s\n", COMPILER, GDN_BUILD_FLAGS);
    printf("  CUDA      %s\n", cuda_text(text, sizeof text));
    printf("  ops      ");
    for (int i = 0; i < GDN_N_OPS; i++)
        printf("%s%s", i && i % 6 == 0 ? "\n            " : " ", gdn_op_shapes[i].name);
    printf("\n  kernels  ");
    for (int i = 0, n = 0; (name = next_kernel(ctx, &i, text, sizeof text)); n++)
        printf("%s%s", n && n % 5 == 0 ? "\n            " : " ", name);
    printf("\n");
    if (ctx->cuda || !count_device_kernels()) return;
    printf("  device    %d kernels in this build's %d images (--backend cuda: those for a device)",
           count_device_kernels(), GDN_N_IMAGES);
    for (int i = 0; i < count_device_kernels(); i++)
        printf("%s%s", i % 3 ? " " : "\n            ", gdn_cuda_kernel_name((enum gdn_kernel_id)i));
    printf("\n");
}

static void print_json(gdn_ctx *ctx, const struct self_test *test)
{
    char text[512];
    const char *name;
    const uint32_t flags = gdn_cpu_detect();
    cJSON *line = report_line(ctx);
    cJSON *found = cJSON_AddArrayToObject(line, "found");
    cJSON *tables = cJSON_AddArrayToObject(line, "tables");
    for (size_t i = 0; i < sizeof features / sizeof *features; i++)
        if (flags & features[i].flag)
            cJSON_AddItemToArray(found, cJSON_CreateString(features[i].name));
    for (const struct gdn_kernels *const *t = gdn_cpu_tables; *t; t++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "name", (*t)->name);
        cJSON_AddBoolToObject(item, "runs_here", !((*t)->needs & ~flags));
        cJSON_AddItemToArray(tables, item);
    }
    cJSON_AddStringToObject(line, "self_test", test->status == GDN_OK ? "ok" : gdn_last_error(ctx));
    cJSON_AddNumberToObject(line, "self_test_ms", test->ms);
    cJSON_AddStringToObject(line, "compiler", COMPILER);
    cJSON_AddStringToObject(line, "flags", GDN_BUILD_FLAGS);
    cJSON_AddStringToObject(line, "cuda", cuda_text(text, sizeof text));
    cJSON *ops = cJSON_AddArrayToObject(line, "ops");
    for (int i = 0; i < GDN_N_OPS; i++)
        cJSON_AddItemToArray(ops, cJSON_CreateString(gdn_op_shapes[i].name));
    cJSON *kernels = cJSON_AddArrayToObject(line, "kernels");
    for (int i = 0; (name = next_kernel(ctx, &i, text, sizeof text));)
        cJSON_AddItemToArray(kernels, cJSON_CreateString(name));
    cJSON *of_device = cJSON_AddArrayToObject(line, "device_kernels");
    for (int i = 0; i < count_device_kernels(); i++)
        cJSON_AddItemToArray(of_device,
                             cJSON_CreateString(gdn_cuda_kernel_name((enum gdn_kernel_id)i)));
    report_print(line);
}

int info_main(int argc, char **argv)
{
    struct cli_device device = { NULL, NULL, 0 };
    bool json = false, want_help = false;
    const struct cli_option options[] = {
        { "--json", CLI_FLAG, &json, 0, 0 },
        { "--threads", CLI_INT, &device.threads, 0, 1024 },
        { "--isa", CLI_TEXT, &device.isa, 0, 0 },
        { "--backend", CLI_TEXT, &device.backend, 0, 0 },
        { "--help", CLI_FLAG, &want_help, 0, 0 },
        { "-h", CLI_FLAG, &want_help, 0, 0 },
        { NULL, CLI_FLAG, NULL, 0, 0 },
    };
    gdn_ctx *ctx;
    if (cli_parse(argc, argv, options, NULL, NULL)) return CLI_BAD;
    if (want_help) {
        fputs(help, stdout);
        return CLI_OK;
    }
    if (cli_open(&device, &ctx)) return CLI_BAD;
    const struct self_test test = run_self_test(ctx);
    (json ? print_json : print_text)(ctx, &test);
    gdn_ctx_destroy(ctx);
    return test.status == GDN_OK ? CLI_OK : CLI_OUTSIDE;
}
