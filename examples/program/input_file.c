/* SPDX-License-Identifier: Apache-2.0 */
#include "program/input_file.h"

#include <string.h>

#include "program/command_line.h"

int input_open(struct input_file *f, const char *path)
{
    const int error = os_input_open(&f->file, path);
    f->path = path;
    if (error == OS_NOT_A_FILE) return cli_bad("%s: not a regular file", path);
    if (error) return cli_bad("%s: %s", path, strerror(error));
    f->bytes = f->file.bytes;
    return CLI_OK;
}

void input_close(struct input_file *f) { os_input_close(&f->file); }

int input_read(const struct input_file *f, void *to, int64_t bytes, int64_t offset)
{
    size_t n;
    for (int64_t done = 0; done < bytes; done += (int64_t)n) {
        const int error =
            os_input_read(&f->file, (char *)to + done, (size_t)(bytes - done), offset + done, &n);
        if (error) return cli_bad("%s: cannot read: %s", f->path, strerror(error));
        if (n == 0) return cli_bad("%s: became shorter while it was read", f->path);
    }
    return CLI_OK;
}

int input_map(const struct input_file *f, void **map)
{
    const int error = os_input_map(&f->file, map);
    return error ? cli_bad("%s: cannot be mapped: %s", f->path, strerror(error)) : CLI_OK;
}

void input_unmap(void *map, size_t bytes)
{
    if (map) os_unmap(map, bytes);
}
