/* SPDX-License-Identifier: Apache-2.0 */
/* Regular files that are read, in parts or mapped into memory. */
#ifndef INPUT_FILE_H
#define INPUT_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "program/os.h"

struct input_file {
    const char *path;
    struct os_input file;
    int64_t bytes;
};

/* All return CLI_OK, or CLI_BAD after one line that names the file. */
int input_open(struct input_file *f, const char *path);
void input_close(struct input_file *f);

int input_read(const struct input_file *f, void *to, int64_t bytes, int64_t offset);

/* Maps the whole file, read-only. The map outlives input_close(). The file must not become shorter
 * while it is used: then the system ends the program with SIGBUS. */
int input_map(const struct input_file *f, void **map);
void input_unmap(void *map, size_t bytes);

#endif
