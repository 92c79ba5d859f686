/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of tensors (batch/rowwise.h) to float32 and back, by the inner loops. */
#ifndef GDN_CPU_ROWS_H
#define GDN_CPU_ROWS_H

#include <math.h>

#include "batch/rowwise.h"
#include "cpu/loops/kernels.h"

/* Elements of a row that are in work at once. Rows on the stack are aligned where this pays: an op
 * whose vectors of 64 bytes cross lines of a cache takes up to 1.7 times as long. */
enum { GDN_PIECE = 256 };

/* Returns n elements of a row from `first` on: where they are, or in the buffer. */
static inline const float *gdn_row_floats(const struct gdn_kernels *kr, const gdn_tensor *t,
                                          int64_t row, int64_t first, size_t n, float *buffer)
{
    const void *from = gdn_row_at(t, row, first);
    if (t->dtype == GDN_F32) return from;
    kr->load_row[t->dtype](buffer, from, n);
    return buffer;
}

/* Return how many of n elements of a row can be taken at once: all that lie side by side, else one;
 * and the address of element `first` of a row. */
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

/* Loads n elements of a vector from `first` on; absent: filled with `absent`. */
static inline void gdn_load_piece(float *dst, const gdn_tensor *vector, int64_t first, int64_t n,
                                  float absent)
{
    gdn_tensor piece = *vector;
    if (piece.data) piece.data = gdn_at(vector, first * vector->stride[0]);
    gdn_load_vector(dst, &piece, n, absent);
}

/* Returns A of gdn_raw_gates(). */
static inline float gdn_raw_factor(float A_log, float bound)
{
    return bound < 0 ? expf(A_log) : -expf(A_log);
}

/* Raw gates become log gates: A softplus(g + dt), or with a bound bound sigmoid(A (g + dt)). */
static inline void gdn_raw_gates(const struct gdn_kernels *kr, float *g, const float *A,
                                 const float *dt, float bound, size_t n)
{
    if (bound < 0) {
        for (size_t i = 0; i < n; i++) g[i] = A[i] * (g[i] + dt[i]);
        kr->sigmoid_row(g, g, bound, n);
    } else {
        kr->gate_row(g, g, A, dt, n);
    }
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

/* Stores t[i] (+)= the sum over blocks of sums[block * step + i], i < n; t is f32 and may be
 * absent. */
static inline void gdn_store_sums(const gdn_tensor *t, const float *sums, int64_t n_blocks,
                                  int64_t step, int64_t n, bool adds)
{
    for (int64_t i = 0; t->data && i < n; i++) {
        float *to = (float *)t->data + i * t->stride[0];
        double sum = adds ? (double)*to : 0;
        for (int64_t block = 0; block < n_blocks; block++) sum += (double)sums[block * step + i];
        *to = (float)sum;
    }
}

#endif
