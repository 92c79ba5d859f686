/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads of what has one of two sizes, in parts, each into a register of its own. With a load for
 * either size into the same register the second would wait for the first, and all that follow it
 * with the second: a whole trip to memory.
 */
#ifndef GDN_CUDA_PTX_PARTS_CUH
#define GDN_CUDA_PTX_PARTS_CUH

#include "cuda/device/ptx.cuh"

/* Returns a number of 4 or 2 bytes, or none: zero. */
GDN_DEVICE uint32_t ld_4_or_2(const void *p, int bytes)
{
    uint32_t low, high;
    asm volatile("{\n\t"
                 ".reg .pred some, four;\n\t"
                 "setp.ne.s32 some, %3, 0;\n\tsetp.eq.s32 four, %3, 4;\n\t"
                 "mov.b32 %0, 0;\n\tmov.b32 %1, 0;\n\t"
                 "@some ld.global.u16 %0, [%2];\n\t"
                 "@four ld.global.u16 %1, [%2 + 2];\n\t"
                 "}"
                 : "=&r"(low), "=&r"(high)
                 : "l"(p), "r"(bytes));
    return low | high << 16;
}

/* A word or two bytes, if there are; else x stays. */
GDN_DEVICE void ld_word(uint32_t &x, const void *p, bool there)
{
    asm volatile("{\n\t.reg .pred there;\n\tsetp.ne.s32 there, %2, 0;\n\t"
                 "@there ld.global.b32 %0, [%1];\n\t}"
                 : "+r"(x)
                 : "l"(p), "r"((int)there));
}
GDN_DEVICE void ld_half(uint32_t &x, const void *p, bool there)
{
    asm volatile("{\n\t.reg .pred there;\n\tsetp.ne.s32 there, %2, 0;\n\t"
                 "@there ld.global.u16 %0, [%1];\n\t}"
                 : "+r"(x)
                 : "l"(p), "r"((int)there));
}

/* Two numbers of 4 or 2 bytes, aligned by 4, or none: zeros. Of 2 bytes they share the first
 * word. */
GDN_DEVICE void ld_8_or_4(uint32_t (&x)[2], const void *p, int bytes)
{
    asm volatile("{\n\t"
                 ".reg .pred some, four;\n\t"
                 "setp.ne.s32 some, %3, 0;\n\tsetp.eq.s32 four, %3, 4;\n\t"
                 "mov.b32 %0, 0;\n\tmov.b32 %1, 0;\n\t"
                 "@some ld.global.b32 %0, [%2];\n\t"
                 "@four ld.global.b32 %1, [%2 + 4];\n\t"
                 "}"
                 : "=&r"(x[0]), "=&r"(x[1])
                 : "l"(p), "r"(bytes));
}

/* A flag of 4 bytes or 1: set if one of x is not zero, or if there is no x. */
GDN_DEVICE void ld_flag(uint32_t (&x)[2], const void *p, int bytes)
{
    asm volatile("{\n\t"
                 ".reg .pred one, four;\n\t"
                 "setp.eq.s32 one, %3, 1;\n\tsetp.eq.s32 four, %3, 4;\n\t"
                 "mov.b32 %0, 0;\n\tselp.b32 %1, 0, 1, one;\n\t"
                 "@one ld.global.u8 %0, [%2];\n\t"
                 "@four ld.global.b32 %1, [%2];\n\t"
                 "}"
                 : "=&r"(x[0]), "=&r"(x[1])
                 : "l"(p), "r"(bytes));
}

/* Returns a word; two, aligned as a whole. */
GDN_DEVICE uint32_t ld_b32(const void *p)
{
    uint32_t x;
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(x) : "l"(p));
    return x;
}
GDN_DEVICE void ld_v2(uint32_t (&x)[2], const void *p)
{
    asm volatile("ld.global.v2.b32 {%0, %1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "l"(p));
}

/*
 * Arguments are in lines of 64 bytes, each of which takes some 75 cycles when it is first read, one
 * after the other. Here all are asked for, 25 cycles apart. await_arguments() waits for them (what
 * they are or'd to makes no difference), by a branch: what stands before it is asked for before
 * what stands behind, whatever the assembler thinks of the order.
 */
template <class T> GDN_DEVICE uint32_t ask_arguments(const T &a)
{
    const uint32_t *word = (const uint32_t *)&a + opaque(0u);
    uint32_t all = 0;
#pragma unroll
    for (int i = 0; i < (int)(sizeof a / 4); i += 16) all |= word[i];
    return all;
}
GDN_DEVICE void await_arguments(uint32_t all)
{
    asm volatile("{\n\t.reg .pred some;\n\tsetp.eq.u32 some, %0, 0x7fc12345;\n\t"
                 "@some nanosleep.u32 0;\n\t}"
                 :
                 : "r"(all));
}

#endif
