/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operating system, for programs: files, threads, libraries. os_posix.c (Linux, macOS) and
 * os_windows.c implement it; the build takes one of them. Paths and names are UTF-8 everywhere.
 */
#ifndef OS_H
#define OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* ---- The program --------------------------------------------------------------------------- */

/* Prepares standard output and returns the arguments in UTF-8. main() calls it first. */
char **os_arguments(int argc, char **argv);

bool os_is_terminal(FILE *stream);

/* Returns the time of a clock that only goes forward. */
int64_t os_now_ns(void);

/* ---- Threads ------------------------------------------------------------------------------- */

/* Starts a thread that gets no signals of the process. NULL: the system has no more threads. */
struct os_thread *os_thread_start(void (*run)(void *arg), void *arg);
void os_thread_join(struct os_thread *thread);

/* A lock, and a place to wait inside it until another thread wakes all who wait. NULL: no
 * memory. */
struct os_gate *os_gate_new(void);
void os_gate_free(struct os_gate *gate);
void os_gate_lock(struct os_gate *gate);
void os_gate_unlock(struct os_gate *gate);
void os_gate_wait(struct os_gate *gate);
void os_gate_wake(struct os_gate *gate);

/* ---- Libraries ----------------------------------------------------------------------------- */

/* Searches where the system keeps libraries. NULL: not found. */
void *os_library_open(const char *name);
void *os_library_symbol(void *library, const char *name);
void os_library_close(void *library);

/* ---- Memory -------------------------------------------------------------------------------- */

/* Returns what this machine has, in bytes. */
uint64_t os_memory_bytes(void);

/* ---- Files --------------------------------------------------------------------------------- */

/* Functions that return int return 0, or an error of errno.h, or this: */
enum { OS_NOT_A_FILE = -1 }; /* a folder, a device, a pipe */

int os_is_folder(const char *path, bool *is_folder);

/* Calls each(user, name) for every entry of a folder. */
int os_list(const char *folder, void (*each)(void *user, const char *name), void *user);

/* A regular file that is read. */
struct os_input {
    intptr_t handle;
    int64_t bytes;
};

int os_input_open(struct os_input *in, const char *path);
void os_input_close(struct os_input *in);

/* Sets *n to the bytes that it read. They may be fewer than wanted, not only at the end of the
 * file. */
int os_input_read(const struct os_input *in, void *to, size_t bytes, int64_t offset, size_t *n);

/* Maps the whole file, read-only; the map outlives the input. */
int os_input_map(const struct os_input *in, void **map);
void os_unmap(void *map, size_t bytes);

/*
 * A file that is written beside its target and replaces it at the end. A link stays a link: the
 * file that it leads to is replaced. A target that exists keeps its permissions. A signal that ends
 * the program removes the draft. One draft at a time.
 */
enum { OS_PATH = 4096 }; /* bytes */
struct os_draft {
    FILE *out;
    char target[OS_PATH]; /* the path without links */
    char name[OS_PATH];   /* of the draft */
};

int os_draft_begin(struct os_draft *draft, const char *path);
int os_draft_end(struct os_draft *draft);

#endif
