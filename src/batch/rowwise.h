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

/* Returns element `first` of row `row`, rows counted with the last leading dimension fastest. */
static inline void *gdn_row_at(const gdn_tensor *t, int64_t row, int64_t first)
{
    int64_t element = first;
    int     i       = t->ndim - 2;
    for (; i > 0; i--) {
        element += row % t->size[i] * t->stride[i];
        row /= t->size[i];
    }
    return gdn_at(t, i == 0 ? element + row * t->stride[0] : element);
}

/* Makes one of leading dimensions that lie as one, which spares gdn_row_at() divisions. Without
 * rows the product of other sizes may wrap. */
static inline void gdn_merge_rows(gdn_tensor *t)
{
    int to = t->ndim - 2;
    if (gdn_n_rows(t) == 0) return;
    for (int i = to - 1; i >= 0; i--) {
        if (t->size[to] == 1) {
            t->size[to]   = t->size[i];
            t->stride[to] = t->stride[i];
        } else if (t->size[i] == 1 || t->stride[i] == t->size[to] * t->stride[to]) {
            t->size[to] *= t->size[i];
        } else {
            t->size[--to] = t->size[i];
            t->stride[to] = t->stride[i];
        }
    }
    for (int i = 0; to > 0 && i < t->ndim - to; i++) {
        t->size[i]   = t->size[to + i];
        t->stride[i] = t->stride[to + i];
    }
    if (to > 0) t->ndim -= to;
}

/* Returns n elements of a row from `first` on: where they are, or in the buffer. */
static inline const float *gdn_row_floats(const struct gdn_kernels *kr, const gdn_tensor *t,
                                          int64_t row, int64_t first, size_t n, float *buffer)
{
    const void *from = gdn_row_at(t, row, first);
    if (t->dtype == GDN_F32) return from;
    kr->load_row[t->dtype](buffer, from, n);
    return buffer;
}

/* Return how many elements of a row, of n from some element on, lie side by side; and the address
 * of element `first` by the row's own stride. */
static inline size_t gdn_at_once(const gdn_tensor *t, size_t n)
{
    return t->stride[t->ndim - 1] == 1 ? n : 1;
}
static inline void *gdn_element_at(const gdn_tensor *t, int64_t row, int64_t first)
{
    return gdn_row_at(t, row, first * t->stride[t->ndim - 1]);
}

/* Load and store n elements of a row of any stride, from element `first` on. */
static inline void gdn_load_part(const struct gdn_kernels *kr, float *to, const gdn_tensor *t,
                                 int64_t row, int64_t first, size_t n)
{
    const size_t some = gdn_at_once(t, n);
    for (size_t i = 0; i < n; i += some)
        kr->load_row[t->dtype](to + i, gdn_element_at(t, row, first + (int64_t)i), some);
}
static inline void gdn_store_part(const struct gdn_kernels *kr, const gdn_tensor *t, int64_t row,
                                  int64_t first, const float *from, size_t n)
{
    const size_t some = gdn_at_once(t, n);
    for (size_t i = 0; i < n; i += some)
        kr->store_row[t->dtype](gdn_element_at(t, row, first + (int64_t)i), from + i, some);
}

static inline int64_t gdn_rows_per_item(int64_t row_elements)
{
    return row_elements < GDN_ITEM_ELEMENTS ? GDN_ITEM_ELEMENTS / (row_elements + 1) + 1 : 1;
}

/* Loads n elements of a vector from `first` on; absent: filled with `absent`. */
static inline void gdn_load_piece(float *dst, const gdn_tensor *vector, int64_t first, int64_t n,
                                  float absent)
{
    gdn_tensor piece = *vector;
    if (piece.data) piece.data = gdn_at(vector, first * vector->stride[0]);
    gdn_load_vector(dst, &piece, n, absent);
}

/* Stores n elements, up to GDN_PIECE, at `to`; `adds`: added to what is there. Changes x. */
static inline void gdn_put_gradient(const struct gdn_kernels *kr, void *to, int32_t dtype, float *x,
                                    size_t n, bool adds)
{
    float held[GDN_PIECE];
    if (adds) {
        kr->load_row[dtype](held, to, n);
        for (size_t i = 0; i < n; i++) x[i] += held[i];
    }
    kr->store_row[dtype](to, x, n);
}

/* Stores the same in a row of t of any stride, from element `first` on. */
static inline void gdn_store_gradient(const struct gdn_kernels *kr, const gdn_tensor *t,
                                      int64_t row, int64_t first, float *x, size_t n, bool adds)
{
    const size_t some = gdn_at_once(t, n);
    for (size_t i = 0; i < n; i += some)
        gdn_put_gradient(kr, gdn_element_at(t, row, first + (int64_t)i), t->dtype, x + i, some,
                         adds);
}

/* ---- Sums over rows, the gradients of a vector [n] ----------------------------------------- */

/* Blocks of rows are added up each by itself, then blocks in their order. */
enum { GDN_MOST_BLOCKS = 512 };

static inline int64_t gdn_rows_per_block(int64_t n_rows, int64_t least)
{
    const int64_t rows = (n_rows + GDN_MOST_BLOCKS - 1) / GDN_MOST_BLOCKS;
    return rows > least ? rows : least;
}

/* Stores t[i] (+)= the sum over blocks of sums[block * step + i], i < n; t is f32 and may be
 * absent. */
static inline void gdn_store_sums(const gdn_tensor *t, const float *sums, int64_t n_blocks,
                                  int64_t step, int64_t n, bool adds)
{
    for (int64_t i = 0; t->data && i < n; i++) {
        float *to  = (float *)t->data + i * t->stride[0];
        double sum = adds ? (double)*to : 0;
        for (int64_t block = 0; block < n_blocks; block++) sum += (double)sums[block * step + i];
        *to = (float)sum;
    }
}

#endif
