/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of a vector with rows, for attention: y[r] = sum over i of w[r][i] x[i], in float32.
 *
 * A sum has as many partial sums as a register of the instruction set has floats, added in a fixed
 * order; it depends on the two rows and their width alone. So a token has the same bits in a
 * prompt, alone, and on any number of threads, per instruction set.
 */
#ifndef PRODUCT_H
#define PRODUCT_H

#include "gdn.h"

struct product {
    const float *w, *x;
    float *y;
    int64_t w_stride; /* elements between rows */
    int64_t width, rows;
};

typedef void product_loop(const struct product *p);

/* The loop for the context's instruction set. */
product_loop *product_select(const gdn_ctx *ctx);

#endif
