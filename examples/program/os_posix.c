/* SPDX-License-Identifier: Apache-2.0 */
/* os.h for POSIX: Linux and macOS. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* POSIX under -std=c11 */
#endif
#include "program/os.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- The program --------------------------------------------------------------------------- */

char **os_arguments(int argc, char **argv)
{
    (void)argc;
    return argv;
}

bool os_is_terminal(FILE *stream) { return isatty(fileno(stream)); }

int64_t os_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- Threads ------------------------------------------------------------------------------- */

struct os_thread {
    pthread_t id;
    void (*run)(void *arg);
    void *arg;
};

static void *run_thread(void *thread)
{
    const struct os_thread *t = thread;
    t->run(t->arg);
    return NULL;
}

/* A new thread inherits the mask, so the signals are blocked around its creation. */
struct os_thread *os_thread_start(void (*run)(void *), void *arg)
{
    sigset_t all, mask;
    struct os_thread *t = malloc(sizeof *t);
    if (!t) return NULL;
    t->run = run;
    t->arg = arg;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &mask);
    const bool started = !pthread_create(&t->id, NULL, run_thread, t);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    if (started) return t;
    free(t);
    return NULL;
}

void os_thread_join(struct os_thread *thread)
{
    pthread_join(thread->id, NULL);
    free(thread);
}

struct os_gate {
    pthread_mutex_t mutex;
    pthread_cond_t condition;
};

/* Neither can fail with default attributes. */
struct os_gate *os_gate_new(void)
{
    struct os_gate *gate = malloc(sizeof *gate);
    if (!gate) return NULL;
    pthread_mutex_init(&gate->mutex, NULL);
    pthread_cond_init(&gate->condition, NULL);
    return gate;
}

void os_gate_free(struct os_gate *gate)
{
    pthread_cond_destroy(&gate->condition);
    pthread_mutex_destroy(&gate->mutex);
    free(gate);
}

void os_gate_lock(struct os_gate *gate) { pthread_mutex_lock(&gate->mutex); }
void os_gate_unlock(struct os_gate *gate) { pthread_mutex_unlock(&gate->mutex); }
void os_gate_wait(struct os_gate *gate) { pthread_cond_wait(&gate->condition, &gate->mutex); }
void os_gate_wake(struct os_gate *gate) { pthread_cond_broadcast(&gate->condition); }

/* ---- Libraries ----------------------------------------------------------------------------- */

void *os_library_open(const char *name) { return dlopen(name, RTLD_NOW | RTLD_LOCAL); }
void *os_library_symbol(void *library, const char *name) { return dlsym(library, name); }
void os_library_close(void *library) { dlclose(library); }

/* ---- Memory -------------------------------------------------------------------------------- */

uint64_t os_memory_bytes(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_MAX / 2;
}

/* ---- Files that are read ------------------------------------------------------------------- */

int os_is_folder(const char *path, bool *is_folder)
{
    struct stat info;
    if (stat(path, &info)) return errno;
    *is_folder = S_ISDIR(info.st_mode);
    return 0;
}

int os_list(const char *folder, void (*each)(void *user, const char *name), void *user)
{
    DIR *open = opendir(folder);
    if (!open) return errno;
    for (const struct dirent *e; (e = readdir(open));) each(user, e->d_name);
    closedir(open);
    return 0;
}

int os_input_open(struct os_input *in, const char *path)
{
    struct stat info;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not block */
    if (fd < 0) return errno;
    const int error = fstat(fd, &info) ? errno : S_ISREG(info.st_mode) ? 0 : OS_NOT_A_FILE;
    if (error) {
        close(fd);
        return error;
    }
    in->handle = fd;
    in->bytes = info.st_size;
    return 0;
}

void os_input_close(struct os_input *in) { close((int)in->handle); }

int os_input_read(const struct os_input *in, void *to, size_t bytes, int64_t offset, size_t *n)
{
    ssize_t got;
    do got = pread((int)in->handle, to, bytes, offset);
    while (got < 0 && errno == EINTR);
    *n = got < 0 ? 0 : (size_t)got;
    return got < 0 ? errno : 0;
}

int os_input_map(const struct os_input *in, void **map)
{
    *map = mmap(NULL, (size_t)in->bytes, PROT_READ, MAP_PRIVATE, (int)in->handle, 0);
    if (*map != MAP_FAILED) return 0;
    *map = NULL;
    return errno;
}

void os_unmap(void *map, size_t bytes) { munmap(map, bytes); }

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
        own.sa_handler = ending[i] == SIGXFSZ ? SIG_IGN : remove_and_end;
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
static int find_target(struct os_draft *draft, const char *path, mode_t *mode)
{
    struct stat info;
    char real[PATH_MAX];
    const char *target = path;
    const mode_t mask = umask(0);
    umask(mask);
    *mode = 0666 & ~mask;
    if (!lstat(path, &info)) {
        target = realpath(path, real);
        if (!target || stat(target, &info)) return errno;
        if (!S_ISREG(info.st_mode)) return OS_NOT_A_FILE;
        *mode = info.st_mode & 07777;
    }
    const int n = snprintf(draft->target, sizeof draft->target, "%s", target);
    return n < (int)sizeof draft->target ? 0 : ENAMETOOLONG;
}

/* Opens a new file beside the target, whose name no other process has. */
static int open_draft(struct os_draft *draft, mode_t mode)
{
    const int n = snprintf(draft->name, sizeof draft->name, "%s.gdn-XXXXXX", draft->target);
    if (n < 0 || (size_t)n >= sizeof draft->name) return ENAMETOOLONG;
    watch_signals(draft->name);
    const int fd = mkstemp(draft->name);
    draft->out = fd < 0 || fchmod(fd, mode) ? NULL : fdopen(fd, "wb");
    if (draft->out) return 0;
    const int error = errno;
    if (fd >= 0) {
        close(fd);
        unlink(draft->name);
    }
    leave_signals();
    return error;
}

int os_draft_begin(struct os_draft *draft, const char *path)
{
    mode_t mode;
    const int error = find_target(draft, path, &mode);
    return error ? error : open_draft(draft, mode);
}

int os_draft_end(struct os_draft *draft)
{
    bool good = !ferror(draft->out) && !fflush(draft->out) && !fsync(fileno(draft->out));
    int error = errno;
    if (fclose(draft->out) && good) {
        good = false;
        error = errno;
    }
    if (good && rename(draft->name, draft->target)) {
        good = false;
        error = errno;
    }
    if (!good) unlink(draft->name);
    leave_signals();
    return good ? 0 : error;
}
