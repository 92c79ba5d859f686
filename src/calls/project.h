/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of a weight [out][in], as it is stored, that make columns of a result. */
#ifndef GDN_PROJECT_H
#define GDN_PROJECT_H

#include "gdn.h"

/* Rows [row, row + n) of a weight make columns [column, column + n) of the result. */
struct gdn_segment {
    const gdn_tensor *weight; /* [out][in], dense */
    int64_t row, n, column;
};

#endif
