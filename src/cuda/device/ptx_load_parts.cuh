/* SPDX-License-Identifier: Apache-2.0 */
/* Loads of numbers that have one of two sizes. Each part goes into a register of its own. If loads
 * of both sizes went into one register, the second load would wait for the first, and all later
 * loads for the second: a whole trip to memory. */
#ifndef GDN_CUDA_PTX_PARTS_CUH
#define GDN_CUDA_PTX_PARTS_CUH

#include "cuda/device/ptx.cuh"

/* Returns a number of 4 or 2 bytes; zero if it has none. */
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

/* Loads a word or two bytes if `there`. Otherwise x stays. */
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

/* Loads two numbers of 4 or 2 bytes, aligned by 4; zeros if they have none. Two of 2 bytes are in
 * the first word. */
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

/* Loads a flag of 4 bytes or 1. It is set if one word of x is not zero, and if the flag has no
 * bytes. */
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

/* Return a word, and two words that are aligned as a whole. */
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

/* Returns a word from the L2 cache and keeps nothing in L1. A load behind griddepcontrol_wait()
 * would else find the old word in L1. */
GDN_DEVICE uint32_t ld_b32_l2(const void *p)
{
    uint32_t x;
    asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}

/* Reads one word of each line of the arguments. A line has 64 bytes, and its first read takes some
 * 75 cycles. Reads one after the other would add up; these are 25 cycles apart. await_arguments()
 * waits for them by a branch, which keeps the assembler from moving loads to the other side. Its or
 * of the words changes nothing. */
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
