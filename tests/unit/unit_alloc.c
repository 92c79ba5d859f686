/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory and threads that cannot be had: every allocation of every call fails in turn, and every
 * start of a thread. Nothing may be lost (outputs, the context) or leaked, and nothing taken
 * from elsewhere: the linker sends what the library would ask of the C library here (--wrap).
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend.h"
#include "core/ctx.h"
#include "gdn_blob.h"
#include "gdn_research.h"
#include "ring2_memory.h"
#include "ring2_replay.h"

/* ---- Allocations through the C library ------------------------------------------------------ */

static atomic_bool watched;
static atomic_int n_strays, n_starts, fail_start; /* the start that fails; 0: none */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t align, size_t bytes);
int __real_posix_memalign(void **memory, size_t align, size_t bytes);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
                          void *arg);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes);
int __wrap_posix_memalign(void **memory, size_t align, size_t bytes);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
                          void *arg);

void *__wrap_malloc(size_t bytes)
{
    n_strays += watched;
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    n_strays += watched;
    return __real_calloc(n, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    n_strays += watched;
    return __real_realloc(memory, bytes);
}

void *__wrap_aligned_alloc(size_t align, size_t bytes)
{
    n_strays += watched;
    return __real_aligned_alloc(align, bytes);
}

int __wrap_posix_memalign(void **memory, size_t align, size_t bytes)
{
    n_strays += watched;
    return __real_posix_memalign(memory, align, bytes);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
                          void *arg)
{
    if (++n_starts == fail_start) return 11; /* EAGAIN */
    return __real_pthread_create(thread, attr, start, arg);
}

/* ---- Hooks --------------------------------------------------------------------------------- */

static gdn_ctx *create(struct ring2_memory *m, int n_threads)
{
    gdn_options o = ring2_memory_options(m, n_threads);
    gdn_ctx *ctx = NULL;
    ring2_status(NULL, "create", gdn_ctx_create(&o, &ctx), GDN_OK);
    return ctx;
}

static void destroy(gdn_ctx *ctx, const struct ring2_memory *m)
{
    gdn_ctx_destroy(ctx);
    CHECK(m->n_live == 0, "%d blocks left", m->n_live);
    CHECK(n_strays == 0, "%d allocations past the hooks", (int)n_strays);
}

/* ---- The context --------------------------------------------------------------------------- */

static void in_order(void *user, int64_t n, gdn_work work, void *arg)
{
    (void)user;
    for (int64_t i = 0; i < n; i++) work(arg, i, 0);
}

static void creation(void)
{
    for (int lent = 0; lent < 2; lent++)
        for (int n = 1; n <= 3; n++) {
            struct ring2_memory m = { .fail_at = n };
            gdn_options o = ring2_memory_options(&m, 3);
            gdn_ctx *ctx = NULL;
            char text[100] = "";
            o.parallel_for = lent ? in_order : NULL;
            o.error_text = text;
            o.error_text_bytes = sizeof text;
            watched = true;
            const gdn_status status = gdn_ctx_create(&o, &ctx);
            watched = false;
            ring2_status(NULL, text, status, n <= 2 ? GDN_E_MEMORY : GDN_OK);
            CHECK(!ctx == (n <= 2), "allocation %d: a context after an error, or none", n);
            CHECK(n > 2 || strstr(text, "memory"), "text \"%s\"", text);
            destroy(ctx, &m);
        }
}

/* Without hooks the library calls malloc(), which this program replaces. */
static void without_hooks(void)
{
    gdn_ctx *ctx = NULL;
    watched = true;
    ring2_status(NULL, "create", gdn_ctx_create(NULL, &ctx), GDN_OK);
    watched = false;
    CHECK(n_strays > 0, "no allocation was seen");
    n_strays = 0;
    gdn_ctx_destroy(ctx);
}

static void threads(void)
{
    for (int n = 1; n <= 4; n++) {
        struct ring2_memory m = { 0 };
        gdn_options o = ring2_memory_options(&m, 4);
        gdn_ctx *ctx = NULL;
        char text[100] = "";
        o.error_text = text;
        o.error_text_bytes = sizeof text;
        n_starts = 0;
        fail_start = n;
        const gdn_status status = gdn_ctx_create(&o, &ctx);
        fail_start = 0;
        ring2_status(NULL, text, status, n <= 3 ? GDN_E_MEMORY : GDN_OK);
        CHECK(!ctx == (n <= 3), "thread %d: a context after an error, or none", n);
        CHECK(n > 3 || strstr(text, "threads for 4"), "text \"%s\"", text);
        destroy(ctx, &m);
    }
}

/* ---- Every op ------------------------------------------------------------------------------ */

/* The call in a new context, whose allocation n fails: it is refused, and nothing has changed.
 * Then the same call in the same context works. Returns false if there is no allocation n. */
static bool fail_one(const struct ring2_replay *r, int n)
{
    struct ring2_memory m = { 0 };
    gdn_ctx *ctx = create(&m, 2);
    m.fail_at = m.n_calls + n;
    ring2_replay_reset(r);
    watched = true;
    const gdn_status status = gdn_run_op(ctx, r->op, &r->call);
    watched = false;
    const bool failed = m.n_calls >= m.fail_at;
    ring2_status(ctx, "the call", status, failed ? GDN_E_MEMORY : GDN_OK);
    if (failed) {
        CHECK(!memcmp(r->draw.arena, r->before, r->draw.used), "op %d: a byte changed", (int)r->op);
        CHECK(strstr(gdn_last_error(ctx), "memory"), "text \"%s\"", gdn_last_error(ctx));
        ring2_status(ctx, "again", gdn_run_op(ctx, r->op, &r->call), GDN_OK);
    }
    ring2_replay_expect(r, failed ? "again" : "the call");
    destroy(ctx, &m);
    return failed;
}

static void ops(void)
{
    enum { CALLS = 10 };
    struct ring2_replay r;
    int n_failed[RING2_N_OPS] = { 0 };
    ring2_replay_init(&r, false);
    for (int i = 0; i < RING2_N_OPS * CALLS && !ring2_failed(); i++) {
        const gdn_op op = (gdn_op)(i / CALLS);
        if (!ring2_has_op(ring2_ctx(2), op)) continue;
        ring2_replay_draw(&r, ring2_ctx(2), op);
        for (int n = 1; fail_one(&r, n); n++) n_failed[op]++;
    }
    for (int op = 0; op < RING2_N_OPS; op++) {
        const bool none = !ring2_ctx(2)->backend->ops[op]->plan || /* no workspace */
                          !ring2_has_op(ring2_ctx(2), (gdn_op)op);
        CHECK(none || n_failed[op], "op %d: no allocation failed", op);
    }
}

/* B sequences of one token: a buffer that grows with B. */
static gdn_status call_with(gdn_ctx *ctx, int B)
{
    static const int32_t cu[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 };
    float x[32] = { 0 }, y[32];
    gdn_batch batch = gdn_batch_init();
    gdn_chunk_cumsum_args a = gdn_chunk_cumsum_args_init();
    batch.cu_seqlens = gdn_dense((void *)(uintptr_t)cu, GDN_I32, 1, B + 1, 0, 0, 0);
    a.batch = &batch;
    a.chunk_size = 4;
    a.g = gdn_dense(x, GDN_F32, 2, B, 2, 0, 0);
    a.out = gdn_dense(y, GDN_F32, 2, B, 2, 0, 0);
    return gdn_chunk_cumsum(ctx, &a);
}

/* A larger call after a smaller one: the buffer grows, and cannot. */
static void growth(void)
{
    struct ring2_memory m = { 0 };
    gdn_ctx *ctx = create(&m, 2);
    for (int B = 2; B <= 16; B++) {
        m.fail_at = m.n_calls + 1;
        ring2_status(ctx, "no memory", call_with(ctx, B), GDN_E_MEMORY);
        m.fail_at = 0;
        ring2_status(ctx, "a smaller one", call_with(ctx, 1), GDN_OK);
        ring2_status(ctx, "the same", call_with(ctx, B), GDN_OK);
    }
    destroy(ctx, &m);
}

/* ---- Blobs, self-test ---------------------------------------------------------------------- */

static gdn_status save_and_load(gdn_ctx *ctx)
{
    static float pool[3 * 2 * 4 * 5];
    static int64_t blob[1024];
    gdn_blob_args a = gdn_blob_args_init();
    a.state = gdn_dense(pool, GDN_F32, 4, 3, 2, 5, 4);
    a.n_key_heads = 1, a.n_value_heads = 2, a.key_head_dim = 4, a.value_head_dim = 5;
    a.blob = blob;
    a.blob_bytes = sizeof blob;
    gdn_status s = gdn_blob_bytes(ctx, &a, &a.blob_bytes);
    if (s == GDN_OK) s = gdn_blob_save(ctx, &a);
    if (s == GDN_OK) s = gdn_blob_load(ctx, &a);
    return s;
}

static void others(void)
{
    gdn_status (*const calls[])(gdn_ctx *) = { save_and_load, gdn_self_test };
    for (int i = 0; i < 2; i++)
        for (int n = 1, failed = 1; failed; n++) {
            struct ring2_memory m = { 0 };
            gdn_ctx *ctx = create(&m, 2);
            m.fail_at = m.n_calls + n;
            watched = true;
            const gdn_status status = calls[i](ctx);
            watched = false;
            failed = m.n_calls >= m.fail_at;
            m.fail_at = 0;
            ring2_status(ctx, "the call", status, failed ? GDN_E_MEMORY : GDN_OK);
            ring2_status(ctx, "again", calls[i](ctx), GDN_OK);
            CHECK(failed || n > 1, "call %d: nothing was allocated", i);
            destroy(ctx, &m);
        }
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "memory: the context, allocation by allocation", creation },
        { "memory: without hooks", without_hooks },
        { "memory: the context, thread by thread", threads },
        { "memory: every op, allocation by allocation", ops },
        { "memory: a buffer that cannot grow", growth },
        { "memory: blobs and the self-test", others },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
