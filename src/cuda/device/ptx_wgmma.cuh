/* SPDX-License-Identifier: Apache-2.0 */
/* The instructions of Hopper beyond mma.sync, each as a function: barriers that count arrivals and
 * bytes, copies of whole tiles, clusters of blocks, products of warpgroups. Addresses of shared
 * memory are those of its own window, in bytes. In a cluster bits 24 and up are the block. */
#ifndef GDN_CUDA_PTX_WGMMA_CUH
#define GDN_CUDA_PTX_WGMMA_CUH

#include "cuda/device/ptx_mma.cuh"

/* ---- Barriers: a phase ends when all have arrived and all bytes are there -------------------- */

GDN_DEVICE void mbarrier_init(uint32_t barrier, int n)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(barrier), "r"(n));
}
GDN_DEVICE void mbarrier_init_fence(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
GDN_DEVICE void mbarrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(barrier) : "memory");
}
/* Arrives at a barrier, which then waits for so many more bytes. */
GDN_DEVICE void mbarrier_expect(uint32_t barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :
                 : "r"(barrier), "r"(bytes)
                 : "memory");
}
/* Arrives at a barrier of any block of the cluster. */
GDN_DEVICE void mbarrier_arrive_cluster(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" : : "r"(barrier) : "memory");
}
GDN_DEVICE void mbarrier_expect_cluster(uint32_t barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%0], %1;"
                 :
                 : "r"(barrier), "r"(bytes)
                 : "memory");
}
/* Waits until the phase of this parity has ended. */
GDN_DEVICE void mbarrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n\t"
                 ".reg .pred done;\n"
                 "again:\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
                 "@done bra over;\n\t"
                 "bra again;\n"
                 "over:\n\t"
                 "}"
                 :
                 : "r"(barrier), "r"(parity)
                 : "memory");
}
/* Returns true if the phase of this parity has completed; does not wait. */
GDN_DEVICE bool mbarrier_test(uint32_t barrier, uint32_t parity)
{
    int y;
    asm volatile("{\n\t"
                 ".reg .pred done;\n\t"
                 "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n\t"
                 "selp.b32 %0, 1, 0, done;\n\t"
                 "}"
                 : "=r"(y)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return y != 0;
}

/* Returns true if x is true in any of n threads. All of them meet at a barrier of the hardware. */
GDN_DEVICE bool barrier_any(int barrier, int n, bool x)
{
    int y;
    asm volatile("{\n\t"
                 ".reg .pred p, q;\n\t"
                 "setp.ne.b32 p, %3, 0;\n\t"
                 "barrier.cta.red.or.pred q, %1, %2, p;\n\t"
                 "selp.b32 %0, 1, 0, q;\n\t"
                 "}"
                 : "=r"(y)
                 : "r"(barrier), "r"(n), "r"((int)x)
                 : "memory");
    return y != 0;
}

/* ---- Clusters -------------------------------------------------------------------------------- */

/* Returns the same place in the shared memory of block `rank`. */
GDN_DEVICE uint32_t map_shared(uint32_t at, uint32_t rank)
{
    uint32_t x;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(x) : "r"(at), "r"(rank));
    return x;
}
GDN_DEVICE uint32_t cluster_rank(void)
{
    uint32_t x;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(x));
    return x;
}
GDN_DEVICE void cluster_sync(void)
{
    cluster_arrive();
    cluster_wait();
}

/* ---- Copies; those into shared memory count their bytes on a barrier there ------------------- */

/* Sends 16 bytes from registers to another block of the cluster. A barrier there counts these
 * bytes. */
GDN_DEVICE void send_to_block(uint32_t to, const float (&x)[4], uint32_t barrier)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
                 "[%0], {%1, %2, %3, %4}, [%5];"
                 :
                 : "r"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(barrier)
                 : "memory");
}
/* Waits for what other blocks sent, or for their arrival. */
GDN_DEVICE void mbarrier_wait_cluster(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n\t"
                 ".reg .pred done;\n"
                 "again:\n\t"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n\t"
                 "@done bra over;\n\t"
                 "bra again;\n"
                 "over:\n\t"
                 "}"
                 :
                 : "r"(barrier), "r"(parity)
                 : "memory");
}
/* Copies from shared memory to that of another block of the cluster. */
GDN_DEVICE void copy_to_block(uint32_t to, uint32_t from, int bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];"
                 :
                 : "r"(to), "r"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
