/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The product of a strip by AMX tiles: 2 x 2 tiles of 16 x 16 sums, 32 of K a step. What is
 * not a whole tile is filled up with zeros. The strip and the rows are converted on the way,
 * the strip in pairs of rows, as the tiles want their second factor.
 */
#include <immintrin.h>
#include <string.h>

#include "cpu/bf16.h"

enum { ROWS = 32, COLUMNS = 32, DEPTH = 32, TILE = 16, MAX_DEPTH = GDN_MAX_HEAD };

/* Eight tiles of 16 rows of 64 bytes. */
struct tile_config {
    uint8_t  palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t  rows[16];
};

static const struct tile_config config = {
    .palette   = 1,
    .row_bytes = { 64, 64, 64, 64, 64, 64, 64, 64 },
    .rows      = { 16, 16, 16, 16, 16, 16, 16, 16 },
};

static __m512i round_pair(__m512 even, __m512 odd)
{
    return (__m512i)_mm512_cvtne2ps_pbh(odd, even);
}

/* Rows of n floats to DEPTH columns a step; past n they are zero. */
static void convert_rows(uint16_t *to, const float *a, ptrdiff_t lda, int rows, int K)
{
    for (int r = 0; r < rows; r++)
        for (int x = 0; x < K; x += DEPTH) {
            const int       rest = K - x;
            const __mmask16 low = rest >= 16 ? 0xffff : (__mmask16)((1u << rest) - 1);
            const __mmask16 high =
                rest >= 32 ? 0xffff : rest > 16 ? (__mmask16)((1u << (rest - 16)) - 1) : 0;
            const float *at = a + r * lda + x;
            _mm512_store_si512(to + r * MAX_DEPTH + x,
                               round_pair(_mm512_maskz_loadu_ps(low, at),
                                          _mm512_maskz_loadu_ps(high, at + 16)));
        }
}

/* Rows x and x + 1 of the strip, column by column side by side. */
static void convert_strip(uint16_t *to, const float *w, int K)
{
    const __m512i mix = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512  zero = _mm512_setzero_ps();
    int           x    = 0;
    for (; x < K; x += 2)
        for (int half = 0; half < 2; half++) {
            const float *at  = w + x * COLUMNS + half * TILE;
            const __m512 odd = x + 1 < K ? _mm512_load_ps(at + COLUMNS) : zero;
            _mm512_store_si512(to + x * COLUMNS + half * 2 * TILE,
                               _mm512_permutexvar_epi16(mix, round_pair(_mm512_load_ps(at), odd)));
        }
    for (; x % DEPTH; x += 2) memset(to + x * COLUMNS, 0, 2 * COLUMNS * sizeof *to);
}

/* 32 x 32 sums. */
static void multiply(float *p, ptrdiff_t ldp, const uint16_t *a, const uint16_t *w, int K)
{
    const ptrdiff_t lda = MAX_DEPTH * sizeof *a, ldw = 2 * COLUMNS * sizeof *w;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int x = 0; x < K; x += DEPTH, w += DEPTH * COLUMNS) {
        _tile_loadd(4, a + x, lda);
        _tile_loadd(5, a + x + TILE * MAX_DEPTH, lda);
        _tile_loadd(6, w, ldw);
        _tile_loadd(7, w + 2 * TILE, ldw);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    const ptrdiff_t row = ldp * (ptrdiff_t)sizeof *p;
    _tile_stored(0, p, row);
    _tile_stored(1, p + TILE, row);
    _tile_stored(2, p + TILE * ldp, row);
    _tile_stored(3, p + TILE * ldp + TILE, row);
}

static void strip_mul(float *p, ptrdiff_t ldp, const float *a, ptrdiff_t lda, const float *w,
                      int rows, int K, int width)
{
    _Alignas(64) uint16_t rounded_a[ROWS * MAX_DEPTH], rounded_w[MAX_DEPTH * COLUMNS];
    _Alignas(64) float    sums[ROWS * COLUMNS];
    (void)width;
    _tile_loadconfig(&config);
    convert_strip(rounded_w, w, K);
    for (int r = 0; r < rows; r += ROWS) {
        const int n = rows - r < ROWS ? rows - r : ROWS;
        convert_rows(rounded_a, a + r * lda, lda, n, K);
        if (n < ROWS)
            memset(rounded_a + n * MAX_DEPTH, 0,
                   (size_t)((ROWS - n) * MAX_DEPTH) * sizeof *rounded_a);
        multiply(n < ROWS ? sums : p + r * ldp, n < ROWS ? COLUMNS : ldp, rounded_a, rounded_w, K);
        for (int i = 0; n < ROWS && i < n; i++)
            memcpy(p + (r + i) * ldp, sums + i * COLUMNS, COLUMNS * sizeof *p);
    }
    _tile_release();
}

const struct gdn_bf16_products gdn_bf16_amx = {
    .name = "amx", .needs = GDN_CPU_AVX512 | GDN_CPU_AMX, .strip_mul = strip_mul
};
