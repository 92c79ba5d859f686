/* SPDX-License-Identifier: Apache-2.0 */
/* What the hosts of gdn_decode's kernels share. */
#ifndef GDN_CUDA_DECODE_H
#define GDN_CUDA_DECODE_H

#include "cuda/driver/backend.h"

enum {
    MOST_ROWS    = 65535, /* of a grid, in its second dimension */
    MOST_LINES   = 256,   /* of a state */
    WARP_COLUMNS = 16,
    FEW_TOKENS   = 4
};

/* Kernels by the largest K, and a place among them. */
#define SIZES(name) name##_64, name##_128, name##_256
int gdn_cuda_size(int K);

/* The view that a state is rounded as; absent ones are as if of float32, with rows of v. */
const struct gdn_pool_view *gdn_cuda_like(const struct gdn_cu_rule *r);

/* Sequences; one more zeroes what is behind the last one. */
int64_t gdn_cuda_sequences(const struct gdn_cu_rule *r);

/* Is there a slot for each sequence by its number, where it starts and where it ends? */
bool gdn_cuda_has_slots(const struct gdn_cu_warp *a);

/* Is all of it, rows of q and k too, in whole tiles of pieces? */
bool gdn_cuda_is_whole(const struct gdn_cu_rule *r, const struct gdn_cu_warp *a);

/* Which of the kernels for few tokens take the call; MANY: none. */
enum gdn_cuda_few { GDN_CUDA_MANY, GDN_CUDA_ONE, GDN_CUDA_PACKED, GDN_CUDA_FOUR };
enum gdn_cuda_few gdn_cuda_few_of(const struct gdn_cu_rule *r, const struct gdn_cu_warp *a);
gdn_status        gdn_cuda_decode_few(gdn_ctx *ctx, const char *op, const struct gdn_cu_rule *r,
                                      const struct gdn_cu_warp *a, enum gdn_cuda_few few,
                                      void *stream);

#endif
