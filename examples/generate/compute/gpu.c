/* SPDX-License-Identifier: Apache-2.0 */
#include "compute/gpu.h"

#include <stdlib.h>

#include "program/command_line.h"

/* ---- Memory ---------------------------------------------------------------------------------- */

int gpu_open(struct gpu *g, bool exact)
{
    const struct cli_device device = { .backend = "cuda" };
    memset(g, 0, sizeof *g);
    g->exact = exact;
    if (cli_open(&device, &g->ctx) || device_open(&g->device, 0)) return CLI_BAD;
    return blas_open(&g->blas);
}

void gpu_close(struct gpu *g)
{
    for (size_t i = 0; i < g->n_blocks; i++) device_free(&g->device, g->blocks[i]);
    device_free(&g->device, g->x.data);
    device_free(&g->device, g->y.data);
    free(g->blocks);
    blas_close(&g->blas);
    gdn_ctx_destroy(g->ctx);
    device_close(&g->device);
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
    const size_t bytes = (size_t)elements(t) * sizeof *from;
    void **blocks = realloc(g->blocks, (g->n_blocks + 1) * sizeof *blocks);
    if (!blocks) return cli_bad("no memory for the weights");
    g->blocks = blocks;
    if (device_alloc(&g->device, &t->data, bytes)) return CLI_BAD;
    g->blocks[g->n_blocks++] = t->data;
    return device_put(&g->device, t->data, from, bytes);
}

int gpu_take(struct gpu *g, const struct matrix *host, gdn_tensor *t)
{
    const int64_t n = elements(t);
    if (t->dtype == GDN_F32) return upload(g, t, t->data);
    float *wide = malloc((size_t)n * sizeof *wide);
    if (!wide) return cli_bad("no memory for the weights");
    matrix_widen(host, wide, t->data, t->dtype, n);
    t->dtype = GDN_F32;
    const int code = upload(g, t, wide);
    free(wide);
    return code;
}

int gpu_put(struct gpu *g, const gdn_tensor *t, const void *from)
{
    return device_put(&g->device, t->data, from, (size_t)elements(t) * sizeof(float));
}

int gpu_get(struct gpu *g, const gdn_tensor *t, void *to)
{
    return device_get(&g->device, to, t->data, (size_t)elements(t) * sizeof(float));
}

/* Reserves room for at least so many bytes; the old content is gone. */
static int reserve(struct gpu *g, struct gpu_room *room, size_t bytes)
{
    if (bytes <= room->bytes) return CLI_OK;
    device_free(&g->device, room->data);
    *room = (struct gpu_room){ 0 };
    if (device_alloc(&g->device, &room->data, bytes)) return CLI_BAD;
    room->bytes = bytes;
    return CLI_OK;
}

static int put_rows(struct gpu *g, const void *rows, size_t bytes)
{
    return reserve(g, &g->x, bytes) || device_put(&g->device, g->x.data, rows, bytes) ? CLI_BAD
                                                                                      : CLI_OK;
}

/* ---- Products -------------------------------------------------------------------------------- */

static int product_at_once(struct gpu *g, const gdn_tensor *w, const float *x, float *y,
                           int64_t tokens)
{
    const int64_t out = w->size[0], in = w->size[1];
    const size_t x_bytes = (size_t)(tokens * in) * sizeof *x;
    const size_t y_bytes = (size_t)(tokens * out) * sizeof *y;
    return put_rows(g, x, x_bytes) || reserve(g, &g->y, y_bytes) ||
                   blas_product(&g->blas, w->data, g->x.data, g->y.data, tokens, out, in) ||
                   device_get(&g->device, y, g->y.data, y_bytes)
               ? CLI_BAD
               : CLI_OK;
}

/* cuBLAS chooses its way, and so the order of its sums, by the sizes of a product. */
int gpu_product(struct gpu *g, const gdn_tensor *w, const float *x, float *y, int64_t tokens)
{
    if (!g->exact) return product_at_once(g, w, x, y, tokens);
    for (int64_t t = 0; t < tokens; t++)
        if (product_at_once(g, w, x + t * w->size[1], y + t * w->size[0], 1)) return CLI_BAD;
    return CLI_OK;
}

int gpu_block(struct gpu *g, const gdn_block_args *args)
{
    gdn_block_args a = *args;
    const size_t bytes = (size_t)elements(&a.hidden) * sizeof(float);
    if (put_rows(g, args->hidden.data, bytes) || reserve(g, &g->y, bytes)) return CLI_BAD;
    a.hidden.data = g->x.data;
    a.out.data = g->y.data;
    if (gdn_block(g->ctx, &a)) return cli_bad("%s", gdn_last_error(g->ctx));
    return device_get(&g->device, args->out.data, g->y.data, bytes);
}
