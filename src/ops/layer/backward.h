/* SPDX-License-Identifier: Apache-2.0 */
/* A checked call of gdn_block_backward, and the list of its products. */
#ifndef GDN_OPS_LAYER_BACKWARD_H
#define GDN_OPS_LAYER_BACKWARD_H

#include "calls/layer_backward.h"
#include "gdn_train.h"

/* The workspace of a call: rows of all tokens, of dtype c->dtype, or of float32 where the field
 * is float *. */
struct gdn_layer_buffers {
    char *plan;
    char *x, *dout;        /* [N][hidden], zero where tokens do not count */
    char *y, *dy, *woven;  /* [N] q, k, v, z */
    float *gates, *dgates; /* [N] b, a */
    char *low[2], *dlow;   /* [N] rows of low rank: of z, of a; dlow: the gradient of either */
    char *woven_gates;     /* woven, and what goes back to the weights in dtype */
    char *c, *dc;          /* [N] q, k, v */
    char *o, *n, *dn;      /* [N][Hv V]; the gradient of o takes the place of n */
    float *dx;             /* [N][hidden] */
    char *part, *products; /* workspace of the ops; scratch of products */
};

/* The phases of a call that compute products, in their order. */
enum gdn_layer_phase { GDN_LAYER_FORWARD, GDN_LAYER_OUTPUT, GDN_LAYER_BACKWARD, GDN_LAYER_PHASES };

struct gdn_layer_backward {
    struct gdn_layer_backward_call base;
    gdn_block_backward_args args;
    struct gdn_tokens tokens;
    struct gdn_plan plan;
    struct gdn_layer_run run;
    const struct gdn_layer_steps *steps;
    gdn_batch batch; /* of the forward: final states are not written */
    struct gdn_layer_buffers m;
    int64_t hidden, Hk, Hv, K, V, D, VV, qkvz; /* D, VV, qkvz: columns */
    int64_t N, n_gates, channels;              /* columns of b and a; numbers of a gate */
    int64_t rank[2];                           /* columns before z, before a; 0: none */
    int32_t dtype;                             /* of rows between steps */
    bool fused, adds;
    size_t part_bytes;
    int first[GDN_LAYER_PHASES + 1]; /* product of each phase */
};

/* Returns the matrix of a buffer with so many columns, from column `first` on. */
static inline struct gdn_matrix gdn_layer_matrix(void *buffer, int32_t dtype, int64_t columns,
                                                 int64_t first)
{
    return (struct gdn_matrix){ (char *)buffer + first * (int64_t)gdn_dtype_bytes(dtype), dtype,
                                columns, 1 };
}

/* A plan takes the workspace to begin at this address, where nothing of a caller lies. */
#define GDN_LAYER_NOWHERE ((uintptr_t)1 << 60)

/* Lists all products, in buffers of a workspace at GDN_LAYER_NOWHERE. */
void gdn_layer_list_products(struct gdn_layer_backward *c);

/* Moves the places to the workspace of the call. */
void gdn_layer_move_products(struct gdn_layer_backward *c, char *memory);

#endif
