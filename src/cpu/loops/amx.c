/* SPDX-License-Identifier: Apache-2.0 */
/* The product of a strip by AMX tiles: 2 x 2 tiles of 16 x 16 sums, 32 of K a step. */
#include <immintrin.h>

#include "cpu/loops/bf16.h"

enum { COLUMNS = 32, DEPTH = 32, TILE = 16 };

/* Eight tiles of 16 rows of 64 bytes. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static const struct tile_config config = {
    .palette = 1,
    .row_bytes = { 64, 64, 64, 64, 64, 64, 64, 64 },
    .rows = { 16, 16, 16, 16, 16, 16, 16, 16 },
};

/* Tiles are given back at the end: a thread that holds some is slower to switch from. */
static void strip_mul(float *p, ptrdiff_t ldp, const uint16_t *rows, const uint16_t *pairs, int K)
{
    const ptrdiff_t ld_rows = GDN_MAX_HEAD * sizeof *rows, ld_pairs = 2 * COLUMNS * sizeof *pairs;
    const ptrdiff_t row = ldp * (ptrdiff_t)sizeof *p;
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int x = 0; x < K; x += DEPTH, pairs += DEPTH * COLUMNS) {
        _tile_loadd(4, rows + x, ld_rows);
        _tile_loadd(6, pairs, ld_pairs);
        _tile_loadd(7, pairs + 2 * TILE, ld_pairs);
        _tile_loadd(5, rows + x + TILE * GDN_MAX_HEAD, ld_rows);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, p, row);
    _tile_stored(1, p + TILE, row);
    _tile_stored(2, p + TILE * ldp, row);
    _tile_stored(3, p + TILE * ldp + TILE, row);
    _tile_release();
}

const struct gdn_bf16_products gdn_bf16_amx = {
    .name = "amx",
    .needs = GDN_CPU_AVX512 | GDN_CPU_AVX512_BF16 | GDN_CPU_AMX,
    .table = &gdn_kernels_avx512bf16,
    .round_rows = gdn_bf16_round_rows,
    .round_strip = gdn_bf16_round_strip,
    .strip_mul = strip_mul,
    .chunk_update = gdn_bf16_chunk_update,
};
