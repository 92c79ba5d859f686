/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs that a plan can be made for on a machine without one. */
#ifndef PLAN_CHIP_H
#define PLAN_CHIP_H

#include "gdn.h"

struct plan_chip {
    const char *name;
    int capability; /* 10 major + minor */
    int sm_count, shared_most, memory_gib;
};

/* Finds a chip: case, blanks and '-' do not count, and "NVIDIA" may stand ahead. NULL: unknown. */
const struct plan_chip *plan_chip_find(const char *name);
/* The names, "H100, H200, ...". */
const char *plan_chip_names(char *text, size_t bytes);

/*
 * Makes a context of the backend CUDA for a chip that need not be there. Its calls check, plan and
 * choose kernels as on the chip, and launch nothing. The tensors of a call may have any address,
 * and `workspace` has to be given. CLI_OK, or CLI_BAD after one line. gdn_ctx_destroy() ends it.
 */
int plan_chip_open(const struct plan_chip *chip, gdn_ctx **ctx);

#endif
