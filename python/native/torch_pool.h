/* SPDX-License-Identifier: Apache-2.0 */
/* torch_pool.h - contexts for torch's operators: as many of a device as threads call at once. */
#ifndef GDN_PYTHON_TORCH_POOL_H
#define GDN_PYTHON_TORCH_POOL_H

#include <stdbool.h>

#include "gdn.h"

/* Looks up torch's threads in libtorch_cpu.so: NULL, or what is missing. */
const char *torch_pool_look_up(void *libtorch_cpu);

/* Returns true if a call could take a context of the device. */
bool torch_pool_has(int32_t device);

/* A context that nobody else has; device -1 is the CPU. NULL: text says why. */
gdn_ctx *torch_pool_take(int32_t device, char *text, size_t text_bytes);
void torch_pool_give(int32_t device, gdn_ctx *ctx);

#endif
