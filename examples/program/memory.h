/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks that are freed together: 64-byte aligned, in all no more than this machine's memory. */
#ifndef MEMORY_H
#define MEMORY_H

#include <stdbool.h>

#include "gdn.h"

struct memory {
    void **blocks;
    size_t n, bytes;
};

/* Returns zeroed memory; NULL if there is none. */
void *memory_get(struct memory *m, size_t bytes);
void memory_free(struct memory *m);

/* Returns a new dense tensor of zeros. Its data is NULL if there is no memory, or if the sizes are
 * too large. */
gdn_tensor memory_tensor(struct memory *m, int32_t dtype, int32_t ndim, const int64_t *size);

/* Bytes of n sizes of a dtype; false if that is more than fits in int64_t. */
bool memory_bytes(int32_t dtype, int32_t ndim, const int64_t *size, int64_t *bytes);

#endif
