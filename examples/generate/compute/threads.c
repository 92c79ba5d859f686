/* SPDX-License-Identifier: Apache-2.0 */
#include "compute/threads.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "program/command_line.h"
#include "program/os.h"

enum { SPIN_NS = 30000 }; /* bridges the gap between two products of one layer */

struct worker {
    struct os_thread *thread;
    struct threads *all;
    int index;
};

/*
 * A job is open from its start until no item is left. Workers enter an open job, and the caller
 * waits for those inside. A worker that woke up late finds the job closed and is not waited for.
 */
struct threads {
    struct os_gate *gate; /* around open, stop, and every wait */
    struct worker *workers;
    int n_workers;
    bool open, stop;
    _Atomic int64_t generation; /* of jobs */
    _Atomic int inside;
    _Atomic int64_t next; /* the first item that no thread took */

    gdn_work work; /* written while no worker is inside */
    void *arg;
    int64_t n_items;
};

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static bool has_news(struct threads *t, int64_t seen)
{
    return atomic_load(&t->generation) != seen;
}
static bool is_left(struct threads *t, int64_t unused)
{
    (void)unused;
    return !atomic_load(&t->inside);
}

/* Waits for SPIN_NS at most: what comes soon comes without a sleep. */
static void spin(struct threads *t, bool (*holds)(struct threads *, int64_t), int64_t seen)
{
    if (holds(t, seen)) return;
    const int64_t deadline = os_now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < 16; i++) {
            pause_briefly();
            if (holds(t, seen)) return;
        }
    } while (os_now_ns() < deadline);
}

static void run_items(struct threads *t, int index)
{
    for (;;) {
        const int64_t item = atomic_fetch_add(&t->next, 1);
        if (item >= t->n_items) return;
        t->work(t->arg, item, index);
    }
}

/* Waits for a job that this worker has not seen, and enters it. False: the end. */
static bool enter(struct threads *t, int64_t *seen)
{
    spin(t, has_news, *seen);
    os_gate_lock(t->gate);
    while (!t->stop && !(t->open && has_news(t, *seen))) os_gate_wait(t->gate);
    const bool entered = !t->stop;
    if (entered) {
        *seen = atomic_load(&t->generation);
        atomic_fetch_add(&t->inside, 1);
    }
    os_gate_unlock(t->gate);
    return entered;
}

static void leave(struct threads *t)
{
    os_gate_lock(t->gate);
    if (atomic_fetch_sub(&t->inside, 1) == 1 && !t->open) os_gate_wake(t->gate);
    os_gate_unlock(t->gate);
}

static void run_worker(void *arg)
{
    const struct worker *w = arg;
    int64_t seen = 0;
    while (enter(w->all, &seen)) {
        run_items(w->all, w->index);
        leave(w->all);
    }
}

void threads_for(void *threads, int64_t n, gdn_work work, void *arg)
{
    struct threads *t = threads;
    if (n <= 1 || !t->n_workers) {
        for (int64_t i = 0; i < n; i++) work(arg, i, 0);
        return;
    }
    t->work = work;
    t->arg = arg;
    t->n_items = n;
    atomic_store(&t->next, 0);
    os_gate_lock(t->gate);
    t->open = true;
    atomic_fetch_add(&t->generation, 1);
    os_gate_wake(t->gate);
    os_gate_unlock(t->gate);

    run_items(t, 0);

    os_gate_lock(t->gate);
    t->open = false;
    os_gate_unlock(t->gate);
    spin(t, is_left, 0);
    os_gate_lock(t->gate);
    while (atomic_load(&t->inside)) os_gate_wait(t->gate);
    os_gate_unlock(t->gate);
}

struct threads *threads_new(void)
{
    struct threads *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->gate = os_gate_new();
    if (t->gate) return t;
    free(t);
    return NULL;
}

int threads_start(struct threads *t, int n)
{
    t->workers = calloc((size_t)n, sizeof *t->workers);
    if (!t->workers) return cli_bad("no memory for %d threads", n);
    for (int i = 1; i < n; i++) {
        struct worker *w = &t->workers[t->n_workers];
        *w = (struct worker){ .all = t, .index = i };
        w->thread = os_thread_start(run_worker, w);
        if (!w->thread) return cli_bad("no thread: the system has no more");
        t->n_workers++;
    }
    return CLI_OK;
}

void threads_free(struct threads *t)
{
    if (!t) return;
    os_gate_lock(t->gate);
    t->stop = true;
    atomic_fetch_add(&t->generation, 1); /* workers that spin go on at once */
    os_gate_wake(t->gate);
    os_gate_unlock(t->gate);
    for (int i = 0; i < t->n_workers; i++) os_thread_join(t->workers[i].thread);
    os_gate_free(t->gate);
    free(t->workers);
    free(t);
}
