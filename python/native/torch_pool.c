/* SPDX-License-Identifier: Apache-2.0 */
#include "torch_pool.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "describe.h"

enum { MAX_DEVICES = 64, MAX_FREE = 16 };

/* Contexts that are free. The last one given back is the next one taken. */
static struct pool {
    gdn_ctx *free[MAX_FREE];
    int n;
    pid_t process;      /* of CUDA: a child of fork() must not use its parent's contexts */
    uint32_t n_threads; /* of the CPU: for which torch's number of threads they were made */
} pools[MAX_DEVICES + 1];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- torch's threads ------------------------------------------------------------------------ */

typedef void (*range_work)(int64_t begin, int64_t end, void *arg);
static int (*parallel_for)(int64_t begin, int64_t end, int64_t grain, range_work work, void *arg);
static int (*get_num_threads)(uint32_t *n);

struct job {
    gdn_work work;
    void *arg;
    int64_t n_items;
    _Atomic int64_t next;
};

/* One of torch's threads has the numbers from begin on: it works under the first of them, and
 * takes items until none is left. */
static void work_on(int64_t begin, int64_t end, void *arg)
{
    struct job *job = arg;
    (void)end;
    for (;;) {
        int64_t item = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
        if (item >= job->n_items) return;
        job->work(job->arg, item, (int32_t)begin);
    }
}

/* gdn_options.parallel_for; user is the number of threads that the context was made for. */
static void on_torch_threads(void *user, int64_t n, gdn_work work, void *arg)
{
    struct job job = { work, arg, n, 0 };
    int64_t n_threads = (int64_t)(intptr_t)user;
    if (parallel_for(0, n < n_threads ? n : n_threads, 1, work_on, &job)) work_on(0, 1, &job);
}

const char *torch_pool_look_up(void *libtorch_cpu)
{
    *(void **)&parallel_for = dlsym(libtorch_cpu, "torch_parallel_for");
    *(void **)&get_num_threads = dlsym(libtorch_cpu, "torch_get_num_threads");
    return parallel_for && get_num_threads ? NULL : "torch_parallel_for";
}

/* ---- The pool ------------------------------------------------------------------------------- */

static uint32_t threads_of_torch(void)
{
    uint32_t n = 1;
    get_num_threads(&n);
    return n ? n : 1;
}

static gdn_ctx *make(int32_t device, uint32_t n_threads, char *text, size_t text_bytes)
{
    gdn_options o = gdn_options_init();
    gdn_ctx *ctx = NULL;
    char why[400] = "";
    o.error_text = why;
    o.error_text_bytes = sizeof why;
    if (device >= 0) {
        o.backend = GDN_BACKEND_CUDA;
        o.device = device;
    } else {
        o.n_threads = (int32_t)n_threads;
        o.parallel_for = n_threads > 1 ? on_torch_threads : NULL;
        o.parallel_user = (void *)(intptr_t)n_threads;
    }
    if (gdn_library.ctx_create(&o, &ctx))
        snprintf(text, text_bytes, "gdn: no context for %s: %s",
                 device < 0 ? "the CPU" : "this GPU", why);
    return ctx;
}

bool torch_pool_has(int32_t device)
{
    if (device >= MAX_DEVICES) return false;
    pthread_mutex_lock(&lock);
    bool has = pools[device + 1].n > 0;
    pthread_mutex_unlock(&lock);
    return has;
}

gdn_ctx *torch_pool_take(int32_t device, char *text, size_t text_bytes)
{
    if (device >= MAX_DEVICES) {
        snprintf(text, text_bytes, "gdn: device %d, wanted one below %d", (int)device, MAX_DEVICES);
        return NULL;
    }
    struct pool *pool = &pools[device + 1];
    uint32_t n_threads = device < 0 ? threads_of_torch() : 0;
    pid_t process = device < 0 ? 0 : getpid();
    gdn_ctx *ctx = NULL, *old[MAX_FREE];
    int n_old = 0;
    pthread_mutex_lock(&lock);
    if (pool->n_threads != n_threads || pool->process != process) {
        if (pool->process == process)
            for (; n_old < pool->n; n_old++) old[n_old] = pool->free[n_old];
        pool->n = 0;
        pool->n_threads = n_threads;
        pool->process = process;
    }
    if (pool->n > 0) ctx = pool->free[--pool->n];
    pthread_mutex_unlock(&lock);
    while (n_old > 0) gdn_library.ctx_destroy(old[--n_old]);
    return ctx ? ctx : make(device, n_threads, text, text_bytes);
}

void torch_pool_give(int32_t device, gdn_ctx *ctx)
{
    struct pool *pool = &pools[device + 1];
    bool kept = false;
    pthread_mutex_lock(&lock);
    if (pool->n < MAX_FREE) {
        pool->free[pool->n++] = ctx;
        kept = true;
    }
    pthread_mutex_unlock(&lock);
    if (!kept) gdn_library.ctx_destroy(ctx);
}
