/* SPDX-License-Identifier: Apache-2.0 */
/* Matrices with two strides, copied, converted and transposed as they need. */
#ifndef GDN_MATRIX_H
#define GDN_MATRIX_H

#include "cpu/loops/kernels.h"
#include "gdn.h"

struct gdn_state_matrix {
    char *data;
    int32_t dtype;
    int64_t unit, row, column; /* bytes of an element; strides in bytes */
};

/* rows x columns; dtypes are floats, or the same of 8 bits. */
void gdn_state_matrix_copy(const struct gdn_kernels *kr, const struct gdn_state_matrix *to,
                           const struct gdn_state_matrix *from, int64_t rows, int64_t columns);
void gdn_state_matrix_zero(const struct gdn_state_matrix *m, int64_t rows, int64_t columns);

/* Returns true if such a copy runs the loop `transpose`. */
bool gdn_state_matrix_is_tiled(const struct gdn_state_matrix *to,
                               const struct gdn_state_matrix *from, int64_t rows, int64_t columns);

#endif
