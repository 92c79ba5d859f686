/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a layer's gradients on a device: cuBLAS, or a product of our own, and the kernels of
 * layer.cu. */
#include "calls/layer_backward.h"
#include "calls/op_backends.h"
#include "cuda/driver/blas.h"
#include "cuda/driver/choice.h"
#include "cuda/driver/contents.h"
#include "cuda/layer/args.h"

enum { TILE = 64, THREADS = 256, WARPS = THREADS / 32 }; /* as in layer.cu */

static gdn_status begin(const struct gdn_layer_run *run)
{
    const struct gdn_plan_pools none = { -1, -1, -1, false, false };
    const uintptr_t beyond = (uintptr_t)run->scratch % GDN_BLAS_ALIGN;
    TRY(gdn_cuda_check_batch(run->ctx, run->plan, run->tokens, &none, run->stream));
    if (!run->scratch_bytes) return GDN_OK;
    return gdn_blas_begin(run->ctx, run->stream,
                          (char *)run->scratch + (beyond ? GDN_BLAS_ALIGN - beyond : 0),
                          gdn_blas_scratch(run->ctx));
}

static gdn_status launch(const struct gdn_layer_run *run, enum gdn_kernel_id kernel,
                         int64_t n_blocks, const void *args)
{
    const struct gdn_cuda_call call = {
        .kernel = kernel, .grid = { n_blocks, 1, 1 }, .stream = run->stream, .args = args
    };
    TRY(gdn_cuda_launch(run->ctx, &call));
    return gdn_cuda_note(run->ctx, "block_backward", kernel);
}

static int64_t blocks(int64_t n, int64_t of_block) { return (n + of_block - 1) / of_block; }

/* ---- Products ------------------------------------------------------------------------------ */

static struct gdn_rows rows_of(const struct gdn_matrix *m)
{
    return (struct gdn_rows){ .data = m->data,
                              .dtype = m->dtype,
                              .token = m->row * (int64_t)gdn_dtype_bytes(m->dtype) };
}

enum form { OWN, BLAS };

/* The decisions about a call, beside those in its products. */
struct planned {
    const char *why_not_blas; /* the reason that cuBLAS does not compute some product; NULL: it
                                 computes all */
};
_Static_assert(sizeof(struct planned) <= GDN_PLAN_ROOM, "a plan has room");

/* Decides which products cuBLAS computes. The bytes for it include room to align its scratch. */
static gdn_status plan_products(gdn_ctx *ctx, struct gdn_layer_backward_call *call)
{
    struct gdn_layer_products *products = &call->products;
    struct planned *plan = GDN_PLANNED(struct planned, &call->call);
    bool by_blas = false;
    plan->why_not_blas = NULL;
    for (struct gdn_matrix_product *p = products->all; p < products->all + products->n; p++) {
        const char *why = products->exact ? "GDN_EXACT is set" : gdn_blas_why_not(p);
        if (!plan->why_not_blas) plan->why_not_blas = why;
        p->form = why ? OWN : BLAS;
        by_blas |= !why;
    }
    products->scratch_bytes = by_blas ? gdn_blas_scratch(ctx) + GDN_BLAS_ALIGN : 0;
    return by_blas ? gdn_blas_open(ctx) : GDN_OK;
}

static gdn_status multiply(const struct gdn_layer_run *run, const struct gdn_matrix_product *p)
{
    if (p->form == BLAS) {
        TRY(gdn_blas_multiply(run->ctx, p));
        return gdn_cuda_note(run->ctx, "block_backward", GDN_CU_cublas);
    }
    const struct gdn_cu_layer_project a = {
        .x = rows_of(&p->a),
        .weight = rows_of(&p->b),
        .out = rows_of(&p->out),
        .T = p->m,
        .n_rows = p->m,
        .n_out = p->n,
        .n_in = p->depth,
        .x_step = p->a.column,
        .weight_step = p->b.column,
        .adds = p->adds,
    };
    return launch(run, GDN_CU_layer_project, blocks(p->m, TILE) * blocks(p->n, TILE), &a);
}

/* ---- Rows ---------------------------------------------------------------------------------- */

static gdn_status weave(const struct gdn_layer_run *run, const struct gdn_weave *w)
{
    struct gdn_cu_layer_weave a = {
        .from = rows_of(&w->from),
        .to = rows_of(&w->to),
        .n = w->n_rows * w->heads * (w->part[0] + w->part[1] + w->part[2] + w->part[3]),
        .heads = (int32_t)w->heads,
        .weaves = w->weaves,
    };
    for (int i = 0; i < 4; i++) a.part[i] = (int32_t)w->part[i];
    return launch(run, GDN_CU_layer_weave, blocks(a.n, THREADS), &a);
}

static struct gdn_cu_layer_rows args_of(const struct gdn_layer_run *run,
                                        const struct gdn_token_rows *t)
{
    const struct gdn_plan_pools none = { -1, -1, -1, false, false };
    struct gdn_cu_layer_rows a = {
        .rows = t->rows, .dense = rows_of(&t->dense), .n = t->n, .adds = t->adds
    };
    gdn_cuda_fill_batch(&a.batch, run->plan, run->tokens, &none);
    return a;
}

static gdn_status load(const struct gdn_layer_run *run, const struct gdn_token_rows *t)
{
    const struct gdn_cu_layer_rows a = args_of(run, t);
    return launch(run, GDN_CU_layer_load, blocks(a.batch.N, WARPS), &a);
}

static gdn_status store(const struct gdn_layer_run *run, const struct gdn_token_rows *t)
{
    const struct gdn_cu_layer_rows a = args_of(run, t);
    return launch(run, GDN_CU_layer_add, blocks(a.batch.N, WARPS), &a);
}

static gdn_status clear(const struct gdn_layer_run *run, void *memory, size_t bytes)
{
    if (bytes)
        GDN_CU(run->ctx, "zeros", cuMemsetD8Async,
               ((gdn_cu_memory)(uintptr_t)memory, 0, bytes, run->stream));
    return GDN_OK;
}

static const struct gdn_layer_steps steps = {
    .plan = plan_products,
    .begin = begin,
    .multiply = multiply,
    .weave = weave,
    .load = load,
    .store = store,
    .clear = clear,
};

/* ---- The call ------------------------------------------------------------------------------ */

static gdn_status plan_block_backward(gdn_ctx *ctx, void *call)
{
    const struct gdn_layer_backward_call *c = call;
    return c->plan(ctx, call, &steps);
}

/* Logs why cuBLAS does not compute a product, if it does not compute all. */
static void log_products(gdn_ctx *ctx, const struct planned *p)
{
    const struct gdn_cuda_form list[] = { { "cublas", p->why_not_blas },
                                          { "layer_project", NULL } };
    gdn_cuda_log_forms(ctx, GDN_CUDA_PRODUCT_CHOICE, "block_backward products", list);
}

/* Runs the kernels of all parts. The log has them under the name of the call. */
static gdn_status run_block_backward(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_layer_backward_call *c = call;
    struct gdn_cuda_ran ran;
    bool pushed;
    log_products(ctx, GDN_PLANNED(struct planned, &c->call));
    TRY(gdn_cuda_enter(ctx, &pushed));
    gdn_cuda_gather(ctx, &ran);
    const gdn_status status = c->run(ctx, call, memory);
    gdn_cuda_leave(ctx, pushed);
    return gdn_cuda_note_gathered(ctx, c->call.op, status);
}

const struct gdn_op_backend gdn_cuda_op_block_backward = { plan_block_backward,
                                                           run_block_backward };
