/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps of a layer's gradients on a CPU, in float32. The inner loop multiplies rows by rows, so
 * a product of columns turns pieces of them first:
 *
 *     AS_FORWARD   out = a b^T   b as the forward's weights (cpu/project.c)
 *     BY_PANELS    out = a b     an item is a panel of b's columns
 *     BY_BLOCKS    out = a^T b   tokens are summed a block at a time: rows of a are turned once,
 *                                then an item is a panel of b's columns
 *     EMPTY        out = 0       there are no tokens to sum
 *
 * Sums are in the order of blocks and pieces, whoever computes them.
 */
#include "calls/layer_backward.h"

#include <string.h>

#include "calls/op_backends.h"
#include "cpu/project.h"
#include "cpu/rows.h"

/* PANEL: a multiple of the register tiles, 6 and 3. */
enum { PANEL = 48, DEPTH = 256, TILE = 64, WINDOW = 256 };

enum form { AS_FORWARD, BY_PANELS, BY_BLOCKS, EMPTY };

typedef float panel[PANEL * DEPTH];

/* A thread's: a panel with its rows side by side, and as it is loaded. */
struct panels {
    panel turned, loaded;
};

struct product {
    const struct gdn_kernels *kr;
    const struct gdn_matrix_product *p;
    struct panels *panels; /* of threads */
    float *turned;         /* [m][DEPTH], rows [first, first + depth) of a */
    int64_t first;
    int depth;
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static size_t thread_bytes(void)
{
    return sizeof(struct panels) > gdn_project_scratch() ? sizeof(struct panels)
                                                         : gdn_project_scratch();
}

static size_t threads_bytes(const gdn_ctx *ctx)
{
    return (size_t)gdn_threads_count(ctx->threads) * thread_bytes();
}

static float *at(const struct gdn_matrix *m, int64_t row, int64_t column)
{
    return (float *)m->data + row * m->row + column * m->column;
}

/* Multiplies tiles. Some rows of a stay in a cache while the inner loop passes over them for every
 * few rows of b. */
static void multiply_tiles(const struct product *x, int64_t column, const float *a, int64_t lda,
                           const float *b, int n, int depth, bool adds)
{
    const struct gdn_matrix_product *p = x->p;
    for (int64_t i = 0; i < p->m; i += TILE)
        x->kr->gemm_nt(at(&p->out, i, column), p->out.row, a + i * lda, lda, b, DEPTH,
                       (int)least(p->m - i, TILE), n, depth, adds);
}

/* ---- out = a b ----------------------------------------------------------------------------- */

/* Copies rows [k, k + depth) of n columns of b to the scratch, transposed. */
static void turn_weight(const struct product *x, struct panels *s, int64_t first, int n, int64_t k,
                        int depth)
{
    const struct gdn_matrix *b = &x->p->b; /* b[j][k]: its column k lies side by side */
    for (int i = 0; i < depth; i++) {
        const int64_t element = (k + i) * b->column + first;
        x->kr->load_row[b->dtype](s->loaded + i * PANEL,
                                  (char *)b->data + element * (int64_t)gdn_dtype_bytes(b->dtype),
                                  (size_t)n);
    }
    x->kr->transpose(s->turned, DEPTH, s->loaded, PANEL, depth, n);
}

static void multiply_panel(void *arg, int64_t item, int thread)
{
    const struct product *x = arg;
    const struct gdn_matrix_product *p = x->p;
    struct panels *s = &x->panels[thread];
    const int64_t first = item * PANEL;
    const int n = (int)least(p->n - first, PANEL);
    for (int64_t k = 0; k < p->depth; k += DEPTH) {
        const int depth = (int)least(p->depth - k, DEPTH);
        turn_weight(x, s, first, n, k, depth);
        multiply_tiles(x, first, at(&p->a, 0, k), p->a.row, s->turned, n, depth, p->adds || k > 0);
    }
}

/* ---- out = a^T b --------------------------------------------------------------------------- */

static void turn_rows(void *arg, int64_t item, int thread)
{
    (void)thread;
    const struct product *x = arg;
    const struct gdn_matrix *a = &x->p->a;
    const int64_t first = item * TILE;
    const int m = (int)least(x->p->m - first, TILE);
    x->kr->transpose(x->turned + first * DEPTH, DEPTH, at(a, first, x->first), a->column, x->depth,
                     m);
}

static void add_panel(void *arg, int64_t item, int thread)
{
    const struct product *x = arg;
    const struct gdn_matrix_product *p = x->p;
    float *b = x->panels[thread].turned;
    const int64_t first = item * PANEL;
    const int n = (int)least(p->n - first, PANEL);
    x->kr->transpose(b, DEPTH, at(&p->b, first, x->first), p->b.column, x->depth, n);
    multiply_tiles(x, first, x->turned, DEPTH, b, n, x->depth, p->adds || x->first > 0);
}

static gdn_status add_blocks(gdn_ctx *ctx, struct product *x)
{
    const struct gdn_matrix_product *p = x->p;
    for (; x->first < p->depth; x->first += DEPTH) {
        x->depth = (int)least(p->depth - x->first, DEPTH);
        gdn_parallel_for(ctx->threads, (p->m + TILE - 1) / TILE, turn_rows, x);
        gdn_parallel_for(ctx->threads, (p->n + PANEL - 1) / PANEL, add_panel, x);
    }
    return GDN_OK;
}

/* ---- All forms ----------------------------------------------------------------------------- */

static enum form form_of(const struct gdn_matrix_product *p)
{
    if (p->depth == 0) return EMPTY;
    if (p->a.column != 1) return BY_BLOCKS;
    return p->a.row == p->depth && p->b.column == 1 && !p->adds ? AS_FORWARD : BY_PANELS;
}

static gdn_status plan_products(gdn_ctx *ctx, struct gdn_layer_backward_call *call)
{
    struct gdn_layer_products *products = &call->products;
    int64_t most_turned = 0;
    for (struct gdn_matrix_product *p = products->all; p < products->all + products->n; p++) {
        p->form = form_of(p);
        if (p->form == BY_BLOCKS && p->m > most_turned) most_turned = p->m;
    }
    products->scratch_bytes = threads_bytes(ctx) + (size_t)most_turned * DEPTH * sizeof(float);
    return GDN_OK;
}

static gdn_status clear_rows(const struct gdn_matrix_product *p)
{
    for (int64_t i = 0; !p->adds && i < p->m; i++)
        memset(at(&p->out, i, 0), 0, (size_t)p->n * sizeof(float));
    return GDN_OK;
}

static gdn_status project(const struct gdn_layer_run *run, const struct gdn_matrix_product *p)
{
    const gdn_tensor b = { .data = p->b.data, .dtype = p->b.dtype, .stride = { p->b.row, 1 } };
    const struct gdn_segment all = { &b, 0, p->n, 0 };
    for (int64_t i = 0; i < p->m; i += WINDOW)
        gdn_project(run->ctx, at(&p->out, i, 0), p->out.row, at(&p->a, i, 0),
                    least(p->m - i, WINDOW), p->depth, &all, 1, run->scratch);
    return GDN_OK;
}

static gdn_status multiply(const struct gdn_layer_run *run, const struct gdn_matrix_product *p)
{
    gdn_ctx *ctx = run->ctx;
    char *turned = (char *)run->scratch + threads_bytes(ctx);
    struct product x = { ctx->kr, p, run->scratch, (float *)(void *)turned, 0, 0 };
    switch ((enum form)p->form) {
    case AS_FORWARD: return project(run, p);
    case BY_BLOCKS: return add_blocks(ctx, &x);
    case EMPTY: return clear_rows(p);
    case BY_PANELS: break;
    }
    gdn_parallel_for(ctx->threads, (p->n + PANEL - 1) / PANEL, multiply_panel, &x);
    return GDN_OK;
}

/* ---- Rows ---------------------------------------------------------------------------------- */

static void weave_row(void *arg, int64_t row, int thread)
{
    (void)thread;
    const struct gdn_weave *w = arg;
    const int64_t all = w->part[0] + w->part[1] + w->part[2] + w->part[3];
    int64_t before = 0; /* of one head */
    for (int i = 0; i < 4; before += w->part[i++])
        for (int64_t head = 0; head < w->heads; head++) {
            const int64_t ordered = w->heads * before + head * w->part[i];
            const int64_t woven = head * all + before;
            memcpy(at(&w->to, row, w->weaves ? woven : ordered),
                   at(&w->from, row, w->weaves ? ordered : woven),
                   (size_t)w->part[i] * sizeof(float));
        }
}

static gdn_status weave(const struct gdn_layer_run *run, const struct gdn_weave *w)
{
    gdn_parallel_for(run->ctx->threads, w->n_rows, weave_row, (void *)w);
    return GDN_OK;
}

/* Tokens of one sequence. */
struct tokens {
    const struct gdn_layer_run *run;
    const struct gdn_token_rows *rows;
    const struct gdn_seq *seq;
};

static void load_token(void *arg, int64_t t, int thread)
{
    (void)thread;
    const struct tokens *x = arg;
    const struct gdn_token_rows *r = x->rows;
    const int64_t row = x->seq->batch * x->run->tokens->T + x->seq->first + t;
    x->run->ctx->kr->load_row[r->rows.dtype](at(&r->dense, row, 0), gdn_row(&r->rows, x->seq, t, 0),
                                             (size_t)r->n);
}

static int64_t n_rows(const struct gdn_layer_run *run)
{
    return run->tokens->padded ? run->tokens->B * run->tokens->T : run->tokens->N;
}

static gdn_status load(const struct gdn_layer_run *run, const struct gdn_token_rows *t)
{
    struct tokens x = { run, t, run->plan->seqs };
    memset(t->dense.data, 0, (size_t)(n_rows(run) * t->n) * sizeof(float));
    for (; x.seq < run->plan->seqs + run->plan->B; x.seq++)
        gdn_parallel_for(run->ctx->threads, x.seq->n_valid, load_token, &x);
    return GDN_OK;
}

static void store_row(void *arg, int64_t row, int thread)
{
    (void)thread;
    const struct tokens *x = arg;
    const struct gdn_token_rows *r = x->rows;
    const int64_t T = x->run->tokens->T, unit = (int64_t)gdn_dtype_bytes(r->rows.dtype);
    char *to = x->run->tokens->padded
                   ? r->rows.data + row / T * r->rows.batch + row % T * r->rows.token
                   : r->rows.data + row * r->rows.token;
    for (int64_t i = 0; i < r->n; i += GDN_PIECE)
        gdn_put_gradient(x->run->ctx->kr, to + i * unit, r->rows.dtype, at(&r->dense, row, i),
                         (size_t)least(r->n - i, GDN_PIECE), r->adds);
}

static gdn_status store(const struct gdn_layer_run *run, const struct gdn_token_rows *t)
{
    struct tokens x = { run, t, NULL };
    gdn_parallel_for(run->ctx->threads, n_rows(run), store_row, &x);
    return GDN_OK;
}

static gdn_status clear(const struct gdn_layer_run *run, void *memory, size_t bytes)
{
    (void)run;
    memset(memory, 0, bytes);
    return GDN_OK;
}

static gdn_status begin(const struct gdn_layer_run *run)
{
    const struct gdn_plan_pools pools = { run->reads_states ? run->plan->B : -1, -1, -1, false,
                                          false };
    return gdn_plan_batch(run->ctx, run->tokens, &pools, run->plan_memory, run->plan);
}

static const struct gdn_layer_steps steps = {
    .is_f32 = true,
    .plan = plan_products,
    .begin = begin,
    .multiply = multiply,
    .weave = weave,
    .load = load,
    .store = store,
    .clear = clear,
};

/* ---- gdn_block_backward -------------------------------------------------------------------- */

static gdn_status plan_block_backward(gdn_ctx *ctx, void *call)
{
    const struct gdn_layer_backward_call *c = call;
    return c->plan(ctx, call, &steps);
}

static gdn_status run_block_backward(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_layer_backward_call *c = call;
    TRY(c->run(ctx, call, memory));
    return gdn_note_kernel(ctx, c->call.op, "gemm_nt transpose conv chunk_solve norm_row");
}

const struct gdn_op_backend gdn_cpu_op_block_backward = { plan_block_backward, run_block_backward };
