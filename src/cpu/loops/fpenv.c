/* SPDX-License-Identifier: Apache-2.0 */
/* The float environment (G12): round to nearest, denormals kept, no traps. */
#include "cpu/loops/fpenv.h"

#if defined(__SSE__)

#include <xmmintrin.h>

enum { MXCSR_DEFAULT = 0x1f80 }; /* all exceptions masked, nothing else set */

uint32_t gdn_fp_enter(void)
{
    const uint32_t saved = _mm_getcsr();
    _mm_setcsr(MXCSR_DEFAULT);
    return saved;
}

void gdn_fp_leave(uint32_t saved) { _mm_setcsr(saved); }

#elif defined(__aarch64__)

uint32_t gdn_fp_enter(void)
{
    uint64_t saved;
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved));
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
    return (uint32_t)saved;
}

void gdn_fp_leave(uint32_t saved) { __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)saved)); }

#else

#include <fenv.h>

uint32_t gdn_fp_enter(void)
{
    const int saved = fegetround();
    fesetround(FE_TONEAREST);
    return (uint32_t)saved;
}

void gdn_fp_leave(uint32_t saved) { fesetround((int)saved); }

#endif
