/* SPDX-License-Identifier: Apache-2.0 */
/* The pool: every item once, everybody woken, nothing left behind. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "core/threads.h"

#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "ring2.h"
#include "sanitized.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

/* ---- A pool whose memory is counted -------------------------------------------------------- */

static _Atomic int n_live;

static void *count_alloc(void *user, size_t bytes, size_t align)
{
    if (user) return NULL; /* the allocator that has nothing */
    n_live++;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void count_release(void *user, void *memory)
{
    (void)user;
    n_live--;
    free(memory);
}

static struct gdn_threads *new_pool(int n_threads)
{
    struct gdn_threads *pool =
        gdn_threads_create(n_threads, NULL, count_alloc, count_release, NULL);
    if (pool) return pool;
    printf("no pool of %d threads\n", n_threads);
    exit(1);
}

static void sleep_us(long us)
{
    const struct timespec t = { us / 1000000, us % 1000000 * 1000 };
    nanosleep(&t, NULL);
}

/* ---- Items --------------------------------------------------------------------------------- */

enum { MAX_ITEMS = 5000 };

struct count {
    int n_threads;
    int runs[MAX_ITEMS]; /* plain: the pool itself must order them */
    atomic_bool bad_thread;
};

static void count_item(void *arg, int64_t item, int thread)
{
    struct count *c = arg;
    c->runs[item]++;
    if (thread < 0 || thread >= c->n_threads) c->bad_thread = true;
}

static void test_every_item_once(void)
{
    static const int threads[] = { 1, 2, 3, 8 };
    static const int64_t items[] = { 0, 1, 2, 3, 7, 8, 9, 1000, MAX_ITEMS };
    struct count *c = ring2_heap(sizeof *c);
    for (int i = 0; i < 4; i++) {
        struct gdn_threads *pool = new_pool(threads[i]);
        c->n_threads = threads[i];
        CHECK(gdn_threads_count(pool) == threads[i], "%d threads", gdn_threads_count(pool));
        for (int j = 0; j < 9; j++) {
            memset(c->runs, 0, sizeof c->runs);
            gdn_parallel_for(pool, items[j], count_item, c);
            for (int64_t k = 0; k < MAX_ITEMS; k++)
                CHECK(c->runs[k] == (k < items[j]), "%d threads, %d items: item %d ran %d times",
                      threads[i], (int)items[j], (int)k, c->runs[k]);
        }
        gdn_threads_destroy(pool);
    }
    CHECK(!c->bad_thread, "a thread number out of range");
    CHECK(n_live == 0, "%d blocks of memory left", n_live);
}

/* Two threads never have the same number at the same time: per-thread scratch depends on that. */
struct scratch {
    atomic_bool busy[8];
    atomic_bool clash;
};

static void use_scratch(void *arg, int64_t item, int thread)
{
    struct scratch *s = arg;
    if (atomic_exchange(&s->busy[thread], true)) s->clash = true;
    if (item % 16 == 0) sched_yield();
    atomic_store(&s->busy[thread], false);
}

static void test_numbers_are_distinct(void)
{
    struct gdn_threads *pool = new_pool(8);
    struct scratch s = { 0 };
    for (int i = 0; i < 50; i++) gdn_parallel_for(pool, 200, use_scratch, &s);
    CHECK(!s.clash, "two threads with one number");
    gdn_threads_destroy(pool);
}

/* A chain of calls: each reads what the last call wrote, possibly on another thread. */
struct chain {
    int64_t value[4];
};

static void link_item(void *arg, int64_t item, int thread)
{
    struct chain *c = arg;
    (void)thread;
    c[1].value[item] = c[0].value[(item + 1) % 4] + 1;
}

static void test_back_to_back(void)
{
    enum { N = 20000 };
    struct gdn_threads *pool = new_pool(3);
    struct chain c[2] = { { { 0 } }, { { 0 } } };
    for (int i = 0; i < N; i++) {
        gdn_parallel_for(pool, 4, link_item, c);
        c[0] = c[1];
    }
    for (int i = 0; i < 4; i++)
        CHECK(c[0].value[i] == N, "value %d is %lld after %d calls", i, (long long)c[0].value[i],
              N);
    gdn_threads_destroy(pool);
}

/* ---- Waking -------------------------------------------------------------------------------- */

/* Items that go on only when all of them have begun, each on a thread of its own. */
struct meeting {
    int n;
    atomic_int n_here;
    atomic_bool late;
    void (*look)(struct meeting *m, int thread);
    atomic_bool found;
};

static void meet(void *arg, int64_t item, int thread)
{
    struct meeting *m = arg;
    (void)item;
    if (m->look) m->look(m, thread);
    m->n_here++;
    for (int i = 0; m->n_here < m->n; i++) {
        if (i < 100)
            sched_yield();
        else
            sleep_us(100);
        if (i > 100000) {
            m->late = true; /* 10 s: no thread was woken */
            return;
        }
    }
}

static bool all_meet(struct gdn_threads *pool, int n)
{
    struct meeting m = { .n = n };
    gdn_parallel_for(pool, n, meet, &m);
    return !m.late;
}

static void test_wakes_sleepers(void)
{
    static const long gaps_us[] = { 0, 5, 20, 30, 40, 100, 1000 };
    struct gdn_threads *pool = new_pool(4);
    for (int i = 0; i < 400 && !ring2_failed(); i++) {
        const int n = 2 + i % 3; /* fewer than all: single wake-ups too */
        const long gap = gaps_us[i % 7];
        if (gap) sleep_us(gap);
        CHECK(all_meet(pool, n), "round %d: %d items did not find %d threads", i, n, n);
    }
    gdn_threads_destroy(pool);
}

static void wait_long(void *arg, int64_t item, int thread)
{
    (void)arg;
    if (thread > 0 || item == 1) sleep_us(300); /* the caller is asleep when the worker leaves */
}

static void test_caller_sleeps(void)
{
    struct gdn_threads *pool = new_pool(2);
    for (int i = 0; i < 200; i++) gdn_parallel_for(pool, 2, wait_long, NULL);
    gdn_threads_destroy(pool);
}

/* Returns the processor time that this process takes while its threads have no work. */
static void test_idle_threads_sleep(void)
{
    struct gdn_threads *pool = new_pool(4);
    struct timespec before, after;
    CHECK(all_meet(pool, 4), "four threads");
    sleep_us(20000); /* past any spinning */
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    sleep_us(200000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    const double ms = (double)(after.tv_sec - before.tv_sec) * 1e3 +
                      (double)(after.tv_nsec - before.tv_nsec) / 1e6;
    CHECK(ms < 20, "%.1f ms of processor time in 200 ms of idleness", ms);
    gdn_threads_destroy(pool);
}

static void test_destroy_at_once(void)
{
    struct count *c = ring2_heap(sizeof *c);
    c->n_threads = 4;
    gdn_threads_destroy(NULL);
    for (int i = 0; i < 100; i++) {
        struct gdn_threads *pool = new_pool(4);
        if (i % 2) gdn_parallel_for(pool, 8, count_item, c);
        if (i % 4 > 1) sleep_us(200);
        gdn_threads_destroy(pool);
    }
    CHECK(c->runs[0] == 50, "%d runs in 50 calls", c->runs[0]);
    CHECK(n_live == 0, "%d blocks of memory left", n_live);
}

/* ---- Independent pools --------------------------------------------------------------------- */

static void *use_own_pool(void *arg)
{
    struct gdn_threads *pool = new_pool(2);
    for (int i = 0; i < 500; i++) gdn_parallel_for(pool, 50, count_item, arg);
    gdn_threads_destroy(pool);
    return NULL;
}

static void test_two_pools(void)
{
    struct count *c[2];
    pthread_t thread[2];
    for (int i = 0; i < 2; i++) {
        c[i] = ring2_heap(sizeof **c);
        c[i]->n_threads = 2;
        if (pthread_create(&thread[i], NULL, use_own_pool, c[i])) exit(1);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(thread[i], NULL);
        for (int k = 0; k < 50; k++)
            CHECK(c[i]->runs[k] == 500, "pool %d: item %d ran %d times", i, k, c[i]->runs[k]);
    }
}

/* ---- What a worker inherits ---------------------------------------------------------------- */

static void look_at_signals(struct meeting *m, int thread)
{
    sigset_t set;
    pthread_sigmask(SIG_BLOCK, NULL, &set);
    const int blocked = sigismember(&set, SIGINT) && sigismember(&set, SIGUSR1) &&
                        sigismember(&set, SIGTERM) && sigismember(&set, SIGALRM);
    const int free_of = !sigismember(&set, SIGINT) && !sigismember(&set, SIGUSR1);
    if (thread > 0 ? !blocked : !free_of) m->found = true;
}

static void test_signals(void)
{
    struct gdn_threads *pool = new_pool(3);
    struct meeting m = { .n = 3, .look = look_at_signals };
    gdn_parallel_for(pool, 3, meet, &m);
    CHECK(!m.late, "three threads did not meet");
    CHECK(!m.found, "a worker takes signals, or the caller does not");
    gdn_threads_destroy(pool);
}

static void look_at_floats(struct meeting *m, int thread)
{
    if (thread == 0) return; /* the caller's own mode is for gdn_fp_enter() in the op */
#if defined(__SSE__)
    if ((_mm_getcsr() & ~0x3fu) != 0x1f80) m->found = true; /* fegetround() asks the x87 unit */
#else
    if (fegetround() != FE_TONEAREST) m->found = true;
#endif
}

static void test_float_environment(void)
{
    struct meeting m = { .n = 3, .look = look_at_floats };
    fesetround(FE_UPWARD);
#if defined(__SSE__)
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040); /* flush to zero, denormals are zero */
#endif
    struct gdn_threads *pool = new_pool(3);
    gdn_parallel_for(pool, 3, meet, &m);
    const int caller = fegetround();
#if defined(__SSE__)
    _mm_setcsr(before);
#endif
    fesetround(FE_TONEAREST);
    CHECK(!m.late, "three threads did not meet");
    CHECK(!m.found, "a worker inherited the float mode of the thread that made it");
    CHECK(caller == FE_UPWARD, "the caller's rounding mode changed");
    gdn_threads_destroy(pool);
}

/* ---- A lender that is wrong ------------------------------------------------------------------ */

/* The task that the lender got, so that an item can run another item in the same seat. */
static struct {
    gdn_task *task;
    void *arg;
} lent;

static void lend_serially(void *user, int64_t n_items, gdn_task *task, void *arg)
{
    (void)user;
    lent.task = task;
    lent.arg = arg;
    for (int64_t i = 0; i < n_items; i++) task(arg, i, (int)(i % 2));
}

static void count_nested(void *arg, int64_t item, int thread)
{
    int *runs = arg;
    runs[item]++;
    if (item == 0) lent.task(lent.arg, 2, thread); /* the number is in use */
    if (item == 1) lent.task(lent.arg, 3, 1 - thread);
}

static void test_wrong_lender(void)
{
    const struct gdn_lender lender = { lend_serially, NULL };
    int runs[4] = { 0 };
    struct gdn_threads *pool = gdn_threads_create(2, &lender, count_alloc, count_release, NULL);
    gdn_parallel_for(pool, 4, count_nested, runs);
    const char *broken = gdn_threads_broken(pool);
    CHECK(broken && strstr(broken, "twice at a time"), "noticed: %s", broken ? broken : "nothing");
    CHECK(runs[2] == 1, "an item ran %d times beside another of its number", runs[2]);
    CHECK(runs[3] == 2, "an item ran %d times, each with a number of its own", runs[3]);
    CHECK(!gdn_threads_broken(pool), "asked twice");

    lent.task(lent.arg, 0, 0); /* the call is over */
    CHECK(runs[0] == 1, "an item of a call that is over ran");
    CHECK(gdn_threads_broken(pool), "it was not noticed");
    gdn_threads_destroy(pool);
    CHECK(n_live == 0, "%d blocks of memory left", n_live);
}

/* ---- Failures ------------------------------------------------------------------------------ */

static void test_no_memory(void)
{
    int nothing;
    CHECK(!gdn_threads_create(4, NULL, count_alloc, count_release, &nothing),
          "a pool without memory");
    CHECK(n_live == 0, "%d blocks of memory left", n_live);
}

#ifdef __linux__
/* Address space for some stacks, not for all. */
static void test_no_threads(void)
{
    struct rlimit before, tight;
    long pages = 0;
    if (WITH_ASAN || WITH_TSAN) { /* which have no room in so little */
        ring2_skip("a sanitizer takes address space");
        return;
    }
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld", &pages) != 1 || getrlimit(RLIMIT_AS, &before))
        ring2_skip("the size of this process is unknown");
    if (file) fclose(file);
    if (pages == 0) return;
    tight = before;
    tight.rlim_cur = (rlim_t)pages * 4096 + (64 << 20);
    setrlimit(RLIMIT_AS, &tight);
    struct gdn_threads *pool = gdn_threads_create(1000, NULL, count_alloc, count_release, NULL);
    setrlimit(RLIMIT_AS, &before);
    CHECK(!pool, "a thousand stacks in 64 MiB");
    CHECK(n_live == 0, "%d blocks of memory left", n_live);
    gdn_threads_destroy(pool);
}
#else
static void test_no_threads(void) { ring2_skip("needs RLIMIT_AS"); }
#endif

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "threads: every item once", test_every_item_once },
        { "threads: numbers are distinct", test_numbers_are_distinct },
        { "threads: back to back", test_back_to_back },
        { "threads: sleepers are woken", test_wakes_sleepers },
        { "threads: a sleeping caller is woken", test_caller_sleeps },
        { "threads: idle threads sleep", test_idle_threads_sleep },
        { "threads: destroyed at once", test_destroy_at_once },
        { "threads: two pools at once", test_two_pools },
        { "threads: workers block signals", test_signals },
        { "threads: workers have the default float environment", test_float_environment },
        { "threads: a wrong lender is noticed", test_wrong_lender },
        { "threads: no memory", test_no_memory },
        { "threads: no threads", test_no_threads },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
