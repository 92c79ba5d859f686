/* SPDX-License-Identifier: Apache-2.0 */
/* The threads and blocks of run.cpp, for instructions that wait and for the driver. */
#ifndef GDN_TESTS_EMULATED_FIBERS_H
#define GDN_TESTS_EMULATED_FIBERS_H

#include <cstdint>
#include <functional>

#include "run.h"

enum { EMULATED_LANES = 32, EMULATED_BLOCKS = 2 }; /* blocks of a cluster, at most */

/* Ends the program with a line that names the place. */
[[noreturn]] void emulated_give_up(const char *what);

/* Waits while the bits `mask` of *gate are `seen`. */
void emulated_wait_while(const uint64_t *gate, uint64_t mask, uint64_t seen);

/* Work of no thread: it is done in one of the next turns, in any order. */
void emulated_later(std::function<void()> work);

/* Below n. GDN_EMULATED_SEED in the environment begins another sequence, of turns too. */
unsigned emulated_random(unsigned n);

/* Return the number of the running thread in its cluster, and the rank of its block. */
int emulated_thread(void);
int emulated_rank(void);
int emulated_cluster_size(void);

/* Shared memory of a block, which has not ended. */
char *emulated_shared_of(int rank);

/* Blocks side by side from number `first` on, together, until all have ended. */
void emulated_run_cluster(const emulated_kernel *kernel, const void *args, unsigned first,
                          int n_blocks, int n_threads, unsigned shared_bytes);

/* hopper.cpp: before the first thread of a cluster begins; when one ends, when all have. */
void emulated_begin_products(int n_threads);
void emulated_end_products(void);

#endif
