/* SPDX-License-Identifier: Apache-2.0 */
#include "generate/gpu.h"

#include <stdlib.h>

#include "internal.h"

enum { TILE = 64 }; /* of the kernel block_project */

static int failed(const struct gpu *g) { return cli_bad("%s", gdn_last_error(g->ctx)); }

/* ---- Memory ---------------------------------------------------------------------------------- */

int gpu_open(struct gpu *g, bool exact)
{
    const struct cli_device device = { .backend = "cuda" };
    memset(g, 0, sizeof *g);
    g->exact = exact;
    if (cli_open(&device, &g->ctx)) return CLI_BAD;
    return !exact && gdn_blas_open(g->ctx) ? failed(g) : CLI_OK;
}

void gpu_close(struct gpu *g)
{
    if (!g->ctx) return;
    for (size_t i = 0; i < g->n_blocks; i++) g->ctx->backend->release(g->ctx, g->blocks[i]);
    if (g->x.data) g->ctx->backend->release(g->ctx, g->x.data);
    if (g->y.data) g->ctx->backend->release(g->ctx, g->y.data);
    free(g->blocks);
    gdn_ctx_destroy(g->ctx);
    memset(g, 0, sizeof *g);
}

static int64_t elements(const gdn_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++) n *= t->size[i];
    return n;
}

/* The tensor's data becomes a new block on the device. */
static int upload(struct gpu *g, gdn_tensor *t, const float *from)
{
    void **blocks = realloc(g->blocks, (g->n_blocks + 1) * sizeof *blocks);
    if (!blocks) return cli_bad("no memory for the weights");
    g->blocks = blocks;
    if (g->ctx->backend->upload(g->ctx, from, (size_t)elements(t) * sizeof *from, &t->data))
        return failed(g);
    g->blocks[g->n_blocks++] = t->data;
    return CLI_OK;
}

int gpu_take(struct gpu *g, const gdn_ctx *loops, gdn_tensor *t)
{
    const size_t n = (size_t)elements(t);
    if (t->dtype == GDN_F32) return upload(g, t, t->data);
    float *wide = malloc(n * sizeof *wide);
    if (!wide) return cli_bad("no memory for the weights");
    loops->kr->load_row[t->dtype](wide, t->data, n);
    t->dtype       = GDN_F32;
    const int code = upload(g, t, wide);
    free(wide);
    return code;
}

static gdn_status copy(const struct gpu *g, void *to, const void *from, size_t bytes, bool up)
{
    bool pushed;
    TRY(gdn_cuda_enter(g->ctx, &pushed));
    const struct gdn_cu_api *api = &g->ctx->cuda->api;
    const gdn_cu_result r = up ? api->cuMemcpyHtoD((gdn_cu_memory)(uintptr_t)to, from, bytes)
                               : api->cuMemcpyDtoH(to, (gdn_cu_memory)(uintptr_t)from, bytes);
    gdn_cuda_leave(g->ctx, pushed);
    return r ? gdn_cuda_fail(g->ctx, r, up ? "cuMemcpyHtoD" : "cuMemcpyDtoH", "gdn generate")
             : GDN_OK;
}

int gpu_put(struct gpu *g, const gdn_tensor *t, const void *from)
{
    const size_t bytes = (size_t)elements(t) * sizeof(float);
    return copy(g, t->data, from, bytes, true) ? failed(g) : CLI_OK;
}

int gpu_get(struct gpu *g, const gdn_tensor *t, void *to)
{
    const size_t bytes = (size_t)elements(t) * sizeof(float);
    return copy(g, to, t->data, bytes, false) ? failed(g) : CLI_OK;
}

/* Reserves room for at least so many bytes; the old content is gone. */
static gdn_status reserve(struct gpu *g, struct gpu_room *room, size_t bytes)
{
    gdn_cu_memory memory = 0;
    bool          pushed;
    if (bytes <= room->bytes) return GDN_OK;
    if (room->data) g->ctx->backend->release(g->ctx, room->data);
    *room = (struct gpu_room){ 0 };
    TRY(gdn_cuda_enter(g->ctx, &pushed));
    const gdn_cu_result r = g->ctx->cuda->api.cuMemAlloc(&memory, bytes);
    gdn_cuda_leave(g->ctx, pushed);
    if (r) return gdn_cuda_fail(g->ctx, r, "cuMemAlloc", "rows of tokens");
    *room = (struct gpu_room){ (void *)(uintptr_t)memory, bytes };
    return GDN_OK;
}

static gdn_status put_rows(struct gpu *g, const void *rows, size_t bytes)
{
    TRY(reserve(g, &g->x, bytes));
    return copy(g, g->x.data, rows, bytes, true);
}

/* ---- Products -------------------------------------------------------------------------------- */

static gdn_status multiply_exactly(const struct gpu *g, const gdn_tensor *w, int64_t n)
{
    const int64_t out = w->size[0], in = w->size[1];
    const struct gdn_cu_block_project args = {
        .x           = { .data = g->x.data, .dtype = GDN_F32, .token = in * 4 },
        .weight      = { .data = w->data, .dtype = GDN_F32, .token = in * 4 },
        .out         = { .data = g->y.data, .dtype = GDN_F32, .token = out * 4 },
        .T           = n,
        .n_rows      = n,
        .n_out       = out,
        .n_in        = in,
        .x_step      = 1,
        .weight_step = 1,
    };
    const struct gdn_cuda_call call = {
        .kernel = GDN_CU_block_project,
        .grid   = { (n + TILE - 1) / TILE * ((out + TILE - 1) / TILE), 1, 1 },
        .args   = &args,
    };
    return gdn_cuda_launch(g->ctx, &call);
}

static gdn_status multiply(const struct gpu *g, const gdn_tensor *w, int64_t n)
{
    const int64_t                out = w->size[0], in = w->size[1];
    const struct gdn_blas_matrix x      = { g->x.data, GDN_F32, in, 0 };
    const struct gdn_blas_matrix weight = { w->data, GDN_F32, in, 0 };
    const struct gdn_blas_matrix y      = { g->y.data, GDN_F32, out, 0 };
    bool                         pushed;
    TRY(gdn_cuda_enter(g->ctx, &pushed));
    gdn_status status = gdn_blas_begin(g->ctx, NULL, NULL, 0);
    if (status == GDN_OK) status = gdn_blas_project(g->ctx, &y, &x, &weight, 1, n, out, in);
    gdn_cuda_leave(g->ctx, pushed);
    return status;
}

int gpu_product(struct gpu *g, const gdn_tensor *w, const float *x, float *y, int64_t tokens)
{
    const size_t in  = (size_t)(tokens * w->size[1]) * sizeof *x;
    const size_t out = (size_t)(tokens * w->size[0]) * sizeof *y;
    if (put_rows(g, x, in) || reserve(g, &g->y, out) ||
        (g->exact ? multiply_exactly : multiply)(g, w, tokens) ||
        copy(g, y, g->y.data, out, false))
        return failed(g);
    return CLI_OK;
}

int gpu_block(struct gpu *g, const gdn_block_args *args)
{
    gdn_block_args a     = *args;
    const size_t   bytes = (size_t)elements(&a.hidden) * sizeof(float);
    if (put_rows(g, args->hidden.data, bytes) || reserve(g, &g->y, bytes)) return failed(g);
    a.hidden.data = g->x.data;
    a.out.data    = g->y.data;
    if (gdn_block(g->ctx, &a) || copy(g, args->out.data, g->y.data, bytes, false)) return failed(g);
    return CLI_OK;
}
