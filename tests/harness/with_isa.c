/* SPDX-License-Identifier: Apache-2.0 */
/*
 * with_isa ISA PROGRAM [ARG...] - runs a test with GDN_CPU=ISA. Exits 77, which ctest shows as
 * skipped, where this machine lacks the instruction set.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cpu/loops/kernels.h"

static bool is_in_build(const char *isa)
{
    for (int i = 0; gdn_cpu_tables[i]; i++)
        if (!strcmp(gdn_cpu_tables[i]->name, isa)) return true;
    return false;
}

int main(int argc, char **argv)
{
    if (argc < 3 || !is_in_build(argv[1])) {
        fprintf(stderr, "usage: with_isa ISA PROGRAM [ARG...], ISA one of this build's\n");
        return 2;
    }
    if (!gdn_cpu_select(gdn_cpu_detect(), argv[1])) {
        printf("skipped: this machine has no %s\n", argv[1]);
        return 77;
    }
    if (setenv("GDN_CPU", argv[1], 1) == 0) execv(argv[2], argv + 2);
    perror(argv[2]);
    return 2;
}
