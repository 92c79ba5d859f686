/* SPDX-License-Identifier: Apache-2.0 */
/* Calls on tensors in host memory, and times of a device's kernels. */
#include "core/tensor_check.h"
#include "cuda/driver/blas.h"
#include "cuda/driver/launch.h"
#include "internal/internal.h"
#include "ops/mirror.h"
#include "ops/op_table.h"

enum {
    WARM_UP = 2, /* rounds that are not counted */
    ROUNDS = 13, /* of a yardstick */
    FLUSH_BYTES = 256 << 20,
    COPY_BYTES = 512 << 20,
    MATRIX = 8192, /* of the matrix product: n x n, bf16 */
    MATRIX_BYTES = MATRIX * MATRIX * 2,
    SCALE_THREADS = 512,
};

/* The work that is timed between two events. */
struct timed {
    gdn_ctx *ctx;
    gdn_status (*run)(struct timed *t);
    gdn_op op;
    const void *args;
    gdn_cu_memory memory; /* the two buffers of a yardstick, side by side */
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

/* Times the work once. All launches are on the stream before the flush has ended, so the host code
 * is not in the time. */
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

/* Times n rounds of the work, after warm_up rounds that do not count. */
static gdn_status time_work(struct timed *work, int warm_up, int n, double *seconds)
{
    struct timer timer;
    bool pushed;
    TRY(gdn_cuda_enter(work->ctx, &pushed));
    gdn_status status = open_timer(&timer, work->ctx);
    for (int i = -warm_up; i < n && status == GDN_OK; i++)
        status = time_once(&timer, work, &seconds[i < 0 ? 0 : i]);
    close_timer(&timer);
    gdn_cuda_leave(work->ctx, pushed);
    return status;
}

/* ---- Ops ------------------------------------------------------------------------------------- */

gdn_status gdn_internal_call(gdn_ctx *ctx, gdn_op op, const void *args)
{
    return gdn_call_op(ctx, op, args);
}

static gdn_status run_op(struct timed *t) { return gdn_run_op(t->ctx, t->op, t->args); }

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

gdn_status gdn_internal_timed_call(gdn_ctx *ctx, gdn_op op, const void *args, double *seconds)
{
    struct gdn_mirror m;
    if (op == GDN_OP_BLOCK) TRY(warm_up_layer(ctx, args));
    TRY(gdn_mirror_open(ctx, op, args, &m));
    struct timed work = { .ctx = ctx, .run = run_op, .op = op, .args = &m.args };
    gdn_status status = time_work(&work, 0, 1, seconds);
    if (status == GDN_OK) status = gdn_mirror_back(&m);
    gdn_mirror_close(&m);
    return status;
}

gdn_status gdn_internal_time_rounds(gdn_ctx *ctx, gdn_op op, const void *args, int n,
                                    double *seconds)
{
    struct gdn_mirror m;
    TRY(gdn_mirror_open(ctx, op, args, &m));
    struct timed work = { .ctx = ctx, .run = run_op, .op = op, .args = &m.args };
    const gdn_status status = time_work(&work, WARM_UP, n, seconds);
    gdn_mirror_close(&m);
    return status;
}

/* ---- Yardsticks ------------------------------------------------------------------------------ */

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
    struct gdn_blas_matrix m[3];
    for (int i = 0; i < 3; i++)
        m[i] = (struct gdn_blas_matrix){
            (void *)(uintptr_t)(t->memory + (gdn_cu_memory)i * MATRIX_BYTES), GDN_BF16, MATRIX, 0
        };
    const struct gdn_blas_projection p = { m[0], m[1], m[2], 1, MATRIX, MATRIX, MATRIX };
    TRY(gdn_blas_begin(t->ctx, NULL, NULL, 0));
    return gdn_blas_project(t->ctx, &p);
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
        const size_t n = bytes - at < sizeof block ? bytes - at : sizeof block;
        GDN_CU(ctx, "a yardstick", cuMemcpyHtoD, (memory + at, block, n));
    }
    return GDN_OK;
}

/* Fills memory of the device for the yardstick. */
static gdn_status open_yardstick(struct timed *work)
{
    bool pushed;
    TRY(gdn_cuda_enter(work->ctx, &pushed));
    gdn_status status = work->run == run_product ? gdn_blas_open(work->ctx) : GDN_OK;
    if (status == GDN_OK) {
        const gdn_cu_result result = work->ctx->cuda->api.cuMemAlloc(&work->memory, work->bytes);
        if (result) status = gdn_cuda_fail(work->ctx, result, "cuMemAlloc", "a yardstick");
    }
    if (status == GDN_OK) status = fill_yardstick(work->ctx, work->memory, work->bytes);
    gdn_cuda_leave(work->ctx, pushed);
    return status;
}

static void close_yardstick(struct timed *work)
{
    bool pushed;
    if (!work->memory || gdn_cuda_enter(work->ctx, &pushed)) return;
    work->ctx->cuda->api.cuMemFree(work->memory);
    gdn_cuda_leave(work->ctx, pushed);
}

gdn_status gdn_internal_yardstick(gdn_ctx *ctx, enum gdn_yardstick kind, size_t bytes,
                                  double *per_second)
{
    const size_t scaled = (bytes + 15) / 16 * 16;
    const struct {
        gdn_status (*run)(struct timed *t);
        size_t bytes;
        double work;
    } yardsticks[] = {
        [GDN_YARDSTICK_COPY] = { run_copy, COPY_BYTES, COPY_BYTES },
        [GDN_YARDSTICK_SCALE] = { run_scale, scaled, 2 * (double)scaled },
        [GDN_YARDSTICK_PRODUCT] = { run_product, 3 * (size_t)MATRIX_BYTES,
                                    2.0 * MATRIX * MATRIX * MATRIX },
    };
    struct timed work = { .ctx = ctx,
                          .run = yardsticks[kind].run,
                          .bytes = yardsticks[kind].bytes };
    double seconds[ROUNDS], best = 1e30;
    gdn_status status = open_yardstick(&work);
    if (status == GDN_OK) status = time_work(&work, WARM_UP, ROUNDS, seconds);
    for (int i = 0; i < ROUNDS && status == GDN_OK; i++)
        if (seconds[i] < best) best = seconds[i];
    close_yardstick(&work);
    *per_second = yardsticks[kind].work / best;
    return status;
}
