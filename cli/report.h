/* SPDX-License-Identifier: Apache-2.0 */
/* The output of `gdn run` about a file: lines for people, a JSON line, a file of outputs. */
#ifndef REPORT_H
#define REPORT_H

#include "files/job.h"

void report_text(const struct job *job, gdn_ctx *ctx);
void report_json(const struct job *job, gdn_ctx *ctx);
int report_write(const struct job *job, const char *path);

/* "gdn 0.1.0, <CPU>, avx512, 2 threads" */
void report_heading(gdn_ctx *ctx);

/* A new JSON object with what every line of gdn has: version, backend, device, isa, threads. */
cJSON *report_line(gdn_ctx *ctx);
/* Prints the line to stdout, and frees it. */
void report_print(cJSON *line);

/* Reports the fields of a comparison: max_error, max_limit, ... */
void report_comparison(cJSON *item, const struct comparison *c);

#endif
