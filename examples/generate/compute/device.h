/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a GPU, by CUDA's driver, which is opened at run time: no toolkit is needed to build or
 * to run this. A context of the library on the same device shares the memory, and what it enqueued
 * on the default stream is done before a copy.
 */
#ifndef DEVICE_H
#define DEVICE_H

#include <stddef.h>
#include <stdint.h>

struct device {
    void *library, *context;
    int number;
    int (*get_error_name)(int, const char **);
    int (*retain)(void **, int);
    int (*release)(int);
    int (*set_current)(void *);
    int (*alloc)(uint64_t *, size_t);
    int (*free)(uint64_t);
    int (*copy_to)(uint64_t, const void *, size_t);
    int (*copy_from)(void *, uint64_t, size_t);
};

/* All that return int: CLI_OK, or CLI_BAD after one line. */
int device_open(struct device *d, int number); /* makes it the current one of this thread */
void device_close(struct device *d);           /* a zeroed one may be closed */

int device_alloc(const struct device *d, void **memory, size_t bytes);
void device_free(const struct device *d, void *memory);
int device_put(const struct device *d, void *to, const void *from, size_t bytes);
int device_get(const struct device *d, void *to, const void *from, size_t bytes);

#endif
