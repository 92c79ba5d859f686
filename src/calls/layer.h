/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_block as it is once checked, and the rows of its weights. */
#ifndef GDN_BLOCK_H
#define GDN_BLOCK_H

#include "calls/conv.h"
#include "calls/project.h"
#include "calls/rule.h"
#include "core/backend.h"

/* Columns of a projected row: q from 0, k, v (together the channels of the convolution), z, b,
 * a. */
struct gdn_block_columns {
    int64_t k, v, z, b, a, all;
};

struct gdn_block {
    const gdn_block_args *args;
    const struct gdn_tokens *tokens;
    const struct gdn_plan *plan;
    struct gdn_rows in, out;
    struct gdn_conv conv; /* all but rows, sequences and carry data */
    struct gdn_rule rule; /* all but rows, sequences and carry data */
    struct gdn_block_columns columns;
    int64_t hidden, Hk, Hv, K, V;
    int64_t n_tokens, window; /* in all; of a CPU: of a window, at most */
    float rms_eps;
    bool fused;
    bool sigmoid; /* gates the norm, else SiLU */
};

/* A checked call of gdn_block. */
struct gdn_block_call {
    struct gdn_call base;
    gdn_block_args args;
    struct gdn_tokens tokens;
    struct gdn_plan plan;
    struct gdn_plan_pools pools;
    struct gdn_block block;
    size_t plan_bytes; /* of a CPU */
};

/* The rows of the weights that make the columns. */
int gdn_block_n_segments(const struct gdn_block *block);
struct gdn_segment gdn_block_segment(const struct gdn_block *block, int i);

#endif
