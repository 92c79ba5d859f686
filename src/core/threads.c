/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool. All that workers and caller agree on is one word: whether a job is open, how many
 * workers are inside it, and its generation. Workers enter an open job by compare-and-swap;
 * the caller works too, closes the job when no item is left, and waits for those inside. A
 * worker that woke up late finds the job closed and is not waited for.
 *
 * task, arg and n_items are plain: the caller writes them while no thread is inside.
 *
 * No wake-up is lost: who sleeps first announces it and then looks at the word again; who
 * changes the word looks for sleepers afterwards. Both in sequentially consistent order, so
 * one of the two sees the other.
 *
 * A lender is not trusted with memory, and a thread number is an index into scratch. So each has a
 * seat, taken for the time of one item. An item whose seat is not there or is taken is not run.
 */
#include "core/threads.h"

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "core/ctx.h"
#include "core/os/os.h"
#include "cpu/loops/fpenv.h"

/* The word: */
enum {
    OPEN = 1,  /* a job may be entered */
    STOP = 2,  /* workers shall end */
    INSIDE = 4 /* is added by each worker inside; up to 2^30 of them */
};
#define GENERATION ((uint64_t)1 << 32)

/* Long enough to bridge the gap between two calls of one layer, short against a sleep. */
enum { SPIN_NS = 30000 };

struct worker {
    struct gdn_os_thread thread;
    struct gdn_threads *pool;
    int index;
};

/* A thread number of a lender. */
struct seat {
    alignas(64) atomic_bool taken;
};

struct gdn_threads {
    alignas(64) _Atomic uint64_t word;
    alignas(64) _Atomic int64_t next; /* the first item that no thread took */

    alignas(64) gdn_task *task;
    void *arg;
    int64_t n_items;

    alignas(64) struct gdn_os_mutex mutex;
    struct gdn_os_condition news, left; /* for sleeping workers; for the sleeping caller */
    atomic_int n_asleep;
    atomic_bool caller_asleep;

    int n_threads, n_workers; /* n_workers: started so far */
    int64_t process;          /* that has the workers */
    void (*release)(void *, void *);
    void *user;

    struct gdn_lender lender;
    _Atomic int64_t n_lent, n_done; /* items of the lender's call, and how many have run */
    _Atomic(const char *) broken;

    struct seat *seats;     /* n_threads of them, if there is a lender */
    struct worker *workers; /* n_threads - 1, if there is no lender */
};

/* ---- Waiting ------------------------------------------------------------------------------- */

static inline void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

typedef bool condition(uint64_t word, uint64_t seen);

static bool has_news(uint64_t word, uint64_t seen)
{
    return (word & STOP) || ((word & OPEN) && word / GENERATION != seen);
}

static bool is_left(uint64_t word, uint64_t seen)
{
    (void)seen;
    return word % GENERATION < INSIDE;
}

/* Spins until the condition holds for the word, or for SPIN_NS; returns the last word. */
static uint64_t spin(struct gdn_threads *pool, condition *holds, uint64_t seen)
{
    uint64_t word = atomic_load(&pool->word);
    if (holds(word, seen)) return word;
    const int64_t deadline = gdn_os_now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < 16; i++) {
            pause_briefly();
            word = atomic_load(&pool->word);
            if (holds(word, seen)) return word;
        }
    } while (gdn_os_now_ns() < deadline);
    return word;
}

static uint64_t wait_for_news(struct gdn_threads *pool, uint64_t seen)
{
    uint64_t word = spin(pool, has_news, seen);
    if (has_news(word, seen)) return word;
    gdn_os_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->n_asleep, 1);
    while (word = atomic_load(&pool->word), !has_news(word, seen))
        gdn_os_condition_wait(&pool->news, &pool->mutex);
    atomic_fetch_sub(&pool->n_asleep, 1);
    gdn_os_mutex_unlock(&pool->mutex);
    return word;
}

static void wait_until_left(struct gdn_threads *pool)
{
    if (is_left(spin(pool, is_left, 0), 0)) return;
    gdn_os_mutex_lock(&pool->mutex);
    atomic_store(&pool->caller_asleep, true);
    while (!is_left(atomic_load(&pool->word), 0)) gdn_os_condition_wait(&pool->left, &pool->mutex);
    atomic_store(&pool->caller_asleep, false);
    gdn_os_mutex_unlock(&pool->mutex);
}

/* ---- Workers ------------------------------------------------------------------------------- */

static void run_items(struct gdn_threads *pool, int thread)
{
    for (;;) {
        const int64_t item = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (item >= pool->n_items) return;
        pool->task(pool->arg, item, thread);
    }
}

static bool enter(struct gdn_threads *pool, uint64_t generation)
{
    uint64_t word = atomic_load(&pool->word);
    while ((word & OPEN) && word / GENERATION == generation)
        if (atomic_compare_exchange_weak(&pool->word, &word, word + INSIDE)) return true;
    return false;
}

static void leave(struct gdn_threads *pool)
{
    const uint64_t word = atomic_fetch_sub(&pool->word, INSIDE) - INSIDE;
    if ((word & OPEN) || !is_left(word, 0) || !atomic_load(&pool->caller_asleep)) return;
    gdn_os_mutex_lock(&pool->mutex);
    gdn_os_condition_wake_one(&pool->left);
    gdn_os_mutex_unlock(&pool->mutex);
}

