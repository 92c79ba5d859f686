/* SPDX-License-Identifier: Apache-2.0 */
#include "files/whole_file.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "files/input_file.h"

/* ---- Signals --------------------------------------------------------------------------------- */

static const int ending[] = { SIGINT, SIGTERM, SIGHUP, SIGXFSZ };
enum { N_ENDING = sizeof ending / sizeof *ending };

/* The temporary file that a signal removes; NULL: none. A handler has no other way to it. */
static const char *volatile unfinished;
static struct sigaction before[N_ENDING];

static void remove_and_end(int number)
{
    const char *name = unfinished;
    if (name) unlink(name);
    raise(number); /* SA_RESETHAND: now it ends the program */
}

/* A signal that is ignored stays ignored. Where a file may not grow, write() fails with EFBIG. */
static void watch_signals(const char *name)
{
    unfinished = name;
    for (int i = 0; i < N_ENDING; i++) {
        struct sigaction own = { .sa_flags = (int)SA_RESETHAND };
        own.sa_handler       = ending[i] == SIGXFSZ ? SIG_IGN : remove_and_end;
        sigaction(ending[i], NULL, &before[i]);
        if (before[i].sa_handler != SIG_IGN) sigaction(ending[i], &own, NULL);
    }
}

static void leave_signals(void)
{
    unfinished = NULL;
    for (int i = 0; i < N_ENDING; i++) sigaction(ending[i], &before[i], NULL);
}

/* ---- Writing --------------------------------------------------------------------------------- */

static int not_written(const char *path, int error)
{
    return cli_bad("%s: not written: %s", path, strerror(error));
}

/* Finds where the path leads, and the mode that the file will have. */
static int find_target(struct whole_file *file, mode_t *mode)
{
    struct stat info;
    char        real[PATH_MAX];
    const char *target = file->path;
    const mode_t mask  = umask(0);
    umask(mask);
    *mode = 0666 & ~mask;
    if (!lstat(file->path, &info)) {
        target = realpath(file->path, real);
        if (!target || stat(target, &info)) return not_written(file->path, errno);
        if (!S_ISREG(info.st_mode))
            return cli_bad("%s: not written: not a regular file", file->path);
        *mode = info.st_mode & 07777;
    }
    const int n = snprintf(file->target, sizeof file->target, "%s", target);
    return n < (int)sizeof file->target ? CLI_OK : not_written(file->path, ENAMETOOLONG);
}

/* Opens a new file beside the target, whose name no other process has. */
static FILE *open_temporary(struct whole_file *file, mode_t mode)
{
    const int n = snprintf(file->name, sizeof file->name, "%s.gdn-XXXXXX", file->target);
    if (n < 0 || (size_t)n >= sizeof file->name) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    watch_signals(file->name);
    const int fd  = mkstemp(file->name);
    FILE     *out = fd < 0 || fchmod(fd, mode) ? NULL : fdopen(fd, "wb");
    if (out) return out;
    const int error = errno;
    if (fd >= 0) {
        close(fd);
        unlink(file->name);
    }
    leave_signals();
    errno = error;
    return NULL;
}

int whole_file_begin(struct whole_file *file, const char *path)
{
    mode_t mode;
    file->path = path;
    if (find_target(file, &mode)) return CLI_BAD;
    file->out = open_temporary(file, mode);
    return file->out ? CLI_OK : not_written(path, errno);
}

int whole_file_end(struct whole_file *file)
{
    bool good  = !ferror(file->out) && !fflush(file->out) && !fsync(fileno(file->out));
    int  error = errno;
    if (fclose(file->out) && good) {
        good  = false;
        error = errno;
    }
    if (good && rename(file->name, file->target)) {
        good  = false;
        error = errno;
    }
    if (!good) unlink(file->name);
    leave_signals();
    return good ? CLI_OK : not_written(file->path, error);
}

/* ---- Reading --------------------------------------------------------------------------------- */

int whole_file_read(const char *path, struct memory *memory, void **data, size_t *bytes)
{
    struct input_file file;
    if (input_open(&file, path)) return CLI_BAD;
    *bytes   = (size_t)file.bytes;
    *data    = memory_get(memory, *bytes);
    int code = *data ? input_read(&file, *data, file.bytes, 0)
                     : cli_bad("%s: no memory for %zu bytes", path, *bytes);
    input_close(&file);
    return code;
}
