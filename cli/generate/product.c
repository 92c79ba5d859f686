/* SPDX-License-Identifier: Apache-2.0 */
#include "generate/product.h"

#include "internal.h"

enum { ROWS_PER_ITEM = 32 };

#define JOIN_OF(a, b) a##b
#define JOIN(a, b)    JOIN_OF(a, b)

/* product_4(), and where there is more, product_8() and product_16(): by floats in a register. */
#define LANES 4
#define TARGET
#include "generate/product_rows.inc"
#ifdef __x86_64__
#define LANES  8
#define TARGET __attribute__((target("avx2")))
#include "generate/product_rows.inc"
#define LANES  16
#define TARGET __attribute__((target("avx512f")))
#include "generate/product_rows.inc"
#endif

product_loop *product_select(const gdn_ctx *ctx)
{
#ifdef __x86_64__
    if (!strcmp(gdn_isa(ctx), "avx512")) return product_16;
    if (!strcmp(gdn_isa(ctx), "avx2")) return product_8;
#endif
    (void)ctx;
    return product_4;
}

/* ---- Threads --------------------------------------------------------------------------------- */

struct shared {
    const struct product *all;
    product_loop         *loop;
};

static void run_item(void *arg, int64_t item, int thread)
{
    const struct shared *s     = arg;
    const int64_t        first = item * ROWS_PER_ITEM;
    struct product       part  = *s->all;
    (void)thread;
    part.w = (const char *)part.w +
             first * part.w_stride * (int64_t)gdn_dtype_bytes(part.dtype);
    part.y += first;
    if (part.rows - first > ROWS_PER_ITEM) part.rows = ROWS_PER_ITEM;
    else part.rows -= first;
    s->loop(&part);
}

void product_on_threads(gdn_ctx *ctx, product_loop *loop, const struct product *p)
{
    struct shared s = { p, loop };
    gdn_parallel_for(ctx->pool, (p->rows + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM, run_item, &s);
}
