/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors as lists of rows: all dimensions but the last, for the ops that take each row by
 * itself. */
#ifndef GDN_ROWS_H
#define GDN_ROWS_H

#include "core/ctx.h"
#include "core/tensor_check.h"

enum { GDN_ITEM_ELEMENTS = 4096 }; /* elements of a work item, about */

static inline int64_t gdn_n_rows(const gdn_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim - 1; i++) n *= t->size[i];
    return n;
}

/* Returns element `first` of row `row`, rows counted with the last leading dimension fastest. */
static inline void *gdn_row_at(const gdn_tensor *t, int64_t row, int64_t first)
{
    int64_t element = first;
    int i = t->ndim - 2;
    for (; i > 0; i--) {
        element += row % t->size[i] * t->stride[i];
        row /= t->size[i];
    }
    return gdn_at(t, i == 0 ? element + row * t->stride[0] : element);
}

/* Merges leading dimensions where strides allow, which spares gdn_row_at() divisions. If there
 * are no rows, the product of other sizes may wrap. */
static inline void gdn_merge_rows(gdn_tensor *t)
{
    int to = t->ndim - 2;
    if (gdn_n_rows(t) == 0) return;
    for (int i = to - 1; i >= 0; i--) {
        if (t->size[to] == 1) {
            t->size[to] = t->size[i];
            t->stride[to] = t->stride[i];
        } else if (t->size[i] == 1 || t->stride[i] == t->size[to] * t->stride[to]) {
            t->size[to] *= t->size[i];
        } else {
            t->size[--to] = t->size[i];
            t->stride[to] = t->stride[i];
        }
    }
    for (int i = 0; to > 0 && i < t->ndim - to; i++) {
        t->size[i] = t->size[to + i];
        t->stride[i] = t->stride[to + i];
    }
    if (to > 0) t->ndim -= to;
}

static inline int64_t gdn_rows_per_item(int64_t row_elements)
{
    return row_elements < GDN_ITEM_ELEMENTS ? GDN_ITEM_ELEMENTS / (row_elements + 1) + 1 : 1;
}

/* ---- Sums over rows, the gradients of a vector [n] ----------------------------------------- */

/* Blocks of rows are added up each by itself, then blocks in their order. */
enum { GDN_MOST_BLOCKS = 512 };

static inline int64_t gdn_rows_per_block(int64_t n_rows, int64_t least)
{
    const int64_t rows = (n_rows + GDN_MOST_BLOCKS - 1) / GDN_MOST_BLOCKS;
    return rows > least ? rows : least;
}

#endif
