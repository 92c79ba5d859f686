/* SPDX-License-Identifier: Apache-2.0 */
/* Checks on tensor views. Each names the tensor in its error. */
#ifndef GDN_TENSOR_H
#define GDN_TENSOR_H

#include <stdbool.h>

#include "gdn.h"

/* Well formed: known dtype, 1 to 6 dimensions, sizes >= 0, address span without overflow,
 * data aligned to its element. Absent tensors pass. */
gdn_status gdn_check_tensor(gdn_ctx *ctx, const gdn_tensor *t, const char *name);

/* Sets of dtypes, as bits 1 << dtype. */
enum {
    GDN_FLOATS = 1 << GDN_F32 | 1 << GDN_BF16 | 1 << GDN_F16,
    GDN_Q8_DTYPES = 1 << GDN_I8 | 1 << GDN_E4M3 | 1 << GDN_E5M2,
    GDN_INDICES = 1 << GDN_I32 | 1 << GDN_I64
};
gdn_status gdn_check_dtype(gdn_ctx *ctx, const gdn_tensor *t, const char *name, unsigned allowed);

/* Checks ndim and sizes as wanted; a wanted size of -1 passes any. */
gdn_status gdn_check_shape(gdn_ctx *ctx, const gdn_tensor *t, const char *name, int ndim,
                           const int64_t *size);

/* Gives an empty tensor that has passed gdn_check_tensor() the strides of a dense one. An empty
 * tensor may have any strides, and arithmetic on them could wrap. */
void gdn_drop_strides(gdn_tensor *t);

/* Checks stride 1 in the last dimension. If its size is below 2, or there is no element, any
 * passes. */
gdn_status gdn_check_dense(gdn_ctx *ctx, const gdn_tensor *t, const char *name);

/* Checks a written tensor: no two of its elements share an address. */
gdn_status gdn_check_injective(gdn_ctx *ctx, const gdn_tensor *t, const char *name);

/* Refuses if `written` may overlap `other`; absent tensors never do. Views interleaved in one
 * buffer (equal outer stride, disjoint inner ranges) do not overlap. may_be_same: the very
 * same view (data, dtype, sizes, strides) is allowed. */
gdn_status gdn_check_no_overlap(gdn_ctx *ctx, const gdn_tensor *written, const char *name,
                                const gdn_tensor *other, const char *other_name, bool may_be_same);

/* The same for calls of many tensors: gdn_extents holds where each tensor lies, and one tensor
 * is checked against all others. All tensors are given and have passed gdn_check_tensor(). An
 * empty tensor overlaps none. may_be_same() is called for two tensors that overlap; NULL: never
 * the same. */

/* Enough for the tensors of a struct and of its batch; ops/tensors.c checks that. */
enum { GDN_MAX_EXTENTS = 64 };
struct gdn_extents {
    int n;
    struct gdn_extent {
        const gdn_tensor *t;
        const char *name;
        uint64_t low, high;
    } of[GDN_MAX_EXTENTS];
};
void gdn_add_extent(struct gdn_extents *all, const gdn_tensor *t, const char *name);
gdn_status gdn_check_apart(gdn_ctx *ctx, const struct gdn_extents *all,
                           const struct gdn_extent *written,
                           bool (*may_be_same)(const void *args, const gdn_tensor *written,
                                               const gdn_tensor *other),
                           const void *args);

/* Returns element i of a 1-d index tensor (GDN_I32, GDN_I64, GDN_U8), or [i][j] of a 2-d one. */
int64_t gdn_index(const gdn_tensor *t, int64_t i);
int64_t gdn_index2(const gdn_tensor *t, int64_t i, int64_t j);

/* Converts a 1-d float tensor of any stride to n floats; absent: fills with `absent`. */
void gdn_load_vector(float *dst, const gdn_tensor *t, int64_t n, float absent);

/* gdn_dtype_bytes() of a tensor that has passed gdn_check_tensor(). */
extern const uint8_t gdn_units[GDN_U8 + 1];
static inline int64_t gdn_unit(int32_t dtype) { return gdn_units[dtype]; }

static inline char *gdn_at(const gdn_tensor *t, int64_t element)
{
    return (char *)t->data + element * gdn_unit(t->dtype);
}

/* Returns bytes of one step in dimension i; 0 if there is no step. A dimension of one element,
 * and a tensor without elements, may have strides that wrap and that nothing uses. */
static inline int64_t gdn_step_bytes(const gdn_tensor *t, int i)
{
    if (i >= t->ndim || t->size[i] < 2) return 0;
    return (int64_t)((uint64_t)t->stride[i] * (uint64_t)gdn_unit(t->dtype));
}

static inline int64_t gdn_count(const gdn_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++) n *= t->size[i];
    return n;
}

#endif