static void work(void *arg)
{
    const struct worker *w = arg;
    uint64_t seen = 0;
    gdn_fp_enter();
    for (;;) {
        const uint64_t word = wait_for_news(w->pool, seen);
        if (word & STOP) return;
        seen = word / GENERATION;
        if (!enter(w->pool, seen)) continue;
        run_items(w->pool, w->index);
        leave(w->pool);
    }
}

/* ---- Threads of a lender -------------------------------------------------------------------- */

static void run_lent(void *arg, int64_t item, int thread)
{
    struct gdn_threads *pool = arg;
    if (item < 0 || item >= atomic_load(&pool->n_lent)) {
        atomic_store(&pool->broken, "an item that there is not, or after it returned");
        return;
    }
    if (thread < 0 || thread >= pool->n_threads) {
        atomic_store(&pool->broken, "a thread number out of range");
        return;
    }
    if (atomic_exchange(&pool->seats[thread].taken, true)) {
        atomic_store(&pool->broken, "a thread number twice at a time");
        return;
    }
    const uint32_t fp = gdn_fp_enter(); /* the thread has its own float environment */
    pool->task(pool->arg, item, thread);
    gdn_fp_leave(fp);
    atomic_store(&pool->seats[thread].taken, false);
    atomic_fetch_add(&pool->n_done, 1);
}

static void lend(struct gdn_threads *pool, int64_t n_items)
{
    atomic_store(&pool->n_done, 0);
    atomic_store(&pool->n_lent, n_items);
    pool->lender.parallel_for(pool->lender.user, n_items, run_lent, pool);
    atomic_store(&pool->n_lent, 0);
    if (atomic_load(&pool->n_done) != n_items && !atomic_load(&pool->broken))
        atomic_store(&pool->broken, "not every item once");
}

const char *gdn_threads_broken(struct gdn_threads *pool)
{
    return atomic_load(&pool->broken) ? atomic_exchange(&pool->broken, NULL) : NULL;
}

/* ---- The caller ---------------------------------------------------------------------------- */

static void wake(struct gdn_threads *pool, int64_t n)
{
    if (atomic_load(&pool->n_asleep) == 0) return;
    gdn_os_mutex_lock(&pool->mutex);
    if (n >= pool->n_workers)
        gdn_os_condition_wake_all(&pool->news);
    else
        for (int64_t i = 0; i < n; i++) gdn_os_condition_wake_one(&pool->news);
    gdn_os_mutex_unlock(&pool->mutex);
}

void gdn_parallel_for(struct gdn_threads *pool, int64_t n_items, gdn_task *task, void *arg)
{
    if (pool->n_threads == 1 || n_items <= 1) {
        for (int64_t i = 0; i < n_items; i++) task(arg, i, 0);
        return;
    }
    pool->task = task;
    pool->arg = arg;
    pool->n_items = n_items;
    if (pool->lender.parallel_for) {
        lend(pool, n_items);
        return;
    }
    atomic_store(&pool->next, 0);
    const uint64_t generation = atomic_load(&pool->word) / GENERATION + 1;
    atomic_store(&pool->word, generation * GENERATION | OPEN);
    wake(pool, n_items - 1);
    run_items(pool, 0);
    atomic_fetch_and(&pool->word, ~(uint64_t)OPEN);
    wait_until_left(pool);
}

/* ---- Create and destroy -------------------------------------------------------------------- */

static bool start_workers(struct gdn_threads *pool)
{
    while (pool->n_workers < pool->n_threads - 1) {
        struct worker *w = &pool->workers[pool->n_workers];
        w->pool = pool;
        w->index = pool->n_workers + 1;
        if (!gdn_os_thread_start(&w->thread, work, w)) return false;
        pool->n_workers++;
    }
    return true;
}

struct gdn_threads *gdn_threads_create(int n_threads, const struct gdn_lender *lender,
                                       void *(*alloc)(void *, size_t, size_t),
                                       void (*release)(void *, void *), void *user)
{
    const size_t n = (size_t)n_threads;
    const size_t bytes = sizeof(struct gdn_threads) +
                         (lender ? n * sizeof(struct seat) : (n - 1) * sizeof(struct worker));
    struct gdn_threads *pool = alloc(user, bytes, 64);
    if (!pool) return NULL;
    memset(pool, 0, bytes);
    pool->n_threads = n_threads;
    pool->process = gdn_os_process();
    pool->release = release;
    pool->user = user;
    gdn_os_mutex_init(&pool->mutex);
    gdn_os_condition_init(&pool->news);
    gdn_os_condition_init(&pool->left);
    if (lender) {
        pool->lender = *lender;
        pool->seats = (struct seat *)(pool + 1);
        return pool;
    }
    pool->workers = (struct worker *)(pool + 1);
    if (start_workers(pool)) return pool;
    gdn_threads_destroy(pool);
    return NULL;
}

void gdn_threads_destroy(struct gdn_threads *pool)
{
    if (!pool) return;
    if (pool->process == gdn_os_process()) {
        atomic_fetch_or(&pool->word, STOP);
        wake(pool, pool->n_workers);
        for (int i = 0; i < pool->n_workers; i++) gdn_os_thread_join(&pool->workers[i].thread);
        gdn_os_condition_destroy(&pool->left);
        gdn_os_condition_destroy(&pool->news);
        gdn_os_mutex_destroy(&pool->mutex);
    }
    pool->release(pool->user, pool);
}

int gdn_threads_count(const struct gdn_threads *pool) { return pool->n_threads; }
