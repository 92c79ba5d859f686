/* SPDX-License-Identifier: Apache-2.0 */
/* The command: gdn run | generate | plan | bench | state | accuracy | check | info. */
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "cli.h"
#include "generate/generate.h"
#include "program/os.h"

static const char usage[] =
    "gdn - Gated DeltaNet on this machine\n"
    "\n"
    "  gdn run FILE.safetensors...   run the op a file describes, compare with its expected.*\n"
    "  gdn run --all                 all test vectors, then a rule of Qwen3-Next's size\n"
    "  gdn generate MODEL            continue a text with a language model\n"
    "  gdn plan CONFIG.json          kernels, states and times of a model\n"
    "  gdn bench OP                  time an op beside the machine's limits\n"
    "  gdn state ACTION FILE...      inspect, convert, slice, merge or diff state blobs\n"
    "  gdn accuracy                  errors of long sequences, by the dtype of their states\n"
    "  gdn check                     test every inner loop, or every kernel of a device\n"
    "  gdn info                      the CPU, instruction sets, kernels, build, self-test\n"
    "  gdn --version\n"
    "\n"
    "Each command has --help. An option with a value is --name VALUE or --name=VALUE; what\n"
    "follows -- is no option. Exit status: 0 good, 1 a result outside its limit, 2 a bad file or\n"
    "bad arguments. Environment: GDN_CPU=scalar|avx2|avx512|neon lowers the instruction set,\n"
    "GDN_LOG=1 tells on stderr what runs.\n";

static const char check_usage[] =
    "gdn check [options]\n"
    "\n"
    "Tests every inner loop of every instruction set that this machine has against float64.\n"
    "\n"
    "  --isa NAME        one instruction set; exit 77 if this machine lacks it\n"
    "  --function GLOB   the loops whose names match\n"
    "  --seed N          other random inputs\n"
    "  --repeat N        with as many seeds, one after the other\n"
    "  --bench           times too\n"
    "  --verbose         every case\n"
    "  --list            only the names\n"
    "\n"
    "gdn check --backend cuda [--function GLOB] [--verbose] tests every kernel of the device\n"
    "through the ops that run it. There GLOB is of the names of cases, such as 'decode bf16 *';\n"
    "--verbose tells all that run.\n";

/* The harness of tests/ has no --help of its own. */
static int check_command(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--"); i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            fputs(check_usage, stdout);
            return CLI_OK;
        }
    for (int i = 1; i < argc && strcmp(argv[i], "--"); i++)
        if (!strncmp(argv[i], "--backend", 9)) return check_device(argc, argv);
    return check_main(argc, argv);
}

static const struct {
    const char *name;
    int (*main)(int argc, char **argv);
} commands[] = {
    { "run", run_main },     { "generate", generate_main }, { "bench", bench_main },
    { "state", state_main }, { "accuracy", accuracy_main }, { "check", check_command },
    { "info", info_main },   { "plan", plan_main },
};

static int dispatch(int argc, char **argv)
{
    if (argc < 2) return cli_bad("no command (gdn --help lists them)");
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (!strcmp(argv[1], commands[i].name)) return commands[i].main(argc - 1, argv + 1);
    const bool help =
        !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help");
    if (!help && strcmp(argv[1], "--version"))
        return cli_bad("unknown command '%s' (gdn --help lists them)", argv[1]);
    if (argc > 2) return cli_bad("%s: unexpected argument '%s'", argv[1], argv[2]);
    if (help)
        fputs(usage, stdout);
    else
        printf("gdn %s\n", cli_version());
    return CLI_OK;
}

int main(int argc, char **argv)
{
    cli_json_start();
    const int code = dispatch(argc, os_arguments(argc, argv));
    if (code != CLI_BAD) return cli_flush() ? CLI_BAD : code;
    fflush(stdout); /* the one line of the error is out */
    return CLI_BAD;
}
