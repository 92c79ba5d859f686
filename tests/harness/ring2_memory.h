/* SPDX-License-Identifier: Apache-2.0 */
/* The memory hooks of a context: counts of its allocations, one of which may fail. */
#ifndef RING2_MEMORY_H
#define RING2_MEMORY_H

#include "gdn.h"

struct ring2_memory {
    int n_live, n_calls, fail_at; /* fail_at: the allocation that fails; 0: none */
    size_t last_align;
};

/* Options of a context whose memory m is. */
gdn_options ring2_memory_options(struct ring2_memory *m, int n_threads);

#endif
