/* SPDX-License-Identifier: Apache-2.0 */
/* Stores with a condition but without a branch, beside those of ptx.cuh. */
#ifndef GDN_CUDA_PTX_STORE_CUH
#define GDN_CUDA_PTX_STORE_CUH

#include "cuda/device/ptx.cuh"

/* Stores four words, or the first two, aligned as a whole, if `is`. */
GDN_DEVICE void st_v4(void *p, const uint32_t (&x)[4], bool is)
{
    asm volatile("{\n\t.reg .pred is;\n\tsetp.ne.s32 is, %5, 0;\n\t"
                 "@is st.global.v4.b32 [%0], {%1, %2, %3, %4};\n\t}"
                 :
                 : "l"(p), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"((int)is)
                 : "memory");
}
GDN_DEVICE void st_v2(void *p, const uint32_t (&x)[4], bool is)
{
    asm volatile("{\n\t.reg .pred is;\n\tsetp.ne.s32 is, %3, 0;\n\t"
                 "@is st.global.v2.b32 [%0], {%1, %2};\n\t}"
                 :
                 : "l"(p), "r"(x[0]), "r"(x[1]), "r"((int)is)
                 : "memory");
}

#endif
