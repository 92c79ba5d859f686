/* SPDX-License-Identifier: Apache-2.0 */
/* The shared parts of the commands, beside those of examples/program: calls of ops, the version. */
#ifndef CLI_H
#define CLI_H

#include "program/command_line.h"

/* Call the op of these args on host memory. The second returns how long that took: on a device,
 * its kernels alone. */
gdn_status cli_call(gdn_ctx *ctx, gdn_op op, const void *args);
gdn_status cli_timed_call(gdn_ctx *ctx, gdn_op op, const void *args, double *seconds);

/* "0.1.0" */
const char *cli_version(void);

/* Runs the commands. */
int run_main(int argc, char **argv);
int bench_main(int argc, char **argv);
int info_main(int argc, char **argv);
int state_main(int argc, char **argv);
int accuracy_main(int argc, char **argv);
int plan_main(int argc, char **argv);
int check_device(int argc, char **argv); /* gdn check --backend cuda */

#endif
