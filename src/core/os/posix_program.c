/* SPDX-License-Identifier: Apache-2.0 */
/* program.h for POSIX: Linux and macOS. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* POSIX and MAP_ANONYMOUS under -std=c11 */
#endif
#include "core/os/program.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- The program --------------------------------------------------------------------------- */

char **gdn_os_arguments(int argc, char **argv)
{
    (void)argc;
    return argv;
}

bool gdn_os_is_terminal(FILE *stream) { return isatty(fileno(stream)); }

bool gdn_os_set_environment(const char *name, const char *value)
{
    return (value ? setenv(name, value, 1) : unsetenv(name)) == 0;
}

void gdn_os_become(char **argv) { execv(argv[0], argv); }

void gdn_os_yield(void) { sched_yield(); }

static const struct {
    int         number;
    const char *name;
} faults[] = {
    { SIGSEGV, "SIGSEGV" }, { SIGBUS, "SIGBUS" }, { SIGILL, "SIGILL" }, { SIGFPE, "SIGFPE" }
};
enum { N_FAULTS = sizeof faults / sizeof *faults };

static sigjmp_buf fault_return;

static void on_fault(int number) { siglongjmp(fault_return, number); }

const char *gdn_os_catch(void (*run)(void *arg), void *arg)
{
    struct sigaction action, before[N_FAULTS];
    memset(&action, 0, sizeof action);
    action.sa_handler = on_fault;
    for (int i = 0; i < N_FAULTS; i++) sigaction(faults[i].number, &action, &before[i]);
    const int number = sigsetjmp(fault_return, 1);
    if (!number) run(arg);
    const char *name = NULL;
    for (int i = 0; i < N_FAULTS; i++) {
        sigaction(faults[i].number, &before[i], NULL);
        if (number == faults[i].number) name = faults[i].name;
    }
    return name;
}

/* ---- Memory -------------------------------------------------------------------------------- */

uint64_t gdn_os_memory_bytes(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_MAX / 2;
}

size_t gdn_os_page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

void *gdn_os_pages(size_t bytes)
{
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

bool gdn_os_pages_forbid(void *pages, size_t bytes) { return !mprotect(pages, bytes, PROT_NONE); }
void gdn_os_pages_free(void *pages, size_t bytes) { munmap(pages, bytes); }

/* ---- Files that are read ------------------------------------------------------------------- */

int gdn_os_is_folder(const char *path, bool *is_folder)
{
    struct stat info;
    if (stat(path, &info)) return errno;
    *is_folder = S_ISDIR(info.st_mode);
    return 0;
}

int gdn_os_list(const char *folder, void (*each)(void *user, const char *name), void *user)
{
    DIR *open = opendir(folder);
    if (!open) return errno;
    for (const struct dirent *e; (e = readdir(open));) each(user, e->d_name);
    closedir(open);
    return 0;
}

int gdn_os_input_open(struct gdn_os_input *in, const char *path)
{
    struct stat info;
    const int   fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not block */
    if (fd < 0) return errno;
    const int error = fstat(fd, &info) ? errno : S_ISREG(info.st_mode) ? 0 : GDN_OS_NOT_A_FILE;
    if (error) {
        close(fd);
        return error;
    }
    in->handle = fd;
    in->bytes  = info.st_size;
    return 0;
}

void gdn_os_input_close(struct gdn_os_input *in) { close((int)in->handle); }

int gdn_os_input_read(const struct gdn_os_input *in, void *to, size_t bytes, int64_t offset,
                      size_t *n)
{
    ssize_t got;
    do got = pread((int)in->handle, to, bytes, offset);
    while (got < 0 && errno == EINTR);
    *n = got < 0 ? 0 : (size_t)got;
    return got < 0 ? errno : 0;
}

int gdn_os_input_map(const struct gdn_os_input *in, void **map)
{
    *map = mmap(NULL, (size_t)in->bytes, PROT_READ, MAP_PRIVATE, (int)in->handle, 0);
    if (*map != MAP_FAILED) return 0;
    *map = NULL;
    return errno;
}

void gdn_os_unmap(void *map, size_t bytes) { munmap(map, bytes); }

/* ---- Drafts and signals -------------------------------------------------------------------- */

static const int ending[] = { SIGINT, SIGTERM, SIGHUP, SIGXFSZ };
enum { N_ENDING = sizeof ending / sizeof *ending };

/* The draft that a signal removes; NULL: none. A handler has no other way to it. */
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

/* Finds where the path leads, and the mode that the file will have. */
static int find_target(struct gdn_os_draft *draft, const char *path, mode_t *mode)
{
    struct stat  info;
    char         real[PATH_MAX];
    const char  *target = path;
    const mode_t mask   = umask(0);
    umask(mask);
    *mode = 0666 & ~mask;
    if (!lstat(path, &info)) {
        target = realpath(path, real);
        if (!target || stat(target, &info)) return errno;
        if (!S_ISREG(info.st_mode)) return GDN_OS_NOT_A_FILE;
        *mode = info.st_mode & 07777;
    }
    const int n = snprintf(draft->target, sizeof draft->target, "%s", target);
    return n < (int)sizeof draft->target ? 0 : ENAMETOOLONG;
}

/* Opens a new file beside the target, whose name no other process has. */
static int open_draft(struct gdn_os_draft *draft, mode_t mode)
{
    const int n = snprintf(draft->name, sizeof draft->name, "%s.gdn-XXXXXX", draft->target);
    if (n < 0 || (size_t)n >= sizeof draft->name) return ENAMETOOLONG;
    watch_signals(draft->name);
    const int fd = mkstemp(draft->name);
    draft->out   = fd < 0 || fchmod(fd, mode) ? NULL : fdopen(fd, "wb");
    if (draft->out) return 0;
    const int error = errno;
    if (fd >= 0) {
        close(fd);
        unlink(draft->name);
    }
    leave_signals();
    return error;
}

int gdn_os_draft_begin(struct gdn_os_draft *draft, const char *path)
{
    mode_t    mode;
    const int error = find_target(draft, path, &mode);
    return error ? error : open_draft(draft, mode);
}

int gdn_os_draft_end(struct gdn_os_draft *draft)
{
    bool good  = !ferror(draft->out) && !fflush(draft->out) && !fsync(fileno(draft->out));
    int  error = errno;
    if (fclose(draft->out) && good) {
        good  = false;
        error = errno;
    }
    if (good && rename(draft->name, draft->target)) {
        good  = false;
        error = errno;
    }
    if (!good) unlink(draft->name);
    leave_signals();
    return good ? 0 : error;
}
