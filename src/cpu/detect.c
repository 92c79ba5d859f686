/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which table of inner loops this machine may run. A processor that has an instruction set is
 * not enough: the operating system must also save its registers, which XCR0 tells.
 */
#include <string.h>

#include "cpu/kernels.h"

#if defined(__x86_64__)

#include <cpuid.h>

const struct gdn_kernels *const gdn_cpu_tables[] = { &gdn_kernels_scalar, &gdn_kernels_avx2,
                                                     &gdn_kernels_avx512, NULL };

enum {
    XCR0_YMM = 0x06, /* SSE and AVX registers */
    XCR0_ZMM = 0xe6  /* those, the masks, the upper halves and the upper sixteen */
};

/* Read as bytes, because an assembler may know the name only with -mxsave. */
static uint32_t read_xcr0(void)
{
    uint32_t low, high;
    __asm__ volatile(".byte 0x0f, 0x01, 0xd0" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

uint32_t gdn_cpu_detect(void)
{
    const uint32_t leaf1  = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C;
    const uint32_t avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    uint32_t       eax, ebx, ecx, edx;

    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || (ecx & leaf1) != leaf1) return 0;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !(ebx & bit_AVX2)) return 0;

    const uint32_t xcr0 = read_xcr0();
    if ((xcr0 & XCR0_YMM) != XCR0_YMM) return 0;
    if ((ebx & avx512) != avx512 || (xcr0 & XCR0_ZMM) != XCR0_ZMM) return GDN_CPU_AVX2;
    return GDN_CPU_AVX2 | GDN_CPU_AVX512;
}

#elif defined(__aarch64__)

const struct gdn_kernels *const gdn_cpu_tables[] = { &gdn_kernels_scalar, &gdn_kernels_neon, NULL };

uint32_t gdn_cpu_detect(void) { return GDN_CPU_NEON; }

#else

const struct gdn_kernels *const gdn_cpu_tables[] = { &gdn_kernels_scalar, NULL };

uint32_t gdn_cpu_detect(void) { return 0; }

#endif

const struct gdn_kernels *gdn_cpu_select(uint32_t flags, const char *at_most)
{
    const struct gdn_kernels *best = NULL;
    for (const struct gdn_kernels *const *t = gdn_cpu_tables; *t; t++) {
        const bool met = !((*t)->needs & ~flags);
        if (met) best = *t;
        if (at_most && strcmp((*t)->name, at_most) == 0) return met ? best : NULL;
    }
    return at_most ? NULL : best;
}
