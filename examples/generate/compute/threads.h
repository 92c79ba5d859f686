/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that run items side by side. The context computes on them too: threads_for() is its
 * option parallel_for. So the program and the library never compete for processors.
 */
#ifndef THREADS_H
#define THREADS_H

#include "gdn.h"

struct threads;

/* No threads yet, so that a context can be made; NULL: no memory. */
struct threads *threads_new(void);
/* Starts n - 1 threads beside the caller's. CLI_OK, or CLI_BAD after one line. */
int threads_start(struct threads *t, int n);
void threads_free(struct threads *t); /* NULL is allowed */

/* Calls work(arg, item, thread) once for every item from 0 to n - 1, and returns when all calls are
 * done. One call of this function at a time. */
void threads_for(void *threads, int64_t n, gdn_work work, void *arg);

#endif
