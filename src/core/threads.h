/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fixed pool: the calling thread and n - 1 workers that spin shortly, then sleep. Or a pool
 * without workers, whose items a lender runs: the caller's parallel_for of gdn_options.
 *
 * gdn_parallel_for() hands out items 0..n_items-1 in order, one at a time, and returns when
 * all are done. Which thread runs an item is open; ops must not let it matter (G2).
 */
#ifndef GDN_THREADS_H
#define GDN_THREADS_H

#include <stddef.h>
#include <stdint.h>

struct gdn_threads;

typedef void gdn_task(void *arg, int64_t item, int thread); /* thread < n_threads */

/* The threads of others: runs task(arg, item, thread) for every item, as gdn.h says. */
struct gdn_lender {
    void (*parallel_for)(void *user, int64_t n_items, gdn_task *task, void *arg);
    void *user;
};

/* NULL if memory or a thread could not be had. Memory through the two hooks. lender NULL: the
 * pool makes its own threads. */
struct gdn_threads *gdn_threads_create(int n_threads, const struct gdn_lender *lender,
                                       void *(*alloc)(void *, size_t, size_t),
                                       void (*release)(void *, void *), void *user);
/* In a child of fork(), where the workers are not, frees the memory alone. */
void gdn_threads_destroy(struct gdn_threads *pool);
int gdn_threads_count(const struct gdn_threads *pool);
void gdn_parallel_for(struct gdn_threads *pool, int64_t n_items, gdn_task *task, void *arg);

/* Returns what the lender did wrong since the last call; NULL: nothing that was noticed. */
const char *gdn_threads_broken(struct gdn_threads *pool);

#endif
