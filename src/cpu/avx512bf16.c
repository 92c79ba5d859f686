/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The product of a strip by dot products of pairs (AVX512-BF16): the strip is converted once,
 * pairs of rows side by side, and a row of a takes one broadcast pair a step.
 */
#include <immintrin.h>

#include "cpu/bf16.h"

enum { COLUMNS = 32, VECTOR = 16, MAX_DEPTH = GDN_MAX_HEAD };

static __m512bh *at(__m512bh *strip, int x, int half) { return strip + x + half; }

/* Rows x and x + 1 of the strip, column by column side by side; K even or filled with zero. */
static void convert_strip(__m512bh *to, const float *w, int K)
{
    const __m512i mix = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (int x = 0; x < K; x += 2)
        for (int half = 0; half < 2; half++) {
            const float  *from = w + x * COLUMNS + half * VECTOR;
            const __m512  odd  = x + 1 < K ? _mm512_load_ps(from + COLUMNS) : _mm512_setzero_ps();
            const __m512i pair = (__m512i)_mm512_cvtne2ps_pbh(odd, _mm512_load_ps(from));
            *at(to, x, half)   = (__m512bh)_mm512_permutexvar_epi16(mix, pair);
        }
}

/* Pairs of R rows of a, as they are broadcast: [K / 2][R]. */
static void convert_rows(uint32_t *to, const float *a, ptrdiff_t lda, int K, const int R)
{
    for (int r = 0; r < R; r++)
        for (int x = 0; x < K; x += 2 * VECTOR) {
            const int       rest = K - x;
            const __mmask16 low = rest >= 16 ? 0xffff : (__mmask16)((1u << rest) - 1);
            const __mmask16 high =
                rest >= 32 ? 0xffff : rest > 16 ? (__mmask16)((1u << (rest - 16)) - 1) : 0;
            const float *from = a + r * lda + x;
            _mm512_storeu_si512(to + r * (MAX_DEPTH / 2) + x / 2,
                                (__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(high, from + 16),
                                                             _mm512_maskz_loadu_ps(low, from)));
        }
}

static inline __attribute__((always_inline)) void tile(float *p, ptrdiff_t ldp, const uint32_t *a,
                                                       const __m512bh *w, int K, const int R)
{
    __m512 sum[12][2];
    for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    for (int x = 0; x < K; x += 2)
        for (int r = 0; r < R; r++) {
            const __m512bh ax = (__m512bh)_mm512_set1_epi32((int)a[r * (MAX_DEPTH / 2) + x / 2]);
            sum[r][0]         = _mm512_dpbf16_ps(sum[r][0], ax, w[x]);
            sum[r][1]         = _mm512_dpbf16_ps(sum[r][1], ax, w[x + 1]);
        }
    for (int r = 0; r < R; r++)
        for (int n = 0; n < 2; n++) _mm512_storeu_ps(p + r * ldp + n * VECTOR, sum[r][n]);
}

static void strip_mul(float *p, ptrdiff_t ldp, const float *a, ptrdiff_t lda, const float *w,
                      int rows, int K, int width)
{
    _Alignas(64) __m512bh strip[MAX_DEPTH + 2];
    _Alignas(64) uint32_t pairs[12 * MAX_DEPTH / 2];
    int                   r = 0;
    (void)width;
    convert_strip(strip, w, K);
    for (; rows - r == 12 || rows - r >= 16; r += 12) {
        convert_rows(pairs, a + r * lda, lda, K, 12);
        tile(p + r * ldp, ldp, pairs, strip, K, 12);
    }
    for (; rows - r >= 8; r += 8) {
        convert_rows(pairs, a + r * lda, lda, K, 8);
        tile(p + r * ldp, ldp, pairs, strip, K, 8);
    }
    for (; r < rows; r++) {
        convert_rows(pairs, a + r * lda, lda, K, 1);
        tile(p + r * ldp, ldp, pairs, strip, K, 1);
    }
}

const struct gdn_bf16_products gdn_bf16_avx512 = {
    .name      = "avx512bf16",
    .needs     = GDN_CPU_AVX512 | GDN_CPU_AVX512_BF16,
    .strip_mul = strip_mul,
};
