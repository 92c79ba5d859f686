/* SPDX-License-Identifier: Apache-2.0 */
/* The layer between its check (ops/layer.c) and its run (cpu/layer.c). */
#ifndef GDN_BLOCK_H
#define GDN_BLOCK_H

#include "calls/conv.h"
#include "calls/project.h"
#include "calls/rule.h"
#include "core/backend.h"

enum {
    GDN_BLOCK_WINDOW = 256, /* tokens: enough for the projections to reach the FMA rate */
    GDN_BLOCK_PIECES = 512  /* most sequences of a window, empty ones included */
};

/* Columns of a projected row: q from 0, k, v (together the channels of the convolution), z, b,
 * a. */
struct gdn_block_columns {
    int64_t k, v, z, b, a, all;
};

struct gdn_block {
    const gdn_block_args    *args;
    const struct gdn_tokens *tokens;
    const struct gdn_plan   *plan;
    struct gdn_rows          in, out;
    struct gdn_conv          conv; /* all but rows, sequences and carry data */
    struct gdn_rule          rule; /* all but rows, sequences and carry data */
    struct gdn_block_columns columns;
    int64_t                  hidden, Hk, Hv, K, V;
    int64_t                  n_tokens, window; /* tokens in all, and of a window at most */
    float                    rms_eps;
    bool                     fused;
};

/* A checked call of gdn_block. */
struct gdn_block_call {
    struct gdn_call       base;
    gdn_block_args        args;
    struct gdn_tokens     tokens;
    struct gdn_plan       plan;
    struct gdn_plan_pools pools;
    struct gdn_block      block;
    size_t                plan_bytes; /* of a CPU */
};

/* Checks heads and head sizes of a layer; two of its pools, which the same slots are of. */
gdn_status gdn_check_layer(gdn_ctx *ctx, int32_t Hk, int32_t Hv, int32_t K, int32_t V);
gdn_status gdn_check_pair(gdn_ctx *ctx, const gdn_tensor *a, const char *a_name,
                          const gdn_tensor *b, const char *b_name);

/* The rows of the weights that make the columns. */
int                gdn_block_n_segments(const struct gdn_block *block);
struct gdn_segment gdn_block_segment(const struct gdn_block *block, int i);

/* Returns workspace beside the scratch of the threads, which follows it. */
size_t gdn_block_bytes(const struct gdn_block *block);
void   gdn_block_run(gdn_ctx *ctx, struct gdn_block *block, char *memory);

#endif
