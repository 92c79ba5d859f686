/* SPDX-License-Identifier: Apache-2.0 */
/* gdn info: prints what the machine has and what the build can do. */
#include <stdio.h>

#include "cli.h"
#include "internal/internal.h"
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

/* Returns the next kernel that the context has, from *i on; NULL: there is none. */
static const char *next_kernel(gdn_ctx *ctx, int *i, char *text, size_t bytes)
{
    const char *name;
    if (gdn_internal_device(ctx)) {
        while ((name = gdn_internal_kernel((*i)++)))
            if (gdn_internal_runs_kernel(ctx, *i - 1)) return name;
        return NULL;
    }
    if (!(name = gdn_internal_loop((*i)++))) return NULL;
    snprintf(text, bytes, "%s.%s", name, gdn_isa(ctx));
    return text;
}

/* Returns how many kernels the device code in this build has, whatever devices there are. */
static int count_device_kernels(void)
{
    int n = 0;
    while (gdn_internal_kernel(n)) n++;
    return n;
}

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
    const char *name;
    bool here;
    printf("gdn %s\n", cli_version());
    printf("  cpu       %s\n", measure_cpu(cpu, sizeof cpu));
    printf("  found     baseline");
    for (int i = 0; (name = gdn_internal_feature(i, &here)); i++)
        if (here) printf(" %s", name);
    printf("\n  tables   ");
    for (int i = 0; (name = gdn_internal_table(i, &here)); i++)
        printf(" %s%s", name, here ? "" : " (not on this machine)");
    printf("\n  chosen    %s\n", gdn_isa(ctx));
    printf("  threads   %d\n", (int)gdn_n_threads(ctx));
    if (test->status == GDN_OK)
        printf("  self-test ok, %.1f ms\n", test->ms);
    else
        printf("  self-test %s: %s\n", gdn_status_name(test->status), gdn_last_error(ctx));
    printf("  build     %s, %s\n", COMPILER, GDN_BUILD_FLAGS);
    printf("  CUDA      %s\n", gdn_internal_devices(text, sizeof text));
    printf("  ops      ");
    for (int i = 0; (name = gdn_internal_op(i)); i++)
        printf("%s%s", i && i % 6 == 0 ? "\n            " : " ", name);
    printf("\n  kernels  ");
    for (int i = 0, n = 0; (name = next_kernel(ctx, &i, text, sizeof text)); n++)
        printf("%s%s", n && n % 5 == 0 ? "\n            " : " ", name);
    printf("\n");
    if (gdn_internal_device(ctx) || !count_device_kernels()) return;
    printf("  device    %d kernels in this build's %d images (--backend cuda: those for a device)",
           count_device_kernels(), gdn_internal_images());
    for (int i = 0; (name = gdn_internal_kernel(i)); i++)
        printf("%s%s", i % 3 ? " " : "\n            ", name);
    printf("\n");
}

static void print_json(gdn_ctx *ctx, const struct self_test *test)
{
    char text[512];
    const char *name;
    bool here;
    cJSON *line = report_line(ctx);
    cJSON *found = cJSON_AddArrayToObject(line, "found");
    cJSON *tables = cJSON_AddArrayToObject(line, "tables");
    for (int i = 0; (name = gdn_internal_feature(i, &here)); i++)
        if (here) cJSON_AddItemToArray(found, cJSON_CreateString(name));
    for (int i = 0; (name = gdn_internal_table(i, &here)); i++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "name", name);
        cJSON_AddBoolToObject(item, "runs_here", here);
        cJSON_AddItemToArray(tables, item);
    }
    cJSON_AddStringToObject(line, "self_test", test->status == GDN_OK ? "ok" : gdn_last_error(ctx));
    cJSON_AddNumberToObject(line, "self_test_ms", test->ms);
    cJSON_AddStringToObject(line, "compiler", COMPILER);
    cJSON_AddStringToObject(line, "flags", GDN_BUILD_FLAGS);
    cJSON_AddStringToObject(line, "cuda", gdn_internal_devices(text, sizeof text));
    cJSON *ops = cJSON_AddArrayToObject(line, "ops");
    for (int i = 0; (name = gdn_internal_op(i)); i++)
        cJSON_AddItemToArray(ops, cJSON_CreateString(name));
    cJSON *kernels = cJSON_AddArrayToObject(line, "kernels");
    for (int i = 0; (name = next_kernel(ctx, &i, text, sizeof text));)
        cJSON_AddItemToArray(kernels, cJSON_CreateString(name));
    cJSON *of_device = cJSON_AddArrayToObject(line, "device_kernels");
    for (int i = 0; (name = gdn_internal_kernel(i)); i++)
        cJSON_AddItemToArray(of_device, cJSON_CreateString(name));
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
