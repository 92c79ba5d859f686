/* SPDX-License-Identifier: Apache-2.0 */
#include "files/input_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"

static int check_kind(struct input_file *f)
{
    struct stat info;
    if (fstat(f->fd, &info)) return cli_bad("%s: %s", f->path, strerror(errno));
    if (!S_ISREG(info.st_mode)) return cli_bad("%s: not a regular file", f->path);
    f->bytes = info.st_size;
    return CLI_OK;
}

int input_open(struct input_file *f, const char *path)
{
    f->path = path;
    f->fd   = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not block */
    if (f->fd < 0) return cli_bad("%s: %s", path, strerror(errno));
    const int code = check_kind(f);
    if (code) input_close(f);
    return code;
}

void input_close(struct input_file *f) { close(f->fd); }

int input_read(const struct input_file *f, void *to, int64_t bytes, int64_t offset)
{
    for (int64_t done = 0; done < bytes;) {
        const ssize_t n = pread(f->fd, (char *)to + done, (size_t)(bytes - done), offset + done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return cli_bad("%s: cannot read: %s", f->path, strerror(errno));
        if (n == 0) return cli_bad("%s: became shorter while it was read", f->path);
        done += n;
    }
    return CLI_OK;
}

int input_map(const struct input_file *f, void **map)
{
    *map = mmap(NULL, (size_t)f->bytes, PROT_READ, MAP_PRIVATE, f->fd, 0);
    if (*map != MAP_FAILED) return CLI_OK;
    *map = NULL;
    return cli_bad("%s: cannot be mapped: %s", f->path, strerror(errno));
}

void input_unmap(void *map, size_t bytes)
{
    if (map) munmap(map, bytes);
}