/* Copies from memory to shared memory: multiples of 16 bytes. */
GDN_DEVICE void copy_in(uint32_t to, const void *from, int bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];"
                 :
                 : "r"(to), "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
                 : "memory");
}
/* Loads a tensor map into the cache of the copies. */
GDN_DEVICE void prefetch_map(const void *map)
{
    asm volatile("prefetch.tensormap [%0];" : : "l"(map));
}
/* Copies a box of a tensor of four dimensions to shared memory, with zeros for what is outside of
 * the tensor; and back to memory. */
GDN_DEVICE void copy_tile(uint32_t to, const void *map, const int (&at)[4], uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];"
                 :
                 : "r"(to), "l"(map), "r"(barrier), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
                 : "memory");
}
/* Loads a box into the L2 cache. */
GDN_DEVICE void prefetch_tile(const void *map, const int (&at)[4])
{
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];"
                 :
                 : "l"(map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
                 : "memory");
}
GDN_DEVICE void copy_tile_out(const void *map, const int (&at)[4], uint32_t from)
{
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group "
                 "[%0, {%2, %3, %4, %5}], [%1];"
                 :
                 : "l"(map), "r"(from), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
                 : "memory");
}
/* Copies to memory: multiples of 16 bytes. */
GDN_DEVICE void copy_out(void *to, uint32_t from, int bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 :
                 : "l"(__cvta_generic_to_global(to)), "r"(from), "r"(bytes)
                 : "memory");
}
GDN_DEVICE void copy_out_commit(void) { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/* Waits until the shared memory that is copied out has been read. Waits until all of it is in
 * memory. */
GDN_DEVICE void copy_out_wait_read(void)
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
GDN_DEVICE void copy_out_wait(void) { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
/* Lets asynchronous copies and products read what this thread has written, after the next
 * barrier. */
GDN_DEVICE void async_fence(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* ---- Registers of a warpgroup ---------------------------------------------------------------- */

template <int n> GDN_DEVICE void raise_registers(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(n));
}
template <int n> GDN_DEVICE void lower_registers(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(n));
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* The shared memory that the launch gives a block. */
extern __shared__ __align__(1024) char gdn_shared[];

GDN_DEVICE void load_shared(float (&x)[4], uint32_t at)
{
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                 : "r"(at));
}
GDN_DEVICE void store_shared(uint32_t at, uint32_t x)
{
    asm volatile("st.shared.b32 [%0], %1;" : : "r"(at), "r"(x) : "memory");
}
GDN_DEVICE void store_shared(uint32_t at, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};"
                 :
                 : "r"(at), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}
GDN_DEVICE void store_shared_u16(uint32_t at, uint16_t x)
{
    asm volatile("st.shared.b16 [%0], %1;" : : "r"(at), "h"(x) : "memory");
}
/* Stores four matrices of 8 x 8, as load_matrices() reads them; and transposed. */
GDN_DEVICE void store_matrices(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};"
                 :
                 : "r"(row), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}
GDN_DEVICE void store_matrices_turned(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};"
                 :
                 : "r"(row), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

/* ---- Products of a warpgroup: d = a b and d += a b, 64 rows ---------------------------------- */

GDN_DEVICE void wgmma_fence(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
GDN_DEVICE void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Waits until at most n groups of products are under way. */
template <int n> GDN_DEVICE void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(n) : "memory");
}

/*
 * A factor in shared memory is a tile of rows of 128 bytes, from a multiple of 1024 bytes on. 16
 * bytes number c of row r lie at c ^ r % 8 (the 128-byte swizzle). A descriptor of it is a
 * word that moves with the address (in units of 16 bytes) and one that does not. Of a factor whose
 * rows are summed over, `next` is how far the next 64 columns are.
 */
GDN_DEVICE uint32_t wgmma_place(uint32_t at, uint32_t next = 16)
{
    return (at & 0x3ffff) >> 4 | next >> 4 << 16;
}
GDN_DEVICE uint64_t wgmma_factor(uint32_t place)
{
    return (uint64_t)(1u << 30 | 1024u >> 4) << 32 | place;
}

#define GDN_R16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define GDN_R32                                              \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define GDN_R64                                                        \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"           \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define GDN_F8(how, d, i)                                                                 \
    how(d[i]), how(d[i + 1]), how(d[i + 2]), how(d[i + 3]), how(d[i + 4]), how(d[i + 5]), \
        how(d[i + 6]), how(d[i + 7])
#define GDN_F32S(how, d, i) \
    GDN_F8(how, d, i), GDN_F8(how, d, i + 8), GDN_F8(how, d, i + 16), GDN_F8(how, d, i + 24)

