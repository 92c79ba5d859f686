/* SPDX-License-Identifier: Apache-2.0 */
#include "program/memory.h"

#include <stdlib.h>

#include "program/os.h"

enum { ALIGN = 64 };

void *memory_get(struct memory *m, size_t bytes)
{
    const size_t limit = (size_t)os_memory_bytes();
    if (bytes > limit || m->bytes > limit - bytes) return NULL;
    void **blocks = realloc(m->blocks, (m->n + 1) * sizeof *blocks);
    if (!blocks) return NULL;
    m->blocks = blocks;
    char *block = malloc(bytes + ALIGN);
    if (!block) return NULL;
    m->blocks[m->n++] = block;
    m->bytes += bytes;
    block += -(uintptr_t)block % ALIGN;
    memset(block, 0, bytes);
    return block;
}

void memory_free(struct memory *m)
{
    for (size_t i = 0; i < m->n; i++) free(m->blocks[i]);
    free(m->blocks);
    memset(m, 0, sizeof *m);
}

bool memory_bytes(int32_t dtype, int32_t ndim, const int64_t *size, int64_t *bytes)
{
    int64_t n = (int64_t)gdn_dtype_bytes(dtype);
    bool zero = false;
    for (int32_t i = 0; i < ndim; i++) {
        if (size[i] < 0) return false;
        if (!size[i])
            zero = true;
        else if (n > INT64_MAX / size[i])
            return false; /* refused even beside a zero */
        else
            n *= size[i];
    }
    *bytes = zero ? 0 : n;
    return true;
}

gdn_tensor memory_tensor(struct memory *m, int32_t dtype, int32_t ndim, const int64_t *size)
{
    gdn_tensor t = { NULL, dtype, ndim, { 0 }, { 0 } };
    int64_t stride = 1, bytes;
    if (!memory_bytes(dtype, ndim, size, &bytes)) return t;
    for (int32_t i = ndim - 1; i >= 0; i--) {
        t.size[i] = size[i];
        t.stride[i] = stride;
        stride *= size[i];
    }
    t.data = memory_get(m, (size_t)bytes);
    return t;
}
