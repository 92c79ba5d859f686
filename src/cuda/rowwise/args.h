/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of kernels that take each row by itself. */
#ifndef GDN_CUDA_ROWWISE_ARGS_H
#define GDN_CUDA_ROWWISE_ARGS_H

#include "cuda/driver/args.h"

/* The arguments of gdn_gates: of a and g, of b and beta, or of both. */
struct gdn_cu_gates {
    struct gdn_cu_leads leads;
    struct gdn_cu_lines a, b, g, beta;
    struct gdn_cu_array A_log, dt_bias;
    int64_t n_lines, H;
    int64_t n_heads;     /* 0: a line has one number of each of H heads. Else a line has the H
                            channels of one head, and lines go through n_heads heads in turn */
    float bound, factor; /* factor: of beta, 1 or 2 */
    int32_t linear;
    int32_t each;           /* lines of a thread */
    uint32_t wide, inverse; /* wide: threads of a line, at most 256; inverse: 65536 / wide, rounded
                               up */
};
GDN_CU_SIZE(gdn_cu_gates, 48 + 4 * 64 + 2 * 32 + 24 + 24);

/* The arguments of gdn_gates_backward. A block of `rows` lines writes its part of dA_log and
 * ddt_bias to sums[block][2][H]. With channels it writes to [H + H K]: a line has K channels, and
 * each line has one head in turn. */
struct gdn_cu_gates_backward {
    struct gdn_cu_leads leads;
    struct gdn_cu_lines a, b, dg, dbeta, da, db;
    struct gdn_cu_array A_log, dt_bias, dA_log, ddt_bias;
    float *sums; /* NULL: neither dA_log nor ddt_bias is wanted */
    int64_t n_lines, H, rows, n_blocks;
    float bound, factor; /* factor: of beta, 1 or 2 */
    int32_t linear;
    int32_t adds;    /* gradients are added to those in memory */
    int32_t wants_a; /* da, dA_log or ddt_bias is wanted */
    int32_t K;       /* channels; 0: none */
};
GDN_CU_SIZE(gdn_cu_gates_backward, 48 + 6 * 64 + 4 * 32 + 40 + 24);

/* The arguments of gdn_l2norm and gdn_rmsnorm_gated. z and weight may be absent. */
struct gdn_cu_norm {
    struct gdn_cu_leads leads;
    struct gdn_cu_lines x, z, out, weight; /* weight is one line */
    int64_t weight_step;                   /* from one element of weight to the next, in elements */
    int64_t n_lines, D;
    int32_t formula; /* gdn_norm; GDN_NO_NORM: root mean square */
    int32_t sigmoid;
    float eps;
    int32_t lanes; /* lanes of a line, a power of two; not of form `wide` */
    int32_t zeros; /* in lines of up to 256: an element of 0 stays 0, whatever its gate is */
    int32_t pad;
};
GDN_CU_SIZE(gdn_cu_norm, 48 + 4 * 64 + 24 + 24);

/* The arguments of gdn_l2norm_backward. */
struct gdn_cu_l2norm_backward {
    struct gdn_cu_leads leads;
    struct gdn_cu_lines x, dout, dx;
    int64_t n_lines, D;
    int32_t formula; /* gdn_norm, not GDN_NO_NORM */
    float eps;
    int32_t lanes; /* lanes of a line, a power of two; of form `row` */
    int32_t adds;  /* the result is added to what dx holds */
};
GDN_CU_SIZE(gdn_cu_l2norm_backward, 48 + 3 * 64 + 16 + 16);

/* The arguments of gdn_rmsnorm_gated_backward. A block of `rows` lines writes its part of dweight
 * to sums[block][D]. */
struct gdn_cu_rmsnorm_backward {
    struct gdn_cu_leads leads;
    struct gdn_cu_lines x, z, dout, dx, dz;
    struct gdn_cu_array weight, dweight;
    float *sums; /* NULL: dweight is not wanted */
    int64_t n_lines, D, rows, n_blocks;
    float eps;
    int32_t sigmoid;
    int32_t lanes; /* lanes of a line, a power of two; not of form `wide` */
    int32_t adds;  /* gradients are added to those in memory */
};
GDN_CU_SIZE(gdn_cu_rmsnorm_backward, 48 + 5 * 64 + 2 * 32 + 40 + 16);

#endif
