/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fixed pool: the calling thread and n - 1 workers that spin shortly, then sleep.
 *
 * gdn_parallel_for() hands out items 0..n_items-1 in order, one at a time, and returns when
 * all are done. Which thread runs an item is open; ops must not let it matter (G2).
 */
#ifndef GDN_THREADS_H
#define GDN_THREADS_H

#include <stddef.h>
#include <stdint.h>

struct gdn_pool;

typedef void gdn_task(void *arg, int64_t item, int thread); /* thread < n_threads */

/* NULL if memory or a thread could not be had. Memory through the two hooks. */
struct gdn_pool *gdn_pool_create(int n_threads, void *(*alloc)(void *, size_t, size_t),
                                 void (*release)(void *, void *), void *user);
void             gdn_pool_destroy(struct gdn_pool *pool);
int              gdn_pool_threads(const struct gdn_pool *pool);
void gdn_parallel_for(struct gdn_pool *pool, int64_t n_items, gdn_task *task, void *arg);

#endif
