/* SPDX-License-Identifier: Apache-2.0 */
/* In place of ptx_wgmma.cuh. What goes on behind a thread's back is done as late, or as early,
 * as it may be: hopper.cpp. An address of another block of the cluster has its rank, and one,
 * from bit 24 on. */
#ifndef GDN_TESTS_EMULATED_HOPPER_H
#define GDN_TESTS_EMULATED_HOPPER_H

#define GDN_CUDA_PTX_WGMMA_CUH
#define __cluster_dims__(...)

void emulated_init_mbarrier(uint32_t barrier, int n);
void emulated_arrive(uint32_t barrier, int bytes);
void emulated_wait_for_phase(uint32_t barrier, uint32_t parity);
bool emulated_has_ended(uint32_t barrier, uint32_t parity);
uint32_t emulated_cluster_rank(void);
void emulated_copy_to_block(uint32_t to, uint32_t from, int bytes, uint32_t barrier);
void emulated_send_to_block(uint32_t to, const float (&x)[4], uint32_t barrier);
void emulated_copy_in(uint32_t to, const void *from, int bytes, uint32_t barrier);
void emulated_load_tile(uint32_t to, const void *map, const int (&at)[4], uint32_t barrier);
void emulated_store_tile(const void *map, const int (&at)[4], uint32_t from);
void emulated_copy_out(void *to, uint32_t from, int bytes);
void emulated_wait_for_stores(void);
void emulated_store_matrices(uint32_t row, const uint32_t (&x)[4]);
void emulated_store_turned(uint32_t row, const uint32_t (&x)[4]);

#define gdn_shared emulated_shared()

GDN_DEVICE void mbarrier_init(uint32_t barrier, int n) { emulated_init_mbarrier(barrier, n); }
GDN_DEVICE void mbarrier_init_fence(void) {}
GDN_DEVICE void mbarrier_arrive(uint32_t barrier) { emulated_arrive(barrier, 0); }
GDN_DEVICE void mbarrier_expect(uint32_t barrier, int bytes) { emulated_arrive(barrier, bytes); }
GDN_DEVICE void mbarrier_arrive_cluster(uint32_t barrier) { emulated_arrive(barrier, 0); }
GDN_DEVICE void mbarrier_expect_cluster(uint32_t barrier, int n) { emulated_arrive(barrier, n); }
GDN_DEVICE void mbarrier_wait(uint32_t barrier, uint32_t parity)
{
    emulated_wait_for_phase(barrier, parity);
}
GDN_DEVICE bool mbarrier_test(uint32_t barrier, uint32_t parity)
{
    return emulated_has_ended(barrier, parity);
}
GDN_DEVICE bool barrier_any(int barrier, int n, bool x)
{
    return emulated_barrier(barrier, n, true, x);
}

GDN_DEVICE uint32_t map_shared(uint32_t at, uint32_t rank) { return at | (rank + 1) << 24; }
GDN_DEVICE uint32_t cluster_rank(void) { return emulated_cluster_rank(); }
GDN_DEVICE void cluster_sync(void)
{
    cluster_arrive();
    cluster_wait();
}

GDN_DEVICE void copy_to_block(uint32_t to, uint32_t from, int bytes, uint32_t barrier)
{
    emulated_copy_to_block(to, from, bytes, barrier);
}
GDN_DEVICE void send_to_block(uint32_t to, const float (&x)[4], uint32_t barrier)
{
    emulated_send_to_block(to, x, barrier);
}
GDN_DEVICE void mbarrier_wait_cluster(uint32_t barrier, uint32_t parity)
{
    emulated_wait_for_phase(barrier, parity);
}
GDN_DEVICE void copy_in(uint32_t to, const void *from, int bytes, uint32_t barrier)
{
    emulated_copy_in(to, from, bytes, barrier);
}
GDN_DEVICE void prefetch_map(const void *) {}
GDN_DEVICE void copy_tile(uint32_t to, const void *map, const int (&at)[4], uint32_t barrier)
{
    emulated_load_tile(to, map, at, barrier);
}
GDN_DEVICE void prefetch_tile(const void *, const int (&)[4]) {}
GDN_DEVICE void copy_tile_out(const void *map, const int (&at)[4], uint32_t from)
{
    emulated_store_tile(map, at, from);
}
GDN_DEVICE void copy_out(void *to, uint32_t from, int bytes) { emulated_copy_out(to, from, bytes); }
GDN_DEVICE void copy_out_commit(void) {}
GDN_DEVICE void copy_out_wait_read(void) { emulated_wait_for_stores(); }
GDN_DEVICE void copy_out_wait(void) { emulated_wait_for_stores(); }
GDN_DEVICE void async_fence(void) {}

