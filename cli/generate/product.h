/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of rows: y[t][r] = sum over i of w[r][i] x[t][i], in float32.
 *
 * A sum has as many partial sums as a register of the instruction set has floats, added in a fixed
 * order; it depends on the two rows and their width alone. So a token has the same bits in a
 * prompt, alone, and on any number of threads, per instruction set.
 */
#ifndef PRODUCT_H
#define PRODUCT_H

#include "gdn.h"

struct product {
    const void  *w; /* GDN_F32 or GDN_BF16 */
    const float *x;
    float       *y;
    int32_t      dtype; /* of w */
    int64_t      w_stride, x_stride, y_stride; /* elements between rows */
    int64_t      width, rows, tokens;
};

typedef void product_loop(const struct product *p);

/* w[i] as float32. */
static inline float product_element(const void *w, int32_t dtype, int64_t i)
{
    float x;
    if (dtype != GDN_BF16) return ((const float *)w)[i];
    const uint32_t bits = (uint32_t)((const uint16_t *)w)[i] << 16;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The loop for the context's instruction set. */
product_loop *product_select(const gdn_ctx *ctx);

/* The same product, its rows shared by the context's threads. */
void product_on_threads(gdn_ctx *ctx, product_loop *loop, const struct product *p);

#endif
