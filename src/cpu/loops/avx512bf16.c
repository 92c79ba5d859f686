/* SPDX-License-Identifier: Apache-2.0 */
/* bf16.h by AVX512-BF16: rounding, the update that renews the rounded strip, and the product of
 * a strip by dot products of pairs, for machines without tiles. */
#include <immintrin.h>
#include <string.h>

#include "cpu/loops/bf16.h"

#define INLINE static inline __attribute__((always_inline))

enum { COLUMNS = 32, VECTOR = 16, DEPTH = 32, C = GDN_CHUNK };

static __mmask16 first_n(int n)
{
    return n >= VECTOR ? 0xffff : n > 0 ? (__mmask16)((1u << n) - 1) : 0;
}

void gdn_bf16_round_rows(uint16_t *rows, const float *a, ptrdiff_t lda, int K)
{
    for (int r = 0; r < 2 * C; r++, a += lda, rows += GDN_MAX_HEAD)
        for (int x = 0; x < K; x += DEPTH) {
            const __m512 low = _mm512_maskz_loadu_ps(first_n(K - x), a + x);
            const __m512 high = _mm512_maskz_loadu_ps(first_n(K - x - VECTOR), a + x + VECTOR);
            _mm512_store_si512(rows + x, (__m512i)_mm512_cvtne2ps_pbh(high, low));
        }
}

/* Two rows of 16 columns as pairs. */
INLINE void store_pairs(uint16_t *to, __m512 even, __m512 odd)
{
    const __m512i mix = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    _mm512_store_si512(to, _mm512_permutexvar_epi16(mix, (__m512i)_mm512_cvtne2ps_pbh(odd, even)));
}

void gdn_bf16_round_strip(uint16_t *pairs, const float *s, int K)
{
    const int rest = K % DEPTH ? DEPTH - K % DEPTH : 0;
    for (int x = 0; x < K; x += 2)
        for (int j = 0; j < COLUMNS; j += VECTOR) {
            const float *at = s + x * COLUMNS + j;
            const __m512 odd = x + 1 < K ? _mm512_load_ps(at + COLUMNS) : _mm512_setzero_ps();
            store_pairs(pairs + x * COLUMNS + 2 * j, _mm512_load_ps(at), odd);
        }
    K += K % 2;
    memset(pairs + K * COLUMNS, 0, (size_t)(rest / 2 * 2 * COLUMNS) * sizeof *pairs);
}

/* R rows of the strip, R even or the last row alone. */
INLINE void update_tile(float *s, uint16_t *pairs, __m512 decay, const float *k, ptrdiff_t ld_k,
                        const float *w, const int R)
{
    __m512 sum[8][2];
    for (int r = 0; r < R; r++)
        for (int n = 0; n < 2; n++)
            sum[r][n] = _mm512_mul_ps(decay, _mm512_load_ps(s + r * COLUMNS + n * VECTOR));
    for (int t = 0; t < C; t++) {
        const __m512 w0 = _mm512_load_ps(w + t * COLUMNS);
        const __m512 w1 = _mm512_load_ps(w + t * COLUMNS + VECTOR);
        for (int r = 0; r < R; r++) {
            const __m512 kt = _mm512_set1_ps(k[t * ld_k + r]);
            sum[r][0] = _mm512_fmadd_ps(kt, w0, sum[r][0]);
            sum[r][1] = _mm512_fmadd_ps(kt, w1, sum[r][1]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int n = 0; n < 2; n++) _mm512_store_ps(s + r * COLUMNS + n * VECTOR, sum[r][n]);
    for (int r = 0; r < R; r += 2)
        for (int n = 0; n < 2; n++)
            store_pairs(pairs + r * COLUMNS + n * 2 * VECTOR, sum[r][n],
                        r + 1 < R ? sum[r + 1][n] : _mm512_setzero_ps());
}

void gdn_bf16_chunk_update(float *s, uint16_t *pairs, float decay, const float *k, ptrdiff_t ld_k,
                           const float *w, int K)
{
    const __m512 d = _mm512_set1_ps(decay);
    int x = 0;
    for (; x + 8 <= K; x += 8)
        update_tile(s + x * COLUMNS, pairs + x * COLUMNS, d, k + x, ld_k, w, 8);
    for (; x + 2 <= K; x += 2)
        update_tile(s + x * COLUMNS, pairs + x * COLUMNS, d, k + x, ld_k, w, 2);
    if (x < K) update_tile(s + x * COLUMNS, pairs + x * COLUMNS, d, k + x, ld_k, w, 1);
}

INLINE void product_tile(float *p, ptrdiff_t ldp, const uint16_t *rows, const uint16_t *pairs,
                         int K, const int R)
{
    __m512 sum[12][2];
    for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    for (int x = 0; x < K; x += 2) {
        const __m512bh w0 = (__m512bh)_mm512_load_si512(pairs + x * COLUMNS);
        const __m512bh w1 = (__m512bh)_mm512_load_si512(pairs + x * COLUMNS + 2 * VECTOR);
        for (int r = 0; r < R; r++) {
            int pair;
            memcpy(&pair, rows + r * GDN_MAX_HEAD + x, sizeof pair);
            const __m512bh ax = (__m512bh)_mm512_set1_epi32(pair);
            sum[r][0] = _mm512_dpbf16_ps(sum[r][0], ax, w0);
            sum[r][1] = _mm512_dpbf16_ps(sum[r][1], ax, w1);
        }
    }
    for (int r = 0; r < R; r++)
        for (int n = 0; n < 2; n++) _mm512_storeu_ps(p + r * ldp + n * VECTOR, sum[r][n]);
}

/* 12 + 12 + 8 rows. */
static void strip_mul(float *p, ptrdiff_t ldp, const uint16_t *rows, const uint16_t *pairs, int K)
{
    product_tile(p, ldp, rows, pairs, K, 12);
    product_tile(p + 12 * ldp, ldp, rows + 12 * GDN_MAX_HEAD, pairs, K, 12);
    product_tile(p + 24 * ldp, ldp, rows + 24 * GDN_MAX_HEAD, pairs, K, 8);
}

const struct gdn_bf16_products gdn_bf16_avx512 = {
    .name = "avx512bf16",
    .needs = GDN_CPU_AVX512 | GDN_CPU_AVX512_BF16,
    .table = &gdn_kernels_avx512bf16,
    .round_rows = gdn_bf16_round_rows,
    .round_strip = gdn_bf16_round_strip,
    .strip_mul = strip_mul,
    .chunk_update = gdn_bf16_chunk_update,
};
