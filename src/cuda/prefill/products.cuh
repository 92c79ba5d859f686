/* SPDX-License-Identifier: Apache-2.0 */
/* Computes products of summaries: S <- M S + U, one range after the other. A block has 32 columns
 * of a head's state, and each warp four of these, which no other warp reads. A lane has the rows
 * lane, lane + 32, and so on. M passes through shared memory in tiles of 128 rows and 32 columns.
 * While one tile is multiplied, the next one is loaded, also across ranges. */
#ifndef GDN_CUDA_PRODUCTS_CUH
#define GDN_CUDA_PRODUCTS_CUH

#include "cuda/prefill/args.h"
#include "cuda/prefill/stages.cuh"

enum {
    PRODUCT_ROWS = 128,                                    /* of a tile */
    PRODUCT_DEPTH = 32,                                    /* columns of a tile */
    PRODUCT_EACH = PRODUCT_ROWS * PRODUCT_DEPTH / THREADS, /* elements of a tile that a thread
                                                              has */
    PRODUCT_OWN = PRODUCT_ROWS / 32                        /* rows of a lane in a tile */
};

struct product_shared {
    alignas(16) float M[2][PRODUCT_ROWS][PRODUCT_DEPTH + PAD];
    alignas(16) float S[THREADS / 32][MOST_K][4]; /* a part for each warp */
};
static_assert(sizeof(struct product_shared) <= GDN_CU_STRIP_BYTES, "product_shared");

/* The values that a thread holds. */
struct product {
    const struct gdn_cu_product &a;
    struct product_shared &sh;
    int64_t slot;
    int head, col, lane, warp; /* col: the first column of the warp */
    int n_deep;                /* tiles side by side */
};

/* Returns the first range that exists, from number i of the slot on; -1: there is none. */
GDN_DEVICE int64_t find_product_range(const struct product &p, int64_t &i)
{
    for (; i < p.a.n; i++) {
        const int64_t range = load_index(p.a.order, p.slot, i, p.slot + i * p.a.B);
        if (range >= 0 && range < p.a.P) return range;
    }
    return -1;
}

/* Loads an element. f32: all tensors are float32, so no load waits to know a dtype. */
template <bool f32> GDN_DEVICE float load_product(const void *data, int64_t at, int dtype)
{
    return f32 ? ((const float *)data)[at] : load_float(data, at, dtype);
}

/* Returns element (x, c) of the warp's columns of a state. */
template <bool f32>
GDN_DEVICE float load_state_element(const struct product &p, const struct gdn_pool_view &view,
                                    int64_t from, int x, int c)
{
    const int col = p.col + c;
    if (!view.data || x >= p.a.K || col >= p.a.V) return 0;
    return load_product<f32>(
        view.data, from + (view.k_first ? x * view.ld + col : col * view.ld + x), view.dtype);
}

/* Loads S from a state, or sets it to zero. */
template <bool f32>
GDN_DEVICE void load_product_state(const struct product &p, const struct gdn_pool_view &view,
                                   int64_t from)
{
    __syncwarp();
    for (int x = p.lane; x < MOST_K; x += 32)
        for (int c = 0; c < 4; c++)
            p.sh.S[p.warp][x][c] = load_state_element<f32>(p, view, from, x, c);
    __syncwarp();
}

/* Loads the thread's elements of a tile, in the order of memory; zeros outside of M. */
template <bool f32>
GDN_DEVICE void load_product_tile(float (&m)[PRODUCT_EACH], const struct product &p, int64_t range,
                                  int t)
{
    const struct gdn_pool_view &M = p.a.M;
    const int width = M.k_first ? PRODUCT_DEPTH : PRODUCT_ROWS;
    const int x0 = t / p.n_deep * PRODUCT_ROWS, y0 = t % p.n_deep * PRODUCT_DEPTH;
    const int fast = (M.k_first ? y0 : x0) + threadIdx.x % width; /* the index that lies side by
                                                                     side in memory */
    const int slow = (M.k_first ? x0 : y0) + threadIdx.x / width, step = THREADS / width;
    int64_t at = pool_at(M, range, p.head) + slow * M.ld + fast;
#pragma unroll
    for (int j = 0; j < PRODUCT_EACH; j++, at += step * M.ld)
        m[j] = fast < p.a.K && slow + j * step < p.a.K ? load_product<f32>(M.data, at, M.dtype) : 0;
}

/* Stores the thread's elements. Returns true if any is not zero. */
GDN_DEVICE bool store_product_tile(float (&tile)[PRODUCT_ROWS][PRODUCT_DEPTH + PAD],
                                   const float (&m)[PRODUCT_EACH], const struct product &p)
{
    bool some = false;
#pragma unroll
    for (int j = 0; j < PRODUCT_EACH; j++) {
        const int i = threadIdx.x + j * THREADS;
        some |= m[j] != 0;
        if (p.a.M.k_first)
            tile[i / PRODUCT_DEPTH][i % PRODUCT_DEPTH] = m[j];
        else
            tile[i % PRODUCT_ROWS][i / PRODUCT_ROWS] = m[j];
    }
    return some;
}

