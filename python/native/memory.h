/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h - whether torch moved or freed the memory of a tensor that is kept. */
#ifndef GDN_PYTHON_MEMORY_H
#define GDN_PYTHON_MEMORY_H

#include "python.h"

#include <stdbool.h>

struct memory {
    PyObject *array; /* borrowed; the caller keeps it */
    void *handle;    /* torch's, from 2.14 on; NULL: the array is asked by its method */
    const void *data;
};

/* Notes where the array of torch is. */
void memory_note(struct memory *m, PyObject *array, const void *data);
void memory_drop(struct memory *m);

/* Whether the array is elsewhere than noted. */
bool memory_moved(const struct memory *m);

#endif
