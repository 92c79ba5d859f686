/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the cases of gdn check --backend cuda. */
#ifndef GDN_CLI_CHECK_DEVICE_H
#define GDN_CLI_CHECK_DEVICE_H

#include <stdbool.h>

#include "cases/cases.h"

struct check {
    gdn_ctx *ctx;
    const char *pattern; /* of the names of cases; NULL: all */
    bool verbose;
    int n_cases, n_failed, n_refused;
    bool *has_run; /* of each kernel of the build */
};

/* ---- check_case.c ---- */

/* The names of dtypes, by their numbers. */
extern const char *const check_device_dtypes[];

/* Returns true if the case of that name is to run. */
bool check_device_wants(const struct check *k, const char *name);
/* Marks the kernels that the last call named. */
void check_device_mark(struct check *k);
/* Counts a case, and prints it if it failed: if code is not 0, or values are wrong. */
void check_device_judge(struct check *k, const char *name, int code, const struct comparison *c);

/* ---- check_gradients.c ---- */

void check_gradients(struct check *k);
void check_conv_gradients(struct check *k);
void check_layer_gradients(struct check *k);
void check_family_gradients(struct check *k, const struct case_dims *d);
/* Returns CLI_OK, or CLI_BAD after one line. */
int check_portable_gradients(struct check *k);

#endif
