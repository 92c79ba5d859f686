/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of a call's tensors, which follow from the rows of ops.def. */
#ifndef GDN_TENSORS_H
#define GDN_TENSORS_H

#include <stddef.h>

#include "batch/plan.h"
#include "core/ctx.h"

/* The sizes of a call that rows of ops.def name. An op sets those of its rows. */
struct gdn_sizes {
    int64_t end, any;         /* no sizes: the end of a shape, and what fits every size */
    int64_t B, P, R;          /* sequences or slots, slots of a record, its rows or ranges */
    int64_t H, Hq, Hk, Hv;    /* heads: of states, q, k, v */
    int64_t K, V, X, Y;       /* head sizes; V, K of k-last states and K, V of k-first ones */
    int64_t C, D;             /* a chunk, columns or channels */
    int64_t G;                /* numbers of a gate in a record */
    int64_t hidden, qkvz, ba; /* columns of hidden, and of what in_proj_qkvz and in_proj_ba make */
    int64_t qkv, keys, z, a;  /* ... of q, k, v; of q; of z; of a */
    int64_t z_in, a_in;       /* columns that z and a are projected from */
    const struct gdn_tokens *tokens;  /* of ROWS, TOKENS and GATES */
    const struct gdn_tokens *updates; /* of UPDATES and UPDATE_GATES */
    const gdn_tensor *like;           /* of LIKE, LIKE_OR_F32 and LIKE_ROWS */
};

/* A row of ops.def. Sizes are named by their place in struct gdn_sizes. */
enum { GDN_MAX_SIZES = 4 };
enum gdn_form { GDN_FORM_ELSEWHERE, GDN_FORM_POOL, GDN_FORM_WHOLE, GDN_FORM_TOKENS, GDN_FORM_LIKE };
#define GDN_SIZE(name) ((uint8_t)(offsetof(struct gdn_sizes, name) / sizeof(int64_t)))

struct gdn_tensor_row {
    const char *name;
    bool needed;
    unsigned dtypes; /* bits 1 << dtype and GDN_AS_LIKE, for the dtype of gdn_sizes.like */
    uint8_t form;    /* enum gdn_form */
    bool dense;
    bool by_update;              /* tokens are gdn_sizes.updates */
    bool is_short;               /* the last size may be left out */
    uint8_t size[GDN_MAX_SIZES]; /* those after tokens, up to GDN_SIZE(end) */
    uint16_t at;                 /* its place in the struct */
};
enum { GDN_AS_LIKE = 1 << 30 };

/* Returns the rows of an op's tensors, in the order of its struct: gdn_op_shapes[op].n_tensors. */
const struct gdn_tensor_row *gdn_tensor_rows(gdn_op op);

/* Returns the tensor of a row in the struct of its op. */
static inline gdn_tensor *gdn_tensor_of(const struct gdn_tensor_row *row, const void *args)
{
    return (gdn_tensor *)((uintptr_t)args + row->at);
}

/* Sets X and Y by the layout of states. */
static inline void gdn_set_layout(struct gdn_sizes *s, int32_t layout)
{
    s->X = layout == GDN_STATE_KV ? s->K : s->V;
    s->Y = layout == GDN_STATE_KV ? s->V : s->K;
}

/* Checks that needed tensors are given and that all are well formed (gdn_check_tensor()). args
 * is the library's copy. It changes strides of tensors without elements there, as these may be
 * any. */
gdn_status gdn_check_present(gdn_ctx *ctx, gdn_op op, void *args);

/* After that: checks dtypes, shapes and dense rows. */
gdn_status gdn_check_shapes(gdn_ctx *ctx, gdn_op op, const void *args, const struct gdn_sizes *s);

/* Checks the tensors that a call writes: none has an element twice, and none overlaps another
 * tensor of the struct or an array of the batch (NULL: none). Some pairs may be one view. The batch
 * is described. */
gdn_status gdn_check_written(gdn_ctx *ctx, gdn_op op, const void *args, const gdn_batch *batch);

#endif
