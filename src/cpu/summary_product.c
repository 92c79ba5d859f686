/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn_summary_compose, gdn_summary_apply and gdn_summary_fold: S = M S + U, a strip of columns at a
 * time, for one range or for several in a given order. The transition of a composition is the same
 * with M1 for S and no U.
 */
#include "calls/op_backends.h"
#include "core/tensor_check.h"
#include "cpu/chunk_stage.h"

/* Scratch of one thread; all 64-byte aligned. */
struct scratch {
    float *M;         /* [K][ld] */
    float *S, *U, *P; /* strips */
    float *rows;      /* [strip][ld] */
    bool is_zero;     /* M */
};

static size_t lay_out(struct scratch *c, const struct gdn_product *a, const struct gdn_kernels *kr,
                      char *memory)
{
    const size_t K = (size_t)a->K, strip = (size_t)kr->strip, ld = (size_t)gdn_strip_ld(a->K);
    const struct gdn_part parts[] = { { &c->M, K * ld },
                                      { &c->S, K * strip },
                                      { &c->U, K * strip },
                                      { &c->P, K * strip },
                                      { &c->rows, strip * ld } };
    return gdn_lay_out(parts, sizeof parts / sizeof *parts, memory);
}

/* Loads rows x of M, dense in y. */
static void load_transition(struct scratch *c, const struct gdn_product *a,
                            const struct gdn_kernels *kr, const char *from)
{
    const struct gdn_pool_view *view = &a->M;
    const int64_t row = view->ld * (int64_t)gdn_dtype_bytes(view->dtype);
    const ptrdiff_t ld = gdn_strip_ld(a->K);
    for (int y = 0; y < a->K; y += kr->strip) {
        const int n = a->K - y < kr->strip ? a->K - y : kr->strip;
        for (int i = y; i < y + n; i++) {
            float *to = view->k_first ? c->M + i * ld : c->rows + (i - y) * ld;
            kr->load_row[view->dtype](to, from + i * row, (size_t)a->K);
        }
        if (!view->k_first) kr->transpose(c->M + y, ld, c->rows, ld, n, a->K);
    }
    c->is_zero = true;
    for (int x = 0; x < a->K; x++)
        for (int y = 0; y < a->K; y++) c->is_zero &= c->M[x * ld + y] == 0;
}

struct run_arg {
    const struct gdn_product *product;
    const struct gdn_kernels *kr;
    char *scratch;
    size_t thread_bytes;
};

static void run_product_item(void *arg, int64_t item, int thread)
{
    const struct run_arg *r = arg;
    const struct gdn_product *a = r->product;
    const struct gdn_kernels *kr = r->kr;
    const int64_t b = item / a->n_strips / a->H, h = item / a->n_strips % a->H;
    const int col = (int)(item % a->n_strips) * kr->strip;
    const int n = a->V - col < kr->strip ? a->V - col : kr->strip;
    bool is_known_zero = !a->S.data;
    struct scratch c;
    lay_out(&c, a, kr, r->scratch + (size_t)thread * r->thread_bytes);

    gdn_load_strip(c.S, kr, gdn_place_of(&a->S, b, h, 0), a->K, col, n, c.rows);
    for (int64_t i = 0; i < gdn_product_n_ranges(a); i++) {
        const int64_t range = gdn_product_range(a, b, i);
        if (range < 0) continue;
        gdn_load_strip(c.U, kr, gdn_place_of(&a->U, range, h, 0), a->K, col, n, c.rows);
        if (!is_known_zero) load_transition(&c, a, kr, gdn_place_of(&a->M, range, h, 0).data);
        if (!is_known_zero && !c.is_zero) { /* what is forgotten may be NaN (G7) */
            kr->strip_mul(c.P, kr->strip, c.M, gdn_strip_ld(a->K), c.S, kr->strip, a->K, a->K,
                          kr->strip, NULL);
            for (int x = 0; x < a->K * kr->strip; x++) c.U[x] += c.P[x];
        }
        float *before = c.S;
        c.S = c.U, c.U = before;
        is_known_zero = false;
    }
    gdn_store_strip(c.S, kr, gdn_place_of(&a->out, b, h, 0), a->K, col, n, c.rows);
}

static gdn_status plan_product(gdn_ctx *ctx, void *call)
{
    struct gdn_product_call *c = call;
    const size_t threads = (size_t)gdn_threads_count(ctx->threads);
    for (int i = 0; i < c->n; i++) {
        struct gdn_product *a = &c->product[i];
        struct scratch none;
        const size_t bytes = lay_out(&none, a, ctx->kr, NULL) * threads;
        a->n_strips = (a->V + ctx->kr->strip - 1) / ctx->kr->strip;
        if (bytes > c->base.bytes) c->base.bytes = bytes;
    }
    return GDN_OK;
}

static gdn_status run_product(gdn_ctx *ctx, void *call, void *memory)
{
    struct gdn_product_call *c = call;
    const size_t thread = c->base.bytes / (size_t)gdn_threads_count(ctx->threads);
    for (int i = 0; i < c->n; i++) {
        const struct gdn_product *a = &c->product[i];
        struct run_arg arg = { a, ctx->kr, memory, thread };
        gdn_parallel_for(ctx->threads, a->B * a->H * a->n_strips, run_product_item, &arg);
    }
    return gdn_note_kernel(ctx, c->base.op, "strip_mul");
}

static gdn_status run_summary_fold(gdn_ctx *ctx, void *call, void *memory)
{
    const struct gdn_product_call *c = call;
    TRY(gdn_product_check_order(ctx, &c->product[0]));
    return run_product(ctx, call, memory);
}

const struct gdn_op_backend gdn_cpu_op_summary_compose = { plan_product, run_product };
const struct gdn_op_backend gdn_cpu_op_summary_apply = { plan_product, run_product };
const struct gdn_op_backend gdn_cpu_op_summary_fold = { plan_product, run_summary_fold };
