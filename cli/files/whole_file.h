/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that appear whole or not at all: they are written under a name beside the target, which
 * they replace at the end.
 */
#ifndef WHOLE_FILE_H
#define WHOLE_FILE_H

#include <stdbool.h>
#include <stdio.h>

#include "memory.h"

struct whole_file {
    const char *path;
    FILE       *out; /* to be written to */
    char        name[4096];
};

/* Both return CLI_OK, or CLI_BAD after one line. Where `good` is false, or anything failed since
 * the beginning, nothing is left behind. */
int whole_file_begin(struct whole_file *file, const char *path);
int whole_file_end(struct whole_file *file, bool good);

/* Reads a regular file, whole. */
int whole_file_read(const char *path, struct memory *memory, void **data, size_t *bytes);

#endif
