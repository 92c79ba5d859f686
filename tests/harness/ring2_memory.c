/* SPDX-License-Identifier: Apache-2.0 */
/* See ring2_memory.h. */
#include "ring2_memory.h"

#include <malloc.h>
#include <stdlib.h>

/* Not by a function that unit_alloc watches. */
static void *hook_alloc(void *user, size_t bytes, size_t align)
{
    struct ring2_memory *m = user;
    if (++m->n_calls == m->fail_at) return NULL;
    m->n_live++;
    m->last_align = align;
    return memalign(align, bytes);
}

static void hook_release(void *user, void *memory)
{
    ((struct ring2_memory *)user)->n_live--;
    free(memory);
}

gdn_options ring2_memory_options(struct ring2_memory *m, int n_threads)
{
    gdn_options o = gdn_options_init();
    o.alloc       = hook_alloc;
    o.release     = hook_release;
    o.alloc_user  = m;
    o.n_threads   = n_threads;
    return o;
}
