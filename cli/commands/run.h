/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `gdn run --all`. Each returns CLI_OK, CLI_OUTSIDE or CLI_BAD. */
#ifndef RUN_H
#define RUN_H

#include <stdbool.h>

#include "gdn.h"

/* Runs every layer_*.safetensors of the folder, then every other one, as tables. */
int run_vectors(gdn_ctx *ctx, const char *folder, bool json);

/* Runs the rule at the size of Qwen3-Next: a prefill of 4 sequences, then decode steps of them,
 * beside the machine's measured limits and a float64 recurrence. */
int run_model(gdn_ctx *ctx, bool json);

#endif
