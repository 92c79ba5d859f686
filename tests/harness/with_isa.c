/* SPDX-License-Identifier: Apache-2.0 */
/*
 * with_isa [--below] ISA PROGRAM [ARG...] - runs a test with GDN_CPU=ISA. Exits 77, which ctest
 * shows as skipped, if this machine lacks the instruction set. With --below it also does if the
 * machine has no better one, because the test without a limit runs the same loops then.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/os/program.h"
#include "cpu/loops/kernels.h"

static bool is_in_build(const char *isa)
{
    for (int i = 0; gdn_cpu_tables[i]; i++)
        if (!strcmp(gdn_cpu_tables[i]->name, isa)) return true;
    return false;
}

static bool is_best(const char *isa)
{
    return !strcmp(gdn_cpu_select(gdn_cpu_detect(), NULL)->name, isa);
}

int main(int argc, char **argv)
{
    const bool below = argc > 1 && !strcmp(argv[1], "--below");
    if (below) argc--, argv++;
    if (argc < 3 || !is_in_build(argv[1])) {
        fprintf(stderr, "usage: with_isa [--below] ISA PROGRAM [ARG...]; ISA is of this build\n");
        return 2;
    }
    if (!gdn_cpu_select(gdn_cpu_detect(), argv[1])) {
        printf("skipped: this machine has no %s\n", argv[1]);
        return 77;
    }
    if (below && is_best(argv[1])) {
        printf("skipped: this machine has nothing better than %s\n", argv[1]);
        return 77;
    }
    if (gdn_os_set_environment("GDN_CPU", argv[1])) gdn_os_become(argv + 2);
    perror(argv[2]);
    return 2;
}
