/* SPDX-License-Identifier: Apache-2.0 */
/*
 * States between memory and float32. Strips, [K][kr->strip], are the columns of a state that the
 * chunked loops work on. The step loops resume any columns of it in either orientation. Dtypes,
 * and the scales beside 8-bit states, end here.
 */
#ifndef GDN_STRIP_H
#define GDN_STRIP_H

#include "batch/plan.h"
#include "cpu/loops/kernels.h"

/* One head's state in a slot of a pool. */
struct gdn_place {
    char *data;     /* NULL: zero, or nowhere */
    float *scales;  /* [V], of 8-bit states; NULL: none */
    uint64_t noise; /* what random rounding starts from */
    const struct gdn_pool_view *view;
};

/* Returns the place of a head in a slot. n_tokens: tokens of its sequence in this call so far,
 * on which random rounding depends. */
struct gdn_place gdn_place_of(const struct gdn_pool_view *view, int64_t slot, int64_t head,
                              int64_t n_tokens);

/* Return the start of the random numbers of head `head` after n_tokens, and those of n columns. */
uint64_t gdn_noise(uint64_t seed, int64_t n_tokens, int64_t head);
void gdn_noise_keys(uint32_t *keys, uint64_t noise, int64_t col, int n);

/* Load and store columns [col, col + n) of one head's state, dense: [K][n] if k_first, else
 * [n][K]. */
void gdn_load_columns(float *S, bool k_first, const struct gdn_kernels *kr, struct gdn_place from,
                      int K, int col, int n);
void gdn_store_columns(const float *S, bool k_first, const struct gdn_kernels *kr,
                       struct gdn_place to, int K, int col, int n);

/* Returns true if both places have one 8-bit dtype, and both scales or neither. Then an
 * unchanged state is copied (G9), because loading and storing it might change codes. */
static inline bool gdn_are_twins(const struct gdn_place *from, const struct gdn_place *to)
{
    return from->data && to->data && gdn_is_q8(to->view->dtype) &&
           gdn_store_alike(from->view, to->view);
}
/* Copies n columns between twins, bit for bit, and their scales if there are some. */
void gdn_copy_columns(struct gdn_place to, int to_col, struct gdn_place from, int from_col, int K,
                      int n);

/* Floats from one row of scratch or of a matrix with K columns to the next. */
static inline ptrdiff_t gdn_strip_ld(int K) { return (K + 15) & ~15; }

/* Loads the state of one head, columns [col, col + n); those up to the width of the strip become
 * zero. rows: scratch, [kr->strip][gdn_strip_ld(K)]. */
void gdn_load_strip(float *S, const struct gdn_kernels *kr, struct gdn_place from, int K, int col,
                    int n, float *rows);
void gdn_store_strip(const float *S, const struct gdn_kernels *kr, struct gdn_place to, int K,
                     int col, int n, float *rows);

#endif
