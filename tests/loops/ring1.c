/* SPDX-License-Identifier: Apache-2.0 */
/* `gdn check` as a program of its own, for builds without the command. */
#include "check.h"

int main(int argc, char **argv) { return check_main(argc, argv); }
