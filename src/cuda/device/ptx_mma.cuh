/* SPDX-License-Identifier: Apache-2.0 */
/* Instructions of tensor cores, of asynchronous copies and of barriers, each as one function.
 * Addresses of shared memory are those of its own window, in bytes. */
#ifndef GDN_CUDA_PTX_MMA_CUH
#define GDN_CUDA_PTX_MMA_CUH

#include "cuda/device/io.cuh"

GDN_DEVICE uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* ---- Matrices of 8 x 8 elements of 16 bits: lane l has element 2 (l % 4) and the next of row
 * l / 4. Lanes 8 i to 8 i + 7 give the addresses of the rows of matrix i. Turned: of column
 * l / 4. */

GDN_DEVICE void load_matrices(uint32_t (&x)[4], uint32_t row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(row));
}
GDN_DEVICE void load_matrices_turned(uint32_t (&x)[4], uint32_t row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(row));
}

/* Returns a matrix in registers, transposed. */
GDN_DEVICE uint32_t turn_matrix(uint32_t x)
{
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

GDN_DEVICE void load_shared(float &x, float &y, uint32_t at)
{
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x), "=f"(y) : "r"(at));
}
GDN_DEVICE void load_shared(float &x, uint32_t at)
{
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at));
}

/* ---- d += a b: of 16 x 16 by 16 x 8 elements of 16 bits, of 16 x 8 by 8 x 8 of tf32 ---------- */

GDN_DEVICE void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
GDN_DEVICE void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
GDN_DEVICE void mma_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Returns x rounded to tf32. */
GDN_DEVICE uint32_t round_tf32(float x)
{
    uint32_t y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

/* Returns z + f x of two elements. With f = 0 the result is NaN if an x is not finite. */
GDN_DEVICE uint32_t add_bf16x2(uint32_t z, uint32_t x, uint32_t f)
{
    uint32_t y;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(f), "r"(z));
    return y;
}
GDN_DEVICE uint32_t add_f16x2(uint32_t z, uint32_t x, uint32_t f)
{
    uint32_t y;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(f), "r"(z));
    return y;
}

/* Returns x f of two elements. */
GDN_DEVICE uint32_t multiply_bf16x2(uint32_t x, uint32_t f)
{
    return add_bf16x2(0x80008000u, x, f);
}
GDN_DEVICE uint32_t multiply_f16x2(uint32_t x, uint32_t f) { return add_f16x2(0x80008000u, x, f); }

/* ---- Copies from global to shared memory that go on behind the thread's back ----------------- */

/* Copies the first `valid` of `bytes` (a constant: 4, 8 or 16) from memory, and fills the others
 * with zeros. */
template <int bytes> GDN_DEVICE void copy_async(uint32_t to, const void *from, int valid)
{
    if (bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :
                     : "r"(to), "l"(__cvta_generic_to_global(from)), "r"(valid)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                     :
                     : "r"(to), "l"(__cvta_generic_to_global(from)), "n"(bytes), "r"(valid)
                     : "memory");
}
/* Ends a group of copies. copy_wait() waits for all groups except the last `n`. */
GDN_DEVICE void copy_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int n> GDN_DEVICE void copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" : : "n"(n) : "memory");
}

/* ---- Barriers of some threads of a block, whole warps. All but those that wait only arrive. -- */

GDN_DEVICE void barrier_wait(int barrier, int n_threads)
{
    asm volatile("bar.sync %0, %1;" : : "r"(barrier), "r"(n_threads) : "memory");
}
GDN_DEVICE void barrier_arrive(int barrier, int n_threads)
{
    asm volatile("bar.arrive %0, %1;" : : "r"(barrier), "r"(n_threads) : "memory");
}

#endif
