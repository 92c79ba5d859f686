/* SPDX-License-Identifier: Apache-2.0 */
/* The checked call of gdn_block, and the rows of its weights. */
#ifndef GDN_BLOCK_H
#define GDN_BLOCK_H

#include "calls/conv.h"
#include "calls/project.h"
#include "calls/record.h"
#include "calls/rule.h"
#include "core/backend.h"

/* Columns of a projected row: q from 0, k, v (together the channels of the convolution), z, b,
 * a. */
struct gdn_block_columns {
    int64_t k, v, z, b, a, all;
};

/* By what a layer projects q, k and v: in_proj_qkvz; in_proj_qkv; or one weight of each. */
enum gdn_projections { GDN_FUSED, GDN_JOINED, GDN_APART };

struct gdn_block {
    const gdn_block_args *args;
    const struct gdn_tokens *tokens;
    const struct gdn_plan *plan;
    struct gdn_rows in, out;
    struct gdn_conv conv; /* all but rows, sequences and carry data */
    struct gdn_rule rule; /* all but rows, sequences and carry data */
    struct gdn_block_columns columns;
    int64_t hidden, Hk, Hv, K, V;
    int64_t n_tokens, window; /* window: of a CPU, the most tokens that pass at once */
    float rms_eps;
    int64_t channels; /* numbers of a gate: 1, or K of KDA */
    int64_t rank;     /* the most columns between two projections; 0: there are none */
    enum gdn_projections projections;
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
    struct gdn_record record;
    size_t plan_bytes, record_bytes; /* of a CPU */
};

/* The rows of the weights that make columns of hidden. */
int gdn_block_n_segments(const struct gdn_block *block);
struct gdn_segment gdn_block_segment(const struct gdn_block *block, int i);

/* z and a may be of low rank: what `down` makes of hidden, `up` makes columns of. */
struct gdn_low_rank {
    struct gdn_segment down, up;
};
int gdn_block_n_low_ranks(const struct gdn_block *block);
struct gdn_low_rank gdn_block_low_rank(const struct gdn_block *block, int i);

#endif
