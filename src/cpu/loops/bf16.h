/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of bfloat16 in place of float32, where a caller allows them (GDN_BF16_PRODUCTS):
 * those of a strip with the 32 rows of k and q, two thirds of the work on the state. Both
 * factors are rounded to nearest even; products are exact, sums float32. The state itself stays
 * float32: beside a strip lies its rounded copy, which the update of the strip renews.
 *
 *     pairs   of a strip [K][32]: rows x and x + 1 column by column side by side, as dot products
 *             of pairs want them, [K up to a multiple of 32][32]; rows past K are zero
 *     rows    [32][GDN_MAX_HEAD], zero from K up to a multiple of 32
 *
 * All 64-byte aligned.
 */
#ifndef GDN_CPU_BF16_H
#define GDN_CPU_BF16_H

#include "cpu/loops/kernels.h"

struct gdn_bf16_products {
    const char *name;                /* "amx", "avx512bf16" */
    uint32_t needs;                  /* GDN_CPU_... */
    const struct gdn_kernels *table; /* that it goes with */

    void (*round_rows)(uint16_t *rows, const float *a, ptrdiff_t lda, int K);
    void (*round_strip)(uint16_t *pairs, const float *s, int K);
    /* p[r][j] = sum_x rows[r][x] pairs[x][j], r < 32; rows of p ldp apart. Denormal factors may
     * count as zero. Limit 8 + K / 16 of the rounded factors. */
    void (*strip_mul)(float *p, ptrdiff_t ldp, const uint16_t *rows, const uint16_t *pairs, int K);
    /* As in struct gdn_kernels, in float32 and to the same bits; pairs become those of s. */
    void (*chunk_update)(float *s, uint16_t *pairs, float decay, const float *k, ptrdiff_t ld_k,
                         const float *w, int K);
};

/* Returns the fastest beside a table, within flags, GDN_CPU_... bits; NULL: none. */
const struct gdn_bf16_products *gdn_cpu_bf16_products(const struct gdn_kernels *kr, uint32_t flags);

#if defined(__x86_64__)
extern const struct gdn_bf16_products gdn_bf16_amx, gdn_bf16_avx512;
/* avx512bf16.c */
void gdn_bf16_round_rows(uint16_t *rows, const float *a, ptrdiff_t lda, int K);
void gdn_bf16_round_strip(uint16_t *pairs, const float *s, int K);
void gdn_bf16_chunk_update(float *s, uint16_t *pairs, float decay, const float *k, ptrdiff_t ld_k,
                           const float *w, int K);
#endif

#endif
