/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of kernels that take each row by itself. */
#ifndef GDN_CUDA_ROWWISE_ARGS_H
#define GDN_CUDA_ROWWISE_ARGS_H

#include "cuda/driver/args.h"

/* gdn_gates: a with g, b with beta, or both. */
struct gdn_cu_gates {
    struct gdn_cu_leads leads;
    struct gdn_cu_lines a, b, g, beta;
    struct gdn_cu_array A_log, dt_bias;
    int64_t n_lines, H;
    int64_t n_heads;     /* 0; else H are the channels of a line, and lines go from head to head */
    float bound, factor; /* of beta: 1 or 2 */
    int32_t linear;
    int32_t each;           /* lines of a thread */
    uint32_t wide, inverse; /* threads of a line, up to 256; 65536 / wide, rounded up */
};
GDN_CU_SIZE(gdn_cu_gates, 48 + 4 * 64 + 2 * 32 + 24 + 24);

/* gdn_gates_backward. Blocks of `rows` lines write to sums[block][2][H] what dA_log and ddt_bias
 * get from them; to [H + H K] with channels, of which a line has K, and lines go from head to
 * head. */
struct gdn_cu_gates_backward {
    struct gdn_cu_leads leads;
    struct gdn_cu_lines a, b, dg, dbeta, da, db;
    struct gdn_cu_array A_log, dt_bias, dA_log, ddt_bias;
    float *sums; /* NULL: neither is wanted */
    int64_t n_lines, H, rows, n_blocks;
    float bound, factor; /* of beta: 1 or 2 */
    int32_t linear;
    int32_t adds;    /* gradients are added to those in memory */
    int32_t wants_a; /* da, dA_log or ddt_bias */
    int32_t K;       /* channels; 0: none */
};
GDN_CU_SIZE(gdn_cu_gates_backward, 48 + 6 * 64 + 4 * 32 + 40 + 24);

/* gdn_l2norm, gdn_rmsnorm_gated: z and weight may be absent. */
struct gdn_cu_norm {
    struct gdn_cu_leads leads;
    struct gdn_cu_lines x, z, out, weight; /* weight: one line, */
    int64_t weight_step;                   /* elements that far apart */
    int64_t n_lines, D;
    int32_t formula; /* gdn_norm; GDN_NO_NORM: root mean square */
    int32_t sigmoid;
    float eps;
    int32_t lanes; /* that share a line, a power of two; in the forms that do */
    int32_t zeros; /* lines up to 256: an element of 0 stays 0, whatever its gate */
    int32_t pad;
};
GDN_CU_SIZE(gdn_cu_norm, 48 + 4 * 64 + 24 + 24);

/* gdn_l2norm_backward. */
struct gdn_cu_l2norm_backward {
    struct gdn_cu_leads leads;
    struct gdn_cu_lines x, dout, dx;
    int64_t n_lines, D;
    int32_t formula; /* gdn_norm, not GDN_NO_NORM */
    float eps;
    int32_t lanes; /* that share a line, a power of two; in form `row` */
    int32_t adds;  /* to what dx holds */
};
GDN_CU_SIZE(gdn_cu_l2norm_backward, 48 + 3 * 64 + 16 + 16);

/* gdn_rmsnorm_gated_backward. Blocks of `rows` lines write to sums[block][D] what dweight gets from
 * them. */
struct gdn_cu_rmsnorm_backward {
    struct gdn_cu_leads leads;
    struct gdn_cu_lines x, z, dout, dx, dz;
    struct gdn_cu_array weight, dweight;
    float *sums; /* NULL: dweight is not wanted */
    int64_t n_lines, D, rows, n_blocks;
    float eps;
    int32_t sigmoid;
    int32_t lanes; /* that share a line, a power of two; in the forms that do */
    int32_t adds;  /* gradients are added to those in memory */
};
GDN_CU_SIZE(gdn_cu_rmsnorm_backward, 48 + 5 * 64 + 2 * 32 + 40 + 16);

#endif
