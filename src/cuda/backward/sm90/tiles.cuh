/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and products of tiles on Hopper: copies by one thread, products by a warpgroup. */
#ifndef GDN_CUDA_BACKWARD_SM90_TILES_CUH
#define GDN_CUDA_BACKWARD_SM90_TILES_CUH

#include "cuda/backward/tiles.cuh"
#include "cuda/device/ptx_wgmma.cuh"

/* Registers of a thread of a walk: of two warpgroups that multiply, and of one that loads. */
enum { WORKER_REGISTERS = 240, LOADER_REGISTERS = 24 };

typedef wgmma<BACKWARD_IO> product;

/* Sets tiles in shared memory to zero. All threads of a block call it. */
GDN_DEVICE void clear_tiles(char *tiles, int bytes)
{
    for (int i = 16 * threadIdx.x; i < bytes; i += 16 * blockDim.x)
        *(uint4 *)(tiles + i) = make_uint4(0, 0, 0, 0);
    async_fence();
}

/* ---- Copies: by one thread of the warp that loads -------------------------------------------- */

GDN_DEVICE void load_bytes(void *to, const void *from, int bytes, uint64_t &barrier)
{
    copy_in(shared_address(to), from, bytes, shared_address(&barrier));
}
/* Copies 64 columns of 64 tokens of a head: from column at[0] + skip, head at[1], token at[2] on,
 * in row at[3] of a batch. */
GDN_DEVICE void load_tile(char *to, const struct gdn_cu_map &map, const int (&at)[4], int skip,
                          uint64_t &barrier)
{
    const int from[4] = { at[0] + skip, at[1], at[2], at[3] };
    copy_tile(shared_address(to), &map, from, shared_address(&barrier));
}
/* Loads the same box into the L2 cache. */
GDN_DEVICE void prefetch_tile(const struct gdn_cu_map &map, const int (&at)[4], int skip)
{
    const int from[4] = { at[0] + skip, at[1], at[2], at[3] };
    prefetch_tile(&map, from);
}
/* Loads n tiles of keys, or of queries: from `tiles` in memory, or from the tensor, if memory has
 * none. */
GDN_DEVICE void load_keys(char *to, const struct gdn_cu_backward &a, const struct gdn_cu_map &map,
                          const char *tiles, const int (&at)[4], int n, uint64_t &barrier)
{
    if (has_key_tiles(a)) {
        load_bytes(to, tiles, n * TILE, barrier);
        return;
    }
#pragma unroll 1
    for (int i = 0; i < n; i++) load_tile(to + i * TILE, map, at, 64 * i, barrier);
}

/* ---- Products of a warpgroup ----------------------------------------------------------------- */

/* turned_place: the address of a block of 16 x 16 in rows of `row` bytes. The function stores a
 * block there, transposed. */
typedef uint32_t turned_place;
GDN_DEVICE turned_place turned_place_of(char *rows, int row)
{
    return shared_address(rows) + tiles::lane_turned(row);
}
GDN_DEVICE void store_turned(turned_place at, int row, const uint32_t (&x)[4])
{
    (void)row;
    store_matrices_turned(at, x[0], x[1], x[2], x[3]);
}

/* Stores a factor to tiles of 64 columns. A warp has 16 rows. */
template <int n> GDN_DEVICE void store_factor(char *to, const uint32_t (&x)[n])
{
    const uint32_t l = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const uint32_t at = shared_address(to) + tile_place(16 * warp + l % 16, l / 16 * 8);
#pragma unroll
    for (int i = 0; i < n / 4; i++)
        store_matrices((at ^ i % 4 * 32) + i / 4 * TILE, x[4 * i], x[4 * i + 1], x[4 * i + 2],
                       x[4 * i + 3]);
}

/* Computes x = a times the turned tile, or consecutive tiles: their rows are columns of x. */
template <int n>
GDN_DEVICE void multiply_rows(float (&x)[32], const uint32_t (&a)[n], const char *b)
{
    const uint32_t place = wgmma_place(shared_address(b));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < n / 4; i++) {
        const uint64_t f = wgmma_factor(place + i / 4 * (TILE / 16) + i % 4 * 2);
        if (i)
            product::add_rows(x, a + 4 * i, f);
        else
            product::rows(x, a, f);
    }
    wgmma_commit();
}
/* Computes x = a times the tile. */
GDN_DEVICE void multiply_columns(float (&x)[32], const uint32_t (&a)[16], const char *b)
{
    const uint32_t place = wgmma_place(shared_address(b));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint64_t f = wgmma_factor(place + i * (16 * 128 / 16));
        if (i)
            product::add_columns(x, a + 4 * i, f);
        else
            product::columns(x, a, f);
    }
    wgmma_commit();
}
/* Adds a times two tiles side by side to x. */
GDN_DEVICE void add_columns(float (&x)[64], const uint32_t (&a)[16], const char *b)
{
    const uint32_t place = wgmma_place(shared_address(b), TILE);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++)
        product::add_columns(x, a + 4 * i, wgmma_factor(place + i * (16 * 128 / 16)));
    wgmma_commit();
}

#endif
