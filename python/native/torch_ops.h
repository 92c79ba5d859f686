/* SPDX-License-Identifier: Apache-2.0 */
/* torch_ops.h - kernels of torch operators over the ops of libgdn, without torch's headers. */
#ifndef GDN_PYTHON_TORCH_OPS_H
#define GDN_PYTHON_TORCH_OPS_H

#include "describe.h"

#define MAX_TORCH_OPS 42

/* Registers a kernel for every operator at a dispatch key ("CPU", "CUDA"). The operators are
 * defined already; their arguments are the fields of the description, in its order. The
 * descriptions live as long as the process. Returns NULL, or what this torch lacks. */
const char *torch_ops_register(const char *space, const char *key, const struct describe **d,
                               int n);

/* Makes a context for the pool of a device, -1 being the CPU. 0, or an error with its text. */
int torch_ops_warm_up(int device, char *text, size_t text_bytes);

#endif
