/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors as lists of rows: all dimensions but the last, for the ops that take each row by
 * itself. */
#ifndef GDN_ROWS_H
#define GDN_ROWS_H

#include "core/ctx.h"
#include "core/tensor_check.h"

enum { GDN_PIECE = 256 };          /* elements of a row that are in work at once */
enum { GDN_ITEM_ELEMENTS = 4096 }; /* elements of a work item, about */

static inline int64_t gdn_n_rows(const gdn_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim - 1; i++) n *= t->size[i];
    return n;
}

/* Element `first` of row `row`, rows counted with the last leading dimension fastest. */
static inline void *gdn_row_at(const gdn_tensor *t, int64_t row, int64_t first)
{
    int64_t element = first;
    for (int i = t->ndim - 2; i >= 0; i--) {
        element += row % t->size[i] * t->stride[i];
        row /= t->size[i];
    }
    return gdn_at(t, element);
}

static inline int64_t gdn_rows_per_item(int64_t row_elements)
{
    return row_elements < GDN_ITEM_ELEMENTS ? GDN_ITEM_ELEMENTS / (row_elements + 1) + 1 : 1;
}

/* n elements of a vector from `first` on; absent: filled with `absent`. */
static inline void gdn_load_piece(float *dst, const gdn_tensor *vector, int64_t first, int64_t n,
                                  float absent)
{
    gdn_tensor piece = *vector;
    if (piece.data) piece.data = gdn_at(vector, first * vector->stride[0]);
    gdn_load_vector(dst, &piece, n, absent);
}

#endif
