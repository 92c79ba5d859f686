/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#include <string.h>

#include "cli.h"
#include "internal.h"

enum {
    MIN_ROUNDS = 13,
    FLUSH_BYTES = 256 << 20,
    COPY_BYTES = 512 << 20,
    MATRIX = 8192, /* of the matrix product: n x n, bf16 */
    SCALE_THREADS = 512,
};

/* The work that is timed between two events. */
struct timed {
    gdn_ctx *ctx;
    gdn_status (*run)(struct timed *t);
    gdn_op op;
    const void *args;
    gdn_cu_memory memory; /* of a yardstick: both buffers, one after the other */
    size_t bytes;
};

struct timer {
    gdn_ctx *ctx;
    gdn_cu_event begin, end;
    gdn_cu_memory flush;
};

static gdn_status open_timer(struct timer *t, gdn_ctx *ctx)
{
    *t = (struct timer){ .ctx = ctx };
    GDN_CU(ctx, "timing", cuEventCreate, (&t->begin, 0));
    GDN_CU(ctx, "timing", cuEventCreate, (&t->end, 0));
    GDN_CU(ctx, "timing", cuMemAlloc, (&t->flush, FLUSH_BYTES));
    return GDN_OK;
}

static void close_timer(struct timer *t)
{
    const struct gdn_cu_api *api = &t->ctx->cuda->api;
    if (t->begin) api->cuEventDestroy(t->begin);
    if (t->end) api->cuEventDestroy(t->end);
    if (t->flush) api->cuMemFree(t->flush);
}

/* Times the op once. All launches are on the stream before the flush has ended, so the host code is
 * not in the time. */
static gdn_status time_once(const struct timer *t, struct timed *work, double *seconds)
{
    float ms = 0;
    GDN_CU(t->ctx, "timing", cuMemsetD8Async, (t->flush, 1, FLUSH_BYTES, NULL));
    GDN_CU(t->ctx, "timing", cuEventRecord, (t->begin, NULL));
    TRY(work->run(work));
    GDN_CU(t->ctx, "timing", cuEventRecord, (t->end, NULL));
    GDN_CU(t->ctx, "timing", cuEventSynchronize, (t->end));
    GDN_CU(t->ctx, "timing", cuEventElapsedTime, (&ms, t->begin, t->end));
    *seconds = 1e-3 * (double)ms;
    return GDN_OK;
}

/* ---- What is timed ------------------------------------------------------------------------- */

static gdn_status run_op(struct timed *t) { return gdn_run_op(t->ctx, t->op, t->args); }

static gdn_status run_scale(struct timed *t)
{
    const struct gdn_cu_yardstick args = { .x = (void *)(uintptr_t)t->memory,
                                           .n = (int64_t)(t->bytes / 16),
                                           .factor = 1 };
    const struct gdn_cuda_call call = {
        .kernel = GDN_CU_yardstick_scale,
        .grid = { (args.n + 4 * SCALE_THREADS - 1) / (4 * SCALE_THREADS), 1, 1 },
        .args = &args,
    };
    return gdn_cuda_launch(t->ctx, &call);
}

static gdn_status run_copy(struct timed *t)
{
    GDN_CU(t->ctx, "a copy", cuMemcpyDtoDAsync,
           (t->memory + t->bytes / 2, t->memory, t->bytes / 2, NULL));
    return GDN_OK;
}

static gdn_status run_product(struct timed *t)
{
    const gdn_cu_memory part = (gdn_cu_memory)MATRIX * MATRIX * 2;
    struct gdn_blas_matrix m[3];
    for (int i = 0; i < 3; i++)
        m[i] = (struct gdn_blas_matrix){ (void *)(uintptr_t)(t->memory + (gdn_cu_memory)i * part),
                                         GDN_BF16, MATRIX, 0 };
    TRY(gdn_blas_begin(t->ctx, NULL, NULL, 0));
    return gdn_blas_project(t->ctx, &m[0], &m[1], &m[2], 1, MATRIX, MATRIX, MATRIX);
}

/* ---- Calls --------------------------------------------------------------------------------- */

/* Runs a layer on copies that are thrown away: the first call of its sizes opens cuBLAS and loads
 * its kernels, which is no part of a layer's time. */
static gdn_status warm_up_layer(gdn_ctx *ctx, const void *args)
{
    struct gdn_mirror m;
    TRY(gdn_mirror_open(ctx, GDN_OP_BLOCK, args, &m));
    const gdn_status status = gdn_run_op(ctx, GDN_OP_BLOCK, &m.args);
    gdn_mirror_close(&m);
    return status;
}

