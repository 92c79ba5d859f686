/* SPDX-License-Identifier: Apache-2.0 */
/* The example as a program of its own. The command gdn has it as `gdn generate`. */
#include <stdio.h>

#include "generate.h"
#include "program/command_line.h"
#include "program/os.h"

int main(int argc, char **argv)
{
    cli_json_start();
    const int code = generate_main(argc, os_arguments(argc, argv));
    if (code != CLI_BAD) return cli_flush() ? CLI_BAD : code;
    fflush(stdout); /* the one line of the error is out */
    return CLI_BAD;
}
