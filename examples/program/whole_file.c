/* SPDX-License-Identifier: Apache-2.0 */
#include "program/whole_file.h"

#include <string.h>

#include "program/command_line.h"
#include "program/input_file.h"

static int not_written(const char *path, int error)
{
    if (error == OS_NOT_A_FILE) return cli_bad("%s: not written: not a regular file", path);
    return cli_bad("%s: not written: %s", path, strerror(error));
}

int whole_file_begin(struct whole_file *file, const char *path)
{
    const int error = os_draft_begin(&file->draft, path);
    file->path = path;
    file->out = file->draft.out;
    return error ? not_written(path, error) : CLI_OK;
}

int whole_file_end(struct whole_file *file)
{
    const int error = os_draft_end(&file->draft);
    return error ? not_written(file->path, error) : CLI_OK;
}

int whole_file_read(const char *path, struct memory *memory, void **data, size_t *bytes)
{
    struct input_file file;
    if (input_open(&file, path)) return CLI_BAD;
    *bytes = (size_t)file.bytes;
    *data = memory_get(memory, *bytes);
    int code = *data ? input_read(&file, *data, file.bytes, 0)
                     : cli_bad("%s: no memory for %zu bytes", path, *bytes);
    input_close(&file);
    return code;
}