/* Adds the tile times S to sum. The tile's columns begin at row y0 of S. */
GDN_DEVICE void add_product_tile(float (&sum)[PRODUCT_OWN][4],
                                 const float (&tile)[PRODUCT_ROWS][PRODUCT_DEPTH + PAD],
                                 const struct product &p, int y0)
{
#pragma unroll 2
    for (int y = 0; y < PRODUCT_DEPTH; y += 4) {
        float4 m[PRODUCT_OWN];
#pragma unroll
        for (int i = 0; i < PRODUCT_OWN; i++) m[i] = *(const float4 *)&tile[p.lane + 32 * i][y];
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int i = 0; i < PRODUCT_OWN; i++)
                add_four(sum[i],
                         j == 0   ? m[i].x
                         : j == 1 ? m[i].y
                         : j == 2 ? m[i].z
                                  : m[i].w,
                         p.sh.S[p.warp][y0 + y + j]);
    }
}

/* Computes S = M S + U, or S = U if M is zero (G7). On entry m has the first tile of M, on return
 * that of range `next`, if there is one. n: tiles so far. */
template <bool f32, int parts>
GDN_DEVICE void pass_range(const struct product &p, float (&m)[PRODUCT_EACH], int64_t range,
                           int64_t next, int &n)
{
    const int64_t U = pool_at(p.a.U, range, p.head);
    bool some = false;
    int t = 0;
    float sum[parts][PRODUCT_OWN][4];
#pragma unroll
    for (int part = 0; part < parts; part++) {
#pragma unroll
        for (int i = 0; i < PRODUCT_OWN * 4; i++)
            sum[part][i / 4][i % 4] = load_state_element<f32>(
                p, p.a.U, U, part * PRODUCT_ROWS + p.lane + i / 4 * 32, i % 4);
        for (int deep = 0; deep < p.n_deep; deep++, n++) {
            some |= store_product_tile(p.sh.M[n % 2], m, p);
            __syncthreads();
            const bool last = ++t == parts * p.n_deep;
            if (!last || next >= 0) load_product_tile<f32>(m, p, last ? next : range, last ? 0 : t);
            add_product_tile(sum[part], p.sh.M[n % 2], p, deep * PRODUCT_DEPTH);
        }
    }
    if (!__syncthreads_or(some)) {
        load_product_state<f32>(p, p.a.U, U);
        return;
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < parts * PRODUCT_OWN; i++)
        *(float4 *)p.sh.S[p.warp][p.lane + 32 * i] =
            *(const float4 *)sum[i / PRODUCT_OWN][i % PRODUCT_OWN];
    __syncwarp();
}

template <bool f32> GDN_DEVICE void run_product(const struct gdn_cu_product &a)
{
    const struct product p = { a,
                               *(struct product_shared *)gdn_stage_shared,
                               blockIdx.x / a.n_strips / a.H,
                               (int)(blockIdx.x / a.n_strips % a.H),
                               (int)(blockIdx.x % a.n_strips) * STRIP + (int)threadIdx.x / 32 * 4,
                               (int)threadIdx.x % 32,
                               (int)threadIdx.x / 32,
                               (a.K + PRODUCT_DEPTH - 1) / PRODUCT_DEPTH };
    float m[PRODUCT_EACH];
    int n = 0;
    int64_t i = 0;
    int64_t range = find_product_range(p, i);
    load_product_state<f32>(p, a.S, pool_at(a.S, p.slot, p.head));
    if (!a.S.data && range >= 0) { /* without S, M of the first range is not read */
        load_product_state<f32>(p, a.U, pool_at(a.U, range, p.head));
        range = find_product_range(p, ++i);
    }
    if (range >= 0) load_product_tile<f32>(m, p, range, 0);
    while (range >= 0) {
        const int64_t next = find_product_range(p, ++i);
        if (a.K <= PRODUCT_ROWS)
            pass_range<f32, 1>(p, m, range, next, n);
        else
            pass_range<f32, 2>(p, m, range, next, n);
        range = next;
    }
    const struct gdn_pool_view &out = a.out;
    const int64_t to = pool_at(out, p.slot, p.head);
    for (int x = p.lane; x < a.K; x += 32)
        for (int c = 0; c < 4 && p.col + c < a.V; c++) {
            const int v = p.col + c;
            store_float(out.data, to + (out.k_first ? x * out.ld + v : v * out.ld + x), out.dtype,
                        p.sh.S[p.warp][x][c]);
        }
}

GDN_DEVICE void product_strip(const struct gdn_cu_product &a)
{
    if (a.M.dtype == GDN_F32 && a.U.dtype == GDN_F32 && a.S.dtype == GDN_F32)
        run_product<true>(a);
    else
        run_product<false>(a);
}

#endif
