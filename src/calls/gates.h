/* SPDX-License-Identifier: Apache-2.0 */
/* The checked calls of gdn_gates and of its gradients. */
#ifndef GDN_GATES_H
#define GDN_GATES_H

#include "batch/rowwise.h"
#include "core/backend.h"
#include "gdn_train.h"

/*
 * Checked calls. Rows are [H]. If a head has channels, rows of a, of g and of their gradients are
 * [K], H rows for each token. b is [H] or [K], as in its tensor.
 */
struct gdn_gates_call {
    struct gdn_call base;
    gdn_gates_args args;
    const struct gdn_kernels *kr;
    int64_t n_rows, H, rows_per_item;
    int64_t K;              /* channels; 0: none */
    int64_t b_rows, b_size; /* rows of b and their size */
};
struct gdn_gates_backward_call {
    struct gdn_call base;
    gdn_gates_backward_args args;
    const struct gdn_kernels *kr;
    int64_t n_rows, H;
    int64_t K;              /* channels; 0: none */
    int64_t b_rows, b_size; /* rows of b and their size */
    int64_t rows, n_blocks; /* rows of a block: the backend's choice */
    float *sums;            /* [block][2][H], or [H + H K]: dA_log, ddt_bias; or NULL */
    bool adds, wants_a;
};

/* Returns the sums of a block. */
static inline int64_t gdn_gates_sums(const struct gdn_gates_backward_call *call)
{
    return call->H * (call->K ? 1 + call->K : 2);
}

/* Cuts the rows of a gradient into blocks of at least so many. */
static inline void gdn_gates_cut(struct gdn_gates_backward_call *call, int64_t least_rows)
{
    call->rows = gdn_rows_per_block(call->n_rows, least_rows);
    call->n_blocks = (call->n_rows + call->rows - 1) / call->rows;
    if (call->args.dA_log.data || call->args.ddt_bias.data)
        call->base.bytes = (size_t)(call->n_blocks * gdn_gates_sums(call)) * sizeof(float);
}

#endif
