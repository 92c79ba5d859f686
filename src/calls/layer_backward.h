/* SPDX-License-Identifier: Apache-2.0 */
/* The gradients of a layer (ops/layer/backward.c) consist of other ops and of the steps below. Each
 * backend has these: matrix products, tokens' rows in and out, columns in another order. */
#ifndef GDN_LAYER_BACKWARD_H
#define GDN_LAYER_BACKWARD_H

#include "batch/plan.h"
#include "core/backend.h"
#include "core/ctx.h"

/* A matrix. row, column: elements from one row or column to the next. */
struct gdn_matrix {
    void *data;
    int32_t dtype;
    int64_t row, column;
};

/* out[i][j] (+)= sum_k a[i][k] b[j][k], i < m, j < n, k < depth; adds: to what out holds. Columns
 * of out are 1 apart, as are rows or columns of a, and of b. form: how the backend computes it. */
struct gdn_matrix_product {
    struct gdn_matrix out, a, b;
    int64_t m, n, depth;
    bool adds;
    int32_t form;
};

/* The products of a call, in their order. GDN_LAYER_PRODUCTS: q, k, v, z, b, a and two low ranks,
 * forward and both gradients; and both gradients of the output. */
enum { GDN_LAYER_PRODUCTS = 3 * 8 + 2 };
struct gdn_layer_products {
    struct gdn_matrix_product all[GDN_LAYER_PRODUCTS];
    int n;
    bool exact;           /* sums are in an order of the library's own */
    size_t scratch_bytes; /* that all products share */
};

/* Rows of columns in two orders, each with `heads` times all parts: ordered, all heads of part 0,
 * then all of part 1 and so on; woven, all parts of head 0, then those of head 1. */
struct gdn_weave {
    struct gdn_matrix from, to; /* columns 1 apart */
    int64_t n_rows, heads, part[4];
    bool weaves; /* from ordered to woven; else back */
};

/* The shared parts of a call's steps. */
struct gdn_layer_run {
    gdn_ctx *ctx;
    struct gdn_plan *plan;
    const struct gdn_tokens *tokens;
    void *plan_memory; /* of gdn_plan_bytes() */
    bool reads_states;
    void *scratch; /* of products; scratch_bytes may be 0 */
    size_t scratch_bytes;
    void *stream;
};

/* Tokens of a tensor beside dense rows of n columns. */
struct gdn_token_rows {
    struct gdn_rows rows;
    struct gdn_matrix dense;
    int64_t n;
    bool adds; /* stored: to what the tensor holds */
};

struct gdn_layer_backward_call;

struct gdn_layer_steps {
    bool is_f32; /* rows between steps are float32; else they have the dtype of hidden */
    /* Decides the form of each product and the bytes of scratch. Buffers have no addresses yet. */
    gdn_status (*plan)(gdn_ctx *ctx, struct gdn_layer_backward_call *call);
    /* Reads or checks the contents of the batch, before anything is written. */
    gdn_status (*begin)(const struct gdn_layer_run *run);
    gdn_status (*multiply)(const struct gdn_layer_run *run, const struct gdn_matrix_product *p);
    gdn_status (*weave)(const struct gdn_layer_run *run, const struct gdn_weave *w);
    /* dense = the rows of tokens that count, else zero; and the rows = dense, of all tokens. */
    gdn_status (*load)(const struct gdn_layer_run *run, const struct gdn_token_rows *t);
    gdn_status (*store)(const struct gdn_layer_run *run, const struct gdn_token_rows *t);
    gdn_status (*clear)(const struct gdn_layer_run *run, void *memory, size_t bytes);
};

/* The beginning of a checked call, with the functions of ops/layer/backward.c that plan and run its
 * parts. A backend hands its steps to plan(), which sets the bytes of workspace. */
struct gdn_layer_backward_call {
    struct gdn_call call;
    gdn_status (*plan)(gdn_ctx *ctx, void *call, const struct gdn_layer_steps *steps);
    gdn_status (*run)(gdn_ctx *ctx, void *call, void *memory);
    struct gdn_layer_products products;
};

#endif
