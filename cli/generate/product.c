/* SPDX-License-Identifier: Apache-2.0 */
#include "generate/product.h"

#include "core/ctx.h"

enum { LANES = 16, ROWS_PER_ITEM = 32 };

typedef float    lanes __attribute__((vector_size(LANES * sizeof(float))));
typedef uint32_t words __attribute__((vector_size(LANES * sizeof(uint32_t))));
typedef uint16_t halves __attribute__((vector_size(LANES * sizeof(uint16_t))));

#define INLINE static inline __attribute__((always_inline))

/* ---- One row of weights --------------------------------------------------------------------- */

INLINE const void *row_of(const struct product *p, int64_t r, bool is_bf16)
{
    return is_bf16 ? (const void *)((const uint16_t *)p->w + r * p->w_stride)
                   : (const void *)((const float *)p->w + r * p->w_stride);
}

INLINE void add_lanes(lanes *sum, const void *w, const float *x, int64_t i, bool is_bf16)
{
    lanes a, b;
    memcpy(&b, x + i, sizeof b);
    if (is_bf16) {
        halves h;
        memcpy(&h, (const uint16_t *)w + i, sizeof h);
        const words bits = __builtin_convertvector(h, words) << 16;
        memcpy(&a, &bits, sizeof a);
    } else {
        memcpy(&a, (const float *)w + i, sizeof a);
    }
    *sum += a * b;
}

/* The partial sums, then what is beyond the last whole vector. */
INLINE float finish(const lanes *partial, const void *w, const float *x, int64_t from,
                    int64_t width, bool is_bf16)
{
    float part[LANES];
    memcpy(part, partial, sizeof part);
    for (int n = LANES / 2; n; n /= 2)
        for (int i = 0; i < n; i++) part[i] += part[i + n];
    for (int64_t i = from; i < width; i++)
        part[0] += product_element(w, is_bf16 ? GDN_BF16 : GDN_F32, i) * x[i];
    return part[0];
}

/* ---- All rows -------------------------------------------------------------------------------- */

/* Four rows at a time: their sums do not wait for each other, and x is loaded once. */
INLINE void four_rows(const struct product *p, int64_t r, const float *x, float *y, bool is_bf16)
{
    const void   *w0 = row_of(p, r, is_bf16), *w1 = row_of(p, r + 1, is_bf16);
    const void   *w2 = row_of(p, r + 2, is_bf16), *w3 = row_of(p, r + 3, is_bf16);
    const int64_t whole = p->width - p->width % LANES;
    lanes         s0 = { 0 }, s1 = { 0 }, s2 = { 0 }, s3 = { 0 };
    for (int64_t i = 0; i < whole; i += LANES) {
        add_lanes(&s0, w0, x, i, is_bf16);
        add_lanes(&s1, w1, x, i, is_bf16);
        add_lanes(&s2, w2, x, i, is_bf16);
        add_lanes(&s3, w3, x, i, is_bf16);
    }
    y[r]     = finish(&s0, w0, x, whole, p->width, is_bf16);
    y[r + 1] = finish(&s1, w1, x, whole, p->width, is_bf16);
    y[r + 2] = finish(&s2, w2, x, whole, p->width, is_bf16);
    y[r + 3] = finish(&s3, w3, x, whole, p->width, is_bf16);
}

INLINE void one_row(const struct product *p, int64_t r, const float *x, float *y, bool is_bf16)
{
    const void   *w     = row_of(p, r, is_bf16);
    const int64_t whole = p->width - p->width % LANES;
    lanes         sum   = { 0 };
    for (int64_t i = 0; i < whole; i += LANES) add_lanes(&sum, w, x, i, is_bf16);
    y[r] = finish(&sum, w, x, whole, p->width, is_bf16);
}

INLINE void all_rows(const struct product *p, bool is_bf16)
{
    int64_t r = 0;
    for (; r + 4 <= p->rows; r += 4)
        for (int64_t t = 0; t < p->tokens; t++)
            four_rows(p, r, p->x + t * p->x_stride, p->y + t * p->y_stride, is_bf16);
    for (; r < p->rows; r++)
        for (int64_t t = 0; t < p->tokens; t++)
            one_row(p, r, p->x + t * p->x_stride, p->y + t * p->y_stride, is_bf16);
}

INLINE void either(const struct product *p)
{
    if (p->dtype == GDN_BF16) all_rows(p, true);
    else all_rows(p, false);
}

static void product_plain(const struct product *p) { either(p); }

#ifdef __x86_64__
__attribute__((target("avx2"))) static void product_avx2(const struct product *p) { either(p); }
__attribute__((target("avx512f"))) static void product_avx512(const struct product *p)
{
    either(p);
}
#endif

product_loop *product_select(const gdn_ctx *ctx)
{
#ifdef __x86_64__
    if (!strcmp(gdn_isa(ctx), "avx512")) return product_avx512;
    if (!strcmp(gdn_isa(ctx), "avx2")) return product_avx2;
#endif
    (void)ctx;
    return product_plain;
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
