/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and products of tiles on every device from sm_80 on: copies by all threads of a block,
 * products by mma.sync of a warp. A warp has 16 rows; four warps have those of a warpgroup in
 * sm90/tiles.cuh. */
#ifndef GDN_CUDA_BACKWARD_PORTABLE_TILES_CUH
#define GDN_CUDA_BACKWARD_PORTABLE_TILES_CUH

#include "cuda/backward/tiles.cuh"
#include "cuda/prefill/portable/turned.cuh"

extern __shared__ __align__(128) char gdn_shared[];

/* ---- Copies: by all n threads of a block ----------------------------------------------------- */

/* Begins to copy `bytes`, of which the first `valid` exist, and zeros for the others. */
template <int n, int bytes>
GDN_DEVICE void begin_copy(void *to, const char *from, int valid = bytes)
{
    const uint32_t target = shared_address(to) + 16 * threadIdx.x;
    const int first = 16 * threadIdx.x;
#pragma unroll
    for (int i = 0; i < bytes; i += 16 * n) {
        const bool there = first + i < valid;
        if (bytes % (16 * n) == 0 || first + i < bytes)
            copy_async<16>(target + i, from + (there ? first + i : 0), there ? 16 : 0);
    }
}

/* The addresses that a thread copies rows of 64 columns from, 16 bytes of each row. They are found
 * before the first copy, because the compiler moves nothing over a copy. */
struct row_source {
    const char *at;
    int64_t token;
    int n; /* rows that are there */
};
GDN_DEVICE struct row_source source_of(const struct gdn_rows &rows, const struct gdn_cu_seq &s,
                                       int64_t t0, int64_t n, int head, int first, int V)
{
    const int t = threadIdx.x / 8, column = first + threadIdx.x % 8 * 8;
    const bool there = t < n && column < V;
    return { row_at(rows, s, there ? t0 + t : 0, head) + (there ? 2 * column : 0), rows.token,
             column < V ? (int)n : 0 };
}
/* Begins to copy the source's rows as a tile. Rows that it does not have are zeros. */
template <int n> GDN_DEVICE void begin_rows(char *to, const struct row_source &from)
{
    const int t = threadIdx.x / 8;
    const uint32_t target = shared_address(to) + tile_place(t, threadIdx.x % 8 * 8);
#pragma unroll
    for (int i = 0; i < CHUNK; i += n / 8) {
        const bool there = t + i < from.n;
        copy_async<16>(target + i * 128, from.at + (there ? i * from.token : 0), there ? 16 : 0);
    }
}

/* ---- Tiles in shared memory ------------------------------------------------------------------ */

/* Copies 16 rows of a tile, which the warp wrote to shared memory, to the same rows in memory. */
GDN_DEVICE void copy_rows_out(char *to, const char *from)
{
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int at = 512 * i + 16 * (threadIdx.x % 32);
        *(uint4 *)(to + at) = *(const uint4 *)(from + at);
    }
    __syncwarp();
}

/* Stores a factor as 16 rows of a tile. */
GDN_DEVICE void store_factor(char *rows, const uint32_t (&x)[16])
{
    const uint32_t place = tile_place(threadIdx.x % 32 / 4, sum_column(0));
#pragma unroll
    for (int i = 0; i < 16; i++)
        *(uint32_t *)(rows + (place ^ i / 2 * 16) + i % 2 * (8 * 128)) = x[i];
}
/* Returns the address of the warp's rows of a tile, of four warps. */
GDN_DEVICE char *own_rows(char *tile) { return tile + threadIdx.x / 32 % 4 * (16 * 128); }

/* ---- Products of a warp: 16 rows of sums ----------------------------------------------------- */

/* Return the address that a lane loads 16 x 16 elements from: of a tile whose rows are the columns
 * of sums, or of a tile whose rows are summed over (turned). */
GDN_DEVICE uint32_t right_place(const char *tile)
{
    const int l = threadIdx.x % 32;
    return shared_address(tile) + tile_place(l % 8 + l / 16 * 8, l / 8 % 2 * 8);
}
GDN_DEVICE uint32_t right_place_turned(const char *tile)
{
    const int l = threadIdx.x % 32;
    return shared_address(tile) + tile_place(l % 16, l / 16 * 8);
}
/* Adds a (16 columns of a factor) times 16 columns, from b on, to two blocks of sums. */
GDN_DEVICE void multiply_add(float *x, const uint32_t *a, const uint32_t (&b)[4])
{
    float(&low)[4] = *(float(*)[4])x, (&high)[4] = *(float(*)[4])(x + 4);
    const uint32_t(&left)[4] = *(const uint32_t(*)[4])a;
    pairs::mma(low, left, b[0], b[1]);
    pairs::mma(high, left, b[2], b[3]);
}

/* Adds a times the turned tile, or consecutive tiles, to x: their rows are columns of x. */
template <int n> GDN_DEVICE void add_rows(float (&x)[32], const uint32_t (&a)[n], const char *b)
{
    const uint32_t at = right_place(b);
#pragma unroll
    for (int i = 0; i < n / 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t y[4];
            load_matrices(y, (at ^ i % 4 * 32) + i / 4 * TILE + j * (16 * 128));
            multiply_add(x + 8 * j, a + 4 * i, y);
        }
}
/* Adds a times n / 32 tiles side by side to x: rows of tiles are summed over. */
template <int n> GDN_DEVICE void add_columns(float (&x)[n], const uint32_t (&a)[16], const char *b)
{
    const uint32_t at = right_place_turned(b);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < n / 8; j++) {
            uint32_t y[4];
            load_matrices_turned(y, (at ^ j % 4 * 32) + j / 4 * TILE + i * (16 * 128));
            multiply_add(x + 8 * j, a + 4 * i, y);
        }
}
/* Add a times a lower triangle to x, or a times the turned triangle. */
GDN_DEVICE void add_triangle(float (&x)[32], const uint32_t (&a)[16], const char *b)
{
    const uint32_t at = right_place_turned(b);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j <= i; j++) {
            uint32_t y[4];
            load_matrices_turned(y, (at ^ j * 32) + i * (16 * 128));
            multiply_add(x + 8 * j, a + 4 * i, y);
        }
}
GDN_DEVICE void add_triangle_turned(float (&x)[32], const uint32_t (&a)[16], const char *b)
{
    const uint32_t at = right_place(b);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = i; j < 4; j++) {
            uint32_t y[4];
            load_matrices(y, (at ^ i * 32) + j * (16 * 128));
            multiply_add(x + 8 * j, a + 4 * i, y);
        }
}
GDN_DEVICE void clear(float (&x)[32])
{
#pragma unroll
    for (int e = 0; e < 32; e++) x[e] = 0;
}

/* Loads a warp's 16 rows of a tile as a factor. */
GDN_DEVICE void load_factor(uint32_t (&x)[16], const char *tile)
{
    const uint32_t l = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const uint32_t at = shared_address(tile) + tile_place(16 * warp + l % 16, l / 16 * 8);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t y[4];
        load_matrices(y, at ^ i * 32);
#pragma unroll
        for (int j = 0; j < 4; j++) x[4 * i + j] = y[j];
    }
}

#endif
