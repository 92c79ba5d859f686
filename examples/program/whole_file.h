/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that appear whole or not at all: they are written under another name in the target's
 * folder, and replace the target at the end. A link stays a link: the file that it leads to is
 * replaced. A target that exists keeps its permissions. SIGINT, SIGTERM and SIGHUP remove the
 * temporary file before they end the program.
 */
#ifndef WHOLE_FILE_H
#define WHOLE_FILE_H

#include <stdio.h>

#include "program/os.h"
#include "program/memory.h"

struct whole_file {
    const char *path;
    FILE *out; /* to be written to */
    struct os_draft draft;
};

/* Both return CLI_OK, or CLI_BAD after one line. If anything failed since the beginning, nothing is
 * left behind. One file at a time. */
int whole_file_begin(struct whole_file *file, const char *path);
int whole_file_end(struct whole_file *file);

/* Reads a regular file, whole. */
int whole_file_read(const char *path, struct memory *memory, void **data, size_t *bytes);

#endif
