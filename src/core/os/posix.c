/* SPDX-License-Identifier: Apache-2.0 */
/* os.h for POSIX: Linux and macOS. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getaffinity, secure_getenv; and POSIX under -std=c11 */
#endif
#include "core/os/os.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- Threads ------------------------------------------------------------------------------- */

_Static_assert(sizeof(pthread_t) <= sizeof(uint64_t), "the id of a thread");
_Static_assert(sizeof(pthread_mutex_t) <= sizeof(struct gdn_os_mutex), "room of a mutex");
_Static_assert(sizeof(pthread_cond_t) <= sizeof(struct gdn_os_condition), "room of a condition");

static void *run_thread(void *thread)
{
    const struct gdn_os_thread *t = thread;
    t->run(t->arg);
    return NULL;
}

/* A new thread inherits the mask, so the signals are blocked around its creation. */
bool gdn_os_thread_start(struct gdn_os_thread *thread, void (*run)(void *), void *arg)
{
    sigset_t all, before;
    pthread_t id;
    thread->run = run;
    thread->arg = arg;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = !pthread_create(&id, NULL, run_thread, thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started) memcpy(&thread->id, &id, sizeof id);
    return started;
}

void gdn_os_thread_join(struct gdn_os_thread *thread)
{
    pthread_t id;
    memcpy(&id, &thread->id, sizeof id);
    pthread_join(id, NULL);
}

static pthread_mutex_t *mutex_of(struct gdn_os_mutex *mutex) { return (void *)mutex->room; }
static pthread_cond_t *condition_of(struct gdn_os_condition *c) { return (void *)c->room; }

/* Neither can fail with default attributes. */
void gdn_os_mutex_init(struct gdn_os_mutex *mutex) { pthread_mutex_init(mutex_of(mutex), NULL); }
void gdn_os_condition_init(struct gdn_os_condition *condition)
{
    pthread_cond_init(condition_of(condition), NULL);
}

void gdn_os_mutex_lock(struct gdn_os_mutex *mutex) { pthread_mutex_lock(mutex_of(mutex)); }
void gdn_os_mutex_unlock(struct gdn_os_mutex *mutex) { pthread_mutex_unlock(mutex_of(mutex)); }
void gdn_os_mutex_destroy(struct gdn_os_mutex *mutex) { pthread_mutex_destroy(mutex_of(mutex)); }

void gdn_os_condition_wait(struct gdn_os_condition *condition, struct gdn_os_mutex *mutex)
{
    pthread_cond_wait(condition_of(condition), mutex_of(mutex));
}
void gdn_os_condition_wake_one(struct gdn_os_condition *condition)
{
    pthread_cond_signal(condition_of(condition));
}
void gdn_os_condition_wake_all(struct gdn_os_condition *condition)
{
    pthread_cond_broadcast(condition_of(condition));
}
void gdn_os_condition_destroy(struct gdn_os_condition *condition)
{
    pthread_cond_destroy(condition_of(condition));
}

/* ---- The process --------------------------------------------------------------------------- */

int64_t gdn_os_process(void) { return getpid(); }

int gdn_os_processors(void)
{
    long n = 0;
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) n = CPU_COUNT(&set);
#endif
    if (n < 1) n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : (int)n;
}

/* The environment must not steer a setuid program. */
const char *gdn_os_environment(const char *name)
{
#if defined(__linux__)
    return secure_getenv(name);
#else
    return issetugid() ? NULL : getenv(name);
#endif
}

int64_t gdn_os_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- Memory -------------------------------------------------------------------------------- */

void *gdn_os_alloc(size_t bytes, size_t align)
{
    if (bytes > SIZE_MAX - align) return NULL;
    return aligned_alloc(align, (bytes + align - 1) & ~(align - 1));
}

void gdn_os_free(void *memory) { free(memory); }

/* ---- Libraries ----------------------------------------------------------------------------- */

void *gdn_os_library_open(const char *name) { return dlopen(name, RTLD_NOW | RTLD_LOCAL); }
void *gdn_os_library_symbol(void *library, const char *name) { return dlsym(library, name); }
void gdn_os_library_close(void *library) { dlclose(library); }
