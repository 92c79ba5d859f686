/* SPDX-License-Identifier: Apache-2.0 */
/* See ring2_memory.h. */
#include "ring2_memory.h"

#include <string.h>

#include "core/os/program.h"

/* The struct before the memory that the hook returns. */
struct origin {
    void *pages;
    size_t bytes;
};

/* Pages, since unit_alloc watches every other source of memory. */
static void *hook_alloc(void *user, size_t bytes, size_t align)
{
    struct ring2_memory *m = user;
    if (++m->n_calls == m->fail_at) return NULL;
    struct origin origin = { .bytes = sizeof origin + bytes + align };
    origin.pages = gdn_os_pages(origin.bytes);
    if (!origin.pages) return NULL;
    m->n_live++;
    m->last_align = align;
    char *first = (char *)origin.pages + sizeof origin;
    first += (align - (uintptr_t)first % align) % align;
    memcpy(first - sizeof origin, &origin, sizeof origin);
    return first;
}

static void hook_release(void *user, void *memory)
{
    struct origin origin;
    ((struct ring2_memory *)user)->n_live--;
    memcpy(&origin, (char *)memory - sizeof origin, sizeof origin);
    gdn_os_pages_free(origin.pages, origin.bytes);
}

gdn_options ring2_memory_options(struct ring2_memory *m, int n_threads)
{
    gdn_options o = gdn_options_init();
    o.alloc = hook_alloc;
    o.release = hook_release;
    o.alloc_user = m;
    o.n_threads = n_threads;
    return o;
}
