/* SPDX-License-Identifier: Apache-2.0 */
/* PTX instructions. Each has a function that is named after it. A load that is wanted under a
 * condition is predicated instead of jumped over. So loads, and the code, stay close together. */
#ifndef GDN_CUDA_PTX_CUH
#define GDN_CUDA_PTX_CUH

#include <stdint.h>

#define GDN_DEVICE static __device__ __forceinline__

/* Waits until the kernels ahead in the stream have ended and what they wrote can be read. */
GDN_DEVICE void griddepcontrol_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Writes a word when all earlier writes of this thread can be read. Reads such a word. */
GDN_DEVICE void st_release(uint64_t *p, uint64_t x)
{
    asm volatile("st.release.gpu.global.b64 [%0], %1;" ::"l"(p), "l"(x) : "memory");
}
GDN_DEVICE uint64_t ld_acquire(const uint64_t *p)
{
    uint64_t x;
    asm volatile("ld.acquire.gpu.global.b64 %0, [%1];" : "=l"(x) : "l"(p) : "memory");
    return x;
}

/* Lets the next kernel in the stream begin, when every block has called it. */
GDN_DEVICE void griddepcontrol_launch_dependents(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Arrives at the barrier of the cluster: everything before the call is done. cluster_wait()
 * waits until all threads of the cluster have arrived. */
GDN_DEVICE void cluster_arrive(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
#endif
}
/* Does the same without ordering writes: for blocks that overwrite only what this thread has
 * already read. */
GDN_DEVICE void cluster_arrive_relaxed(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
GDN_DEVICE void cluster_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

/* Returns x without an instruction. The compiler can no longer derive its value. So values made of
 * x are computed at that place, and no registers keep them through a loop. */
GDN_DEVICE int opaque(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}
GDN_DEVICE uint32_t opaque(uint32_t x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* Loads four words if `four`, two if `two`, aligned as a whole. The other words are zero. */
GDN_DEVICE void ld_v4_v2(uint32_t (&x)[4], const void *p, bool four, bool two)
{
    asm volatile("{\n\t"
                 ".reg .pred four, two;\n\t"
                 "setp.ne.s32 four, %5, 0;\n\tsetp.ne.s32 two, %6, 0;\n\t"
                 "mov.b32 %0, 0;\n\tmov.b32 %1, 0;\n\tmov.b32 %2, 0;\n\tmov.b32 %3, 0;\n\t"
                 "@four ld.global.v4.b32 {%0, %1, %2, %3}, [%4];\n\t"
                 "@two ld.global.v2.b32 {%0, %1}, [%4];\n\t"
                 "}"
                 : "=&r"(x[0]), "=&r"(x[1]), "=&r"(x[2]), "=&r"(x[3])
                 : "l"(p), "r"((int)four), "r"((int)two));
}

/* Loads four words, aligned as a whole. */
GDN_DEVICE void ld_v4(uint32_t (&x)[4], const void *p)
{
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "l"(p));
}

/* Loads four or two words, aligned as a whole, if they are `there`, else zeros. ..._once: no other
 * thread reads the words, so they get no place in the L1 cache. */
#define GDN_LD_V4(name, cache)                                                                  \
    GDN_DEVICE void name(uint32_t(&x)[4], const void *p, bool there)                            \
    {                                                                                           \
        asm volatile("{\n\t"                                                                    \
                     ".reg .pred there;\n\t"                                                    \
                     "setp.ne.s32 there, %5, 0;\n\t"                                            \
                     "mov.b32 %0, 0;\n\tmov.b32 %1, 0;\n\tmov.b32 %2, 0;\n\tmov.b32 %3, 0;\n\t" \
                     "@there ld.global" cache ".v4.b32 {%0, %1, %2, %3}, [%4];\n\t"             \
                     "}"                                                                        \
                     : "=&r"(x[0]), "=&r"(x[1]), "=&r"(x[2]), "=&r"(x[3])                       \
                     : "l"(p), "r"((int)there));                                                \
    }
#define GDN_LD_V2(name, cache)                                              \
    GDN_DEVICE void name(uint32_t(&x)[4], const void *p, bool there)        \
    {                                                                       \
        asm volatile("{\n\t"                                                \
                     ".reg .pred there;\n\t"                                \
                     "setp.ne.s32 there, %3, 0;\n\t"                        \
                     "mov.b32 %0, 0;\n\tmov.b32 %1, 0;\n\t"                 \
                     "@there ld.global" cache ".v2.b32 {%0, %1}, [%2];\n\t" \
                     "}"                                                    \
                     : "=&r"(x[0]), "=&r"(x[1])                             \
                     : "l"(p), "r"((int)there));                            \
    }
GDN_LD_V4(ld_keep_v4, "")
GDN_LD_V2(ld_keep_v2, "")
GDN_LD_V4(ld_once_v4, ".L1::no_allocate")
GDN_LD_V2(ld_once_v2, ".L1::no_allocate")
#undef GDN_LD_V4
#undef GDN_LD_V2

/* Loads the line at an address into the L2 cache if `some`, without a branch. */
GDN_DEVICE void prefetch(const void *p, bool some)
{
    asm volatile("{\n\t.reg .pred some;\n\tsetp.ne.s32 some, %1, 0;\n\t"
                 "@some prefetch.global.L2 [%0];\n\t}"
                 :
                 : "l"(p), "r"((int)some));
}

/* Returns a word if `word`, two bytes if `half`, else zero. */
GDN_DEVICE uint32_t ld_b32_b16(const void *p, bool word, bool half)
{
    uint32_t x;
    asm volatile("{\n\t"
                 ".reg .pred word, half;\n\t"
                 "setp.ne.s32 word, %2, 0;\n\tsetp.ne.s32 half, %3, 0;\n\t"
                 "mov.b32 %0, 0;\n\t"
                 "@word ld.global.b32 %0, [%1];\n\t"
                 "@half ld.global.u16 %0, [%1];\n\t"
                 "}"
                 : "=&r"(x)
                 : "l"(p), "r"((int)word), "r"((int)half));
    return x;
}

/* Loads two words, aligned as a whole, if `two`, one if `one`. The other words are zero. */
GDN_DEVICE void ld_v2_b32(uint32_t (&x)[2], const void *p, bool two, bool one)
{
    asm volatile("{\n\t"
                 ".reg .pred two, one;\n\t"
                 "setp.ne.s32 two, %3, 0;\n\tsetp.ne.s32 one, %4, 0;\n\t"
                 "mov.b32 %0, 0;\n\tmov.b32 %1, 0;\n\t"
                 "@two ld.global.v2.b32 {%0, %1}, [%2];\n\t"
                 "@one ld.global.b32 %0, [%2];\n\t"
                 "}"
                 : "=&r"(x[0]), "=&r"(x[1])
                 : "l"(p), "r"((int)two), "r"((int)one));
}

/* Returns an index of 4, 8 or 1 (unsigned) bytes; `absent` if it has no bytes. */
GDN_DEVICE int64_t ld_index(const void *p, int bytes, int64_t absent)
{
    int64_t x;
    asm volatile("{\n\t"
                 ".reg .pred four, eight, one;\n\t"
                 "setp.eq.s32 four, %2, 4;\n\tsetp.eq.s32 eight, %2, 8;\n\t"
                 "setp.eq.s32 one, %2, 1;\n\t"
                 "mov.b64 %0, %3;\n\t"
                 "@four ld.global.s32 %0, [%1];\n\t"
                 "@eight ld.global.b64 %0, [%1];\n\t"
                 "@one ld.global.u8 %0, [%1];\n\t"
                 "}"
                 : "=&l"(x)
                 : "l"(p), "r"(bytes), "l"(absent));
    return x;
}

/* Loads two words of shared memory, aligned as a whole. The compiler does not load them earlier. */
GDN_DEVICE void lds_v2(uint32_t *x, const void *p)
{
    asm volatile("ld.volatile.shared.v2.b32 {%0, %1}, [%2];"
                 : "=r"(x[0]), "=r"(x[1])
                 : "r"((uint32_t)__cvta_generic_to_shared(p)));
}

/* Returns a b + c. */
GDN_DEVICE int64_t mad_wide(int a, int b, int64_t c)
{
    int64_t x;
    asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(x) : "r"(a), "r"(b), "l"(c));
    return x;
}

/* Returns 1 / x with an error of one unit of the last place, for |x| from 2^-126 to 2^126. */
GDN_DEVICE float rcp_approx(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Return 1 / sqrt(x) with an error of two units of the last place, also of denormals and infinity;
 * and sqrt(x) with one. */
GDN_DEVICE float rsqrt_approx(float x)
{
    float y;
    asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
GDN_DEVICE float sqrt_approx(float x)
{
    float y;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Returns 2^x with an error of two units of the last place; 0 if 2^x is denormal. */
GDN_DEVICE float ex2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Convert between 16 bits and float32, with one rounding, to nearest even. */
GDN_DEVICE float f16_to_f32(uint16_t x)
{
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
GDN_DEVICE uint16_t f32_to_bf16(float x)
{
    uint16_t y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
GDN_DEVICE uint16_t f32_to_f16(float x)
{
    uint16_t y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}

/* Returns two numbers of 16 bits in a word, `low` in its lower half. */
GDN_DEVICE uint32_t f32_to_bf16x2(float low, float high)
{
    uint32_t y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
GDN_DEVICE uint32_t f32_to_f16x2(float low, float high)
{
    uint32_t y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

#endif