template <int n> GDN_DEVICE void raise_registers(void) {}
template <int n> GDN_DEVICE void lower_registers(void) {}

GDN_DEVICE void load_shared(float (&x)[4], uint32_t at) { memcpy(x, emulated_place(at), 16); }
GDN_DEVICE void store_shared(uint32_t at, uint32_t x) { memcpy(emulated_place(at), &x, 4); }
GDN_DEVICE void store_shared(uint32_t at, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    const uint32_t x[4] = { a, b, c, d };
    emulated_store(emulated_place(at), x, 16, true);
}
GDN_DEVICE void store_shared_u16(uint32_t at, uint16_t x) { memcpy(emulated_place(at), &x, 2); }
GDN_DEVICE void store_matrices(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    emulated_store_matrices(row, { a, b, c, d });
}
GDN_DEVICE void store_matrices_turned(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    emulated_store_turned(row, { a, b, c, d });
}

/* ---- Products -------------------------------------------------------------------------------- */

/* d = a b or d += a b: 16 rows of the warp's, 2 n columns, a depth of 16. a: words, or a tile. */
struct emulated_product {
    float *d;
    int n;
    const uint32_t *a;
    uint64_t a_tile, b;
    bool adds, turned; /* turned: rows of b are summed over */
    int dtype;
    bool a_turned; /* and rows of a */
};
void emulated_multiply(const emulated_product &p);
void emulated_commit_products(void);
void emulated_wait_for_products(int n_groups);

GDN_DEVICE void wgmma_fence(void) {}
GDN_DEVICE void wgmma_commit(void) { emulated_commit_products(); }
template <int n> GDN_DEVICE void wgmma_wait(void) { emulated_wait_for_products(n); }

GDN_DEVICE uint32_t wgmma_place(uint32_t at, uint32_t next = 16)
{
    return (at & 0x3ffff) >> 4 | next >> 4 << 16;
}
GDN_DEVICE uint64_t wgmma_factor(uint32_t place) { return place; }

template <int dtype> struct wgmma {
    template <int n> static void rows(float (&d)[n], const uint32_t *a, uint64_t b)
    {
        emulated_multiply({ d, n, a, 0, b, false, false, dtype });
    }
    template <int n> static void rows_tied(float (&d)[n], const uint32_t *a, uint64_t b)
    {
        rows(d, a, b);
    }
    template <int n> static void add_rows(float (&d)[n], const uint32_t *a, uint64_t b)
    {
        emulated_multiply({ d, n, a, 0, b, true, false, dtype });
    }
    template <int n> static void add_columns(float (&d)[n], const uint32_t *a, uint64_t b)
    {
        emulated_multiply({ d, n, a, 0, b, true, true, dtype });
    }
    template <int n> static void columns(float (&d)[n], const uint32_t *a, uint64_t b)
    {
        emulated_multiply({ d, n, a, 0, b, false, true, dtype });
    }
    template <int n> static void tile_columns(float (&d)[n], uint64_t a, uint64_t b)
    {
        emulated_multiply({ d, n, nullptr, a, b, false, true, dtype });
    }
    template <int n> static void add_tile_columns(float (&d)[n], uint64_t a, uint64_t b)
    {
        emulated_multiply({ d, n, nullptr, a, b, true, true, dtype });
    }
    template <int n> static void both_columns(float (&d)[n], uint64_t a, uint64_t b)
    {
        emulated_multiply({ d, n, nullptr, a, b, false, true, dtype, true });
    }
    template <int n> static void add_both_columns(float (&d)[n], uint64_t a, uint64_t b)
    {
        emulated_multiply({ d, n, nullptr, a, b, true, true, dtype, true });
    }
    template <int n> static void tiles(float (&d)[n], uint64_t a, uint64_t b)
    {
        emulated_multiply({ d, n, nullptr, a, b, false, false, dtype });
    }
    template <int n> static void add_tiles(float (&d)[n], uint64_t a, uint64_t b)
    {
        emulated_multiply({ d, n, nullptr, a, b, true, false, dtype });
    }
};

#endif
