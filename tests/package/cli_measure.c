/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The yardsticks of the command (cli/measure.c): there is one for every instruction set of this
 * build, and an instruction set without one is refused. It is never measured with another.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "cpu/loops/kernels.h"
#include "measure.h"
#include "ring2.h"

static char line[256];

/* In place of that of cli.c, which prints. */
int cli_bad(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    return CLI_BAD;
}

static void each_table(void)
{
    for (int i = 0; gdn_cpu_tables[i]; i++) {
        const struct gdn_kernels *kr = gdn_cpu_tables[i];
        struct measure m;
        CHECK(measure_open(&m, kr->name, 1, 4096) == CLI_OK, "%s: %s", kr->name, line);
        if (!(kr->needs & ~gdn_cpu_detect())) /* this machine has it */
            CHECK(measure_flops(&m, 1e-3) > 0 && measure_in_place(&m, 1e-3) > 0, "%s: no rate",
                  kr->name);
        measure_close(&m);
    }
}

static void unknown(void)
{
    static const char *const names[] = { "sve", "", "avx", "scalar " };
    struct measure m;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        CHECK(measure_open(&m, names[i], 1, 0) == CLI_BAD, "\"%s\" was taken", names[i]);
        CHECK(strstr(line, "isa: ") && strstr(line, names[i]), "line \"%s\"", line);
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "a yardstick for every table", each_table },
        { "an unknown instruction set is refused", unknown },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