#define GDN_D16(how) GDN_F8(how, d, 0), GDN_F8(how, d, 8)
#define GDN_D32(how) GDN_F32S(how, d, 0)
#define GDN_D64(how) GDN_F32S(how, d, 0), GDN_F32S(how, d, 32)
#define GDN_TILES32 "%32, %33"
#define GDN_TILES64 "%64, %65"
#define GDN_ROWS16 "{%16,%17,%18,%19}, %20"
#define GDN_ROWS32 "{%32,%33,%34,%35}, %36"
#define GDN_ROWS64 "{%64,%65,%66,%67}, %68"

/* n: floats of d in a thread, for the number of columns. is: in p, whether d is added to. */
#define GDN_WGMMA(is, n, columns, type, factors, majors)                               \
    "{\n\t.reg .pred p;\n\tsetp." is ".b32 p, 0, 0;\n\t"                               \
    "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " {" GDN_R##n \
        "}, " factors ", p, 1, 1, " majors ";\n\t}"
#define GDN_WGMMA_ROWS(name, type, n, columns, is, how, turned)             \
    GDN_DEVICE void name(float(&d)[n], const uint32_t *a, uint64_t b)       \
    {                                                                       \
        asm volatile(GDN_WGMMA(is, n, columns, type, GDN_ROWS##n, turned)   \
                     : GDN_D##n(how)                                        \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
    }
#define GDN_WGMMA_TILES(name, type, n, columns, is, how, turned)           \
    GDN_DEVICE void name(float(&d)[n], uint64_t a, uint64_t b)             \
    {                                                                      \
        asm volatile(GDN_WGMMA(is, n, columns, type, GDN_TILES##n, turned) \
                     : GDN_D##n(how)                                       \
                     : "l"(a), "l"(b));                                    \
    }
#define GDN_WGMMA_KINDS(type)                                                                   \
    /* a in registers, one operand (mma.cuh) per warp; b: 64 or 128 rows, 16 columns of them */ \
    GDN_WGMMA_ROWS(rows, type, 32, "64", "ne", "=f", "0")                                       \
    GDN_WGMMA_ROWS(rows_tied, type, 32, "64", "ne", "+f", "0")                                  \
    GDN_WGMMA_ROWS(add_rows, type, 32, "64", "eq", "+f", "0")                                   \
    GDN_WGMMA_ROWS(rows, type, 64, "128", "ne", "=f", "0")                                      \
    GDN_WGMMA_ROWS(add_rows, type, 64, "128", "eq", "+f", "0")                                  \
    /* d += a b with 16 rows of b, 32, 64 or 128 columns */                                     \
    GDN_WGMMA_ROWS(add_columns, type, 16, "32", "eq", "+f", "1")                                \
    GDN_WGMMA_ROWS(add_columns, type, 32, "64", "eq", "+f", "1")                                \
    GDN_WGMMA_ROWS(add_columns, type, 64, "128", "eq", "+f", "1")                               \
    GDN_WGMMA_ROWS(columns, type, 32, "64", "ne", "=f", "1")                                    \
    /* both in shared memory, 64 rows of a, 64 or 128 of b, 16 columns of them */               \
    GDN_WGMMA_TILES(tiles, type, 32, "64", "ne", "=f", "0, 0")                                  \
    GDN_WGMMA_TILES(add_tiles, type, 32, "64", "eq", "+f", "0, 0")                              \
    GDN_WGMMA_TILES(tiles, type, 64, "128", "ne", "=f", "0, 0")                                 \
    GDN_WGMMA_TILES(add_tiles, type, 64, "128", "eq", "+f", "0, 0")                             \
    /* 16 rows of b, 64 columns; and 16 rows of a too, 64 columns: those are rows of d */       \
    GDN_WGMMA_TILES(tile_columns, type, 32, "64", "ne", "=f", "0, 1")                           \
    GDN_WGMMA_TILES(add_tile_columns, type, 32, "64", "eq", "+f", "0, 1")                       \
    GDN_WGMMA_TILES(both_columns, type, 32, "64", "ne", "=f", "1, 1")                           \
    GDN_WGMMA_TILES(add_both_columns, type, 32, "64", "eq", "+f", "1, 1")

template <int dtype> struct wgmma;
template <> struct wgmma<GDN_BF16> {
    GDN_WGMMA_KINDS("bf16")
};
template <> struct wgmma<GDN_F16> {
    GDN_WGMMA_KINDS("f16")
};

#endif