gdn_status device_timed_call(gdn_ctx *ctx, gdn_op op, const void *args, double *seconds)
{
    struct gdn_mirror m;
    struct timer timer;
    bool pushed;
    if (op == GDN_OP_BLOCK) TRY(warm_up_layer(ctx, args));
    TRY(gdn_mirror_open(ctx, op, args, &m));
    gdn_status status = gdn_cuda_enter(ctx, &pushed);
    if (status == GDN_OK) {
        struct timed work = { .ctx = ctx, .run = run_op, .op = op, .args = &m.args };
        status = open_timer(&timer, ctx);
        if (status == GDN_OK) status = time_once(&timer, &work, seconds);
        close_timer(&timer);
        gdn_cuda_leave(ctx, pushed);
    }
    if (status == GDN_OK) status = gdn_mirror_back(&m);
    gdn_mirror_close(&m);
    return status;
}

/* Fills a yardstick with random bf16 near 1, which make a matrix product draw as much power as real
 * work. */
static gdn_status fill_yardstick(gdn_ctx *ctx, gdn_cu_memory memory, size_t bytes)
{
    uint16_t block[1 << 12];
    uint32_t random = 1;
    for (size_t at = 0; at < bytes; at += sizeof block) {
        for (size_t i = 0; i < sizeof block / sizeof *block && at % (1 << 20) == 0; i++) {
            random = random * 1664525 + 1013904223;
            block[i] = (uint16_t)(0x3f00 | (random >> 16 & 0x80ff));
        }
        GDN_CU(ctx, "a yardstick", cuMemcpyHtoD, (memory + at, block, sizeof block));
    }
    return GDN_OK;
}

/* Times the rounds of one thing: its median, or its best in seconds. */
static gdn_status time_rounds(const struct timer *timer, struct timed *work, int n,
                              struct summary *ms, double *best)
{
    double samples[BENCH_MAX_ROUNDS];
    *best = 1e30;
    for (int i = -2; i < n; i++) { /* two to warm up */
        double seconds = 0;
        TRY(time_once(timer, work, &seconds));
        if (i < 0) continue;
        samples[i] = 1e3 * seconds;
        if (seconds < *best) *best = seconds;
    }
    *ms = measure_summary(samples, n);
    return GDN_OK;
}

static gdn_status time_yardsticks(struct bench *b, const struct timer *timer)
{
    const size_t needed = 3 * (size_t)MATRIX * MATRIX * 2;
    const size_t most = COPY_BYTES > needed ? COPY_BYTES : needed;
    struct summary ms;
    double best = 1; /* after an error */
    struct timed work = { .ctx = b->ctx };
    const size_t footprint = (b->footprint + 15) / 16 * 16;
    const size_t bytes = footprint > most ? footprint : most;
    TRY(gdn_blas_open(b->ctx));
    GDN_CU(b->ctx, "a yardstick", cuMemAlloc, (&work.memory, bytes));
    gdn_status status = fill_yardstick(b->ctx, work.memory, needed);
    work.run = run_product;
    if (status == GDN_OK) status = time_rounds(timer, &work, MIN_ROUNDS, &ms, &best);
    b->product = 2.0 * MATRIX * MATRIX * MATRIX / best;
    work.run = run_copy;
    work.bytes = COPY_BYTES;
    if (status == GDN_OK) status = time_rounds(timer, &work, MIN_ROUNDS, &ms, &best);
    b->copy = (double)COPY_BYTES / best;
    b->peak = b->product;
    if (status == GDN_OK && b->by_memory) {
        work.run = run_scale;
        work.bytes = footprint;
        status = time_rounds(timer, &work, MIN_ROUNDS, &ms, &best);
        b->peak = 2 * (double)footprint / best;
    }
    b->ctx->cuda->api.cuMemFree(work.memory);
    return status;
}

static gdn_status time_calls(struct bench *b, const struct timer *timer)
{
    for (int i = 0; i < b->n_calls; i++) {
        struct bench_call *c = &b->calls[i];
        struct gdn_mirror m;
        double best;
        TRY(gdn_mirror_open(b->ctx, c->op, c->args, &m));
        struct timed work = { .ctx = b->ctx, .run = run_op, .op = c->op, .args = &m.args };
        const gdn_status status = time_rounds(timer, &work, b->n_rounds, &c->ms, &best);
        gdn_mirror_close(&m);
        TRY(status);
    }
    return GDN_OK;
}

int device_rounds(struct bench *b)
{
    struct timer timer;
    bool pushed;
    b->n_rounds = b->seconds < 2 ? MIN_ROUNDS : 3 * MIN_ROUNDS;
    gdn_status status = gdn_cuda_enter(b->ctx, &pushed);
    if (status != GDN_OK) return cli_failed(b->ctx, status);
    status = open_timer(&timer, b->ctx);
    if (status == GDN_OK) status = time_calls(b, &timer);
    if (status == GDN_OK) status = time_yardsticks(b, &timer);
    close_timer(&timer);
    gdn_cuda_leave(b->ctx, pushed);
    return status == GDN_OK ? CLI_OK : cli_failed(b->ctx, status);
}
