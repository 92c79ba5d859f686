/* SPDX-License-Identifier: Apache-2.0 */
/* gdn info: what this machine has and this build can do. */
#include <stdio.h>

#include "cli.h"
#include "cpu/kernels.h"
#include "measure.h"
#include "report.h"

static const char help[] =
    "gdn info [--json] [--threads N] [--isa NAME]\n"
    "\n"
    "Version, CPU, instruction sets found and tables of inner loops built, the table chosen\n"
    "(GDN_CPU and --isa can only lower it), threads, build, ops and inner loops.\n";

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

static const char cuda[] = "no device code in this build";

static const char *const ops[] = { "prefill", "decode",        "conv1d", "gates",
                                   "l2norm",  "rmsnorm_gated", "block",  "state_copy" };

/* The fields of struct gdn_kernels; a kernel's name is "<loop>.<isa>". */
static const char *const loops[] = {
    "load_row", "store_row", "dot", "norm_row", "exp_row", "sigmoid_row", "gate_row",
    "transpose", "gemm_nt", "strip_mul", "chunk_gates", "chunk_solve", "chunk_update",
    "step_vk", "step_kv", "conv",
};

enum { N_OPS = sizeof ops / sizeof *ops, N_LOOPS = sizeof loops / sizeof *loops };

static const struct {
    uint32_t    flag;
    const char *name;
} features[] = { { GDN_CPU_AVX2, "avx2+fma+f16c" }, { GDN_CPU_AVX512, "avx512f+bw+dq+vl" },
             { GDN_CPU_NEON, "neon" } };

static void print_text(gdn_ctx *ctx)
{
    char           cpu[128];
    const uint32_t flags = gdn_cpu_detect();
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
    printf("  build     %s, %s\n", COMPILER, GDN_BUILD_FLAGS);
    printf("  CUDA      %s\n", cuda);
    printf("  ops      ");
    for (int i = 0; i < N_OPS; i++) printf(" %s", ops[i]);
    printf("\n  kernels  ");
    for (int i = 0; i < N_LOOPS; i++)
        printf("%s%s.%s", i && i % 5 == 0 ? "\n            " : " ", loops[i], gdn_isa(ctx));
    printf("\n");
}

static void print_json(gdn_ctx *ctx)
{
    const uint32_t flags  = gdn_cpu_detect();
    cJSON         *line   = report_line(ctx);
    cJSON         *found  = cJSON_AddArrayToObject(line, "found");
    cJSON         *tables = cJSON_AddArrayToObject(line, "tables");
    for (size_t i = 0; i < sizeof features / sizeof *features; i++)
        if (flags & features[i].flag)
            cJSON_AddItemToArray(found, cJSON_CreateString(features[i].name));
    for (const struct gdn_kernels *const *t = gdn_cpu_tables; *t; t++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "name", (*t)->name);
        cJSON_AddBoolToObject(item, "runs_here", !((*t)->needs & ~flags));
        cJSON_AddItemToArray(tables, item);
    }
    cJSON_AddStringToObject(line, "compiler", COMPILER);
    cJSON_AddStringToObject(line, "flags", GDN_BUILD_FLAGS);
    cJSON_AddStringToObject(line, "cuda", cuda);
    cJSON_AddItemToObject(line, "ops", cJSON_CreateStringArray(ops, N_OPS));
    cJSON *kernels = cJSON_AddArrayToObject(line, "kernels");
    for (int i = 0; i < N_LOOPS; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s.%s", loops[i], gdn_isa(ctx));
        cJSON_AddItemToArray(kernels, cJSON_CreateString(name));
    }
    report_print(line);
}

int info_main(int argc, char **argv)
{
    struct cli_device       device    = { NULL, NULL, 0 };
    bool                    json      = false, want_help = false;
    const struct cli_option options[] = {
        { "--json", CLI_FLAG, &json, 0, 0 },
        { "--threads", CLI_INT, &device.threads, 0, 1024 },
        { "--isa", CLI_TEXT, &device.isa, 0, 0 },
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
    (json ? print_json : print_text)(ctx);
    gdn_ctx_destroy(ctx);
    return CLI_OK;
}
