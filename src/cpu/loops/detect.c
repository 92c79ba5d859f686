/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which table of inner loops this machine may run. A processor that has an instruction set is
 * not enough: the operating system must also save its registers, which XCR0 tells.
 */
#include <string.h>

#include "cpu/loops/bf16.h"

#if defined(__x86_64__)

#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

const struct gdn_kernels *const gdn_cpu_tables[] = { &gdn_kernels_scalar, &gdn_kernels_avx2,
                                                     &gdn_kernels_avx512, &gdn_kernels_avx512bf16,
                                                     NULL };

/* The fastest first. */
static const struct gdn_bf16_products *const products[] = { &gdn_bf16_amx, &gdn_bf16_avx512, NULL };

enum {
    XCR0_YMM = 0x06,   /* SSE and AVX registers */
    XCR0_ZMM = 0xe6,   /* those, the masks, the upper halves and the upper sixteen */
    XCR0_AMX = 0x60000 /* tiles and their shapes */
};

/* Leaf 7 of CPUID: EDX of part 0, EAX of part 1. */
enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24, AVX512_BF16 = 1 << 5 };

/* Read as bytes, because an assembler may know the name only with -mxsave. */
static uint32_t read_xcr0(void)
{
    uint32_t low, high;
    __asm__ volatile(".byte 0x0f, 0x01, 0xd0" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* Linux saves tiles for those who have asked. The permission is the process's and stays. */
static bool may_use_tiles(void)
{
#if defined(__linux__) && defined(SYS_arch_prctl)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return false;
#endif
}

/* Returns the features that products of bfloat16 need beside AVX-512. */
static uint32_t detect_bf16(uint32_t leaf7_edx, uint32_t xcr0)
{
    const uint32_t tiles = AMX_BF16 | AMX_TILE;
    uint32_t eax, ebx, ecx, edx;
    if (!__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) || !(eax & AVX512_BF16)) return 0;
    if ((leaf7_edx & tiles) != tiles || (xcr0 & XCR0_AMX) != XCR0_AMX || !may_use_tiles())
        return GDN_CPU_AVX512_BF16;
    return GDN_CPU_AVX512_BF16 | GDN_CPU_AMX;
}

uint32_t gdn_cpu_detect(void)
{
    const uint32_t leaf1 = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C;
    const uint32_t avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    uint32_t eax, ebx, ecx, edx;

    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || (ecx & leaf1) != leaf1) return 0;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !(ebx & bit_AVX2)) return 0;

    const uint32_t xcr0 = read_xcr0();
    if ((xcr0 & XCR0_YMM) != XCR0_YMM) return 0;
    if ((ebx & avx512) != avx512 || (xcr0 & XCR0_ZMM) != XCR0_ZMM) return GDN_CPU_AVX2;
    return GDN_CPU_AVX2 | GDN_CPU_AVX512 | detect_bf16(edx, xcr0);
}

#elif defined(__aarch64__)

const struct gdn_kernels *const gdn_cpu_tables[] = { &gdn_kernels_scalar, &gdn_kernels_neon, NULL };

static const struct gdn_bf16_products *const products[] = { NULL };

uint32_t gdn_cpu_detect(void) { return GDN_CPU_NEON; }

#else

const struct gdn_kernels *const gdn_cpu_tables[] = { &gdn_kernels_scalar, NULL };

static const struct gdn_bf16_products *const products[] = { NULL };

uint32_t gdn_cpu_detect(void) { return 0; }

#endif

const struct gdn_kernels *gdn_cpu_select(uint32_t flags, const char *at_most)
{
    const struct gdn_kernels *best = NULL;
    for (const struct gdn_kernels *const *t = gdn_cpu_tables; *t; t++) {
        const bool met = !((*t)->needs & ~flags);
        if (met) best = *t;
        const bool last = !t[1] || strcmp((*t)->name, t[1]->name) != 0; /* of that name */
        if (at_most && last && strcmp((*t)->name, at_most) == 0)
            return strcmp(best->name, at_most) == 0 ? best : NULL;
    }
    return at_most ? NULL : best;
}

const struct gdn_bf16_products *gdn_cpu_bf16_products(const struct gdn_kernels *kr, uint32_t flags)
{
    for (const struct gdn_bf16_products *const *b = products; *b; b++)
        if ((*b)->table == kr && !((*b)->needs & ~flags)) return *b;
    return NULL;
}
