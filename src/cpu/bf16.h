/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of bfloat16 in place of float32, where a caller allows them (GDN_BF16_PRODUCTS):
 * the product of a strip with 32 rows of k and q, half of all arithmetic of a chunk. Both
 * factors are rounded to bfloat16, to nearest even; products are exact and sums float32.
 */
#ifndef GDN_CPU_BF16_H
#define GDN_CPU_BF16_H

#include "cpu/kernels.h"

struct gdn_bf16_products {
    const char *name;  /* "amx", "avx512bf16" */
    uint32_t    needs; /* GDN_CPU_... */
    /* As in struct gdn_kernels, for width = strip of the AVX-512 table. Denormal factors may
     * count as zero. Limit, on factors that bfloat16 holds: 8 + K / 16. */
    void (*strip_mul)(float *p, ptrdiff_t ldp, const float *a, ptrdiff_t lda, const float *w,
                      int rows, int K, int width);
};

/* The fastest that the machine has, of needs within flags; NULL: none. */
const struct gdn_bf16_products *gdn_cpu_bf16_products(uint32_t flags);

#endif
