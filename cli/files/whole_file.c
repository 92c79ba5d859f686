/* SPDX-License-Identifier: Apache-2.0 */
#include "files/whole_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"

/* Opens a new file "PATH.gdn-<pid>" of the caller's; the path's own owner sees it only whole. */
static FILE *open_temporary(const char *path, char *name, size_t bytes)
{
    const int n = snprintf(name, bytes, "%s.gdn-%ld", path, (long)getpid());
    if (n < 0 || (size_t)n >= bytes) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    const int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return fd < 0 ? NULL : fdopen(fd, "wb");
}

int whole_file_begin(struct whole_file *file, const char *path)
{
    struct stat info;
    file->path = path;
    if (!stat(path, &info) && !S_ISREG(info.st_mode))
        return cli_bad("%s: not written: not a regular file", path);
    file->out = open_temporary(path, file->name, sizeof file->name);
    return file->out ? CLI_OK : cli_bad("%s: not written: %s", path, strerror(errno));
}

int whole_file_end(struct whole_file *file, bool good)
{
    if (good) good = !fflush(file->out) && !ferror(file->out) && !fsync(fileno(file->out));
    int error = errno;
    if (fclose(file->out) && good) {
        good  = false;
        error = errno;
    }
    if (good && rename(file->name, file->path)) {
        good  = false;
        error = errno;
    }
    if (!good) unlink(file->name);
    return good ? CLI_OK : cli_bad("%s: not written: %s", file->path, strerror(error));
}

static int read_all(const char *path, int fd, char *to, int64_t bytes)
{
    for (int64_t done = 0; done < bytes;) {
        const ssize_t n = read(fd, to + done, (size_t)(bytes - done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return cli_bad("%s: cannot read: %s", path, strerror(errno));
        if (n == 0) return cli_bad("%s: became shorter while it was read", path);
        done += n;
    }
    return CLI_OK;
}

int whole_file_read(const char *path, struct memory *memory, void **data, size_t *bytes)
{
    struct stat info;
    const int   fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not block */
    if (fd < 0) return cli_bad("%s: %s", path, strerror(errno));
    int code = CLI_OK;
    if (fstat(fd, &info) || !S_ISREG(info.st_mode)) {
        code = cli_bad("%s: not a regular file", path);
    } else {
        *bytes = (size_t)info.st_size;
        *data  = memory_get(memory, *bytes);
        code   = *data ? read_all(path, fd, *data, info.st_size)
                       : cli_bad("%s: no memory for %zu bytes", path, *bytes);
    }
    close(fd);
    return code;
}
