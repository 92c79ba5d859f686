/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operating system: threads, the process, memory, libraries. posix.c (Linux, macOS) or
 * windows.c implements it. Only the detection of the CPU has code for one system too.
 */
#ifndef GDN_OS_H
#define GDN_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- Threads ------------------------------------------------------------------------------- */

/* A thread. The struct keeps its address from start to join. */
struct gdn_os_thread {
    void (*run)(void *arg);
    void *arg;
    uint64_t id; /* of the system */
};

/* Memory for the system's own structs. posix.c and windows.c check that these fit. */
struct gdn_os_mutex {
    _Alignas(16) unsigned char room[64];
};
struct gdn_os_condition {
    _Alignas(16) unsigned char room[64];
};

/* Starts a thread that gets no signals of the process. False: the system has no more threads. */
bool gdn_os_thread_start(struct gdn_os_thread *thread, void (*run)(void *), void *arg);
void gdn_os_thread_join(struct gdn_os_thread *thread);

void gdn_os_mutex_init(struct gdn_os_mutex *mutex);
void gdn_os_mutex_lock(struct gdn_os_mutex *mutex);
void gdn_os_mutex_unlock(struct gdn_os_mutex *mutex);
void gdn_os_mutex_destroy(struct gdn_os_mutex *mutex);

void gdn_os_condition_init(struct gdn_os_condition *condition);
void gdn_os_condition_wait(struct gdn_os_condition *condition, struct gdn_os_mutex *mutex);
void gdn_os_condition_wake_one(struct gdn_os_condition *condition);
void gdn_os_condition_wake_all(struct gdn_os_condition *condition);
void gdn_os_condition_destroy(struct gdn_os_condition *condition);

/* ---- The process --------------------------------------------------------------------------- */

/* Returns a number that a child of fork() does not share. */
int64_t gdn_os_process(void);

/* Returns how many processors this process may use, at least 1. */
int gdn_os_processors(void);

/* Returns a variable of the environment. NULL: not set, or the environment is another user's. */
const char *gdn_os_environment(const char *name);

/* Returns the time of a clock that only goes forward. */
int64_t gdn_os_now_ns(void);

/* ---- Memory -------------------------------------------------------------------------------- */

/* align: a power of two, at least that of a pointer. NULL: none is left. */
void *gdn_os_alloc(size_t bytes, size_t align);
void gdn_os_free(void *memory);

/* ---- Libraries ----------------------------------------------------------------------------- */

/* Searches where the system keeps libraries. NULL: not found. */
void *gdn_os_library_open(const char *name);
void *gdn_os_library_symbol(void *library, const char *name);
void gdn_os_library_close(void *library);

#endif
